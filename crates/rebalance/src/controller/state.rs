//! One policy within a step: its spec as it was read, what its status remembers, and what it waits for.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_apimachinery::field::ErrorList;

use super::conditions::Finding;
use super::kinds::{PolicyStatus, RebalancePolicy, RecentMove};
use super::replacements::{Progress, Workloads};
use super::schema::RECENT_MOVES_MAX;
use crate::policy::{Policy, Rule, rebalance_policy};
use crate::reason::Reason;
use crate::snapshot::{Eviction, Workload};

/// The time that budgets are for.
const HOUR: SignedDuration = SignedDuration::from_hours(1);
/// After an eviction that was rejected the policy evicts no pod for so long.
pub(super) const RETRY: SignedDuration = SignedDuration::from_mins(1);
/// The most policies of one namespace (and cluster-scoped ones) that are carried out: each costs the simulation of its moves.
pub const POLICIES_PER_NAMESPACE_MAX: usize = 8;
/// A workload may always be moved so often for one rule within an hour.
const MOVES_MIN: usize = 2;

/// See the module.
#[derive(Debug)]
pub(super) struct State {
    pub policy: RebalancePolicy,
    pub status: PolicyStatus,
    /// `None`: it is invalid.
    spec: Option<Policy>,
    pub ready: Finding,
    /// `None`: as before.
    pub progress: Option<Finding>,
    pub degraded: Option<Finding>,
}

/// Reads the spec of a policy.
fn read(policy: &RebalancePolicy) -> Result<Policy, ErrorList> {
    let mut read = rebalance_policy::read(policy.name(), policy.namespace(), &policy.spec)?;
    // The status would not have room for more.
    let most = u32::try_from(RECENT_MOVES_MAX).unwrap_or(u32::MAX);
    let per_hour = read.budgets.per_hour.unwrap_or(most).min(most);
    read.budgets.per_hour = Some(per_hour);
    Ok(read)
}

/// A policy and its spec.
#[derive(Debug)]
struct ReadPolicy {
    policy: RebalancePolicy,
    spec: Result<Policy, ErrorList>,
}

/// The policies of a step in the order of their names, with their specs.
#[derive(Debug)]
pub struct Policies(Vec<ReadPolicy>);

impl Policies {
    /// Reads the specs of policies in any order. Those that are being deleted do nothing.
    pub fn read(mut policies: Vec<RebalancePolicy>) -> Self {
        policies.retain(|p| p.metadata.deletion_timestamp.is_none());
        policies.sort_by(|a, b| (a.name(), a.namespace()).cmp(&(b.name(), b.namespace())));
        let read = policies.into_iter().map(|policy| ReadPolicy {
            spec: read(&policy),
            policy,
        });
        Policies(read.collect())
    }

    /// Whether a policy reads measured usage.
    pub fn needs_usage(&self) -> bool {
        let mut accepted = self.0.iter().filter_map(|read| read.spec.as_ref().ok());
        accepted.any(|policy| {
            let mut strategies = policy.profiles.iter().flat_map(|p| p.strategies.iter());
            strategies.any(|s| matches!(&s.rule, Rule::LowNodeUtilization(low) if low.measured))
        })
    }

    /// Whether a policy moves pods, or waits for moves. Policies that only show plans do not read all pods for that.
    pub(super) fn needs_workloads(&self) -> bool {
        self.0.iter().any(|ReadPolicy { policy, spec }| {
            let is_waiting = policy.status.recent_moves.iter().any(|recent| !recent.replaced);
            is_waiting || spec.as_ref().is_ok_and(|spec| !spec.dry_run)
        })
    }
}

/// The workloads that policies other than that at `own` wait for.
pub(super) fn held_by_others(states: &[State], own: usize) -> BTreeMap<Workload, Reason> {
    let others = states.iter().enumerate().filter(|(at, _)| *at != own);
    let waited_for = others.flat_map(|(_, state)| {
        let policy = state.policy.name().to_string();
        let waiting = state.waiting_for();
        waiting.map(move |recent| {
            let policy = policy.clone();
            (recent.workload(), Reason::Moving { policy })
        })
    });
    waited_for.collect()
}

impl State {
    /// All policies, in their order.
    pub fn all(policies: Policies, workloads: &Workloads, now: Timestamp) -> Vec<State> {
        let mut known: BTreeMap<String, usize> = BTreeMap::new();
        let states = policies.0.into_iter().map(|read| {
            let number = known.entry(read.policy.namespace().to_string()).or_default();
            *number += 1;
            State::new(read, *number, workloads, now)
        });
        states.collect()
    }

    fn new(read: ReadPolicy, number: usize, workloads: &Workloads, now: Timestamp) -> Self {
        let ReadPolicy { policy, spec } = read;
        let (spec, ready) = match spec {
            Err(errors) => (None, Finding::new(false, "Invalid", errors.to_string())),
            Ok(_) if number > POLICIES_PER_NAMESPACE_MAX => {
                let message =
                    format!("only the first {POLICIES_PER_NAMESPACE_MAX} policies of a namespace are used");
                (None, Finding::new(false, "TooManyPolicies", message))
            }
            Ok(spec) => (Some(spec), Finding::new(true, "Accepted", "the policy is valid")),
        };
        let mut state = State {
            status: policy.status.clone(),
            policy,
            spec,
            ready,
            progress: None,
            degraded: None,
        };
        // A change of the spec is the user's wish to go on.
        if state.status.observed_generation != state.policy.metadata.generation {
            state.status.retry_time = None;
            for recent in &mut state.status.recent_moves {
                recent.replaced = true;
            }
        }
        if state.spec.is_none() {
            state.clear_plan();
            state.progress = Some(Finding::new(
                false,
                "NotReady",
                "the policy is not used, see Ready",
            ));
        }
        state.settle(workloads, now);
        state
    }

