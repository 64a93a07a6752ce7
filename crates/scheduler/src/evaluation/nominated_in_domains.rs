//! What pods that are nominated by a preemption across nodes keep (SPEC B5): their place in the topology domains of
//! anti-affinity and spread constraints, and their ReadWriteOncePod claims, against pods of equal or lower priority on
//! any node. While there is no such pod, nothing here costs anything.
//!
//! Two directions: such a pod counts, as if it were on its node, in the rules of the incoming pod; and a node is closed
//! where the incoming pod would violate a spread constraint of the nominated pod, which does not count the incoming
//! pod's rules. (Anti-affinity is symmetric: its terms are in the first already.)

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ClassState;
use crate::cluster::{Cluster, ColumnId, NodeIndex, NominatedPod};
use crate::plugins::{PodChange, UnschedulableStatus, pod_topology_spread, volume_restrictions};
use crate::pod_info::{PodClass, PodInfo};
use crate::profile::Profile;
use crate::verdict::FEASIBLE;

/// A pod that is added to (1) or removed from (-1) a node, compared with the snapshot.
#[derive(Clone, Copy)]
pub(super) struct ChangedPod<'a> {
    pub node: NodeIndex,
    pub pod: &'a PodInfo,
    pub count: i64,
}

impl<'a> From<&'a NominatedPod> for ChangedPod<'a> {
    fn from(nominated: &'a NominatedPod) -> Self {
        ChangedPod {
            node: nominated.node,
            pod: &nominated.pod,
            count: 1,
        }
    }
}

impl ClassState {
    /// Computes how the nominated pods affect the class, for classes where that is not known yet.
    pub(super) fn add_interactions_in_domains(&mut self, cluster: &mut Cluster) {
        let nominated = cluster.nominated_in_domains().iter().map(|n| &n.pod.class);
        let unknown: Vec<Arc<PodClass>> = nominated
            .filter(|class| !self.interactions.contains_key(&class.id))
            .cloned()
            .collect();
        for other in unknown {
            self.interaction(cluster, &other);
        }
    }

    /// The nodes that are closed for the next pod, by index: [`ClassState::nodes_in_the_way`] of nominated pods. Empty:
    /// none.
    pub(crate) fn set_closed(&mut self, closed: Vec<bool>) {
        self.closed = closed;
    }

    /// Whether a pod of the other class can take something from this class, or this one from it.
    fn is_affected_by(&self, profile: &Profile, cluster: &Cluster, other: &PodClass) -> bool {
        let known = self.known(other.id);
        let by_affinity = || self.affinity.is_enabled() && known.affinity.filter_columns().next().is_some();
        let by_claim = || {
            profile.filters(volume_restrictions::NAME)
                && volume_restrictions::share_exclusive_claim(cluster.volumes(), &self.class, other)
        };
        self.spread.filters_for(&known.spread) || by_affinity() || by_claim()
    }

    /// Whether pods nominated to other nodes may change the verdict on a node.
    pub(crate) fn is_affected_by_nominated(&self, profile: &Profile, cluster: &Cluster) -> bool {
        let mut nominated = cluster.nominated_in_domains().iter();
        !self.closed.is_empty() || nominated.any(|n| self.is_affected_by(profile, cluster, &n.pod.class))
    }

