//! One kind of storage, and what it is given.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use knarr_apimachinery::ids::{NodeName, PodUid};
use knarr_client::Api;
use serde::{Deserialize, Serialize};

use super::csi::drivers::Drivers;
use super::error::{StorageError, StorageFailure};
use super::filesystem::{FsGroup, give_to};
use crate::host::Host;
use crate::untrusted_fs::{Dir, Kind, Pool};
use crate::volumes::layout::POD_DIR_MODE;

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
    pub node: NodeName,
    pub files: Pool,
}

impl Tools {
    /// Makes a directory of the kubelet's own, with its parents.
    pub async fn make_dir(&self, at: &Path) -> Result<(), StorageError> {
        let path = at.to_path_buf();
        let made = self.files.run(at.to_string_lossy(), move || {
            Dir::make(&path, POD_DIR_MODE).map(drop)
        });
        made.await.map_err(|source| StorageError::Make {
            at: at.into(),
            source,
        })
    }

    /// Removes a directory of the kubelet's own if nothing is in it, or a file or link of it.
    pub async fn remove_dir(&self, at: &Path) -> Result<(), StorageError> {
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
        removed.await.map_err(|source| StorageError::Remove {
            at: at.into(),
            source,
        })
    }

    /// Makes a link of the kubelet's own to a device; one that leads elsewhere is replaced.
    pub async fn link(&self, device: &Path, at: &Path) -> Result<(), StorageError> {
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
        made.await.map_err(|source| StorageError::Make {
            at: at.into(),
            source,
        })
    }

    /// Gives what is mounted there of a volume to the pod's group.
    pub async fn give_to(
        &self,
        group: FsGroup,
        at: &Path,
        read_only: bool,
        volume: &str,
    ) -> Result<(), StorageError> {
        let path = at.to_path_buf();
        let given = self
            .files
            .run(at.to_string_lossy(), move || give_to(group, &path, read_only));
        given.await.map_err(|source| StorageError::GiveToGroup {
            volume: volume.into(),
            source,
        })
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
    pub uid: PodUid,
    pub service_account: String,
}

impl MountTerms {
    pub fn mount_options(&self) -> Vec<String> {
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

    async fn stage(&self, _tools: &Tools, _at: &Path, _terms: &MountTerms) -> Result<(), StorageError> {
        Ok(())
    }

    async fn publish(
        &self,
        tools: &Tools,
        staged: Option<&Path>,
        target: &Path,
        terms: &MountTerms,
    ) -> Result<(), StorageError>;

    async fn unpublish(&self, tools: &Tools, target: &Path) -> Result<(), StorageError>;

    async fn unstage(&self, _tools: &Tools, _at: &Path) -> Result<(), StorageError> {
        Ok(())
    }
}
