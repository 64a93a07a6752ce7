//! The known state of a pod's containers: from the API's status, and from the runtime's list.
//!
//! Running containers are adopted, exits that happened without a kubelet are reported, and a container that the runtime
//! does not have any more counts as exited (`ContainerStatusUnknown`).

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::clock_jump::moved;
use super::container::{
    Container, Operation, Role, Run, RunState, Starting, container_status_unknown, definition_hash,
    ephemeral_as_container, exit_unknown, terminated,
};
use super::{Action, Pod};
use crate::probe::Kind;
use crate::runtime::{self, ContainerState};

/// The message of an init container that is reported as completed without a record of its run.
const INIT_STATUS_UNKNOWN: &str = "Unable to get init container status from container runtime and pod has been initialized, \
                            treat it as exited normally";

/// How long a request of an earlier kubelet to the runtime may take (the default of `runtimeRequestTimeout`).
const RUNTIME_REQUEST_TIMEOUT: SignedDuration = SignedDuration::from_mins(2);

impl Pod {
    /// Brings the containers in line with the spec: ephemeral containers may be new, images may have changed.
    pub(super) fn update_containers(&mut self) {
        let spec = self.object.spec().clone();
        let init = spec.init_containers.iter().flatten().map(|c| {
            let sidecar = c.restart_policy.as_deref() == Some("Always");
            (if sidecar { Role::Sidecar } else { Role::Init }, c.clone())
        });
        let app = spec.containers.iter().map(|c| (Role::App, c.clone()));
        let ephemeral = spec.ephemeral_containers.iter().flatten();
        let ephemeral = ephemeral.map(|c| (Role::Ephemeral, ephemeral_as_container(c)));
        for (role, container) in init.chain(app).chain(ephemeral) {
            let hash = definition_hash(&container);
            match self.by_name(&container.name) {
                Some(i) => self.containers[i].redefine(hash),
                None => {
                    let mut new = Container::new(container.name, role, hash);
                    self.recall(&mut new);
                    new.resources
                        .allocate_first(container.resources.unwrap_or_default());
                    self.containers.push(new);
                }
            }
        }
    }

    /// Restores a container from the API's status: terminations and restart counts outlive the runtime's records (L4).
    fn recall(&self, container: &mut Container) {
        let Some(known) = self.object.status_of(container) else {
            return;
        };
        container.resources.recall(known.resources.clone());
        let termination = known.state.as_ref().and_then(|s| s.terminated.clone());
        let last = known.last_state.as_ref().and_then(|s| s.terminated.clone());
        let ran = known.state.as_ref().is_some_and(|s| s.running.is_some());
        let count = u32::try_from(known.restart_count).unwrap_or(0);
        let run = |end| Run {
            id: known
                .container_id
                .as_deref()
                .and_then(|id| id.split_once("://"))
                .map(|(_, id)| id.into()),
            sandbox: None,
            attempt: count,
            state: RunState::Exited(Box::new(end)),
            image: known.image.clone(),
            image_id: known.image_id.clone(),
            hash: container.hash().to_string(),
        };
        let (exited, running) = match termination {
            Some(end) => (Some(run(end)), None),
            None => (None, ran.then(|| run(container_status_unknown()))),
        };
        container.runs.recall(count, last, exited, running);
    }

    /// A container that the API's status reports as running and that the runtime's first list does not have has exited.
    pub(super) fn mark_lost_containers(&mut self) {
        for container in &mut self.containers {
            let is_idle = container.is_idle();
            container.runs.settle_reported(is_idle);
        }
    }

    /// Applies a list of the runtime that began at `since`: adopts running containers, and handles the exits of those that
    /// are not listed. What changed after `since` stays as it is.
    pub(super) fn observe(
        &mut self,
        since: Timestamp,
        sandboxes: Vec<runtime::Sandbox>,
        containers: Vec<runtime::Container>,
        now: Timestamp,
    ) {
        self.observe_sandboxes(since, sandboxes);
        for i in 0..self.containers.len() {
            let mut runs: Vec<_> = containers
                .iter()
                .filter(|c| c.name == self.containers[i].name)
                .collect();
            runs.sort_by_key(|c| (c.attempt, c.created_at));
            self.observe_container(i, &runs, since, now);
        }
        self.mark_init_containers_completed();
        if self.termination.is_none() && self.status_changed(now) {
            self.report_status(now);
        }
    }

