//! `Start`, `Pause`, `Resume` and `Update`, each an invocation of the OCI runtime; a start only if the shim cannot
//! do it itself, and the others only for what the shim has not made itself.

use containerd_shim_protos::api::{
    PauseRequest, ResumeRequest, StartRequest, StartResponse, UpdateTaskRequest,
};
use containerd_shim_protos::events::task::{TaskPaused, TaskResumed, TaskStart};

use super::sandbox::update_sandbox;
use super::{Answer, Purpose, encode};
use crate::error::Failure;
use crate::log;
use crate::runtime::{RuntimeError, Streams};
use crate::server::Server;
use crate::task::{Container, State, Step, pid_number};
use crate::ttrpc::connection::ReplyTo;

impl Server {
    pub(super) fn container(&mut self, id: &str) -> Result<&mut Container, Failure> {
        let container = self.containers.get_mut(id);
        container.ok_or_else(|| Failure::not_found("container not created"))
    }

    /// Begins a step of a container's first process.
    fn begin_step(&mut self, id: &str, step: Step, argument: &str, purpose: Purpose, what: &str) -> Answer {
        let container = self.container(id)?;
        container.is_of_runtime(step.name())?;
        container.init.begin(step)?;
        let (runtime, bundle) = (container.runtime.clone(), container.bundle.clone());
        match self.invoke(
            &runtime,
            &bundle,
            id,
            &[argument, id],
            Streams::captured(),
            purpose,
        ) {
            Ok(()) => Ok(None),
            Err((error, _)) => {
                // It was begun here: nothing can have happened since.
                self.container(id)?.init.end(false);
                Err(error.during(what))
            }
        }
    }

    pub(super) fn start(&mut self, request: &StartRequest, reply: ReplyTo) -> Answer {
        if !request.exec_id.is_empty() {
            return self.start_exec(&request.id, &request.exec_id, reply);
        }
        if self.start_sandbox(&request.id, reply)? {
            return Ok(None);
        }
        if self.begin_release(&request.id, reply)? {
            return Ok(None);
        }
        let purpose = Purpose::Start(reply);
        self.begin_step(
            &request.id,
            Step::Start,
            "start",
            purpose,
            "OCI runtime start failed",
        )
    }

    pub(super) fn finish_start(&mut self, id: &str, result: Result<(), RuntimeError>, reply: ReplyTo) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let exit = container.init.end(result.is_ok());
        let pid = container.init.pid.map_or(0, pid_number);
        match result {
            Ok(()) => {
                let event = TaskStart {
                    container_id: id.to_owned(),
                    pid,
                    ..TaskStart::default()
                };
                self.publish("/tasks/start", "containerd.events.TaskStart", &event);
                let response = StartResponse {
                    pid,
                    ..StartResponse::default()
                };
                self.answer(reply, encode::message(&response));
            }
            Err(e) => self.answer(reply, Err(e.during("OCI runtime start failed"))),
        }
        if let Some(exit) = exit {
            self.ended(id, "", exit);
        }
    }

    pub(super) fn pause(&mut self, request: &PauseRequest, reply: ReplyTo) -> Answer {
        if let Some(result) = self.freeze_sandbox(&request.id, Step::Pause)? {
            self.finish_pause(&request.id, result, reply);
            return Ok(None);
        }
        let purpose = Purpose::Pause(reply);
        self.begin_step(
            &request.id,
            Step::Pause,
            "pause",
            purpose,
            "OCI runtime pause failed",
        )
    }

    pub(super) fn finish_pause(&mut self, id: &str, result: Result<(), RuntimeError>, reply: ReplyTo) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let exit = container.init.end(result.is_ok());
        let result = result.map_err(|e| e.during("OCI runtime pause failed"));
        if result.is_ok() {
            let event = TaskPaused {
                container_id: id.to_owned(),
                ..TaskPaused::default()
            };
            self.publish("/tasks/paused", "containerd.events.TaskPaused", &event);
        }
        self.answer(reply, result.and_then(|()| encode::empty()));
        if let Some(exit) = exit {
            self.ended(id, "", exit);
        }
    }

    pub(super) fn resume(&mut self, request: &ResumeRequest, reply: ReplyTo) -> Answer {
        if let Some(result) = self.freeze_sandbox(&request.id, Step::Resume)? {
            self.finish_resume(&request.id, result, Some(reply));
            return Ok(None);
        }
        let purpose = Purpose::Resume(Some(reply));
        self.begin_step(
            &request.id,
            Step::Resume,
            "resume",
            purpose,
            "OCI runtime resume failed",
        )
    }

    pub(super) fn finish_resume(
        &mut self,
        id: &str,
        result: Result<(), RuntimeError>,
        reply: Option<ReplyTo>,
    ) {
        let Some(reply) = reply else {
            if let Err(e) = result {
                log::warn(format_args!("cannot resume a container that has exited: {e}"), id);
            }
            return;
        };
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let exit = container.init.end(result.is_ok());
        let result = result.map_err(|e| e.during("OCI runtime resume failed"));
        if result.is_ok() {
            let event = TaskResumed {
                container_id: id.to_owned(),
                ..TaskResumed::default()
            };
            self.publish("/tasks/resumed", "containerd.events.TaskResumed", &event);
        }
        self.answer(reply, result.and_then(|()| encode::empty()));
        if let Some(exit) = exit {
            self.ended(id, "", exit);
        }
    }

    pub(super) fn update(&mut self, request: &UpdateTaskRequest, reply: ReplyTo) -> Answer {
        let container = self.container(&request.id)?;
        if container.init.state == State::Stopped {
            return Err(Failure::unknown("cannot update a stopped container"));
        }
        let Some(resources) = request.resources.as_ref().filter(|any| !any.value.is_empty()) else {
            return Err(Failure::invalid("no resources"));
        };
        if container.sandbox.is_some() {
            return update_sandbox(container, &resources.value);
        }
        let streams = Streams::Captured {
            input: resources.value.clone(),
        };
        let (runtime, bundle) = (container.runtime.clone(), container.bundle.clone());
        let arguments = ["update", "--resources", "-", &request.id];
        self.invoke(
            &runtime,
            &bundle,
            &request.id,
            &arguments,
            streams,
            Purpose::Update(reply),
        )
        .map(|()| None)
        .map_err(|(error, _)| error.during("OCI runtime update failed"))
    }
}
