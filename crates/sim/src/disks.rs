//! The disks of the simulation, and what is mounted on its hosts: storage without a lock of its own, which every node
//! could open at any time (an NFS export, as the volumes in the API are). The observer gets each open and close in
//! the moment it happens (SPEC S7).
//!
//! A disk is open where it is mounted, and in every process that was started with that mount, until that process
//! exits: unmounting does not take it from the process. Both survive the kubelet, but not a reboot of the host.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::storage::v1::VolumeAttachment;
use knarr_api::kinds::persistent_volume::{ATTACHER, IN_USE};
use knarr_api::{k8s_openapi, registry};
use knarr_client::{Api, Error, ListOptions, Object, TypedApi};
use knarr_node::runtime::ContainerConfig;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::Mutation;
use crate::clocks::Rate;
use crate::condition::Condition;
use crate::observer::Observer;
use crate::staged::Staging;
use crate::world::{DiskUser, Holder};

/// The NFS server of all disks.
pub(crate) const SERVER: &str = "disks.sim";
/// In paths of mounted disks.
const PLUGINS: [&str; 3] = [
    "/volumes/kubernetes.io~nfs/",
    "/volumes/kubernetes.io~csi/",
    "/volumes/kubernetes.io~iscsi/",
];
/// How long [`detach_by_timer`] waits for a node.
const DETACH_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a disk is not mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MountError {
    /// A cleanup in between has removed it.
    #[error("mount point {} does not exist", .0.display())]
    NoMountPoint(PathBuf),
    #[error("{} is mounted already", .0.display())]
    MountedAlready(PathBuf),
    #[error("{}: not mounted", .0.display())]
    NotMounted(PathBuf),
}

/// One host, over its reboots.
pub(crate) struct NodeHost {
    pub node: String,
    pub observer: Arc<Observer>,
    pub condition: Arc<Condition>,
    pub mutation: Option<Mutation>,
    pub staging: Staging,
    pub rate: Rate,
    pub state: Mutex<State>,
}

pub(crate) struct State {
    pub up_since: Instant,
    /// Which disk is mounted at which path.
    pub mounts: BTreeMap<PathBuf, String>,
    /// The paths of disks that each container was created with.
    made: BTreeMap<String, Vec<PathBuf>>,
    /// The disks that each process has open.
    open: BTreeMap<String, Vec<(String, Holder)>>,
}

impl NodeHost {
    pub fn new(
        node: &str,
        observer: Arc<Observer>,
        condition: Arc<Condition>,
        rate: Rate,
        mutation: Option<Mutation>,
    ) -> Self {
        NodeHost {
            rate,
            node: node.into(),
            observer,
            condition,
            mutation,
            staging: Staging::default(),
            state: Mutex::new(State {
                up_since: Instant::now(),
                mounts: BTreeMap::new(),
                made: BTreeMap::new(),
                open: BTreeMap::new(),
            }),
        }
    }

    pub fn is_mounted_at(&self, at: &Path) -> bool {
        self.state.lock().mounts.contains_key(at)
    }

    pub fn mounted(&self, at: PathBuf) -> Holder {
        Holder {
            node: self.node.clone(),
            uid: uid_in(&at),
            by: DiskUser::Mount(at),
        }
    }

    pub fn mount(&self, disk: &str, at: &Path) -> Result<(), MountError> {
        if !at.is_dir() {
            return Err(MountError::NoMountPoint(at.into()));
        }
        let before = self.state.lock().mounts.insert(at.into(), disk.into());
        if before.is_some() {
            return Err(MountError::MountedAlready(at.into()));
        }
        self.observer.opens(disk, &self.mounted(at.into()));
        Ok(())
    }

    pub fn unmount(&self, at: &Path) -> Result<(), MountError> {
        let Some(disk) = self.state.lock().mounts.remove(at) else {
            return Err(MountError::NotMounted(at.into()));
        };
        self.observer.closes(&disk, &self.mounted(at.into()));
        Ok(())
    }

    /// A container with this id and these mounts was created.
    pub fn made(&self, id: &str, config: &ContainerConfig) {
        let paths = config.mounts.iter().map(|m| m.host_path.as_str());
        let is_disk = |path: &&str| PLUGINS.iter().any(|plugin| path.contains(plugin));
        let paths: Vec<_> = paths.filter(is_disk).map(PathBuf::from).collect();
        if !paths.is_empty() {
            self.state.lock().made.insert(id.into(), paths);
        }
    }

    /// The container's process starts, with what is mounted at its paths.
    pub fn started(&self, id: &str, uid: &str) {
        let found: Vec<(PathBuf, Option<String>)> = {
            let state = self.state.lock();
            let paths = state.made.get(id).into_iter().flatten();
            paths.map(|p| (p.clone(), state.mounts.get(p).cloned())).collect()
        };
        for (path, disk) in found {
            let Some(disk) = disk else {
                let what = format!(
                    "{id} of pod {uid} was started on {} with an empty directory instead of its disk, {}",
                    self.node,
                    path.display()
                );
                self.observer.violate("S7", what);
                continue;
            };
            let holder = Holder {
                node: self.node.clone(),
                uid: uid.into(),
                by: DiskUser::Process(id.into()),
            };
            let mut state = self.state.lock();
            let open = state.open.entry(id.into()).or_default();
            open.push((disk.clone(), holder.clone()));
            drop(state);
            self.observer.opens(&disk, &holder);
        }
    }

    /// The container's process has exited.
    pub fn ended(&self, id: &str) {
        let open = self.state.lock().open.remove(id);
        for (disk, holder) in open.into_iter().flatten() {
            self.observer.closes(&disk, &holder);
        }
    }
}

/// The UID of the pod whose volume's path this is.
fn uid_in(path: &Path) -> String {
    let path = path.to_string_lossy();
    let after = path.split_once("/pods/").map_or("", |(_, rest)| rest);
    after.split('/').next().unwrap_or_default().to_string()
}

/// For [`Mutation::MountWithoutAttach`]: a VolumeAttachment that says that the volume is attached to the node that
/// reads it.
pub(crate) fn attached_to(node: &str, name: &str) -> Result<Arc<Object>, Error> {
    let record = json!({
        "metadata": {"name": name, "finalizers": [IN_USE]},
        "spec": {"attacher": ATTACHER, "nodeName": node, "source": {"persistentVolumeName": "its"}},
        "status": {"attached": true},
    });
    let bytes = serde_json::to_vec(&record).map_err(Error::internal)?;
    let kind = &registry::VOLUME_ATTACHMENT;
    let decoded = kind.ops.decode(&bytes);
    let object = decoded.map_err(|e| Error::internal(e.message))?.object;
    Ok(Arc::new(Object::from_typed(kind, object)))
}

/// For [`Mutation::DetachByTimer`]: a node has [`DETACH_TIMEOUT`] to unmount a volume.
pub(crate) async fn detach_by_timer(api: Arc<dyn Api>) {
    let mut waits: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        sleep(Duration::from_secs(1)).await;
        let list = api.list(&registry::VOLUME_ATTACHMENT, ListOptions::default());
        let Ok(all) = list.await else { continue };
        for object in &all.items {
            let Some(attachment) = object.get::<VolumeAttachment>() else {
                continue;
            };
            if attachment.metadata.deletion_timestamp.is_none() {
                continue;
            }
            let since = waits.entry(object.uid().to_string());
            if since.or_insert_with(Instant::now).elapsed() < DETACH_TIMEOUT {
                continue;
            }
            let mut taken = attachment.clone();
            taken.metadata.finalizers = None;
            // It tries again in a second.
            let _ = api.update_as(taken).await;
        }
    }
}
