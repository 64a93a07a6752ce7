//! `start`: makes sure that a shim serves the container's group, and prints its address.
//!
//! The shim is a fork of this process. It needs no second start of the program, which would cost more than all the rest;
//! there is one thread of this program's own, so a fork is safe. The socket listens before the fork: who gets the address can
//! connect.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::ForkResult;
use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::address::{Address, Claimed};
use crate::arguments::Arguments;
use crate::bundle::{ADDRESS, Bundle, CONFIG, MAX_CONFIG_BYTES};
use crate::error::CommandError;
use crate::options::Options;
use crate::server::{self, Server};
use crate::spec::Spec;
use crate::{cgroup, log};

/// The path of containerd's ttrpc socket, which has the events service.
const TTRPC_ADDRESS: &str = "TTRPC_ADDRESS";
/// The FIFO in the bundle that containerd copies to its log.
const LOG: &str = "log";
/// Options have a few hundred bytes.
const MAX_OPTIONS_BYTES: u64 = 64 << 10;
/// The highest oom_score_adj there is.
const MAX_OOM_SCORE: i32 = 1000;

pub fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let bundle = Bundle::open(Path::new(".")).map_err(|source| CommandError::Bundle {
        file: "directory",
        source,
    })?;
    let group = group(&bundle)?.unwrap_or_else(|| arguments.id.clone());
    let address = Address::new(&arguments.containerd, &arguments.namespace, &group);
    let claimed = address.claim().map_err(|source| CommandError::Listen {
        address: address.to_text(),
        source,
    })?;
    // For containerd after its restart, and for `delete`.
    bundle
        .write(ADDRESS, address.to_text().as_bytes())
        .map_err(|source| CommandError::Bundle {
            file: ADDRESS,
            source,
        })?;
    // The shim's process does not keep it open.
    drop(bundle);
    if let Claimed::Listener(listener) = claimed
        && let Err(e) = serve(arguments, &address, listener)
    {
        address.remove();
        return Err(e);
    }
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(address.to_text().as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|source| CommandError::Output { source })
}

fn group(bundle: &Bundle) -> Result<Option<String>, CommandError> {
    let config = bundle
        .read(CONFIG, MAX_CONFIG_BYTES)
        .map_err(|source| CommandError::Bundle { file: CONFIG, source })?;
    let spec = Spec::parse(&config).map_err(|source| CommandError::Parse { file: CONFIG, source })?;
    Ok(spec.group().map(str::to_owned))
}

/// Leaves a process behind that serves the listener. Returns in this process only.
fn serve(arguments: &Arguments, address: &Address, listener: OwnedFd) -> Result<(), CommandError> {
    let mut encoded = Vec::new();
    let options = io::stdin()
        .lock()
        .take(MAX_OPTIONS_BYTES)
        .read_to_end(&mut encoded)
        .and_then(|_| Options::from_encoded(&encoded))
        .map_err(|source| CommandError::Options { source })?;
    let step = |step| move |source| CommandError::Process { step, source };
    raise_oom_score().map_err(step("oom_score_adj"))?;
    match fork()? {
        ForkResult::Parent { .. } => Ok(()),
        ForkResult::Child => {
            let served = become_shim(&options).and_then(|signals| {
                let config = server::Config {
                    namespace: arguments.namespace.clone(),
                    events: std::env::var(TTRPC_ADDRESS).ok(),
                    address: address.clone(),
                };
                let mut server = Server::new(config, listener, signals).map_err(step("epoll"))?;
                server.run().map_err(step("the loop"))
            });
            if let Err(e) = &served {
                log::error(crate::error::chain(e), &arguments.id);
            }
            std::process::exit(i32::from(served.is_err()));
        }
    }
}

#[expect(unsafe_code, reason = "fork has no safe wrapper")]
fn fork() -> Result<ForkResult, CommandError> {
    // SAFETY: the program has started no thread (`run_if_called` is the first thing that `main` calls), so no lock can be held
    // by a thread that the child does not have. A thread of the allocator (jemalloc's background thread) holds none of the
    // allocator's locks across a fork: jemalloc registers handlers for it (pthread_atfork), and continues without that thread in the child.
    unsafe { nix::unistd::fork() }.map_err(|e| CommandError::Fork { source: e.into() })
}

/// Makes the forked process a daemon that adopts orphans. Returns the descriptor of its signals.
fn become_shim(options: &Options) -> Result<SignalFd, CommandError> {
    let step = |step| {
        move |e: rustix::io::Errno| CommandError::Process {
            step,
            source: e.into(),
        }
    };
    rustix::process::setsid().map_err(step("setsid"))?;
    let null =
        openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(step("/dev/null"))?;
    rustix::stdio::dup2_stdin(&null).map_err(step("standard input"))?;
    // containerd waits until no process has this end of its pipe.
    rustix::stdio::dup2_stdout(&null).map_err(step("standard output"))?;
    // Both ends: while containerd is away, lines are dropped when the FIFO is full.
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let log = openat(CWD, LOG, flags, Mode::empty()).unwrap_or(null);
    rustix::stdio::dup2_stderr(&log).map_err(step("standard error"))?;
    if !options.shim_cgroup.is_empty() {
        cgroup::join(&options.shim_cgroup).map_err(|source| CommandError::Process {
            step: "joining its cgroup",
            source,
        })?;
    }
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(step("child subreaper"))?;
    let signals = SigSet::from_iter([Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT]);
    let failed = |e: nix::Error| CommandError::Process {
        step: "signals",
        source: e.into(),
    };
    // The standard library unblocks all signals in the programs that it starts.
    signals.thread_block().map_err(failed)?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map_err(failed)
}

/// The kernel is to kill a shim rather than containerd: one more than the parent, which is containerd.
fn raise_oom_score() -> io::Result<()> {
    let Some(parent) = rustix::process::getppid() else {
        return Ok(());
    };
    let text = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", parent.as_raw_nonzero()))?;
    let score: i32 = text.trim().parse().map_err(io::Error::other)?;
    std::fs::write(
        "/proc/self/oom_score_adj",
        (score + 1).min(MAX_OOM_SCORE).to_string(),
    )
}
