//! Starting a pod and keeping it running: volumes, sandbox, init containers, app containers, restarts.
//!
//! Containers are started one after another, in the spec's order: the next one starts when the one before runs (and its
//! postStart hook is done) or its start has failed.

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;

use super::container::{Operation, StopReason, WaitingReason};
use super::{Action, Container, Pod, Role};
use crate::image;

impl Pod {
    pub(super) fn start(&mut self, now: Timestamp) {
        if self.status.start(now) {
            self.report_status(now);
        }
        if !self.volumes.set_up(now, &mut self.out) {
            return;
        }
        self.stop_changed(now);
        let processes = self.containers.iter().any(Container::has_processes);
        if !self.sandboxes.create(processes, now, &mut self.out) {
            if self.sandboxes.is_creating() {
                self.probing_since.get_or_insert(now);
            }
            return;
        }
        if !self.restart_all(now) {
            self.start_containers(now);
        }
    }

    fn start_containers(&mut self, now: Timestamp) {
        // One container starts at a time.
        if self.containers.iter().any(Container::is_starting) {
            return;
        }
        for i in 0..self.containers.len() {
            if self.containers[i].role == Role::Ephemeral && self.needs_start(i) && self.try_start(i, now) {
                return;
            }
        }
        let initialized = self.initialized();
        for i in 0..self.containers.len() {
            match self.containers[i].role {
                Role::Init if !initialized => {
                    let container = &self.containers[i];
                    let done = container.ready() && self.ran_in_current_sandbox(container);
                    if done && container.waiting.is_none() {
                        continue;
                    }
                    if self.needs_start(i) {
                        self.try_start(i, now);
                    }
                    return;
                }
                Role::Sidecar => {
                    if self.needs_start(i) && self.try_start(i, now) {
                        return;
                    }
                    if !initialized && !self.containers[i].started() {
                        return;
                    }
                }
                Role::App if self.needs_start(i) => {
                    if self.try_start(i, now) {
                        return;
                    }
                }
                Role::Init | Role::App | Role::Ephemeral => {}
            }
        }
    }

    fn needs_start(&self, i: usize) -> bool {
        let container = &self.containers[i];
        match (&container.operation, container.runs.latest()) {
            (Operation::Created { .. }, _) | (Operation::None, None) => true,
            (Operation::None, Some(_)) => container.exited().is_some() && self.will_restart(i),
            _ => false,
        }
    }

    /// Begins to start a container unless it is in back-off. Returns whether a start is in progress.
    fn try_start(&mut self, i: usize, now: Timestamp) -> bool {
        let Some(sandbox) = self.sandboxes.ready().cloned() else {
            return false;
        };
        let container = &mut self.containers[i];
        if let Operation::Created(starting) = container.operation.clone() {
            if self.sandboxes.is_current(container.runs.sandbox()) {
                if let Some(at) = container.back_off.retry_at().filter(|at| *at > now) {
                    self.out.wake_at(at);
                    return false;
                }
                self.start_created(i, starting);
                return true;
            }
            // It was created in a sandbox that is not in use any more.
            container.operation = Operation::None;
            container.runs.add_dead(starting.id);
        }
        if let Some(at) = container.back_off.retry_at().filter(|at| *at > now) {
            self.out.wake_at(at);
            return false;
        }
        if self.in_crash_back_off(i, now) || self.in_pull_back_off(i, now) {
            return false;
        }
        let container = self.containers[i].name.clone();
        let image = self.object.image_of(&container);
        if let Err(why) = image::normalize(&image) {
            let message = format!("Failed to apply default image tag {image:?}: {why}");
            self.record(Some(i), true, "InspectFailed", message.clone());
            self.failed_to_start(i, WaitingReason::InvalidImageName, message, now);
            return false;
        }
        self.containers[i].operation = Operation::Inspecting;
        self.containers[i].runs.start_in(sandbox);
        self.out.push(Action::InspectImage { container, image });
        true
    }

    /// Stops containers whose definition has changed; they are restarted from the new definition.
    fn stop_changed(&mut self, now: Timestamp) {
        for i in 0..self.containers.len() {
            let container = &self.containers[i];
            if container.runs_undisturbed() && container.runs.is_of_other_definition(container.hash()) {
                let message = format!(
                    "Container {} definition changed, will be restarted",
                    container.name
                );
                self.stop(i, StopReason::Changed, message, now);
            }
        }
    }
}
