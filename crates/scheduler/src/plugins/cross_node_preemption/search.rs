//! Branch and bound over sets of victims: what has to leave in any case, and the choice that spread constraints leave.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use knarr_apimachinery::ids::PodUid;

use super::blocking::BlockingPods;
use super::{Attempt, NoCandidate, OTHER_NODES_MAX, SETS_MAX, VICTIMS_MAX};
use crate::cluster::NodeIndex;
use crate::evaluation::{Removal, RemovedPod};
use crate::plugins::default_preemption::{Candidate, has_hard_budgets, split_by_pdb_violation};
use crate::pod_info::PodInfo;

/// The cost of a set of victims that grows with every pod: violated budgets, the highest priority, the sum of priorities,
/// the number of victims.
pub(super) type Bound = (usize, i32, i64, usize);

pub(super) fn bound<'a>(violations: usize, victims: impl Iterator<Item = &'a Arc<PodInfo>>) -> Bound {
    let mut bound = (violations, i32::MIN, 0, 0);
    for victim in victims {
        bound.1 = bound.1.max(victim.priority());
        // As in `Candidate`: each victim counts as more than nothing.
        bound.2 += i64::from(victim.priority()) + (1 << 31);
        bound.3 += 1;
    }
    bound
}

/// See the module.
pub(super) struct Search<'a> {
    attempt: Attempt<'a>,
    blocking: &'a BlockingPods<'a>,
    has_hard_budgets: bool,
    /// The pods that spread constraints count, by constraint and domain.
    counted: BTreeMap<(usize, u32), Arc<Vec<RemovedPod>>>,
    sets: usize,
    best: Option<(Bound, Candidate)>,
    why: NoCandidate,
}

impl<'a> Search<'a> {
    pub(super) fn new(attempt: Attempt<'a>, blocking: &'a BlockingPods<'a>) -> Self {
        Search {
            has_hard_budgets: has_hard_budgets(attempt.profile, attempt.pod),
            attempt,
            blocking,
            counted: BTreeMap::new(),
            sets: 0,
            best: None,
            why: NoCandidate::NoNode,
        }
    }

    /// Keeps the reason that is closest to a candidate.
    pub(super) fn failed(&mut self, why: NoCandidate) {
        if why > self.why {
            self.why = why;
        }
    }

    pub(super) fn take_best(&mut self) -> Option<Candidate> {
        self.best.take().map(|(_, candidate)| candidate)
    }

    pub(super) fn finish(mut self) -> Result<Candidate, NoCandidate> {
        self.take_best().ok_or(self.why)
    }

    /// Whether a set was found for the node that is better than those before.
    pub(super) fn try_node(&mut self, index: NodeIndex, must_leave: Vec<RemovedPod>) -> bool {
        let mut removed = must_leave;
        self.extend(index, &mut removed, &mut BTreeSet::new());
        self.best.as_ref().is_some_and(|(_, best)| best.index == index)
    }

    fn counted(&mut self, constraint: usize, domain: u32) -> Arc<Vec<RemovedPod>> {
        let blocking = self.blocking;
        let of = self.counted.entry((constraint, domain));
        of.or_insert_with(|| Arc::new(blocking.counted(constraint, domain)))
            .clone()
    }

