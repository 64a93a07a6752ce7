//! Why a connection is allowed or denied, in terms of the policies; for `knarr net`.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::pod::{Pod, PodKey};
use super::spec::{Direction, Peer, PolicyKey, Rule};
use super::state::Policies;
use crate::catalog::Protocol;

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Pod(PodKey),
    /// The pod that has it, if there is one.
    Address(IpAddr),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Allowed,
    Denied,
    /// The pod is not known here, or has no address of the family.
    Unknown,
}

/// The result of one rule of an isolating policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Allows,
    NoPeerMatches,
    NoPortMatches,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Allows => "allows the connection",
            Verdict::NoPeerMatches => "no peer matches",
            Verdict::NoPortMatches => "no port matches",
        })
    }
}

/// The result of the policies of one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    pub direction: Direction,
    pub pod: PodKey,
    /// Policies that isolate the pod in this direction; without any, everything is allowed.
    pub isolated_by: Vec<PolicyKey>,
    /// The result of each of their rules, up to the first that allows the connection. Rules count from 0, as in field paths.
    pub rules: Vec<(PolicyKey, usize, Verdict)>,
}

impl Side {
    pub fn is_allowed(&self) -> bool {
        let allows = |(_, _, verdict): &(PolicyKey, usize, Verdict)| *verdict == Verdict::Allows;
        self.isolated_by.is_empty() || self.rules.iter().any(allows)
    }
}

/// The result, with its reasons. Both sides have to allow a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    pub outcome: Outcome,
    pub egress: Option<Side>,
    pub ingress: Option<Side>,
}

struct End<'a> {
    pod: Option<(&'a PodKey, &'a Pod)>,
    addresses: Vec<IpAddr>,
}

struct Peering<'a> {
    /// The end whose policies are evaluated.
    own: (&'a PodKey, &'a Pod),
    peer: Option<(&'a PodKey, &'a Pod)>,
    peer_address: IpAddr,
    /// The pod that named ports refer to.
    destination: Option<&'a Pod>,
    protocol: Protocol,
    port: u16,
}

impl Policies {
    /// Whether a connection may be opened, by what is known here: the agent of a node knows all policies, the pods of its
    /// node, and those of other nodes while a policy needs them. Destination and port are those of the endpoint, not
    /// those of a Service. Limits are not taken into account.
    pub fn explain(&self, from: &Endpoint, to: &Endpoint, protocol: Protocol, port: u16) -> Explanation {
        let unknown = Explanation {
            outcome: Outcome::Unknown,
            egress: None,
            ingress: None,
        };
        let (Some(from), Some(to)) = (self.end(from), self.end(to)) else {
            return unknown;
        };
        let pairs = from.addresses.iter().flat_map(|source| {
            let destinations = to
                .addresses
                .iter()
                .map(move |destination| (*source, *destination));
            destinations.filter(|(source, destination)| source.is_ipv4() == destination.is_ipv4())
        });
        let Some((source, destination)) = pairs.into_iter().next() else {
            return unknown;
        };
        if from.pod.is_some() && from.pod.map(|(key, _)| key) == to.pod.map(|(key, _)| key) {
            return Explanation {
                outcome: Outcome::Allowed,
                ..unknown
            };
        }
        let of_destination = to.pod.map(|(_, pod)| pod);
        let side = |direction, own: Option<_>, peer, peer_address| {
            let peering = Peering {
                own: own?,
                peer,
                peer_address,
                destination: of_destination,
                protocol,
                port,
            };
            Some(self.side(direction, &peering))
        };
        let egress = side(Direction::Egress, from.pod, to.pod, destination);
        let ingress = side(Direction::Ingress, to.pod, from.pod, source);
        let is_allowed = [&egress, &ingress].into_iter().flatten().all(Side::is_allowed);
        Explanation {
            outcome: match is_allowed {
                true => Outcome::Allowed,
                false => Outcome::Denied,
            },
            egress,
            ingress,
        }
    }

    fn end<'a>(&'a self, endpoint: &'a Endpoint) -> Option<End<'a>> {
        match endpoint {
            Endpoint::Pod(key) => {
                let pod = self.pod(key)?;
                Some(End {
                    pod: Some((key, pod)),
                    addresses: pod.addresses.to_vec(),
                })
            }
            Endpoint::Address(address) => Some(End {
                pod: self.pod_at(*address),
                addresses: vec![*address],
            }),
        }
    }

    fn side(&self, direction: Direction, peering: &Peering<'_>) -> Side {
        let (key, pod) = peering.own;
        let mut side = Side {
            direction,
            pod: key.clone(),
            isolated_by: Vec::new(),
            rules: Vec::new(),
        };
        let mut is_allowed = false;
        for (name, policy) in self.policies_of(&key.namespace) {
            let Some(rules) = policy
                .rules(direction)
                .filter(|_| policy.selects(&pod.profile.labels))
            else {
                continue;
            };
            let policy = PolicyKey {
                namespace: key.namespace.clone(),
                name: Arc::clone(name),
            };
            for (index, rule) in rules.iter().enumerate() {
                if !is_allowed {
                    let verdict = self.verdict(rule, peering);
                    is_allowed = verdict == Verdict::Allows;
                    side.rules.push((policy.clone(), index, verdict));
                }
            }
            side.isolated_by.push(policy);
        }
        side
    }

    fn verdict(&self, rule: &Rule, peering: &Peering<'_>) -> Verdict {
        if !self.has_peer(rule, peering.peer, peering.peer_address) {
            return Verdict::NoPeerMatches;
        }
        match rule.has_port(peering.destination, peering.protocol, peering.port) {
            true => Verdict::Allows,
            false => Verdict::NoPortMatches,
        }
    }

    /// Whether any of the rule's peers matches this one, by its address and by the pod that has it.
    pub(super) fn has_peer(&self, rule: &Rule, pod: Option<(&PodKey, &Pod)>, address: IpAddr) -> bool {
        let matches = |peer: &Peer| match peer {
            Peer::Everyone => true,
            Peer::Block(ranges) => ranges.contains(address),
            Peer::Pods(selector) => pod.is_some_and(|(key, pod)| {
                let labels = &pod.profile.labels;
                selector.matches(&key.namespace, self.namespace_labels(&key.namespace), labels)
            }),
        };
        rule.peers.iter().any(matches)
    }

    /// The pod that has the address by the API.
    pub(super) fn pod_at(&self, address: IpAddr) -> Option<(&PodKey, &Pod)> {
        let key = self.owner(address)?;
        Some((key, self.pod(key)?))
    }
}

impl Rule {
    /// Whether any of its ports is this one; named ports are those of `destination`.
    pub(super) fn has_port(&self, destination: Option<&Pod>, protocol: Protocol, port: u16) -> bool {
        let named = self.ports.named.iter().filter(|(of, _)| *of == protocol);
        let mut named = named.filter_map(|(_, name)| destination?.port(protocol, name));
        self.ports.numbers.contains(protocol.number(), Some(port)) || named.any(|of| of == port)
    }
}
