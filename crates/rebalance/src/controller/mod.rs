//! The deciding half of the rebalancing controller (SPEC B3): one [`step`] from the policies, the objects of the cluster and
//! the time to statuses, events and at most one wave of evictions. Pure, as the plans that it is made of.
//!
//! - A policy with `dryRun`, the default, only gets a status and the event `RebalancePlanned`.
//! - At most [`PLANS_MAX`] plans a step; more policies than that take turns.
//! - One wave at a time: of all policies in the order of their names (from the one whose turn it is), the first that has something to move starts one, and
//!   every plan is made after the wave before has been seen. A policy whose wave waits for its replacements does not hold
//!   back the others, but they do not move pods of the same workloads.
//! - A policy stops (Degraded) when a replacement fails or does not become Ready, until it does or the spec is changed.
//! - Moves are recorded in the policy's status before pods are evicted: budgets per hour survive a restart.
//! - A workload is not moved again for the same rule once that has been done as often as the first plan of the hour wanted,
//!   and twice at least: if a rule is violated still, its moves do not help.

mod conditions;
pub mod kinds;
mod replacements;
pub mod schema;
mod state;
mod surge;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::{Object, k8s_openapi};
use knarr_apimachinery::time::seconds;
use knarr_scheduler::Profile;

use crate::limits::Limits;
use crate::plan::{Move, Plan, PodName};
use crate::policy::Policy;
use crate::snapshot::{Snapshot, Usage};
use conditions::{Finding, PROGRESSING, READY};
use kinds::{PlannedMove, RebalancePolicy, RecentMove};
use replacements::Workloads;
use schema::{HELD_WORKLOADS_MAX, PLANNED_MOVES_MAX, RECENT_MOVES_MAX, WHY_MAX};
pub use state::Policies;
use state::{RETRY, State, held_by_others};
use surge::SURGE_RETRY;

/// The time between two steps when nothing is moved.
pub const PERIOD: SignedDuration = SignedDuration::from_secs(30);
/// The same while a wave waits for its replacements, or a policy for its turn.
const PERIOD_OF_WAVES: SignedDuration = SignedDuration::from_secs(2);
/// The most evictions of a wave.
pub const WAVE_MAX: usize = 20;
/// The most plans of a step, each of which may take a second in a large cluster: users with many namespaces have many policies.
pub const PLANS_MAX: usize = 16;

/// What a step decides from.
pub struct Input<'a> {
    pub policies: Policies,
    /// The scheduler's profiles, at least one.
    pub profiles: &'a [Profile],
    /// The cluster, as [`Snapshot::new`] reads it.
    pub objects: &'a [Arc<Object>],
    pub usage: &'a Usage,
    pub now: Timestamp,
    /// How many steps were taken before: if there are more than [`PLANS_MAX`] policies, they take turns.
    pub turn: usize,
}

/// What a step has decided.
#[derive(Debug, Default)]
pub struct Step {
    /// The policies whose status changes, that of the wave excepted.
    pub updates: Vec<RebalancePolicy>,
    pub events: Vec<Event>,
    pub wave: Option<Wave>,
    /// When the next step is due.
    pub next: SignedDuration,
}

/// Pods to evict. The policy's status is written first: if that fails, no pod is evicted.
#[derive(Debug)]
pub struct Wave {
    pub policy: RebalancePolicy,
    pub evictions: Vec<EvictionRequest>,
}

/// A pod to evict, with its UID as precondition.
#[derive(Clone, Debug)]
pub struct EvictionRequest {
    pub pod: PodName,
    /// `None`: the pod's own.
    pub grace_period_seconds: Option<i64>,
    /// The rule that it is moved for.
    pub rule: &'static str,
    /// To be recorded once it is evicted.
    pub event: Event,
}

/// An event about a policy or a pod.
#[derive(Clone, Debug)]
pub struct Event {
    pub about: ObjectReference,
    pub is_warning: bool,
    pub reason: &'static str,
    pub message: String,
}

/// How an eviction ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Evicted,
    /// There is no such pod any more, or it has changed.
    Gone,
    /// 429: a PodDisruptionBudget does not allow it now.
    DisruptionBudget {
        message: String,
    },
    /// 429: surge-first eviction waits until the pod is replaced (SPEC B6).
    SurgeFirst {
        message: String,
    },
    Rejected {
        message: String,
    },
    /// There was no answer: it may have been evicted, and counts.
    Unknown {
        message: String,
    },
}

