//! `knarr net`: what a Service resolves to, whether a connection arrives, and how nodes reach each other's pods
//! (SPEC N2, N6, N7).
//!
//! Nothing is written. What decides is the code of the agents themselves (`knarr_network`), on a copy of the objects; an
//! answer says what nodes do when they know these objects, and for this machine whether its kernel is that far.

mod connect;
mod connect_text;
mod ends;
mod kernel;
mod names;
mod nodes;
mod objects;
mod rules;
mod service;
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

use self::objects::{NetworkObjects, Settings, WANTED, name_of};
use super::network::Names;
use super::snapshot::Source;
use super::version::Output;
use super::{Failure, cluster};
use crate::config::{Config, Part};

pub const HELP: &str = "\
Nothing is written: the rules of the nodes' own agents are asked on a copy of the cluster. Run as root on a node, `service` \
also compares the kernel's tables with it.

  knarr net service web                        what every address of a Service leads to on this node, and why
  knarr net service web -n shop --node n2      the same on another node
  knarr net service web --client 192.0.2.7     for one client alone
  knarr net connect web-7d4b svc/api:80        through the Service and the policies of both ends
  knarr net connect web-7d4b dns.kube-system:53/udp
  knarr net connect node/n1 pod/store-0:7000   from a process of a node
  knarr net connect web-7d4b 10.244.1.7:9000   to an address
  knarr net nodes                              how nodes reach each other's pods
  kubectl get nodes,svc,endpointslices,pods,ns,netpol,leases,cm -A -o json > dump.json
  knarr net connect web-7d4b svc/api:80 --from dump.json

Exit codes: 0 it is reached (all nodes, for `nodes`), 1 it is not or not always, 2 the question cannot be answered: no such \
object, wrong usage, no API.

The cluster is that of --kubeconfig, else of $KUBECONFIG, else of this machine's knarr.";

#[derive(Args)]
#[command(after_help = HELP)]
pub struct NetArgs {
    #[command(subcommand)]
    what: What,
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
enum What {
    /// What a Service resolves to on a node: addresses, endpoints, names, and what is wrong.
    #[command(after_help = HELP)]
    Service {
        /// The Service, as NAME or svc/NAME.
        name: String,
        /// The node whose proxy is asked; by default this machine's, or the only one.
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        /// Only for connections from this address.
        #[arg(long, value_name = "ADDRESS")]
        client: Option<IpAddr>,
        #[command(flatten)]
        common: Common,
    },
    /// Whether a connection arrives, or what rejects or drops it.
    #[command(after_help = HELP)]
    Connect {
        /// Who connects: POD, pod/POD, node/NODE or an address.
        #[arg(value_name = "SOURCE")]
        client: String,
        /// Where to: POD:PORT, svc/NAME:PORT, NAME.NAMESPACE:PORT or ADDRESS:PORT, with /udp or /sctp for these. PORT is a
        /// number or a name.
        destination: String,
        /// The namespace of the destination, if it is another one.
        #[arg(long, value_name = "NAMESPACE")]
        to_namespace: Option<String>,
        #[command(flatten)]
        common: Common,
    },
    /// How the pods of each node are reached, and how far each agent is.
    #[command(after_help = HELP)]
    Nodes {
        /// The node whose routes are shown; by default this machine's, or the first.
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        #[command(flatten)]
        common: Common,
    },
}

/// Whether it is reached.
pub async fn run(config: Config, args: NetArgs, kubeconfig_named: bool) -> Result<bool, Failure> {
    match args.what {
        What::Service {
            name,
            node,
            client,
            common,
        } => {
            let name = super::bare_name(&name, &["service", "services", "svc"])?;
            let key = ServiceKey::new(&common.source.namespace, name);
            let objects = read(&config, &common, kubeconfig_named).await?;
            let of = node_of(&objects, &config, node.as_deref())?;
            let mut answer = service::answer(&objects, of, &key, client)?;
            // What a dump says is not what this machine has.
            if common.source.from.is_empty() && name_of(of) == config.node_name {
                let table = objects.settings.proxy.table.clone();
                let compared = match kernel::compared(&objects, of, &answer)? {
                    Some(compared) if !compared.is_in_step() => {
                        // A change may have come between the objects and the tables.
                        let again = read(&config, &common, kubeconfig_named).await?;
                        let of = node_of(&again, &config, node.as_deref())?;
                        answer = service::answer(&again, of, &key, client)?;
                        kernel::compared(&again, of, &answer)?
                    }
                    compared => compared,
                };
                answer.kernel = compared.map(|compared| kernel::in_words(&compared, &table));
            }
            print(&common, &answer, service_text::shown)?;
            Ok(answer.reachable)
        }
        What::Connect {
            client,
            destination,
            to_namespace,
            common,
        } => {
            let objects = read(&config, &common, kubeconfig_named).await?;
            let namespace = &common.source.namespace;
            let source = ends::source(&client, namespace, &objects)?;
            let of = to_namespace.as_ref().unwrap_or(namespace);
            let destination = ends::destination(&destination, of, &objects)?;
            let answer = connect::answer(&objects, &source, &destination)?;
            print(&common, &answer, connect_text::shown)?;
            Ok(answer.verdict == connect::Answer::Allowed)
        }
        What::Nodes { node, common } => {
            let objects = read(&config, &common, kubeconfig_named).await?;
            let first = objects.nodes().map(name_of).min().unwrap_or_default();
            let own = objects.node(&config.node_name).map_or(first, name_of);
            let of = node_of(&objects, &config, Some(node.as_deref().unwrap_or(own)))?;
            let subnets = match common.source.from.is_empty() && name_of(of) == config.node_name {
                true => kernel::subnets(&config, of).await,
                false => None,
            };
            let seen_from = name_of(of);
            let mut answer = nodes::answer(&objects, seen_from, subnets.as_deref(), SystemClock.now());
            if common.output == Output::Json {
                answer.matrix = nodes::matrix(&objects, seen_from, subnets.as_deref());
            }
            print(&common, &answer, nodes::shown)?;
            Ok(answer.is_well())
        }
    }
}

fn print<T: serde::Serialize>(common: &Common, answer: &T, shown: fn(&T) -> String) -> Result<(), Failure> {
    match common.output {
        Output::Text => print!("{}", shown(answer)),
        Output::Json => super::print_json(answer)?,
    }
    Ok(())
}

async fn read(config: &Config, common: &Common, kubeconfig_named: bool) -> Result<NetworkObjects, Failure> {
    let objects = common.source.objects(config, kubeconfig_named, &WANTED).await?;
    let mut network = config.network.clone();
    // The flags of this machine may be another cluster's.
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

/// The node that is named, else this machine's, else the only one.
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
            "this machine ({}) is no node: say --node with one of {}",
            config.node_name,
            super::columns::some(&all, 6)
        ))),
        None => Err(Failure::new("there are no nodes")),
    }
}
