//! The nodes on which preemption makes the pods of a class fit, and what it would cost there, kept from pod to pod.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;

use crate::budgets::BudgetName;
use crate::cluster::{Cluster, NodeIndex};
use crate::plugins::UnschedulableStatus;
use crate::pod_info::PodInfo;

/// A node on which evicting pods makes the preemptor fit.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub index: NodeIndex,
    /// From the most to the least important; never empty.
    pub victims: Vec<Arc<PodInfo>>,
    /// How many evictions violate a PodDisruptionBudget.
    pub violations: usize,
    /// Some victims may be on other nodes ([`crate::plugins::cross_node_preemption`]).
    pub is_cross_node: bool,
    pub(crate) cost: Cost,
}

/// Less is better: violated budgets, the highest priority of a victim, the sum of priorities, the number of victims,
/// and the start time of the earliest victim of the highest priority (later is better).
pub(crate) type Cost = (usize, i32, i64, usize, Reverse<Timestamp>);

impl Candidate {
    pub(crate) fn new(index: NodeIndex, victims: Vec<Arc<PodInfo>>, violations: usize) -> Self {
        let highest = victims.iter().map(|v| v.priority()).max().unwrap_or(i32::MIN);
        // Each victim counts as more than nothing, whatever its priority.
        let sum = victims.iter().map(|v| i64::from(v.priority()) + (1 << 31)).sum();
        let start = |v: &&Arc<PodInfo>| v.start_time().unwrap_or(Timestamp::MAX);
        let first = victims.iter().filter(|v| v.priority() == highest);
        let first = first.min_by_key(start).as_ref().map_or(Timestamp::MAX, start);
        Candidate {
            index,
            cost: (violations, highest, sum, victims.len(), Reverse(first)),
            victims,
            violations,
            is_cross_node: false,
        }
    }
}

/// The result for each node, kept from pod to pod of a class: only nodes that changed are tried again, and the best
/// candidate is the first of a sorted set, so that the cost of a preemption does not grow with the number of nodes.
#[derive(Debug, Default)]
pub struct Candidates {
    seen: u64,
    budgets_version: u64,
    /// Of the pods that are nominated in topology domains.
    nominated_version: u64,
    pub(super) found: Vec<DryRunResult>,
    /// Nodes that changed since they were tried.
    pub(super) open: BTreeSet<NodeIndex>,
    /// The candidates among the results, the best first.
    pub(super) order: BTreeSet<(Cost, NodeIndex)>,
    /// The node that the last preemptor itself was nominated to: tried for that pod alone.
    pub(super) own: DryRunResult,
}

/// The result of a dry run on one node.
#[derive(Debug, Default)]
pub(super) enum DryRunResult {
    /// The node was not rejected because of pods on it, or was not tried yet.
    #[default]
    Nothing,
    Candidate(Candidate),
    Rejected(UnschedulableStatus),
    /// It would fit, but the evictions would violate these PodDisruptionBudgets, which are hard (SPEC B6).
    ViolatesBudgets(BTreeSet<BudgetName>),
}

impl DryRunResult {
    pub(super) fn candidate(&self) -> Option<&Candidate> {
        match self {
            DryRunResult::Candidate(candidate) => Some(candidate),
            _ => None,
        }
    }
}

impl Candidates {
    /// Drops what may have changed. `is_local`: the verdict on a node depends on that node alone.
    pub(super) fn catch_up(&mut self, cluster: &Cluster, is_local: bool) {
        let slots = cluster.slots();
        let changes = cluster.changes_since(self.seen);
        let is_same = self.budgets_version == cluster.budgets().version
            && self.nominated_version == cluster.nominated_in_domains().version();
        match changes {
            Some(changed) if is_local && is_same => {
                self.open.extend(changed);
                let had = NodeIndex::try_from(self.found.len()).unwrap_or(NodeIndex::MAX);
                self.open
                    .extend(had..NodeIndex::try_from(slots).unwrap_or(NodeIndex::MAX));
            }
            _ => {
                self.found.clear();
                self.order.clear();
                self.open = (0..NodeIndex::try_from(slots).unwrap_or(NodeIndex::MAX)).collect();
            }
        }
        self.found.resize_with(slots, DryRunResult::default);
        self.seen = cluster.now();
        self.budgets_version = cluster.budgets().version;
        self.nominated_version = cluster.nominated_in_domains().version();
    }

    pub(super) fn set(&mut self, index: NodeIndex, new: DryRunResult) {
        if let Some(found) = self.found.get_mut(index as usize) {
            if let DryRunResult::Candidate(was) = found {
                self.order.remove(&(was.cost, index));
            }
            if let DryRunResult::Candidate(is) = &new {
                self.order.insert((is.cost, index));
            }
            *found = new;
        }
    }

    pub(super) fn get(&self, index: NodeIndex) -> Option<&Candidate> {
        self.found.get(index as usize)?.candidate()
    }

    /// Whether hard budgets are the reason why nodes are no candidates (SPEC B6).
    pub(crate) fn has_budgets_in_the_way(&self) -> bool {
        let violates = |found: &DryRunResult| matches!(found, DryRunResult::ViolatesBudgets(_));
        self.found.iter().chain([&self.own]).any(violates)
    }

    /// The hard budgets because of which nodes are no candidates (SPEC B6).
    pub(crate) fn budgets_in_the_way(&self) -> BTreeSet<BudgetName> {
        let all = self.found.iter().chain([&self.own]);
        let names = all.filter_map(|found| match found {
            DryRunResult::ViolatesBudgets(names) => Some(names),
            _ => None,
        });
        names.flatten().cloned().collect()
    }

    /// One of the best, another one for another rotation; not the one at `but`.
    pub(super) fn one_of_the_best(&self, but: Option<NodeIndex>, rotation: usize) -> Option<&Candidate> {
        let others = || self.order.iter().filter(|(_, index)| Some(*index) != but);
        let (best, first) = others().next()?;
        let rotation = NodeIndex::try_from(rotation % self.found.len().max(1)).unwrap_or(0);
        let later = self.order.range((*best, rotation)..);
        let mut later = later.take_while(|(cost, _)| cost == best);
        let later = later.find(|(_, index)| Some(*index) != but);
        self.get(later.map_or(*first, |(_, index)| *index))
    }
}
