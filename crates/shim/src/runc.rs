//! runc's own files of a container: what `runc start` and `runc delete` would do with them, without a process that takes
//! longer to begin than to do it.
//!
//! runc keeps a directory for each container with `state.json`, and until the start `exec.fifo`. The container's process
//! waits until that FIFO has a reader, which is the start. A deletion removes the control groups and then the directory.
//! Whatever is not exactly as known (another runtime, other files, hooks) is left to the runtime's program.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, openat, openat2, unlinkat};
use rustix::io::Errno;
use rustix::process::Pid;
use serde::Deserialize;

use crate::cgroup;

const STATE: &str = "state.json";
const FIFO: &str = "exec.fifo";
/// It has the whole configuration.
const MAX_STATE_BYTES: u64 = 32 << 20;

/// The part of `state.json` that is used.
#[derive(Debug, Deserialize)]
struct State {
    init_process_pid: i32,
    cgroup_paths: BTreeMap<String, PathBuf>,
}

/// A container's directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    descriptor: OwnedFd,
    state: State,
}

/// A container's process that is about to be released.
#[derive(Debug)]
pub struct Release {
    directory: OwnedFd,
    pub fifo: File,
}

/// How far a release is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    NotYet,
    /// The process runs the container's program.
    Yes,
}

impl Directory {
    /// The directory of a container whose first process this is.
    pub fn open(path: &Path, init: Pid) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let descriptor = openat(CWD, path, flags, Mode::empty())?;
        let file = open(&descriptor, STATE, OFlags::RDONLY)?;
        let mut bytes = Vec::new();
        file.take(MAX_STATE_BYTES).read_to_end(&mut bytes)?;
        let state: State = serde_json::from_slice(&bytes)?;
        if state.init_process_pid != init.as_raw_nonzero().get() {
            return Err(unexpected("the state of another process"));
        }
        Ok(Directory {
            path: path.to_owned(),
            descriptor,
            state,
        })
    }

    /// Lets the container's process continue, which happens as soon as the FIFO has a reader.
    pub fn release(self) -> io::Result<Release> {
        Ok(Release {
            fifo: open(&self.descriptor, FIFO, OFlags::RDONLY)?,
            directory: self.descriptor,
        })
    }

    /// Removes the control groups and the directory of a container whose processes have ended. After an error, the
    /// runtime's program can still do the same.
    pub fn delete(self) -> io::Result<()> {
        for entry in Dir::read_from(&self.descriptor)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if ![b".".as_slice(), b"..", STATE.as_bytes()].contains(&name) {
                return Err(unexpected("an unknown file in the runtime's directory"));
            }
        }
        let is_own = |(controller, path): (&String, &PathBuf)| {
            path.as_os_str().is_empty() || cgroup::signal::is_below_root(path, !controller.is_empty())
        };
        if !self.state.cgroup_paths.iter().all(is_own) {
            return Err(unexpected("a cgroup that is not the container's own"));
        }
        for path in self.state.cgroup_paths.values() {
            if !path.as_os_str().is_empty() {
                cgroup::remove::remove(path)?;
            }
        }
        unlinkat(&self.descriptor, STATE, AtFlags::empty())?;
        unlinkat(CWD, &self.path, AtFlags::REMOVEDIR)?;
        Ok(())
    }
}

impl Release {
    /// Reads whether the process has continued: it then writes to the FIFO.
    pub fn check(&self) -> io::Result<Released> {
        let mut bytes = [0; 16];
        match rustix::io::read(&self.fifo, &mut bytes) {
            // No process has opened it yet.
            Ok(0) | Err(Errno::AGAIN) => Ok(Released::NotYet),
            Ok(_) => {
                unlinkat(&self.directory, FIFO, AtFlags::empty())?;
                Ok(Released::Yes)
            }
            Err(e) => Err(e.into()),
        }
    }
}

fn open(directory: &OwnedFd, name: &str, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(File::from(openat2(
        directory,
        name,
        flags,
        Mode::empty(),
        resolve,
    )?))
}

fn unexpected(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(state: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("c")).unwrap();
        std::fs::write(directory.path().join("c").join(STATE), state).unwrap();
        directory
    }

    fn init() -> Pid {
        Pid::from_raw(7).unwrap()
    }

    #[test]
    fn only_the_state_of_this_containers_process_is_touched() {
        for state in [
            r#"{"init_process_pid": 8, "cgroup_paths": {}}"#,
            r#"{"init_process_pid": 7}"#,
            "{}",
            "",
        ] {
            let directory = directory(state);
            assert!(
                Directory::open(&directory.path().join("c"), init()).is_err(),
                "{state}"
            );
        }
    }

    #[test]
    fn a_directory_with_other_files_or_groups_is_left_to_the_runtime() {
        let other_group = r#"{"init_process_pid": 7, "cgroup_paths": {"pids": "/sys/fs/cgroup/pids"}}"#;
        let plain = r#"{"init_process_pid": 7, "cgroup_paths": {"pids": "/sys/fs/cgroup/pids/no-such/group", "": ""}}"#;
        let first = directory(other_group);
        let path = first.path().join("c");
        assert!(Directory::open(&path, init()).unwrap().delete().is_err());
        assert!(path.join(STATE).exists());
        let second = directory(plain);
        let path = second.path().join("c");
        std::fs::write(path.join("checkpoint"), "").unwrap();
        assert!(Directory::open(&path, init()).unwrap().delete().is_err());
        std::fs::remove_file(path.join("checkpoint")).unwrap();
        Directory::open(&path, init()).unwrap().delete().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_process_is_released_when_it_has_written_and_the_fifo_is_gone_then() {
        let directory = directory(r#"{"init_process_pid": 7, "cgroup_paths": {}}"#);
        let fifo = directory.path().join("c").join(FIFO);
        rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let opened = Directory::open(&directory.path().join("c"), init()).unwrap();
        let release = opened.release().unwrap();
        assert_eq!(release.check().unwrap(), Released::NotYet);
        std::fs::write(&fifo, "0").unwrap();
        assert_eq!(release.check().unwrap(), Released::Yes);
        assert!(!fifo.exists());
    }
}
