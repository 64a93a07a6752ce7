//! One Service compiled for this node: frontends and their endpoints in slots, compactly, from which the elements
//! are rendered whenever they are compared.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::categorize::{self, Categories};
use super::frontend::{Frontend, FrontendKind, goto, jump};
use super::slots::{self, Backend, LOCAL_OFFSET};
use super::{Config, Element, Family, NodeFacts, StaleUdp, layout, skeleton, timeouts};
use crate::catalog::{Catalog, Protocol, Service, ServiceKey, ServicePort, ServiceType, TrafficPolicy};
use crate::nft::{Data, Key, Verdict};

/// Facts for the server on a `healthCheckNodePort`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub port: u16,
    /// Ready endpoints on this node, counted by address, of either family, as each has a server in kube-proxy.
    pub local_v4: usize,
    pub local_v6: usize,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Program {
    pub ports: Box<[Port]>,
    /// Boxed: few Services have one.
    pub health: Option<Box<HealthCheck>>,
}

/// One port of a Service in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Port {
    family: Family,
    protocol: Protocol,
    number: u16,
    internal_local: bool,
    external_local: bool,
    /// Some node has an endpoint.
    any: bool,
    /// Rounded; `None` without session affinity.
    affinity_seconds: Option<u32>,
    /// The endpoints of `local` terminate; clients with affinity do not stay with them.
    local_is_fallback: bool,
    frontends: Box<[(FrontendKind, Option<IpAddr>, u16)]>,
    cluster: Box<[Backend]>,
    local: Box<[Backend]>,
    /// For UDP: all that serve. Connections to others are forgotten.
    serving: Box<[(IpAddr, u16)]>,
    /// Empty: every source is let in.
    sources: Box<[IpNet]>,
}

/// An element that several Services may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SharedElement {
    ClusterIp(IpAddr),
    Hairpin(IpAddr),
}

impl SharedElement {
    pub fn family(self) -> Family {
        match self {
            SharedElement::ClusterIp(address) | SharedElement::Hairpin(address) => Family::of(address),
        }
    }

    pub fn element(self) -> Element {
        let fields = super::frontend::Fields::default();
        match self {
            SharedElement::ClusterIp(address) => Element {
                set: layout::CLUSTER_IPS,
                key: fields.address(address).key(),
                data: None,
            },
            SharedElement::Hairpin(address) => Element {
                set: layout::HAIRPIN,
                key: fields.address(address).address(address).key(),
                data: None,
            },
        }
    }
}

/// The slots that endpoints have: of the cluster and of the local list.
pub(super) type Slots = (Vec<(IpAddr, u16)>, Vec<(IpAddr, u16)>);

