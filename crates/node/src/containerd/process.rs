//! The supervised containerd process: started here, or found running from an earlier knarr.
//!
//! A leftover one is found by its command line in /proc, not by a recorded process id: knarr may have been killed
//! before it recorded any, and process ids are reused. It is held by a pidfd, so that signals and waits reach the
//! process that was examined.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::Child;

use super::{ContainerdConfig, ContainerdError};

/// How long containerd may take to exit after TERM, and then after KILL.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// A containerd that was alive when it was last checked.
pub(super) enum Process {
    Started(Child),
    Adopted(Leftover),
}

impl Process {
    /// Returns its exit status as far as it is known, when it has exited. Cancel-safe.
    pub(super) async fn exited(&mut self) -> String {
        match self {
            Process::Started(child) => child
                .wait()
                .await
                .map_or_else(|e| e.to_string(), |status| status.to_string()),
            Process::Adopted(leftover) => leftover.exited().await,
        }
    }

    /// TERM, and KILL if that is not enough.
    pub(super) async fn end(mut self) -> Result<(), ContainerdError> {
        for signal in [Signal::TERM, Signal::KILL] {
            // It may have exited already.
            let _ = self.signal(signal);
            if tokio::time::timeout(STOP_GRACE, self.exited()).await.is_ok() {
                return Ok(());
            }
            tracing::warn!(?signal, "containerd did not exit within {STOP_GRACE:?}");
        }
        Err(ContainerdError::Stuck { pid: self.pid() })
    }

    /// Its process id; 0 once it has been waited for.
    pub(super) fn pid(&self) -> i32 {
        match self {
            Process::Started(child) => child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0),
            Process::Adopted(leftover) => leftover.pid.as_raw_nonzero().get(),
        }
    }

    fn signal(&self, signal: Signal) -> rustix::io::Result<()> {
        match self {
            // The id of a child is not reused before it is waited for.
            Process::Started(_) => Pid::from_raw(self.pid()).map_or(Ok(()), |pid| kill_process(pid, signal)),
            Process::Adopted(leftover) => pidfd_send_signal(leftover.held.get_ref(), signal),
        }
    }
}

/// A containerd that runs with this configuration file although its knarr has exited.
pub(super) struct Leftover {
    pid: Pid,
    held: AsyncFd<OwnedFd>,
}

impl Leftover {
    /// All of them: one, unless more were started by hand.
    pub(super) fn find(config: &ContainerdConfig) -> io::Result<Vec<Leftover>> {
        let found = runs_with(&config.file())?;
        let held = found.iter().filter_map(|pid| Leftover::hold(*pid).transpose());
        // A process that exited before it was held may be another one by now.
        let still = runs_with(&config.file())?;
        held.filter(|leftover| leftover.as_ref().map_or(true, |e| still.contains(&e.pid)))
            .collect()
    }

    fn hold(pid: Pid) -> io::Result<Option<Leftover>> {
        let fd = match pidfd_open(pid, PidfdFlags::NONBLOCK) {
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            opened => opened?,
        };
        #[expect(deprecated, reason = "sound for a type that owns its descriptor")]
        let held = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Some(Leftover { pid, held }))
    }

    /// A pidfd becomes readable when its process exits.
    pub(super) async fn exited(&self) -> String {
        match self.held.readable().await {
            Ok(_) => "an earlier knarr's: its status is not known".into(),
            Err(e) => e.to_string(),
        }
    }

    /// Whether it is what starting `program` would start now: the same file, not one of the same name.
    pub(super) fn is(&self, program: &Path) -> bool {
        let file = |path: &Path| crate::host_fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
        let runs = file(&proc_of(self.pid).join("exe"));
        runs.is_some() && runs == on_path(program).and_then(|path| file(&path))
    }
}

/// Every process of the host with its command line: arguments, each terminated by a zero byte.
pub(super) fn processes() -> io::Result<Vec<(Pid, Vec<u8>)>> {
    let mut all = Vec::new();
    for entry in crate::host_fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let pid = name.to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid.and_then(Pid::from_raw) else {
            continue;
        };
        // The process may exit while it is read.
        if let Ok(cmdline) = crate::host_fs::read(proc_of(pid).join("cmdline")) {
            all.push((pid, cmdline));
        }
    }
    Ok(all)
}

/// The processes that this one has started, or that were left to it.
pub(super) fn children(of: Pid) -> io::Result<Vec<Pid>> {
    let all = processes()?.into_iter().map(|(pid, _)| pid);
    Ok(all.filter(|pid| parent(*pid) == Some(of)).collect())
}

