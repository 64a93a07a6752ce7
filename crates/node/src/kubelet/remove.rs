//! Removes what is left of one run of a container: the runtime's record of it, its log and the link to that.
//!
//! Nobody can ask for the log of a container that the runtime no longer knows; kept, the logs of one that crashes again
//! and again would fill the disk.

use std::path::{Path, PathBuf};

use tracing::warn;

use super::Shared;
use crate::logs::{links, rotate};
use crate::runtime::Result;
use crate::untrusted_fs;

pub(super) async fn remove_container(shared: &Shared, id: &str) -> Result<()> {
    // Afterwards nobody knows where its log is. One that is gone already has no log to be found.
    let detail = match shared.runtime.container(id).await {
        Ok(detail) => Some(detail),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error),
    };
    shared.runtime.remove_container(id).await?;
    let Some(detail) = detail.filter(|d| !d.log_path.is_empty()) else {
        return Ok(());
    };
    if let Err(error) = links::unlink(&links::folder(&shared.config.log_dir), &detail.container) {
        warn!(container = id, %error, "cannot remove the link to a container's log");
    }
    if let Err(error) = rotate::remove(Path::new(&detail.log_path)) {
        warn!(container = id, %error, "cannot remove a container's log");
    }
    Ok(())
}

/// A pod's logs, and the links to them.
pub(super) async fn remove_logs(shared: &Shared, uid: &str, folder: PathBuf) {
    let links = links::folder(&shared.config.log_dir);
    let at = folder.display().to_string();
    let removed = shared.volumes.files().run(uid, move || {
        if let Err(error) = links::unlink_all_below(&links, &folder) {
            warn!(path = %folder.display(), %error, "cannot remove the links to a pod's logs");
        }
        untrusted_fs::remove(&folder)
    });
    if let Err(error) = removed.await {
        warn!(path = at, %error, "cannot remove the logs of a pod that is gone");
    }
}
