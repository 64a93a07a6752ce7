//! The table: its fixed part as text for `nft -f`, and the names and elements that change.
//!
//! - Verdict maps `ingress4`, `ingress6`, `egress4`, `egress6`: from the address of an isolated local pod to its group's chain
//!   (`jump group7`) or to `drop`. Other pods have no elements. The node's own traffic is not forwarded and does not
//!   pass the chain.
//! - `self4`, `self6`: each local address with itself; a pod's connections to itself.
//! - Chains `group<N>`: one rule for each list of ports and set of peers, which returns; the last one drops.
//! - Sets `peers<N>v4` and `peers<N>v6`: addresses of peers, ranges of addresses, or addresses with protocol and port.
//!
//! A packet of an established connection passes one rule, a new one of pods that are not isolated five more. Destination
//! addresses are those after Services' translation and sources those before masquerading, because the hooks are between
//! the two.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;

use super::ports::PortSet;
use super::spec::Direction;
use crate::nft::Elements;

/// Maps of isolated pods' addresses, IPv4 first.
pub const INGRESS: [&str; 2] = ["ingress4", "ingress6"];
pub const EGRESS: [&str; 2] = ["egress4", "egress6"];
/// Local pods' addresses with themselves.
pub const SELF: [&str; 2] = ["self4", "self6"];
/// Sets and maps that always exist.
pub const FIXED_SETS: [&str; 6] = ["ingress4", "ingress6", "egress4", "egress6", "self4", "self6"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The table's name, of the family `inet`.
    pub table: Box<str>,
    /// Addresses on which the node answers DNS for pods.
    pub dns: Vec<IpAddr>,
}

/// What a set contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetType {
    Addresses,
    Ranges,
    AddressesAndPorts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub kind: SetType,
    pub is_ipv4: bool,
    pub elements: Elements,
}

/// A rule that accepts what it matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainRule {
    /// Names of the peers' sets, IPv4 first, and what they contain.
    pub peers: Option<([Arc<str>; 2], SetType)>,
    pub ports: PortSet,
}

/// A group's chain. It drops what none of its rules accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub direction: Direction,
    pub rules: Vec<ChainRule>,
}

/// The content of the table in addition to its fixed chains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Those of [`FIXED_SETS`] and those of peers.
    pub sets: BTreeMap<Arc<str>, Set>,
    pub chains: BTreeMap<Arc<str>, Chain>,
}

/// The number in the name of a set of peers or of a group's chain.
fn number(name: &str) -> Option<u64> {
    let digits = name
        .strip_prefix("group")
        .or_else(|| name.strip_prefix("peers"))?;
    let end = digits.find('v').unwrap_or(digits.len());
    digits.get(..end)?.parse().ok()
}

impl Ruleset {
    /// A number above those in these names of sets and chains.
    pub fn number_above<'a>(names: impl IntoIterator<Item = &'a str>) -> u64 {
        let numbers = names.into_iter().filter_map(number);
        numbers.max().map_or(0, |last| last.saturating_add(1))
    }

    /// Whether the name is one of a set of peers or of a group's chain.
    pub fn is_numbered(name: &str) -> bool {
        number(name).is_some()
    }
}

impl Set {
    /// `add set …`.
    pub fn declaration(&self, table: &str, name: &str) -> String {
        let address = if self.is_ipv4 { "ipv4_addr" } else { "ipv6_addr" };
        let rest = match self.kind {
            SetType::Addresses => ";",
            SetType::Ranges => "; flags interval;",
            SetType::AddressesAndPorts => " . inet_proto . inet_service;",
        };
        format!("add set inet {table} {name} {{ type {address}{rest} }}\n")
    }
}

impl Chain {
    /// Makes the chain, if it is not there, and its rules.
    pub fn script(&self, table: &str, name: &str) -> String {
        let mut script = format!("add chain inet {table} {name}\nflush chain inet {table} {name}\n");
        for rule in &self.rules {
            for matches in rule.matches(self.direction) {
                // Writing to a string does not fail.
                let _ = writeln!(script, "add rule inet {table} {name} {matches}return");
            }
        }
        let _ = writeln!(script, "add rule inet {table} {name} drop");
        script
    }
}

