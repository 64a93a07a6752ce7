//! Restarting all of a pod's containers in place, as a rule of one of them asks when that ends with a certain code
//! (`RestartAllContainers`): the others are ended without their grace, and in the same sandbox the pod begins from the
//! beginning, init containers first.
//!
//! What ended is removed once all have: a kubelet that comes back in the middle sees by that how far it got.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;

use super::container::{RunState, Work};
use super::end::StopReason;
use super::status::Answer;
use super::{Action, Container, Pod, Role};

const ACTION: &str = "RestartAllContainers";
/// The reason that containers wait for, and that they have ended for.
const REASON: &str = "RestartingAllContainers";
const MESSAGE: &str = "The container is removed because RestartAllContainers in place";
pub(super) const CONDITION: &str = "AllContainersRestarting";

/// All but those that users brought in later.
fn is_restarted(container: &Container) -> bool {
    container.role != Role::Ephemeral
}

/// It was removed, and nothing has begun anew yet.
pub(super) fn is_removed(container: &Container) -> bool {
    matches!(container.waiting, Some((REASON, _)))
}

/// It was removed, another has begun anew, and this one has not yet.
pub(super) fn begins_anew(container: &Container) -> bool {
    container.run.as_ref().is_some_and(|run| run.id.is_empty()) && !is_removed(container)
}

/// Whether a status says that all containers were restarted in place: only then may a pod that ran be pending.
pub(super) fn is_shown(status: &core::PodStatus) -> bool {
    let last = |c: &core::ContainerStatus| c.last_state.as_ref()?.terminated.as_ref()?.reason.clone();
    let apps = status.container_statuses.iter().flatten();
    apps.filter_map(last).any(|reason| reason == REASON)
}

impl Pod {
    /// Goes as far as it goes now. Whether there is something of it left to be waited for.
    pub(super) fn restart_all(&mut self, now: Timestamp) -> bool {
        let restarts = self.restarts_all();
        if restarts != self.restarting_all {
            // It also ends where the sandbox is lost: then all begins from the beginning anyway.
            self.restarting_all = restarts;
            self.tell(now);
        }
        if !restarts {
            return false;
        }
        for i in 0..self.containers.len() {
            let container = &self.containers[i];
            let ends = is_restarted(container) && container.running_since().is_some();
            if ends && container.work == Work::None {
                self.stop(i, StopReason::All, "killing".into(), now);
            }
        }
        // What was made, and not started, never is.
        for container in self.containers.iter_mut().filter(|c| is_restarted(c)) {
            if let Work::Created { id, .. } = &container.work {
                container.remains.push(id.clone());
                container.work = Work::None;
            }
        }
        let in_work = |c: &Container| c.has_processes() || c.work != Work::None;
        if self.containers.iter().any(|c| is_restarted(c) && in_work(c)) {
            return true;
        }
        for container in self.containers.iter_mut().filter(|c| is_restarted(c)) {
            let Some(run) = &mut container.run else { continue };
            let ended = core::ContainerStateTerminated {
                exit_code: 137,
                reason: Some(REASON.into()),
                message: Some(MESSAGE.into()),
                ..core::ContainerStateTerminated::default()
            };
            run.state = RunState::Exited(Box::new(ended));
            // Counted from now on, not from the next start.
            run.attempt = container.attempts;
            // Of no sandbox that is: nothing of it counts as having run.
            run.sandbox.clear();
            let id = std::mem::take(&mut run.id);
            container.waiting = Some((REASON, MESSAGE.into()));
            container.anew = true;
            container.crash.reset();
            for id in container.remains.drain(..).chain([id]) {
                if !id.is_empty() && !self.removing.contains(&id) {
                    self.removing.push(id.clone());
                    self.out.push(Action::RemoveContainer { id });
                }
            }
        }
        self.restarting_all = false;
        self.tell(now);
        false
    }

    /// The first container of a new beginning runs: the others wait as they did for the first time.
    pub(super) fn restart_all_begun(&mut self) {
        let fallback = self.waiting_reason();
        let removed = self.containers.iter_mut().filter(|c| is_removed(c));
        removed.for_each(|container| container.waiting = Some((fallback, String::new())));
    }

    /// Whether a container of the sandbox in use has ended so that all are to be restarted.
    pub(super) fn restarts_all(&self) -> bool {
        (0..self.containers.len()).any(|i| {
            let container = &self.containers[i];
            let end = container.exited().filter(|_| self.ran_here(container));
            end.is_some_and(|end| self.rule_after(i, end.exit_code).as_deref() == Some(ACTION))
        })
    }

    /// The condition, for pods that could come to that.
    pub(super) fn restart_all_condition(&self, phase: &str) -> Option<Answer> {
        let spec = self.spec();
        let mut containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        let asks = |c: &core::Container| {
            c.restart_policy_rules
                .iter()
                .flatten()
                .any(|rule| rule.action == ACTION)
        };
        if !containers.any(asks) {
            return None;
        }
        Some(match phase {
            "Succeeded" => (false, Some("PodCompleted".into()), None),
            "Failed" => (false, Some("PodFailed".into()), None),
            _ if self.restarting_all => (
                true,
                Some("RestartAllContainersStarted".into()),
                Some("container exited with restart policy rule".into()),
            ),
            _ => (false, None, None),
        })
    }
}
