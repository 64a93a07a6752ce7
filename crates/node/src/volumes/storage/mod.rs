//! Network and plugin storage, behind one interface: NFS, iSCSI, and every CSI driver.
//!
//! Two steps, reverted in the opposite order: **stage** once a node (a login, a device's mount), **publish** once a
//! pod. Each step for a pod is recorded before it is done ([`records`]), so that it is reverted after a kubelet that
//! was killed half way; no record contains a secret. The last pod of a node unstages: by these records, or, where a volume is
//! attached, by the users of its attachment, which is released only after that ([`AttachedVolumes`], [`staged`]).

use knarr_apimachinery::ids::PodUid;

mod csi;
mod error;
mod filesystem;
mod iscsi;
mod nfs;
mod plugin;
mod records;
mod source;
pub mod staged;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use knarr_kubelet::attached_volumes::AttachedVolumes;
use knarr_kubelet::volume_expansion;
use parking_lot::Mutex;

pub use csi::drivers::Registrar;
pub use csi::is_attached;
pub use csi::{node_info, wire as csi_wire};
pub use error::{StorageError, StorageFailure};
pub use filesystem::{FsGroup, give_to};
pub use plugin::{Storage, Tools, VolumeMode};
use records::{Record, Recorded};
pub use source::{Source, VolumeRequest, claimed, inline};

use tracing::warn;

use super::layout::POD_DIR_MODE;
use crate::untrusted_fs::Dir;

/// A pod's mount, in the volume's directory.
const MOUNT: &str = "mount";

/// The attached volumes that pods use or that are staged, and the source of each that is staged; none if an earlier kubelet
/// staged it and its record cannot be read.
pub type VolumesInUse = Arc<Mutex<AttachedVolumes<Option<Source>>>>;

/// The volumes of one node that come from elsewhere.
pub struct StorageManager {
    root: PathBuf,
    tools: Tools,
    in_use: VolumesInUse,
    /// One at a time for each place where something is staged.
    staging_locks: Mutex<BTreeMap<PathBuf, Arc<tokio::sync::Mutex<()>>>>,
}

