//! An attempt for a pod with ResourceClaims: the nodes that all other rules leave are asked for devices, which costs more
//! than the other rules together and depends on the pod, not on its class. So nothing of it is kept.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::AllocationResult;
use knarr_api::k8s_openapi;

use super::{Decision, Scheduler};
use crate::cluster::Place;
use crate::diagnosis::Diagnosis;
use crate::dynamic_resources::extended::is_for_extended_resources;
use crate::evaluation::{ClassState, Rejection, Scratch};
use crate::plugins::default_preemption::Candidate;
use crate::plugins::dynamic_resources::{self, Against, NAME, PodClaims};
use crate::plugins::{self, Refusal};
use crate::pod_info::PodInfo;

/// Of so many nodes that will do one is chosen; others are not asked (kube-scheduler's minFeasibleNodesToFind).
const FEASIBLE_ENOUGH: usize = 100;

/// What the claims get on each node that will do, and which of them are allocated where the pod cannot run.
#[derive(Debug, Default)]
pub(super) struct FilteredClaims {
    found: BTreeMap<Place, Vec<AllocationResult>>,
    unavailable: BTreeSet<usize>,
}

impl Scheduler {
    /// The pod has to wait for its claims, whatever the node.
    pub(super) fn rejected_for_claims(&self, why: String) -> Diagnosis {
        let mut diagnosis = self.rejected(&Rejection::Refused(Refusal::of_pod(NAME, why)));
        let nodes = diagnosis.nodes;
        diagnosis.preemption = format!(
            "no new claims to deallocate, preemption: 0/{nodes} nodes are available: \
             {nodes} Preemption is not helpful for scheduling."
        );
        diagnosis
    }

    /// Asks the nodes for devices that will do by the other rules, beginning with another one each time. The error: the
    /// pod cannot be judged.
    pub(super) fn filter_claims(
        &mut self,
        claims: &PodClaims,
        state: &mut ClassState,
        scratch: &mut Scratch,
    ) -> Result<FilteredClaims, String> {
        let mut all = FilteredClaims::default();
        let mut places = scratch.feasible.clone();
        let turn = self.rotation % places.len().max(1);
        places.rotate_left(turn);
        for place in places {
            if all.found.len() >= FEASIBLE_ENOUGH {
                ClassState::pass_over(scratch, place);
                continue;
            }
            match claims.filter(self.cluster.devices(), self.cluster.at(place), self.now) {
                Ok(found) => {
                    all.found.insert(place, found);
                }
                Err(Against::Node(refusal, unavailable)) => {
                    all.unavailable.extend(unavailable);
                    state.refuse(scratch, place, refusal);
                }
                Err(Against::Pod(error)) => return Err(error),
            }
        }
        scratch.collect();
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
        let mut scratch = std::mem::take(&mut self.scratch);
        state.filter(&settings, &mut self.cluster, pod, own, &mut scratch);
        scratch.collect();
        let result = match self.filter_claims(claims, state, &mut scratch) {
            Err(error) => (Decision::Nowhere(self.rejected(&Rejection::Error(error))), None),
            Ok(all) => match scratch.feasible.as_slice() {
                [] => self.without_node(profile, pod, state, &mut scratch, claims, &all),
                [only] => (self.goes_to(*only, 1), None),
                feasible => {
                    let feasible = feasible.len();
                    let own = own.filter(|own| all.found.contains_key(own));
                    let place = own.unwrap_or_else(|| {
                        state.score(&settings, &self.cluster, &mut scratch, None);
                        let found = scratch.feasible.iter().map(|place| all.found.get(place));
                        let scores = found.map(|found| found.map_or(0, |found| claims.score(found)));
                        let mut scores: Vec<i64> = scores.collect();
                        plugins::normalize(&mut scores, false);
                        let weight = settings.weight(dynamic_resources::NAME);
                        for (total, score) in scratch.totals.iter_mut().zip(scores) {
                            *total += score * weight;
                        }
                        self.choose(&scratch)
                    });
                    (self.goes_to(place, feasible), None)
                }
            },
        };
        self.scratch = scratch;
        result
    }

    fn goes_to(&self, place: Place, feasible: usize) -> Decision {
        Decision::Node {
            name: self.cluster.at(place).name.clone(),
            feasible,
        }
    }

    /// PostFilter: a claim that is allocated in vain is deallocated; else room is made as for every pod.
    fn without_node(
        &mut self,
        profile: usize,
        pod: &PodInfo,
        state: &mut ClassState,
        scratch: &mut Scratch,
        claims: &PodClaims,
        all: &FilteredClaims,
    ) -> (Decision, Option<Candidate>) {
        let settings = self.profiles[profile].clone();
        if let Some(claim) = claims.to_deallocate(&all.unavailable) {
            let mut diagnosis = self.diagnose(state, scratch);
            let object = claim.object();
            diagnosis.deallocate = Some((object.namespace().to_string(), object.name().to_string()));
            let what = if is_for_extended_resources(claim, pod.uid()) {
                "deletion"
            } else {
                "deallocation"
            };
            diagnosis.preemption = format!("{what} of ResourceClaim completed");
            return (Decision::Nowhere(diagnosis), None);
        }
        let (mut diagnosis, candidate) = self.make_room(&settings, pod, state, scratch, Some(claims));
        let rest = diagnosis.preemption.strip_prefix("no new claims to deallocate");
        if let Some(rest) = rest {
            diagnosis.preemption = format!("still not schedulable{rest}");
        }
        (Decision::Nowhere(diagnosis), candidate)
    }

    /// Room made by pods that go does not help where the devices cannot be had.
    pub(super) fn rule_out_for_claims(
        &mut self,
        claims: &PodClaims,
        state: &mut ClassState,
        scratch: &mut Scratch,
    ) {
        let places: Vec<Place> = self.cluster.iter().map(|(place, _)| place).collect();
        for place in places {
            if !state.refusal(scratch, place).is_some_and(|r| r.pods_in_the_way) {
                continue;
            }
            let refusal = match claims.filter(self.cluster.devices(), self.cluster.at(place), self.now) {
                Ok(_) => continue,
                Err(Against::Node(refusal, _)) => refusal,
                Err(Against::Pod(error)) => Refusal::of_pod(NAME, error),
            };
            state.refuse(scratch, place, refusal);
        }
    }
}