    /// An init container without any record counts as completed if an app container has run in the same sandbox: its
    /// container was removed, and the status of a static pod is not kept anywhere else.
    fn mark_init_containers_completed(&mut self) {
        let Some(current) = self.sandboxes.ready().cloned() else {
            return;
        };
        if !self
            .containers
            .iter()
            .any(|c| c.role == Role::App && self.ran_in_current_sandbox(c))
        {
            return;
        }
        let unknown = |c: &&mut Container| c.role == Role::Init && c.runs.are_unknown() && c.is_idle();
        for container in self.containers.iter_mut().filter(unknown) {
            container.runs.assume(Run {
                id: None,
                sandbox: Some(current.clone()),
                attempt: 0,
                state: RunState::Exited(Box::new(core::ContainerStateTerminated {
                    reason: Some("Completed".into()),
                    message: Some(INIT_STATUS_UNKNOWN.into()),
                    ..core::ContainerStateTerminated::default()
                })),
                image: String::new(),
                image_id: String::new(),
                hash: container.hash().to_string(),
            });
        }
    }

    fn observe_container(
        &mut self,
        i: usize,
        runs: &[&runtime::Container],
        since: Timestamp,
        now: Timestamp,
    ) {
        let container = &mut self.containers[i];
        if let Some(newest) = runs.last() {
            container.runs.observe_attempt(newest.attempt);
        }
        // An operation in progress ends with its own event, except a stop of a container that does not exist any more.
        match &container.operation {
            Operation::None | Operation::Stopping(_) => {}
            _ => return,
        }
        let current = container.run_id().cloned();
        let seen = runs.iter().find(|run| Some(&run.id) == current.as_ref());
        if let Some(seen) = seen {
            container.runs.observe_sandbox(&seen.sandbox_id);
        }
        if let Some(started_at) = container.running_since() {
            let Some(id) = current else { return };
            match seen.map(|s| &s.state) {
                Some(ContainerState::Exited(exit)) => self.container_exited(&id, exit.clone(), now),
                Some(_) => {}
                None if container.runs.by_present_clock(started_at) >= since => {}
                None => self.container_exited(&id, exit_unknown(started_at, now), now),
            }
            return;
        }
        // Only a kubelet that has just started finds runs that it does not know.
        let Some(newest) = runs.last().filter(|newest| Some(&newest.id) != current.as_ref()) else {
            return;
        };
        if !container.runs.is_dead(&newest.id) && !self.removals.has_container(&newest.id) {
            self.adopt(i, runs, newest, now);
        }
    }

    fn adopt(&mut self, i: usize, runs: &[&runtime::Container], newest: &runtime::Container, now: Timestamp) {
        let known = self.object.status_of(&self.containers[i]).cloned();
        let container = &mut self.containers[i];
        let older: Vec<&&runtime::Container> = runs.iter().filter(|r| r.id != newest.id).collect();
        let older_ids = older.iter().map(|r| r.id.clone()).collect();
        container.runs.find(&newest.sandbox_id, older_ids);
        let before = older.last().and_then(|r| match &r.state {
            ContainerState::Exited(exit) => Some(terminated(&r.id, exit, None)),
            _ => None,
        });
        let run = |state| Run {
            id: Some(newest.id.clone()),
            sandbox: Some(newest.sandbox_id.clone()),
            attempt: newest.attempt,
            state,
            image: newest.image.clone(),
            image_id: newest.image_id.clone(),
            hash: newest.hash.clone(),
        };
        let previous = before.or_else(|| known.as_ref()?.last_state.as_ref()?.terminated.clone());
        match &newest.state {
            ContainerState::Running { started_at } => {
                let started_at = *started_at;
                container
                    .runs
                    .adopt(run(RunState::Running { started_at }), previous, now);
                self.probing_since.get_or_insert(now);
                // The clock may have been set back while no kubelet ran.
                self.make_probes(i, started_at.min(now));
                let same = known.filter(|k| {
                    k.container_id.as_deref().and_then(|id| id.rsplit('/').next()) == Some(newest.id.as_str())
                });
                let container = &mut self.containers[i];
                let shown = same.as_ref().and_then(|k| k.resources.clone());
                let actual = shown.unwrap_or_else(|| self.object.desired_resources(&container.name));
                container.resources.adopt(actual);
                if let Some(known) = same {
                    if known.started == Some(true) {
                        container.probes.remember_success(Kind::Startup);
                    }
                    if known.ready {
                        container.probes.remember_success(Kind::Readiness);
                    }
                }
            }
            ContainerState::Exited(exit) => {
                let end = terminated(&newest.id, exit, None);
                let exited = run(RunState::Exited(Box::new(end.clone())));
                container.runs.adopt(exited, previous, now);
                self.history
                    .add_termination(&container.name, newest.attempt, &end);
            }
            ContainerState::Created => {
                container.operation = Operation::Created(Starting {
                    id: newest.id.clone(),
                    attempt: newest.attempt,
                    exit: None,
                    in_flight_until: Some(moved(now, RUNTIME_REQUEST_TIMEOUT)),
                });
                container.runs.adopt_created(newest.attempt);
            }
            ContainerState::Unknown => {
                container.runs.add_dead(newest.id.clone());
                self.out.push(Action::StopContainer {
                    id: newest.id.clone(),
                    grace_seconds: crate::grace::MINIMUM_SECONDS,
                });
            }
        }
    }
}
