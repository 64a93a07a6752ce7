//! `Exec`, and the start of what it describes.

use containerd_shim_protos::api::{ExecProcessRequest, StartResponse};
use containerd_shim_protos::events::task::{TaskExecAdded, TaskExecStarted};
use serde_json::{Map, Value};

use super::create::receive_terminal;
use super::{Answer, Purpose, encode};
use crate::arguments::is_identifier;
use crate::bundle::Bundle;
use crate::clock::WallTime;
use crate::error::Failure;
use crate::exits::Exit;
use crate::runtime::RuntimeError;
use crate::server::Server;
use crate::stdio::console::ConsoleSocket;
use crate::stdio::{Io, Prepared, Stdio};
use crate::task::{Exec, Process, State, Step, pid_number};
use crate::ttrpc::connection::ReplyTo;

/// What a process that was not started has as its exit, for those who wait for it.
const NOT_STARTED: u32 = 255;

/// An exec that is being started.
pub struct Starting {
    id: String,
    prepared: Prepared,
    console: Option<ConsoleSocket>,
    /// The file with the process, for the OCI runtime.
    spec: String,
}

impl Starting {
    fn clean(&self, bundle: &Bundle) {
        bundle.remove(&self.spec);
        if let Some(console) = &self.console {
            console.remove(bundle);
        }
    }
}

/// The file in which the OCI runtime leaves the process id of an exec. The prefix keeps it apart from `init.pid`.
pub(super) fn pid_file(exec: &str) -> String {
    format!("exec-{exec}.pid")
}

impl Server {
    pub(super) fn exec(&mut self, request: ExecProcessRequest) -> Answer {
        let container = self.container(&request.id)?;
        container.is_of_runtime("exec")?;
        if !is_identifier(&request.exec_id) {
            return Err(Failure::invalid(format!("exec id {:?}", request.exec_id)));
        }
        if container.execs.contains_key(&request.exec_id) {
            return Err(Failure::already_exists(format!("id {}", request.exec_id)));
        }
        match container.init.state {
            State::Created | State::Running => {}
            State::Paused => return Err(Failure::unknown("cannot exec in a paused state")),
            State::Stopped => return Err(Failure::unknown("cannot exec in a stopped state")),
        }
        let spec = request
            .spec
            .as_ref()
            .map(|any| any.value.as_slice())
            .unwrap_or_default();
        let mut spec: Map<String, Value> =
            serde_json::from_slice(spec).map_err(|e| Failure::because("cannot parse the process", &e))?;
        spec.insert("terminal".into(), request.terminal.into());
        let spec =
            serde_json::to_vec(&spec).map_err(|e| Failure::because("cannot encode the process", &e))?;
        let stdio = Stdio {
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            terminal: request.terminal,
        };
        let exec = Exec {
            process: Process::new(None, stdio, Io::default()),
            spec,
        };
        container.execs.insert(request.exec_id.clone(), exec);
        let event = TaskExecAdded {
            container_id: request.id,
            exec_id: request.exec_id,
            ..TaskExecAdded::default()
        };
        self.publish("/tasks/exec-added", "containerd.events.TaskExecAdded", &event);
        encode::empty().map(Some)
    }

    pub(super) fn start_exec(&mut self, id: &str, exec_id: &str, reply: ReplyTo) -> Answer {
        let container = self.container(id)?;
        container.process(exec_id)?.begin(Step::Start)?;
        let started = self.spawn_exec(id, exec_id, reply);
        if started.is_err() {
            self.exec_failed(id, exec_id);
        }
        started
    }

