//! `knarr net`: what a Service resolves to, whether a connection reaches its destination, and how nodes reach each other's
//! pods (SPEC N2, N6, N7).
//!
//! Nothing is written. The decisions are made by the code of the agents themselves (`knarr_network`), on a copy of the
//! objects: a report has what nodes do once they have synced these objects, and for this host whether its kernel has.

mod arguments;
mod connect;
mod connect_peers;
mod connect_text;
mod kernel;
mod names;
mod nodes;
mod objects;
mod rules;
mod service;
mod service_report;
mod service_text;
#[cfg(test)]
mod tests;
mod warnings;

use std::net::IpAddr;

use clap::{Args, Subcommand};
use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_client::{Clock, SystemClock};
use knarr_network::catalog::ServiceKey;

use self::objects::{NetworkObjects, SELECTION, Settings, name_of};
use super::network::Names;
use super::snapshot::Source;
use super::version::Output;
use super::{Failure, cluster};
use crate::config::{Config, Part};

pub const HELP: &str = "\
Nothing is written: the code of the nodes' agents is run on a copy of the cluster's objects. Run as root on a node, `service` \
also compares the kernel's tables with them.

  knarr net service web                        what every address of a Service resolves to on this node, and why
  knarr net service web -n shop --node n2      the same on another node
  knarr net service web --client 192.0.2.7     for one client only
  knarr net connect web-7d4b svc/api:80        through the Service and the NetworkPolicies of both pods
  knarr net connect web-7d4b dns.kube-system:53/udp
  knarr net connect node/n1 pod/store-0:7000   from a process of a node
  knarr net connect web-7d4b 10.244.1.7:9000   to an address
  knarr net nodes                              how nodes reach each other's pods
  kubectl get nodes,svc,endpointslices,pods,ns,netpol,leases,cm -A -o json > dump.json
  knarr net connect web-7d4b svc/api:80 --from dump.json

Exit codes: 0 reachable (all nodes, for `nodes`), 1 not reachable or only in part, 2 an error: no such object, a usage \
error, or the API server cannot be reached.

The cluster is that of --kubeconfig, else of $KUBECONFIG, else of knarr on this host.";

#[derive(Args)]
#[command(after_help = HELP)]
pub struct NetArgs {
    #[command(subcommand)]
    command: NetCommand,
}

