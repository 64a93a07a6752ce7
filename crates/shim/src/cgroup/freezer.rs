//! The freezer of cgroup v1: it stops all processes of a group until they are thawed.

use std::io;
use std::path::PathBuf;

use rustix::event::Timespec;

use super::read_text;
use super::v1::Groups;

const STATE: &str = "freezer.state";
const FROZEN: &str = "FROZEN";
const THAWED: &str = "THAWED";
/// A process stops when it is next scheduled: the group is FREEZING until then.
const ATTEMPTS: u32 = 100;
const WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

impl Groups {
    /// Stops all processes. If one does not stop in time, all continue, and that is an error.
    pub fn freeze(&self) -> io::Result<()> {
        let path = self.freezer()?;
        for _ in 0..ATTEMPTS {
            // Written each time: a process that was just started may not have got it.
            std::fs::write(&path, FROZEN)?;
            if read_text(&path)?.trim() == FROZEN {
                return Ok(());
            }
            let _ = rustix::event::poll(&mut [], Some(&WAIT));
        }
        self.thaw()?;
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "its processes do not stop",
        ))
    }

    /// Lets all processes continue.
    pub fn thaw(&self) -> io::Result<()> {
        std::fs::write(self.freezer()?, THAWED)
    }

    fn freezer(&self) -> io::Result<PathBuf> {
        let group = self.get("freezer");
        let group =
            group.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host has no freezer"))?;
        Ok(group.join(STATE))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_state_that_the_kernel_has_taken_is_the_end_and_a_host_without_a_freezer_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("freezer/p")).unwrap();
        let groups = Groups::parse("1:freezer:/p\n", directory.path());
        let state = || std::fs::read_to_string(directory.path().join("freezer/p").join(STATE)).unwrap();
        groups.freeze().unwrap();
        assert_eq!(state(), FROZEN);
        groups.thaw().unwrap();
        assert_eq!(state(), THAWED);
        let none = Groups::parse("1:pids:/p\n", Path::new("/cg"));
        assert_eq!(none.freeze().unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(none.thaw().unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
