//! Which pods of a ReplicaSet or ReplicationController are deleted when it is scaled down: for its controller, and for `knarr whatif`.
//!
//! The order is v1.36's ([`deletion_order`]), unless the workload or the cluster has the policy [`Policy::Spread`] (SPEC B3). Then,
//! of the pods with the same [`deletion_order::Precedence`], the next one is always of the domains that have the most
//! matching pods by then ([`constraint_counts`]); where that is equal, it is the next in v1.36's order.
//!
//! For one constraint this gives the smallest skew that any choice of as many pods gives: pods are only taken from a highest count,
//! so no other choice has a lower maximum or a higher minimum. Empty domains need no rule: they have no pod to delete, and they
//! change the minimum for all other domains alike.

mod constraint_counts;
pub mod deletion_order;
mod policy;

use std::collections::{BTreeMap, VecDeque};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use crate::Shared;
use deletion_order::Precedence;

use constraint_counts::{ConstraintCounts, Domains, has_constraints};
pub use constraint_counts::{MAX_CONSTRAINTS, Topology};
pub use policy::{Policy, SCALE_DOWN, UnknownPolicy};

/// Pods created or deleted in one sync of a ReplicaSet, so that others do not wait for long (upstream: BurstReplicas).
pub const BURST_REPLICAS: usize = 500;

/// A set that has too many pods.
#[derive(Debug)]
pub struct ScaleDown<'a> {
    /// All active pods of the set.
    pub pods: &'a [Shared<Pod>],
    /// How many of them to delete.
    pub number: usize,
    /// The active pods on each node of this set and of the sets with the same controller.
    pub related_by_node: BTreeMap<String, usize>,
    pub now: Timestamp,
}

impl<'a> ScaleDown<'a> {
    /// Whether the policy Spread could choose other pods than v1.36's order.
    pub fn depends_on_spread(&self) -> bool {
        self.number < self.pods.len() && self.pods.iter().any(|pod| has_constraints(pod))
    }

    /// The pods to delete. `topology` is given if the policy is Spread.
    pub fn choose(&self, topology: Option<&Topology>) -> Vec<&'a Shared<Pod>> {
        let mut ranked: Vec<&'a Shared<Pod>> = self.pods.iter().collect();
        deletion_order::sort(&mut ranked, &self.related_by_node, self.now);
        match topology {
            Some(topology) if self.depends_on_spread() => {
                let counts = ConstraintCounts::new(self.pods, topology);
                self.fullest_first(&ranked, counts)
            }
            Some(_) | None => {
                ranked.truncate(self.number);
                ranked
            }
        }
    }

    /// Takes as many pods as are to be deleted, each from the fullest domains that the ones before it left. `ranked` is in v1.36's order.
    ///
    /// Pods of the same domains differ in v1.36's order only, so that each step compares their first ones: the costs are the number of
    /// pods to delete, times the different domains.
    fn fullest_first(
        &self,
        ranked: &[&'a Shared<Pod>],
        mut counts: ConstraintCounts<'_>,
    ) -> Vec<&'a Shared<Pod>> {
        let mut chosen = Vec::with_capacity(self.number);
        let precedence = |pod: &Pod| Precedence::of(pod, self.now);
        for equal in ranked.chunk_by(|a, b| precedence(a) == precedence(b)) {
            let missing = self.number - chosen.len();
            if missing == 0 {
                break;
            }
            if missing >= equal.len() {
                for pod in equal {
                    counts.remove(&counts.domains(pod));
                }
                chosen.extend(equal);
                continue;
            }
            let mut by_domains: BTreeMap<Domains, VecDeque<usize>> = BTreeMap::new();
            for (rank, pod) in equal.iter().enumerate() {
                by_domains.entry(counts.domains(pod)).or_default().push_back(rank);
            }
            for _ in 0..missing {
                let firsts = by_domains
                    .iter()
                    .filter_map(|(domains, ranks)| Some((domains, *ranks.front()?)));
                let fullest =
                    firsts.max_by_key(|(domains, rank)| (counts.surplus(domains), std::cmp::Reverse(*rank)));
                let Some((domains, rank)) = fullest.map(|(domains, rank)| (domains.clone(), rank)) else {
                    break;
                };
                if let Some(ranks) = by_domains.get_mut(&domains) {
                    ranks.pop_front();
                }
                counts.remove(&domains);
                chosen.extend(equal.get(rank));
            }
            break;
        }
        chosen
    }
}

#[cfg(test)]
mod tests;
