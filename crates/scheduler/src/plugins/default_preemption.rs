//! DefaultPreemption (SPEC P4, P5): where could a pod go if pods of lower priority went, and whose going hurts least?
//!
//! All nodes are considered. What was found for a node is kept until the node changes, unless the rules in force for
//! the pod look at other nodes, too. The verdicts are kube-scheduler's, whatever is kept.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;

use super::Refusal;
use crate::cluster::{Cluster, Place};
use crate::evaluation::{ClassState, Scratch};
use crate::pod_info::PodInfo;
use crate::profile::Profile;

pub const NAME: &str = "DefaultPreemption";

/// Why pods that make room go, in their condition DisruptionTarget.
pub const REASON: &str = "PreemptionByScheduler";

/// A node on which evicting pods makes room.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub place: Place,
    /// From most to least important; never empty.
    pub victims: Vec<Arc<PodInfo>>,
    /// How many of them go against a disruption budget.
    pub violations: usize,
    cost: Cost,
}

/// Less is better: budgets violated, the highest priority among victims, the sum of priorities, victims, and how
/// late the first of the highest started.
type Cost = (usize, i32, i64, usize, Reverse<Timestamp>);

impl Candidate {
    fn new(place: Place, victims: Vec<Arc<PodInfo>>, violations: usize) -> Self {
        let highest = victims.iter().map(|v| v.priority()).max().unwrap_or(i32::MIN);
        // Each victim weighs more than nothing, whatever its priority.
        let sum = victims.iter().map(|v| i64::from(v.priority()) + (1 << 31)).sum();
        let start = |v: &&Arc<PodInfo>| v.start_time().unwrap_or(Timestamp::MAX);
        let first = victims.iter().filter(|v| v.priority() == highest);
        let first = first.min_by_key(start).as_ref().map_or(Timestamp::MAX, start);
        Candidate {
            place,
            cost: (violations, highest, sum, victims.len(), Reverse(first)),
            victims,
            violations,
        }
    }
}

/// What was found for each node, kept from pod to pod of a class: only nodes that changed are looked at again, and the
/// best is the first of an order that is kept up, so that what a preemptor costs does not grow with the nodes.
#[derive(Debug, Default)]
pub struct Candidates {
    seen: u64,
    budgets_version: u64,
    found: Vec<Found>,
    /// Places that changed since they were looked at.
    open: BTreeSet<Place>,
    /// The candidates among what was found, the best first.
    order: BTreeSet<(Cost, Place)>,
}

/// What making room on one node comes to.
#[derive(Debug, Default)]
enum Found {
    /// The node is not refused for pods on it, or was not looked at yet.
    #[default]
    Nothing,
    Candidate(Candidate),
    Refused(Refusal),
}

impl Candidates {
    /// Forgets what may be otherwise now. `is_local`: what a node is to the class depends on that node alone.
    fn catch_up(&mut self, cluster: &Cluster, is_local: bool) {
        let places = cluster.places();
        let changes = cluster.changes_since(self.seen);
        match changes {
            Some(changed) if is_local && self.budgets_version == cluster.budgets_version => {
                self.open.extend(changed);
                let had = Place::try_from(self.found.len()).unwrap_or(Place::MAX);
                self.open
                    .extend(had..Place::try_from(places).unwrap_or(Place::MAX));
            }
            _ => {
                self.found.clear();
                self.order.clear();
                self.open = (0..Place::try_from(places).unwrap_or(Place::MAX)).collect();
            }
        }
        self.found.resize_with(places, Found::default);
        self.seen = cluster.now();
        self.budgets_version = cluster.budgets_version;
    }

    fn set(&mut self, place: Place, new: Found) {
        if let Some(found) = self.found.get_mut(place as usize) {
            if let Found::Candidate(was) = found {
                self.order.remove(&(was.cost, place));
            }
            if let Found::Candidate(is) = &new {
                self.order.insert((is.cost, place));
            }
            *found = new;
        }
    }

    fn get(&self, place: Place) -> Option<&Candidate> {
        match self.found.get(place as usize) {
            Some(Found::Candidate(candidate)) => Some(candidate),
            _ => None,
        }
    }

