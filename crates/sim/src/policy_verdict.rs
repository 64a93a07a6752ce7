//! The verdict of a table of NetworkPolicies on the first packet of a connection.

use std::collections::BTreeMap;
use std::net::IpAddr;

use knarr_network::catalog::Protocol;
use knarr_network::nft::{Data, Key, Verdict};
use knarr_network::policy::{ChainRule, Direction, EGRESS, INGRESS, Ruleset, SetType};

/// The ports that connections are tried on: the users' policies allow all ports, or the first of these.
pub(crate) const PORTS: [u16; 2] = [80, 81];

/// By node, for the rules.
pub(crate) type Tables = BTreeMap<String, Ruleset>;

/// What the real kernel would not have accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidTable {
    #[error("no chain {0}")]
    UnknownChain(String),
    #[error("no set {0}")]
    UnknownSet(String),
    #[error("{map} has {element:?}")]
    NoVerdict {
        map: &'static str,
        element: Option<Data>,
    },
}

fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().into(),
        IpAddr::V6(v6) => v6.octets().into(),
    }
}

/// What a table's verdict map has for one of its pods' addresses, in one direction.
enum MapVerdict<'a> {
    /// No policy isolates it.
    Accept,
    Drop,
    Rules(&'a [ChainRule]),
}

/// The packets of one of a node's pods in one direction, with many peers.
pub(crate) struct PodPackets<'a> {
    table: &'a Ruleset,
    verdict: MapVerdict<'a>,
}

/// The address of a packet's other end, as sets have it.
pub(crate) struct PeerAddress {
    is_ipv6: bool,
    key: Key,
}

impl PeerAddress {
    pub fn new(address: IpAddr) -> Self {
        PeerAddress {
            is_ipv6: address.is_ipv6(),
            key: Key::exact(bytes(address)),
        }
    }
}

impl<'a> PodPackets<'a> {
    pub fn new(table: &'a Ruleset, direction: Direction, own: IpAddr) -> Result<Self, InvalidTable> {
        let maps = match direction {
            Direction::Ingress => INGRESS,
            Direction::Egress => EGRESS,
        };
        let name = maps[usize::from(own.is_ipv6())];
        let elements = table.sets.get(name).map(|set| &set.elements);
        let verdict = match elements.and_then(|elements| elements.get(&Key::exact(bytes(own)))) {
            None => MapVerdict::Accept,
            Some(Some(Data::Verdict(Verdict::Drop))) => MapVerdict::Drop,
            Some(Some(Data::Verdict(Verdict::Jump(chain)))) => {
                let chain = table
                    .chains
                    .get(&**chain)
                    .ok_or_else(|| InvalidTable::UnknownChain(chain.to_string()))?;
                MapVerdict::Rules(&chain.rules)
            }
            Some(other) => {
                return Err(InvalidTable::NoVerdict {
                    map: name,
                    element: other.clone(),
                });
            }
        };
        Ok(PodPackets { table, verdict })
    }

    /// Whether a TCP connection with that peer passes.
    pub fn pass(&self, peer: &PeerAddress, port: u16) -> Result<bool, InvalidTable> {
        let rules = match self.verdict {
            MapVerdict::Accept => return Ok(true),
            MapVerdict::Drop => return Ok(false),
            MapVerdict::Rules(rules) => rules,
        };
        for rule in rules {
            if rule_matches(self.table, rule, peer, port)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether the table lets a TCP connection pass in one direction of one of its pods.
pub(crate) fn passes(
    table: &Ruleset,
    direction: Direction,
    own: IpAddr,
    peer: IpAddr,
    port: u16,
) -> Result<bool, InvalidTable> {
    PodPackets::new(table, direction, own)?.pass(&PeerAddress::new(peer), port)
}

fn rule_matches(
    table: &Ruleset,
    rule: &ChainRule,
    peer: &PeerAddress,
    port: u16,
) -> Result<bool, InvalidTable> {
    let protocol = Protocol::Tcp.number();
    let ports_match = rule.ports.contains(protocol, Some(port));
    let Some((names, kind)) = &rule.peers else {
        return Ok(ports_match);
    };
    let name = &names[usize::from(peer.is_ipv6)];
    let set = table
        .sets
        .get(name)
        .ok_or_else(|| InvalidTable::UnknownSet(name.to_string()))?;
    let address: &[u8] = &peer.key.start;
    Ok(match kind {
        SetType::Addresses => ports_match && set.elements.contains_key(&peer.key),
        SetType::Ranges => {
            let contains = |key: &Key| {
                let end = key.end.as_deref().unwrap_or(&key.start);
                *key.start <= *address && *address <= *end
            };
            ports_match && set.elements.keys().any(contains)
        }
        SetType::AddressesAndPorts => {
            let [high, low] = port.to_be_bytes();
            let key = [address, &[protocol, 0, 0, 0, high, low, 0, 0]].concat();
            set.elements.contains_key(&Key::exact(key))
        }
    })
}
