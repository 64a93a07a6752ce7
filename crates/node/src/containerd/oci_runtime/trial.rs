//! Whether an OCI runtime works on this host: it is given one container to run, whose program exits at once.
//!
//! The container is like those of pods in what hosts differ in: a cgroup with limits below that of all pods, by the kubelet's cgroup
//! driver, and the cgroups of the host mounted. It needs no image. A runtime that fails or does not end is stopped and has to delete the
//! container; the bundle and the runtime's state are removed in any case. Nothing of the bundle comes from a user, and only root can
//! enter its directory.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use knarr_kubelet::cgroup::{CgroupDriver, CgroupName};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::host_fs;
use crate::images::exit;

/// The beginning of the container's name.
const PREFIX: &str = "knarr-oci-runtime-";
/// The container's program in its root file system.
const PROGRAM: &str = "exit";
/// The container's memory: enough for the runtime's own process in its cgroup (runc needs some 10 MB).
const MEMORY_BYTES: u64 = 64 << 20;
/// Likewise its processes and threads.
const PIDS: u64 = 64;
/// What a runtime may write; the pipe is closed then.
const MAX_OUTPUT_BYTES: u64 = 64 << 10;
/// How much of its last line is shown.
const MAX_MESSAGE_CHARS: usize = 512;
/// How long a killed runtime may take to exit.
const KILL_LIMIT: Duration = Duration::from_millis(500);
/// A variable by which systemd's services report readiness; a runtime would wait for the container's.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// Why a runtime is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum TrialError {
    #[error("knarr has no program for a container of this processor architecture")]
    Architecture,
    #[error("cannot write the bundle of a container: {0}")]
    Bundle(io::Error),
    #[error("cannot start it: {0}")]
    Start(io::Error),
    #[error("cannot wait for it: {0}")]
    Wait(io::Error),
    #[error("a container did not end within {} ms", limit.as_millis())]
    Timeout { limit: Duration },
    #[error("{0}")]
    Failed(String),
}

/// How long a trial may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub run: Duration,
    pub delete: Duration,
}

impl Default for Limits {
    /// A runtime that works needs some 20 ms; the node's start waits for it.
    fn default() -> Self {
        Limits {
            run: Duration::from_secs(3),
            delete: Duration::from_secs(1),
        }
    }
}

/// One container, with this runtime.
#[derive(Debug)]
pub(super) struct Trial<'a> {
    /// The path of the runtime.
    pub program: &'a Path,
    /// A directory that only root can enter.
    pub directory: &'a Path,
    pub driver: CgroupDriver,
    pub limits: Limits,
}

impl Trial<'_> {
    /// Returns when the container has ended, and nothing is left of it.
    pub async fn run(&self) -> Result<(), TrialError> {
        let program = exit::program().ok_or(TrialError::Architecture)?;
        // Removed at the end of this function, also when it is cancelled.
        let directory = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(self.directory)
            .map_err(TrialError::Bundle)?;
        let bundle = directory.path();
        // Unique on the host, as several nodes of a test may share its cgroups.
        let id = bundle
            .file_name()
            .map(|name| name.to_string_lossy())
            .unwrap_or_default();
        write_bundle(bundle, &program, &cgroups_path(self.driver, &id)).map_err(TrialError::Bundle)?;
        let mut run = self.command(bundle);
        run.arg("run").arg("--bundle").arg(bundle).arg(&*id);
        let ran = call(run, self.limits.run).await;
        if ran.is_err() {
            let mut delete = self.command(bundle);
            delete.args(["delete", "--force", &*id]);
            // Mostly there is no container to delete, which is an error for some runtimes.
            if let Err(error) = call(delete, self.limits.delete).await {
                tracing::debug!(%error, "the runtime did not delete the container");
            }
        }
        ran
    }

    /// The runtime with its global flags.
    fn command(&self, bundle: &Path) -> std::process::Command {
        let mut command = std::process::Command::new(self.program);
        command.arg("--root").arg(bundle.join("state"));
        if self.driver == CgroupDriver::Systemd {
            command.arg("--systemd-cgroup");
        }
        command
    }
}

/// The container's cgroup as containerd passes it to a runtime.
fn cgroups_path(driver: CgroupDriver, id: &str) -> String {
    let pods = CgroupName::root();
    match driver {
        CgroupDriver::Cgroupfs => pods.path_of_container(driver, id),
        CgroupDriver::Systemd => format!("{}:cri-containerd:{id}", pods.slice()),
    }
}