    /// One of the best, another one in another turn; not the one at `but`.
    fn one_of_the_best(&self, but: Option<Place>, turn: usize) -> Option<&Candidate> {
        let others = || self.order.iter().filter(|(_, place)| Some(*place) != but);
        let (best, first) = others().next()?;
        let turn = Place::try_from(turn % self.found.len().max(1)).unwrap_or(0);
        let later = self.order.range((*best, turn)..);
        let mut later = later.take_while(|(cost, _)| cost == best);
        let later = later.find(|(_, place)| Some(*place) != but);
        self.get(later.map_or(*first, |(_, place)| *place))
    }
}

/// Which of the candidates are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    All,
    /// One of the best, which of them is this turn's.
    OneOfTheBest(usize),
}

/// What preemption comes to.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// These nodes would do.
    Candidates(Vec<Candidate>),
    /// Nothing can be done; why.
    Nothing(String),
}

impl Outcome {
    /// Those that are equally good, none better.
    pub fn best(&self) -> Vec<&Candidate> {
        let Outcome::Candidates(all) = self else {
            return Vec::new();
        };
        let best = all.iter().map(|c| c.cost).min();
        all.iter().filter(|c| Some(c.cost) == best).collect()
    }
}

/// Whether the pod may make others go at all; else why not.
pub fn eligible(
    cluster: &Cluster,
    state: &ClassState,
    pod: &PodInfo,
    own: Option<Place>,
    scratch: &Scratch,
) -> Result<(), &'static str> {
    if !pod.class.may_preempt() {
        return Err("not eligible due to preemptionPolicy=Never.");
    }
    if let Some(place) = own {
        let refusal = state.refusal(scratch, place);
        let hopeless = refusal.is_none_or(|r| !r.pods_in_the_way);
        let ending = |p: &Arc<PodInfo>| p.priority() < pod.priority() && is_ending_for_another(p);
        if !hopeless && cluster.at(place).pods().iter().any(ending) {
            return Err("not eligible due to a terminating pod on the nominated node.");
        }
    }
    Ok(())
}

fn is_ending_for_another(pod: &PodInfo) -> bool {
    let status = pod.pod.status.as_ref();
    let mut conditions = status.into_iter().flat_map(|s| s.conditions.iter().flatten());
    let condition = conditions.find(|c| c.type_ == "DisruptionTarget");
    pod.is_terminating()
        && condition.is_some_and(|c| c.status == "True" && c.reason.as_deref() == Some(REASON))
}

/// Looks at all nodes that were refused for pods on them. `own` is where the pod itself is nominated to.
pub fn preempt(
    profile: &Profile,
    cluster: &Cluster,
    state: &mut ClassState,
    pod: &PodInfo,
    own: Option<Place>,
    scratch: &Scratch,
    wanted: Wanted,
) -> Outcome {
    if let Err(why) = eligible(cluster, state, pod, own, scratch) {
        return Outcome::Nothing(why.into());
    }
    let mut kept = std::mem::take(&mut state.candidates);
    kept.catch_up(cluster, state.is_local());
    let in_the_way = |place| state.refusal(scratch, place).is_some_and(|r| r.pods_in_the_way);
    for place in std::mem::take(&mut kept.open) {
        let found = if own == Some(place) {
            // The pod's own nomination is nothing to it, but is to the others of its class.
            kept.open.insert(place);
            Found::Nothing
        } else if in_the_way(place) {
            match dry_run(profile, cluster, state, pod, place) {
                Ok(candidate) => Found::Candidate(candidate),
                Err(refusal) => Found::Refused(refusal),
            }
        } else {
            Found::Nothing
        };
        kept.set(place, found);
    }
    let own_found = own
        .filter(|place| in_the_way(*place))
        .map(|place| dry_run(profile, cluster, state, pod, place));
    let own_candidate = own_found.as_ref().and_then(|found| found.as_ref().ok());
    let candidates: Vec<Candidate> = match wanted {
        Wanted::OneOfTheBest(turn) => {
            let other = kept.one_of_the_best(own, turn);
            let best = [own_candidate, other]
                .into_iter()
                .flatten()
                .min_by_key(|c| c.cost);
            best.cloned().into_iter().collect()
        }
        Wanted::All => {
            let others = kept.order.iter().filter(|(_, place)| own != Some(*place));
            let others = others.filter_map(|(_, place)| kept.get(*place));
            let mut all: Vec<Candidate> = own_candidate.into_iter().chain(others).cloned().collect();
            all.sort_by_key(|c| c.place);
            all
        }
    };
    let outcome = if candidates.is_empty() {
        Outcome::Nothing(unhelpful(cluster, &kept, own, own_found.as_ref()))
    } else {
        Outcome::Candidates(candidates)
    };
    state.candidates = kept;
    outcome
}

