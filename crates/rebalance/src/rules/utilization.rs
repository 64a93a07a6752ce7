//! The utilization of nodes: pods leave nodes above a target (LowNodeUtilization) or below thresholds
//! (HighNodeUtilization). Each node's violation is a rule of its own, so a move never makes another node the next problem.

use std::collections::BTreeMap;

use knarr_apimachinery::ids::{NodeName, PodUid};
use knarr_scheduler::cluster::NodeIndex;
use knarr_scheduler::pod_info::PodInfo;
use knarr_scheduler::resources::Resources;
use knarr_scheduler::{Cluster, NodeInfo};

use crate::policy::{HighNodeUtilization, LowNodeUtilization, Thresholds};
use crate::snapshot::{Snapshot, Usage, is_ready};

const PODS: &str = "pods";

/// Measured usage, which moves with the pods.
#[derive(Debug)]
pub(crate) struct Measured {
    nodes: BTreeMap<NodeIndex, Resources>,
    /// By UID.
    pods: BTreeMap<PodUid, Resources>,
}

impl Measured {
    pub fn new(snapshot: &Snapshot) -> Self {
        let Usage { nodes, pods } = &snapshot.usage;
        let index = |name: &NodeName| snapshot.cluster.index_of(name);
        let nodes = nodes.iter();
        let nodes = nodes.filter_map(|(name, usage)| Some((index(name)?, usage.clone())));
        let mut by_uid = BTreeMap::new();
        if !pods.is_empty() {
            for (_, node) in snapshot.cluster.iter() {
                for pod in node.pods() {
                    let object = pod.pod.object();
                    let key = (object.namespace().to_string(), object.name().to_string());
                    if let Some(usage) = pods.get(&key) {
                        by_uid.insert(pod.uid().clone(), usage.clone());
                    }
                }
            }
        }
        Measured {
            nodes: nodes.collect(),
            pods: by_uid,
        }
    }

    pub fn knows(&self, pod: &PodInfo) -> bool {
        self.pods.contains_key(pod.uid())
    }

    pub fn add(&mut self, node: NodeIndex, pod: &PodInfo) {
        if let (Some(of), Some(usage)) = (self.nodes.get_mut(&node), self.pods.get(pod.uid())) {
            of.add(usage);
        }
    }

    pub fn remove(&mut self, node: NodeIndex, pod: &PodInfo) {
        if let (Some(of), Some(usage)) = (self.nodes.get_mut(&node), self.pods.get(pod.uid())) {
            of.subtract(usage);
        }
    }
}

/// The part of an amount, in its unit.
fn percent_of(amount: i64, percent: f64) -> i64 {
    (amount as f64 * percent / 100.0) as i64
}

/// Where the utilization of a node is read from.
#[derive(Clone, Copy)]
pub(crate) struct Load<'a> {
    pub cluster: &'a Cluster,
    pub measured: &'a Measured,
}

impl Load<'_> {
    /// `None`: not known.
    fn of(self, node: NodeIndex, resource: &str, measured: bool) -> Option<i64> {
        let info = self.cluster.at(node);
        if resource == PODS {
            return i64::try_from(info.pods().len()).ok();
        }
        if measured {
            return self.measured.nodes.get(&node).map(|usage| usage.get(resource));
        }
        Some(info.requested.get(resource))
    }

    /// What the pod adds.
    fn of_pod(self, pod: &PodInfo, resource: &str, measured: bool) -> i64 {
        if resource == PODS {
            return 1;
        }
        if measured {
            let usage = self.measured.pods.get(pod.uid());
            return usage.map_or(0, |usage| usage.get(resource));
        }
        pod.requests().resources.get(resource)
    }
}

/// A resource with its limits on each node, by index; `None`: the node does not have it.
#[derive(Debug)]
struct Limits {
    resource: String,
    under: Vec<Option<i64>>,
    target: Vec<Option<i64>>,
}

/// LowNodeUtilization of one strategy.
#[derive(Debug)]
pub(crate) struct LowRule {
    pub policy: LowNodeUtilization,
    limits: Vec<Limits>,
    nodes: Vec<NodeIndex>,
}

/// Whether pods of overutilized nodes may be moved now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    Open,
    /// So many nodes are underutilized, and so many are needed.
    Closed {
        underutilized: usize,
        needed: usize,
    },
}

