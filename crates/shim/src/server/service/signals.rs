//! `Kill`.
//!
//! Signals are sent here, without an invocation of the OCI runtime. One process is a child of the shim, which alone
//! waits for it, so its process id cannot be another's. All are the processes of the container's cgroup. The runtime is
//! asked for what needs it: a signal for a frozen container, or with a number that has no name (real-time signals).

use containerd_shim_protos::api::KillRequest;
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};

use super::{Answer, Purpose, encode};
use crate::cgroup::signal::Signalled;
use crate::error::Failure;
use crate::log;
use crate::runtime::{RuntimeError, Streams};
use crate::server::Server;
use crate::task::State;
use crate::ttrpc::connection::ReplyTo;

impl Server {
    pub(super) fn kill(&mut self, request: &KillRequest, reply: ReplyTo) -> Answer {
        let container = self.container(&request.id)?;
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
        match kill_process(pid, signal) {
            Ok(()) => encode::empty().map(Some),
            Err(Errno::SRCH) => Err(Failure::not_found("process already finished")),
            Err(e) => Err(Failure::because("cannot send the signal", &e)),
        }
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