impl Outcome {
    /// For metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Outcome::Evicted => "evicted",
            Outcome::Gone => "gone",
            Outcome::DisruptionBudget { .. } => "disruption_budget",
            Outcome::SurgeFirst { .. } => "surge_first",
            Outcome::Rejected { .. } => "rejected",
            Outcome::Unknown { .. } => "unknown",
        }
    }
}

/// The result of one eviction.
#[derive(Clone, Debug)]
pub struct EvictionResult {
    pub pod: PodName,
    pub outcome: Outcome,
}

/// See the module.
pub fn step(input: Input<'_>) -> Step {
    let mut step = Step {
        next: PERIOD,
        ..Step::default()
    };
    let workloads = if input.policies.needs_workloads() {
        Workloads::of(input.objects)
    } else {
        Workloads::default()
    };
    let mut states = State::all(input.policies, &workloads, input.now);
    let mut snapshot: Option<Snapshot> = None;
    let count = states.len();
    let first = match count > PLANS_MAX {
        true => input.turn.wrapping_mul(PLANS_MAX) % count,
        false => 0,
    };
    let mut plans = 0;
    for at in (first..count).chain(0..first) {
        if step.wave.is_none()
            && let Some(state) = states.get(at)
        {
            let evictions = state.requests_again(&workloads, input.now);
            step.wave = (!evictions.is_empty()).then(|| Wave {
                policy: state.policy.clone(),
                evictions,
            });
        }
        if plans == PLANS_MAX {
            continue;
        }
        let Some(policy) = states.get_mut(at).and_then(|state| state.due(input.now)) else {
            continue;
        };
        if !policy.dry_run && step.wave.is_some() {
            step.next = PERIOD_OF_WAVES;
            continue;
        }
        plans += 1;
        let held = held_by_others(&states, at);
        let Some(state) = states.get_mut(at) else { continue };
        let snapshot = snapshot.get_or_insert_with(|| {
            Snapshot::new(input.profiles.to_vec(), input.objects, input.now).with_usage(input.usage.clone())
        });
        let repeated = state.repeated();
        snapshot.set_memory(state.evictions(), held.into_iter().chain(repeated).collect());
        let limits = Limits {
            // A step costs what one policy may, however many there are.
            failed_simulations: Limits::DEFAULT.failed_simulations / count.clamp(1, PLANS_MAX),
            ..Limits::DEFAULT
        };
        let plan = crate::plan_within(snapshot, &policy, &limits);
        state.show(&plan);
        let finding = if policy.dry_run {
            let message = match plan.moves.len() {
                0 => conditions::idle(&plan).message,
                moves => {
                    let left_out = conditions::left_out(&plan);
                    format!("{moves} moves are planned, and none is made{left_out}")
                }
            };
            Finding::new(false, "DryRun", message)
        } else {
            let room = RECENT_MOVES_MAX.saturating_sub(state.status.recent_moves.len());
            let wave = plan.moves.iter().take_while(|step| step.wave == 1);
            let wave: Vec<&Move> = wave.take(room.min(WAVE_MAX)).collect();
            match (plan.moves.len(), wave.len()) {
                (0, _) => conditions::idle(&plan),
                (_, 0) => Finding::new(
                    false,
                    "BudgetExhausted",
                    "the status has no room for further moves",
                ),
                (moves, now) => {
                    let evictions = state.evict(&plan, &wave, &policy, &workloads, input.now);
                    step.wave = Some(Wave {
                        policy: state.policy.clone(),
                        evictions,
                    });
                    step.next = PERIOD_OF_WAVES;
                    let left_out = conditions::left_out(&plan);
                    let message = format!("{now} of {moves} planned moves are made now{left_out}");
                    Finding::new(true, "Evicting", message)
                }
            }
        };
        state.progress = Some(finding);
    }
    for state in states {
        if state.is_waiting() {
            step.next = PERIOD_OF_WAVES;
        }
        let before = state.policy.status.clone();
        let (policy, events) = state.finish(input.now);
        step.events.extend(events);
        match &mut step.wave {
            Some(wave) if wave.policy.is_same(&policy) => wave.policy = policy,
            _ if policy.status != before => step.updates.push(policy),
            _ => {}
        }
    }
    step
}

