//! Local volumes that knarr makes of this node's own directories (`knarr.io/local`): made when a pod first needs them,
//! and removed, with what is in them, when their volume is deleted. Nothing outside their one place is ever touched.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use knarr_api::kinds::persistent_volume::{LOCAL_FINALIZER, LOCAL_NODE};
use knarr_api::registry::Registered;
use knarr_api::{Shared, k8s_openapi};
use knarr_apimachinery::ids::NodeName;
use knarr_apimachinery::{Error, finalizer};
use knarr_client::cache::Store;
use knarr_client::informer::{self, Scope};
use knarr_client::{Api, TypedApi};
use tokio::sync::Notify;
use tracing::{info, warn};

use super::layout::POD_DIR_MODE;
use crate::host_fs;
use crate::untrusted_fs::{self, Dir, Pool};

/// Between two tries to clean up.
const RETRY_PERIOD: Duration = Duration::from_secs(10);

/// The directory of a volume, if it is one of this place.
fn ours(root: &Path, volume: &PersistentVolume) -> Option<PathBuf> {
    let labels = volume.metadata.labels.as_ref()?;
    labels.get(LOCAL_NODE)?;
    let local = volume.spec.as_ref()?.local.as_ref()?;
    let name = volume.metadata.name.as_deref()?;
    let path = Path::new(&local.path);
    // A name of one part: no path leads out of the place.
    (path == root.join(name) && Path::new(name).components().count() == 1 && name != "..")
        .then(|| path.to_path_buf())
}

/// Makes the directory of a volume of this place. Every user of the pod may write to it, as to an emptyDir.
pub(super) fn make(root: &Path, volume: &PersistentVolume) -> std::io::Result<()> {
    let Some(path) = ours(root, volume) else {
        return Ok(());
    };
    let place = Dir::make(root, POD_DIR_MODE)?;
    let name = path.file_name().unwrap_or_default();
    // One that is there already keeps its mode.
    place.make_dir(name, 0o777).map(drop)
}

/// Whether it is a block device, or a link to one.
pub(super) fn check_device(path: &Path) -> std::io::Result<()> {
    match host_fs::metadata(path)?.file_type().is_block_device() {
        true => Ok(()),
        false => Err(std::io::Error::new(
            std::io::ErrorKind::InvalidInput,
            "is not a block device",
        )),
    }
}

/// Removes the directories of this node's deleted volumes, until dropped. `in_use` is whether a pod still uses the
/// directory.
pub(super) async fn clean(
    api: Arc<dyn Api>,
    node: NodeName,
    root: PathBuf,
    files: Pool,
    in_use: impl Fn(&Path) -> bool + Send + Sync,
) {
    let store = Arc::new(Store::new(PersistentVolume::kind_of(), &[]));
    let changed = Arc::new(Notify::new());
    let wake = changed.clone();
    store.add_event_handler(move |_| wake.notify_one());
    let scope = Scope {
        label_selector: format!("{LOCAL_NODE}={node}"),
        ..Scope::default()
    };
    let follow = informer::run(
        api.clone(),
        PersistentVolume::kind_of().clone(),
        scope,
        store.clone(),
    );
    let work = async {
        loop {
            let mut left = false;
            for object in store.list("") {
                let Ok(volume) = Shared::<PersistentVolume>::new(object) else {
                    continue;
                };
                let held = finalizer::contains(&volume.metadata, LOCAL_FINALIZER);
                if !held || volume.metadata.deletion_timestamp.is_none() {
                    continue;
                }
                match remove(&*api, &root, &files, &volume, &in_use).await {
                    Ok(true) => info!(volume = volume.object().name(), "removed a local volume"),
                    Ok(false) => left = true,
                    Err(error) => {
                        warn!(volume = volume.object().name(), %error, "cannot remove a local volume yet");
                        left = true;
                    }
                }
            }
            if left {
                // Woken or not: what cannot be done now is tried again later.
                let _ = tokio::time::timeout(RETRY_PERIOD, changed.notified()).await;
            } else {
                changed.notified().await;
            }
        }
    };
    tokio::select! {
        biased;
        () = follow => {}
        () = work => {}
    }
}

/// Whether it was removed; not while a pod uses it.
async fn remove(
    api: &dyn Api,
    root: &Path,
    files: &Pool,
    volume: &Shared<PersistentVolume>,
    in_use: impl Fn(&Path) -> bool,
) -> Result<bool, Error> {
    match ours(root, volume) {
        Some(path) if in_use(&path) => return Ok(false),
        Some(path) => {
            let of = path.display().to_string();
            let removed = files.run(&of, move || untrusted_fs::remove(&path));
            removed.await.map_err(Error::internal)?;
        }
        // The volume's path was changed by another client: the directory is kept.
        None => warn!(
            volume = volume.object().name(),
            "not a directory of this node's place: left as it is"
        ),
    }
    let mut done = (**volume).clone();
    finalizer::remove(&mut done.metadata, LOCAL_FINALIZER);
    match api.update_as(done).await {
        Err(error) if error.is_not_found() => Ok(true),
        // It was changed in between: the next sync sees the newer object.
        Err(error) if error.is_conflict() => Ok(false),
        other => other.map(|_| true),
    }
}

#[cfg(test)]
mod tests {
    use knarr_client::TokioClock;
    use knarr_client::fake::FakeApi;
    use serde_json::json;

    use super::*;

    fn volume(path: &Path, name: &str) -> PersistentVolume {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {LOCAL_NODE: "n1"}, "finalizers": [LOCAL_FINALIZER]},
            "spec": {"local": {"path": path}},
        }))
        .unwrap()
    }

    #[test]
    fn only_directories_of_the_place_are_made() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("volumes");
        let other = dir.path().join("other");
        for (path, name, made) in [
            (root.join("v"), "v", true),
            (root.join("w"), "v2", false),
            (other.clone(), "other", false),
            (root.join(".."), "..", false),
        ] {
            make(&root, &volume(&path, name)).unwrap();
            assert_eq!(ours(&root, &volume(&path, name)).is_some(), made, "{name}");
        }
        assert!(root.join("v").is_dir() && !other.exists());
    }

    #[tokio::test]
    async fn a_deleted_volumes_directory_is_removed_when_no_pod_uses_it_and_then_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("volumes");
        let clock = Arc::new(TokioClock::new(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
        let api = FakeApi::new(clock);
        let kind = PersistentVolume::kind_of();
        let created = api.create_as(volume(&root.join("v"), "v")).await.unwrap();
        make(&root, &created).unwrap();
        std::fs::write(root.join("v/data"), "x").unwrap();
        api.delete(kind, "", "v", Default::default()).await.unwrap();
        let deleted = api.get_as::<PersistentVolume>("", "v").await.unwrap();
        assert!(
            !remove(&api, &root, &Pool::new(), &deleted, |_| true)
                .await
                .unwrap()
        );
        assert!(root.join("v/data").exists(), "a pod has it");
        assert!(
            remove(&api, &root, &Pool::new(), &deleted, |_| false)
                .await
                .unwrap()
        );
        assert!(!root.join("v").exists() && root.exists());
        assert!(api.get(kind, "", "v").await.unwrap_err().is_not_found());
    }
}
