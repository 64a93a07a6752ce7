//! A private containerd: configured, started, watched and started again by knarr.
//!
//! Containers belong to containerd's shims and live on when knarr or containerd ends. A containerd that an
//! earlier knarr left behind is ended and replaced, so there is one and it has today's configuration.

mod config;

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use crate::runtime::{Runtime, RuntimeError};

pub use config::{ContainerdConfig, can_lower_oom_score};

/// How long containerd gets to end before it is killed.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// How long a start may take until its socket answers.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Between two looks at the socket while it starts.
const START_POLL: Duration = Duration::from_millis(10);
/// First wait before a crashed containerd is started again; doubles up to [`RESTART_MAX`].
const RESTART_FIRST: Duration = Duration::from_millis(200);
const RESTART_MAX: Duration = Duration::from_secs(10);
/// After so long without a crash the next one waits [`RESTART_FIRST`] again.
const RESTART_RESET: Duration = Duration::from_secs(60);
/// Unix sockets' paths have room for 107 bytes (sun_path).
const SOCKET_PATH_MAX: usize = 107;

/// Why there is no containerd.
#[derive(Debug, thiserror::Error)]
pub enum ContainerdError {
    #[error(
        "cannot find the program {program:?}: install it (Debian: apt-get install {package}) or name it in the configuration"
    )]
    Missing { program: String, package: &'static str },
    #[error(
        "the socket path {path:?} has {len} bytes, a Unix socket allows {SOCKET_PATH_MAX}: choose a shorter data directory"
    )]
    SocketPath { path: PathBuf, len: usize },
    #[error("cannot write {path:?}")]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot start {program:?}")]
    Spawn { program: PathBuf, source: io::Error },
    #[error("containerd ended while it was starting ({status}); its last words, from {log:?}:\n{tail}")]
    Died {
        status: String,
        log: PathBuf,
        tail: String,
    },
    #[error("containerd did not answer on {socket:?} within {} s; its last words, from {log:?}:\n{tail}", START_LIMIT.as_secs())]
    Timeout {
        socket: PathBuf,
        log: PathBuf,
        tail: String,
    },
    #[error("containerd does not serve CRI within {} s of its start", limit.as_secs())]
    Cri {
        limit: Duration,
        #[source]
        error: RuntimeError,
    },
    #[error("an earlier containerd (process {pid}) does not end")]
    Stuck { pid: i32 },
}

/// A running containerd under supervision. Ends with the token it was started with, unless it is
/// [detached](Containerd::wait).
pub struct Containerd {
    socket: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Containerd {
    /// Starts it and returns when its socket answers. It is restarted when it crashes, until `cancel`;
    /// then it is ended (containers go on).
    pub async fn start(config: ContainerdConfig, cancel: CancellationToken) -> Result<Self, ContainerdError> {
        let socket = config.socket();
        let len = socket.as_os_str().len();
        if len > SOCKET_PATH_MAX {
            return Err(ContainerdError::SocketPath { path: socket, len });
        }
        config.write()?;
        end_leftover(&config).await?;
        let child = launch(&config).await?;
        let task = tokio::spawn(supervise(config, child, cancel));
        Ok(Containerd { socket, task })
    }

    /// Returns when it serves CRI: its socket takes connections before its CRI plugin is initialised.
    pub async fn serves(&self, runtime: &dyn Runtime) -> Result<(), ContainerdError> {
        let limit = tokio::time::Instant::now() + START_LIMIT;
        loop {
            let Err(error) = runtime.sandboxes().await else {
                return Ok(());
            };
            if tokio::time::Instant::now() >= limit {
                return Err(ContainerdError::Cri {
                    limit: START_LIMIT,
                    error,
                });
            }
            tokio::time::sleep(START_POLL).await;
        }
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns once it has been ended.
    pub async fn wait(self) {
        if let Err(e) = self.task.await {
            tracing::error!(error = %e, "containerd's supervisor failed");
        }
    }
}

async fn supervise(config: ContainerdConfig, mut child: Child, cancel: CancellationToken) {
    let mut wait = RESTART_FIRST;
    loop {
        let since = tokio::time::Instant::now();
        tokio::select! {
            status = child.wait() => {
                let status = status.map_or_else(|e| e.to_string(), |s| s.to_string());
                tracing::warn!(%status, "containerd ended; starting it again");
            }
            () = cancel.cancelled() => return stop(child).await,
        }
        if since.elapsed() >= RESTART_RESET {
            wait = RESTART_FIRST;
        }
        child = loop {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = cancel.cancelled() => return,
            }
            wait = (wait * 2).min(RESTART_MAX);
            match launch(&config).await {
                Ok(child) => break child,
                Err(e) => tracing::error!(error = %e, "containerd cannot be started again"),
            }
        };
        tracing::info!("containerd runs again");
    }
}

async fn stop(mut child: Child) {
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
        // Gone already is as good as ended.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    if tokio::time::timeout(STOP_GRACE, child.wait()).await.is_err() {
        tracing::warn!("containerd did not end on TERM within {STOP_GRACE:?}; killing it");
        if let Err(e) = child.kill().await {
            tracing::error!(error = %e, "containerd cannot be killed");
        }
    }
}

