//! Required terms of pod affinity and anti-affinity: how many pods own a term and how many match it in each domain, and
//! by how much that violates them.

use std::collections::BTreeMap;

use knarr_scheduler::Cluster;
use knarr_scheduler::cluster::{ColumnId, NO_VALUE, NodeIndex};
use knarr_scheduler::pod_info::{AffinityTerm, PodClass};

/// What the pods of a class are to a term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Role {
    pub owns: bool,
    pub matches: bool,
}

/// Whether the term matches pods of the class.
pub(crate) fn matches(cluster: &Cluster, term: &AffinityTerm, class: &PodClass) -> bool {
    let namespace = class.namespace();
    term.matches(namespace, cluster.namespace_labels(namespace), class.labels())
}

fn domain(cluster: &Cluster, column: ColumnId, node: NodeIndex) -> Option<u32> {
    let value = cluster.column(column).at(node);
    (value != NO_VALUE && cluster.at(node).node.is_some()).then_some(value)
}

/// The pods of one domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pods {
    owners: u32,
    matches: u32,
    /// Those that do both.
    both: u32,
}

impl Pods {
    fn with(self, role: Role, pods: u32) -> Self {
        Pods {
            owners: self.owners + pods * u32::from(role.owns),
            matches: self.matches + pods * u32::from(role.matches),
            both: self.both + pods * u32::from(role.owns && role.matches),
        }
    }

    fn without(self, role: Role) -> Self {
        Pods {
            owners: self.owners.saturating_sub(role.owns.into()),
            matches: self.matches.saturating_sub(role.matches.into()),
            both: self.both.saturating_sub((role.owns && role.matches).into()),
        }
    }

    /// Pairs of an owner and another pod that matches.
    fn pairs(self) -> u64 {
        u64::from(self.owners) * u64::from(self.matches) - u64::from(self.both)
    }

    /// Owners without another pod that matches; `alone` is no other pod anywhere, which is allowed to the first of a
    /// group.
    fn lonely(self, only_one_matches: bool) -> u64 {
        let others = u64::from(self.owners - self.both);
        match self.matches {
            0 => others,
            1 if self.both == 1 && !only_one_matches => 1,
            _ => 0,
        }
    }
}

/// One term of anti-affinity, of all pods that have it.
#[derive(Debug)]
pub(crate) struct AntiAffinityRule {
    pub term: AffinityTerm,
    column: ColumnId,
    domains: BTreeMap<u32, Pods>,
    value: u64,
}

impl AntiAffinityRule {
    pub fn new(cluster: &mut Cluster, term: AffinityTerm) -> Self {
        AntiAffinityRule {
            column: cluster.column_of(&term.topology_key),
            term,
            domains: BTreeMap::new(),
            value: 0,
        }
    }

    fn pods(&self, domain: u32) -> Pods {
        self.domains.get(&domain).copied().unwrap_or_default()
    }

    fn set(&mut self, domain: u32, to: Pods) {
        let was = self.pods(domain);
        self.value = self.value + to.pairs() - was.pairs();
        if to == Pods::default() {
            self.domains.remove(&domain);
        } else {
            self.domains.insert(domain, to);
        }
    }

    pub fn add(&mut self, cluster: &Cluster, node: NodeIndex, role: Role, pods: u32) {
        if let Some(domain) = domain(cluster, self.column, node) {
            self.set(domain, self.pods(domain).with(role, pods));
        }
    }

    pub fn remove(&mut self, cluster: &Cluster, node: NodeIndex, role: Role) {
        if let Some(domain) = domain(cluster, self.column, node) {
            self.set(domain, self.pods(domain).without(role));
        }
    }

    pub fn value(&self) -> u64 {
        self.value
    }

    pub fn value_with(&self, cluster: &Cluster, node: NodeIndex, role: Role) -> u64 {
        let Some(domain) = domain(cluster, self.column, node) else {
            return self.value;
        };
        let was = self.pods(domain);
        self.value + was.with(role, 1).pairs() - was.pairs()
    }

    /// How many pairs a pod of this role on the node is in.
    pub fn pairs(&self, cluster: &Cluster, node: NodeIndex, role: Role) -> u64 {
        let Some(domain) = domain(cluster, self.column, node) else {
            return 0;
        };
        let pods = self.pods(domain);
        pods.pairs() - pods.without(role).pairs()
    }
}

