//! One start of a container: its image, its container in the runtime, its process, its postStart hook.

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::ContainerId;

use super::container::{Operation, Run, RunState, Starting, StopReason, WaitingReason, terminated};
use super::{Action, ActionError, CreateFailure, Hook, Pod, Pulled};
use crate::backoff::go_millis;
use crate::runtime::Exit;

/// The exit code of a container that the runtime could not start.
const START_ERROR: i32 = 128;

/// A start that has failed.
pub(super) struct StartFailure {
    pub(super) id: ContainerId,
    pub(super) message: String,
    pub(super) still_created: bool,
}

impl Pod {
    /// The container of this name if this operation is in progress for it.
    fn in_operation(&self, name: &str, operation: &Operation) -> Option<usize> {
        self.by_name(name)
            .filter(|i| self.containers[*i].operation == *operation)
    }

    pub(super) fn image_inspected(&mut self, name: &str, present: Result<bool, ActionError>, now: Timestamp) {
        let Some(i) = self.in_operation(name, &Operation::Inspecting) else {
            return;
        };
        if self.termination.is_some() {
            self.containers[i].operation = Operation::None;
            return;
        }
        let image = self.object.image_of(name);
        let policy = self
            .object
            .container(name)
            .and_then(|c| c.image_pull_policy.clone());
        match (policy.as_deref().unwrap_or("IfNotPresent"), present) {
            (_, Err(why)) => {
                let message = format!("Failed to inspect image {image:?}: {why}");
                self.record(Some(i), true, "InspectFailed", message.clone());
                self.failed_to_start(i, WaitingReason::ImageInspectError, message, now);
            }
            ("Always", _) | ("IfNotPresent", Ok(false)) => {
                self.record(Some(i), false, "Pulling", format!("Pulling image {image:?}"));
                self.containers[i].operation = Operation::Pulling;
                self.out.push(Action::PullImage {
                    container: name.into(),
                    image,
                });
            }
            (_, Ok(true)) => {
                let message = format!(
                    "Container image {image:?} already present on machine and can be accessed by the pod"
                );
                self.record(Some(i), false, "Pulled", message);
                self.create(i, now);
            }
            (_, Ok(false)) => {
                let message = format!("Container image {image:?} is not present with pull policy of Never");
                self.record(Some(i), true, "ErrImageNeverPull", message.clone());
                self.failed_to_start(i, WaitingReason::ErrImageNeverPull, message, now);
            }
        }
    }

    pub(super) fn image_pulled(&mut self, name: &str, result: Result<Pulled, ActionError>, now: Timestamp) {
        let Some(i) = self.in_operation(name, &Operation::Pulling) else {
            return;
        };
        self.containers[i].operation = Operation::None;
        if self.termination.is_some() {
            return;
        }
        let image = self.object.image_of(name);
        match result {
            Ok(pulled) => {
                self.containers[i].back_off.pulled();
                let message = format!(
                    "Successfully pulled image {image:?} in {} ({} including waiting). Image size: {} bytes.",
                    go_millis(pulled.took),
                    go_millis(pulled.with_waiting),
                    pulled.size_bytes
                );
                self.record(Some(i), false, "Pulled", message);
                self.create(i, now);
            }
            Err(why) => {
                let message = format!("Failed to pull image {image:?}: {why}");
                self.record(Some(i), true, "Failed", message);
                self.record(Some(i), true, "Failed", "Error: ErrImagePull".into());
                let container = &mut self.containers[i];
                container.back_off.pull_failed(why.to_string(), now);
                container.wait(WaitingReason::ErrImagePull, why.to_string());
                self.report_status(now);
            }
        }
    }

    fn create(&mut self, i: usize, now: Timestamp) {
        let ended = self.back_off_since(i, now);
        let container = &mut self.containers[i];
        let sandbox = container.runs.sandbox().cloned();
        // A start whose sandbox has been replaced is decided again (SPEC S3, L10).
        let Some(sandbox) = sandbox.filter(|id| self.sandboxes.is_current(Some(id))) else {
            container.operation = Operation::None;
            return;
        };
        if let Some(ended) = ended {
            let longest = self.node.longest_restart_wait;
            container.back_off.restart(ended, now, longest);
        }
        let attempt = container.runs.next_attempt();
        let desired = self.object.desired_resources(&container.name);
        container.resources.create(desired);
        container.operation = Operation::Creating { attempt };
        self.out.push(Action::CreateContainer {
            container: container.name.clone(),
            sandbox,
            attempt,
        });
    }

    pub(super) fn create_failed(
        &mut self,
        name: &str,
        reason: CreateFailure,
        message: String,
        now: Timestamp,
    ) {
        let Some(i) = self.by_name(name) else { return };
        if !matches!(self.containers[i].operation, Operation::Creating { .. }) {
            return;
        }
        self.containers[i].operation = Operation::None;
        if self.termination.is_none() {
            let reason = match reason {
                CreateFailure::Configuration => WaitingReason::CreateContainerConfigError,
                CreateFailure::Creation => WaitingReason::CreateContainerError,
            };
            self.failed_to_start(i, reason, message, now);
        }
    }

    pub(super) fn container_created(&mut self, name: &str, id: ContainerId) {
        let Some(i) = self.by_name(name) else { return };
        let container = &mut self.containers[i];
        let Operation::Creating { attempt } = container.operation else {
            return self.out.push(Action::RemoveContainer { id });
        };
        if self.termination.is_some() || !self.sandboxes.is_current(container.runs.sandbox()) {
            container.operation = Operation::None;
            container.runs.add_dead(id);
            return;
        }
        self.record(Some(i), false, "Created", "Container created".into());
        let starting = Starting {
            id,
            attempt,
            exit: None,
            in_flight_until: None,
        };
        self.start_created(i, starting);
    }

