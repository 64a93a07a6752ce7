//! Stopping one container: its preStop hook, TERM once it is its turn, KILL when the grace period is over (SPEC T2, T3, L10).

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::clock_jump::move_by;
use super::{Action, ActionError, Hook, Operation, Pod, Role};
use crate::grace::{self, MINIMUM_SECONDS};
use crate::ids::ContainerId;
use crate::probe;

/// Wait before a stop that failed is tried again.
const RETRY: SignedDuration = SignedDuration::from_secs(1);

/// Why one container is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// The pod terminates.
    Pod,
    /// Its definition or resources changed.
    Changed,
    /// Its sandbox is lost or not in use any more.
    Sandbox,
    PostStart,
    Probe(probe::Kind),
    /// `RestartAllContainers`: without a grace period.
    All,
}

/// The state of stopping one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContainerStop {
    reason: StopReason,
    began: Timestamp,
    grace_seconds: i64,
    stage: Stage,
    /// Its preStop hook has not finished, whether the stop still waits for it or not.
    hook_runs: bool,
}

/// How far the stop of a container is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The preStop hook runs.
    PreStop,
    /// The hook is done; TERM waits for the endpoint barrier, and a sidecar's for the containers before it.
    BeforeTerm,
    /// TERM was sent, KILL follows at `kill_at`.
    Term { kill_at: Timestamp },
    /// The runtime's stop failed; it is retried.
    RetryAt(Timestamp),
}

impl ContainerStop {
    fn new(reason: StopReason, grace_seconds: i64, has_hook: bool, now: Timestamp) -> Self {
        ContainerStop {
            reason,
            began: now,
            grace_seconds,
            stage: match has_hook {
                true => Stage::PreStop,
                false => Stage::BeforeTerm,
            },
            hook_runs: has_hook,
        }
    }

    /// Whether the container is restarted without back-off once it has stopped.
    pub(super) fn is_for_restart(&self) -> bool {
        matches!(self.reason, StopReason::Probe(_) | StopReason::Changed)
    }

    pub(super) fn hook_runs(&self) -> bool {
        self.hook_runs
    }

    fn deadline(&self) -> Timestamp {
        self.began + SignedDuration::from_secs(self.grace_seconds)
    }

    /// The seconds left until the deadline, rounded up.
    fn left(&self, now: Timestamp) -> i64 {
        let left = self.deadline().duration_since(now);
        left.as_secs() + i64::from(left.subsec_nanos() > 0)
    }

    /// TERM is sent now. Returns the seconds until KILL.
    fn send_term(&mut self, now: Timestamp) -> i64 {
        let seconds = self.left(now).max(MINIMUM_SECONDS);
        self.stage = Stage::Term {
            kill_at: now + SignedDuration::from_secs(seconds),
        };
        seconds
    }

    /// The preStop hook has finished. Returns whether the stop waited for it.
    fn pre_stop_done(&mut self) -> bool {
        self.hook_runs = false;
        let waited = self.stage == Stage::PreStop;
        if waited {
            self.stage = Stage::BeforeTerm;
        }
        waited
    }

    /// A shorter grace period takes effect at once; a longer one does not (T3). Returns the seconds until KILL if TERM was
    /// sent with more.
    fn shorten(&mut self, grace_seconds: i64, now: Timestamp) -> Option<i64> {
        if grace_seconds >= self.grace_seconds {
            return None;
        }
        self.grace_seconds = grace_seconds;
        let seconds = self.left(now).max(1);
        let sooner = now + SignedDuration::from_secs(seconds);
        match &mut self.stage {
            Stage::Term { kill_at } if sooner < *kill_at => {
                *kill_at = sooner;
                Some(seconds)
            }
            _ => None,
        }
    }

    pub(super) fn clock_jumped(&mut self, by: SignedDuration) {
        move_by(&mut self.began, by);
        if let Stage::Term { kill_at: at } | Stage::RetryAt(at) = &mut self.stage {
            move_by(at, by);
        }
    }
}

impl Pod {
    /// Begins to stop one container.
    pub(super) fn stop(&mut self, i: usize, reason: StopReason, message: String, now: Timestamp) {
        let container = &self.containers[i];
        let Some(id) = container.run_id().cloned() else {
            return;
        };
        let name = container.name.clone();
        let spec = self.object.container(&name);
        let probe_grace = spec.as_ref().and_then(|s| match reason {
            StopReason::Probe(probe::Kind::Startup) => {
                s.startup_probe.as_ref()?.termination_grace_period_seconds
            }
            StopReason::Probe(_) => s.liveness_probe.as_ref()?.termination_grace_period_seconds,
            _ => None,
        });
        let grace_seconds = match (&self.termination, reason) {
            (Some(termination), _) => termination.grace_seconds(),
            (None, StopReason::All) => 0,
            _ => grace::container_seconds(
                self.object.deletion_grace_seconds(),
                self.object.spec().termination_grace_period_seconds,
                probe_grace,
            ),
        };
        let hooked = spec.is_some_and(|s| s.lifecycle.as_ref().is_some_and(|l| l.pre_stop.is_some()));
        self.record(Some(i), false, "Killing", message);
        let resumed = self.termination.as_ref().is_some_and(|t| t.is_resumed());
        let has_hook = hooked && grace_seconds > 0 && !resumed;
        let stop = ContainerStop::new(reason, grace_seconds, has_hook, now);
        if has_hook {
            self.add_to_timeline(now, "PreStop", Some(&name), None);
            self.out.push(Action::RunHook {
                container: name,
                id,
                hook: Hook::PreStop,
            });
        }
        self.containers[i].operation = Operation::Stopping(stop);
        self.advance_stop(i, now);
    }

