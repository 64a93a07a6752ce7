//! What a Service resolves to on a node (SPEC N2): computed by the code of the node's proxy and DNS server, on a copy.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_network::catalog::{Service, ServiceKey, ServiceType, TrafficPolicy};
use knarr_network::proxy::categorize::Topology;
use knarr_network::proxy::explain::{
    EndpointExplanation, Explanation, FrontendExplanation, NotProxied, PortExplanation, Usage, explain,
};
use knarr_network::proxy::frontend::FrontendKind;
use knarr_network::proxy::packet::Outcome;
use knarr_network::proxy::{Family, Proxy};

use super::names;
use super::objects::{NetworkObjects, addresses_of, name_of};
use super::service_report::{Connections, EndpointReport, FrontendReport, PortReport, ServiceReport};
use super::warnings;
use crate::command::Failure;

/// Documentation addresses (RFC 5737, RFC 3849), which represent clients outside of the cluster.
const OUTSIDE_V4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 254);
const OUTSIDE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1);

/// A client whose connections are evaluated.
struct Client {
    description: String,
    source: IpAddr,
    class: ClientClass,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ClientClass {
    Pods,
    Node,
    Outside,
    /// In or outside of `loadBalancerSourceRanges`.
    InRanges,
    NotInRanges,
    /// The one of --client.
    Given,
}

/// What the Service resolves to on the node, for clients of every kind or for the one with this address.
pub fn report(
    objects: &NetworkObjects,
    node: &core::Node,
    key: &ServiceKey,
    client: Option<IpAddr>,
) -> Result<ServiceReport, Failure> {
    let Some(service) = objects.catalog.service(key) else {
        return Err(Failure::new(format!("there is no Service {key}")));
    };
    let proxy = objects.proxy(node);
    let addresses = addresses_of(node);
    let mut ports = Vec::new();
    let mut not_proxied = None;
    for family in Family::ALL {
        let clients = match client {
            Some(source) => vec![Client {
                description: source.to_string(),
                source,
                class: ClientClass::Given,
            }],
            None => clients(&proxy, node, service, family),
        };
        let of_family = clients
            .into_iter()
            .filter(|client| Family::of(client.source) == family);
        let mut evaluated = Vec::new();
        for client in of_family {
            match explain(&proxy, &objects.catalog, key, client.source, &addresses) {
                Explanation::Ports(ports) => evaluated.push((client, ports)),
                Explanation::NotProxied(why) => not_proxied = Some(why),
                Explanation::NotFound => {}
            }
        }
        ports.extend(ports_of(family, service, key, &evaluated));
    }
    let mut report = ServiceReport {
        service: key.to_string(),
        type_: type_of(service),
        node: name_of(node).to_string(),
        zone: proxy.node().zone.as_ref().map(ToString::to_string),
        internal_traffic_policy: policy(service.internal_policy),
        external_traffic_policy: policy(service.external_policy),
        traffic_distribution: service.traffic_distribution.as_ref().map(ToString::to_string),
        affinity_seconds: service.affinity_seconds,
        health_check_node_port: Some(service.health_check_node_port).filter(|port| *port != 0),
        source_ranges: service.source_ranges.to_vec(),
        not_proxied: not_proxied.map(|why| why_not(why).to_string()),
        ports,
        names: names::of_service(objects, key),
        warnings: Vec::new(),
        kernel: None,
        reachable: false,
    };
    if report.not_proxied.is_none() && report.ports.is_empty() {
        let is_dns = |ip: &IpAddr| objects.settings.dns_addresses.contains(ip);
        report.not_proxied = Some(match service.cluster_ips.iter().any(is_dns) {
            true => "the node's own DNS server answers at its address".into(),
            false => "it has no port that a proxy serves".into(),
        });
    }
    report.reachable = is_reachable(&report, service, key, objects);
    report.warnings = warnings::of_service(objects, node, key, &report);
    Ok(report)
}

fn is_reachable(
    report: &ServiceReport,
    service: &Service,
    key: &ServiceKey,
    objects: &NetworkObjects,
) -> bool {
    if !report.ports.is_empty() {
        // The first client is the pods, or the one of --client.
        let is_sent = |frontend: &FrontendReport| {
            let first = frontend.connections.first();
            frontend.taken_by.is_none() && first.is_some_and(|c| c.outcome == "Sent")
        };
        return report.ports.iter().all(|port| port.frontends.iter().any(is_sent));
    }
    if service.headless {
        let mut slices = objects.catalog.slices(key);
        return slices.any(|slice| {
            slice
                .endpoints
                .iter()
                .any(|e| e.ready || service.publish_not_ready)
        });
    }
    !report.names.is_empty()
}

pub fn type_of(service: &Service) -> &'static str {
    match &service.service_type {
        ServiceType::ExternalName(_) => "ExternalName",
        _ if service.headless => "headless",
        ServiceType::ClusterIp => "ClusterIP",
        ServiceType::NodePort => "NodePort",
        ServiceType::LoadBalancer => "LoadBalancer",
    }
}

