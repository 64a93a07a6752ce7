//! Compiles the policies that select a pod into the rules of its group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::addresses::Ranges;
use super::limits::{
    MAX_PEERS_PER_GROUP, MAX_PORT_RANGES_PER_GROUP, MAX_PORT_SETS_PER_GROUP, MAX_SETS_PER_PORT_SET,
};
use super::peers::{PodSelector, SetKey, Whose};
use super::pod::NamedPort;
use super::ports::{PortRange, PortSet};
use super::spec::{Direction, Peer, Policy, Rule};
use crate::catalog::Protocol;

/// Allows what it matches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupRule {
    /// `None`: any peer.
    pub peers: Option<SetKey>,
    /// [`PortSet::All`] with sets of named ports, which contain the ports.
    pub ports: PortSet,
}

/// The result of a pod's policies in one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Compiled {
    /// No policy isolates it, or everything is allowed.
    Open,
    /// Connections that no rule allows are denied.
    Rules(Arc<[GroupRule]>),
}

/// Why a rule of a policy allows less than it specifies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shortfall {
    NoSuchPort { protocol: Protocol, name: Box<str> },
    TooMany,
}

type Selected<'a> = (&'a Arc<str>, &'a Policy);

#[derive(Default)]
struct Ranged {
    is_all: bool,
    ranges: Vec<PortRange>,
}

/// The allowed ports, by peer.
#[derive(Default)]
struct Gathered<'a> {
    numbers: BTreeMap<&'a Peer, Ranged>,
    named: BTreeMap<(Protocol, &'a str), BTreeSet<&'a Peer>>,
    pairs: usize,
}

impl<'a> Gathered<'a> {
    /// `false` if the rule does not fit any more.
    fn take(&mut self, rule: &'a Rule, ranges: &[PortRange], named: &[(Protocol, &'a str)]) -> bool {
        let is_all = rule.ports.numbers == PortSet::All;
        let ports = usize::from(is_all) + ranges.len() + named.len();
        let pairs = rule.peers.len().saturating_mul(ports.max(1));
        self.pairs = self.pairs.saturating_add(pairs);
        if self.pairs > MAX_PEERS_PER_GROUP {
            return false;
        }
        for peer in &rule.peers {
            let ranged = self.numbers.entry(peer).or_default();
            ranged.is_all |= is_all;
            ranged.ranges.extend(ranges);
            for port in named {
                self.named.entry(*port).or_default().insert(peer);
            }
        }
        true
    }
}

/// `policies` are those that select the pod and isolate it in this direction, by name; `ports` are the pod's.
pub(super) fn compile<'a>(
    direction: Direction,
    policies: impl IntoIterator<Item = Selected<'a>>,
    ports: &[NamedPort],
    shortfalls: &mut BTreeSet<(Arc<str>, Shortfall)>,
) -> Compiled {
    let mut gathered = Gathered::default();
    let mut isolates = false;
    'policies: for (name, policy) in policies {
        let Some(rules) = policy.rules(direction) else {
            continue;
        };
        isolates = true;
        for rule in rules {
            let mut ranges = match &rule.ports.numbers {
                PortSet::All => Vec::new(),
                PortSet::Ranges(ranges) => ranges.clone(),
            };
            let mut named = Vec::new();
            for (protocol, port) in &rule.ports.named {
                if direction == Direction::Egress {
                    named.push((*protocol, &**port));
                    continue;
                }
                let own = ports
                    .iter()
                    .find(|own| own.protocol == *protocol && own.name == *port);
                match own {
                    Some(own) => ranges.push(PortRange {
                        protocol: *protocol,
                        first: own.number,
                        last: own.number,
                    }),
                    None => {
                        let shortfall = Shortfall::NoSuchPort {
                            protocol: *protocol,
                            name: port.clone(),
                        };
                        shortfalls.insert((name.clone(), shortfall));
                    }
                }
            }
            if !gathered.take(rule, &ranges, &named) {
                shortfalls.insert((name.clone(), Shortfall::TooMany));
                break 'policies;
            }
        }
    }
    if !isolates {
        return Compiled::Open;
    }
    let Some((rules, is_complete)) = group(gathered) else {
        return Compiled::Open;
    };
    if !is_complete {
        shortfalls.insert(("".into(), Shortfall::TooMany));
    }
    Compiled::Rules(rules.into())
}

/// Peers with the same ports.
#[derive(Default)]
struct SamePorts<'a> {
    everyone: bool,
    selectors: Vec<&'a Arc<PodSelector>>,
    blocks: Vec<&'a Ranges>,
}

impl<'a> SamePorts<'a> {
    fn add(&mut self, peer: &'a Peer) {
        match peer {
            Peer::Everyone => self.everyone = true,
            Peer::Pods(selector) => self.selectors.push(selector),
            Peer::Block(ranges) => self.blocks.push(ranges),
        }
    }

    fn selectors(&self) -> Box<[Arc<PodSelector>]> {
        self.selectors.iter().map(|s| Arc::clone(s)).collect()
    }

    fn blocks(&self) -> Option<Arc<Ranges>> {
        let union = Ranges::union(self.blocks.iter().copied());
        (!union.is_empty()).then(|| Arc::new(union))
    }
}

