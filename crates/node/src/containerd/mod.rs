//! A private containerd: configured, started, watched and started again by knarr.
//!
//! Containers belong to containerd's shims and keep running when knarr or containerd exits. But a containerd that exits
//! at the moment when a container does loses the exit code, so one that a killed knarr left running is kept if it
//! matches what would be started now: the same program, the same configuration, serving CRI. Otherwise it is stopped
//! and replaced. Either way there is exactly one, with the current configuration.

mod config;
mod netns;
mod oci_runtime;
mod process;
mod shim;
mod shims;

use std::convert::Infallible;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use self::process::{Leftover, Process};
use crate::runtime::cri::Cri;
use crate::runtime::{Runtime, RuntimeError};

pub use config::{ContainerdConfig, can_lower_oom_score};
pub use oci_runtime::{OciRuntimeChoice, TrialSettings};
pub use shim::Shim;

/// How long a start may take until the socket accepts connections.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Poll interval of the socket during the start.
const START_POLL: Duration = Duration::from_millis(10);
/// First wait before a crashed containerd is started again; doubles up to [`RESTART_MAX`].
const RESTART_FIRST: Duration = Duration::from_millis(200);
const RESTART_MAX: Duration = Duration::from_secs(10);
/// After so long without a crash the next one waits [`RESTART_FIRST`] again.
const RESTART_RESET: Duration = Duration::from_secs(60);
/// A shim or a CNI plugin that was being started when its containerd was killed is done by then.
const LATE_SHIMS: Duration = Duration::from_secs(10);
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
    #[error(
        "the link {link:?} leads to no program: containerd would forget the pods that have knarr's shim. Restart knarr, or put the program back"
    )]
    ShimMissing { link: PathBuf },
    #[error("cannot start {program:?}")]
    Spawn { program: PathBuf, source: io::Error },
    #[error(
        "containerd exited while it was starting ({status}); the end of its log {log:?}:
    {tail}"
    )]
    Died {
        status: String,
        log: PathBuf,
        tail: String,
    },
    #[error("containerd did not answer on {socket:?} within {} s; the end of its log {log:?}:
    {tail}", START_LIMIT.as_secs())]
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
    #[error("containerd (process {pid}) does not exit")]
    Stuck { pid: i32 },
    #[error("cannot find out whether a containerd is still running")]
    FindLeftovers { source: io::Error },
}

