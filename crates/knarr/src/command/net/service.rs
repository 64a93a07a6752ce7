//! What a Service resolves to on a node (SPEC N2): decided by the proxy and the zone that run there, on a copy.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_network::catalog::{Service, ServiceKey, ServiceType, TrafficPolicy};
use knarr_network::proxy::categorize::Topology;
use knarr_network::proxy::explain::{
    EndpointExplanation, Explanation, FrontendExplanation, NotProxied, PortExplanation, Usage, explain,
};
use knarr_network::proxy::frontend::{Frontend, FrontendKind};
use knarr_network::proxy::packet::Outcome;
use knarr_network::proxy::{Family, Proxy};
use serde::Serialize;

use super::names::{self, DnsRecord};
use super::objects::{NetworkObjects, addresses_of, name_of};
use super::warnings;
use crate::command::Failure;

/// Of nobody: documentation addresses (RFC 5737, RFC 3849) stand for clients outside of the cluster.
const OUTSIDE_V4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 254);
const OUTSIDE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1);

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAnswer {
    pub service: String,
    #[serde(rename = "type")]
    pub type_: &'static str,
    pub node: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    pub internal_traffic_policy: &'static str,
    pub external_traffic_policy: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_distribution: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_check_node_port: Option<u16>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub source_ranges: Vec<IpNet>,
    /// Why no proxy serves it; then there are no ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_proxied: Option<String>,
    pub ports: Vec<PortAnswer>,
    pub names: Vec<DnsRecord>,
    pub warnings: Vec<String>,
    /// Only on the node itself, for root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelAnswer>,
    /// Pods of the node, or the client that was asked about, reach an endpoint of every port.
    pub reachable: bool,
}

/// One port in one family.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PortAnswer {
    pub name: String,
    pub port: u16,
    pub protocol: &'static str,
    pub family: &'static str,
    pub topology: &'static str,
    pub frontends: Vec<FrontendAnswer>,
    pub endpoints: Vec<EndpointAnswer>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontendAnswer {
    pub kind: &'static str,
    /// Absent for node ports: all addresses of the node.
    pub address: Option<IpAddr>,
    pub port: u16,
    pub connections: Vec<Connections>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_by: Option<String>,
    #[serde(skip)]
    pub frontend: Frontend,
}

/// What connections of some clients come to.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Connections {
    pub from: Vec<String>,
    pub outcome: &'static str,
    /// Each as likely as the others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
    /// Those of `from` that endpoints see with an address of the node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub masqueraded: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointAnswer {
    pub address: IpAddr,
    pub port: u16,
    pub pod: Option<String>,
    pub node: Option<String>,
    pub zone: Option<String>,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub zone_hints: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_hints: Vec<String>,
    pub usage: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelAnswer {
    pub in_step: bool,
    pub message: String,
}

/// A client whose connections are tried.
struct Client {
    words: String,
    source: IpAddr,
    class: Class,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Pods,
    Node,
    Outside,
    /// In or outside of `loadBalancerSourceRanges`.
    InRanges,
    NotInRanges,
    /// The one that was asked about.
    Asked,
}

/// What the Service resolves to on the node, for clients of every kind or for the one with this address.
pub fn answer(
    objects: &NetworkObjects,
    node: &core::Node,
    key: &ServiceKey,
    client: Option<IpAddr>,
) -> Result<ServiceAnswer, Failure> {
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
                words: source.to_string(),
                source,
                class: Class::Asked,
            }],
            None => clients(&proxy, node, service, family),
        };
        let of_family = clients
            .into_iter()
            .filter(|client| Family::of(client.source) == family);
        let mut tried = Vec::new();
        for client in of_family {
            match explain(&proxy, &objects.catalog, key, client.source, &addresses) {
                Explanation::Ports(ports) => tried.push((client, ports)),
                Explanation::NotProxied(why) => not_proxied = Some(why),
                Explanation::NotFound => {}
            }
        }
        ports.extend(ports_of(family, service, key, &tried));
    }
    let mut answer = ServiceAnswer {
        service: key.to_string(),
        type_: type_of(service),
        node: name_of(node).to_string(),
        zone: proxy.node().zone.as_ref().map(ToString::to_string),
        internal_traffic_policy: policy(service.internal_policy),
        external_traffic_policy: policy(service.external_policy),
        traffic_distribution: service.traffic_distribution.as_ref().map(ToString::to_string),
        affinity_seconds: service.affinity_seconds,
        health_check_node_port: Some(service.health_check_node_port).filter(|port| *port != 0),
        source_ranges: service.source_ranges.clone(),
        not_proxied: not_proxied.map(|why| why_not(why).to_string()),
        ports,
        names: names::of_service(objects, key),
        warnings: Vec::new(),
        kernel: None,
        reachable: false,
    };
    if answer.not_proxied.is_none() && answer.ports.is_empty() {
        let is_dns = |ip: &IpAddr| objects.settings.dns_addresses.contains(ip);
        answer.not_proxied = Some(match service.cluster_ips.iter().any(is_dns) {
            true => "the node's own DNS server answers at its address".into(),
            false => "it has no port that could be served".into(),
        });
    }
    answer.reachable = is_reachable(&answer, service, key, objects);
    answer.warnings = warnings::of_service(objects, node, key, &answer);
    Ok(answer)
}

