//! Network and plugin storage, behind one interface: NFS, iSCSI, and every CSI driver.
//!
//! Two steps, reverted in the opposite order: **stage** once a node (a login, a device's mount), **publish** once a
//! pod. Each step for a pod is recorded before it is done ([`records`]), so that it is reverted after a kubelet that
//! was killed half way; no record contains a secret. The last pod of a node unstages.

mod csi;
mod filesystem;
mod host;
mod iscsi;
mod nfs;
mod records;
mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use knarr_client::Api;
use knarr_kubelet::volume_expansion;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

pub use csi::drivers::{Drivers, Registrar};
pub use csi::is_attached;
pub use csi::{node_info, wire as csi_wire};
pub use filesystem::{FsGroup, give_to};
pub use host::{CommandOutput, Hollow, Host, Machine};
use records::Recorded;
pub use source::{claimed, inline};

use tracing::warn;

use super::POD_DIR_MODE;
use crate::untrusted_fs::{Dir, Kind, Pool};

/// A pod's mount, in the volume's directory.
const MOUNT: &str = "mount";

/// What containers see of a volume (`volumeMode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum VolumeMode {
    /// Files, in a directory.
    #[default]
    Filesystem,
    /// The device itself.
    Block,
}

impl VolumeMode {
    /// The mode of a claim or a volume, whose field may be unset.
    pub fn of(mode: Option<&str>) -> Self {
        match mode {
            Some("Block") => VolumeMode::Block,
            _ => VolumeMode::Filesystem,
        }
    }
}

/// What is needed to do it.
pub struct Tools {
    pub host: Arc<dyn Host>,
    pub drivers: Arc<Drivers>,
    pub api: Arc<dyn Api>,
    pub node: String,
    pub files: Pool,
}

impl Tools {
    /// Makes a directory of the kubelet's own, with its parents.
    async fn make_dir(&self, at: &Path) -> Result<(), String> {
        let path = at.to_path_buf();
        let made = self.files.run(at.to_string_lossy(), move || {
            Dir::make(&path, POD_DIR_MODE).map(drop)
        });
        made.await
            .map_err(|e| format!("cannot make {}: {e}", at.display()))
    }

    /// Removes a directory of the kubelet's own if nothing is in it, or a file or link of it.
    async fn remove_dir(&self, at: &Path) -> Result<(), String> {
        let path = at.to_path_buf();
        let removed = self.files.run(at.to_string_lossy(), move || {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(std::io::ErrorKind::InvalidInput.into());
            };
            match Dir::open(parent) {
                Ok(parent) if parent.kind(name)?.is_some_and(|kind| kind != Kind::Directory) => {
                    parent.remove_file(name)
                }
                Ok(parent) => parent.remove_dir(name),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
                Err(e) => Err(e),
            }
        });
        removed
            .await
            .map_err(|e| format!("cannot remove {}: {e}", at.display()))
    }

    /// Makes a link of the kubelet's own to a device; one that leads elsewhere is replaced.
    async fn link(&self, device: &Path, at: &Path) -> Result<(), String> {
        let (device, path) = (device.to_path_buf(), at.to_path_buf());
        let made = self.files.run(at.to_string_lossy(), move || {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(std::io::ErrorKind::InvalidInput.into());
            };
            let parent = Dir::make(parent, POD_DIR_MODE)?;
            match parent.read_link(name)? {
                Some(old) if old == device => return Ok(()),
                Some(_) => parent.remove_file(name)?,
                None => {}
            }
            parent.symlink(&device, name)
        });
        made.await
            .map_err(|e| format!("cannot make {}: {e}", at.display()))
    }

    /// Gives what is mounted there to the pod's group.
    async fn give_to(&self, group: FsGroup, at: &Path, read_only: bool) -> Result<(), String> {
        let path = at.to_path_buf();
        let given = self
            .files
            .run(at.to_string_lossy(), move || give_to(group, &path, read_only));
        given.await.map_err(|e| e.to_string())
    }
}

/// The parameters of one mount.
#[derive(Clone, Debug, Default)]
pub struct MountTerms {
    pub read_only: bool,
    /// `mountOptions` of the volume.
    pub options: Vec<String>,
    pub access_mode: String,
    pub mode: VolumeMode,
    pub fs_group: Option<FsGroup>,
    pub pod: PodInfo,
}

#[derive(Clone, Debug, Default)]
pub struct PodInfo {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub service_account: String,
}

impl MountTerms {
    fn mount_options(&self) -> Vec<String> {
        let mut options = self.options.clone();
        if self.read_only {
            options.push("ro".into());
        }
        options
    }
}

/// One kind of storage. Every call is repeated after a failure or a restart: a step that is done already is no error.
#[async_trait]
pub trait Storage: Send + Sync {
    /// The plugin, as directories are named.
    fn plugin(&self) -> &'static str;

    /// Where the node has it once for all its pods, below the plugins' directory.
    fn staging(&self) -> Option<PathBuf> {
        None
    }

