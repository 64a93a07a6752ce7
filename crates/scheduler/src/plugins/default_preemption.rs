//! DefaultPreemption (SPEC P4, P5): on which node would a pod fit if pods of lower priority were evicted, and which
//! of these nodes loses least?
//!
//! All nodes are considered. What was found for a node is kept until the node changes, unless the filters in use
//! depend on other nodes, too. The results are the same as kube-scheduler's, cached or not.
//!
//! PodDisruptionBudgets are best effort, as in kube-scheduler. Where they are hard (SPEC B6: by the profile, or by the
//! PriorityClass of the preemptor) a node whose victims would violate one is no candidate.

pub mod candidates;

use std::sync::Arc;

use knarr_api::kinds::pod::{DISRUPTION_TARGET, condition};

use super::UnschedulableStatus;
use crate::cluster::{Cluster, NodeIndex};
use crate::diagnosis::PostFilter;
use crate::evaluation::{ClassState, CycleState};
use crate::pod_info::PodInfo;
use crate::profile::{PreemptionBudgets, Profile};
pub use candidates::Candidate;
use candidates::{Candidates, DryRunResult};

pub const NAME: &str = "DefaultPreemption";

/// The reason of the victims' condition DisruptionTarget.
pub const REASON: &str = "PreemptionByScheduler";

/// The reason why a node is no candidate where budgets are hard. It does not name them: the user of the pod may not be
/// allowed to read what is in other namespaces.
const VIOLATES_BUDGETS: &str = "node(s) where preemption would violate a PodDisruptionBudget";

/// Whether preemption for the pod may violate no PodDisruptionBudget.
pub fn has_hard_budgets(profile: &Profile, pod: &PodInfo) -> bool {
    profile.preemption_budgets == PreemptionBudgets::Hard || pod.class.hard_budgets
}

/// Which candidates to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    All,
    /// One of the best, chosen by this rotation.
    OneOfTheBest(usize),
}

/// The result of preemption.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The candidate nodes.
    Candidates(Vec<Candidate>),
    /// PreFilter rejected the pod, and preemption does not find its own state.
    NoState,
    /// The pod may not preempt others.
    NotEligible(&'static str),
    /// No candidate, with the message why.
    NoCandidates(String),
}

impl Outcome {
    /// As the diagnosis reports it.
    pub fn post_filter(&self) -> PostFilter {
        match self {
            Outcome::Candidates(_) => PostFilter::Nothing,
            Outcome::NoState => PostFilter::NoState,
            Outcome::NotEligible(why) => PostFilter::NotEligible {
                why,
                has_claims: false,
            },
            Outcome::NoCandidates(why) => PostFilter::NoCandidates {
                why: why.clone(),
                has_claims: false,
            },
        }
    }

    /// The best candidates, all equally good.
    pub fn best(&self) -> Vec<&Candidate> {
        let Outcome::Candidates(all) = self else {
            return Vec::new();
        };
        let best = all.iter().map(|c| c.cost).min();
        all.iter().filter(|c| Some(c.cost) == best).collect()
    }
}

/// Whether the pod may preempt others at all (PodEligibleToPreemptOthers); else why not.
pub fn pod_eligible_to_preempt_others(
    cluster: &Cluster,
    state: &ClassState,
    pod: &PodInfo,
    own: Option<NodeIndex>,
    cycle: &CycleState,
) -> Result<(), &'static str> {
    if !pod.class.may_preempt() {
        return Err("not eligible due to preemptionPolicy=Never.");
    }
    if let Some(index) = own {
        let rejection = state.rejection(cycle, index);
        let hopeless = rejection.is_none_or(|r| !r.resolvable);
        let terminating =
            |p: &Arc<PodInfo>| p.priority() < pod.priority() && is_terminating_for_preemption(p);
        if !hopeless && cluster.at(index).pods().iter().any(terminating) {
            return Err("not eligible due to a terminating pod on the nominated node.");
        }
    }
    Ok(())
}

pub(crate) fn is_terminating_for_preemption(pod: &PodInfo) -> bool {
    pod.is_terminating()
        && condition(&pod.pod, DISRUPTION_TARGET)
            .is_some_and(|c| c.status == "True" && c.reason.as_deref() == Some(REASON))
}

/// Tries all nodes that were rejected with a status that preemption may resolve. `own` is the node that the pod
/// itself is nominated to.
pub fn preempt(
    profile: &Profile,
    cluster: &Cluster,
    state: &mut ClassState,
    pod: &PodInfo,
    own: Option<NodeIndex>,
    cycle: &CycleState,
    selection: Selection,
) -> Outcome {
    if let Err(why) = pod_eligible_to_preempt_others(cluster, state, pod, own, cycle) {
        return Outcome::NotEligible(why);
    }
    let mut kept = std::mem::take(&mut state.candidates);
    let is_local = state.is_local() && !state.is_affected_by_nominated(profile, cluster);
    kept.catch_up(cluster, is_local);
    let is_resolvable = |index| state.rejection(cycle, index).is_some_and(|r| r.resolvable);
    for index in std::mem::take(&mut kept.open) {
        let found = if own == Some(index) {
            // The pod's own nomination does not count for the pod, but for the others of its class.
            kept.open.insert(index);
            DryRunResult::Nothing
        } else if is_resolvable(index) {
            dry_run(profile, cluster, state, pod, index)
        } else {
            DryRunResult::Nothing
        };
        kept.set(index, found);
    }
    let tried = own.filter(|index| is_resolvable(*index));
    kept.own = tried.map_or(DryRunResult::Nothing, |index| {
        dry_run(profile, cluster, state, pod, index)
    });
    let own_candidate = kept.own.candidate();
    let candidates: Vec<Candidate> = match selection {
        Selection::OneOfTheBest(rotation) => {
            let other = kept.one_of_the_best(own, rotation);
            let best = [own_candidate, other]
                .into_iter()
                .flatten()
                .min_by_key(|c| c.cost);
            best.cloned().into_iter().collect()
        }
        Selection::All => {
            let others = kept.order.iter().filter(|(_, index)| own != Some(*index));
            let others = others.filter_map(|(_, index)| kept.get(*index));
            let mut all: Vec<Candidate> = own_candidate.into_iter().chain(others).cloned().collect();
            all.sort_by_key(|c| c.index);
            all
        }
    };
    let outcome = if candidates.is_empty() {
        Outcome::NoCandidates(no_candidates_message(cluster, &kept, own))
    } else {
        Outcome::Candidates(candidates)
    };
    state.candidates = kept;
    outcome
}