fn is_reachable(
    answer: &ServiceAnswer,
    service: &Service,
    key: &ServiceKey,
    objects: &NetworkObjects,
) -> bool {
    if !answer.ports.is_empty() {
        // Of the first client: pods, or the one that was asked about.
        let is_sent = |frontend: &FrontendAnswer| {
            let first = frontend.connections.first();
            frontend.taken_by.is_none() && first.is_some_and(|c| c.outcome == "Sent")
        };
        return answer.ports.iter().all(|port| port.frontends.iter().any(is_sent));
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
    !answer.names.is_empty()
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
        NotProxied::Headless => "it is headless: clients connect to the endpoints that DNS names",
        NotProxied::ExternalName => "it is an alias in DNS: clients connect to what that name stands for",
        NotProxied::OtherProxy => {
            "the label service.kubernetes.io/service-proxy-name leaves it to another proxy"
        }
    }
}

/// One of each kind, of this family.
fn clients(proxy: &Proxy, node: &core::Node, service: &Service, family: Family) -> Vec<Client> {
    let mut clients = Vec::new();
    let mut add = |words: String, source: IpAddr, class| clients.push(Client { words, source, class });
    let of_node = knarr_node_network::routes::reduced(node).pod_cidrs;
    let pods = of_node.iter().chain(&proxy.config().cluster_cidrs);
    // The last address of a range is no pod's, so that it is not an endpoint that connects to itself.
    if let Some(range) = pods.into_iter().find(|range| Family::of(range.addr()) == family) {
        add("pods".into(), range.broadcast(), Class::Pods);
    }
    let own = addresses_of(node);
    if let Some(address) = own.into_iter().find(|ip| Family::of(*ip) == family) {
        add("the node".into(), address, Class::Node);
    }
    let outside = match family {
        Family::V4 => IpAddr::V4(OUTSIDE_V4),
        Family::V6 => IpAddr::V6(OUTSIDE_V6),
    };
    add("outside".into(), outside, Class::Outside);
    let ranges = &service.source_ranges;
    for range in ranges.iter().filter(|range| Family::of(range.addr()) == family) {
        add(range.to_string(), range.addr(), Class::InRanges);
    }
    if !ranges.is_empty() && !ranges.iter().any(|range| range.contains(&outside)) {
        add("others outside".into(), outside, Class::NotInRanges);
    }
    clients
}

fn ports_of(
    family: Family,
    service: &Service,
    key: &ServiceKey,
    tried: &[(Client, Vec<PortExplanation>)],
) -> Vec<PortAnswer> {
    let Some((_, first)) = tried.first() else {
        return Vec::new();
    };
    // The same ports and frontends in the same order for every client.
    let of_family = first.iter().enumerate().filter(|(_, port)| port.family == family);
    let ports = of_family.map(|(index, port)| {
        let frontends = port.frontends.iter().enumerate().map(|(place, frontend)| {
            let outcomes = tried.iter().filter_map(|(client, ports)| {
                let tried = ports.get(index)?.frontends.get(place)?;
                Some((client, &tried.outcome))
            });
            frontend_of(service, frontend, outcomes)
        });
        PortAnswer {
            name: port.name.to_string(),
            port: port.port,
            protocol: port.protocol.name(),
            family: family_name(port.family),
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

pub fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

fn frontend_of<'a>(
    service: &Service,
    frontend: &FrontendExplanation,
    outcomes: impl Iterator<Item = (&'a Client, &'a Outcome)>,
) -> FrontendAnswer {
    let has_ranges = frontend.kind == FrontendKind::LoadBalancer && !service.source_ranges.is_empty();
    let mut connections: Vec<Connections> = Vec::new();
    for (client, outcome) in outcomes {
        let concerns = match client.class {
            Class::InRanges | Class::NotInRanges => has_ranges,
            Class::Outside => !has_ranges,
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
        let masqueraded = masqueraded.then(|| client.words.clone());
        match same {
            Some(same) => {
                same.from.push(client.words.clone());
                same.masqueraded.extend(masqueraded);
            }
            None => connections.push(Connections {
                from: vec![client.words.clone()],
                outcome,
                endpoints,
                masqueraded: masqueraded.into_iter().collect(),
                reason,
            }),
        }
    }
    FrontendAnswer {
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

/// What decided against a connection; the outcome itself is the proxy's.
fn reason(service: &Service, kind: FrontendKind, client: &Client, outcome: &str) -> Option<String> {
    let is_internal = kind == FrontendKind::ClusterIp;
    let local = match is_internal {
        true => service.internal_policy == TrafficPolicy::Local,
        false => service.external_policy == TrafficPolicy::Local,
    };
    let has_ranges = kind == FrontendKind::LoadBalancer && !service.source_ranges.is_empty();
    let is_let_in = service.source_ranges.iter().any(|r| r.contains(&client.source));
    Some(match outcome {
        "Rejected" => "no endpoint can take connections".into(),
        "Dropped" if has_ranges && !is_let_in => "not in loadBalancerSourceRanges".into(),
        "Dropped" if local && is_internal => {
            "internalTrafficPolicy is Local and this node has no endpoint that can take connections".into()
        }
        "Dropped" if local => {
            "externalTrafficPolicy is Local and this node has no endpoint that can take connections".into()
        }
        _ => return None,
    })
}

fn endpoint_of(key: &ServiceKey, endpoint: &EndpointExplanation) -> EndpointAnswer {
    let texts = |all: &[std::sync::Arc<str>]| all.iter().map(ToString::to_string).collect();
    EndpointAnswer {
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
        zone_hints: texts(&endpoint.zone_hints),
        node_hints: texts(&endpoint.node_hints),
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

/// As in URLs.
pub fn with_port(address: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(address, port).to_string()
}
