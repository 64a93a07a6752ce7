//! Network and plugin storage, behind one interface: NFS, iSCSI, and every CSI driver.
//!
//! Two steps, reverted in the opposite order: **stage** once a node (a login, a device's mount), **publish** once a
//! pod. Each step for a pod is recorded before it is done ([`records`]), so that it is reverted after a kubelet that
//! was killed half way; no record contains a secret. The last pod of a node unstages.

use knarr_apimachinery::ids::PodUid;

mod csi;
mod error;
mod filesystem;
mod iscsi;
mod nfs;
mod plugin;
mod records;
mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use knarr_kubelet::volume_expansion;
use parking_lot::Mutex;

pub use csi::drivers::Registrar;
pub use csi::is_attached;
pub use csi::{node_info, wire as csi_wire};
pub use error::{StorageError, StorageFailure};
pub use filesystem::{FsGroup, give_to};
pub use plugin::{Storage, Tools, VolumeMode};
use records::Recorded;
pub use source::{Source, VolumeRequest, claimed, inline};

use tracing::warn;

use super::layout::POD_DIR_MODE;
use crate::untrusted_fs::Dir;

/// A pod's mount, in the volume's directory.
const MOUNT: &str = "mount";

/// The volumes of one node that come from elsewhere.
pub struct StorageManager {
    root: PathBuf,
    tools: Tools,
    /// One at a time for each place where something is staged.
    staging_locks: Mutex<BTreeMap<PathBuf, Arc<tokio::sync::Mutex<()>>>>,
}

impl StorageManager {
    /// `root` is the kubelet's directory.
    pub fn new(root: PathBuf, tools: Tools) -> Self {
        if let Err(error) = records::adopt_kubelet_records(&root.join("pods")) {
            warn!(%error, "cannot read the volume records of an earlier kubelet");
        }
        StorageManager {
            root,
            tools,
            staging_locks: Mutex::default(),
        }
    }

    /// What registers CSI drivers for its volumes.
    pub fn registrar(&self) -> Registrar {
        Registrar {
            drivers: self.tools.drivers.clone(),
            api: self.tools.api.clone(),
            node: self.tools.node.clone(),
            host: self.tools.host.clone(),
        }
    }

    fn staging_lock(&self, of: Option<&Path>) -> Arc<tokio::sync::Mutex<()>> {
        match of {
            Some(of) => self.staging_locks.lock().entry(of.into()).or_default().clone(),
            None => Arc::default(),
        }
    }

    /// Sets the volume up for the pod, and returns its path.
    pub async fn set_up(&self, desired: &VolumeRequest) -> Result<PathBuf, StorageFailure> {
        let VolumeRequest { name, source, terms } = desired;
        let storage = source.storage();
        let pod = self.pod_dir(&terms.pod.uid);
        let target = self.target(&terms.pod.uid, storage.plugin(), name, terms.mode);
        let staged = self.staged(storage).map_err(StorageFailure::Stage)?;
        let staging_lock = self.staging_lock(staged.as_deref());
        let _turn = staging_lock.lock().await;
        storage.is_possible(&self.tools)?;
        let (plugin, name, source, mode) = (storage.plugin(), name.clone(), source.clone(), terms.mode);
        let volume = target.parent().unwrap_or(&target).to_path_buf();
        let written = self.tools.files.run(&terms.pod.uid, move || {
            records::write(&pod, plugin, &name, &source, mode)?;
            Dir::make(&volume, POD_DIR_MODE).map(drop)
        });
        written.await.map_err(|source| {
            let at = target.clone();
            StorageFailure::Publish(StorageError::WriteRecord { at, source })
        })?;
        if let Some(at) = &staged {
            storage
                .stage(&self.tools, at, terms)
                .await
                .map_err(StorageFailure::Stage)?;
        }
        let published = storage
            .publish(&self.tools, staged.as_deref(), &target, terms)
            .await;
        published.map(|()| target).map_err(StorageFailure::Publish)
    }

    /// Grows what a pod has of a volume to so many bytes, where its storage can.
    pub async fn expand(&self, desired: &VolumeRequest, bytes: i64) -> Result<(), volume_expansion::Failure> {
        let VolumeRequest { name, source, terms } = desired;
        let Source::Csi(csi) = source else {
            return Ok(());
        };
        let target = self.target(&terms.pod.uid, csi.plugin(), name, terms.mode);
        let staged = self.staged(csi).map_err(csi::uncertain)?;
        let staging_lock = self.staging_lock(staged.as_deref());
        let _turn = staging_lock.lock().await;
        csi.expand(&self.tools, (staged.as_deref(), &target), terms, bytes)
            .await
    }

    fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }

    /// Where a pod has a volume: a directory, or a device.
    fn target(&self, uid: &PodUid, plugin: &str, volume: &str, mode: VolumeMode) -> PathBuf {
        let pod = self.pod_dir(uid);
        match mode {
            VolumeMode::Filesystem => pod.join("volumes").join(plugin).join(volume).join(MOUNT),
            VolumeMode::Block => pod.join("volumeDevices").join(plugin).join(volume),
        }
    }

    /// Where the node has it once for all its pods. Names that others gave are names of directories there, and no paths.
    fn staged(&self, storage: &dyn Storage) -> Result<Option<PathBuf>, StorageError> {
        let Some(at) = storage.staging() else {
            return Ok(None);
        };
        let plugins = self.root.join("plugins");
        let plain = at.components().all(|c| matches!(c, Component::Normal(_)));
        if !plain || at.components().count() != storage.staging_parts() {
            return Err(StorageError::VolumeName { at });
        }
        Ok(Some(plugins.join(at)))
    }

    async fn records(&self, uid: &str) -> Result<Vec<Recorded>, StorageError> {
        let pod = self.pod_dir(uid);
        let read = self.tools.files.run(uid, move || records::of_pod(&pod));
        read.await.map_err(StorageError::ReadRecords)
    }

    /// Reverts all of that for a pod. The caller retries after a failure.
    pub async fn tear_down(&self, uid: &PodUid) -> Result<(), StorageError> {
        for recorded in self.records(uid).await? {
            let target_of = |mode| self.target(uid, recorded.plugin, &recorded.volume, mode);
            match &recorded.source {
                Ok((source, mode)) => self.undo(uid, source.storage(), &target_of(*mode)).await?,
                Err(why) => {
                    warn!(
                        uid = uid.as_str(),
                        volume = recorded.volume,
                        %why,
                        "cannot read the record of a volume; it is unmounted, and stays staged if it was"
                    );
                    for mode in [VolumeMode::Filesystem, VolumeMode::Block] {
                        let target = target_of(mode);
                        filesystem::unmount(&*self.tools.host, &target).await?;
                        self.tools.remove_dir(&target).await?;
                    }
                }
            }
            // Last of all: until then it has to be reverted.
            let pod = self.pod_dir(uid);
            let (volume, removed) = (recorded.volume.clone(), recorded);
            let removed = self.tools.files.run(uid, move || records::remove(&pod, &removed));
            removed
                .await
                .map_err(|source| StorageError::RemoveRecord { volume, source })?;
        }
        Ok(())
    }

    async fn undo(&self, uid: &PodUid, storage: &dyn Storage, target: &Path) -> Result<(), StorageError> {
        let staged = self.staged(storage)?;
        let staging_lock = self.staging_lock(staged.as_deref());
        let _turn = staging_lock.lock().await;
        storage.unpublish(&self.tools, target).await?;
        self.tools.remove_dir(target).await?;
        if let Some(at) = &staged
            && !self.is_used_by_others(uid, storage.plugin(), at).await?
        {
            storage.unstage(&self.tools, at).await?;
            self.staging_locks.lock().remove(at);
        }
        Ok(())
    }

    /// Whether another pod of this node uses what is staged there. A pod whose record of the same plugin cannot be read
    /// may use it: then it stays.
    async fn is_used_by_others(
        &self,
        uid: &PodUid,
        plugin: &str,
        staged: &Path,
    ) -> Result<bool, StorageError> {
        let pods = self.root.join("pods");
        let listed = self
            .tools
            .files
            .run(uid, move || Dir::open(&pods)?.entries(usize::MAX));
        for pod in listed.await.map_err(StorageError::ReadRecords)? {
            let other = pod.name.to_string_lossy();
            if *uid == *other {
                continue;
            }
            for recorded in self.records(&other).await? {
                let used = match &recorded.source {
                    Ok((source, _)) => self
                        .staged(source.storage())
                        .is_ok_and(|at| at.as_deref() == Some(staged)),
                    Err(_) => recorded.plugin == plugin,
                };
                if used {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