    fn spawn_exec(&mut self, id: &str, exec_id: &str, reply: ReplyTo) -> Answer {
        let failed = |what: &'static str| move |e: std::io::Error| Failure::because(what, &e);
        let container = self.container(id)?;
        let (bundle, runtime, options) = (
            container.bundle.clone(),
            container.runtime.clone(),
            container.options.clone(),
        );
        let Some(exec) = container.execs.get_mut(exec_id) else {
            return Err(Failure::not_found(format!("process does not exist {exec_id}")));
        };
        let (process, stdio) = (std::mem::take(&mut exec.spec), exec.process.stdio.clone());
        let spec = format!("process-{}.json", self.next_number());
        bundle
            .write(&spec, &process)
            .map_err(failed("cannot write to the bundle"))?;
        let pid_file = pid_file(exec_id);
        bundle.remove(&pid_file);
        let (streams, prepared, console) = self
            .open_streams(&bundle, &stdio, &options)
            .inspect_err(|_| bundle.remove(&spec))
            .map_err(failed("failed to create init process I/O"))?;
        let (spec_path, pid_path) = (bundle.join(&spec), bundle.join(&pid_file));
        let (spec_path, pid_path) = (spec_path.to_string_lossy(), pid_path.to_string_lossy());
        let socket = console.as_ref().map(|console| console.name().to_owned());
        let mut arguments = vec!["exec", "--process", &spec_path];
        if let Some(socket) = &socket {
            arguments.extend(["--console-socket", socket]);
        }
        arguments.extend(["--detach", "--pid-file", &pid_path, id]);
        let starting = Starting {
            id: exec_id.to_owned(),
            prepared,
            console,
            spec,
        };
        let purpose = Purpose::StartExec(Box::new(starting), reply);
        let invoked = self.invoke(&runtime, &bundle, id, &arguments, streams, purpose);
        invoked.map(|()| None).map_err(|(error, purpose)| {
            if let Purpose::StartExec(starting, _) = purpose {
                starting.clean(&bundle);
            }
            error.during("OCI runtime exec failed")
        })
    }

    pub(super) fn finish_exec(
        &mut self,
        id: &str,
        starting: Starting,
        result: Result<(), RuntimeError>,
        reply: ReplyTo,
    ) {
        let exec_id = starting.id.clone();
        let result = match result {
            Ok(()) => self.exec_started(id, starting),
            Err(e) => {
                if let Some(container) = self.containers.get(id) {
                    starting.clean(&container.bundle);
                }
                Err(e.during("OCI runtime exec failed"))
            }
        };
        match result {
            Ok(pid) => {
                let event = TaskExecStarted {
                    container_id: id.to_owned(),
                    exec_id: exec_id.clone(),
                    pid: pid_number(pid),
                    ..TaskExecStarted::default()
                };
                self.publish("/tasks/exec-started", "containerd.events.TaskExecStarted", &event);
                let response = StartResponse {
                    pid: pid_number(pid),
                    ..StartResponse::default()
                };
                self.answer(reply, encode::message(&response));
                self.claim(pid, id, &exec_id);
            }
            Err(failure) => {
                self.answer(reply, Err(failure));
                self.exec_failed(id, &exec_id);
            }
        }
    }

    fn exec_started(&mut self, id: &str, starting: Starting) -> Result<rustix::process::Pid, Failure> {
        let failed = |what: &'static str| move |e: std::io::Error| Failure::because(what, &e);
        let container = self.container(id)?;
        let bundle = container.bundle.clone();
        let stdio = container.process(&starting.id)?.stdio.clone();
        bundle.remove(&starting.spec);
        let pid = bundle
            .read_pid(&pid_file(&starting.id))
            .map_err(failed("failed to retrieve OCI runtime exec pid"))?;
        // From here on its exit is known to be its own.
        self.container(id)?.process(&starting.id)?.pid = Some(pid);
        let (prepared, master) = receive_terminal(&bundle, &stdio, starting.prepared, starting.console)
            .map_err(failed("failed to retrieve console master"))?;
        let io = self
            .begin_streams(id, &starting.id, prepared, master)
            .map_err(failed("failed to start io pipe copy"))?;
        let process = self.container(id)?.process(&starting.id)?;
        process.io = io;
        process.end(true);
        Ok(pid)
    }

    /// An exec was not started. Requests that wait for it are answered.
    fn exec_failed(&mut self, id: &str, exec_id: &str) {
        let exit = Exit {
            status: NOT_STARTED,
            at: WallTime::now(),
        };
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let bundle = container.bundle.clone();
        let Ok(process) = container.process(exec_id) else {
            return;
        };
        process.end(false);
        if let Some(pid) = process.pid.filter(|pid| crate::exits::is_child(*pid)) {
            // It runs, but without its streams it is of no use.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let waiting = process.stop(exit);
        bundle.remove(&pid_file(exec_id));
        for reply in waiting {
            self.answer(reply, encode::wait_response(exit));
        }
    }
}
