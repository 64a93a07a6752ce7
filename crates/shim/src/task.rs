//! Containers and their processes: what they are, and which step follows which. Nothing is done here.

use std::collections::BTreeMap;
use std::rc::Rc;

use rustix::process::Pid;

use crate::bundle::Bundle;
use crate::cgroup::Cgroup;
use crate::error::Failure;
use crate::exits::Exit;
use crate::options::Options;
use crate::runtime::Runtime;
use crate::sandbox::Sandbox;
use crate::stdio::{Io, Stdio};
use crate::ttrpc::connection::ReplyTo;

/// A process id as messages have it.
pub fn pid_number(pid: Pid) -> u32 {
    u32::try_from(pid.as_raw_nonzero().get()).unwrap_or(0)
}

/// A process's place in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The OCI runtime has made it, or (an exec) will.
    Created,
    Running,
    Paused,
    Stopped,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Created => "created",
            State::Running => "running",
            State::Paused => "paused",
            State::Stopped => "stopped",
        }
    }
}

/// A step of a process. Each is carried out by an invocation of the OCI runtime, one at a time for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Start,
    Pause,
    Resume,
    Delete,
}

impl Step {
    pub fn name(self) -> &'static str {
        match self {
            Step::Start => "start",
            Step::Pause => "pause",
            Step::Resume => "resume",
            Step::Delete => "delete",
        }
    }
}

/// A container's first process, or an exec.
#[derive(Debug)]
pub struct Process {
    pub pid: Option<Pid>,
    pub state: State,
    /// The step under way.
    step: Option<Step>,
    /// Seen while a step is under way, which is reported first.
    early: Option<Exit>,
    pub exit: Option<Exit>,
    pub stdio: Stdio,
    pub io: Io,
    /// Requests that wait for the exit.
    pub waiting: Vec<ReplyTo>,
}

impl Process {
    pub fn new(pid: Option<Pid>, stdio: Stdio, io: Io) -> Self {
        Process {
            pid,
            state: State::Created,
            step: None,
            early: None,
            exit: None,
            stdio,
            io,
            waiting: Vec::new(),
        }
    }

    /// Begins a step if it follows the state.
    pub fn begin(&mut self, step: Step) -> Result<(), Failure> {
        if let Some(under_way) = self.step {
            let (step, under_way) = (step.name(), under_way.name());
            return Err(Failure::unknown(format!(
                "cannot {step} a process while it is to {under_way}"
            )));
        }
        let possible = match step {
            Step::Start => self.state == State::Created,
            Step::Pause => self.state == State::Running,
            Step::Resume => self.state == State::Paused,
            Step::Delete => matches!(self.state, State::Created | State::Stopped),
        };
        if !possible {
            let (step, state) = (step.name(), self.state.name());
            return Err(Failure::unknown(format!("cannot {step} a {state} process")));
        }
        self.step = Some(step);
        Ok(())
    }

    /// Ends the step under way. Returns an exit that was seen meanwhile, to be reported now.
    pub fn end(&mut self, succeeded: bool) -> Option<Exit> {
        match (self.step.take(), succeeded) {
            (Some(Step::Start | Step::Resume), true) => self.state = State::Running,
            (Some(Step::Pause), true) => self.state = State::Paused,
            _ => {}
        }
        self.early.take()
    }

    /// The process has exited. Returns the exit if it can be reported now; otherwise [`end`](Self::end) returns it.
    pub fn exited(&mut self, exit: Exit) -> Option<Exit> {
        if self.exit.is_some() {
            return None;
        }
        match self.step {
            // Nothing is reported before the start, and nothing after the deletion.
            Some(Step::Start | Step::Pause | Step::Resume) => {
                self.early = Some(exit);
                None
            }
            Some(Step::Delete) | None => Some(exit),
        }
    }

    /// The exit has been seen and is to be reported with [`end`](Self::end), when what is left of the container has been
    /// killed.
    pub fn hold(&mut self, exit: Exit) {
        self.early = Some(exit);
    }

    /// The exit is about to be reported. Returns who waits for it.
    pub fn stop(&mut self, exit: Exit) -> Vec<ReplyTo> {
        self.state = State::Stopped;
        self.exit = Some(exit);
        std::mem::take(&mut self.waiting)
    }

    /// Whether this process id is its own. Once its exit has been seen, the kernel may give the id to another process.
    pub fn has(&self, pid: Pid) -> bool {
        self.pid == Some(pid) && self.exit.is_none() && self.early.is_none()
    }

    /// Whether a signal can be sent to its process id: the process is there, or is a zombie that has not been waited
    /// for, so the id is its own.
    pub fn can_be_signalled(&self) -> Result<Pid, Failure> {
        match self.pid {
            None => Err(Failure::precondition("process not created")),
            Some(_) if self.exit.is_some() || self.early.is_some() => {
                Err(Failure::not_found("process already finished"))
            }
            Some(pid) => Ok(pid),
        }
    }
}

/// A process besides the first one.
#[derive(Debug)]
pub struct Exec {
    pub process: Process,
    /// The OCI process to start, as JSON. Nothing once it has been started.
    pub spec: Vec<u8>,
}

/// A container that the OCI runtime has made.
#[derive(Debug)]
pub struct Container {
    pub bundle: Rc<Bundle>,
    pub options: Options,
    pub runtime: Runtime,
    /// Whether containerd had the root file system mounted here.
    pub rootfs: bool,
    pub own_pid_namespace: bool,
    /// A sandbox that the shim has made itself.
    pub sandbox: Option<Rc<Sandbox>>,
    /// Whether the shim may do what runc's start and deletion do.
    pub plain: bool,
    pub cgroup: Option<Cgroup>,
    pub init: Process,
    pub execs: BTreeMap<String, Exec>,
}

impl Container {
    /// The first process if `exec` is empty.
    pub fn process(&mut self, exec: &str) -> Result<&mut Process, Failure> {
        if exec.is_empty() {
            return Ok(&mut self.init);
        }
        match self.execs.get_mut(exec) {
            Some(exec) => Ok(&mut exec.process),
            None => Err(Failure::not_found(format!("process does not exist {exec}"))),
        }
    }

    /// An error if the OCI runtime does not know the container, which is to `what` it.
    pub fn is_of_runtime(&self, what: &str) -> Result<(), Failure> {
        match self.sandbox {
            None => Ok(()),
            Some(_) => Err(Failure::unimplemented(format!(
                "{what} of a sandbox without an OCI runtime"
            ))),
        }
    }

    /// The id of the exec with this process id; empty for the first process.
    pub fn find(&self, pid: Pid) -> Option<&str> {
        if self.init.has(pid) {
            return Some("");
        }
        let exec = self.execs.iter().find(|(_, exec)| exec.process.has(pid));
        exec.map(|(id, _)| id.as_str())
    }

    /// The state of a process, where an exec of a paused container is paused.
    pub fn state(&self, process: &Process) -> State {
        match (self.init.state, process.state) {
            (State::Paused, State::Running) => State::Paused,
            (_, state) => state,
        }
    }
}

#[cfg(test)]
#[path = "task/tests.rs"]
mod tests;