    /// Tries the set, and the sets with more pods that the violated spread constraint names. `skipped`: pods that other
    /// branches have.
    fn extend(&mut self, index: NodeIndex, removed: &mut Vec<RemovedPod>, skipped: &mut BTreeSet<PodUid>) {
        let others: BTreeSet<NodeIndex> = removed
            .iter()
            .map(|r| r.node)
            .filter(|node| *node != index)
            .collect();
        if removed.len() > VICTIMS_MAX || others.len() > OTHER_NODES_MAX {
            return self.failed(NoCandidate::TooMany);
        }
        let violations = self.violations(removed);
        let least = bound(violations, removed.iter().map(|r| &r.pod));
        if self.best.as_ref().is_some_and(|(best, _)| least > *best) || self.sets >= SETS_MAX {
            return;
        }
        self.sets += 1;
        if self.has_hard_budgets {
            let victims: Vec<Arc<PodInfo>> = removed.iter().map(|r| r.pod.clone()).collect();
            let violated = self.attempt.cluster.budgets().violated_by(&victims);
            if !violated.is_empty() {
                return self.failed(NoCandidate::ViolatesBudgets(violated));
            }
        }
        let Attempt {
            profile,
            cluster,
            state,
            pod,
            ..
        } = self.attempt;
        let removal = Removal {
            profile,
            cluster,
            pod,
            index,
            removed: removed.as_slice(),
        };
        if state.filter_after_removal(removal).is_ok() {
            return self.found(index, removed, violations);
        }
        let Ok(Some((constraint, excess))) = state.violated_spread(removal) else {
            return self.failed(NoCandidate::NotEnough);
        };
        let excess = usize::try_from(excess).unwrap_or(usize::MAX);
        if removed.len().saturating_add(excess) > VICTIMS_MAX {
            return self.failed(NoCandidate::TooMany);
        }
        let Some(domain) = state.spread_domain(cluster, constraint, index) else {
            return self.failed(NoCandidate::NotEnough);
        };
        let counted = self.counted(constraint, domain);
        let is_open = |named: &&RemovedPod, removed: &[RemovedPod], skipped: &BTreeSet<PodUid>| {
            let uid = named.pod.uid();
            !skipped.contains(uid) && removed.iter().all(|r| r.pod.uid() != uid)
        };
        let open: Vec<&RemovedPod> = counted.iter().filter(|n| is_open(n, removed, skipped)).collect();
        if open.len() < excess {
            return self.failed(NoCandidate::Priority);
        }
        // Each branch has one pod and none of those before it, so that no set is tried twice.
        let mut here: Vec<PodUid> = Vec::new();
        for (i, named) in open.iter().enumerate() {
            let Some(rest) = open.get(i..).filter(|rest| rest.len() >= excess) else {
                break;
            };
            let least = removed
                .iter()
                .chain(rest.iter().copied().take(excess))
                .map(|r| &r.pod);
            let least = bound(violations, least);
            // The first branch has the pods that started last: another one of the same cost is not better.
            let is_bounded = |best: &Bound| if i == 0 { least > *best } else { least >= *best };
            if self.best.as_ref().is_some_and(|(best, _)| is_bounded(best)) {
                break;
            }
            removed.push((*named).clone());
            self.extend(index, removed, skipped);
            removed.pop();
            let uid = named.pod.uid().clone();
            skipped.insert(uid.clone());
            here.push(uid);
        }
        for uid in here {
            skipped.remove(&uid);
        }
    }

    fn violations(&self, removed: &[RemovedPod]) -> usize {
        let mut victims: Vec<&Arc<PodInfo>> = removed.iter().map(|r| &r.pod).collect();
        victims.sort_by_key(|p| p.importance());
        let (violating, _) = split_by_pdb_violation(self.attempt.cluster, &victims);
        violating.len()
    }

    fn found(&mut self, index: NodeIndex, removed: &[RemovedPod], violations: usize) {
        // Without a victim the node would have been feasible.
        if removed.is_empty() {
            return self.failed(NoCandidate::NotEnough);
        }
        let mut victims: Vec<Arc<PodInfo>> = removed.iter().map(|r| r.pod.clone()).collect();
        victims.sort_by_key(|p| (p.importance(), Reverse(p.uid().clone())));
        let bound = bound(violations, victims.iter());
        let candidate = Candidate {
            is_cross_node: true,
            ..Candidate::new(index, victims, violations)
        };
        if self
            .best
            .as_ref()
            .is_none_or(|(_, best)| candidate.cost < best.cost)
        {
            self.best = Some((bound, candidate));
        }
    }
}
