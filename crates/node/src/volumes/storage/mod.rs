//! Volumes that come from elsewhere, behind one interface: NFS, iSCSI, and whatever has a CSI driver.
//!
//! Two steps, each undone in the other order: **stage** once a node (a login, a device's mount), **publish** once a pod. What
//! was done for a pod is written down beside its mount before it is done (`vol_data.json`), so that a kubelet that was
//! killed half way undoes it; nothing of it says a secret. The last pod of a node unstages.

mod csi;
mod filesystem;
mod host;
mod iscsi;
mod nfs;
mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use knarr_client::Api;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

pub use csi::drivers::Drivers;
pub use csi::is_attached;
pub use filesystem::{FsGroup, give_to};
pub use host::{Hollow, Host, Machine};
pub use source::{claimed, inline};

/// Beside a pod's mount: what it is.
const RECORD: &str = "vol_data.json";
/// A pod's mount, in the volume's directory.
const MOUNT: &str = "mount";

/// What is needed to do it.
pub struct Tools {
    pub host: Arc<dyn Host>,
    pub drivers: Arc<Drivers>,
    pub api: Arc<dyn Api>,
    pub node: String,
}

/// For whom, and how.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    pub read_only: bool,
    /// `mountOptions` of the volume.
    pub options: Vec<String>,
    pub access_mode: String,
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

impl Terms {
    fn mount_options(&self) -> Vec<String> {
        let mut options = self.options.clone();
        if self.read_only {
            options.push("ro".into());
        }
        options
    }
}

/// One kind of storage. Everything is asked again after a failure or a restart: what is done already is no mistake.
#[async_trait]
pub trait Storage: Send + Sync {
    /// The plugin, as directories are named.
    fn plugin(&self) -> &'static str;

    /// Where the node has it once for all its pods, below the plugins' directory.
    fn staging(&self) -> Option<PathBuf> {
        None
    }

    /// Whether there is anybody to do it. What nobody can have begun is not written down as to be undone.
    fn is_possible(&self, _tools: &Tools) -> Result<(), Failure> {
        Ok(())
    }

    async fn stage(&self, _tools: &Tools, _at: &Path, _terms: &Terms) -> Result<(), String> {
        Ok(())
    }

    async fn publish(
        &self,
        tools: &Tools,
        staged: Option<&Path>,
        target: &Path,
        terms: &Terms,
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

/// A volume of a pod: the name it goes by (the PersistentVolume's, or its own) and how it is to be had.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub name: String,
    pub source: Source,
    pub terms: Terms,
}

#[derive(Serialize, Deserialize)]
struct Record {
    source: Source,
    staged: Option<PathBuf>,
}

/// At which step it failed; each has its own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    Stage(String),
    Publish(String),
}

/// The volumes of one node that come from elsewhere.
pub struct Shelf {
    root: PathBuf,
    tools: Tools,
    /// One at a time for each place where something is staged.
    turns: Mutex<BTreeMap<PathBuf, Arc<tokio::sync::Mutex<()>>>>,
}

impl Shelf {
    /// `root` is the kubelet's directory.
    pub fn new(root: PathBuf, tools: Tools) -> Self {
        Shelf {
            root,
            tools,
            turns: Mutex::default(),
        }
    }

    pub fn drivers(&self) -> &Arc<Drivers> {
        &self.tools.drivers
    }

    fn turn(&self, of: Option<&Path>) -> Arc<tokio::sync::Mutex<()>> {
        match of {
            Some(of) => self.turns.lock().entry(of.into()).or_default().clone(),
            None => Arc::default(),
        }
    }

    /// Sees to it that the pod has the volume, and says where.
    pub async fn set_up(&self, wanted: &Wanted) -> Result<PathBuf, Failure> {
        let Wanted { name, source, terms } = wanted;
        let storage = source.storage();
        let volumes = self.root.join("pods").join(&terms.pod.uid).join("volumes");
        let directory = volumes.join(storage.plugin()).join(name);
        let staged = storage.staging().map(|at| self.root.join("plugins").join(at));
        let record = Record {
            source: source.clone(),
            staged: staged.clone(),
        };
        let turn = self.turn(staged.as_deref());
        let _turn = turn.lock().await;
        storage.is_possible(&self.tools)?;
        write(&directory, &record).map_err(|e| {
            Failure::Publish(format!(
                "cannot note what is mounted in {}: {e}",
                directory.display()
            ))
        })?;
        if let Some(at) = &staged {
            storage
                .stage(&self.tools, at, terms)
                .await
                .map_err(Failure::Stage)?;
        }
        let target = directory.join(MOUNT);
        let published = storage
            .publish(&self.tools, staged.as_deref(), &target, terms)
            .await;
        published.map(|()| target).map_err(Failure::Publish)
    }

    /// Undoes all of that for a pod. Whoever asks asks again if it fails.
    pub async fn tear_down(&self, uid: &str) -> Result<(), String> {
        for directory in records(&self.root.join("pods").join(uid)).map_err(|e| e.to_string())? {
            let Some(record) = read(&directory)? else { continue };
            let storage = record.source.storage();
            let turn = self.turn(record.staged.as_deref());
            let _turn = turn.lock().await;
            let target = directory.join(MOUNT);
            storage.unpublish(&self.tools, &target).await?;
            match std::fs::remove_dir(&target) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(format!("cannot remove {}: {e}", target.display()));
                }
                _ => {}
            }
            if let Some(at) = &record.staged
                && !self.is_used_by_others(uid, at)?
            {
                storage.unstage(&self.tools, at).await?;
                self.turns.lock().remove(at);
            }
            // Last of all: until then it is to be undone.
            std::fs::remove_file(directory.join(RECORD))
                .map_err(|e| format!("cannot remove the record in {}: {e}", directory.display()))?;
        }
        Ok(())
    }

    /// Whether another pod of this node has what is staged there.
    fn is_used_by_others(&self, uid: &str, staged: &Path) -> Result<bool, String> {
        let pods = folders(&self.root.join("pods")).map_err(|e| e.to_string())?;
        for pod in pods.iter().filter(|p| p.file_name().is_none_or(|n| n != uid)) {
            for directory in records(pod).map_err(|e| e.to_string())? {
                if read(&directory)?.is_some_and(|r| r.staged.as_deref() == Some(staged)) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// Whole, or not at all.
fn write(directory: &Path, record: &Record) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let (part, whole) = (directory.join("vol_data.part"), directory.join(RECORD));
    std::fs::write(&part, serde_json::to_vec(record)?)?;
    std::fs::rename(part, whole)
}

fn read(directory: &Path) -> Result<Option<Record>, String> {
    let path = directory.join(RECORD);
    let bytes = match std::fs::read(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|e| format!("cannot read {}: {e}", path.display()))?,
    };
    let read = serde_json::from_slice(&bytes);
    read.map(Some)
        .map_err(|e| format!("{} is not what this kubelet writes: {e}", path.display()))
}

/// The directories of a pod's volumes that have a record.
fn records(pod: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for plugin in folders(&pod.join("volumes"))? {
        for volume in folders(&plugin)? {
            if volume.join(RECORD).exists() {
                found.push(volume);
            }
        }
    }
    Ok(found)
}

/// What is in a directory, nothing if it is not there.
fn folders(at: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = match std::fs::read_dir(at) {
        Ok(entries) => entries
            .map(|e| e.map(|e| e.path()))
            .collect::<Result<Vec<_>, _>>()?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(e) => return Err(e),
    };
    found.sort();
    Ok(found)
}
