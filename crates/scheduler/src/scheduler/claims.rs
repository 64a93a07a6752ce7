//! An attempt for a pod with ResourceClaims: devices are allocated on the nodes that pass all other filters. That
//! costs more than the other plugins together and depends on the pod, not on its class, so nothing of it is cached.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::AllocationResult;
use knarr_api::k8s_openapi;

use super::{Decision, Scheduler};
use crate::cluster::NodeIndex;
use crate::diagnosis::{Diagnosis, FreedClaim, PostFilter};
use crate::dynamic_resources::extended::is_for_extended_resources;
use crate::evaluation::{ClassState, CycleState};
use crate::plugins::default_preemption::Candidate;
use crate::plugins::dynamic_resources::{self, ClaimError, FilterError, NAME, PodClaims};
use crate::plugins::{self, PluginError, PreFilterError, UnschedulableStatus};
use crate::pod_info::PodInfo;

/// After this many feasible nodes no further ones are tried (minFeasibleNodesToFind in kube-scheduler).
const FEASIBLE_ENOUGH: usize = 100;

/// The allocations on each feasible node, and which claims are allocated where the pod does not fit.
#[derive(Debug, Default)]
pub(super) struct FilteredClaims {
    found: BTreeMap<NodeIndex, Vec<AllocationResult>>,
    unavailable: BTreeSet<usize>,
}

impl Scheduler {
    /// The pod has to wait for its claims, whatever the node.
    pub(super) fn rejected_for_claims(&self, why: &ClaimError) -> Diagnosis {
        let mut diagnosis = self.rejected(&PreFilterError::Unschedulable(UnschedulableStatus::unresolvable(
            NAME,
            why.to_string(),
        )));
        let nodes = diagnosis.nodes;
        diagnosis.post_filter = PostFilter::NoCandidates {
            why: format!("0/{nodes} nodes are available: {nodes} Preemption is not helpful for scheduling."),
            has_claims: false,
        };
        diagnosis
    }

    /// Tries to allocate devices on the nodes that pass the other filters, starting at another one each time. The
    /// error ends the attempt.
    pub(super) fn filter_claims(
        &mut self,
        claims: &PodClaims,
        state: &mut ClassState,
        cycle: &mut CycleState,
    ) -> Result<FilteredClaims, PluginError> {
        let mut all = FilteredClaims::default();
        let mut indices = cycle.feasible.clone();
        let offset = self.rotation % indices.len().max(1);
        indices.rotate_left(offset);
        for index in indices {
            if all.found.len() >= FEASIBLE_ENOUGH {
                ClassState::pass_over(cycle, index);
                continue;
            }
            match claims.filter(self.cluster.devices(), self.cluster.at(index), self.now) {
                Ok(found) => {
                    all.found.insert(index, found);
                }
                Err(FilterError::Node(rejection, unavailable)) => {
                    all.unavailable.extend(unavailable);
                    state.reject(cycle, index, rejection);
                }
                Err(FilterError::Pod(error)) => return Err(error),
            }
        }
        cycle.collect();
        Ok(all)
    }

    pub(super) fn attempt_with_claims(
        &mut self,
        profile: usize,
        pod: &PodInfo,
        state: &mut ClassState,
        claims: &PodClaims,
    ) -> (Decision, Option<Candidate>) {
        let settings = self.profiles[profile].clone();
        let own = self.own_nomination(pod);
        let mut cycle = std::mem::take(&mut self.cycle);
        state.filter(&settings, &mut self.cluster, pod, own, &mut cycle);
        cycle.collect();
        let result = match self.filter_claims(claims, state, &mut cycle) {
            Err(error) => (
                Decision::Unschedulable(self.rejected(&PreFilterError::Error(error))),
                None,
            ),
            Ok(all) => match cycle.feasible.as_slice() {
                [] => self.post_filter_with_claims(profile, pod, state, &mut cycle, claims, &all),
                [only] => (self.decision_for(*only, 1), None),
                feasible => {
                    let feasible = feasible.len();
                    let own = own.filter(|own| all.found.contains_key(own));
                    let index = own.unwrap_or_else(|| {
                        state.score(&settings, &self.cluster, &mut cycle, None);
                        let found = cycle.feasible.iter().map(|index| all.found.get(index));
                        let scores = found.map(|found| found.map_or(0, |found| claims.score(found)));
                        let mut scores: Vec<i64> = scores.collect();
                        plugins::normalize(&mut scores, false);
                        let weight = settings.weight(dynamic_resources::NAME);
                        for (total, score) in cycle.totals.iter_mut().zip(scores) {
                            *total += score * weight;
                        }
                        self.choose(&cycle)
                    });
                    (self.decision_for(index, feasible), None)
                }
            },
        };
        self.cycle = cycle;
        result
    }

    fn decision_for(&self, index: NodeIndex, feasible: usize) -> Decision {
        Decision::Node {
            name: self.cluster.at(index).name.clone(),
            feasible,
        }
    }

    /// PostFilter: a claim whose allocation the pod cannot use is deallocated; else preemption runs as for every pod.
    fn post_filter_with_claims(
        &mut self,
        profile: usize,
        pod: &PodInfo,
        state: &mut ClassState,
        cycle: &mut CycleState,
        claims: &PodClaims,
        all: &FilteredClaims,
    ) -> (Decision, Option<Candidate>) {
        let settings = self.profiles[profile].clone();
        if let Some(claim) = claims.to_deallocate(&all.unavailable) {
            let mut diagnosis = self.diagnose(state, cycle);
            let object = claim.object();
            diagnosis.deallocate = Some((object.namespace().to_string(), object.name().to_string()));
            diagnosis.post_filter = PostFilter::ClaimFreed(if is_for_extended_resources(claim, pod.uid()) {
                FreedClaim::Deleted
            } else {
                FreedClaim::Deallocated
            });
            return (Decision::Unschedulable(diagnosis), None);
        }
        let (mut diagnosis, candidate) = self.post_filter(&settings, pod, state, cycle, Some(claims));
        diagnosis.post_filter = diagnosis.post_filter.with_claims();
        (Decision::Unschedulable(diagnosis), candidate)
    }

    /// Preemption does not help where the devices are not available.
    pub(super) fn filter_candidates_by_claims(
        &mut self,
        claims: &PodClaims,
        state: &mut ClassState,
        cycle: &mut CycleState,
    ) {
        let indices: Vec<NodeIndex> = self.cluster.iter().map(|(index, _)| index).collect();
        for index in indices {
            if !state.rejection(cycle, index).is_some_and(|r| r.resolvable) {
                continue;
            }
            let rejection = match claims.filter(self.cluster.devices(), self.cluster.at(index), self.now) {
                Ok(_) => continue,
                Err(FilterError::Node(rejection, _)) => rejection,
                Err(FilterError::Pod(error)) => UnschedulableStatus::unresolvable(NAME, error.to_string()),
            };
            state.reject(cycle, index, rejection);
        }
    }
}