fn write_bundle(bundle: &Path, program: &[u8], cgroups_path: &str) -> io::Result<()> {
    let root = bundle.join("rootfs");
    for mount_point in ["proc", "sys/fs/cgroup"] {
        host_fs::create_dir_all(root.join(mount_point))?;
    }
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o755);
    host_fs::open_with(&mut options, root.join(PROGRAM))?.write_all(program)?;
    host_fs::write(bundle.join("config.json"), config(cgroups_path).to_string())
}

/// The configuration of the OCI runtime specification. No network namespace: the kernel takes longer to remove one than all else takes.
fn config(cgroups_path: &str) -> Value {
    let namespaces = ["pid", "ipc", "uts", "mount"].map(|kind| json!({"type": kind}));
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": [format!("/{PROGRAM}")],
            "cwd": "/",
            "capabilities": {"bounding": [], "effective": [], "inheritable": [], "permitted": []},
            "noNewPrivileges": true,
        },
        "root": {"path": "rootfs", "readonly": true},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
            {
                "destination": "/sys/fs/cgroup",
                "type": "cgroup",
                "source": "cgroup",
                "options": ["nosuid", "noexec", "nodev", "relatime", "ro"],
            },
        ],
        "linux": {
            "cgroupsPath": cgroups_path,
            "resources": {
                "devices": [{"allow": false, "access": "rwm"}],
                "memory": {"limit": MEMORY_BYTES},
                "cpu": {"shares": 1024},
                "pids": {"limit": PIDS},
            },
            "namespaces": namespaces,
        },
    })
}

/// Runs the command to its end; after `limit`, it and the processes that it has started are killed.
async fn call(mut command: std::process::Command, limit: Duration) -> Result<(), TrialError> {
    command
        .env_remove(NOTIFY_SOCKET)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0);
    let mut child = Command::from(command)
        .kill_on_drop(true)
        .spawn()
        .map_err(TrialError::Start)?;
    let mut written = Vec::new();
    let ended = timeout(limit, end(&mut child, &mut written)).await;
    match ended {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(TrialError::Failed(message(&written, status))),
        Ok(Err(error)) => Err(TrialError::Wait(error)),
        Err(_) => {
            kill(&mut child).await;
            Err(TrialError::Timeout { limit })
        }
    }
}

/// Reads what it writes until it has closed its standard error, then waits for it.
async fn end(child: &mut Child, written: &mut Vec<u8>) -> io::Result<ExitStatus> {
    if let Some(stderr) = child.stderr.take() {
        stderr.take(MAX_OUTPUT_BYTES).read_to_end(written).await?;
    }
    child.wait().await
}