impl LowRule {
    pub fn new(policy: &LowNodeUtilization, load: Load, selects: impl Fn(&NodeInfo) -> bool) -> Self {
        let cluster = load.cluster;
        let nodes = cluster.iter().filter(|(_, node)| is_ready(node) && selects(node));
        let nodes: Vec<NodeIndex> = nodes.map(|(index, _)| index).collect();
        let limits = policy.target_thresholds.iter().map(|(resource, target)| {
            let threshold = policy.thresholds.get(resource).copied().unwrap_or(0.0);
            let (mut under, mut over) = (threshold, *target);
            if policy.deviation {
                let average = average(load, resource, policy.measured);
                under = (average - threshold).max(0.0);
                over = (average + target).min(100.0);
            }
            let slots = (0..).zip(0..cluster.slots());
            let of = |percent: f64| -> Vec<Option<i64>> {
                let all = slots.clone().map(|(index, _)| {
                    let has = cluster.at(index).allocatable.get(resource);
                    (has > 0).then(|| percent_of(has, percent))
                });
                all.collect()
            };
            Limits {
                resource: resource.clone(),
                under: of(under),
                target: of(over),
            }
        });
        LowRule {
            policy: policy.clone(),
            limits: limits.collect(),
            nodes,
        }
    }

    pub fn resources(&self) -> impl Iterator<Item = (usize, &str)> {
        let names = self.limits.iter().map(|limits| limits.resource.as_str());
        names.enumerate()
    }

