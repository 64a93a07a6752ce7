//! Exits of child processes, none of which is lost.
//!
//! The OCI runtime starts a container's process and returns; only then is its process id read from a file. The process
//! may have exited by then, and since this process is its subreaper, the exit may be seen before the id is known. So an
//! exit of an unknown process is kept as long as an invocation of the runtime is under way that may turn out to have
//! started it. No process id is used twice while its exit is kept or its process runs: no other process waits for it.

use std::collections::BTreeMap;

use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, WaitStatus, wait, waitid};

use crate::clock::WallTime;

/// What a shell adds to the number of the signal that ended a process.
const SIGNALLED: i32 = 128;

/// How and when a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    pub status: u32,
    pub at: WallTime,
}

impl Exit {
    fn new(status: WaitStatus) -> Self {
        let code = status
            .exit_status()
            .or_else(|| status.terminating_signal().map(|signal| SIGNALLED + signal));
        Exit {
            status: code.and_then(|code| u32::try_from(code).ok()).unwrap_or(255),
            at: WallTime::now(),
        }
    }
}

/// The most exits that are taken at once: processes whose parents exit become children of the shim, and may be many.
pub const BATCH: usize = 256;

/// Takes exits that there are, at most [`BATCH`]. It does not block.
pub fn reap() -> Vec<(Pid, Exit)> {
    let exited = || wait(WaitOptions::NOHANG).ok().flatten();
    std::iter::from_fn(exited)
        .take(BATCH)
        .map(|(pid, status)| (pid, Exit::new(status)))
        .collect()
}

/// Whether a process is a child that has not been waited for, running or not.
pub fn is_child(pid: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(pid), options).is_ok()
}

/// Exits of processes that are not known yet.
#[derive(Debug, Default)]
pub struct Unclaimed(BTreeMap<i32, Exit>);

impl Unclaimed {
    pub fn keep(&mut self, pid: Pid, exit: Exit) {
        self.0.insert(pid.as_raw_nonzero().get(), exit);
    }

    /// The exit of a process whose id has just become known.
    pub fn claim(&mut self, pid: Pid) -> Option<Exit> {
        self.0.remove(&pid.as_raw_nonzero().get())
    }

    /// No invocation is under way that could claim one.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_one_until_it_has_been_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).unwrap();
        assert!(is_child(pid));
        child.kill().unwrap();
        assert!(is_child(pid));
        child.wait().unwrap();
        assert!(!is_child(pid));
    }

    #[test]
    fn an_exit_is_claimed_once_and_not_after_it_was_forgotten() {
        let pid = Pid::from_raw(5).unwrap();
        let exit = Exit {
            status: 1,
            at: WallTime::default(),
        };
        let mut unclaimed = Unclaimed::default();
        unclaimed.keep(pid, exit);
        assert_eq!(unclaimed.claim(pid), Some(exit));
        assert_eq!(unclaimed.claim(pid), None);
        unclaimed.keep(pid, exit);
        unclaimed.forget();
        assert_eq!(unclaimed.claim(pid), None);
    }
}
