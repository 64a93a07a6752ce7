//! A containerd shim (runtime v2, shim API 2): one small process per pod, which owns its containers' processes, their
//! exit codes and their stdio, and outlives both containerd and knarr.
//!
//! containerd starts the program with `start` for each container. The first container of a pod (grouped as in Go's shim
//! by the annotations `io.containerd.runc.v2.group` and `io.kubernetes.cri.sandbox-id`) leaves a process behind that
//! serves containerd's task API on a Unix socket; for the others `start` only prints that socket. When the process was
//! killed, containerd runs `delete` for each container.
//!
//! What it promises:
//! - **No exit code is lost.** The process is a child subreaper and the only one that waits. An exit that is seen before
//!   the process id is known (the OCI runtime has not returned yet) is kept until it is ([`exits`]).
//! - **containerd may come and go.** Output waits in pipes while it is not read, events wait in a queue, and `State`,
//!   `Wait` and `Connect` report everything again. Both ends of a container's FIFOs are held open ([`stdio`]).
//! - **It is small.** One thread and one epoll set; output is moved by splice(2) and never enters the process.
//! - **It trusts only root.** Only root may connect, messages are bounded, and files of a bundle are opened beneath its
//!   descriptor, without links, with limits ([`bundle`]). Nothing is opened that a container can change.
//!
//! What never happens here: a blocking wait, except in the short-lived commands `start` and `delete` and for the end of a
//! sandbox's process that was killed before its start, or is being paused; a decision about
//! what should run; a second process that waits for children.
//!
//! Crates: containerd-shim-protos for the messages and ttrpc for the wire format, because the containerd project
//! maintains both. Not ttrpc's server: it runs six threads for each connection, and containerd opens one for each
//! container. Not containerd-shim and its runc crate: they need that server or tokio.
//!
//! Modules: [`arguments`], [`start`], [`delete`], [`address`] are the command; [`host`] is what it needs of the kernel; [`server`] is the loop and carries out
//! what it is asked for in [`server::service`]; [`task`] has the states of containers and processes; [`runtime`] runs
//! runc or crun, [`runc`] does without it what needs no process of its own, [`sandbox`] makes a pod's sandbox without it;
//! [`stdio`] moves input and output; [`ttrpc`] speaks with containerd; [`cgroup`] and [`oom`] read control groups.

mod address;
mod arguments;
mod bundle;
mod cgroup;
mod clock;
mod delete;
mod error;
mod exits;
mod host;
mod log;
mod mounts;
mod oom;
mod options;
mod poll;
mod runc;
mod runtime;
mod sandbox;
mod server;
mod spec;
mod start;
mod stdio;
mod task;
mod timers;
mod ttrpc;

use std::path::Path;
use std::process::ExitCode;

use arguments::{Action, Arguments};
use error::CommandError;

pub use host::{HostError, check_host};

/// The file name under which the program is this shim.
pub const NAME: &str = "containerd-shim-knarr-v2";

/// What `-v` prints: the name, the version, and the CNI plugins that the program is, too.
pub fn version() -> String {
    format!(
        "{NAME} {} with {} and {}",
        env!("CARGO_PKG_VERSION"),
        knarr_cni::PLUGIN,
        knarr_cni::LOOPBACK
    )
}

/// Runs as the shim if this process was started under its [`NAME`].
///
/// The first thing that `main` does, before a runtime, logging or arguments: `start` forks, which needs a process with
/// one thread.
pub fn run_if_called() -> Option<ExitCode> {
    let program = std::env::args_os().next()?;
    (Path::new(&program).file_name()? == NAME).then(run)
}

/// Runs as the shim, with this process's arguments.
pub fn run() -> ExitCode {
    match Arguments::parse(std::env::args_os().skip(1)).and_then(|arguments| carry_out(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // containerd shows what `start` and `delete` print when they fail.
            eprintln!("{NAME}: {}", error::chain(&failure));
            ExitCode::FAILURE
        }
    }
}

fn carry_out(arguments: &Arguments) -> Result<(), CommandError> {
    match arguments.action {
        Action::Start => start::run(arguments),
        Action::Delete => delete::run(arguments),
        Action::Version => {
            println!("{}", version());
            Ok(())
        }
    }
}
