//! What the kubelet uses of the host besides the runtime: commands, the mount table, and the uptime. A trait, so that
//! what no test machine has (an NFS server, an iSCSI target) can be faked.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nix::time::{ClockId, clock_gettime};
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use crate::kubelet::machine::Machine;
use crate::plugins::error::CallError;
use crate::volumes::mounts;

/// How long a command may take: a mount from a server that does not answer would wait for minutes.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOutput {
    /// Its exit code; none if it was killed, or took too long.
    pub code: Option<i32>,
    /// Both of its outputs.
    pub output: String,
}

impl CommandOutput {
    pub fn ok(&self) -> bool {
        self.code == Some(0)
    }

    /// In the form of Go's `ExitError`.
    pub fn status(&self) -> String {
        match self.code {
            Some(code) => format!("exit status {code}"),
            None => "signal: killed".into(),
        }
    }
}

/// A command does not start: it is not installed.
#[derive(Debug, thiserror::Error)]
#[error("exec: {program:?}: {source}")]
pub struct CommandError {
    program: String,
    source: std::io::Error,
}

#[async_trait]
pub trait Host: std::fmt::Debug + Send + Sync {
    /// Runs a command to its end.
    async fn run(&self, program: &str, args: &[&str]) -> Result<CommandOutput, CommandError>;

    fn is_mounted(&self, at: &Path) -> std::io::Result<bool>;

    /// The file that a path of `/dev/disk/by-path` leads to, if it is there; the first whose name matches, where `*` is
    /// anything.
    fn device(&self, by_path: &str) -> Option<PathBuf>;

    /// Whether the watcher of plugins runs although pods are not processes.
    fn has_fake_plugins(&self) -> bool {
        false
    }

    /// Calls a fake plugin's method at its socket, with request and answer as gRPC encodes them; `None` where plugins are
    /// processes that listen there.
    async fn call_plugin(
        &self,
        _socket: &Path,
        _method: &'static str,
        _request: Vec<u8>,
    ) -> Option<Result<Vec<u8>, CallError>> {
        None
    }

    /// The uptime, suspend included, by a clock that is never set; `None` where it is unknown.
    fn since_boot(&self) -> Option<Duration> {
        None
    }

    /// Lets time pass while a device appears.
    async fn pause(&self, time: Duration) {
        sleep(time).await;
    }
}

/// The host of a machine of this kind, unless a fake replaces it.
pub(crate) fn host_of(machine: Machine) -> Arc<dyn Host> {
    match machine {
        Machine::Host => Arc::new(LocalHost),
        Machine::Hollow { .. } => Arc::new(HollowHost),
    }
}

/// This host.
#[derive(Debug)]
pub struct LocalHost;

#[async_trait]
impl Host for LocalHost {
    async fn run(&self, program: &str, args: &[&str]) -> Result<CommandOutput, CommandError> {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).kill_on_drop(true);
        match timeout(TIMEOUT, command.output()).await {
            Ok(Ok(done)) => {
                let mut output = String::from_utf8_lossy(&done.stdout).into_owned();
                output.push_str(&String::from_utf8_lossy(&done.stderr));
                Ok(CommandOutput {
                    code: done.status.code(),
                    output,
                })
            }
            Ok(Err(source)) => Err(CommandError {
                program: program.into(),
                source,
            }),
            Err(_) => Ok(CommandOutput {
                code: None,
                output: format!("{program} took longer than {} s", TIMEOUT.as_secs()),
            }),
        }
    }

    fn is_mounted(&self, at: &Path) -> std::io::Result<bool> {
        mounts::is_mount_point(at)
    }

    fn device(&self, by_path: &str) -> Option<PathBuf> {
        let (directory, pattern) = by_path.rsplit_once('/')?;
        let mut names: Vec<_> = crate::host_fs::read_dir(directory).ok()?.flatten().collect();
        names.sort_by_key(std::fs::DirEntry::file_name);
        let found = names
            .into_iter()
            .find(|entry| matches(&entry.file_name().to_string_lossy(), pattern))?;
        crate::host_fs::canonicalize(found.path()).ok()
    }

    fn since_boot(&self) -> Option<Duration> {
        clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).ok()
    }
}

/// `*` at the beginning is anything.
fn matches(name: &str, pattern: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some(end) => name.ends_with(end),
        None => name == pattern,
    }
}

/// A hollow node mounts nothing.
#[derive(Debug)]
pub struct HollowHost;

#[async_trait]
impl Host for HollowHost {
    async fn run(&self, _program: &str, _args: &[&str]) -> Result<CommandOutput, CommandError> {
        Ok(CommandOutput {
            code: Some(0),
            output: String::new(),
        })
    }

    fn is_mounted(&self, _at: &Path) -> std::io::Result<bool> {
        Ok(false)
    }

    fn device(&self, _by_path: &str) -> Option<PathBuf> {
        Some(PathBuf::from("/dev/null"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_command_returns_its_exit_code_and_output_or_that_it_is_missing() {
        let ran = LocalHost
            .run("sh", &["-c", "echo a; echo b >&2; exit 3"])
            .await
            .unwrap();
        assert_eq!((ran.code, ran.output.as_str()), (Some(3), "a\nb\n"));
        assert_eq!(ran.status(), "exit status 3");
        let missing = LocalHost
            .run("no-such-program-here", &[])
            .await
            .unwrap_err()
            .to_string();
        assert!(missing.contains("no-such-program-here"), "{missing}");
    }

    #[test]
    fn a_device_is_found_by_its_name_or_its_names_end() {
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().join("sdx");
        std::fs::write(&disk, "").unwrap();
        std::os::unix::fs::symlink(&disk, dir.path().join("pci-0-ip-1-lun-1")).unwrap();
        let at = |name: &str| LocalHost.device(&format!("{}/{name}", dir.path().display()));
        let disk = disk.canonicalize().unwrap();
        assert_eq!(at("*ip-1-lun-1"), Some(disk.clone()));
        assert_eq!(at("pci-0-ip-1-lun-1"), Some(disk));
        assert_eq!(at("*ip-1-lun-2"), None);
        assert_eq!(LocalHost.device("/no/such/directory/x"), None);
    }
}
