//! What is found of a pod's containers: what the API remembers of them, and what the runtime holds.
//!
//! What runs is adopted, what has ended unseen is told, and what is gone without a trace has ended too.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;

use super::clock_jump::moved;
use super::container::{
    Container, Role, Run, RunState, Work, behind, definition_hash, ephemeral_as_container,
    lost_without_a_trace, status_of, terminated,
};
use super::sandbox::Sandbox;
use super::{Action, Pod};
use crate::probe;
use crate::runtime::{self, ContainerState, Exit};

/// Why an init container is shown as completed that nobody saw.
const INIT_UNKNOWN: &str = "Unable to get init container status from container runtime and pod has been initialized, \
                            treat it as exited normally";

impl Pod {
    /// Brings the containers in line with the spec: ephemeral ones may have come, images may have changed.
    pub(super) fn update_containers(&mut self) {
        let spec = self.spec().clone();
        let init = spec.init_containers.iter().flatten().map(|c| {
            let sidecar = c.restart_policy.as_deref() == Some("Always");
            (if sidecar { Role::Sidecar } else { Role::Init }, c.clone())
        });
        let app = spec.containers.iter().map(|c| (Role::App, c.clone()));
        let ephemeral = spec.ephemeral_containers.iter().flatten();
        let ephemeral = ephemeral.map(|c| (Role::Ephemeral, ephemeral_as_container(c)));
        let wanted: Vec<_> = init.chain(app).chain(ephemeral).collect();
        for (role, container) in wanted {
            let hash = definition_hash(&container);
            match self.by_name(&container.name) {
                Some(i) => self.containers[i].redefine(hash),
                None => {
                    let mut new = Container::new(container.name.clone(), role);
                    new.hash = hash;
                    self.recall(&mut new);
                    new.allocated
                        .get_or_insert(container.resources.unwrap_or_default());
                    self.containers.push(new);
                }
            }
        }
    }

    /// What the API remembers of a container from before: ends and counts survive the runtime's forgetting (L4).
    fn recall(&self, container: &mut Container) {
        let status = self.object.status.as_ref();
        let Some(known) = status.and_then(|s| status_of(s, container)) else {
            return;
        };
        container.allocated.clone_from(&known.resources);
        let ended = known.state.as_ref().and_then(|s| s.terminated.clone());
        let last = known.last_state.as_ref().and_then(|s| s.terminated.clone());
        let ran = known.state.as_ref().is_some_and(|s| s.running.is_some());
        let count = u32::try_from(known.restart_count).unwrap_or(0);
        let run = |end| Run {
            id: known
                .container_id
                .as_deref()
                .and_then(|id| id.split_once("://"))
                .map_or_else(String::new, |(_, id)| id.to_string()),
            sandbox: String::new(),
            attempt: count,
            state: RunState::Exited(Box::new(end)),
            image: known.image.clone(),
            image_id: known.image_id.clone(),
            hash: container.hash.clone(),
        };
        let (end, lost) = match ended {
            Some(end) => (Some(run(end)), None),
            None => (None, ran.then(|| run(lost_without_a_trace()))),
        };
        container.attempts = count + u32::from(ran || end.is_some() || last.is_some());
        container.previous = last;
        container.run = end;
        container.lost = lost;
    }

    /// What ran by the API's memory, and was not found when the runtime was first looked at, has ended.
    pub(super) fn take_losses(&mut self) {
        for container in &mut self.containers {
            let lost = container.lost.take();
            if container.run.is_none() && container.work == Work::None {
                container.run = lost;
            }
        }
    }

