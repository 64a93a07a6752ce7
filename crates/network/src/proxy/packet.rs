//! What a node's table does with the first packet of a connection: the rules of [`skeleton`](super::skeleton()) read over
//! its elements. For tests, for the simulation, and to explain to users what a Service resolves to.

use std::net::IpAddr;

use ipnet::IpNet;

use super::frontend::{Fields, Frontend, Reader};
use super::slots::{self, Backend, LOCAL_OFFSET};
use super::{Config, Family, Proxy, layout, skeleton};
use crate::catalog::Protocol;
use crate::nft::{Data, Key, Table, Verdict};

/// A new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: Protocol,
    pub port: u16,
    /// The endpoint that session affinity has learned for this client and frontend.
    pub learned: Option<(IpAddr, u16)>,
}

/// An endpoint that a connection may be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop {
    pub address: IpAddr,
    pub port: u16,
    /// It sees an address of this node as client.
    pub masquerade: bool,
}

/// What becomes of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The proxy leaves it alone.
    Unchanged,
    Dropped,
    Rejected,
    /// To one of these, each as likely as the others.
    Sent(Vec<Hop>),
    /// It may draw a slot that has no endpoint. Never so, if elements are what [`Proxy`] decides.
    Lost,
}

/// One family's table on a node, with the results of the node's routing that rules match.
pub struct Tables<'a> {
    pub config: &'a Config,
    /// Of its interfaces; loopback addresses need not be named.
    pub local_addresses: &'a [IpAddr],
    pub elements: &'a Table,
}

/// All elements that a family's table shall have, by set.
pub fn table(proxy: &Proxy, family: Family) -> Table {
    let mut table = Table::new();
    proxy.visit(family, &mut |element| {
        let set = table.entry(element.set).or_default();
        set.insert(element.key, element.data);
    });
    table
}

/// The maps of one kind of frontend.
struct Maps {
    split: &'static str,
    short_circuit: &'static str,
    local: &'static str,
    endpoints: &'static str,
    affinity: &'static str,
}

const WITH_ADDRESS: Maps = Maps {
    split: layout::SERVICES,
    short_circuit: layout::SHORT_CIRCUIT,
    local: layout::LOCAL_SERVICES,
    endpoints: layout::ENDPOINTS,
    affinity: layout::AFFINITY_ENDPOINTS,
};

const NODE_PORTS: Maps = Maps {
    split: layout::NODE_PORTS,
    short_circuit: layout::SHORT_CIRCUIT_NODE_PORTS,
    local: layout::LOCAL_NODE_PORTS,
    endpoints: layout::NODE_PORT_ENDPOINTS,
    affinity: layout::AFFINITY_NODE_PORT_ENDPOINTS,
};