/// It has not been waited for, so its process id is still that of its group.
async fn kill(child: &mut Child) {
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    if let Some(group) = id.and_then(Pid::from_raw) {
        // All of it may have ended by now.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = timeout(KILL_LIMIT, child.wait()).await;
}

/// Its last line, or its exit status if it has written nothing.
fn message(written: &[u8], status: ExitStatus) -> String {
    let text = String::from_utf8_lossy(written);
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    match last {
        Some(line) => line.chars().map(shown).take(MAX_MESSAGE_CHARS).collect(),
        None => status.to_string(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Writes a shell script that records its calls. Another process writes it: no child of a concurrent test has it open for writing.
    pub fn write_program(path: &Path, script: &str) {
        let text = format!("#!/bin/sh\necho \"$*\" >>\"${{0%/*}}/calls\"\n{script}\n");
        let status = std::process::Command::new("sh")
            .args(["-c", r#"printf '%s' "$2" >"$1" && chmod 755 "$1""#, "sh"])
            .arg(path)
            .arg(text)
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// The arguments of each call of the programs in this directory.
    pub fn calls(directory: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(directory.join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// A trial with a runtime that is this script, and what it has been called with. Nothing may be left of the bundle.
    async fn tried(
        script: &str,
        driver: CgroupDriver,
        limits: Limits,
    ) -> (Result<(), TrialError>, Vec<String>) {
        let (programs, bundles) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let program = programs.path().join("runtime");
        write_program(&program, script);
        let trial = Trial {
            program: &program,
            directory: bundles.path(),
            driver,
            limits,
        };
        let result = trial.run().await;
        assert_eq!(std::fs::read_dir(bundles.path()).unwrap().count(), 0, "{script}");
        (result, calls(programs.path()))
    }

    #[tokio::test]
    async fn a_runtime_that_works_runs_one_container() {
        let checks_bundle = r#"
            while [ "$1" != --bundle ]; do shift; done
            [ -x "$2/rootfs/exit" ] && grep -q '"/exit"' "$2/config.json" && [ "$(stat -c %a "$2")" = 700 ]"#;
        for driver in [CgroupDriver::Cgroupfs, CgroupDriver::Systemd] {
            let (result, calls) = tried(checks_bundle, driver, Limits::default()).await;
            assert!(result.is_ok(), "{result:?}");
            assert_eq!(calls.len(), 1, "{calls:?}");
            assert!(calls[0].contains(" run --bundle "), "{calls:?}");
            let has_flag = calls[0].contains(" --systemd-cgroup run ");
            assert_eq!(has_flag, driver == CgroupDriver::Systemd, "{calls:?}");
        }
    }

    #[tokio::test]
    async fn the_error_of_a_runtime_that_fails_is_its_last_line_and_its_container_is_deleted() {
        let script =
            r#"case "$*" in *delete*) exit 1;; esac; echo first >&2; echo "no \033[1mhybrid" >&2; exit 1"#;
        let (result, calls) = tried(script, CgroupDriver::Cgroupfs, Limits::default()).await;
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with("no ") && error.ends_with("hybrid"), "{error:?}");
        assert!(!error.contains(char::is_control), "{error:?}");
        let id = calls[0].rsplit(' ').next().unwrap();
        assert!(id.starts_with(PREFIX), "{id}");
        assert!(calls[1].ends_with(&format!(" delete --force {id}")), "{calls:?}");
        let (silent, _) = tried("exit 3", CgroupDriver::Cgroupfs, Limits::default()).await;
        assert_eq!(silent.unwrap_err().to_string(), "exit status: 3");
    }

    #[tokio::test]
    async fn a_runtime_that_writes_without_end_is_stopped_and_its_message_is_short() {
        let script = r#"case "$*" in *delete*) exit 0;; esac; exec tr '\0' x </dev/zero >&2"#;
        let (result, calls) = tried(script, CgroupDriver::Cgroupfs, Limits::default()).await;
        let error = result.unwrap_err().to_string();
        assert!(error.len() <= MAX_MESSAGE_CHARS, "{} bytes", error.len());
        assert_eq!(calls.len(), 2, "{calls:?}");
    }

    #[tokio::test]
    async fn a_runtime_that_hangs_is_killed_with_its_processes_and_its_container_is_deleted() {
        let ids = tempfile::NamedTempFile::new().unwrap();
        let script = format!(
            r#"case "$*" in *delete*) exit 0;; esac; sleep 600 & echo "$$ $!" >{:?}; wait"#,
            ids.path()
        );
        let limits = Limits {
            run: Duration::from_secs(2),
            ..Limits::default()
        };
        let (result, calls) = tried(&script, CgroupDriver::Cgroupfs, limits).await;
        assert!(matches!(result, Err(TrialError::Timeout { .. })), "{result:?}");
        assert!(calls[1].contains(" delete --force "), "{calls:?}");
        let text = std::fs::read_to_string(ids.path()).unwrap();
        assert_eq!(text.split_whitespace().count(), 2, "{text:?}");
        // A process that was killed and not yet waited for has no memory and so no command line.
        let runs = |id: &str| std::fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|line| !line.is_empty());
        let ended = async {
            while text.split_whitespace().any(runs) {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(5), ended).await.unwrap();
    }

    #[test]
    fn the_cgroup_is_below_that_of_all_pods() {
        assert_eq!(cgroups_path(CgroupDriver::Cgroupfs, "a"), "/kubepods/a");
        assert_eq!(
            cgroups_path(CgroupDriver::Systemd, "a"),
            "kubepods.slice:cri-containerd:a"
        );
        let config = config("/kubepods/a");
        assert_eq!(config["linux"]["cgroupsPath"], "/kubepods/a");
        assert_eq!(config["root"]["readonly"], true);
    }
}
