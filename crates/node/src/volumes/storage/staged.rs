//! Which attached volumes are staged on the node, noted before they are staged, so that the next kubelet has them unstaged
//! before it releases their attachments, also where nothing of their pods is left: one file for each attachment in the
//! kubelet's directory. As kubelet's `vol_data.json` next to a staged volume.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::records::RecordError;
use super::source::Source;
use crate::untrusted_fs::{Dir, NewFile};

/// In the kubelet's directory.
const DIRECTORY: &str = "staged";
const SUFFIX: &str = ".json";
/// A record is a page of text.
const BYTES_MAX: usize = 256 * 1024;

#[derive(Serialize, Deserialize)]
pub struct StagedVolume {
    /// Its name; a CSI driver's by its name in the node's status.
    pub volume: String,
    pub source: Source,
}

/// A record of an earlier kubelet; the error is why it cannot be read.
pub struct Found {
    pub attachment: String,
    pub staged: Result<StagedVolume, RecordError>,
}

fn directory(root: &Path) -> PathBuf {
    root.join(DIRECTORY)
}

/// Whole, or not at all. `root` is the kubelet's directory.
pub fn write(root: &Path, attachment: &str, staged: &StagedVolume) -> io::Result<()> {
    let bytes = serde_json::to_vec(staged)?;
    let file = NewFile {
        bytes: &bytes,
        mode: 0o600,
        ..NewFile::default()
    };
    Dir::make(&directory(root), 0o700)?.replace(format!("{attachment}{SUFFIX}"), file)
}

pub fn remove(root: &Path, attachment: &str) -> io::Result<()> {
    match Dir::open(&directory(root)) {
        Ok(directory) => directory.remove_file(format!("{attachment}{SUFFIX}")),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// All of the node's.
pub fn read(root: &Path) -> io::Result<Vec<Found>> {
    let directory = match Dir::open(&directory(root)) {
        Ok(directory) => directory,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut found = Vec::new();
    for entry in directory.entries(usize::MAX)? {
        let name = entry.name.to_string_lossy();
        // Half a file of a kubelet that was killed begins with a dot: nothing was staged yet.
        let Some(attachment) = name.strip_suffix(SUFFIX).filter(|a| !a.starts_with('.')) else {
            continue;
        };
        found.push(Found {
            attachment: attachment.into(),
            staged: read_one(&directory, &name),
        });
    }
    Ok(found)
}

fn read_one(directory: &Dir, name: &str) -> Result<StagedVolume, RecordError> {
    let bytes = directory.read_whole(name, BYTES_MAX)?;
    Ok(serde_json::from_slice(&bytes)?)
}