/// Why there are no candidates.
fn unhelpful(
    cluster: &Cluster,
    kept: &Candidates,
    own: Option<Place>,
    own_found: Option<&Result<Candidate, Refusal>>,
) -> String {
    // A few different refusals, by many nodes each.
    let mut counts: Vec<(&Refusal, usize)> = Vec::new();
    let others = (0..).zip(&kept.found).filter_map(|(place, found)| match found {
        Found::Refused(refusal) if own != Some(place) => Some(refusal),
        _ => None,
    });
    for refusal in others.chain(own_found.and_then(|found| found.as_ref().err())) {
        match counts.iter_mut().find(|(known, _)| *known == refusal) {
            Some((_, count)) => *count += 1,
            None => counts.push((refusal, 1)),
        }
    }
    let mut reasons = crate::diagnosis::Reasons::default();
    let mut tried = 0;
    for (refusal, nodes) in counts {
        reasons.add(&refusal.reasons, nodes);
        tried += nodes;
    }
    let untried = cluster.len().saturating_sub(tried);
    reasons.add(&["Preemption is not helpful for scheduling".into()], untried);
    reasons.message(cluster.len())
}

/// Which pods would have to go from one node.
fn dry_run(
    profile: &Profile,
    cluster: &Cluster,
    state: &ClassState,
    pod: &PodInfo,
    place: Place,
) -> Result<Candidate, Refusal> {
    let node = cluster.at(place);
    let lower = node.pods().iter().filter(|p| p.priority() < pod.priority());
    let mut lower: Vec<&Arc<PodInfo>> = lower.collect();
    if lower.is_empty() {
        return Err(Refusal::of_node(
            NAME,
            "No preemption victims found for incoming pod",
        ));
    }
    let mut pictured = node.clone();
    for pod in &lower {
        pictured.remove_pod(pod.uid());
    }
    let fits = |node: &_, gone: &[&Arc<PodInfo>]| {
        let gone: Vec<(&PodInfo, i64)> = gone.iter().map(|p| (&***p, -1)).collect();
        state.judge_with_nominated(profile, cluster, pod, place, node, &gone)
    };
    fits(&pictured, &lower)?;
    lower.sort_by_key(|p| p.importance());
    let (violating, others) = by_budget(cluster, &lower);
    let mut gone = lower.clone();
    let mut violations = 0;
    let mut victims: Vec<Arc<PodInfo>> = Vec::new();
    for (i, back) in violating.iter().chain(&others).enumerate() {
        pictured.add_pod(back);
        gone.retain(|p| p.uid() != back.uid());
        if fits(&pictured, &gone).is_err() {
            pictured.remove_pod(back.uid());
            gone.push(back);
            victims.push((*back).clone());
            violations += usize::from(i < violating.len());
        }
    }
    if victims.is_empty() {
        return Err(Refusal {
            plugin: NAME,
            reasons: vec![format!("expected at least one victim pod on node {:?}", node.name).into()],
            pods_in_the_way: false,
        });
    }
    victims.sort_by_key(|p| p.importance());
    Ok(Candidate::new(place, victims, violations))
}

/// Those whose eviction, one after the other, goes against a disruption budget; and the others.
fn by_budget<'a>(
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