    /// Takes in a look at the runtime: adopts what runs, and takes note of what is gone. What changed after
    /// the look began is left alone.
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
        self.take_for_completed();
        if self.ending.is_none() && self.has_news(now) {
            self.tell(now);
        }
    }

    /// An init container of which nothing is known, beside others that ran after it, has done its work: its record is
    /// gone with its container, and nothing else remembers a static pod's.
    fn take_for_completed(&mut self) {
        let in_use = match &self.sandbox {
            Sandbox::Ready { id, .. } => id.clone(),
            _ => return,
        };
        if !self
            .containers
            .iter()
            .any(|c| c.role == Role::App && self.ran_here(c))
        {
            return;
        }
        let unknown = |c: &&mut Container| {
            c.role == Role::Init && c.run.is_none() && c.lost.is_none() && c.work == Work::None
        };
        for container in self.containers.iter_mut().filter(unknown) {
            container.run = Some(Run {
                id: String::new(),
                sandbox: in_use.clone(),
                attempt: 0,
                state: RunState::Exited(Box::new(core::ContainerStateTerminated {
                    exit_code: 0,
                    reason: Some("Completed".into()),
                    message: Some(INIT_UNKNOWN.into()),
                    ..core::ContainerStateTerminated::default()
                })),
                image: String::new(),
                image_id: String::new(),
                hash: container.hash.clone(),
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
            container.attempts = container.attempts.max(newest.attempt + 1);
        }
        let current = container.run.as_ref().map(|r| r.id.clone());
        let seen = current
            .as_ref()
            .and_then(|id| runs.iter().find(|r| r.id == *id))
            .copied();
        // What is under way has its own answer to come, except a stop whose container is gone.
        match &container.work {
            Work::None | Work::Stopping(_) => {}
            _ => return,
        }
        if let Some((run, seen)) = container.run.as_mut().zip(seen) {
            run.sandbox.clone_from(&seen.sandbox_id);
        }
        if let Some(started_at) = container.running_since() {
            let id = current.unwrap_or_default();
            match seen.map(|s| &s.state) {
                Some(ContainerState::Exited(exit)) => self.container_exited(&id, exit.clone(), now),
                Some(_) => {}
                None if moved(started_at, container.run_off) >= since => {}
                None => {
                    let exit = Exit {
                        code: 137,
                        reason: "ContainerStatusUnknown".into(),
                        message: "The container could not be located when the pod was terminated".into(),
                        started_at: Some(started_at),
                        finished_at: Some(now),
                    };
                    self.container_exited(&id, exit, now);
                }
            }
            return;
        }
        // Only a kubelet that has just begun finds runs it does not know.
        let Some(newest) = runs.last().filter(|newest| Some(&newest.id) != current.as_ref()) else {
            return;
        };
        if container.remains.contains(&newest.id) || self.removing.contains(&newest.id) {
            return;
        }
        self.adopt(i, runs, newest, now);
    }

    fn adopt(&mut self, i: usize, runs: &[&runtime::Container], newest: &runtime::Container, now: Timestamp) {
        let known = self
            .object
            .status
            .as_ref()
            .and_then(|s| status_of(s, &self.containers[i]))
            .cloned();
        let longest = self.node.longest_restart_wait;
        let container = &mut self.containers[i];
        let older: Vec<&&runtime::Container> = runs.iter().filter(|r| r.id != newest.id).collect();
        container.remains = older.iter().map(|r| r.id.clone()).collect();
        container.sandbox.clone_from(&newest.sandbox_id);
        let before = older.last().and_then(|r| match &r.state {
            ContainerState::Exited(exit) => Some(terminated(&r.id, exit, None)),
            _ => None,
        });
        let run = |state| Run {
            id: newest.id.clone(),
            sandbox: newest.sandbox_id.clone(),
            attempt: newest.attempt,
            state,
            image: newest.image.clone(),
            image_id: newest.image_id.clone(),
            hash: newest.hash.clone(),
        };
        let previous = before.or_else(|| known.as_ref()?.last_state.as_ref()?.terminated.clone());
        match &newest.state {
            ContainerState::Running { started_at } => {
                container.run = Some(run(RunState::Running {
                    started_at: *started_at,
                }));
                container.previous = previous.or_else(|| container.previous.take());
                self.probing_since.get_or_insert(now);
                // The clock may have been set back while no kubelet ran.
                self.make_probes(i, (*started_at).min(now));
                let same = known.filter(|k| {
                    k.container_id.as_deref().and_then(|id| id.rsplit('/').next()) == Some(&newest.id)
                });
                let shown = same.as_ref().and_then(|k| k.resources.clone());
                let given = shown.unwrap_or_else(|| self.wanted(&self.containers[i]));
                self.containers[i].actual = Some(given.clone());
                self.containers[i].allocated = Some(given);
                if let Some(known) = same {
                    for probe in &mut self.containers[i].probes {
                        match probe.kind {
                            probe::Kind::Startup if known.started == Some(true) => probe.remember(true),
                            probe::Kind::Readiness if known.ready => probe.remember(true),
                            _ => {}
                        }
                    }
                }
            }
            ContainerState::Exited(exit) => {
                let end = terminated(&newest.id, exit, None);
                container.run_off = behind(end.finished_at.as_ref(), now);
                let finished_at = moved(exit.finished_at.unwrap_or(now), container.run_off);
                container.run = Some(run(RunState::Exited(Box::new(end.clone()))));
                container.previous = previous.or_else(|| container.previous.take());
                // How often it has failed is what its attempts tell.
                for _ in 0..newest.attempt.min(6) {
                    container.crash.next(finished_at, finished_at, longest);
                }
                let name = container.name.clone();
                self.remember_end(&name, newest.attempt, &end);
            }
            ContainerState::Created => {
                container.work = Work::Created {
                    id: newest.id.clone(),
                    attempt: newest.attempt,
                };
                container.attempts = newest.attempt;
            }
            ContainerState::Unknown => {
                container.remains.push(newest.id.clone());
                self.out.push(Action::StopContainer {
                    id: newest.id.clone(),
                    grace_seconds: crate::grace::MINIMUM_SECONDS,
                });
            }
        }
    }
}
