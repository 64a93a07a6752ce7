//! What was set up for pods, written down before it is done, so that a kubelet that was killed half way undoes it.
//!
//! Records are in the pod's directory, `storage/<plugin>/<volume>.json`, where no volume is: files in a pod's volumes
//! are never read as records. A record only identifies the volume; where it is mounted and staged follows from that.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tracing::warn;

use super::plugin::VolumeMode;
use super::source::Source;
use crate::untrusted_fs::{Dir, Kind, NewFile};

/// In a pod's directory.
const DIRECTORY: &str = "storage";
const SUFFIX: &str = ".json";
/// A record is a page of text.
const BYTES_MAX: usize = 256 * 1024;
/// Where kubelets up to version 0.1 wrote it: next to the mount, in the directories of these plugins, which only the
/// kubelet and the plugin write. The same name in a volume of any other kind was never a record.
const KUBELET_RECORD: &str = "vol_data.json";
const PLUGINS: [&str; 3] = ["kubernetes.io~csi", "kubernetes.io~iscsi", "kubernetes.io~nfs"];

#[derive(Debug, Serialize, Deserialize)]
pub struct Record {
    pub source: Source,
    #[serde(default)]
    pub mode: VolumeMode,
    /// The VolumeAttachment that the pod uses it by: what is staged is then unstaged with the last user of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachment: Option<String>,
}

/// Why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error(transparent)]
    File(#[from] io::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("a record of {other} among those of {plugin}")]
    OtherPlugin { other: &'static str, plugin: String },
}

/// A volume of a pod that has a record.
#[derive(Debug)]
pub struct Recorded {
    pub plugin: &'static str,
    pub volume: String,
    /// The error is why the record cannot be read.
    pub record: Result<Record, RecordError>,
}

fn directory(pod: &Path, plugin: &str) -> PathBuf {
    pod.join(DIRECTORY).join(plugin)
}

/// Whole, or not at all.
pub fn write(pod: &Path, volume: &str, record: &Record) -> io::Result<()> {
    let plugin = record.source.storage().plugin();
    let bytes = serde_json::to_vec(record)?;
    let file = NewFile {
        bytes: &bytes,
        mode: 0o600,
        ..NewFile::default()
    };
    Dir::make(&directory(pod, plugin), 0o700)?.replace(format!("{volume}{SUFFIX}"), file)
}

pub fn remove(pod: &Path, plugin: &str, volume: &str) -> io::Result<()> {
    match Dir::open(&directory(pod, plugin)) {
        Ok(directory) => directory.remove_file(format!("{volume}{SUFFIX}")),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// All of a pod's. One that cannot be read is among them, and no other's problem.
pub fn of_pod(pod: &Path) -> io::Result<Vec<Recorded>> {
    let mut found = Vec::new();
    for plugin in PLUGINS {
        let directory = match Dir::open(&directory(pod, plugin)) {
            Ok(directory) => directory,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => continue,
            Err(e) => return Err(e),
        };
        for entry in directory.entries(usize::MAX)? {
            let name = entry.name.to_string_lossy();
            let Some(volume) = name.strip_suffix(SUFFIX).filter(|v| !v.starts_with('.')) else {
                continue;
            };
            found.push(Recorded {
                plugin,
                volume: volume.into(),
                record: read(&directory, &name, plugin),
            });
        }
    }
    Ok(found)
}

fn read(directory: &Dir, name: &str, plugin: &str) -> Result<Record, RecordError> {
    let bytes = directory.read_whole(name, BYTES_MAX)?;
    let record: Record = serde_json::from_slice(&bytes)?;
    match record.source.storage().plugin() {
        own if own == plugin => Ok(record),
        other => Err(RecordError::OtherPlugin {
            other,
            plugin: plugin.into(),
        }),
    }
}

/// Moves the records of an earlier kubelet, whose pods still run, to the current place. Their staging paths are not
/// used. One that cannot be read stays, and is reported: its mounts are removed with its pod.
pub fn adopt_kubelet_records(pods: &Path) -> io::Result<()> {
    let all = match Dir::open(pods) {
        Ok(all) => all.entries(usize::MAX)?,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    for pod in all.into_iter().filter(|e| e.kind == Kind::Directory) {
        let pod = pods.join(&pod.name);
        for plugin in PLUGINS {
            let volumes = pod.join("volumes").join(plugin);
            let Ok(open) = Dir::open(&volumes) else { continue };
            for entry in open.entries(usize::MAX)? {
                if let Err(error) = adopt(&pod, plugin, &volumes, &entry.name.to_string_lossy()) {
                    warn!(path = %volumes.display(), volume = %entry.name.display(), %error, "cannot read the record of a volume");
                }
            }
        }
    }
    Ok(())
}

fn adopt(pod: &Path, plugin: &str, volumes: &Path, volume: &str) -> Result<(), RecordError> {
    let Ok(directory) = Dir::open(&volumes.join(volume)) else {
        return Ok(());
    };
    if directory.kind(KUBELET_RECORD)?.is_none() {
        return Ok(());
    }
    let record = read(&directory, KUBELET_RECORD, plugin)?;
    write(pod, volume, &record)?;
    Ok(directory.remove_file(KUBELET_RECORD)?)
}