    fn over(&self, limits: &Limits, node: NodeIndex, load: Load, more: i64) -> u64 {
        let target = limits.target.get(node as usize).copied().flatten();
        let usage = load.of(node, &limits.resource, self.policy.measured);
        match (target, usage) {
            (Some(target), Some(usage)) => {
                let over = usage.saturating_add(more).saturating_sub(target);
                u64::try_from(over).unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// The amount of the resource above the node's target.
    pub fn value(&self, resource: usize, node: NodeIndex, load: Load) -> u64 {
        let limits = self.limits.get(resource);
        limits.map_or(0, |limits| self.over(limits, node, load, 0))
    }

    /// The same with the pod.
    pub fn value_with(&self, resource: usize, node: NodeIndex, load: Load, pod: &PodInfo) -> u64 {
        let Some(limits) = self.limits.get(resource) else {
            return 0;
        };
        let more = load.of_pod(pod, &limits.resource, self.policy.measured);
        self.over(limits, node, load, more)
    }

    /// Overutilized nodes with the part of the largest excess, in thousandths of the target, the largest first.
    pub fn overutilized(&self, load: Load) -> Vec<(u64, NodeIndex)> {
        let part = |node: NodeIndex| {
            let parts = self.limits.iter().map(|limits| {
                let over = self.over(limits, node, load, 0);
                let target = limits.target.get(node as usize).copied().flatten().unwrap_or(1);
                let target = u64::try_from(target.max(1)).unwrap_or(1);
                (over > 0).then(|| 1 + over.saturating_mul(1000) / target)
            });
            parts.flatten().max()
        };
        let nodes = self.nodes.iter();
        let mut over: Vec<_> = nodes.filter_map(|node| Some((part(*node)?, *node))).collect();
        over.sort_by_key(|(part, node)| (std::cmp::Reverse(*part), *node));
        over
    }

    fn is_underutilized(&self, node: NodeIndex, load: Load) -> bool {
        let info = load.cluster.at(node);
        !info.is_unschedulable()
            && self.limits.iter().all(|limits| {
                let usage = load.of(node, &limits.resource, self.policy.measured);
                let under = limits.under.get(node as usize).copied().flatten();
                match (usage, under) {
                    (Some(usage), Some(under)) => usage <= under,
                    // A node without the resource is not above its threshold.
                    (Some(_), None) => true,
                    (None, _) => false,
                }
            })
    }

    pub fn gate(&self, load: Load) -> Gate {
        let nodes = self.nodes.iter();
        let underutilized = nodes.filter(|node| self.is_underutilized(**node, load)).count();
        let needed = self.policy.number_of_nodes + 1;
        if underutilized >= needed && underutilized < self.nodes.len() {
            Gate::Open
        } else {
            Gate::Closed {
                underutilized,
                needed,
            }
        }
    }
}

/// The utilization of all nodes together, in percent: no move changes it. The mean of the nodes' percentages, which the
/// descheduler takes, changes with every move between nodes of different sizes.
fn average(load: Load, resource: &str, measured: bool) -> f64 {
    let (mut used, mut has) = (0.0, 0.0);
    for (index, node) in load.cluster.iter() {
        let allocatable = node.allocatable.get(resource);
        if let Some(usage) = load.of(index, resource, measured).filter(|_| allocatable > 0) {
            used += usage as f64;
            has += allocatable as f64;
        }
    }
    if has > 0.0 { 100.0 * used / has } else { 0.0 }
}

/// HighNodeUtilization of one strategy.
#[derive(Debug)]
pub(crate) struct HighRule {
    pub policy: HighNodeUtilization,
    nodes: Vec<NodeIndex>,
    /// Pods that never leave their nodes (of DaemonSets): they do not make a node used.
    fixed: BTreeMap<NodeIndex, u64>,
}

impl HighRule {
    pub fn new(
        policy: &HighNodeUtilization,
        cluster: &Cluster,
        selects: impl Fn(&NodeInfo) -> bool,
        is_fixed: impl Fn(&PodInfo) -> bool,
    ) -> Self {
        let mut rule = HighRule {
            policy: policy.clone(),
            nodes: Vec::new(),
            fixed: BTreeMap::new(),
        };
        for (index, node) in cluster.iter().filter(|(_, node)| is_ready(node) && selects(node)) {
            rule.nodes.push(index);
            let fixed = node.pods().iter().filter(|pod| is_fixed(pod)).count();
            if fixed > 0 {
                rule.fixed.insert(index, u64::try_from(fixed).unwrap_or(u64::MAX));
            }
        }
        rule
    }

    fn is_under(&self, cluster: &Cluster, node: NodeIndex, more: Option<&PodInfo>) -> bool {
        let info = cluster.at(node);
        let used = |resource: &str| {
            let (used, more) = match resource {
                PODS => (
                    i64::try_from(info.pods().len()).unwrap_or(i64::MAX),
                    i64::from(more.is_some()),
                ),
                name => (
                    info.requested.get(name),
                    more.map_or(0, |pod| pod.requests().resources.get(name)),
                ),
            };
            used.saturating_add(more)
        };
        let below = |(resource, percent): (&String, &f64)| {
            let has = info.allocatable.get(resource);
            has <= 0 || used(resource) <= percent_of(has, *percent)
        };
        let thresholds: &Thresholds = &self.policy.thresholds;
        self.nodes.binary_search(&node).is_ok() && thresholds.iter().all(below)
    }

    fn pods(&self, cluster: &Cluster, node: NodeIndex) -> u64 {
        let pods = u64::try_from(cluster.at(node).pods().len()).unwrap_or(u64::MAX);
        pods.saturating_sub(self.fixed.get(&node).copied().unwrap_or(0))
    }

    /// The pods of an underutilized node.
    pub fn value(&self, cluster: &Cluster, node: NodeIndex) -> u64 {
        if self.is_under(cluster, node, None) {
            self.pods(cluster, node)
        } else {
            0
        }
    }

    pub fn value_with(&self, cluster: &Cluster, node: NodeIndex, pod: &PodInfo) -> u64 {
        if self.is_under(cluster, node, Some(pod)) {
            self.pods(cluster, node) + 1
        } else {
            0
        }
    }

    /// Underutilized nodes with pods, those with the fewest first.
    pub fn underutilized(&self, cluster: &Cluster) -> Vec<(u64, NodeIndex)> {
        let nodes = self.nodes.iter().map(|node| (self.value(cluster, *node), *node));
        let mut under: Vec<_> = nodes.filter(|(pods, _)| *pods > 0).collect();
        under.sort_unstable();
        under
    }

    pub fn gate(&self, cluster: &Cluster) -> Gate {
        let nodes = self.nodes.iter();
        let underutilized = nodes.filter(|node| self.is_under(cluster, **node, None)).count();
        let needed = self.policy.number_of_nodes + 1;
        if underutilized >= needed && underutilized < self.nodes.len() {
            Gate::Open
        } else {
            Gate::Closed {
                underutilized,
                needed,
            }
        }
    }

    /// Whether the strategy moves pods with these requests.
    pub fn moves(&self, pod: &PodInfo) -> bool {
        let requests = |resource: &String| resource == PODS || pod.class.requests.resources.get(resource) > 0;
        !self.policy.only_thresholding_resources || self.policy.thresholds.keys().any(requests)
    }
}
