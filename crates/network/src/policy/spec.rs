//! NetworkPolicies, reduced to the enforced fields.

use std::sync::Arc;

use k8s_openapi::api::networking::v1 as networking;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_api::k8s_openapi;
use knarr_apimachinery::labels::Selector;

use super::addresses::Ranges;
use super::peers::{Labels, Matches, Namespaces, PodSelector};
use super::ports::{PortRange, PortSet};
use crate::catalog::Protocol;

/// Namespace and name of a policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyKey {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl std::fmt::Display for PolicyKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    Ingress,
    Egress,
}

impl std::fmt::Display for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        })
    }
}

/// One of a rule's `from` or `to`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// Any address; absent or empty `from` and `to`.
    Everyone,
    Pods(Arc<PodSelector>),
    Block(Arc<Ranges>),
}

/// A rule's ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    pub numbers: PortSet,
    pub named: Vec<(Protocol, Box<str>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub peers: Vec<Peer>,
    pub ports: Ports,
}

/// A policy, reduced to the enforced fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    selector: Selector,
    /// `None`: the policy does not isolate in this direction.
    pub ingress: Option<Vec<Rule>>,
    pub egress: Option<Vec<Rule>>,
}

impl Policy {
    /// An invalid selector of pods, which API validation does not let through, selects all pods of the namespace and
    /// allows nothing; invalid peers and ports match nothing.
    pub fn of(policy: &networking::NetworkPolicy, namespace: &Arc<str>) -> Self {
        let empty = networking::NetworkPolicySpec::default();
        let spec = policy.spec.as_ref().unwrap_or(&empty);
        let ingress = spec.ingress.as_deref().unwrap_or_default();
        let egress = spec.egress.as_deref().unwrap_or_default();
        let types = spec.policy_types.as_deref().unwrap_or_default();
        let has = |name: &str, default| match types {
            [] => default,
            types => types.iter().any(|of| of == name),
        };
        let selector = spec.pod_selector.as_ref().map(Selector::from_label_selector);
        let is_valid = !matches!(selector, Some(Err(_)));
        let ingress = ingress.iter().filter(|_| is_valid);
        let ingress = ingress.map(|rule| Rule::of(rule.from.as_deref(), rule.ports.as_deref(), namespace));
        let has_egress = has("Egress", !egress.is_empty());
        let egress = egress.iter().filter(|_| is_valid);
        let egress = egress.map(|rule| Rule::of(rule.to.as_deref(), rule.ports.as_deref(), namespace));
        Policy {
            selector: selector.and_then(Result::ok).unwrap_or_default(),
            ingress: has("Ingress", true).then(|| ingress.collect()),
            egress: has_egress.then(|| egress.collect()),
        }
    }

    pub(super) fn selects(&self, labels: &Labels) -> bool {
        self.selector.matches(Some(labels))
    }

    /// `None` if the policy does not isolate in this direction.
    pub fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }

    /// What it costs to keep, in peers and ports.
    pub(super) fn weight(&self) -> usize {
        let rules = [&self.ingress, &self.egress].into_iter().flatten().flatten();
        rules
            .map(|rule| {
                let peers = rule.peers.iter().map(|peer| match peer {
                    Peer::Everyone => 1,
                    Peer::Pods(selector) => {
                        let namespaces = match &selector.namespaces {
                            Namespaces::One(_) => 0,
                            Namespaces::Matching(selector) => cost(selector),
                        };
                        1 + namespaces + cost(&selector.pods)
                    }
                    Peer::Block(ranges) => 1 + ranges.len(),
                });
                1 + peers.sum::<usize>() + rule.ports.numbers.len() + rule.ports.named.len()
            })
            .sum::<usize>()
    }

    /// The same isolation without allowed connections.
    pub(super) fn without_rules(&self) -> Self {
        Policy {
            selector: self.selector.clone(),
            ingress: self.ingress.as_ref().map(|_| Vec::new()),
            egress: self.egress.as_ref().map(|_| Vec::new()),
        }
    }
}

fn cost(selector: &Matches) -> usize {
    let requirements = selector.0.requirements().iter();
    requirements.map(|r| 1 + r.values().len()).sum()
}

