//! Volumes that are files made from objects: configMap, secret, downwardAPI, projected (service account tokens too). They are
//! set up before a pod's containers start, and kept current while the pod runs.

mod atomic_writer;
mod content;
mod service_account_token;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use knarr_client::Api;
use nix::mount::{MsFlags, mount};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tracing::warn;

use super::layout::POD_DIR_MODE;
use super::mounts;
use crate::kubelet::downward::DownwardValues;
use crate::untrusted_fs::{self, Dir, Pool};
use atomic_writer::DIRECTORY_MODE;
use content::ContentError;
use service_account_token::Tokens;

/// Between checks of whether a volume's content has changed.
const REFRESH: Duration = Duration::from_secs(15);

/// Why a volume's files are not written; shown to the user.
#[derive(Debug, thiserror::Error)]
pub(super) enum FilesError {
    #[error(transparent)]
    Content(#[from] ContentError),
    #[error(transparent)]
    Write(#[from] untrusted_fs::Error),
}

/// The volumes of one node's pods that are files.
pub(super) struct FileVolumes {
    api: Arc<dyn Api>,
    pool: Pool,
    /// The tasks that keep pods' files current, by uid.
    refreshers: Mutex<BTreeMap<String, JoinHandle<()>>>,
    tokens: Arc<Tokens>,
}

/// Stops all of them when the kubelet exits: the next one starts its own.
pub(super) struct AbortOnDrop<'a>(&'a Mutex<BTreeMap<String, JoinHandle<()>>>);

impl Drop for AbortOnDrop<'_> {
    fn drop(&mut self) {
        std::mem::take(&mut *self.0.lock())
            .into_values()
            .for_each(|task| task.abort());
    }
}

impl FileVolumes {
    pub(super) fn new(api: Arc<dyn Api>, pool: Pool) -> Self {
        FileVolumes {
            api,
            pool,
            refreshers: Mutex::default(),
            tokens: Arc::default(),
        }
    }

    /// Writes the files of a pod's volume to its directory, readable by the pod's group.
    pub(super) async fn set_up(
        &self,
        pod: &core::Pod,
        volume: &core::Volume,
        path: &Path,
        group: Option<u32>,
        values: &DownwardValues,
    ) -> Result<(), FilesError> {
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let content = content::gather(&*self.api, &self.tokens, pod, volume, values).await?;
        let (path, volume) = (path.to_path_buf(), volume.clone());
        let written = self.pool.run(uid, move || {
            tmpfs_if_secret(&path, &volume)?;
            atomic_writer::write(&path, &content, group)
        });
        Ok(written.await?)
    }

    /// Checks periodically the sources of a pod's files, and swaps the files when they have changed.
    pub(super) fn keep_current(
        &self,
        pod: &core::Pod,
        volumes: Vec<(core::Volume, PathBuf)>,
        group: Option<u32>,
        values: &DownwardValues,
    ) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let (api, pod, values) = (self.api.clone(), pod.clone(), values.clone());
        let (tokens, own) = (self.tokens.clone(), self.pool.clone());
        let task = crate::task::spawn(async move {
            let mut pod = pod;
            loop {
                tokio::time::sleep(REFRESH).await;
                pod = newest(&*api, pod).await;
                for (volume, path) in &volumes {
                    let refreshed = match content::gather(&*api, &tokens, &pod, volume, &values).await {
                        Ok(content) => {
                            let path = path.clone();
                            let of = pod.metadata.uid.clone().unwrap_or_default();
                            let written = own.run(&of, move || atomic_writer::write(&path, &content, group));
                            written.await.map_err(|e| e.to_string())
                        }
                        Err(error) => Err(error.to_string()),
                    };
                    if let Err(why) = refreshed {
                        warn!(volume = volume.name, why, "cannot update a volume's files");
                    }
                }
            }
        });
        let before = self.refreshers.lock().insert(uid, task);
        if let Some(before) = before {
            before.abort();
        }
    }

    /// Files are kept current until this is dropped.
    pub(super) fn abort_on_drop(&self) -> AbortOnDrop<'_> {
        AbortOnDrop(&self.refreshers)
    }

    /// No file of this pod is written any more when it returns, and its tokens are removed.
    pub(super) async fn forget(&self, uid: &str) {
        let refresher = self.refreshers.lock().remove(uid);
        if let Some(task) = refresher {
            task.abort();
            // A write in progress would create again what is removed next. Its result does not matter.
            let _ = task.await;
        }
        self.tokens.forget(uid);
    }
}

pub(super) fn is_files(volume: &core::Volume) -> bool {
    volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some()
}

/// Secrets are not written to disk.
fn tmpfs_if_secret(path: &Path, volume: &core::Volume) -> io::Result<()> {
    Dir::make(path.parent().unwrap_or(path), POD_DIR_MODE)?;
    Dir::make(path, DIRECTORY_MODE)?;
    let secret = volume.secret.is_some() || volume.projected.is_some();
    if secret && !mounts::is_mount_point(path)? {
        mount(
            Some("tmpfs"),
            path,
            Some("tmpfs"),
            MsFlags::empty(),
            Some("mode=0755"),
        )?;
    }
    Ok(())
}

/// The current pod: labels and annotations may have changed. The given one, if the API is not reachable.
async fn newest(api: &dyn Api, pod: core::Pod) -> core::Pod {
    let (namespace, name) = (
        pod.metadata.namespace.clone().unwrap_or_default(),
        pod.metadata.name.clone().unwrap_or_default(),
    );
    match api.get(core::Pod::kind_of(), &namespace, &name).await {
        Ok(object) if Some(object.uid()) == pod.metadata.uid.as_deref() => {
            object.to_typed::<core::Pod>().unwrap_or(pod)
        }
        _ => pod,
    }
}