    /// Advances the stops of all containers as far as possible.
    pub(super) fn advance_stops(&mut self, now: Timestamp) {
        for i in 0..self.containers.len() {
            self.advance_stop(i, now);
        }
    }

    /// Advances one container's stop as far as possible.
    pub(super) fn advance_stop(&mut self, i: usize, now: Timestamp) {
        let container = &self.containers[i];
        let (Operation::Stopping(stop), Some(id)) = (&container.operation, container.run_id()) else {
            return;
        };
        let (mut stop, id, name) = (stop.clone(), id.clone(), container.name.clone());
        if stop.stage == Stage::PreStop {
            if now < stop.deadline() {
                return self.out.wake_at(stop.deadline());
            }
            self.record(Some(i), true, "FailedPreStopHook", "PreStopHook failed".into());
            self.add_to_timeline(now, "PreStopCut", Some(&name), Some("the grace is over".into()));
            // The stop no longer waits for the hook; the hook may run on while the container does.
            stop.stage = Stage::BeforeTerm;
        }
        let send_term = match stop.stage {
            Stage::BeforeTerm => {
                let in_turn = now >= stop.deadline() || !self.waits_for_other_containers(i);
                if !in_turn {
                    self.out.wake_at(stop.deadline());
                }
                in_turn && !self.barrier_holds(now)
            }
            Stage::RetryAt(at) if at > now => {
                self.out.wake_at(at);
                false
            }
            Stage::RetryAt(_) => {
                // It is not known whether TERM was delivered: the full grace period starts again (T4).
                stop.began = now;
                true
            }
            Stage::PreStop | Stage::Term { .. } => false,
        };
        if send_term {
            let seconds = stop.send_term(now);
            self.add_to_timeline(now, "Term", Some(&name), Some(format!("KILL after {seconds}s")));
            self.out.push(Action::StopContainer {
                id,
                grace_seconds: seconds,
            });
        }
        self.containers[i].operation = Operation::Stopping(stop);
    }

    /// Whether a sidecar's TERM waits: sidecars stop after the app containers, in reverse order (L10).
    fn waits_for_other_containers(&self, i: usize) -> bool {
        self.termination.is_some()
            && self.containers[i].role == Role::Sidecar
            && self.containers.iter().enumerate().any(|(j, other)| {
                let before = match other.role {
                    Role::App | Role::Init => true,
                    Role::Sidecar => j > i,
                    Role::Ephemeral => false,
                };
                j != i && before && other.has_processes()
            })
    }

    pub(super) fn pre_stop_done(
        &mut self,
        id: &ContainerId,
        result: Result<(), ActionError>,
        now: Timestamp,
    ) {
        let Some(i) = self.by_id(id) else { return };
        let Operation::Stopping(stop) = &mut self.containers[i].operation else {
            return;
        };
        if !stop.pre_stop_done() {
            return;
        }
        let name = self.containers[i].name.clone();
        let detail = result.is_err().then(|| "failed".to_string());
        self.add_to_timeline(now, "PreStopDone", Some(&name), detail);
        if result.is_err() {
            self.record(Some(i), true, "FailedPreStopHook", "PreStopHook failed".into());
        }
        self.advance_stop(i, now);
    }

    pub(super) fn stop_failed(&mut self, id: &ContainerId, now: Timestamp) {
        let Some(i) = self.by_id(id) else { return };
        if let Operation::Stopping(stop) = &mut self.containers[i].operation {
            let again = now + RETRY;
            stop.stage = Stage::RetryAt(again);
            self.out.wake_at(again);
        }
    }

    /// The pod's grace period got shorter.
    pub(super) fn shorten_stops(&mut self, grace_seconds: i64, now: Timestamp) {
        for container in &mut self.containers {
            let Some(id) = container.run_id().cloned() else {
                continue;
            };
            let Operation::Stopping(stop) = &mut container.operation else {
                continue;
            };
            if let Some(grace_seconds) = stop.shorten(grace_seconds, now) {
                self.out.push(Action::StopContainer { id, grace_seconds });
            }
        }
    }
}