    /// Whether the storage can be used at all. What cannot have been started is not recorded.
    fn is_possible(&self, _tools: &Tools) -> Result<(), StorageFailure> {
        Ok(())
    }

    /// How many directories that is below the plugins'.
    fn staging_parts(&self) -> usize {
        4
    }

    async fn stage(&self, _tools: &Tools, _at: &Path, _terms: &MountTerms) -> Result<(), String> {
        Ok(())
    }

    async fn publish(
        &self,
        tools: &Tools,
        staged: Option<&Path>,
        target: &Path,
        terms: &MountTerms,
    ) -> Result<(), String>;

    async fn unpublish(&self, tools: &Tools, target: &Path) -> Result<(), String>;

    async fn unstage(&self, _tools: &Tools, _at: &Path) -> Result<(), String> {
        Ok(())
    }
}

/// What there is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    Nfs(nfs::Nfs),
    Iscsi(iscsi::Iscsi),
    Csi(csi::Csi),
}

impl Source {
    fn storage(&self) -> &dyn Storage {
        match self {
            Source::Nfs(nfs) => nfs,
            Source::Iscsi(iscsi) => iscsi,
            Source::Csi(csi) => csi,
        }
    }
}

/// A volume of a pod: its name (the PersistentVolume's, or its own) and its source.
#[derive(Clone, Debug)]
pub struct VolumeRequest {
    pub name: String,
    pub source: Source,
    pub terms: MountTerms,
}

impl VolumeRequest {
    /// Whether the node can expand it.
    pub fn is_expandable(&self) -> bool {
        matches!(&self.source, Source::Csi(csi) if !csi.inline)
    }
}

/// The step that failed; each has its own message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorageFailure {
    Stage(String),
    Publish(String),
}

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
    pub async fn set_up(&self, wanted: &VolumeRequest) -> Result<PathBuf, StorageFailure> {
        let VolumeRequest { name, source, terms } = wanted;
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
        written.await.map_err(|e| {
            let at = target.display();
            StorageFailure::Publish(format!("cannot note what is mounted at {at}: {e}"))
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
    pub async fn expand(&self, wanted: &VolumeRequest, bytes: i64) -> Result<(), volume_expansion::Failure> {
        let VolumeRequest { name, source, terms } = wanted;
        let Source::Csi(csi) = source else {
            return Ok(());
        };
        let target = self.target(&terms.pod.uid, csi.plugin(), name, terms.mode);
        let staged = self.staged(csi).map_err(volume_expansion::Failure::Uncertain)?;
        let staging_lock = self.staging_lock(staged.as_deref());
        let _turn = staging_lock.lock().await;
        csi.expand(&self.tools, (staged.as_deref(), &target), terms, bytes)
            .await
    }

    fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }

    /// Where a pod has a volume: a directory, or a device.
    fn target(&self, uid: &str, plugin: &str, volume: &str, mode: VolumeMode) -> PathBuf {
        let pod = self.pod_dir(uid);
        match mode {
            VolumeMode::Filesystem => pod.join("volumes").join(plugin).join(volume).join(MOUNT),
            VolumeMode::Block => pod.join("volumeDevices").join(plugin).join(volume),
        }
    }

    /// Where the node has it once for all its pods. Names that others gave are names of directories there, and no paths.
    fn staged(&self, storage: &dyn Storage) -> Result<Option<PathBuf>, String> {
        let Some(at) = storage.staging() else {
            return Ok(None);
        };
        let plugins = self.root.join("plugins");
        let plain = at.components().all(|c| matches!(c, Component::Normal(_)));
        if !plain || at.components().count() != storage.staging_parts() {
            return Err(format!("{at:?} is not the name of a volume"));
        }
        Ok(Some(plugins.join(at)))
    }

    async fn records(&self, uid: &str) -> Result<Vec<Recorded>, String> {
        let pod = self.pod_dir(uid);
        let read = self.tools.files.run(uid, move || records::of_pod(&pod));
        read.await.map_err(|e| e.to_string())
    }

    /// Reverts all of that for a pod. The caller retries after a failure.
    pub async fn tear_down(&self, uid: &str) -> Result<(), String> {
        for recorded in self.records(uid).await? {
            let target_of = |mode| self.target(uid, recorded.plugin, &recorded.volume, mode);
            match &recorded.source {
                Ok((source, mode)) => self.undo(uid, source.storage(), &target_of(*mode)).await?,
                Err(why) => {
                    warn!(
                        uid,
                        volume = recorded.volume,
                        why,
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
                .map_err(|e| format!("cannot remove the record of volume {volume}: {e}"))?;
        }
        Ok(())
    }

    async fn undo(&self, uid: &str, storage: &dyn Storage, target: &Path) -> Result<(), String> {
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
    async fn is_used_by_others(&self, uid: &str, plugin: &str, staged: &Path) -> Result<bool, String> {
        let pods = self.root.join("pods");
        let listed = self
            .tools
            .files
            .run(uid, move || Dir::open(&pods)?.entries(usize::MAX));
        for pod in listed.await.map_err(|e| e.to_string())? {
            let other = pod.name.to_string_lossy();
            if other == uid {
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