impl StorageManager {
    /// `root` is the kubelet's directory.
    pub fn new(root: PathBuf, tools: Tools, in_use: VolumesInUse) -> Self {
        if let Err(error) = records::adopt_kubelet_records(&root.join("pods")) {
            warn!(%error, "cannot read the volume records of an earlier kubelet");
        }
        StorageManager {
            root,
            tools,
            in_use,
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

    /// Nothing is staged there any more. Those that wait for the lock keep it: another lock of the same place would not
    /// exclude them.
    fn forget_lock(&self, of: &Path, lock: &Arc<tokio::sync::Mutex<()>>) {
        let mut locks = self.staging_locks.lock();
        // The one in the map, and the caller's.
        if Arc::strong_count(lock) <= 2 {
            locks.remove(of);
        }
    }

    /// Sets the volume up for the pod, and returns its path.
    pub async fn set_up(&self, desired: &VolumeRequest) -> Result<PathBuf, StorageFailure> {
        let VolumeRequest {
            name,
            source,
            terms,
            attachment,
        } = desired;
        let storage = source.storage();
        let pod = self.pod_dir(&terms.pod.uid);
        let target = self.target(&terms.pod.uid, storage.plugin(), name, terms.mode);
        let staged = self.staged(storage).map_err(StorageFailure::Stage)?;
        let staging_lock = self.staging_lock(staged.as_deref());
        let _turn = staging_lock.lock().await;
        storage.is_possible(&self.tools)?;
        if let Some(attachment) = attachment {
            let noted = self.note_use(attachment, desired, staged.is_some()).await;
            noted.map_err(StorageFailure::Stage)?;
        }
        let name = name.clone();
        let record = Record {
            source: source.clone(),
            mode: terms.mode,
            attachment: attachment.clone(),
        };
        let volume = target.parent().unwrap_or(&target).to_path_buf();
        let written = self.tools.files.run(&terms.pod.uid, move || {
            records::write(&pod, &name, &record)?;
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

    /// Before a volume is staged or published: its attachment is not released from now on until the volume is unstaged. It
    /// may have been released already, if the pod was torn down meanwhile.
    async fn note_use(
        &self,
        attachment: &str,
        desired: &VolumeRequest,
        is_staged: bool,
    ) -> Result<(), StorageError> {
        let (uid, source) = (&desired.terms.pod.uid, desired.source.clone());
        let not_in_use = || StorageError::NotInUse {
            attachment: attachment.into(),
        };
        if !is_staged {
            let is_user = self.in_use.lock().is_user(attachment, uid);
            return if is_user { Ok(()) } else { Err(not_in_use()) };
        }
        let volume = {
            let mut in_use = self.in_use.lock();
            let volume = in_use.stage(attachment, uid, Some(source.clone()));
            volume.map(str::to_string)
        };
        let volume = volume.ok_or_else(not_in_use)?;
        let (root, name) = (self.root.clone(), attachment.to_string());
        let staged = staged::StagedVolume { volume, source };
        let written = self
            .tools
            .files
            .run(uid, move || staged::write(&root, &name, &staged));
        written.await.map_err(|source| StorageError::WriteStaged {
            attachment: attachment.into(),
            source,
        })
    }

    /// Grows what a pod has of a volume to so many bytes, where its storage can.
    pub async fn expand(&self, desired: &VolumeRequest, bytes: i64) -> Result<(), volume_expansion::Failure> {
        let VolumeRequest {
            name, source, terms, ..
        } = desired;
        let Source::Csi(csi) = source else {
            return Ok(());
        };
        let target = self.target(&terms.pod.uid, csi.plugin(), name, terms.mode);
        let staged = self.staged(csi).map_err(csi::uncertain)?;
        let staging_lock = self.staging_lock(staged.as_deref());
        let _turn = staging_lock.lock().await;
        csi.expand(&self.tools, staged.as_deref(), &target, terms, bytes)
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

    /// Reverts all of that for a pod, but leaves staged what is attached ([`StorageManager::unstage`]). The caller retries
    /// after a failure.
    pub async fn tear_down(&self, uid: &PodUid) -> Result<(), StorageError> {
        for recorded in self.records(uid).await? {
            match &recorded.record {
                Ok(record) => self.undo(uid, &recorded, record).await?,
                Err(why) => {
                    warn!(
                        uid = uid.as_str(),
                        volume = recorded.volume,
                        %why,
                        "cannot read the record of a volume; it is unmounted, and stays staged if it was and is not attached"
                    );
                    for mode in [VolumeMode::Filesystem, VolumeMode::Block] {
                        let target = self.target(uid, recorded.plugin, &recorded.volume, mode);
                        filesystem::unmount(&*self.tools.host, &target).await?;
                        self.tools.remove_dir(&target).await?;
                    }
                    self.remove_record(uid, &recorded).await?;
                }
            }
        }
        Ok(())
    }

    async fn undo(&self, uid: &PodUid, recorded: &Recorded, record: &Record) -> Result<(), StorageError> {
        let storage = record.source.storage();
        let target = self.target(uid, recorded.plugin, &recorded.volume, record.mode);
        let staged = self.staged(storage)?;
        let staging_lock = self.staging_lock(staged.as_deref());
        let _turn = staging_lock.lock().await;
        storage.unpublish(&self.tools, &target).await?;
        self.tools.remove_dir(&target).await?;
        if let Some(at) = &staged
            && record.attachment.is_none()
            && !self.is_used_by_others(Some(uid), storage.plugin(), at).await?
        {
            storage.unstage(&self.tools, at).await?;
            self.forget_lock(at, &staging_lock);
        }
        // Last of all, for until then it has to be reverted; and before the next pod has its turn: two that leave at once
        // would find each other's record, and neither would unstage.
        self.remove_record(uid, recorded).await
    }

    async fn remove_record(&self, uid: &PodUid, recorded: &Recorded) -> Result<(), StorageError> {
        let (pod, plugin) = (self.pod_dir(uid), recorded.plugin);
        let volume = recorded.volume.clone();
        let removed = self
            .tools
            .files
            .run(uid, move || records::remove(&pod, plugin, &volume));
        removed.await.map_err(|source| StorageError::RemoveRecord {
            volume: recorded.volume.clone(),
            source,
        })
    }

    /// Unstages the volume of an attachment that no pod uses any more. The caller retries after a failure.
    pub async fn unstage(&self, attachment: &str) -> Result<(), StorageError> {
        let source = self.in_use.lock().to_unstage(attachment).cloned();
        let Some(source) = source else { return Ok(()) };
        let source = source.ok_or_else(|| StorageError::StagedUnknown {
            attachment: attachment.into(),
        })?;
        let storage = source.storage();
        let Some(at) = self.staged(storage)? else {
            self.in_use.lock().unstaged(attachment);
            return Ok(());
        };
        let staging_lock = self.staging_lock(Some(&at));
        let _turn = staging_lock.lock().await;
        // A pod may use it again by now.
        let is_unused = self.in_use.lock().to_unstage(attachment).is_some();
        if !is_unused {
            return Ok(());
        }
        if self.is_used_by_others(None, storage.plugin(), &at).await? {
            return Err(StorageError::StagedForOthers {
                attachment: attachment.into(),
                at,
            });
        }
        storage.unstage(&self.tools, &at).await?;
        let (root, name) = (self.root.clone(), attachment.to_string());
        let removed = self
            .tools
            .files
            .run(attachment, move || staged::remove(&root, &name));
        removed.await.map_err(|source| StorageError::RemoveStaged {
            attachment: attachment.into(),
            source,
        })?;
        self.in_use.lock().unstaged(attachment);
        self.forget_lock(&at, &staging_lock);
        Ok(())
    }

    /// Whether a pod of this node, other than this one, uses what is staged there. A pod whose record names an attachment
    /// uses it only as long as it uses that: such a record may be left of a pod that was torn down. A pod whose record of
    /// the same plugin cannot be read may use it: then it stays.
    async fn is_used_by_others(
        &self,
        uid: Option<&PodUid>,
        plugin: &str,
        staged: &Path,
    ) -> Result<bool, StorageError> {
        let pods = self.root.join("pods");
        let listed = self.tools.files.run(staged.to_string_lossy(), move || {
            Dir::open(&pods)?.entries(usize::MAX)
        });
        for pod in listed.await.map_err(StorageError::ReadRecords)? {
            let other = pod.name.to_string_lossy();
            if uid.is_some_and(|uid| *uid == *other) {
                continue;
            }
            for recorded in self.records(&other).await? {
                let used = match &recorded.record {
                    Ok(record) => {
                        let at = self.staged(record.source.storage());
                        let attachment = record.attachment.as_deref();
                        at.is_ok_and(|at| at.as_deref() == Some(staged))
                            && attachment.is_none_or(|of| self.in_use.lock().is_user(of, &other))
                    }
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
