//! An EndpointSlice as proxy and DNS know it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_api::k8s_openapi;
use knarr_api::well_known::SERVICE_NAME;
use knarr_apimachinery::ids::NodeName;

use super::{Interner, Protocol};

/// Labels of Services and slices that this proxy does not serve: the first names another proxy.
const NOT_PROXIED: [&str; 2] = [
    "service.kubernetes.io/service-proxy-name",
    "service.kubernetes.io/headless",
];

/// Whether this proxy does not serve a Service or a slice with these labels.
pub(super) fn is_not_proxied(labels: Option<&BTreeMap<String, String>>) -> bool {
    labels.is_some_and(|labels| NOT_PROXIED.iter().any(|label| labels.contains_key(*label)))
}

/// A port of all the slice's endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    pub name: Arc<str>,
    pub protocol: Protocol,
    /// `None` is "all ports", which proxies have no use for.
    pub port: Option<u16>,
}

/// One endpoint of a Service, with its conditions as the API documents them (absent `ready` is true, absent
/// `serving` is as `ready`, absent `terminating` is false).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The first of its addresses; the others belong to the same backend and are not used, as in kube-proxy.
    pub address: IpAddr,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    pub node: Option<NodeName>,
    pub zone: Option<Arc<str>>,
    /// Boxed, as the hints are: there are many endpoints, and most have no hints.
    names: Option<Box<Names>>,
    hints: Option<Box<Hints>>,
}

/// Names of an endpoint that has at least one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Names {
    hostname: Option<Box<str>>,
    /// Of the Pod it targets.
    pod: Option<Box<str>>,
    /// The uid of that Pod, if it is terminating.
    terminating_pod: Option<Box<str>>,
}

/// Hints of an endpoint that has at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hints {
    /// `hints.forZones`.
    zones: Box<[Arc<str>]>,
    /// `hints.forNodes`.
    nodes: Box<[NodeName]>,
}

/// The endpoints of one slice, all of one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Its labels exclude it from this proxy; DNS answers with it.
    pub foreign_proxy: bool,
    pub ports: Box<[SlicePort]>,
    pub endpoints: Box<[Endpoint]>,
}

/// The Service that a slice names.
pub(super) fn service_name(slice: &EndpointSlice) -> Option<&str> {
    let labels = slice.metadata.labels.as_ref()?;
    labels
        .get(SERVICE_NAME)
        .map(String::as_str)
        .filter(|name| !name.is_empty())
}

impl Endpoint {
    /// Whether proxies send new connections to it while others like it are there.
    pub fn is_offered(&self) -> bool {
        self.ready && !self.terminating
    }

    pub fn hostname(&self) -> Option<&str> {
        self.names.as_ref()?.hostname.as_deref()
    }

    /// The name of the Pod it targets.
    pub fn pod(&self) -> Option<&str> {
        self.names.as_ref()?.pod.as_deref()
    }

    /// Whether it is the endpoint of this pod, and terminating. An address may have had another pod before; without a uid in the slice it
    /// decides.
    pub(super) fn is_terminating(&self, pod_uid: &str, addresses: &[IpAddr]) -> bool {
        let uid = self.names.as_ref().and_then(|n| n.terminating_pod.as_deref());
        self.terminating && addresses.contains(&self.address) && uid.is_none_or(|uid| uid == pod_uid)
    }

    /// `hints.forZones`.
    pub fn zone_hints(&self) -> &[Arc<str>] {
        self.hints.as_ref().map_or(&[], |hints| &hints.zones[..])
    }

    /// `hints.forNodes`.
    pub fn node_hints(&self) -> &[NodeName] {
        self.hints.as_ref().map_or(&[], |hints| &hints.nodes[..])
    }
}

impl Slice {
    /// The addresses that were offered and no longer are in what comes after this.
    pub(super) fn withdrawn(&self, after: Option<&Slice>) -> Vec<IpAddr> {
        let offered_after = |address: IpAddr| {
            let mut endpoints = after.into_iter().flat_map(|slice| slice.endpoints.iter());
            endpoints.any(|e| e.address == address && e.is_offered())
        };
        let offered = self.endpoints.iter().filter(|e| e.is_offered());
        let addresses = offered.map(|e| e.address);
        addresses.filter(|address| !offered_after(*address)).collect()
    }

    /// Slices of names (`addressType: FQDN`) have no endpoints here.
    pub(super) fn of(slice: &EndpointSlice, interner: &mut Interner) -> Self {
        let ports = slice.ports.iter().flatten().filter_map(|p| {
            Some(SlicePort {
                name: interner.get(p.name.as_deref().unwrap_or_default()),
                protocol: Protocol::parse(p.protocol.as_deref())?,
                port: p.port.and_then(|n| u16::try_from(n).ok()),
            })
        });
        let ports = ports.collect();
        let is_v6 = slice.address_type == "IPv6";
        let endpoints = slice.endpoints.iter().flatten().filter_map(|endpoint| {
            let address: IpAddr = endpoint.addresses.first()?.parse().ok()?;
            if address.is_ipv6() != is_v6 {
                return None;
            }
            let conditions = endpoint.conditions.as_ref();
            let ready = conditions.and_then(|c| c.ready).unwrap_or(true);
            let hints = endpoint.hints.as_ref();
            let zones = hints.and_then(|h| h.for_zones.as_ref()).into_iter().flatten();
            let nodes = hints.and_then(|h| h.for_nodes.as_ref()).into_iter().flatten();
            let hints = Hints {
                zones: zones.map(|z| interner.get(&z.name)).collect(),
                nodes: nodes.map(|n| interner.get(&n.name).into()).collect(),
            };
            let has_hints = !(hints.zones.is_empty() && hints.nodes.is_empty());
            let target = endpoint.target_ref.as_ref();
            let pod = target.filter(|t| t.kind.as_deref() == Some("Pod"));
            let terminating = conditions.and_then(|c| c.terminating).unwrap_or(false);
            let names = Names {
                hostname: endpoint.hostname.as_deref().map(Into::into),
                pod: pod.and_then(|t| t.name.as_deref()).map(Into::into),
                terminating_pod: pod
                    .filter(|_| terminating)
                    .and_then(|t| t.uid.as_deref())
                    .map(Into::into),
            };
            let has_names =
                names.hostname.is_some() || names.pod.is_some() || names.terminating_pod.is_some();
            Some(Endpoint {
                address,
                ready,
                serving: conditions.and_then(|c| c.serving).unwrap_or(ready),
                terminating,
                node: endpoint.node_name.as_deref().map(|n| interner.get(n).into()),
                zone: endpoint.zone.as_deref().map(|z| interner.get(z)),
                names: has_names.then(|| Box::new(names)),
                hints: has_hints.then(|| Box::new(hints)),
            })
        });
        Slice {
            foreign_proxy: is_not_proxied(slice.metadata.labels.as_ref()),
            endpoints: match slice.address_type.as_str() {
                "IPv4" | "IPv6" => endpoints.collect(),
                _ => Box::default(),
            },
            ports,
        }
    }
}
