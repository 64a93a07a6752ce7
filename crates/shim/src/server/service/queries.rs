//! Requests that change nothing but a stream: `State`, `Wait`, `Connect`, `Pids`, `Stats`, `ResizePty`, `CloseIO`.

use containerd_shim_protos::api::{
    CloseIORequest, ConnectRequest, ConnectResponse, PidsRequest, PidsResponse, ProcessInfo,
    ResizePtyRequest, StateRequest, StateResponse, StatsRequest, StatsResponse, Status, WaitRequest,
};
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::shim::oci::ProcessDetails;
use rustix::process::getpid;

use super::{Answer, encode};
use crate::error::Failure;
use crate::server::Server;
use crate::stdio::console;
use crate::task::{Container, State, pid_number};
use crate::ttrpc::connection::ReplyTo;

impl Server {
    pub(super) fn state(&mut self, request: &StateRequest) -> Answer {
        let container = self.container(&request.id)?;
        // A borrow for the lookup of the process, and one for the rest.
        container.process(&request.exec_id)?;
        let container: &Container = container;
        let process = match container.execs.get(&request.exec_id) {
            Some(exec) => &exec.process,
            None => &container.init,
        };
        let status = match container.state(process) {
            State::Created => Status::CREATED,
            State::Running => Status::RUNNING,
            State::Paused => Status::PAUSED,
            State::Stopped => Status::STOPPED,
        };
        let id = if request.exec_id.is_empty() {
            &request.id
        } else {
            &request.exec_id
        };
        let mut response = StateResponse {
            id: id.clone(),
            bundle: container.bundle.path().to_string_lossy().into_owned(),
            pid: process.pid.map_or(0, pid_number),
            status: status.into(),
            stdin: process.stdio.stdin.clone(),
            stdout: process.stdio.stdout.clone(),
            stderr: process.stdio.stderr.clone(),
            terminal: process.stdio.terminal,
            exec_id: request.exec_id.clone(),
            ..StateResponse::default()
        };
        if let Some(exit) = process.exit {
            response.exit_status = exit.status;
            response.exited_at = exit.at.to_message();
        }
        encode::message(&response).map(Some)
    }

    pub(super) fn wait(&mut self, request: &WaitRequest, reply: ReplyTo) -> Answer {
        let process = self.container(&request.id)?.process(&request.exec_id)?;
        match process.exit {
            Some(exit) => encode::wait_response(exit).map(Some),
            None => {
                process.waiting.push(reply);
                Ok(None)
            }
        }
    }

    /// containerd asks this after its restart, also for a container that was never created.
    pub(super) fn connect(&mut self, request: &ConnectRequest) -> Answer {
        let container = self.containers.get(&request.id);
        let response = ConnectResponse {
            shim_pid: pid_number(getpid()),
            task_pid: container
                .and_then(|container| container.init.pid)
                .map_or(0, pid_number),
            ..ConnectResponse::default()
        };
        encode::message(&response).map(Some)
    }

    pub(super) fn pids(&mut self, request: &PidsRequest) -> Answer {
        let container = self.container(&request.id)?;
        let Some(cgroup) = &container.cgroup else {
            return Err(Failure::not_found("cgroup does not exist"));
        };
        let pids = cgroup
            .processes()
            .map_err(|e| Failure::because("cannot read the container's cgroup", &e))?;
        let exec_of = |pid: u32| {
            let mut execs = container.execs.iter();
            execs
                .find(|(_, exec)| exec.process.pid.map(pid_number) == Some(pid))
                .map(|(id, _)| id)
        };
        let mut response = PidsResponse::new();
        for pid in pids {
            let mut info = ProcessInfo {
                pid,
                ..ProcessInfo::default()
            };
            if let Some(exec_id) = exec_of(pid) {
                let details = ProcessDetails {
                    exec_id: exec_id.clone(),
                    ..ProcessDetails::default()
                };
                info.info = MessageField::some(Any {
                    type_url: "containerd.runc.v1.ProcessDetails".into(),
                    value: details
                        .write_to_bytes()
                        .map_err(|e| Failure::because("cannot encode the answer", &e))?,
                    ..Any::default()
                });
            }
            response.processes.push(info);
        }
        encode::message(&response).map(Some)
    }

    pub(super) fn stats(&mut self, request: &StatsRequest) -> Answer {
        let container = self.container(&request.id)?;
        let Some(cgroup) = &container.cgroup else {
            return Err(Failure::not_found("cgroup does not exist"));
        };
        let stats = cgroup
            .stats()
            .map_err(|e| Failure::because("cannot read the container's cgroup", &e))?;
        let response = StatsResponse {
            stats: MessageField::some(stats),
            ..StatsResponse::default()
        };
        encode::message(&response).map(Some)
    }

    pub(super) fn resize_pty(&mut self, request: &ResizePtyRequest) -> Answer {
        let process = self.container(&request.id)?.process(&request.exec_id)?;
        if let Some(master) = &process.io.console {
            console::resize(master, request.width, request.height)
                .map_err(|e| Failure::because("cannot resize the terminal", &e))?;
        }
        encode::empty().map(Some)
    }

    pub(super) fn close_io(&mut self, request: &CloseIORequest) -> Answer {
        let process = self.container(&request.id)?.process(&request.exec_id)?;
        if request.stdin {
            // The end comes when containerd has closed its end, too, and everything has been read.
            process.io.stdin = None;
        }
        encode::empty().map(Some)
    }
}