impl ChainRule {
    fn matches(&self, direction: Direction) -> Vec<String> {
        let ports = match &self.ports {
            PortSet::All => String::new(),
            PortSet::Ranges(ranges) => {
                let ranges = ranges.iter().map(|range| {
                    let protocol = range.protocol.number();
                    match range.first == range.last {
                        true => format!("{protocol} . {}", range.first),
                        false => format!("{protocol} . {}-{}", range.first, range.last),
                    }
                });
                let ranges: Vec<String> = ranges.collect();
                format!("meta l4proto . th dport {{ {} }} ", ranges.join(", "))
            }
        };
        let Some((sets, kind)) = &self.peers else {
            return vec![ports];
        };
        let side = match direction {
            Direction::Ingress => "saddr",
            Direction::Egress => "daddr",
        };
        let families = ["ip", "ip6"].into_iter().zip(sets);
        families
            .map(|(family, set)| match kind {
                SetType::AddressesAndPorts => {
                    format!("{family} {side} . meta l4proto . th dport @{set} ")
                }
                SetType::Addresses | SetType::Ranges => format!("{family} {side} @{set} {ports}"),
            })
            .collect()
    }
}

/// Table, maps and chains, without elements. Running it again replaces the rules of the fixed chains in one transaction
/// and leaves everything else as it is.
pub fn skeleton(config: &Config) -> String {
    let table = &config.table;
    let mut script = format!("add table inet {table}\n");
    for (index, address) in ["ipv4_addr", "ipv6_addr"].into_iter().enumerate() {
        for map in [INGRESS, EGRESS].iter().filter_map(|maps| maps.get(index)) {
            let _ = writeln!(
                script,
                "add map inet {table} {map} {{ type {address} : verdict; }}"
            );
        }
        if let Some(set) = SELF.get(index) {
            let _ = writeln!(
                script,
                "add set inet {table} {set} {{ type {address} . {address}; }}"
            );
        }
    }
    for hook in ["forward", "input"] {
        let _ = write!(
            script,
            "add chain inet {table} {hook} {{ type filter hook {hook} priority filter; policy accept; }}\n\
             flush chain inet {table} {hook}\n\
             add rule inet {table} {hook} ct state established,related accept\n"
        );
    }
    for rule in [
        "ip saddr . ip daddr @self4 accept",
        "ip6 saddr . ip6 daddr @self6 accept",
        "ip saddr vmap @egress4",
        "ip6 saddr vmap @egress6",
        "ip daddr vmap @ingress4",
        "ip6 daddr vmap @ingress6",
    ] {
        let _ = writeln!(script, "add rule inet {table} forward {rule}");
    }
    for address in &config.dns {
        let (family, map) = match address {
            IpAddr::V4(_) => ("ip", "egress4"),
            IpAddr::V6(_) => ("ip6", "egress6"),
        };
        let _ = writeln!(
            script,
            "add rule inet {table} input {family} daddr {address} meta l4proto . th dport {{ tcp . 53, udp . 53 }} \
             {family} saddr vmap @{map}"
        );
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n6_new_sets_and_chains_are_numbered_above_those_of_an_earlier_process() {
        for (names, above) in [
            (vec![], 0),
            (vec!["ingress4", "self6"], 0),
            (vec!["group3", "peers7v4", "peers7v6", "ingress4"], 8),
            (vec!["group18446744073709551615"], u64::MAX),
        ] {
            assert_eq!(Ruleset::number_above(names.iter().copied()), above, "{names:?}");
        }
    }

    #[test]
    fn n6_other_sets_and_chains_than_those_of_peers_and_groups_have_no_number() {
        for (name, expected) in [
            ("group0", true),
            ("peers12v6", true),
            ("group", false),
            ("groups1", false),
            ("ingress4", false),
        ] {
            assert_eq!(Ruleset::is_numbered(name), expected, "{name}");
        }
    }
}