    pub(super) fn start_created(&mut self, i: usize, starting: Starting) {
        let container = &mut self.containers[i];
        self.out.push(Action::StartContainer {
            container: container.name.clone(),
            id: starting.id.clone(),
        });
        container.operation = Operation::Starting(starting);
    }

    /// Ends the start of this container; with the container's index.
    fn take_starting(&mut self, name: &str, id: &ContainerId) -> Option<(usize, Starting)> {
        let i = self.by_name(name)?;
        let container = &mut self.containers[i];
        match std::mem::take(&mut container.operation) {
            Operation::Starting(starting) if starting.id == *id => Some((i, starting)),
            operation => {
                container.operation = operation;
                None
            }
        }
    }

    pub(super) fn container_started(
        &mut self,
        name: &str,
        id: ContainerId,
        at: Timestamp,
        (image, image_id): (String, String),
        now: Timestamp,
    ) {
        let Some((i, Starting { attempt, exit, .. })) = self.take_starting(name, &id) else {
            return;
        };
        self.record(Some(i), false, "Started", "Container started".into());
        let container = &mut self.containers[i];
        let run = Run {
            id: Some(id.clone()),
            sandbox: container.runs.sandbox().cloned(),
            attempt,
            state: RunState::Running { started_at: at },
            image,
            image_id,
            hash: container.hash().to_string(),
        };
        let spec = self.object.container(name);
        let hooked = spec.is_some_and(|c| c.lifecycle.as_ref().is_some_and(|l| l.post_start.is_some()));
        if hooked && self.termination.is_none() && exit.is_none() {
            container.operation = Operation::PostStart { run };
            self.out.push(Action::RunHook {
                container: name.into(),
                id,
                hook: Hook::PostStart,
            });
            return;
        }
        self.begin_run(i, run, now);
        if self.termination.is_none() {
            self.report_status(now);
        }
        if let Some(exit) = exit {
            self.container_exited(&id, exit, now);
        }
    }

    pub(super) fn start_failed(&mut self, name: &str, failure: StartFailure, now: Timestamp) {
        let StartFailure {
            id,
            message,
            still_created,
        } = failure;
        let Some((i, starting)) = self.take_starting(name, &id) else {
            return;
        };
        let attempt = starting.attempt;
        self.record(Some(i), true, "Failed", format!("Error: {message}"));
        // A failure is final only when no earlier request can start the container any more: its sandbox would be stopped, and
        // it would be killed without its grace period (SPEC T3).
        let may_start = starting.in_flight_until.is_some_and(|until| now < until);
        if may_start && still_created && self.termination.is_none() {
            let container = &mut self.containers[i];
            container.operation = Operation::Created(Starting {
                exit: None,
                ..starting
            });
            container.wait(WaitingReason::RunContainerError, message);
            let retry_at = container.back_off.start_failed(now);
            self.out.wake_at(retry_at);
            return self.report_status(now);
        }
        let exit = Exit {
            code: START_ERROR,
            reason: "StartError".into(),
            message: message.clone(),
            started_at: Some(Timestamp::UNIX_EPOCH),
            finished_at: Some(now),
        };
        let container = &self.containers[i];
        let run = Run {
            state: RunState::Exited(Box::new(terminated(&id, &exit, None))),
            id: Some(id),
            sandbox: container.runs.sandbox().cloned(),
            attempt,
            image: self.object.image_of(name),
            image_id: String::new(),
            hash: container.hash().to_string(),
        };
        self.begin_run(i, run, now);
        self.containers[i].probes.clear();
        if self.will_restart(i) {
            self.containers[i].wait(WaitingReason::RunContainerError, message);
        }
        if self.termination.is_none() {
            self.report_status(now);
        }
    }

    /// Ends the wait for the postStart hook: the run counts as running. `None` if there is no such wait.
    fn end_post_start(&mut self, i: usize, now: Timestamp) -> Option<ContainerId> {
        let operation = std::mem::take(&mut self.containers[i].operation);
        let Operation::PostStart { run } = operation else {
            self.containers[i].operation = operation;
            return None;
        };
        let id = run.id.clone();
        self.begin_run(i, run, now);
        id
    }

    pub(super) fn post_start_done(
        &mut self,
        id: &ContainerId,
        result: Result<(), ActionError>,
        now: Timestamp,
    ) {
        let Some(i) = self.by_id(id) else { return };
        if self.end_post_start(i, now).is_none() {
            return;
        }
        if let Err(why) = result
            && self.termination.is_none()
        {
            let message = "PostStartHook failed".into();
            self.record(Some(i), true, "FailedPostStartHook", message);
            self.containers[i].wait(WaitingReason::PostStartHookError, why.to_string());
            self.stop(i, StopReason::PostStart, "FailedPostStartHook".into(), now);
            return;
        }
        // The container ran before its stop began, and a status reports that.
        self.report_status(now);
    }

    /// The pod's grace period is over and the postStart hook still runs.
    pub(super) fn cancel_post_start_hook(&mut self, i: usize, now: Timestamp) {
        if let Some(id) = self.end_post_start(i, now) {
            let hook = Hook::PostStart;
            self.out.push(Action::CancelHook { id, hook });
        }
    }
}
