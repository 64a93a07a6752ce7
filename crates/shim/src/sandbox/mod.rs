//! A pod's sandbox ("pause" container) made by the shim itself, without an OCI runtime's processes.
//!
//! [`plan`] decides from the container's [`config`] whether the shim can do exactly what runc would do; [`process`] does
//! it in the sandbox's own first process: [`cgroups`], namespaces, [`rootfs`], user and [`capabilities`], [`seccomp`]. After
//! any failure before the start nothing is left, and the OCI runtime makes the sandbox. [`resources`] changes its limits later.
//! A file in the bundle says which groups the sandbox has, for the command `delete`.
//!
//! Not here: user namespaces, pods that share the host's namespaces, limits, SELinux, AppArmor, hooks, cgroup v2 alone.

mod capabilities;
mod cgroups;
mod compat;
mod config;
pub mod plan;
mod process;
mod program;
pub mod resources;
mod rootfs;
mod seccomp;
mod syscalls;

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;

use rustix::event::Timespec;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal};

use self::plan::Plan;
use self::process::Parts;
use crate::bundle::{Bundle, MAX_SMALL_BYTES, ROOTFS};
use crate::cgroup::Cgroup;
use crate::cgroup::v1::Groups;

/// The file in the bundle: the path of the sandbox's groups below each hierarchy.
const MARKER: &str = "sandbox";
/// What the process says when it waits for its start.
const READY: &[u8] = b"\0ready";
const START: &[u8] = b"s";
/// Longer than a failure's text.
const MAX_REPORT_BYTES: usize = 512;
/// How long the processes of a killed sandbox may take to end.
const REMOVAL_ATTEMPTS: u32 = 100;
const REMOVAL_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// Why the sandbox's process could not continue.
#[derive(Debug, thiserror::Error)]
#[error("{step}{what}: {source}")]
pub struct Error {
    step: &'static str,
    what: String,
    source: io::Error,
}

impl Error {
    fn with(mut self, what: &str) -> Self {
        self.what = format!(" {what}");
        self
    }
}

/// Names the step that failed.
trait At<T> {
    fn at(self, step: &'static str) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, step: &'static str) -> Result<T, Error> {
        self.map_err(|e| Error {
            step,
            what: String::new(),
            source: e.into(),
        })
    }
}

/// A sandbox whose process the shim has started.
#[derive(Debug)]
pub struct Sandbox {
    pub pid: Pid,
    pub socket: OwnedFd,
    cgroup: String,
}

/// What the process says.
#[derive(Debug, PartialEq, Eq)]
pub enum Report {
    Nothing,
    /// It waits for its start.
    Ready,
    Failed(String),
    /// It has closed its end: it runs the program, or has ended.
    Closed,
}

impl Sandbox {
    /// The plan for a container, if the shim can make it on this host.
    pub fn plan(config: &[u8]) -> Option<Plan> {
        Plan::of(config).filter(|_| cgroups::are_known())
    }

    /// Starts the sandbox's process, which reports when it is ready.
    pub fn create(plan: &Plan, bundle: &Bundle, id: &str, keyring: bool) -> io::Result<Sandbox> {
        let network = openat(
            CWD,
            &plan.network,
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let (socket, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        let parts = Parts {
            rootfs: bundle.join(ROOTFS),
            network,
            socket: theirs,
            keyring: keyring.then(|| CString::new(format!("_ses.{id}"))).transpose()?,
        };
        bundle.write(MARKER, plan.cgroup.as_bytes())?;
        let pid = process::spawn(plan, &parts).inspect_err(|_| bundle.remove(MARKER))?;
        Ok(Sandbox {
            pid,
            socket,
            cgroup: plan.cgroup.clone(),
        })
    }

    /// What the process has said since it was last asked.
    pub fn report(&self) -> Report {
        let mut bytes = [0; MAX_REPORT_BYTES];
        match rustix::io::read(&self.socket, &mut bytes) {
            Ok(0) => Report::Closed,
            Ok(length) => match bytes.get(..length).unwrap_or_default() {
                READY => Report::Ready,
                text => Report::Failed(String::from_utf8_lossy(text).into_owned()),
            },
            Err(Errno::AGAIN | Errno::INTR) => Report::Nothing,
            Err(_) => Report::Closed,
        }
    }

    /// Lets the process run the sandbox's program.
    pub fn start(&self) -> io::Result<()> {
        rustix::io::write(&self.socket, START)?;
        Ok(())
    }

    /// Undoes a sandbox that could not be made. The process is killed, and its end is waited for: it has not run a program.
    pub fn discard(&self, bundle: &Bundle) -> io::Result<()> {
        // Once it has been waited for, its id may be another's.
        if crate::exits::is_child(self.pid) {
            let _ = rustix::process::kill_process(self.pid, Signal::KILL);
        }
        let _ = rustix::process::waitpid(Some(self.pid), rustix::process::WaitOptions::empty());
        self.remove(bundle)
    }

    /// Removes the groups of a sandbox that has ended; `ResourceBusy` as long as it has not.
    pub fn remove(&self, bundle: &Bundle) -> io::Result<()> {
        cgroups::remove(&self.cgroup)?;
        bundle.remove(MARKER);
        Ok(())
    }
}

/// Kills and removes what a killed shim has left of a sandbox.
pub fn clean(bundle: &Bundle) -> io::Result<()> {
    let bytes = match bundle.read(MARKER, MAX_SMALL_BYTES) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    let cgroup = String::from_utf8(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    let groups = Groups::below(&cgroup);
    let group = Cgroup::V1(groups.clone());
    let mut attempts = 0;
    loop {
        group.signal_all(Signal::KILL)?;
        // A paused process ends when it continues. The group may be gone, or never have been paused.
        let _ = groups.thaw();
        match cgroups::remove(&cgroup) {
            Ok(()) => break,
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy && attempts < REMOVAL_ATTEMPTS => {
                attempts += 1;
                let _ = rustix::event::poll(&mut [], Some(&REMOVAL_WAIT));
            }
            Err(e) => return Err(e),
        }
    }
    bundle.remove(MARKER);
    Ok(())
}
