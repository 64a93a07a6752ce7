//! Which attachments each pod uses, kept in its directory for the next kubelet: one file for each attachment, with the volume's
//! name in it. It is removed with the pod's directory.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use knarr_apimachinery::ids::PodUid;

use crate::untrusted_fs::{Dir, NewFile};
use crate::volumes::layout::{POD_DIR_MODE, pod_dir};

/// A volume's name is shorter than this.
const VOLUME_BYTES_MAX: usize = 64 * 1024;
/// In a pod's directory.
const DIRECTORY: &str = "attached";

/// A pod that uses an attachment.
pub(super) struct Entry {
    pub uid: PodUid,
    pub attachment: String,
    /// The volume's name; a CSI driver's by its name in the node's status.
    pub volume: String,
}

fn directory(root: &Path, uid: &str) -> PathBuf {
    pod_dir(root, uid).join(DIRECTORY)
}

/// `root` is the kubelet's directory.
pub(super) fn write(root: &Path, uid: &PodUid, attachment: &str, volume: &str) -> io::Result<()> {
    let file = NewFile {
        bytes: volume.as_bytes(),
        mode: 0o600,
        ..NewFile::default()
    };
    Dir::make(&directory(root, uid), POD_DIR_MODE)?.replace(attachment, file)
}

/// What all pods use.
pub(super) fn read(root: &Path) -> io::Result<Vec<Entry>> {
    let mut found = Vec::new();
    for uid in names(&root.join("pods"))? {
        let directory = directory(root, &uid);
        for attachment in names(&directory)? {
            // Half a file of a kubelet that was killed.
            if attachment.starts_with('.') {
                continue;
            }
            let volume = Dir::open(&directory)?.read_whole(&attachment, VOLUME_BYTES_MAX)?;
            found.push(Entry {
                uid: uid.as_str().into(),
                attachment,
                volume: String::from_utf8_lossy(&volume).into_owned(),
            });
        }
    }
    Ok(found)
}

/// What is in a directory, nothing if it is not there.
fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match Dir::open(directory) {
        Ok(directory) => directory.entries(usize::MAX)?,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Vec::new(),
        Err(e) => return Err(e),
    };
    Ok(entries
        .into_iter()
        .filter_map(|e| e.name.into_string().ok())
        .collect())
}
