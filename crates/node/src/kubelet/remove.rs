//! Removes what is left of one run of a container: the runtime's record of it, its log and the link to that.
//!
//! The log of a container that the runtime no longer knows cannot be requested; kept, the logs of a container in a
//! crash loop would fill the disk.

use std::path::{Path, PathBuf};

use knarr_apimachinery::ids::ContainerId;
use tracing::warn;

use crate::logs::{links, rotate};
use crate::runtime::{Result, Runtime};
use crate::untrusted_fs::{self, Pool};

/// `log_dir` is where all pods' logs are.
pub(super) async fn remove_container(runtime: &dyn Runtime, log_dir: &Path, id: &ContainerId) -> Result<()> {
    // After the removal the path of its log is unknown. A container that is removed already has no log to find.
    let detail = match runtime.container(id).await {
        Ok(detail) => Some(detail),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error),
    };
    runtime.remove_container(id).await?;
    let Some(detail) = detail.filter(|d| !d.log_path.is_empty()) else {
        return Ok(());
    };
    if let Err(error) = links::unlink(&links::directory(log_dir), &detail.container) {
        warn!(container = %id, %error, "cannot remove the link to a container's log");
    }
    if let Err(error) = rotate::remove(Path::new(&detail.log_path)) {
        warn!(container = %id, %error, "cannot remove a container's log");
    }
    Ok(())
}

/// A pod's logs, and the links to them.
pub(super) async fn remove_logs(files: &Pool, log_dir: &Path, uid: &str, directory: PathBuf) {
    let links = links::directory(log_dir);
    let at = directory.display().to_string();
    let removed = files.run(uid, move || {
        if let Err(error) = links::unlink_all_below(&links, &directory) {
            warn!(path = %directory.display(), %error, "cannot remove the links to a pod's logs");
        }
        untrusted_fs::remove(&directory)
    });
    if let Err(error) = removed.await {
        warn!(path = at, %error, "cannot remove the logs of a deleted pod");
    }
}