/// The rules and whether they are all; `None` if everything is allowed.
fn group(gathered: Gathered<'_>) -> Option<(Vec<GroupRule>, bool)> {
    let mut by_ports: BTreeMap<PortSet, SamePorts<'_>> = BTreeMap::new();
    for (peer, ranged) in gathered.numbers {
        let ports = match ranged.is_all {
            true => PortSet::All,
            false => PortSet::of(ranged.ranges),
        };
        if !ports.is_empty() {
            by_ports.entry(ports).or_default().add(peer);
        }
    }
    if by_ports.get(&PortSet::All).is_some_and(|same| same.everyone) {
        return None;
    }
    let mut rules = Vec::new();
    let mut is_complete = true;
    let mut range_count = 0;
    for (index, (ports, same)) in by_ports.into_iter().enumerate() {
        range_count += ports.len();
        if index >= MAX_PORT_SETS_PER_GROUP || range_count > MAX_PORT_RANGES_PER_GROUP {
            is_complete = false;
            break;
        }
        let mut allow = |peers| {
            rules.push(GroupRule {
                peers,
                ports: ports.clone(),
            });
        };
        if same.everyone {
            allow(None);
            continue;
        }
        if same.selectors.len() <= MAX_SETS_PER_PORT_SET {
            for selector in &same.selectors {
                allow(Some(SetKey::Pods([Arc::clone(selector)].into())));
            }
        } else {
            allow(Some(SetKey::Pods(same.selectors())));
        }
        if let Some(blocks) = same.blocks() {
            allow(Some(SetKey::Blocks(blocks)));
        }
    }
    for (index, ((protocol, name), peers)) in gathered.named.into_iter().enumerate() {
        if index >= MAX_PORT_SETS_PER_GROUP {
            is_complete = false;
            break;
        }
        let mut same = SamePorts::default();
        peers.into_iter().for_each(|peer| same.add(peer));
        let mut allow = |whose| {
            rules.push(GroupRule {
                peers: Some(SetKey::NamedPort {
                    whose,
                    protocol,
                    name: name.into(),
                }),
                ports: PortSet::All,
            });
        };
        if same.everyone {
            allow(Whose::Everyone);
            continue;
        }
        if !same.selectors.is_empty() {
            allow(Whose::Pods(same.selectors()));
        }
        if let Some(blocks) = same.blocks() {
            allow(Whose::Blocks(blocks));
        }
    }
    Some((rules, is_complete))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The result of a policy with these rules, and whether it is complete.
    fn compiled(direction: Direction, rules: Value) -> (Vec<GroupRule>, bool) {
        let mut spec = json!({"podSelector": {}});
        spec[direction.to_string()] = rules;
        let policy = serde_json::from_value(json!({"spec": spec})).unwrap();
        let policy = Policy::of(&policy, &"x".into());
        let (name, mut shortfalls): (Arc<str>, _) = ("p".into(), BTreeSet::new());
        match compile(direction, [(&name, &policy)], &[], &mut shortfalls) {
            Compiled::Open => panic!("everything is allowed"),
            Compiled::Rules(rules) => (rules.to_vec(), shortfalls.is_empty()),
        }
    }

    fn peer(n: usize) -> Value {
        json!({"podSelector": {"matchLabels": {"n": n.to_string()}}})
    }

    /// Ports that are not adjacent.
    fn ports(count: usize) -> Vec<Value> {
        (1..=count).map(|n| json!({"port": 2 * n})).collect()
    }

    #[test]
    fn n6_a_group_has_up_to_ten_thousand_pairs_of_a_peer_and_a_port() {
        for (count, fits) in [(100, true), (101, false)] {
            let peers: Vec<Value> = (0..count).map(peer).collect();
            let (rules, is_complete) =
                compiled(Direction::Ingress, json!([{"from": peers, "ports": ports(100)}]));
            assert_eq!((is_complete, rules.is_empty()), (fits, !fits), "{count} peers");
        }
    }

    #[test]
    fn n6_a_group_has_up_to_256_lists_of_ports() {
        for (count, fits) in [
            (MAX_PORT_SETS_PER_GROUP, true),
            (MAX_PORT_SETS_PER_GROUP + 1, false),
        ] {
            let rules = (1..=count).map(|n| json!({"from": [peer(n)], "ports": [{"port": n}]}));
            let (rules, is_complete) = compiled(Direction::Ingress, rules.collect());
            assert_eq!((is_complete, rules.len()), (fits, MAX_PORT_SETS_PER_GROUP));
        }
    }

    #[test]
    fn n6_a_group_has_up_to_4096_ranges_of_ports() {
        for (counts, kept, fits) in [
            (vec![MAX_PORT_RANGES_PER_GROUP], 1, true),
            (vec![MAX_PORT_RANGES_PER_GROUP + 1], 0, false),
            (vec![2048, 2049], 1, false),
        ] {
            let rules = counts.iter().enumerate();
            let rules = rules.map(|(n, count)| json!({"from": [peer(n)], "ports": ports(*count)}));
            let (rules, is_complete) = compiled(Direction::Ingress, rules.collect());
            assert_eq!((is_complete, rules.len()), (fits, kept), "{counts:?}");
        }
    }

    #[test]
    fn n6_named_ports_of_peers_are_in_one_rule_of_their_own() {
        let (rules, _) = compiled(
            Direction::Egress,
            json!([{"to": [peer(0)], "ports": [{"port": "web"}]}]),
        );
        assert_eq!(rules.len(), 1, "{rules:?}");
        assert!(matches!(rules[0].peers, Some(SetKey::NamedPort { .. })));
    }
}
