//! Log rotation: a log that has grown too large is renamed, the runtime opens a new one, older ones are compressed, the
//! oldest removed.
//!
//! No step may lose lines, whatever fails: the newest rotated file is unchanged until the next rotation, and a
//! compressed copy replaces its original only when it is complete.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::tz::TimeZone;
use knarr_api::k8s_openapi;
use knarr_kubelet::configuration::ContainerLogs;

use crate::host_fs;
use crate::runtime::RuntimeError;
use crate::server::{Clock, Containers};

const COMPRESSED: &str = "gz";
const TEMPORARY: &str = "tmp";

/// KubeletConfiguration's containerLogMaxSize, containerLogMaxFiles, containerLogMonitorInterval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub max_bytes: u64,
    /// The one being written included; at least 2.
    pub max_files: usize,
    pub interval: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        ContainerLogs::default().into()
    }
}

impl From<ContainerLogs> for Policy {
    fn from(settings: ContainerLogs) -> Self {
        Policy {
            max_bytes: settings.max_bytes,
            max_files: settings.max_files,
            interval: settings.interval.unsigned_abs(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    #[error("cannot {action} {path:?}")]
    File {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("the runtime did not create a new log file")]
    Reopen(#[source] RuntimeError),
    #[error("the compressing task died")]
    Task(#[from] tokio::task::JoinError),
}

fn at<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> RotateError + 'a {
    move |source| RotateError::File {
        action,
        path: path.to_path_buf(),
        source,
    }
}

/// Checks all logs periodically. Never returns.
pub async fn run(containers: Arc<dyn Containers>, policy: Policy, clock: Clock) {
    let mut paths = HashMap::new();
    let mut ticks = tokio::time::interval(policy.interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = refresh(containers.as_ref(), &mut paths).await {
            tracing::debug!(%error, "cannot list containers to rotate their logs");
        }
        for (id, path) in &paths {
            if let Err(error) = rotate_if_large(containers.as_ref(), id, path, policy, clock()).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(container = id, error, "log cannot be rotated");
            }
        }
    }
}

/// Requests a log's path once; a container's never changes.
async fn refresh(
    containers: &dyn Containers,
    paths: &mut HashMap<String, PathBuf>,
) -> Result<(), RuntimeError> {
    let running = containers.running().await?.into_iter();
    let running: HashSet<String> = running.map(|c| c.id.into()).collect();
    paths.retain(|id, _| running.contains(id));
    for id in running {
        if paths.contains_key(&id) {
            continue;
        }
        match containers.container(&id).await {
            Ok(detail) => drop(paths.insert(id, detail.log_path.into())),
            // Removed since it was listed.
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Rotates one log if it has grown to the policy's size. A missing log is created again.
pub async fn rotate_if_large(
    containers: &dyn Containers,
    id: &str,
    log: &Path,
    policy: Policy,
    now: Timestamp,
) -> Result<(), RotateError> {
    match host_fs::nonblocking::metadata(log).await {
        Ok(file) if file.len() < policy.max_bytes => return Ok(()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return containers.reopen_log(id).await.map_err(RotateError::Reopen);
        }
        Err(error) => return Err(at("stat", log)(error)),
    }
    let rotated = rotated_name(log, now);
    let rotate_files = {
        let log = log.to_path_buf();
        move || rotate_files(&log, policy)
    };
    tokio::task::spawn_blocking(rotate_files).await??;
    host_fs::nonblocking::rename(log, &rotated)
        .await
        .map_err(at("rename", log))?;
    if let Err(error) = containers.reopen_log(id).await {
        // The runtime still writes to the renamed file: it is renamed back, so that users find it.
        host_fs::nonblocking::rename(&rotated, log)
            .await
            .map_err(at("rename back", &rotated))?;
        return Err(RotateError::Reopen(error));
    }
    Ok(())
}

/// `0.log.20260102-150405`: sorts by time.
fn rotated_name(log: &Path, now: Timestamp) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(now.to_zoned(TimeZone::UTC).strftime(".%Y%m%d-%H%M%S").to_string());
    name.into()
}

/// Before another file is rotated: removes leftovers and the oldest, compresses the rest.
fn rotate_files(log: &Path, policy: Policy) -> Result<(), RotateError> {
    let mut kept = Vec::new();
    let rotated = rotated_files(log)?;
    for path in &rotated {
        let leftover = has_extension(path, TEMPORARY)
            || !has_extension(path, COMPRESSED) && rotated.contains(&with_extension(path, COMPRESSED));
        match leftover {
            true => host_fs::remove_file(path).map_err(at("remove", path))?,
            false => kept.push(path),
        }
    }
    // In addition to these there will be the file rotated next and the current one.
    let excess = kept.len().saturating_sub(policy.max_files.saturating_sub(2));
    for (n, path) in kept.into_iter().enumerate() {
        if n < excess {
            host_fs::remove_file(path).map_err(at("remove", path))?;
        } else if !has_extension(path, COMPRESSED) {
            compress(path)?;
        }
    }
    Ok(())
}

/// Removes the log of a removed container, and its rotated files.
pub fn remove(log: &Path) -> Result<(), RotateError> {
    if !log.parent().is_some_and(host_fs::exists) {
        return Ok(());
    }
    for path in rotated_files(log)?.iter().map(PathBuf::as_path).chain([log]) {
        match host_fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => done.map_err(at("remove", path))?,
        }
    }
    Ok(())
}

/// Oldest first.
fn rotated_files(log: &Path) -> Result<Vec<PathBuf>, RotateError> {
    let directory = log.parent().unwrap_or(Path::new("/"));
    let mut prefix = log.file_name().unwrap_or_default().as_encoded_bytes().to_vec();
    prefix.push(b'.');
    let mut files = Vec::new();
    for entry in host_fs::read_dir(directory).map_err(at("list", directory))? {
        let entry = entry.map_err(at("list", directory))?;
        if entry.file_name().as_encoded_bytes().starts_with(&prefix) {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

fn compress(path: &Path) -> Result<(), RotateError> {
    let temporary = with_extension(path, TEMPORARY);
    let mut from = crate::host_fs::open(path).map_err(at("open", path))?;
    let to = crate::host_fs::create(&temporary).map_err(at("create", &temporary))?;
    let mut encoder = GzEncoder::new(to, Compression::default());
    let written = io::copy(&mut from, &mut encoder).and_then(|_| encoder.finish()?.sync_all());
    if let Err(error) = written {
        // Also removed before the next rotation.
        let _ = host_fs::remove_file(&temporary);
        return Err(at("write", &temporary)(error));
    }
    host_fs::rename(&temporary, with_extension(path, COMPRESSED)).map_err(at("rename", &temporary))?;
    host_fs::remove_file(path).map_err(at("remove", path))
}

fn with_extension(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|e| e == extension)
}

#[cfg(test)]
mod tests;