/// The terms of affinity of a pod, of all pods that have the same: another pod counts only if it matches all of them.
#[derive(Debug)]
pub(crate) struct AffinityRule {
    pub terms: Vec<AffinityTerm>,
    /// One for each term.
    topologies: Vec<Topology>,
    /// Owners on nodes without a topology key.
    outside: u64,
}

/// The pods by the domains of one term.
#[derive(Debug)]
struct Topology {
    column: ColumnId,
    domains: BTreeMap<u32, Pods>,
    matches: u32,
    /// The sum over the domains while more than one pod matches.
    value: u64,
}

impl Topology {
    fn pods(&self, domain: u32) -> Pods {
        self.domains.get(&domain).copied().unwrap_or_default()
    }

    fn set(&mut self, domain: u32, to: Pods) {
        let was = self.pods(domain);
        self.matches = self.matches + to.matches - was.matches;
        self.value = self.value + to.lonely(false) - was.lonely(false);
        if to == Pods::default() {
            self.domains.remove(&domain);
        } else {
            self.domains.insert(domain, to);
        }
    }

    fn value(&self) -> u64 {
        if self.matches > 1 {
            return self.value;
        }
        // Whether a pod is the only one of its group depends on all domains.
        self.domains.values().map(|pods| pods.lonely(true)).sum()
    }

    /// With these pods in the domain.
    fn value_with(&self, domain: u32, to: Pods) -> u64 {
        let was = self.pods(domain);
        if self.matches + to.matches - was.matches > 1 {
            return self.value + to.lonely(false) - was.lonely(false);
        }
        let others = self.domains.iter().filter(|(other, _)| **other != domain);
        to.lonely(true) + others.map(|(_, pods)| pods.lonely(true)).sum::<u64>()
    }
}

impl AffinityRule {
    pub fn new(cluster: &mut Cluster, terms: &[AffinityTerm]) -> Self {
        let topologies = terms.iter().map(|term| Topology {
            column: cluster.column_of(&term.topology_key),
            domains: BTreeMap::new(),
            matches: 0,
            value: 0,
        });
        AffinityRule {
            topologies: topologies.collect(),
            terms: terms.to_vec(),
            outside: 0,
        }
    }

    pub fn add(&mut self, cluster: &Cluster, node: NodeIndex, role: Role, pods: u32) {
        for topology in &mut self.topologies {
            match domain(cluster, topology.column, node) {
                Some(domain) => topology.set(domain, topology.pods(domain).with(role, pods)),
                None => self.outside += u64::from(pods) * u64::from(role.owns),
            }
        }
    }

    pub fn remove(&mut self, cluster: &Cluster, node: NodeIndex, role: Role) {
        for topology in &mut self.topologies {
            match domain(cluster, topology.column, node) {
                Some(domain) => topology.set(domain, topology.pods(domain).without(role)),
                None => self.outside = self.outside.saturating_sub(role.owns.into()),
            }
        }
    }

    pub fn value(&self) -> u64 {
        self.outside + self.topologies.iter().map(Topology::value).sum::<u64>()
    }

    pub fn value_with(&self, cluster: &Cluster, node: NodeIndex, role: Role) -> u64 {
        let of = |topology: &Topology| match domain(cluster, topology.column, node) {
            Some(domain) => topology.value_with(domain, topology.pods(domain).with(role, 1)),
            None => u64::from(role.owns) + topology.value(),
        };
        self.outside + self.topologies.iter().map(of).sum::<u64>()
    }

    /// For how many terms a pod of this role on the node has no other pod.
    pub fn lonely(&self, cluster: &Cluster, node: NodeIndex, role: Role) -> u64 {
        if !role.owns {
            return 0;
        }
        let of = |topology: &Topology| match domain(cluster, topology.column, node) {
            None => 1,
            Some(domain) => {
                let pods = topology.pods(domain);
                let others = pods.matches - u32::from(role.matches).min(pods.matches);
                let is_first = role.matches && topology.matches <= 1;
                u64::from(others == 0 && !is_first)
            }
        };
        self.topologies.iter().map(of).sum()
    }
}