/// A running containerd under supervision. It is stopped with the token it was started with, unless it is
/// [detached](Containerd::wait).
pub struct Containerd {
    socket: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Containerd {
    /// Starts it, or adopts the one that a killed knarr left running, and returns when its socket accepts connections.
    /// It is restarted when it crashes, until `cancel`; then it is stopped (containers keep running).
    pub async fn start(config: ContainerdConfig, cancel: CancellationToken) -> Result<Self, ContainerdError> {
        let socket = config.socket();
        let len = socket.as_os_str().len();
        if len > SOCKET_PATH_MAX {
            return Err(ContainerdError::SocketPath { path: socket, len });
        }
        config.install()?;
        let process = match adopt(&config).await? {
            Some(leftover) => leftover,
            None => {
                config.write()?;
                let directory = Path::new(netns::DIRECTORY);
                if let Err(error) = netns::share(directory) {
                    tracing::warn!(%error, ?directory, "cannot share the directory of network namespaces");
                }
                launch(&config).await?
            }
        };
        let task = crate::task::spawn(supervise(config, process, cancel));
        Ok(Containerd { socket, task })
    }

    /// Returns when it serves CRI: its socket accepts connections before its CRI plugin is initialised.
    pub async fn serves(&self, runtime: &dyn Runtime) -> Result<(), ContainerdError> {
        serves(runtime).await
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns once it has been stopped.
    pub async fn wait(self) {
        if let Err(e) = self.task.await {
            tracing::error!(error = %e, "containerd's supervisor failed");
        }
    }
}

async fn serves(runtime: &dyn Runtime) -> Result<(), ContainerdError> {
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

/// Runs once CRI is served, and once more after everything that was in flight when the previous one stopped has
/// settled.
async fn remove_leftover_shims(config: &ContainerdConfig, pid: i32) -> Infallible {
    let runtime = Cri::new(&format!("unix://{}", config.socket().display()));
    if let Err(e) = serves(&runtime).await {
        tracing::error!(error = %e, "containerd runs but does not serve CRI");
    }
    shims::remove(config, Some((pid, &runtime))).await;
    tokio::time::sleep(LATE_SHIMS).await;
    shims::remove(config, Some((pid, &runtime))).await;
    std::future::pending().await
}

async fn supervise(config: ContainerdConfig, mut process: Process, cancel: CancellationToken) {
    let mut wait = RESTART_FIRST;
    loop {
        let since = tokio::time::Instant::now();
        let pid = process.pid();
        tokio::select! {
            // Removes leftover shims twice and then waits for ever.
            never = remove_leftover_shims(&config, pid) => match never {},
            status = process.exited() => {
                tracing::warn!(%status, "containerd exited; restarting it");
            }
            () = cancel.cancelled() => {
                if let Err(e) = process.end().await {
                    tracing::error!(error = %e, "containerd is left behind");
                }
                return;
            }
        }
        if since.elapsed() >= RESTART_RESET {
            wait = RESTART_FIRST;
        }
        process = loop {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = cancel.cancelled() => return,
            }
            wait = (wait * 2).min(RESTART_MAX);
            match launch(&config).await {
                Ok(process) => break process,
                Err(e) => tracing::error!(error = %e, "cannot restart containerd"),
            }
        };
        tracing::info!("containerd was restarted");
    }
}

/// Starts the process and waits until its socket accepts a connection.
async fn launch(config: &ContainerdConfig) -> Result<Process, ContainerdError> {
    config.check_shim()?;
    let log_path = config.log();
    let log = crate::host_fs::open_with(std::fs::File::options().create(true).append(true), &log_path)
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
        config.note_pid(pid)?;
    }
    let socket = config.socket();
    let limit = tokio::time::Instant::now() + START_LIMIT;
    loop {
        if tokio::net::UnixStream::connect(&socket).await.is_ok() {
            return Ok(Process::Started(child));
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
            Process::Started(child).end().await?;
            return Err(ContainerdError::Timeout {
                socket,
                tail: tail(&log_path),
                log: log_path,
            });
        }
        tokio::time::sleep(START_POLL).await;
    }
}

/// The containerd that an earlier knarr left behind, if it can be kept; else there is none afterwards.
async fn adopt(config: &ContainerdConfig) -> Result<Option<Process>, ContainerdError> {
    let mut found = leftover(config)?;
    let why_not = match found.as_slice() {
        [] => None,
        [one] if !one.is(&config.program) => Some("it is another program"),
        [_] if !config.is_written() => Some("its configuration has changed"),
        [one] => {
            let runtime = Cri::new(&format!("unix://{}", config.socket().display()));
            tokio::select! {
                served = serves(&runtime) => served.is_err().then_some("it does not serve CRI"),
                _ = one.exited() => Some("it ended"),
            }
        }
        _ => Some("there is more than one"),
    };
    match (found.pop(), why_not) {
        (Some(leftover), None) => {
            let process = Process::Adopted(leftover);
            let pid = process.pid();
            tracing::info!(pid, "keeping the containerd of an earlier run");
            config.note_pid(pid.unsigned_abs())?;
            return Ok(Some(process));
        }
        (Some(leftover), Some(why)) => {
            tracing::info!(why, "not keeping the containerd of an earlier run");
            found.push(leftover);
        }
        (None, _) => {}
    }
    stop_all(config, found).await?;
    Ok(None)
}

/// Stops a containerd that runs with this configuration file although its knarr has exited, and all of its containers
/// that still run: for a node that is removed.
pub async fn stop_leftover(config: &ContainerdConfig) -> Result<(), ContainerdError> {
    let found = leftover(config)?;
    stop_all(config, found).await?;
    shims::remove(config, None).await;
    Ok(())
}

fn leftover(config: &ContainerdConfig) -> Result<Vec<Leftover>, ContainerdError> {
    Leftover::find(config).map_err(|source| ContainerdError::FindLeftovers { source })
}

async fn stop_all(config: &ContainerdConfig, found: Vec<Leftover>) -> Result<(), ContainerdError> {
    for leftover in found {
        let process = Process::Adopted(leftover);
        tracing::info!(pid = process.pid(), "stopping the containerd of an earlier run");
        process.end().await?;
    }
    // A socket without a process behind it only confuses the next start.
    match crate::host_fs::remove_file(config.socket()) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(ContainerdError::Write {
            path: config.socket(),
            source,
        }),
        _ => Ok(()),
    }
}

/// The last lines of a log, for an error message.
fn tail(path: &Path) -> String {
    const LINES: usize = 8;
    match crate::host_fs::read_to_string(path) {
        Ok(text) => {
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(LINES)..].join("\n")
        }
        Err(e) => format!("(cannot read it: {e})"),
    }
}