/// Starts the process and waits until its socket takes a connection.
async fn launch(config: &ContainerdConfig) -> Result<Child, ContainerdError> {
    let log_path = config.log();
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(&log_path)
        .map_err(|source| ContainerdError::Write {
            path: log_path.clone(),
            source,
        })?;
    let log_too = log.try_clone().map_err(|source| ContainerdError::Write {
        path: log_path.clone(),
        source,
    })?;
    let mut command = std::process::Command::new(&config.program);
    // Its own process group: a Ctrl-C at the terminal is knarr's to handle.
    command.arg("--config").arg(config.file()).process_group(0);
    command.stdin(Stdio::null()).stdout(log).stderr(log_too);
    let mut child = Command::from(command)
        .spawn()
        .map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ContainerdError::Missing {
                program: config.program.display().to_string(),
                package: "containerd",
            },
            _ => ContainerdError::Spawn {
                program: config.program.clone(),
                source,
            },
        })?;
    if let Some(pid) = child.id() {
        let path = config.pid_file();
        std::fs::write(&path, pid.to_string()).map_err(|source| ContainerdError::Write { path, source })?;
    }
    let socket = config.socket();
    let limit = tokio::time::Instant::now() + START_LIMIT;
    loop {
        if tokio::net::UnixStream::connect(&socket).await.is_ok() {
            return Ok(child);
        }
        if let Ok(Some(status)) = child.try_wait() {
            let tail = tail(&log_path);
            return Err(ContainerdError::Died {
                status: status.to_string(),
                log: log_path,
                tail,
            });
        }
        if tokio::time::Instant::now() >= limit {
            stop(child).await;
            return Err(ContainerdError::Timeout {
                socket,
                tail: tail(&log_path),
                log: log_path,
            });
        }
        tokio::time::sleep(START_POLL).await;
    }
}

/// Ends a containerd that runs with this configuration file although its knarr is gone.
pub async fn end_leftover(config: &ContainerdConfig) -> Result<(), ContainerdError> {
    let Some(pid) = running_pid(config) else {
        // A socket without a process behind it only confuses the next start.
        let _ = std::fs::remove_file(config.socket());
        return Ok(());
    };
    tracing::info!(pid, "ending the containerd of an earlier run");
    for (signal, grace) in [(Signal::SIGTERM, STOP_GRACE), (Signal::SIGKILL, STOP_GRACE)] {
        let _ = kill(Pid::from_raw(pid), signal);
        let limit = tokio::time::Instant::now() + grace;
        while tokio::time::Instant::now() < limit {
            if running_pid(config).is_none() {
                return Ok(());
            }
            tokio::time::sleep(START_POLL).await;
        }
    }
    Err(ContainerdError::Stuck { pid })
}

/// The process of the pid file, if it is alive and really our containerd (pids are used again).
fn running_pid(config: &ContainerdConfig) -> Option<i32> {
    let pid: i32 = std::fs::read_to_string(config.pid_file())
        .ok()?
        .trim()
        .parse()
        .ok()?;
    let cmdline = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let file = config.file();
    let ours = cmdline
        .split(|b| *b == 0)
        .any(|arg| arg == file.as_os_str().as_encoded_bytes());
    ours.then_some(pid)
}

/// The last lines of a log, for an error message.
fn tail(path: &Path) -> String {
    const LINES: usize = 8;
    match std::fs::read_to_string(path) {
        Ok(text) => {
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(LINES)..].join("\n")
        }
        Err(e) => format!("(cannot read it: {e})"),
    }
}