impl Program {
    /// Compiles the catalog's Service; empty for those that this proxy does not serve. Endpoints keep the slots they have
    /// in `old`, or else those that `adopted` has for a frontend: from slot 0, and from [`LOCAL_OFFSET`].
    pub fn of(
        catalog: &Catalog,
        key: &ServiceKey,
        config: &Config,
        node: &NodeFacts,
        old: &Program,
        adopted: &dyn Fn(&Frontend) -> Option<Slots>,
    ) -> Self {
        let Some(service) = catalog.service(key) else {
            return Program::default();
        };
        if service.foreign_proxy
            || service.headless
            || matches!(service.service_type, ServiceType::ExternalName(_))
        {
            return Program::default();
        }
        let mut ports = Vec::new();
        for family in Family::ALL {
            let mut cluster_ips = service.cluster_ips.iter().copied();
            let Some(cluster_ip) = cluster_ips.find(|ip| Family::of(*ip) == family) else {
                continue;
            };
            for port in service.ports.iter().filter(|port| port.port != 0) {
                let slices = catalog.proxied_slices(key);
                let candidates = categorize::candidates(slices, port, family, node);
                let is_external = categorize::is_external(service, port, family);
                let categories = categorize::categorize(&candidates, service, is_external, node);
                let mut new = Port::new(service, port, family, &categories);
                new.frontends = frontends(service, port, family, cluster_ip, config);
                new.sources = sources(service, family, node);
                let known = new.frontends().find_map(|(_, frontend)| old.slots(&frontend));
                let (cluster, local) = known.unwrap_or_else(|| new.adopt(adopted));
                new.cluster = slots::place(&cluster, &categories.cluster);
                new.local = slots::place(&local, &categories.local);
                if port.protocol == Protocol::Udp {
                    let serving = candidates.iter().filter(|c| c.endpoint.serving);
                    new.serving = serving.map(|c| (c.backend.address, c.backend.port)).collect();
                }
                ports.push(new);
            }
        }
        Program {
            ports: ports.into(),
            health: health(catalog, key, service, node).map(Box::new),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.health.is_none()
    }

    /// The Service's frontends, each once: where it names the same address twice, the first reason counts.
    pub fn frontends(&self) -> Vec<(FrontendKind, Frontend)> {
        let mut seen = BTreeSet::new();
        let all = self.ports.iter().flat_map(Port::frontends);
        all.filter(|(_, frontend)| seen.insert(*frontend)).collect()
    }

    /// The frontends of one port.
    pub fn frontends_of(
        &self,
        family: Family,
        protocol: Protocol,
        number: u16,
    ) -> Vec<(FrontendKind, Frontend)> {
        let matches = |p: &&Port| p.family == family && p.protocol == protocol && p.number == number;
        self.ports
            .iter()
            .filter(matches)
            .flat_map(Port::frontends)
            .collect()
    }

    /// The slots of the endpoints behind a frontend.
    pub fn slots(&self, frontend: &Frontend) -> Option<Slots> {
        let list = |slots: &[Backend]| slots.iter().map(|b| (b.address, b.port)).collect();
        let (port, _) = self.find(frontend)?;
        Some((list(&port.cluster), list(&port.local)))
    }

    fn find(&self, frontend: &Frontend) -> Option<(&Port, FrontendKind)> {
        self.ports.iter().find_map(|port| {
            let mut frontends = port.frontends();
            let (kind, _) = frontends.find(|(_, f)| f == frontend)?;
            Some((port, kind))
        })
    }

    /// Appends the elements of one frontend.
    pub fn render(&self, frontend: &Frontend, out: &mut Vec<Element>) {
        if let Some((port, kind)) = self.find(frontend) {
            port.render(kind, frontend, out);
        }
    }

    /// The elements that others may have, too, each once.
    pub fn shared(&self) -> BTreeSet<SharedElement> {
        let mut shared = BTreeSet::new();
        for port in &self.ports {
            for (kind, frontend) in port.frontends() {
                if kind == FrontendKind::ClusterIp
                    && let Some(address) = frontend.address
                {
                    shared.insert(SharedElement::ClusterIp(address));
                }
            }
            let used = port.cluster.iter().chain(&port.local);
            shared.extend(
                used.filter(|b| b.local)
                    .map(|b| SharedElement::Hairpin(b.address)),
            );
        }
        shared
    }

    /// The UDP clients whose endpoints were removed, or that had none, when `before` is replaced by this.
    pub fn stale_udp(&self, before: &Program) -> Vec<StaleUdp> {
        let mut stale = Vec::new();
        for port in self.ports.iter().filter(|port| !port.serving.is_empty()) {
            for (_, frontend) in port.frontends() {
                let known = before.find(&frontend).map(|(port, _)| &port.serving);
                let is_same = known.is_some_and(|known| {
                    !known.is_empty() && known.iter().all(|b| port.serving.binary_search(b).is_ok())
                });
                if !is_same {
                    stale.push(StaleUdp {
                        family: frontend.family,
                        address: frontend.address,
                        port: frontend.port,
                        keep: port.serving.to_vec(),
                    });
                }
            }
        }
        stale
    }
}

impl Program {
    /// The timeout of session affinity, which is the same for all ports.
    pub fn affinity_seconds(&self) -> Option<u32> {
        self.ports.first()?.affinity_seconds
    }
}

impl Port {
    fn new(service: &Service, port: &ServicePort, family: Family, categories: &Categories) -> Self {
        Port {
            family,
            protocol: port.protocol,
            number: port.port,
            internal_local: service.internal_policy == TrafficPolicy::Local,
            external_local: service.external_policy == TrafficPolicy::Local,
            any: categories.any,
            affinity_seconds: service.affinity_seconds.map(timeouts::rounded),
            local_is_fallback: categories.local_is_fallback,
            frontends: Box::default(),
            cluster: Box::default(),
            local: Box::default(),
            serving: Box::default(),
            sources: Box::default(),
        }
    }