fn policy(policy: TrafficPolicy) -> &'static str {
    match policy {
        TrafficPolicy::Cluster => "Cluster",
        TrafficPolicy::Local => "Local",
    }
}

fn why_not(why: NotProxied) -> &'static str {
    match why {
        NotProxied::Headless => {
            "it is headless: clients connect to the endpoints that its DNS name resolves to"
        }
        NotProxied::ExternalName => {
            "it is of type ExternalName: clients connect to the host of its CNAME record"
        }
        NotProxied::OtherProxy => {
            "the label service.kubernetes.io/service-proxy-name assigns it to another proxy"
        }
    }
}

/// One client of each class, of this IP family.
fn clients(proxy: &Proxy, node: &core::Node, service: &Service, family: Family) -> Vec<Client> {
    let mut clients = Vec::new();
    let mut add = |description: &str, source: IpAddr, class| {
        clients.push(Client {
            description: description.to_string(),
            source,
            class,
        });
    };
    let of_node = knarr_node_network::routes::reduced(node).pod_cidrs;
    let pods = of_node.iter().chain(&proxy.config().cluster_cidrs);
    // The last address of a range is never a pod's, so this client is not an endpoint that connects to itself.
    if let Some(range) = pods.into_iter().find(|range| Family::of(range.addr()) == family) {
        add("pods", range.broadcast(), ClientClass::Pods);
    }
    let own = addresses_of(node);
    if let Some(address) = own.into_iter().find(|ip| Family::of(*ip) == family) {
        add("the node", address, ClientClass::Node);
    }
    let outside = match family {
        Family::V4 => IpAddr::V4(OUTSIDE_V4),
        Family::V6 => IpAddr::V6(OUTSIDE_V6),
    };
    add("outside", outside, ClientClass::Outside);
    let ranges = &service.source_ranges;
    for range in ranges.iter().filter(|range| Family::of(range.addr()) == family) {
        add(&range.to_string(), range.addr(), ClientClass::InRanges);
    }
    if !ranges.is_empty() && !ranges.iter().any(|range| range.contains(&outside)) {
        add("others outside", outside, ClientClass::NotInRanges);
    }
    clients
}

fn ports_of(
    family: Family,
    service: &Service,
    key: &ServiceKey,
    evaluated: &[(Client, Vec<PortExplanation>)],
) -> Vec<PortReport> {
    let Some((_, first)) = evaluated.first() else {
        return Vec::new();
    };
    // The same ports and frontends in the same order for every client.
    let of_family = first.iter().enumerate().filter(|(_, port)| port.family == family);
    let ports = of_family.map(|(index, port)| {
        let frontends = port.frontends.iter().enumerate().map(|(nth, frontend)| {
            let outcomes = evaluated.iter().filter_map(|(client, ports)| {
                let evaluated = ports.get(index)?.frontends.get(nth)?;
                Some((client, &evaluated.outcome))
            });
            frontend_of(service, frontend, outcomes)
        });
        PortReport {
            name: port.name.to_string(),
            port: port.port,
            protocol: port.protocol.name(),
            family: port.family.api_name(),
            topology: match port.topology {
                Topology::Anywhere => "Anywhere",
                Topology::SameZone => "SameZone",
                Topology::SameNode => "SameNode",
            },
            frontends: frontends.collect(),
            endpoints: port.endpoints.iter().map(|e| endpoint_of(key, e)).collect(),
        }
    });
    ports.collect()
}

