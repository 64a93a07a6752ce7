//! A signal for all processes of a control group.
//!
//! A process is held by a pidfd and must be listed before and after that was opened: then it was of the group when the
//! descriptor was made, so no process outside of the group gets the signal, however process ids are used again. A process
//! that has SIGKILL pending cannot fork: when a listing has only processes that got it, there are no others.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use super::{Cgroup, ROOT};

/// Listings until processes that fork all the time are left to the OCI runtime, which freezes the group.
const PASSES: usize = 32;
/// Descriptors of processes that are held at once.
const AT_ONCE: usize = 256;
/// cgroup v2's file (Linux 5.14) that kills all processes of a group and of the groups below it.
const KILL: &str = "cgroup.kill";

/// What came of a signal for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signalled {
    /// Every process of the group got it. There may be none.
    All,
    /// New processes appeared again and again.
    NotAll,
}

impl Cgroup {
    /// Sends a signal to all processes in it and in groups below it.
    pub fn signal_all(&self, signal: Signal) -> io::Result<Signalled> {
        let path = match self {
            Cgroup::V1(groups) => groups.any(),
            Cgroup::V2(path) => Some(path.as_path()),
        };
        let is_v1 = matches!(self, Cgroup::V1(_));
        if !path.is_some_and(|path| is_below_root(path, is_v1)) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the container has no cgroup of its own",
            ));
        }
        if let Cgroup::V2(path) = self
            && signal == Signal::KILL
        {
            match std::fs::write(path.join(KILL), "1") {
                Ok(()) => return Ok(Signalled::All),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        let mut signalled = BTreeSet::new();
        for _ in 0..PASSES {
            let new: Vec<i32> = self.list()?.difference(&signalled).copied().collect();
            if new.is_empty() {
                return Ok(Signalled::All);
            }
            if new.contains(&getpid().as_raw_nonzero().get()) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "the shim is in the container's cgroup",
                ));
            }
            for some in new.chunks(AT_ONCE) {
                self.signal_some(some, signal)?;
            }
            signalled.extend(new);
        }
        Ok(Signalled::NotAll)
    }

    /// Signals those that are in the group still while their descriptors are held: each descriptor is of the process that is listed.
    fn signal_some(&self, numbers: &[i32], signal: Signal) -> io::Result<()> {
        let ended = |e| match e {
            Errno::SRCH => Ok(()),
            e => Err(io::Error::from(e)),
        };
        let mut held = Vec::new();
        for number in numbers {
            let Some(pid) = Pid::from_raw(*number) else {
                continue;
            };
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(descriptor) => held.push((*number, descriptor)),
                Err(e) => ended(e)?,
            }
        }
        let listed = self.list()?;
        for (number, descriptor) in held {
            if listed.contains(&number) {
                pidfd_send_signal(&descriptor, signal).or_else(ended)?;
            }
        }
        Ok(())
    }

    /// Its processes as this process can name them; none if it is gone.
    fn list(&self) -> io::Result<BTreeSet<i32>> {
        let found = match self.processes() {
            Ok(found) => found,
            Err(e) if is_gone(&e) => Vec::new(),
            Err(e) => return Err(e),
        };
        // 0 is a process of another PID namespace.
        let named = |pid: u32| i32::try_from(pid).ok().filter(|pid| *pid > 0);
        Ok(found.into_iter().filter_map(named).collect())
    }
}

/// Whether a group was removed, perhaps while it was read.
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::NODEV.raw_os_error())
}

/// Whether a path is that of a group, not of a hierarchy's root.
pub fn is_below_root(path: &Path, is_v1: bool) -> bool {
    let Ok(relative) = path.strip_prefix(ROOT) else {
        return false;
    };
    let plain = |part| matches!(part, std::path::Component::Normal(_));
    relative.components().all(plain) && relative.components().count() > usize::from(is_v1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::v1::Groups;

    #[test]
    fn a_hierarchys_root_is_no_containers_group() {
        for (path, is_v1, own) in [
            ("/sys/fs/cgroup/pids/a", true, true),
            ("/sys/fs/cgroup/pids", true, false),
            ("/sys/fs/cgroup/pids/", true, false),
            ("/sys/fs/cgroup/pids/../memory", true, false),
            ("/sys/fs/cgroup", false, false),
            ("/sys/fs/cgroup/a", false, true),
            ("/sys/fs/a", false, false),
        ] {
            assert_eq!(is_below_root(Path::new(path), is_v1), own, "{path}");
        }
        let root = Cgroup::V1(Groups::parse("1:pids:/\n", Path::new(ROOT)));
        assert!(root.signal_all(Signal::WINCH).is_err());
    }

    #[test]
    fn a_group_that_is_gone_has_no_processes_to_signal() {
        let groups = Groups::parse("1:pids:/knarr-shim-test/absent\n", Path::new(ROOT));
        assert_eq!(
            Cgroup::V1(groups).signal_all(Signal::KILL).unwrap(),
            Signalled::All
        );
    }
}
