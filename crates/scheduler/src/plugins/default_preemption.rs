//! DefaultPreemption (SPEC P4, P5): on which node would a pod fit if pods of lower priority were evicted, and which
//! of these nodes loses least?
//!
//! All nodes are considered. What was found for a node is kept until the node changes, unless the filters in use
//! depend on other nodes, too. The results are the same as kube-scheduler's, cached or not.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;

use super::UnschedulableStatus;
use crate::cluster::{Cluster, NodeIndex};
use crate::diagnosis::PostFilter;
use crate::evaluation::{ClassState, CycleState};
use crate::pod_info::PodInfo;
use crate::profile::Profile;

pub const NAME: &str = "DefaultPreemption";

/// The reason of the victims' condition DisruptionTarget.
pub const REASON: &str = "PreemptionByScheduler";

/// A node on which evicting pods makes the preemptor fit.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub index: NodeIndex,
    /// From the most to the least important; never empty.
    pub victims: Vec<Arc<PodInfo>>,
    /// How many evictions violate a PodDisruptionBudget.
    pub violations: usize,
    cost: Cost,
}

/// Less is better: violated budgets, the highest priority of a victim, the sum of priorities, the number of victims,
/// and the start time of the earliest victim of the highest priority (later is better).
type Cost = (usize, i32, i64, usize, Reverse<Timestamp>);

impl Candidate {
    fn new(index: NodeIndex, victims: Vec<Arc<PodInfo>>, violations: usize) -> Self {
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
        }
    }
}

/// The result for each node, kept from pod to pod of a class: only nodes that changed are tried again, and the best
/// candidate is the first of a sorted set, so that the cost of a preemption does not grow with the number of nodes.
#[derive(Debug, Default)]
pub struct Candidates {
    seen: u64,
    budgets_version: u64,
    found: Vec<DryRunResult>,
    /// Nodes that changed since they were tried.
    open: BTreeSet<NodeIndex>,
    /// The candidates among the results, the best first.
    order: BTreeSet<(Cost, NodeIndex)>,
}

/// The result of a dry run on one node.
#[derive(Debug, Default)]
enum DryRunResult {
    /// The node was not rejected because of pods on it, or was not tried yet.
    #[default]
    Nothing,
    Candidate(Candidate),
    Rejected(UnschedulableStatus),
}

impl Candidates {
    /// Drops what may have changed. `is_local`: the verdict on a node depends on that node alone.
    fn catch_up(&mut self, cluster: &Cluster, is_local: bool) {
        let slots = cluster.slots();
        let changes = cluster.changes_since(self.seen);
        match changes {
            Some(changed) if is_local && self.budgets_version == cluster.budgets_version => {
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
        self.budgets_version = cluster.budgets_version;
    }

    fn set(&mut self, index: NodeIndex, new: DryRunResult) {
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

    fn get(&self, index: NodeIndex) -> Option<&Candidate> {
        match self.found.get(index as usize) {
            Some(DryRunResult::Candidate(candidate)) => Some(candidate),
            _ => None,
        }
    }

    /// One of the best, another one for another rotation; not the one at `but`.
    fn one_of_the_best(&self, but: Option<NodeIndex>, rotation: usize) -> Option<&Candidate> {
        let others = || self.order.iter().filter(|(_, index)| Some(*index) != but);
        let (best, first) = others().next()?;
        let rotation = NodeIndex::try_from(rotation % self.found.len().max(1)).unwrap_or(0);
        let later = self.order.range((*best, rotation)..);
        let mut later = later.take_while(|(cost, _)| cost == best);
        let later = later.find(|(_, index)| Some(*index) != but);
        self.get(later.map_or(*first, |(_, index)| *index))
    }
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

fn is_terminating_for_preemption(pod: &PodInfo) -> bool {
    let status = pod.pod.status.as_ref();
    let mut conditions = status.into_iter().flat_map(|s| s.conditions.iter().flatten());
    let condition = conditions.find(|c| c.type_ == "DisruptionTarget");
    pod.is_terminating()
        && condition.is_some_and(|c| c.status == "True" && c.reason.as_deref() == Some(REASON))
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
    kept.catch_up(cluster, state.is_local());
    let is_resolvable = |index| state.rejection(cycle, index).is_some_and(|r| r.resolvable);
    for index in std::mem::take(&mut kept.open) {
        let found = if own == Some(index) {
            // The pod's own nomination does not count for the pod, but for the others of its class.
            kept.open.insert(index);
            DryRunResult::Nothing
        } else if is_resolvable(index) {
            match dry_run(profile, cluster, state, pod, index) {
                Ok(candidate) => DryRunResult::Candidate(candidate),
                Err(rejection) => DryRunResult::Rejected(rejection),
            }
        } else {
            DryRunResult::Nothing
        };
        kept.set(index, found);
    }
    let own_found = own
        .filter(|index| is_resolvable(*index))
        .map(|index| dry_run(profile, cluster, state, pod, index));
    let own_candidate = own_found.as_ref().and_then(|found| found.as_ref().ok());
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
        Outcome::NoCandidates(no_candidates_message(cluster, &kept, own, own_found.as_ref()))
    } else {
        Outcome::Candidates(candidates)
    };
    state.candidates = kept;
    outcome
}

/// The message when there are no candidates.
fn no_candidates_message(
    cluster: &Cluster,
    kept: &Candidates,
    own: Option<NodeIndex>,
    own_found: Option<&Result<Candidate, UnschedulableStatus>>,
) -> String {
    // There are a few different statuses, each of many nodes.
    let mut counts: Vec<(&UnschedulableStatus, usize)> = Vec::new();
    let others = (0..).zip(&kept.found).filter_map(|(index, found)| match found {
        DryRunResult::Rejected(rejection) if own != Some(index) => Some(rejection),
        _ => None,
    });
    for rejection in others.chain(own_found.and_then(|found| found.as_ref().err())) {
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
) -> Result<Candidate, UnschedulableStatus> {
    let node = cluster.at(index);
    let lower = node.pods().iter().filter(|p| p.priority() < pod.priority());
    let mut lower: Vec<&Arc<PodInfo>> = lower.collect();
    if lower.is_empty() {
        return Err(UnschedulableStatus::unresolvable(
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
    fits(&simulated, &lower)?;
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
        return Err(UnschedulableStatus {
            plugin: NAME,
            reasons: vec![format!("expected at least one victim pod on node {:?}", node.name).into()],
            resolvable: false,
        });
    }
    victims.sort_by_key(|p| p.importance());
    Ok(Candidate::new(index, victims, violations))
}

/// The pods whose eviction, one after the other, violates a PodDisruptionBudget, and the others
/// (filterPodsWithPDBViolation).
fn split_by_pdb_violation<'a>(
    cluster: &Cluster,
    pods: &[&'a Arc<PodInfo>],
) -> (Vec<&'a Arc<PodInfo>>, Vec<&'a Arc<PodInfo>>) {
    let mut budgets: Vec<_> = cluster.budgets().map(|b| (b, b.disruptions_allowed)).collect();
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
