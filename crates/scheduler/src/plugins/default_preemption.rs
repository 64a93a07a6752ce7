//! DefaultPreemption (SPEC P4, P5): where could a pod go if pods of lower priority went, and whose going hurts least?
//!
//! All nodes are considered. What was found for a node is kept until the node changes, unless the rules in force for
//! the pod look at other nodes, too.

use std::cmp::Reverse;
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

/// What was found for each node.
#[derive(Debug, Default)]
pub struct Candidates {
    seen: u64,
    budgets_version: u64,
    found: Vec<Option<Result<Candidate, Refusal>>>,
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
    let changes = cluster.changes_since(kept.seen);
    match changes {
        Some(changed) if state.is_local() && kept.budgets_version == cluster.budgets_version => {
            for place in changed {
                if let Some(found) = kept.found.get_mut(*place as usize) {
                    *found = None;
                }
            }
        }
        _ => kept.found.clear(),
    }
    kept.found.resize_with(cluster.places(), || None);
    kept.seen = cluster.now();
    kept.budgets_version = cluster.budgets_version;
    let mut places: Vec<(Cost, Place)> = Vec::new();
    let mut own_candidate = None;
    let mut reasons = crate::diagnosis::Reasons::default();
    let mut tried = 0;
    for place in 0..Place::try_from(cluster.places()).unwrap_or(Place::MAX) {
        if !state.refusal(scratch, place).is_some_and(|r| r.pods_in_the_way) {
            continue;
        }
        tried += 1;
        let fresh;
        let found = match &mut kept.found[place as usize] {
            // Its own nomination is nothing to the pod, but is to others of its class.
            _ if own == Some(place) => {
                fresh = dry_run(profile, cluster, state, pod, place);
                own_candidate = fresh.as_ref().ok().cloned();
                &fresh
            }
            Some(found) => &*found,
            empty => empty.insert(dry_run(profile, cluster, state, pod, place)),
        };
        match found {
            Ok(candidate) => places.push((candidate.cost, place)),
            Err(refusal) => reasons.add(&refusal.reasons, 1),
        }
    }
    if let Wanted::OneOfTheBest(turn) = wanted
        && let Some(best) = places.iter().map(|(cost, _)| *cost).min()
    {
        let equals = places.iter().filter(|(cost, _)| *cost == best).count();
        let one = places
            .iter()
            .filter(|(cost, _)| *cost == best)
            .nth(turn % equals.max(1));
        places = one.copied().into_iter().collect();
    }
    let candidate = |place: Place| {
        let kept = kept.found.get(place as usize).and_then(Option::as_ref);
        let own_candidate = own_candidate.as_ref().filter(|_| own == Some(place));
        own_candidate
            .or(kept.and_then(|found| found.as_ref().ok()))
            .cloned()
    };
    let candidates: Vec<Candidate> = places.iter().filter_map(|(_, place)| candidate(*place)).collect();
    state.candidates = kept;
    if !candidates.is_empty() {
        return Outcome::Candidates(candidates);
    }
    let untried = cluster.len() - tried;
    reasons.add(&["Preemption is not helpful for scheduling".into()], untried);
    Outcome::Nothing(reasons.message(cluster.len()))
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