    /// The slots of the port's lists, from those of its frontends.
    fn adopt(&self, adopted: &dyn Fn(&Frontend) -> Option<Slots>) -> Slots {
        let (mut cluster, mut local) = Slots::default();
        for (kind, frontend) in self.frontends() {
            let Some((first, second)) = adopted(&frontend) else {
                continue;
            };
            let is_local = kind == FrontendKind::ClusterIp && self.internal_local;
            let (of_cluster, of_local) = if is_local {
                (Vec::new(), first)
            } else {
                (first, second)
            };
            if cluster.is_empty() {
                cluster = of_cluster;
            }
            if local.is_empty() {
                local = of_local;
            }
        }
        (cluster, local)
    }

    pub fn frontends(&self) -> impl Iterator<Item = (FrontendKind, Frontend)> + '_ {
        self.frontends.iter().map(|(kind, address, port)| {
            let frontend = Frontend {
                family: self.family,
                address: *address,
                protocol: self.protocol,
                port: *port,
            };
            (*kind, frontend)
        })
    }

    fn render(&self, kind: FrontendKind, frontend: &Frontend, out: &mut Vec<Element>) {
        let names = Names::of(frontend);
        let mut add = |set, key, data| out.push(Element { set, key, data });
        let is_internal = kind == FrontendKind::ClusterIp;
        let splits = !is_internal && self.external_local;
        let list = match is_internal && self.internal_local {
            true => &self.local,
            false => &self.cluster,
        };
        if kind == FrontendKind::LoadBalancer && !self.sources.is_empty() {
            add(layout::FIREWALLED, frontend.key(), None);
            for source in &self.sources {
                add(layout::FIREWALL_SOURCES, source_key(frontend, *source), None);
            }
        }
        if list.is_empty() {
            // Local endpoints alone would do, and other nodes have some: clients try again, and reach those.
            let verdict = match self.any {
                true => Data::Verdict(Verdict::Drop),
                false => goto(skeleton::REJECT),
            };
            add(names.no_endpoints, frontend.key(), Some(verdict));
            return;
        }
        let to_list = goto(skeleton::pick_chain(frontend, list.len(), false));
        if splits {
            let to_local = match self.local.is_empty() {
                true => Data::Verdict(Verdict::Drop),
                false => goto(skeleton::pick_chain(frontend, self.local.len(), true)),
            };
            add(
                names.dispatch,
                frontend.key(),
                Some(goto(skeleton::split_chain(frontend))),
            );
            add(names.short_circuit, frontend.key(), Some(to_list));
            add(names.local, frontend.key(), Some(to_local));
        } else {
            add(names.dispatch, frontend.key(), Some(to_list));
        }
        let locals: &[Backend] = if splits { &self.local } else { &[] };
        for (backends, offset) in [(&**list, 0), (locals, LOCAL_OFFSET)] {
            for (slot, backend) in (offset..).zip(backends) {
                let key = frontend.fields().number(slot).key();
                add(
                    names.endpoints,
                    key,
                    Some(super::frontend::Fields::default().backend(*backend).data()),
                );
            }
        }
        if !is_internal {
            let chain = match self.external_local {
                true => skeleton::MASQUERADE_LOCAL,
                false => skeleton::MASQUERADE,
            };
            add(names.external, frontend.key(), Some(goto(chain)));
        }
        if let Some(seconds) = self.affinity_seconds {
            add(
                names.timeouts,
                frontend.key(),
                Some(jump(skeleton::learn_chain(seconds))),
            );
            // Where clients from outside fall back to terminating endpoints, those are not stayed with: pods would
            // follow, and they have better ones.
            let locals = if self.local_is_fallback { &[] } else { locals };
            let mut ids = BTreeSet::new();
            let mut known = BTreeSet::new();
            for backend in list.iter().chain(locals) {
                let id = backend.affinity_id();
                let value = || super::frontend::Fields::default();
                if known.insert(*backend) {
                    let key = frontend.fields().backend(*backend).key();
                    add(names.ids, key, Some(value().number(id).data()));
                }
                if ids.insert(id) {
                    let key = frontend.fields().number(id).key();
                    add(names.affinity, key, Some(value().backend(*backend).data()));
                }
            }
        }
    }
}

/// The maps that a frontend's elements are in: those with addresses, or those of node ports.
struct Names {
    dispatch: &'static str,
    short_circuit: &'static str,
    local: &'static str,
    endpoints: &'static str,
    no_endpoints: &'static str,
    external: &'static str,
    timeouts: &'static str,
    ids: &'static str,
    affinity: &'static str,
}