impl Tables<'_> {
    /// What becomes of a connection that passes the node, begins or ends there.
    pub fn route(&self, packet: &Packet) -> Outcome {
        let with_address = Frontend {
            family: Family::of(packet.destination),
            address: Some(packet.destination),
            protocol: packet.protocol,
            port: packet.port,
        };
        let node_port = self.is_node_port_address(packet.destination).then_some(Frontend {
            address: None,
            ..with_address
        });
        if self.has(layout::FIREWALLED, &with_address.key()) && !self.lets_in(&with_address, packet.source) {
            return Outcome::Dropped;
        }
        let kinds = [(Some(with_address), &WITH_ADDRESS), (node_port, &NODE_PORTS)];
        let known = || kinds.iter().filter_map(|(f, maps)| Some((f.as_ref()?, *maps)));
        if let Some((address, port)) = packet.learned {
            let backend = Backend {
                address,
                port,
                local: false,
            };
            for (frontend, maps) in known() {
                let key = frontend.fields().number(backend.affinity_id()).key();
                if let Some(backend) = self.backend(maps.affinity, &key) {
                    return Outcome::Sent(vec![self.hop(packet, &with_address, backend)]);
                }
            }
        }
        for (frontend, maps) in known() {
            if let Some(verdict) = self.verdict(maps.split, &frontend.key()) {
                return self.dispatch(packet, &with_address, frontend, maps, verdict);
            }
        }
        self.check(packet, &with_address, node_port.as_ref())
    }

    fn dispatch(
        &self,
        packet: &Packet,
        original: &Frontend,
        frontend: &Frontend,
        maps: &Maps,
        verdict: &Verdict,
    ) -> Outcome {
        let mut verdict = verdict;
        if matches!(verdict, Verdict::Goto(chain) if **chain == *skeleton::split_chain(frontend)) {
            let is_inside = self.is_pod(packet.source) || self.is_local(packet.source);
            let map = if is_inside { maps.short_circuit } else { maps.local };
            match self.verdict(map, &frontend.key()) {
                Some(found) => verdict = found,
                None => return self.check(packet, original, None),
            }
        }
        let Verdict::Goto(chain) = verdict else {
            return Outcome::Dropped;
        };
        let is_local = chain.contains("local-endpoints-");
        let size = chain
            .rsplit('-')
            .next()
            .and_then(|size| size.parse().ok())
            .unwrap_or(0);
        let mut hops = Vec::new();
        for slot in 0..size {
            let offset = if is_local { LOCAL_OFFSET } else { 0 };
            let number = offset.saturating_add(u32::try_from(slot).unwrap_or(u32::MAX));
            let key = frontend.fields().number(number).key();
            let found = self.backend(maps.endpoints, &key);
            // All slots of an exact chain, and those that the last rule of another draws from.
            let must_be_filled = size <= slots::EXACT || slot < size / 2;
            match found {
                Some(backend) => hops.push(self.hop(packet, original, backend)),
                None if must_be_filled => return Outcome::Lost,
                None => {}
            }
        }
        hops.sort_unstable();
        Outcome::Sent(hops)
    }

    /// The `check` chain: nothing has rewritten the destination.
    fn check(&self, packet: &Packet, frontend: &Frontend, node_port: Option<&Frontend>) -> Outcome {
        let rejected = |verdict: &Verdict| match verdict {
            Verdict::Drop => Outcome::Dropped,
            _ => Outcome::Rejected,
        };
        if let Some(verdict) = self.verdict(layout::NO_ENDPOINTS, &frontend.key()) {
            return rejected(verdict);
        }
        let node_port = node_port.map(Frontend::key);
        if let Some(verdict) = node_port.and_then(|key| self.verdict(layout::NO_ENDPOINTS_NODE_PORTS, &key)) {
            return rejected(verdict);
        }
        let destination = packet.destination;
        if self.is_local(destination) || self.config.dns_addresses.contains(&destination) {
            return Outcome::Unchanged;
        }
        if self.has(layout::CLUSTER_IPS, &Fields::default().address(destination).key()) {
            return Outcome::Rejected;
        }
        match contains(&self.config.service_cidrs, destination) {
            true => Outcome::Dropped,
            false => Outcome::Unchanged,
        }
    }

    /// The `masquerading` chain.
    fn hop(&self, packet: &Packet, original: &Frontend, backend: (IpAddr, u16)) -> Hop {
        let (address, port) = backend;
        let pair = Fields::default().address(packet.source).address(address).key();
        let is_hairpin = self.has(layout::HAIRPIN, &pair);
        let cluster_ip = Fields::default().address(packet.destination).key();
        let masquerade = if self.has(layout::CLUSTER_IPS, &cluster_ip) {
            let of_family = |range: &IpNet| Family::of(range.addr()) == original.family;
            let knows_pods = self.config.cluster_cidrs.iter().any(of_family);
            self.config.masquerade_all || (knows_pods && !self.is_pod(packet.source))
        } else {
            let node_port = Frontend {
                address: None,
                ..*original
            };
            let with_address = self.verdict(layout::EXTERNAL, &original.key());
            let found = with_address.or_else(|| self.verdict(layout::EXTERNAL_NODE_PORTS, &node_port.key()));
            match found {
                Some(Verdict::Goto(chain)) if **chain == *skeleton::MASQUERADE => true,
                Some(_) => self.is_local(packet.source),
                None => false,
            }
        };
        Hop {
            address,
            port,
            masquerade: masquerade || is_hairpin,
        }
    }

    fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.local_addresses.contains(&address)
    }

    fn is_pod(&self, address: IpAddr) -> bool {
        contains(&self.config.cluster_cidrs, address)
    }

    fn is_node_port_address(&self, address: IpAddr) -> bool {
        let serves_loopback = address.is_ipv4() && self.config.localhost_node_ports;
        let ranges: Vec<IpNet> =
            Config::of_family(&self.config.node_port_addresses, Family::of(address)).collect();
        self.is_local(address)
            && (serves_loopback || !address.is_loopback())
            && (ranges.is_empty() || contains(&ranges, address))
    }

    fn lets_in(&self, frontend: &Frontend, source: IpAddr) -> bool {
        let key = frontend.fields().address(source).bytes();
        let ranges = self.elements.get(layout::FIREWALL_SOURCES);
        ranges.is_some_and(|ranges| {
            let contains =
                |range: &Key| range.start <= key && range.end.as_ref().is_some_and(|end| key <= *end);
            ranges.keys().any(contains)
        })
    }

    fn has(&self, set: &str, key: &Key) -> bool {
        self.elements.get(set).is_some_and(|set| set.contains_key(key))
    }

    fn verdict(&self, map: &str, key: &Key) -> Option<&Verdict> {
        match self.elements.get(map)?.get(key)?.as_ref()? {
            Data::Verdict(verdict) => Some(verdict),
            Data::Value(_) => None,
        }
    }

    fn backend(&self, map: &str, key: &Key) -> Option<(IpAddr, u16)> {
        let Data::Value(value) = self.elements.get(map)?.get(key)?.as_ref()? else {
            return None;
        };
        // The length identifies the family.
        let family = if value.len() > 8 { Family::V6 } else { Family::V4 };
        let mut reader = Reader::new(value);
        Some((reader.address(family)?, reader.port()?))
    }
}

fn contains(ranges: &[IpNet], address: IpAddr) -> bool {
    ranges.iter().any(|range| range.contains(&address))
}