#[derive(Args)]
struct Common {
    #[command(flatten)]
    source: Source,
    /// Print as `text` or `json`.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

#[derive(Subcommand)]
enum NetCommand {
    /// Show what a Service resolves to on a node: addresses, endpoints, DNS names, and warnings.
    #[command(after_help = HELP)]
    Service {
        /// The Service, as NAME or svc/NAME.
        name: String,
        /// The node whose proxy decides [default: this host's node, else the only one].
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        /// Only for connections from this address.
        #[arg(long, value_name = "ADDRESS")]
        client: Option<IpAddr>,
        #[command(flatten)]
        common: Common,
    },
    /// Show whether a connection reaches its destination, or what rejects or drops it.
    #[command(after_help = HELP)]
    Connect {
        /// The client: POD, pod/POD, node/NODE or an address.
        #[arg(value_name = "SOURCE")]
        client: String,
        /// The destination: POD:PORT, svc/NAME:PORT, NAME.NAMESPACE:PORT or ADDRESS:PORT; followed by /udp or /sctp for those
        /// protocols. PORT is a number or a name.
        destination: String,
        /// The namespace of the destination [default: that of --namespace].
        #[arg(long, value_name = "NAMESPACE")]
        to_namespace: Option<String>,
        #[command(flatten)]
        common: Common,
    },
    /// Show how the pods of each node are reached, and which revision of EndpointSlices each node has.
    #[command(after_help = HELP)]
    Nodes {
        /// The node whose routes are shown [default: this host's node, else the first].
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        #[command(flatten)]
        common: Common,
    },
}

/// Returns whether the destination is reachable.
pub async fn run(config: Config, args: NetArgs, kubeconfig_named: bool) -> Result<bool, Failure> {
    match args.command {
        NetCommand::Service {
            name,
            node,
            client,
            common,
        } => {
            let name = super::bare_name(&name, &["service", "services", "svc"])?;
            let key = ServiceKey::new(&common.source.namespace, name);
            let objects = read(&config, &common, kubeconfig_named).await?;
            let of = node_of(&objects, &config, node.as_deref())?;
            let mut report = service::report(&objects, of, &key, client)?;
            // The tables of this host are compared with the live cluster only, not with a dump.
            if common.source.from.is_empty() && name_of(of) == config.node_name {
                let table = objects.settings.proxy.table.clone();
                let compared = match kernel::compared(&objects, of, &report)? {
                    Some(compared) if !compared.is_in_step() => {
                        // An object may have changed after it was read and before the tables were.
                        let again = read(&config, &common, kubeconfig_named).await?;
                        let of = node_of(&again, &config, node.as_deref())?;
                        report = service::report(&again, of, &key, client)?;
                        kernel::compared(&again, of, &report)?
                    }
                    compared => compared,
                };
                report.kernel = compared.map(|compared| kernel::report(&compared, &table));
            }
            print(&common, &report, service_text::to_text)?;
            Ok(report.reachable)
        }
        NetCommand::Connect {
            client,
            destination,
            to_namespace,
            common,
        } => {
            let objects = read(&config, &common, kubeconfig_named).await?;
            let namespace = &common.source.namespace;
            let source = arguments::source(&client, namespace, &objects)?;
            let of = to_namespace.as_ref().unwrap_or(namespace);
            let destination = arguments::destination(&destination, of, &objects)?;
            let report = connect::report(&objects, &source, &destination)?;
            print(&common, &report, connect_text::to_text)?;
            Ok(report.verdict == connect::Reachability::Allowed)
        }
        NetCommand::Nodes { node, common } => {
            let objects = read(&config, &common, kubeconfig_named).await?;
            let first = objects.nodes().map(name_of).min().unwrap_or_default();
            let own = objects.node(&config.node_name).map_or(first, name_of);
            let of = node_of(&objects, &config, Some(node.as_deref().unwrap_or(own)))?;
            let subnets = match common.source.from.is_empty() && name_of(of) == config.node_name {
                true => kernel::subnets(&config, of).await,
                false => None,
            };
            let seen_from = name_of(of);
            let mut report = nodes::report(&objects, seen_from, subnets.as_deref(), SystemClock.now());
            if common.output == Output::Json {
                report.matrix = nodes::matrix(&objects, seen_from, subnets.as_deref());
            }
            print(&common, &report, nodes::to_text)?;
            Ok(report.is_healthy())
        }
    }
}

fn print<T: serde::Serialize>(common: &Common, report: &T, to_text: fn(&T) -> String) -> Result<(), Failure> {
    match common.output {
        Output::Text => print!("{}", to_text(report)),
        Output::Json => super::print_json(report)?,
    }
    Ok(())
}

async fn read(config: &Config, common: &Common, kubeconfig_named: bool) -> Result<NetworkObjects, Failure> {
    let objects = common
        .source
        .objects(config, kubeconfig_named, &SELECTION)
        .await?;
    let mut network = config.network.clone();
    // The configuration of this host may be that of another cluster.
    if let Some(cidrs) = objects::service_cidrs(&objects).and_then(|cidrs| cidrs.join(",").parse().ok()) {
        network.service_cidrs = cidrs;
    }
    let settings = Settings {
        proxy: Names::of(config).proxy(&network),
        dns_addresses: network.served_dns_addresses(),
        cluster_domain: cluster::cluster_domain(config),
        enforces_policies: network.has(Part::Policy),
    };
    Ok(NetworkObjects::new(objects, settings))
}

/// The node that is named, else this host's, else the only one.
fn node_of<'a>(
    objects: &'a NetworkObjects,
    config: &Config,
    named: Option<&str>,
) -> Result<&'a core::Node, Failure> {
    if let Some(named) = named {
        let name = super::bare_name(named, &["node", "nodes", "no"])?;
        return objects
            .node(name)
            .ok_or_else(|| Failure::new(format!("there is no node {name}")));
    }
    if let Some(own) = objects.node(&config.node_name) {
        return Ok(own);
    }
    let all: Vec<String> = objects.nodes().map(|node| name_of(node).to_string()).collect();
    match objects.nodes().next() {
        Some(only) if all.len() == 1 => Ok(only),
        Some(_) => Err(Failure::new(format!(
            "this host ({}) is not a node of the cluster: expected --node with one of {}",
            config.node_name,
            super::columns::some(&all, 6)
        ))),
        None => Err(Failure::new("there are no nodes")),
    }
}
