//! The endpoints of a Service port that are used from this node, as `CategorizeEndpoints` in v1.36 chooses them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::slots::Backend;
use super::{Family, NodeFacts};
use crate::catalog::{Endpoint, Service, ServicePort, Slice, TrafficPolicy};

/// How endpoints near this node are preferred (`topologyModeFromHints`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Topology {
    #[default]
    Anywhere,
    SameZone,
    SameNode,
}

/// An endpoint of one port, with the conditions of its slice.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub backend: Backend,
    pub endpoint: &'a Endpoint,
}

impl Candidate<'_> {
    /// Of two endpoints with the same address the greater one counts.
    fn rank(&self) -> (bool, bool) {
        (self.endpoint.ready, !self.endpoint.terminating)
    }

    fn is_fallback(&self) -> bool {
        !self.endpoint.ready && self.endpoint.serving && self.endpoint.terminating
    }
}

/// Which endpoints a port leads to from this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Categories {
    /// For traffic policy `Cluster`; empty where the Service never uses it.
    pub cluster: Vec<Backend>,
    /// For traffic policy `Local`; empty where the Service never uses it.
    pub local: Vec<Backend>,
    /// Some node has an endpoint that could be used.
    pub any: bool,
    pub topology: Topology,
    /// The endpoints of `local` terminate, while none of this node is ready (KEP-1669).
    pub local_is_fallback: bool,
}

/// Whether the Service has other addresses than its cluster IP for this port in this family.
pub fn is_external(service: &Service, port: &ServicePort, family: Family) -> bool {
    let mut addresses = service.external_ips.iter().chain(&service.load_balancer_ips);
    port.node_port != 0 || addresses.any(|ip| Family::of(*ip) == family)
}

/// All endpoints of a port and family, sorted by address and port. An address that two endpoints have (while one moves to
/// another slice, or a Pod that terminates or has lost its sandbox still has the address that is another's already) counts
/// once: the one that is ready, then the one that does not terminate.
pub fn candidates<'a>(
    slices: impl Iterator<Item = &'a Slice>,
    port: &ServicePort,
    family: Family,
    node: &NodeFacts,
) -> Vec<Candidate<'a>> {
    let mut found: BTreeMap<(IpAddr, u16), Candidate<'a>> = BTreeMap::new();
    for slice in slices {
        let matching = |p: &&crate::catalog::SlicePort| p.name == port.name && p.protocol == port.protocol;
        for number in slice.ports.iter().filter(matching).filter_map(|p| p.port) {
            if number == 0 {
                continue;
            }
            let of_family = |e: &&Endpoint| Family::of(e.address) == family;
            for endpoint in slice.endpoints.iter().filter(of_family) {
                let backend = Backend {
                    address: endpoint.address,
                    port: number,
                    local: is_local(endpoint, node),
                };
                let new = Candidate { backend, endpoint };
                found
                    .entry((backend.address, number))
                    .and_modify(|known| {
                        if new.rank() > known.rank() {
                            *known = new;
                        }
                    })
                    .or_insert(new);
            }
        }
    }
    found.into_values().collect()
}

/// Whether an endpoint runs on this node.
pub fn is_local(endpoint: &Endpoint, node: &NodeFacts) -> bool {
    !node.name.is_empty() && endpoint.node.as_ref() == Some(&node.name)
}

fn topology(candidates: &[Candidate<'_>], node: &NodeFacts) -> Topology {
    let ready = || candidates.iter().map(|c| c.endpoint).filter(|e| e.ready);
    if ready().next().is_none() {
        return Topology::Anywhere;
    }
    let all_name_nodes = ready().all(|e| !e.node_hints().is_empty());
    if all_name_nodes && ready().any(|e| is_hinted(e.node_hints(), Some(&node.name))) {
        return Topology::SameNode;
    }
    let all_name_zones = ready().all(|e| !e.zone_hints().is_empty());
    if all_name_zones && ready().any(|e| is_hinted(e.zone_hints(), node.zone.as_ref())) {
        return Topology::SameZone;
    }
    Topology::Anywhere
}

fn is_hinted<T: PartialEq>(hints: &[T], here: Option<&T>) -> bool {
    here.is_some_and(|here| hints.contains(here))
}

/// Chooses among a port's endpoints. Cluster and Local fall back to terminating endpoints independently.
pub fn categorize(
    candidates: &[Candidate<'_>],
    service: &Service,
    is_external: bool,
    node: &NodeFacts,
) -> Categories {
    let internal_local = service.internal_policy == TrafficPolicy::Local;
    let external_local = service.external_policy == TrafficPolicy::Local && is_external;
    let mut categories = Categories::default();
    let select = |accept: &dyn Fn(&Candidate<'_>) -> bool| -> Vec<Backend> {
        let accepted = candidates.iter().filter(|c| accept(c));
        accepted.map(|c| c.backend).collect()
    };
    if !internal_local || is_external {
        let topology = topology(candidates, node);
        categories.topology = topology;
        categories.cluster = select(&|c| {
            c.endpoint.ready
                && match topology {
                    Topology::Anywhere => true,
                    Topology::SameNode => is_hinted(c.endpoint.node_hints(), Some(&node.name)),
                    Topology::SameZone => is_hinted(c.endpoint.zone_hints(), node.zone.as_ref()),
                }
        });
        if categories.cluster.is_empty() {
            categories.cluster = select(&|c| c.is_fallback());
        }
        categories.any = !categories.cluster.is_empty();
    }
    if internal_local || external_local {
        categories.any |= candidates.iter().any(|c| c.endpoint.ready || c.is_fallback());
        categories.local = select(&|c| c.backend.local && c.endpoint.ready);
        if categories.local.is_empty() {
            categories.local = select(&|c| c.backend.local && c.is_fallback());
            categories.local_is_fallback = !categories.local.is_empty();
        }
    }
    categories
}