impl RebalancePolicy {
    fn is_same(&self, other: &RebalancePolicy) -> bool {
        (self.namespace(), self.name()) == (other.namespace(), other.name())
    }
}

/// The policy of a wave after its evictions; `None`: its status does not change. Moves that were not made do not count, and after an
/// eviction that was rejected the policy waits a while before it plans again.
pub fn record_results(
    policy: &RebalancePolicy,
    results: &[EvictionResult],
    now: Timestamp,
) -> Option<RebalancePolicy> {
    let mut new = policy.clone();
    let mut rejected: Option<Finding> = None;
    let mut surging: Option<Finding> = None;
    let is_progressing = results.iter().any(|result| result.outcome == Outcome::Evicted);
    for result in results {
        let pod = &result.pod;
        let mut drop_record = || new.status.recent_moves.retain(|recent| recent.uid != pod.uid);
        let failed = match &result.outcome {
            Outcome::Evicted => {
                set_surging(&mut new, pod, false);
                continue;
            }
            Outcome::SurgeFirst { message } => {
                set_surging(&mut new, pod, true);
                let message = format!("pod {pod}: {message}");
                surging.get_or_insert(Finding::new(true, "SurgeFirst", message));
                continue;
            }
            Outcome::Gone => {
                drop_record();
                continue;
            }
            Outcome::DisruptionBudget { message } => {
                drop_record();
                ("DisruptionBudget", message)
            }
            Outcome::Rejected { message } => {
                drop_record();
                ("EvictionRejected", message)
            }
            Outcome::Unknown { message } => ("EvictionFailed", message),
        };
        let (reason, message) = failed;
        let message = format!("pod {pod}: {message}");
        rejected.get_or_insert(Finding::new(is_progressing, reason, message));
    }
    new.status.moves_last_hour = new.status.recent_moves.len();
    let rejected = rejected.map(|finding| (finding, RETRY));
    let surging = surging.map(|finding| (finding, SURGE_RETRY));
    if let Some((finding, wait)) = rejected.or(surging) {
        new.status.retry_time = now.checked_add(wait).ok().map(seconds);
        let generation = policy.metadata.generation;
        conditions::set(&mut new.status.conditions, PROGRESSING, &finding, generation, now);
    }
    (new != *policy).then_some(new)
}

fn set_surging(policy: &mut RebalancePolicy, pod: &PodName, surging: bool) {
    let moves = policy.status.recent_moves.iter_mut();
    for recent in moves.filter(|recent| recent.uid == pod.uid) {
        recent.surging = surging;
    }
}

/// The move as the status shows it. A namespaced policy's says nothing of rules that name other namespaces' pods.
fn planned(step: &Move, is_namespaced: bool) -> PlannedMove {
    let gain = step.changes.iter().find(|change| change.after < change.before);
    let why = match gain {
        None => step.rule.to_string(),
        Some(gain) if is_namespaced => format!("{}: {} -> {}", step.rule, gain.before, gain.after),
        Some(gain) => format!(
            "{}: {} {} -> {}",
            step.rule, gain.constraint, gain.before, gain.after
        ),
    };
    PlannedMove {
        namespace: step.pod.namespace.clone(),
        pod: step.pod.name.clone(),
        from: step.from.to_string(),
        to: step.to.clone().map(String::from).unwrap_or_default(),
        why: conditions::truncated(why, WHY_MAX),
    }
}

impl State {
    /// Writes the plan into the status.
    fn show(&mut self, plan: &Plan) {
        let is_namespaced = !self.policy.namespace().is_empty();
        let status = &mut self.status;
        status.moves = plan.moves.len();
        status.pods_not_moved = plan.pods_that_stay();
        let shown = plan.moves.iter().take(PLANNED_MOVES_MAX);
        status.planned_moves = shown.map(|step| planned(step, is_namespaced)).collect();
        let repeated = plan.not_moved.iter().filter_map(|pod| match &pod.reason {
            crate::reason::Reason::RepeatedMoves { .. } => Some(pod.reason.to_string()),
            _ => None,
        });
        let mut repeated: Vec<String> = repeated.collect();
        repeated.sort();
        repeated.dedup();
        repeated.truncate(HELD_WORKLOADS_MAX);
        status.held_workloads = repeated;
    }

