//! When a pod's containers are probed, and what follows from the results.

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::ContainerId;

use super::container::{Operation, Probes, StopReason};
use super::{Action, Container, Pod, Role};
use crate::probe::{Kind, ProbeResult};

impl Pod {
    pub(super) fn make_probes(&mut self, i: usize, started_at: Timestamp) {
        let container = &mut self.containers[i];
        if let Some(spec) = self.object.container(&container.name)
            && matches!(container.role, Role::Sidecar | Role::App)
        {
            let since = self.probing_since.unwrap_or(started_at);
            container.probes = Probes::new(&spec, started_at, since);
        }
    }

    /// Runs the probes that are due, and sets the timer for the next.
    pub(super) fn probe(&mut self, now: Timestamp) {
        // App containers that start together are reported as running together; the readiness probes begin after that.
        let is_starting = |c: &Container| {
            let in_progress = matches!(
                c.operation,
                Operation::Inspecting
                    | Operation::Creating { .. }
                    | Operation::Created { .. }
                    | Operation::Starting { .. }
            );
            c.role == Role::App && c.runs.latest().is_none() && in_progress
        };
        let app_is_starting = self.containers.iter().any(is_starting);
        for container in self.containers.iter_mut().filter(|c| c.is_running()) {
            let Some(id) = container.run_id().cloned() else {
                continue;
            };
            let started = container.started();
            // While the container is being stopped only readiness is probed.
            let stopping =
                matches!(container.operation, Operation::Stopping(_)) || self.termination.is_some();
            for probe in container.probes.iter_mut() {
                let held = match probe.kind() {
                    Kind::Startup => started || stopping,
                    Kind::Liveness => !started || stopping,
                    Kind::Readiness => !started || app_is_starting && container.role == Role::App,
                };
                probe.hold(held, now);
                if held {
                    continue;
                }
                if probe.due(now) {
                    self.out.push(Action::Probe {
                        container: container.name.clone(),
                        id: id.clone(),
                        kind: probe.kind(),
                    });
                } else if let Some(at) = probe.due_at() {
                    self.out.wake_at(at);
                }
            }
        }
    }

    pub(super) fn probed(&mut self, id: &ContainerId, kind: Kind, result: ProbeResult, now: Timestamp) {
        let Some(i) = self.by_id(id) else { return };
        let Some(changed) = self.containers[i].probes.record(kind, &result) else {
            return;
        };
        let title = kind.title();
        let event = match &result {
            ProbeResult::Success => None,
            ProbeResult::Warning(output) => {
                Some(("ProbeWarning", format!("{title} probe warning: {output}")))
            }
            ProbeResult::Failure(output) => Some(("Unhealthy", format!("{title} probe failed: {output}"))),
            ProbeResult::Unknown(why) => Some((
                "Unhealthy",
                format!("{title} probe errored and resulted in unknown state: {why}"),
            )),
        };
        if let Some((reason, message)) = event {
            self.record(Some(i), true, reason, message);
        }
        match changed {
            Some(false) if kind != Kind::Readiness && self.termination.is_none() => {
                self.stop_unhealthy(i, kind, now);
            }
            // A terminating pod still reports its readiness: endpoints depend on it.
            Some(_) if kind == Kind::Readiness || self.termination.is_none() => self.report_status(now),
            _ => {}
        }
    }

    fn stop_unhealthy(&mut self, i: usize, kind: Kind, now: Timestamp) {
        let will_restart = self.may_restart(i);
        self.containers[i].restart.set_given_up(!will_restart);
        let is_last = !will_restart && self.is_complete();
        // restartPolicyRules decide once there is an exit code.
        let spec = self.object.container(&self.containers[i].name);
        if spec.is_some_and(|c| c.restart_policy_rules.as_ref().is_some_and(|r| !r.is_empty())) {
            self.containers[i].restart.set_given_up(false);
        } else if is_last {
            // No other container would keep running: the pod terminates, with its sidecars.
            return;
        }
        let name = &self.containers[i].name;
        let title = kind.title().to_lowercase();
        let message = match (self.containers[i].role, will_restart) {
            _ if is_last => format!("Stopping container {name}"),
            (Role::Sidecar, _) => format!("Init container {name} failed {title} probe"),
            (_, true) => format!("Container {name} failed {title} probe, will be restarted"),
            (_, false) => format!("Container {name} failed {title} probe"),
        };
        // The last one gets the pod's own grace period.
        let reason = if is_last {
            StopReason::Changed
        } else {
            StopReason::Probe(kind)
        };
        self.stop(i, reason, message, now);
    }
}