impl Rule {
    fn of(
        peers: Option<&[networking::NetworkPolicyPeer]>,
        ports: Option<&[networking::NetworkPolicyPort]>,
        namespace: &Arc<str>,
    ) -> Self {
        let peers = match peers.unwrap_or_default() {
            [] => vec![Peer::Everyone],
            peers => peers
                .iter()
                .filter_map(|peer| Peer::of(peer, namespace))
                .collect(),
        };
        Rule {
            peers,
            ports: Ports::of(ports.unwrap_or_default()),
        }
    }
}

impl Peer {
    fn of(peer: &networking::NetworkPolicyPeer, namespace: &Arc<str>) -> Option<Self> {
        if let Some(block) = &peer.ip_block {
            let except = block.except.iter().flatten().map(String::as_str);
            let ranges = Ranges::of_block(&block.cidr, except)?;
            return Some(Peer::Block(Arc::new(ranges)));
        }
        let parse = |selector: &LabelSelector| Selector::from_label_selector(selector).ok().map(Matches);
        let namespaces = match &peer.namespace_selector {
            Some(selector) => Namespaces::Matching(parse(selector)?),
            None if peer.pod_selector.is_some() => Namespaces::One(namespace.clone()),
            None => return None,
        };
        let pods = match &peer.pod_selector {
            Some(selector) => parse(selector)?,
            None => Matches(Selector::default()),
        };
        Some(Peer::Pods(Arc::new(PodSelector { namespaces, pods })))
    }
}

impl Ports {
    fn of(ports: &[networking::NetworkPolicyPort]) -> Self {
        if ports.is_empty() {
            return Ports {
                numbers: PortSet::All,
                named: Vec::new(),
            };
        }
        let mut ranges = Vec::new();
        let mut named = Vec::new();
        for port in ports {
            let Some(protocol) = Protocol::parse(port.protocol.as_deref()) else {
                continue;
            };
            let (first, last) = match (&port.port, port.end_port) {
                (None, _) => (0, u16::MAX),
                (Some(IntOrString::String(name)), _) => {
                    named.push((protocol, name.as_str().into()));
                    continue;
                }
                (Some(IntOrString::Int(first)), end) => {
                    let last = end.unwrap_or(*first);
                    match (u16::try_from(*first), u16::try_from(last)) {
                        (Ok(first), Ok(last)) if first <= last => (first, last),
                        _ => continue,
                    }
                }
            };
            ranges.push(PortRange {
                protocol,
                first,
                last,
            });
        }
        Ports {
            numbers: PortSet::of(ranges),
            named,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn policy(ingress: &Value) -> Policy {
        let policy =
            serde_json::from_value(json!({"spec": {"podSelector": {}, "ingress": ingress}})).unwrap();
        Policy::of(&policy, &"x".into())
    }

    #[test]
    fn n6_a_policy_weighs_as_much_as_its_rules_peers_requirements_and_ports() {
        let peers = json!([
            {"podSelector": {"matchLabels": {"a": "b"}},
             "namespaceSelector": {"matchExpressions": [{"key": "ns", "operator": "In", "values": ["x", "y"]}]}},
            {"ipBlock": {"cidr": "10.0.0.0/24", "except": ["10.0.0.64/26"]}},
        ]);
        let rule = json!({"from": peers, "ports": [{"port": 80}, {"port": 443}, {"port": "web"}]});
        for (ingress, weight) in [
            (json!([]), 0),
            (json!([{}]), 2),
            (json!([{"from": [{"podSelector": {}}]}]), 2),
            // The rule, the selectors with their two requirements and three values, the block of two ranges, the ports.
            (json!([rule]), 1 + (1 + 5) + (1 + 2) + 3),
            (json!([rule, {}]), 15),
        ] {
            assert_eq!(policy(&ingress).weight(), weight, "{ingress}");
        }
    }

    #[test]
    fn n6_a_peer_without_selectors_and_a_range_that_ends_before_it_begins_match_nothing() {
        let rule = |rule: Value| policy(&json!([rule])).ingress.unwrap().remove(0);
        assert!(rule(json!({"from": [{}]})).peers.is_empty());
        let ports = json!([{"port": 90, "endPort": 80}, {"port": 90, "endPort": 90}]);
        let ninety = PortRange {
            protocol: Protocol::Tcp,
            first: 90,
            last: 90,
        };
        assert_eq!(
            rule(json!({"ports": ports})).ports.numbers,
            PortSet::Ranges(vec![ninety])
        );
    }
}
