//! What a Service resolves to on this node, and why: for users (`knarr net`).

use std::net::IpAddr;
use std::sync::Arc;

use knarr_apimachinery::ids::NodeName;

use super::categorize::{self, Topology};
use super::frontend::{Frontend, FrontendKind};
use super::packet::{self, Outcome, Packet, Tables};
use super::{Family, Proxy};
use crate::catalog::{Catalog, Protocol, ServiceKey, ServiceType};

/// What the proxy has for a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Explanation {
    NotFound,
    /// The proxy does not serve it.
    NotProxied(NotProxied),
    Ports(Vec<PortExplanation>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotProxied {
    Headless,
    ExternalName,
    /// Label `service.kubernetes.io/service-proxy-name` names another proxy.
    OtherProxy,
}

/// One port in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortExplanation {
    pub family: Family,
    pub protocol: Protocol,
    pub name: Arc<str>,
    /// The Service's port.
    pub port: u16,
    pub topology: Topology,
    pub frontends: Vec<FrontendExplanation>,
    pub endpoints: Vec<EndpointExplanation>,
}

/// What clients may connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendExplanation {
    pub kind: FrontendKind,
    pub frontend: Frontend,
    /// Another Service has this frontend.
    pub taken_by: Option<ServiceKey>,
    /// The outcome of a connection from the source.
    pub outcome: Outcome,
}

/// One endpoint of the port, whether it is used or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointExplanation {
    pub address: IpAddr,
    pub port: u16,
    pub node: Option<NodeName>,
    pub zone: Option<Arc<str>>,
    /// The name of the Pod it targets.
    pub pod: Option<Box<str>>,
    /// Its conditions, as consumers read them.
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    pub zone_hints: Box<[Arc<str>]>,
    pub node_hints: Box<[NodeName]>,
    pub usage: Usage,
}

/// Whether new connections reach an endpoint from this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    Used,
    /// It terminates, and is used because nothing else is ready (KEP-1669).
    Fallback,
    /// It terminates, and others are ready.
    Terminating,
    NotReady,
    /// Hints lead this node to nearer ones.
    Farther,
    /// `internalTrafficPolicy` is `Local`, and it is on another node.
    OtherNode,
}

/// Explains a Service for connections from `source` (a pod, the node, or a client outside of the cluster) on a node with
/// these addresses.
pub fn explain(
    proxy: &Proxy,
    catalog: &Catalog,
    key: &ServiceKey,
    source: IpAddr,
    local_addresses: &[IpAddr],
) -> Explanation {
    let Some(service) = catalog.service(key) else {
        return Explanation::NotFound;
    };
    if service.foreign_proxy {
        return Explanation::NotProxied(NotProxied::OtherProxy);
    }
    if matches!(service.service_type, ServiceType::ExternalName(_)) {
        return Explanation::NotProxied(NotProxied::ExternalName);
    }
    if service.headless {
        return Explanation::NotProxied(NotProxied::Headless);
    }
    let node = proxy.node();
    let mut ports = Vec::new();
    for family in Family::ALL {
        let elements = packet::table(proxy, family);
        let tables = Tables {
            config: proxy.config(),
            local_addresses,
            elements: &elements,
        };
        for port in &service.ports {
            let frontends = proxy.frontends(key, family, port.protocol, port.port);
            if frontends.is_empty() {
                continue;
            }
            let candidates = categorize::candidates(catalog.proxied_slices(key), port, family, node);
            let is_external = categorize::is_external(service, port, family);
            let categories = categorize::categorize(&candidates, service, is_external, node);
            let frontends = frontends.into_iter().map(|(kind, frontend)| {
                let owner = proxy.owner(&frontend);
                let packet = Packet {
                    source,
                    destination: destination(&frontend, local_addresses),
                    protocol: frontend.protocol,
                    port: frontend.port,
                    learned: None,
                };
                FrontendExplanation {
                    kind,
                    frontend,
                    taken_by: owner.filter(|owner| *owner != key).cloned(),
                    outcome: tables.route(&packet),
                }
            });
            let usage = |candidate: &categorize::Candidate<'_>| {
                let endpoint = candidate.endpoint;
                let lists = || categories.cluster.iter().chain(&categories.local);
                match lists().any(|used| *used == candidate.backend) {
                    true if endpoint.ready => Usage::Used,
                    true => Usage::Fallback,
                    false if endpoint.ready && categories.topology != Topology::Anywhere => Usage::Farther,
                    false if endpoint.ready => Usage::OtherNode,
                    false if endpoint.terminating => Usage::Terminating,
                    false => Usage::NotReady,
                }
            };
            let endpoints = candidates.iter().map(|candidate| EndpointExplanation {
                address: candidate.backend.address,
                port: candidate.backend.port,
                node: candidate.endpoint.node.clone(),
                zone: candidate.endpoint.zone.clone(),
                pod: candidate.endpoint.pod().map(Into::into),
                ready: candidate.endpoint.ready,
                serving: candidate.endpoint.serving,
                terminating: candidate.endpoint.terminating,
                zone_hints: candidate.endpoint.zone_hints().into(),
                node_hints: candidate.endpoint.node_hints().into(),
                usage: usage(candidate),
            });
            ports.push(PortExplanation {
                family,
                protocol: port.protocol,
                name: port.name.clone(),
                port: port.port,
                topology: categories.topology,
                frontends: frontends.collect(),
                endpoints: endpoints.collect(),
            });
        }
    }
    Explanation::Ports(ports)
}

/// An address to connect to: the frontend's own, or one of the node for a node port.
fn destination(frontend: &Frontend, local_addresses: &[IpAddr]) -> IpAddr {
    let mut of_family = local_addresses
        .iter()
        .filter(|ip| Family::of(**ip) == frontend.family);
    let unspecified = match frontend.family {
        Family::V4 => IpAddr::from([0u8; 4]),
        Family::V6 => IpAddr::from([0u16; 8]),
    };
    frontend
        .address
        .or_else(|| of_family.next().copied())
        .unwrap_or(unspecified)
}