/// The message when there are no candidates.
fn no_candidates_message(cluster: &Cluster, kept: &Candidates, own: Option<NodeIndex>) -> String {
    // There are a few different statuses, each of many nodes.
    let mut counts: Vec<(&UnschedulableStatus, usize)> = Vec::new();
    let violates_budgets = UnschedulableStatus::unschedulable(NAME, VIOLATES_BUDGETS);
    let others = (0..).zip(&kept.found).filter(|(index, _)| own != Some(*index));
    let tried = others.map(|(_, found)| found).chain([&kept.own]);
    let rejections = tried.filter_map(|found| match found {
        DryRunResult::Rejected(rejection) => Some(rejection),
        DryRunResult::ViolatesBudgets(_) => Some(&violates_budgets),
        DryRunResult::Nothing | DryRunResult::Candidate(_) => None,
    });
    for rejection in rejections {
        match counts.iter_mut().find(|(known, _)| *known == rejection) {
            Some((_, count)) => *count += 1,
            None => counts.push((rejection, 1)),
        }
    }
    let mut reasons = crate::diagnosis::Reasons::default();
    let mut tried = 0;
    for (rejection, nodes) in counts {
        reasons.add(&rejection.reasons, nodes);
        tried += nodes;
    }
    let untried = cluster.len().saturating_sub(tried);
    reasons.add(&["Preemption is not helpful for scheduling".into()], untried);
    reasons.message(cluster.len())
}

/// The pods that would have to be evicted from one node (dryRunPreemption, selectVictimsOnNode).
fn dry_run(
    profile: &Profile,
    cluster: &Cluster,
    state: &ClassState,
    pod: &PodInfo,
    index: NodeIndex,
) -> DryRunResult {
    let node = cluster.at(index);
    let lower = node.pods().iter().filter(|p| p.priority() < pod.priority());
    let mut lower: Vec<&Arc<PodInfo>> = lower.collect();
    if lower.is_empty() {
        return DryRunResult::Rejected(UnschedulableStatus::unresolvable(
            NAME,
            "No preemption victims found for incoming pod",
        ));
    }
    let mut simulated = node.clone();
    for pod in &lower {
        simulated.remove_pod(pod.uid());
    }
    let fits = |node: &_, removed: &[&Arc<PodInfo>]| {
        let removed: Vec<(&PodInfo, i64)> = removed.iter().map(|p| (&***p, -1)).collect();
        state.filter_with_nominated_pods(profile, cluster, pod, index, node, &removed)
    };
    if let Err(rejection) = fits(&simulated, &lower) {
        return DryRunResult::Rejected(rejection);
    }
    lower.sort_by_key(|p| p.importance());
    let (violating, others) = split_by_pdb_violation(cluster, &lower);
    let mut removed = lower.clone();
    let mut violations = 0;
    let mut victims: Vec<Arc<PodInfo>> = Vec::new();
    for (i, back) in violating.iter().chain(&others).enumerate() {
        simulated.add_pod(back);
        removed.retain(|p| p.uid() != back.uid());
        if fits(&simulated, &removed).is_err() {
            simulated.remove_pod(back.uid());
            removed.push(back);
            victims.push((*back).clone());
            violations += usize::from(i < violating.len());
        }
    }
    if victims.is_empty() {
        return DryRunResult::Rejected(UnschedulableStatus {
            plugin: NAME,
            reasons: vec![format!("expected at least one victim pod on node {:?}", node.name).into()],
            resolvable: false,
        });
    }
    if has_hard_budgets(profile, pod) {
        let violated = cluster.budgets().violated_by(&victims);
        if !violated.is_empty() {
            return DryRunResult::ViolatesBudgets(violated);
        }
    }
    victims.sort_by_key(|p| p.importance());
    DryRunResult::Candidate(Candidate::new(index, victims, violations))
}

/// The pods whose eviction, one after the other, violates a PodDisruptionBudget, and the others
/// (filterPodsWithPDBViolation).
pub(crate) fn split_by_pdb_violation<'a>(
    cluster: &Cluster,
    pods: &[&'a Arc<PodInfo>],
) -> (Vec<&'a Arc<PodInfo>>, Vec<&'a Arc<PodInfo>>) {
    let mut budgets: Vec<_> = cluster
        .budgets()
        .iter()
        .map(|b| (b, b.disruptions_allowed))
        .collect();
    pods.iter().copied().partition(|pod| {
        let labels = pod.pod.metadata.labels.as_ref().filter(|l| !l.is_empty());
        let mut violates = false;
        for (budget, allowed) in &mut budgets {
            let counts = labels.is_some()
                && budget.namespace == pod.pod.object().namespace()
                && !budget.selector.is_everything()
                && budget.selector.matches(labels)
                && !budget.disrupted.contains(pod.pod.object().name());
            if counts {
                *allowed -= 1;
                violates |= *allowed < 0;
            }
        }
        violates
    })
}
