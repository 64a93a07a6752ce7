//! Where volumes are below the kubelet's directory.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;

/// Directories of the kubelet's own, pods' among them: closed to the node's other users, for what is below them is not.
pub(crate) const POD_DIR_MODE: u32 = 0o750;

/// Where volumes of `knarr.io/local` are, below the kubelet's directory.
pub(crate) fn local_root(root: &Path) -> PathBuf {
    root.join("local-volumes")
}

/// Where everything of one pod is.
pub(super) fn pod_dir(root: &Path, uid: &str) -> PathBuf {
    root.join("pods").join(uid)
}

/// Where a pod's volume is set up, unless it lies elsewhere.
pub(super) fn volume_dir(root: &Path, uid: &str, volume: &core::Volume) -> PathBuf {
    let base = pod_dir(root, uid).join("volumes");
    base.join(plugin(volume)).join(&volume.name)
}

/// Where a volume's files are below the kubelet's directory; none for volumes that lie elsewhere.
pub(crate) fn path_in(root: &Path, uid: &str, volume: &core::Volume) -> Option<PathBuf> {
    (plugin(volume) != ELSEWHERE).then(|| volume_dir(root, uid, volume))
}

const ELSEWHERE: &str = "kubernetes.io~other";

/// The directory names of a volume's plugin.
fn plugin(volume: &core::Volume) -> &'static str {
    match volume {
        v if v.empty_dir.is_some() => "kubernetes.io~empty-dir",
        v if v.config_map.is_some() => "kubernetes.io~configmap",
        v if v.secret.is_some() => "kubernetes.io~secret",
        v if v.downward_api.is_some() => "kubernetes.io~downward-api",
        v if v.projected.is_some() => "kubernetes.io~projected",
        _ => ELSEWHERE,
    }
}