pub(super) fn proc_of(pid: Pid) -> PathBuf {
    Path::new("/proc").join(pid.as_raw_nonzero().to_string())
}

/// The file that starting `program` runs.
fn on_path(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return Some(program.to_path_buf());
    }
    find_in(&std::env::var_os("PATH")?, program)
}

/// The first file of this name in the directories of a search path, such as PATH.
pub(super) fn find_in(search_path: &OsStr, program: &Path) -> Option<PathBuf> {
    std::env::split_paths(search_path)
        .map(|dir| dir.join(program))
        .find(|file| crate::host_fs::is_file(file))
}

/// The processes that were started with `--config FILE` like ours. Not those of containers, which choose their command
/// lines freely: they have their own PID namespaces, unless they run in the host's.
fn runs_with(file: &Path) -> io::Result<Vec<Pid>> {
    let here = crate::host_fs::read_link("/proc/self/ns/pid")?;
    let mut found: Vec<Pid> = processes()?
        .into_iter()
        .filter(|(_, cmdline)| is_ours(cmdline, file))
        .map(|(pid, _)| pid)
        .filter(|pid| crate::host_fs::read_link(proc_of(*pid).join("ns/pid")).is_ok_and(|ns| ns == here))
        .collect();
    // While it starts a shim there is, for a moment, a copy of it.
    let copies: Vec<Pid> = found
        .iter()
        .copied()
        .filter(|pid| parent(*pid).is_some_and(|parent| found.contains(&parent)))
        .collect();
    found.retain(|pid| !copies.contains(pid));
    Ok(found)
}

/// `cmdline` is as in /proc: each argument is terminated by a zero byte.
fn is_ours(cmdline: &[u8], file: &Path) -> bool {
    let mut args = cmdline.split(|b| *b == 0).skip(1);
    args.next() == Some(b"--config") && args.next() == Some(file.as_os_str().as_encoded_bytes())
}

fn parent(pid: Pid) -> Option<Pid> {
    stat_field(&stat(pid)?, 4).and_then(Pid::from_raw)
}

/// When it was started, in clock ticks since boot.
pub(super) fn start_ticks(pid: Pid) -> Option<u64> {
    stat_field(&stat(pid)?, 22)
}

fn stat(pid: Pid) -> Option<String> {
    crate::host_fs::read_to_string(proc_of(pid).join("stat")).ok()
}

/// A field by its number in proc(5). The second, the name, is in parentheses and may contain any character.
fn stat_field<T: FromStr>(stat: &str, number: usize) -> Option<T> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name
        .split_whitespace()
        .nth(number.checked_sub(3)?)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_started_with_our_file_is_ours_not_one_that_edits_it() {
        let file = Path::new("/d/containerd/config.toml");
        let of = |args: &[&str]| {
            args.iter()
                .flat_map(|a| [a.as_bytes(), b"\0"].concat())
                .collect::<Vec<u8>>()
        };
        for (args, ours) in [
            (vec!["containerd", "--config", "/d/containerd/config.toml"], true),
            (
                vec!["/opt/bin/containerd", "--config", "/d/containerd/config.toml"],
                true,
            ),
            (vec!["containerd", "--config", "/e/containerd/config.toml"], false),
            (vec!["vi", "/d/containerd/config.toml"], false),
            (vec!["containerd", "--config"], false),
            (vec![], false),
        ] {
            assert_eq!(is_ours(&of(&args), file), ours, "{args:?}");
        }
    }

    #[test]
    fn fields_of_stat_are_read_behind_whatever_the_name_is() {
        assert_eq!(stat_field("12 (containerd) S 7 12 12 0", 4), Some(7));
        assert_eq!(stat_field("12 (a) R 1 (b) S 8 12", 4), Some(8));
        assert_eq!(stat_field::<i32>("12", 4), None);
        assert!(start_ticks(rustix::process::getpid()) >= Pid::from_raw(1).and_then(start_ticks));
    }

    #[test]
    fn a_program_with_a_path_is_that_file_and_one_without_is_found_on_path() {
        assert_eq!(on_path(Path::new("./x")), Some("./x".into()));
        assert_eq!(on_path(Path::new("/x/containerd")), Some("/x/containerd".into()));
        assert!(on_path(Path::new("sh")).is_some_and(|p| p.is_absolute() && p.ends_with("sh")));
        assert_eq!(on_path(Path::new("no-such-program")), None);
    }
}
