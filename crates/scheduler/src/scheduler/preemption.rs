//! PostFilter: preemption on one node, then, where it is requested, across nodes (SPEC P4, B5); and what hard budgets
//! need in addition (SPEC B6): evictions that are pending, and pods that wait for a budget.

use std::collections::BTreeSet;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::Scheduler;
use crate::budgets::BudgetName;
use crate::cluster::NodeIndex;
use crate::diagnosis::Diagnosis;
use crate::evaluation::{ClassState, CycleState};
use crate::event;
use crate::plugins::cross_node_preemption::{self, NoCandidate};
use crate::plugins::default_preemption::{self, Candidate, Outcome, Selection};
use crate::plugins::dynamic_resources::PodClaims;
use crate::pod_info::PodInfo;
use crate::profile::Profile;

/// The shortest time between two cross-node preemptions of the cluster: each disturbs several nodes, and the controllers
/// of its victims get the time to replace them before the next one.
pub const CROSS_NODE_INTERVAL: SignedDuration = SignedDuration::from_secs(10);

/// The result of preemption across nodes.
pub(super) struct AcrossNodes {
    pub outcome: Outcome,
    /// The hard budgets that exclude what was closest to a candidate.
    pub budgets_in_the_way: BTreeSet<BudgetName>,
}

impl Scheduler {
    pub(super) fn post_filter(
        &mut self,
        profile: &Profile,
        pod: &PodInfo,
        state: &mut ClassState,
        cycle: &mut CycleState,
        claims: Option<&PodClaims>,
    ) -> (Diagnosis, Option<Candidate>) {
        let mut diagnosis = self.diagnose(state, cycle);
        if let Some(claims) = claims {
            self.filter_candidates_by_claims(claims, state, cycle);
        }
        if !profile.preemption {
            return (diagnosis, None);
        }
        let own = self.own_nomination(pod);
        let selection = Selection::OneOfTheBest(self.rotation);
        let mut outcome =
            default_preemption::preempt(profile, &self.cluster, state, pod, own, cycle, selection);
        if matches!(outcome, Outcome::NoCandidates(_)) {
            diagnosis.budgets_in_the_way = state.candidates.has_budgets_in_the_way();
            if claims.is_none() && cross_node_preemption::is_requested(profile, pod) {
                let across = self.preempt_across_nodes(profile, pod, state, cycle, own, outcome);
                diagnosis.budgets_in_the_way |= !across.budgets_in_the_way.is_empty();
                outcome = across.outcome;
                let is_too_early = self.cross_node_until.is_some_and(|until| self.now < until);
                if is_too_early && matches!(outcome, Outcome::Candidates(_)) {
                    diagnosis.is_rate_limited = true;
                    outcome = Outcome::NoCandidates(format!(
                        "cross-node preemption waits: there is at most one in {} s.",
                        CROSS_NODE_INTERVAL.as_secs()
                    ));
                }
            }
        }
        let candidate = outcome.best().first().map(|c| (*c).clone());
        if candidate.is_some() {
            self.rotation = self.rotation.wrapping_add(1);
        }
        diagnosis.post_filter = outcome.post_filter();
        (diagnosis, candidate)
    }

    /// Tries cross-node preemption after preemption on one node had the outcome `found`.
    pub(super) fn preempt_across_nodes(
        &self,
        profile: &Profile,
        pod: &PodInfo,
        state: &ClassState,
        cycle: &CycleState,
        own: Option<NodeIndex>,
        found: Outcome,
    ) -> AcrossNodes {
        let attempt = cross_node_preemption::Attempt {
            profile,
            cluster: &self.cluster,
            state,
            cycle,
            pod,
            own,
        };
        let result = cross_node_preemption::preempt(attempt);
        let outcome = match (&result, found) {
            (Ok(candidate), _) => Outcome::Candidates(vec![candidate.clone()]),
            (Err(NoCandidate::Terminating), _) => {
                Outcome::NotEligible("not eligible due to terminating victims on other nodes.")
            }
            (Err(why), Outcome::NoCandidates(found)) => {
                Outcome::NoCandidates(format!("{found} Across nodes: {why}."))
            }
            (Err(_), found) => found,
        };
        let budgets_in_the_way = match result {
            Err(NoCandidate::ViolatesBudgets(names)) => names,
            _ => BTreeSet::new(),
        };
        AcrossNodes {
            outcome,
            budgets_in_the_way,
        }
    }

    /// A candidate was chosen: its victims will be evicted.
    pub(super) fn preemption_chosen(
        &mut self,
        profile: &Profile,
        pod: &PodInfo,
        candidate: &Candidate,
        now: Timestamp,
    ) {
        if default_preemption::has_hard_budgets(profile, pod) {
            self.cluster.budgets_mut().evicting(&candidate.victims, now);
        }
        if candidate.is_cross_node {
            self.cross_node_until = now.checked_add(CROSS_NODE_INTERVAL).ok();
        }
    }

    /// A PodDisruptionBudget was added, updated or deleted (`None`). Whether pods were requeued because of it.
    pub fn budget_changed(
        &mut self,
        namespace: &str,
        name: &str,
        budget: Option<&PodDisruptionBudget>,
        now: Timestamp,
    ) -> bool {
        let requeues = self.cluster.set_budget(namespace, name, budget) && !self.held_by_budgets.is_empty();
        if requeues {
            self.requeue_pods_held_by_budgets(now);
        }
        requeues
    }

    /// Evictions that have been pending for too long count no more.
    pub(super) fn drop_expired_evictions(&mut self, now: Timestamp) {
        if self.cluster.budgets_mut().drop_expired(now) {
            self.requeue_pods_held_by_budgets(now);
        }
    }

    fn requeue_pods_held_by_budgets(&mut self, now: Timestamp) {
        for key in std::mem::take(&mut self.held_by_budgets) {
            self.queue.requeue_pod(&key, event::BUDGET_UPDATE, now);
        }
    }
}
