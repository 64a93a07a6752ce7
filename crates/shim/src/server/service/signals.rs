//! `Kill`.
//!
//! Signals are sent here, without an invocation of the OCI runtime. One process is a child of the shim, which alone
//! waits for it, so its process id cannot be another's. All are the processes of the container's cgroup. The runtime is
//! asked for what needs it: a signal for a frozen container, or with a number that has no name (real-time signals). A sandbox
//! that the shim has made itself is thawed here, and gets no real-time signals.

use containerd_shim_protos::api::KillRequest;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::sandbox::groups;
use super::{Answer, Purpose, encode};
use crate::cgroup::Cgroup;
use crate::cgroup::signal::Signalled;
use crate::error::Failure;
use crate::log;
use crate::runtime::{RuntimeError, Streams};
use crate::server::Server;
use crate::task::{Container, State};
use crate::ttrpc::connection::ReplyTo;

impl Server {
    pub(super) fn kill(&mut self, request: &KillRequest, reply: ReplyTo) -> Answer {
        let container = self.container(&request.id)?;
        if container.sandbox.is_some() {
            return kill_sandbox(container, request);
        }
        let frozen = container.init.state == State::Paused;
        let cgroup = container.cgroup.clone();
        let process = container.process(&request.exec_id)?;
        let named = i32::try_from(request.signal)
            .ok()
            .and_then(Signal::from_named_raw);
        if request.exec_id.is_empty()
            && request.all
            && !frozen
            && let (Some(signal), Some(cgroup)) = (named, &cgroup)
        {
            match cgroup.signal_all(signal) {
                Ok(Signalled::All) => return encode::empty().map(Some),
                Ok(Signalled::NotAll) => {}
                Err(e) => log::warn(format_args!("cannot signal all processes: {e}"), &request.id),
            }
        }
        if request.exec_id.is_empty() && (request.all || frozen || named.is_none()) {
            return self.kill_by_runtime(request, reply);
        }
        let pid = process.can_be_signalled()?;
        let signal = named.ok_or_else(|| Failure::invalid(format!("signal {}", request.signal)))?;
        signal_one(pid, signal)?;
        encode::empty().map(Some)
    }

    fn kill_by_runtime(&mut self, request: &KillRequest, reply: ReplyTo) -> Answer {
        let container = self.container(&request.id)?;
        let (runtime, bundle) = (container.runtime.clone(), container.bundle.clone());
        let signal = request.signal.to_string();
        let mut arguments = vec!["kill"];
        if request.all {
            arguments.push("--all");
        }
        arguments.extend([request.id.as_str(), &signal]);
        let purpose = Purpose::Kill(reply);
        self.invoke(
            &runtime,
            &bundle,
            &request.id,
            &arguments,
            Streams::captured(),
            purpose,
        )
        .map(|()| None)
        .map_err(|(error, _)| kill_failure(&error))
    }
}

/// Sends a signal to a sandbox that the shim has made.
fn kill_sandbox(container: &mut Container, request: &KillRequest) -> Answer {
    let named = i32::try_from(request.signal)
        .ok()
        .and_then(Signal::from_named_raw);
    let signal = named.ok_or_else(|| {
        let number = request.signal;
        Failure::unimplemented(format!("signal {number} for a sandbox without an OCI runtime"))
    })?;
    if request.all && request.exec_id.is_empty() {
        let signalled = Cgroup::V1(groups(container)?.clone()).signal_all(signal);
        match signalled.map_err(|e| Failure::because("cannot signal all processes", &e))? {
            Signalled::All => {}
            Signalled::NotAll => return Err(Failure::unknown("not all processes were signalled")),
        }
    } else {
        signal_one(container.process(&request.exec_id)?.can_be_signalled()?, signal)?;
    }
    // A paused process ends when it continues; other signals wait for that, as with runc.
    if signal == Signal::KILL && container.init.state == State::Paused {
        let thawed = groups(container)?.thaw();
        thawed.map_err(|e| Failure::because("cannot resume the sandbox", &e))?;
    }
    encode::empty().map(Some)
}

/// Sends a signal to a process that has not been waited for.
fn signal_one(pid: Pid, signal: Signal) -> Result<(), Failure> {
    match kill_process(pid, signal) {
        Ok(()) => Ok(()),
        Err(Errno::SRCH) => Err(Failure::not_found("process already finished")),
        Err(e) => Err(Failure::because("cannot send the signal", &e)),
    }
}

/// Clients take "not found" as done.
pub(super) fn kill_failure(error: &RuntimeError) -> Failure {
    if error.is_ended() {
        Failure::not_found("process already finished")
    } else if error.is_absent() {
        Failure::not_found("no such container")
    } else {
        error.during("unknown error after kill")
    }
}