    /// The nominated pods of equal or higher priority that count for the pod on all nodes.
    fn nominated_for<'c>(
        &self,
        profile: &Profile,
        cluster: &'c Cluster,
        pod: &PodInfo,
    ) -> Vec<&'c NominatedPod> {
        let nominated = cluster.nominated_in_domains().iter();
        let counts = |n: &&NominatedPod| {
            n.pod.priority() >= pod.priority()
                && n.pod.uid() != pod.uid()
                && self.is_affected_by(profile, cluster, &n.pod.class)
        };
        nominated.filter(counts).collect()
    }

    fn is_closed(&self, index: NodeIndex) -> bool {
        self.closed.get(index as usize).copied().unwrap_or(false)
    }

    /// The rules on several nodes and on claims, with these pods added or removed.
    fn filter_in_domains(
        &self,
        profile: &Profile,
        cluster: &Cluster,
        index: NodeIndex,
        changed: &[ChangedPod<'_>],
    ) -> Result<(), UnschedulableStatus> {
        if self.is_closed(index) {
            return Err(pod_topology_spread::too_skewed());
        }
        if profile.filters(volume_restrictions::NAME)
            && changed.iter().any(|c| {
                c.count > 0
                    && volume_restrictions::share_exclusive_claim(
                        cluster.volumes(),
                        &self.class,
                        &c.pod.class,
                    )
            })
        {
            return Err(volume_restrictions::in_use());
        }
        if self.spread.filters() {
            // Terminating pods are not in the counts.
            let live = changed.iter().filter(|c| !c.pod.is_terminating());
            let spread = live.map(|c| PodChange {
                node: c.node,
                interaction: &self.known(c.pod.class.id).spread,
                count: c.count,
            });
            let excess = self.spread.excess(cluster, index, spread)?;
            if excess.iter().any(|excess| *excess > 0) {
                return Err(pod_topology_spread::too_skewed());
            }
        }
        if self.affinity.is_enabled() {
            let affinity = changed.iter().map(|c| PodChange {
                node: c.node,
                interaction: &self.known(c.pod.class.id).affinity,
                count: c.count,
            });
            self.affinity
                .filter_with_changes_elsewhere(cluster, index, affinity)?;
        }
        Ok(())
    }

    /// Whether the pod fits the node next to what nominated pods keep, after these pods were removed (-1). `Ok` while there
    /// are none that affect it.
    pub(super) fn filter_with_nominated_in_domains<'a>(
        &self,
        profile: &Profile,
        cluster: &'a Cluster,
        pod: &PodInfo,
        index: NodeIndex,
        removed: impl Iterator<Item = ChangedPod<'a>>,
    ) -> Result<(), UnschedulableStatus> {
        let nominated = self.nominated_for(profile, cluster, pod);
        if nominated.is_empty() {
            return if self.is_closed(index) {
                Err(pod_topology_spread::too_skewed())
            } else {
                Ok(())
            };
        }
        let is_known = |uid: &str| nominated.iter().any(|n| n.pod.uid() == uid);
        let here = cluster.at(index).nominated.iter();
        let here = here
            .filter(|n| n.priority() >= pod.priority() && n.uid() != pod.uid() && !is_known(n.uid()))
            .map(|pod| ChangedPod {
                node: index,
                pod,
                count: 1,
            });
        let changed: Vec<ChangedPod<'_>> = removed
            .chain(here)
            .chain(nominated.iter().map(|n| ChangedPod::from(*n)))
            .collect();
        self.filter_in_domains(profile, cluster, index, &changed)
    }

    /// Rejects the feasible nodes where the pod would take what nominated pods keep.
    pub(super) fn filter_all_with_nominated_in_domains(
        &mut self,
        profile: &Profile,
        cluster: &Cluster,
        pod: &PodInfo,
        verdicts: &mut [u16],
    ) {
        let nominated = self.nominated_for(profile, cluster, pod);
        if nominated.is_empty() && self.closed.is_empty() {
            return;
        }
        let changed: Vec<ChangedPod<'_>> = nominated.iter().map(|n| ChangedPod::from(*n)).collect();
        let mut columns: Vec<ColumnId> = self
            .affinity
            .filter_columns()
            .chain(self.spread.hard_columns())
            .collect();
        for nominated in &nominated {
            columns.extend(self.known(nominated.pod.class.id).affinity.filter_columns());
        }
        columns.sort_unstable();
        columns.dedup();
        // Nodes that are equal in these columns have the same verdict.
        let mut known: BTreeMap<(bool, Vec<u32>), u16> = BTreeMap::new();
        for (index, verdict) in (0..).zip(verdicts.iter_mut()) {
            if *verdict != FEASIBLE {
                continue;
            }
            let values = columns.iter().map(|column| cluster.column(*column).at(index));
            let key = (self.is_closed(index), values.collect::<Vec<u32>>());
            *verdict = match known.get(&key) {
                Some(verdict) => *verdict,
                None => {
                    let new = match self.filter_in_domains(profile, cluster, index, &changed) {
                        Ok(()) => FEASIBLE,
                        Err(rejection) => self.statuses.number(rejection),
                    };
                    known.insert(key, new);
                    new
                }
            };
        }
    }

    /// By node index, whether one more pod of the other class there would violate a DoNotSchedule constraint of a pod of this
    /// class on the node `place`, or violate it more than now. Empty: there is no such node.
    pub(crate) fn nodes_in_the_way(
        &mut self,
        cluster: &mut Cluster,
        place: NodeIndex,
        other: &PodClass,
    ) -> Vec<bool> {
        if !self.spread.filters() {
            return Vec::new();
        }
        if !self.interactions.contains_key(&other.id) {
            self.interaction(cluster, other);
        }
        let interaction = &self.known(other.id).spread;
        if !self.spread.filters_for(interaction) {
            return Vec::new();
        }
        let cluster = &*cluster;
        let none: [PodChange<'_, pod_topology_spread::Interaction>; 0] = [];
        let unchanged = none.iter().map(|c| PodChange {
            node: c.node,
            interaction: c.interaction,
            count: c.count,
        });
        // Without the topology key the nominated pod has no place there.
        let Ok(now) = self.spread.excess(cluster, place, unchanged) else {
            return Vec::new();
        };
        let mut known: BTreeMap<Vec<Option<u32>>, bool> = BTreeMap::new();
        let mut closed = vec![false; cluster.slots()];
        for (index, closed) in (0..).zip(closed.iter_mut()) {
            *closed = *known
                .entry(self.spread.counted_domains(index))
                .or_insert_with(|| {
                    let one = [index].into_iter().map(|node| PodChange {
                        node,
                        interaction,
                        count: 1,
                    });
                    let with = self.spread.excess(cluster, place, one).unwrap_or_default();
                    with.iter().zip(&now).any(|(with, now)| with > now)
                });
        }
        if closed.contains(&true) {
            closed
        } else {
            Vec::new()
        }
    }
}
