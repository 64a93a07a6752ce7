//! Stopping one container: its preStop hook, TERM once it is its turn, KILL when the grace period is over (SPEC T2, T3, L10).

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::ContainerId;

use super::container::{ContainerStop, Stage, StopReason};
use super::{Action, ActionError, Hook, Operation, Pod, Role};
use crate::grace;
use crate::probe;

/// Wait before a stop that failed is tried again.
const RETRY: SignedDuration = SignedDuration::from_secs(1);

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
        if stop.stage() == Stage::PreStop {
            if now < stop.deadline() {
                return self.out.wake_at(stop.deadline());
            }
            self.record(Some(i), true, "FailedPreStopHook", "PreStopHook failed".into());
            self.add_to_timeline(now, "PreStopCut", Some(&name), Some("the grace is over".into()));
            stop.stop_waiting_for_hook();
        }
        let send_term = match stop.stage() {
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
                stop.begin_again(now);
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
                before && other.has_processes()
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
            stop.retry_at(again);
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