impl Names {
    fn of(frontend: &Frontend) -> Self {
        match frontend.address {
            Some(_) => Names {
                dispatch: layout::SERVICES,
                short_circuit: layout::SHORT_CIRCUIT,
                local: layout::LOCAL_SERVICES,
                endpoints: layout::ENDPOINTS,
                no_endpoints: layout::NO_ENDPOINTS,
                external: layout::EXTERNAL,
                timeouts: layout::AFFINITY_TIMEOUTS,
                ids: layout::AFFINITY_IDS,
                affinity: layout::AFFINITY_ENDPOINTS,
            },
            None => Names {
                dispatch: layout::NODE_PORTS,
                short_circuit: layout::SHORT_CIRCUIT_NODE_PORTS,
                local: layout::LOCAL_NODE_PORTS,
                endpoints: layout::NODE_PORT_ENDPOINTS,
                no_endpoints: layout::NO_ENDPOINTS_NODE_PORTS,
                external: layout::EXTERNAL_NODE_PORTS,
                timeouts: layout::AFFINITY_NODE_PORT_TIMEOUTS,
                ids: layout::AFFINITY_NODE_PORT_IDS,
                affinity: layout::AFFINITY_NODE_PORT_ENDPOINTS,
            },
        }
    }
}

fn source_key(frontend: &Frontend, range: IpNet) -> Key {
    Key {
        start: frontend.fields().address(range.network()).bytes(),
        end: Some(frontend.fields().address(range.broadcast()).bytes()),
    }
}

fn frontends(
    service: &Service,
    port: &ServicePort,
    family: Family,
    cluster_ip: IpAddr,
    config: &Config,
) -> Box<[(FrontendKind, Option<IpAddr>, u16)]> {
    let mut all = Vec::new();
    if !config.dns_addresses.contains(&cluster_ip) {
        all.push((FrontendKind::ClusterIp, Some(cluster_ip), port.port));
    }
    for (kind, addresses) in [
        (FrontendKind::LoadBalancer, &service.load_balancer_ips),
        (FrontendKind::ExternalIp, &service.external_ips),
    ] {
        let of_family = addresses.iter().filter(|ip| Family::of(**ip) == family);
        all.extend(of_family.map(|ip| (kind, Some(*ip), port.port)));
    }
    if port.node_port != 0 {
        all.push((FrontendKind::NodePort, None, port.node_port));
    }
    all.into()
}

/// The sources that load balancer addresses let in, without overlap. A range of everything is the same as none. A node
/// that is let in may come from the balancer's address, where that is an address of its own.
fn sources(service: &Service, family: Family, node: &NodeFacts) -> Box<[IpNet]> {
    let mut ranges: Vec<IpNet> = Config::of_family(&service.source_ranges, family).collect();
    if ranges.is_empty() || ranges.iter().any(|range| range.prefix_len() == 0) {
        return Box::default();
    }
    let lets_in = |address: &IpAddr| ranges.iter().any(|range| range.contains(address));
    if node.addresses.iter().any(lets_in) {
        let balancers = service.load_balancer_ips.iter();
        ranges.extend(
            balancers
                .filter(|ip| Family::of(**ip) == family)
                .map(|ip| IpNet::from(*ip)),
        );
    }
    IpNet::aggregate(&ranges).into()
}

/// As `NeedsHealthCheck` and `LocalReadyEndpoints` in v1.36.
fn health(catalog: &Catalog, key: &ServiceKey, service: &Service, node: &NodeFacts) -> Option<HealthCheck> {
    if service.service_type != ServiceType::LoadBalancer
        || service.external_policy != TrafficPolicy::Local
        || service.health_check_node_port == 0
    {
        return None;
    }
    let mut addresses = BTreeSet::new();
    for slice in catalog
        .proxied_slices(key)
        .filter(|slice| slice.ports.iter().any(|p| p.port.is_some()))
    {
        let ready = slice
            .endpoints
            .iter()
            .filter(|e| e.ready && categorize::is_local(e, node));
        addresses.extend(ready.map(|e| e.address));
    }
    let local_v4 = addresses.iter().filter(|ip| ip.is_ipv4()).count();
    Some(HealthCheck {
        port: service.health_check_node_port,
        local_v4,
        local_v6: addresses.len() - local_v4,
    })
}