    /// `None`: it is invalid.
    pub fn spec(&self) -> Option<&Policy> {
        self.spec.as_ref()
    }

    /// Whether replacements are waited for that may become Ready soon.
    pub fn is_waiting(&self) -> bool {
        let is_degraded = self.degraded.as_ref().is_some_and(|finding| finding.holds);
        !is_degraded && self.waiting_for().next().is_some()
    }

    fn clear_plan(&mut self) {
        self.status.moves = 0;
        self.status.pods_not_moved = 0;
        self.status.planned_moves.clear();
        self.status.held_workloads.clear();
    }

    /// The moves whose replacements are waited for.
    fn waiting_for(&self) -> impl Iterator<Item = &RecentMove> {
        self.status.recent_moves.iter().filter(|recent| !recent.replaced)
    }

    /// Finds out how far the moves are, and forgets those that no longer count.
    fn settle(&mut self, workloads: &Workloads, now: Timestamp) {
        let mut moved: BTreeMap<Workload, usize> = BTreeMap::new();
        for recent in self.waiting_for() {
            *moved.entry(recent.workload()).or_default() += 1;
        }
        let mut failure = None;
        self.status.recent_moves.retain_mut(|recent| {
            if !recent.replaced {
                let of_workload = moved.get(&recent.workload()).copied().unwrap_or(1);
                match workloads.progress(recent, of_workload, now) {
                    Progress::Waiting => {}
                    Progress::Replaced => recent.replaced = true,
                    Progress::NotEvicted => return false,
                    Progress::Failed(why) => drop(failure.get_or_insert(why)),
                }
            }
            // A move of the future was recorded by a clock that was ahead.
            let age = now.duration_since(recent.time.0);
            !recent.replaced || (age < HOUR && age > -HOUR)
        });
        self.status.moves_last_hour = self.status.recent_moves.len();
        self.degraded = Some(match failure {
            Some(why) => {
                let message = "the policy has stopped, see Degraded";
                self.progress = Some(Finding::new(false, "Degraded", message));
                Finding::new(true, "ReplacementNotReady", why)
            }
            None => Finding::new(false, "AsExpected", "no replacement has failed"),
        });
    }

    /// The policy to plan for, unless it is invalid or waits; then the progress is set.
    pub fn due(&mut self, now: Timestamp) -> Option<Policy> {
        let policy = self.spec.clone()?;
        if self.degraded.as_ref().is_some_and(|finding| finding.holds) {
            return None;
        }
        let is_rejected = self.status.retry_time.as_ref();
        let is_rejected = is_rejected.is_some_and(|time| is_in_future(time, now));
        let waiting = self.waiting_for().count();
        if waiting > 0 {
            // The reason of a rejected eviction stays, and so does that of one that waits for its replacement.
            if !is_rejected && !self.waits_for_surge() {
                let message = format!("the replacements of {waiting} pods are not Ready yet");
                self.progress = Some(Finding::new(true, "WaitingForReplacements", message));
            }
            return None;
        }
        if is_rejected {
            return None;
        }
        self.status.retry_time = None;
        if policy.budgets.per_hour == Some(0) {
            self.clear_plan();
            self.progress = Some(Finding::new(false, "Paused", "spec.budgets.perHour is 0"));
            return None;
        }
        Some(policy)
    }

    /// The moves that count in the budgets.
    pub fn evictions(&self) -> Vec<Eviction> {
        let moves = self.status.recent_moves.iter().map(|recent| Eviction {
            at: recent.time.0,
            node: recent.from.as_str().into(),
            workload: recent.workload(),
        });
        moves.collect()
    }

    /// The workloads that were moved for one rule as often as was planned at first, and at least [`MOVES_MIN`] times.
    pub fn repeated(&self) -> BTreeMap<Workload, Reason> {
        let mut moves: BTreeMap<(Workload, &str), (usize, usize)> = BTreeMap::new();
        // Deletions of finished pods cannot be repeated.
        for recent in self
            .status
            .recent_moves
            .iter()
            .filter(|recent| !recent.to.is_empty())
        {
            let key = (recent.workload(), recent.rule.as_str());
            moves.entry(key).or_insert((recent.planned, 0)).1 += 1;
        }
        let repeated = moves
            .into_iter()
            .filter(|(_, (planned, made))| *made >= (*planned).max(MOVES_MIN));
        let held = repeated.map(|((workload, rule), (_, made))| {
            let reason = Reason::RepeatedMoves {
                workload: workload.to_string(),
                rule: rule.to_string(),
                moves: made,
            };
            (workload, reason)
        });
        held.collect()
    }
}

/// Whether a time that was set to at most [`RETRY`] from then has not come. If it would take longer, a clock was ahead.
pub(super) fn is_in_future(time: &Time, now: Timestamp) -> bool {
    time.0 > now && time.0.duration_since(now) <= RETRY
}
