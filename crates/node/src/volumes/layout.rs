//! Where volumes are below the kubelet's directory.

use std::path::{Path, PathBuf};

/// Directories of the kubelet's own, pods' among them: closed to the node's other users, for what is below them is not.
pub(crate) const POD_DIR_MODE: u32 = 0o750;

/// Where volumes of `knarr.io/local` are, below the kubelet's directory.
pub(crate) fn local_root(root: &Path) -> PathBuf {
    root.join("local-volumes")
}
