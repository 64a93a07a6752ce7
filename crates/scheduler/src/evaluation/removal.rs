//! The filter plugins on one node after pods were removed, on that node and on others, and which pods the rules of the
//! class name: for cross-node preemption (SPEC B5).

use std::sync::Arc;

use super::nominated_in_domains::ChangedPod;
use super::{ClassState, Interaction};
use crate::cluster::{Cluster, ColumnId, NodeIndex};
use crate::plugins::{PodChange, UnschedulableStatus};
use crate::pod_info::{ClassId, PodInfo};
use crate::profile::Profile;
use crate::storage::Storage;

/// A pod that is removed from its node in a simulation.
#[derive(Clone, Debug)]
pub struct RemovedPod {
    pub node: NodeIndex,
    pub pod: Arc<PodInfo>,
}

/// A node with pods whose removal is simulated, there and elsewhere.
#[derive(Clone, Copy)]
pub struct Removal<'a> {
    pub profile: &'a Profile,
    pub cluster: &'a Cluster,
    /// The pod that would be scheduled.
    pub pod: &'a PodInfo,
    pub index: NodeIndex,
    pub removed: &'a [RemovedPod],
}

impl ClassState {
    /// Runs all filters, with the nominated pods of equal or higher priority and without them, as
    /// [`ClassState::filter_with_nominated_pods`] does. What is removed on other nodes counts there.
    pub fn filter_after_removal(&self, removal: Removal<'_>) -> Result<(), UnschedulableStatus> {
        let Removal { cluster, index, .. } = removal;
        let here = cluster.at(index);
        let nominated: Vec<&Arc<PodInfo>> = here
            .nominated
            .iter()
            .filter(|n| n.priority() >= removal.pod.priority() && n.uid() != removal.pod.uid())
            .collect();
        if !nominated.is_empty() {
            self.filter_with(removal, &nominated)?;
        }
        self.filter_with(removal, &[])?;
        let removed = removal.removed.iter().map(|removed| ChangedPod {
            node: removed.node,
            pod: &removed.pod,
            count: -1,
        });
        self.filter_with_nominated_in_domains(removal.profile, cluster, removal.pod, index, removed)
    }

    /// `nominated`: pods that are added to the node.
    fn filter_with(
        &self,
        removal: Removal<'_>,
        nominated: &[&Arc<PodInfo>],
    ) -> Result<(), UnschedulableStatus> {
        let Removal {
            profile,
            cluster,
            index,
            removed,
            ..
        } = removal;
        let there = cluster.at(index);
        let changes: Vec<(&PodInfo, i64)> = removed
            .iter()
            .map(|r| (&*r.pod, -1))
            .chain(nominated.iter().map(|n| (&***n, 1)))
            .collect();
        let changed = || {
            let mut node = there.clone();
            for removed in removed.iter().filter(|r| r.node == index) {
                node.remove_pod(removed.pod.uid());
            }
            for pod in nominated {
                node.add_pod(pod);
            }
            node
        };
        let verdict = if nominated.is_empty() && removed.iter().all(|r| r.node != index) {
            self.filter_node(profile, cluster, there, &changes)
        } else {
            self.filter_node(profile, cluster, &changed(), &changes)
        };
        verdict.unwrap_or_else(|| Err(UnschedulableStatus::unresolvable("", "node not found")))?;
        if self.excess(removal, nominated)?.iter().any(|excess| *excess > 0) {
            return Err(crate::plugins::pod_topology_spread::too_skewed());
        }
        if self.affinity.filters() {
            let changes = self.changes(removal, nominated, false);
            let changes = changes.iter().map(|c| PodChange {
                node: c.node,
                interaction: &c.interaction.affinity,
                count: c.count,
            });
            self.affinity
                .filter_with_changes_elsewhere(cluster, index, changes)?;
        }
        Ok(())
    }

    /// `live`: without terminating pods, which PodTopologySpread does not count.
    fn changes<'a>(
        &'a self,
        removal: Removal<'a>,
        nominated: &[&Arc<PodInfo>],
        live: bool,
    ) -> Vec<PodChange<'a, Interaction>> {
        let removed = removal
            .removed
            .iter()
            .filter(|r| !(live && r.pod.is_terminating()));
        let removed = removed.map(|r| PodChange {
            node: r.node,
            interaction: self.known(r.pod.class.id),
            count: -1,
        });
        let added = nominated.iter().map(|n| PodChange {
            node: removal.index,
            interaction: self.known(n.class.id),
            count: 1,
        });
        removed.chain(added).collect()
    }

    /// How many pods too many the node's domain has, for each DoNotSchedule constraint of the class.
    fn excess(
        &self,
        removal: Removal<'_>,
        nominated: &[&Arc<PodInfo>],
    ) -> Result<Vec<i64>, UnschedulableStatus> {
        if !self.spread.filters() {
            return Ok(Vec::new());
        }
        let changes = self.changes(removal, nominated, true);
        let changes = changes.iter().map(|c| PodChange {
            node: c.node,
            interaction: &c.interaction.spread,
            count: c.count,
        });
        self.spread.excess(removal.cluster, removal.index, changes)
    }

    /// The first DoNotSchedule constraint that the class violates, by number, and by how many pods.
    pub fn violated_spread(&self, removal: Removal<'_>) -> Result<Option<(usize, i64)>, UnschedulableStatus> {
        let excess = self.excess(removal, &[])?;
        Ok(excess.into_iter().enumerate().find(|(_, excess)| *excess > 0))
    }

    /// The columns by whose values the rules of the class name pods: nodes that are equal in them are equal to the rules.
    pub fn rule_columns(&self) -> Vec<ColumnId> {
        let excluding = self
            .affinity
            .excluding_columns()
            .filter(|_| self.affinity.filters());
        let mut columns: Vec<ColumnId> = excluding.chain(self.spread.hard_columns()).collect();
        columns.sort_unstable();
        columns.dedup();
        columns
    }

    /// Whether a rule of the class names pods on the node.
    pub fn names_pods_on(&self, index: NodeIndex) -> bool {
        (self.affinity.filters() && self.affinity.excludes_by_pods_on(index))
            || self.spread.counted_on(index).next().is_some()
    }

    /// The topology keys in whose domain a pod of the other class excludes this class.
    pub fn excluded_by(&self, other: ClassId) -> Vec<ColumnId> {
        if !self.affinity.filters() {
            return Vec::new();
        }
        let mut columns: Vec<ColumnId> = self.known(other).affinity.excludes().collect();
        columns.sort_unstable();
        columns.dedup();
        columns
    }

    /// The DoNotSchedule constraints that count a pod of the other class on the node, by number, with the node's domain.
    pub fn counted_for(&self, other: ClassId, index: NodeIndex) -> impl Iterator<Item = (usize, u32)> {
        let spread = &self.known(other).spread;
        self.spread
            .counted_on(index)
            .filter(move |(i, _)| spread.counts_for(*i))
    }

    /// The domain of a node for a DoNotSchedule constraint.
    pub fn spread_domain(&self, cluster: &Cluster, constraint: usize, index: NodeIndex) -> Option<u32> {
        let column = self.spread.hard_columns().nth(constraint)?;
        Some(cluster.column(column).at(index))
    }

    /// The claims of the class that only one pod may use, if one of them is in use.
    pub fn exclusive_claims(&self) -> &[String] {
        let storage = self.storage.as_ref();
        storage.map(Storage::exclusive_claims).unwrap_or_default()
    }
}