    /// Records the moves, and returns their evictions.
    fn evict(
        &mut self,
        plan: &Plan,
        wave: &[&Move],
        policy: &Policy,
        workloads: &Workloads,
        now: Timestamp,
    ) -> Vec<EvictionRequest> {
        let mut planned: BTreeMap<_, usize> = BTreeMap::new();
        for step in &plan.moves {
            *planned.entry((&step.workload, step.rule)).or_default() += 1;
        }
        let mut evictions = Vec::new();
        for step in wave {
            let (pods_before, ready_before) = workloads.counts(&step.workload);
            self.status.recent_moves.push(RecentMove {
                time: seconds(now),
                namespace: step.pod.namespace.clone(),
                pod: step.pod.name.clone(),
                uid: step.pod.uid.to_string(),
                from: step.from.to_string(),
                to: step.to.clone().map(String::from).unwrap_or_default(),
                workload_kind: step.workload.kind.clone(),
                workload_name: step.workload.name.clone(),
                rule: step.rule.to_string(),
                planned: planned.get(&(&step.workload, step.rule)).copied().unwrap_or(1),
                pods_before,
                ready_before,
                surging: false,
                // The controller of a finished pod has replaced it already.
                replaced: step.to.is_none(),
            });
            evictions.push(EvictionRequest {
                pod: step.pod.clone(),
                // A grace period of 0 would delete the pod without its kubelet (SPEC S2).
                grace_period_seconds: policy.grace_period_seconds.map(|grace| grace.max(1)),
                rule: step.rule,
                event: Event {
                    about: pod_reference(&step.pod),
                    is_warning: false,
                    reason: "RebalanceEvicted",
                    message: self.eviction_message(step),
                },
            });
        }
        self.status.moves_last_hour = self.status.recent_moves.len();
        evictions
    }

    fn eviction_message(&self, step: &Move) -> String {
        let (kind, name) = (self.policy.kind().kind(), self.policy.name());
        let begin = format!(
            "Evicted from node {} for {} by {kind} {name}",
            step.from, step.rule
        );
        match &step.to {
            Some(to) => format!("{begin}; the replacement is expected on node {to}"),
            None => begin,
        }
    }

    /// The policy with its new status, and the events about it.
    fn finish(mut self, now: Timestamp) -> (RebalancePolicy, Vec<Event>) {
        let generation = self.policy.metadata.generation;
        let about = self.policy.reference();
        let mut events = Vec::new();
        let mut event = |is_warning, reason, message: String| {
            events.push(Event {
                about: about.clone(),
                is_warning,
                reason,
                message,
            });
        };
        let before = &self.policy.status;
        let mut conditions = before.conditions.clone();
        self.status.observed_generation = generation;
        if conditions::set(&mut conditions, READY, &self.ready, generation, now) && !self.ready.holds {
            event(true, "RebalancePolicyInvalid", self.ready.message.clone());
        }
        if let Some(finding) = &self.progress {
            conditions::set(&mut conditions, PROGRESSING, finding, generation, now);
            let is_planned = finding.reason == "DryRun" && !self.status.planned_moves.is_empty();
            if is_planned && self.status.planned_moves != before.planned_moves {
                event(false, "RebalancePlanned", self.plan_message());
            }
        }
        if let Some(finding) = &self.degraded
            && conditions::set(&mut conditions, conditions::DEGRADED, finding, generation, now)
            && finding.holds
        {
            event(true, "RebalanceDegraded", finding.message.clone());
        }
        for held in &self.status.held_workloads {
            if !before.held_workloads.contains(held) {
                event(true, "RebalanceRepeatedMoves", held.clone());
            }
        }
        self.status.conditions = conditions;
        let mut policy = self.policy;
        policy.status = self.status;
        (policy, events)
    }

    fn plan_message(&self) -> String {
        const SHOWN: usize = 5;
        let all = &self.status.planned_moves;
        let moves = all.iter().take(SHOWN).map(|planned| {
            let to = match planned.to.as_str() {
                "" => "nowhere",
                node => node,
            };
            format!(
                "{}/{} from {} to {to}",
                planned.namespace, planned.pod, planned.from
            )
        });
        let moves: Vec<String> = moves.collect();
        let more = match self.status.moves - moves.len().min(self.status.moves) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        format!("{} moves: {}{more}", self.status.moves, moves.join(", "))
    }
}

fn pod_reference(pod: &PodName) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.to_string()),
        ..ObjectReference::default()
    }
}