fn frontend_of<'a>(
    service: &Service,
    frontend: &FrontendExplanation,
    outcomes: impl Iterator<Item = (&'a Client, &'a Outcome)>,
) -> FrontendReport {
    let has_ranges = frontend.kind == FrontendKind::LoadBalancer && !service.source_ranges.is_empty();
    let mut connections: Vec<Connections> = Vec::new();
    for (client, outcome) in outcomes {
        let concerns = match client.class {
            ClientClass::InRanges | ClientClass::NotInRanges => has_ranges,
            ClientClass::Outside => !has_ranges,
            _ => true,
        };
        if !concerns {
            continue;
        }
        let (outcome, hops) = match outcome {
            Outcome::Sent(hops) => ("Sent", hops.as_slice()),
            Outcome::Rejected => ("Rejected", [].as_slice()),
            Outcome::Dropped => ("Dropped", [].as_slice()),
            Outcome::Unchanged => ("Unchanged", [].as_slice()),
            Outcome::Lost => ("Lost", [].as_slice()),
        };
        let endpoints: Vec<String> = hops.iter().map(|hop| with_port(hop.address, hop.port)).collect();
        let reason = reason(service, frontend.kind, client, outcome);
        let same = connections
            .iter_mut()
            .find(|c| c.outcome == outcome && c.endpoints == endpoints && c.reason == reason);
        let masqueraded = hops.iter().all(|hop| hop.masquerade) && !hops.is_empty();
        let masqueraded = masqueraded.then(|| client.description.clone());
        match same {
            Some(same) => {
                same.from.push(client.description.clone());
                same.masqueraded.extend(masqueraded);
            }
            None => connections.push(Connections {
                from: vec![client.description.clone()],
                outcome,
                endpoints,
                masqueraded: masqueraded.into_iter().collect(),
                reason,
            }),
        }
    }
    FrontendReport {
        kind: match frontend.kind {
            FrontendKind::ClusterIp => "ClusterIP",
            FrontendKind::NodePort => "NodePort",
            FrontendKind::ExternalIp => "ExternalIP",
            FrontendKind::LoadBalancer => "LoadBalancer",
        },
        address: frontend.frontend.address,
        port: frontend.frontend.port,
        connections,
        taken_by: frontend.taken_by.as_ref().map(ToString::to_string),
        frontend: frontend.frontend,
    }
}

/// Why a connection is rejected or dropped.
fn reason(service: &Service, kind: FrontendKind, client: &Client, outcome: &str) -> Option<String> {
    let is_internal = kind == FrontendKind::ClusterIp;
    let local = match is_internal {
        true => service.internal_policy == TrafficPolicy::Local,
        false => service.external_policy == TrafficPolicy::Local,
    };
    let has_ranges = kind == FrontendKind::LoadBalancer && !service.source_ranges.is_empty();
    let is_in_ranges = service.source_ranges.iter().any(|r| r.contains(&client.source));
    Some(match outcome {
        "Rejected" => "no endpoint is serving".into(),
        "Dropped" if has_ranges && !is_in_ranges => "not in loadBalancerSourceRanges".into(),
        "Dropped" if local && is_internal => {
            "internalTrafficPolicy is Local and this node has no serving endpoint".into()
        }
        "Dropped" if local => "externalTrafficPolicy is Local and this node has no serving endpoint".into(),
        _ => return None,
    })
}

fn endpoint_of(key: &ServiceKey, endpoint: &EndpointExplanation) -> EndpointReport {
    EndpointReport {
        address: endpoint.address,
        port: endpoint.port,
        pod: endpoint
            .pod
            .as_ref()
            .map(|pod| format!("{}/{pod}", key.namespace)),
        node: endpoint.node.as_ref().map(ToString::to_string),
        zone: endpoint.zone.as_ref().map(ToString::to_string),
        ready: endpoint.ready,
        serving: endpoint.serving,
        terminating: endpoint.terminating,
        zone_hints: endpoint.zone_hints.iter().map(ToString::to_string).collect(),
        node_hints: endpoint.node_hints.iter().map(ToString::to_string).collect(),
        usage: match endpoint.usage {
            Usage::Used => "Used",
            Usage::Fallback => "Fallback",
            Usage::Terminating => "Terminating",
            Usage::NotReady => "NotReady",
            Usage::Farther => "Farther",
            Usage::OtherNode => "OtherNode",
        },
    }
}

/// `address:port`, as in URLs.
pub fn with_port(address: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(address, port).to_string()
}
