//! `RestartAllContainers` (KEP 5532): a container's restartPolicyRule restarts all containers of the pod in place when it
//! exits with a certain code. The others are stopped without a grace period, and in the same sandbox the pod starts from
//! the beginning, init containers first.
//!
//! The exited containers are removed once all have exited: a kubelet that restarts in between sees by that how far it got.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;

use super::condition::ConditionValue;
use super::container::{Operation, StopReason, WaitingReason};
use super::{Container, Pod, PodPhase, Role};

const ACTION: &str = "RestartAllContainers";
/// The reason of the containers' waiting state and of their termination.
const REASON: WaitingReason = WaitingReason::RestartingAllContainers;
const MESSAGE: &str = "The container is removed because RestartAllContainers in place";
const CONDITION: &str = "AllContainersRestarting";

/// Whether a restart is in progress, and the condition reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RestartAll {
    #[default]
    NotRequested,
    InProgress,
}

/// All but ephemeral containers.
fn is_restarted(container: &Container) -> bool {
    container.role != Role::Ephemeral
}

/// The container was removed, and no container has been restarted yet.
pub(super) fn is_removed(container: &Container) -> bool {
    container.waits_for(REASON)
}

/// The container was removed, another one has been restarted, and this one has not.
pub(super) fn awaits_restart(container: &Container) -> bool {
    container.runs.latest().is_some_and(|run| run.id.is_none()) && !is_removed(container)
}

/// Whether a status says that all containers were restarted in place: only then may a pod that ran be pending.
pub(super) fn is_shown(status: &core::PodStatus) -> bool {
    let last = |c: &core::ContainerStatus| c.last_state.as_ref()?.terminated.as_ref()?.reason.clone();
    let apps = status.container_statuses.iter().flatten();
    apps.filter_map(last).any(|reason| reason == REASON.as_str())
}

impl Pod {
    /// Advances the restart as far as possible. Returns whether it still waits for something.
    pub(super) fn restart_all(&mut self, now: Timestamp) -> bool {
        // It is also over when the sandbox is lost: then the pod starts from the beginning anyway.
        let state = match self.restart_all_requested() {
            true => RestartAll::InProgress,
            false => RestartAll::NotRequested,
        };
        if state != self.restart_all {
            self.restart_all = state;
            self.report_status(now);
        }
        if state == RestartAll::NotRequested {
            return false;
        }
        for i in 0..self.containers.len() {
            let container = &self.containers[i];
            if is_restarted(container) && container.runs_undisturbed() {
                self.stop(i, StopReason::All, "killing".into(), now);
            }
        }
        // Containers that were created and not started are not started any more.
        for container in self.containers.iter_mut().filter(|c| is_restarted(c)) {
            if matches!(container.operation, Operation::Created { .. }) {
                container.cancel_start();
            }
        }
        let is_busy = |c: &Container| c.has_processes() || !c.is_idle();
        if self.containers.iter().any(|c| is_restarted(c) && is_busy(c)) {
            return true;
        }
        for container in self.containers.iter_mut().filter(|c| is_restarted(c)) {
            let terminated = core::ContainerStateTerminated {
                exit_code: 137,
                reason: Some(REASON.as_str().into()),
                message: Some(MESSAGE.into()),
                ..core::ContainerStateTerminated::default()
            };
            // Without a sandbox the run does not count as run in the current one.
            let Some(removed) = container.runs.discard(terminated) else {
                continue;
            };
            container.wait(REASON, MESSAGE);
            container.restart.force();
            container.back_off.reset_crash();
            for id in removed {
                self.removals.container_once(id, &mut self.out);
            }
        }
        self.restart_all = RestartAll::NotRequested;
        self.report_status(now);
        false
    }

    /// The first container runs again: the others wait with the reason of a pod that starts.
    pub(super) fn restart_all_started(&mut self) {
        let fallback = self.waiting_reason();
        let removed = self.containers.iter_mut().filter(|c| is_removed(c));
        removed.for_each(|container| container.wait(fallback, ""));
    }

    /// Whether a container in the current sandbox has exited with a code that restarts all.
    pub(super) fn restart_all_requested(&self) -> bool {
        (0..self.containers.len()).any(|i| {
            let container = &self.containers[i];
            let end = container
                .exited()
                .filter(|_| self.ran_in_current_sandbox(container));
            end.is_some_and(|end| self.rule_after(i, end.exit_code).as_deref() == Some(ACTION))
        })
    }

    /// The condition, for pods that have such a rule.
    pub(super) fn restart_all_condition(&self, phase: PodPhase) -> Option<(&'static str, ConditionValue)> {
        let spec = self.object.spec();
        let mut containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        let has_rule = |c: &core::Container| {
            c.restart_policy_rules
                .iter()
                .flatten()
                .any(|rule| rule.action == ACTION)
        };
        if !containers.any(has_rule) {
            return None;
        }
        let value = match phase {
            PodPhase::Succeeded => (false, Some("PodCompleted".into()), None),
            PodPhase::Failed => (false, Some("PodFailed".into()), None),
            _ if self.restart_all == RestartAll::InProgress => (
                true,
                Some("RestartAllContainersStarted".into()),
                Some("container exited with restart policy rule".into()),
            ),
            _ => (false, None, None),
        };
        Some((CONDITION, value))
    }
}
