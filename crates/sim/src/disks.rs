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

use async_trait::async_trait;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use knarr_api::kinds::persistent_volume::{ATTACHER, IN_USE};
use knarr_api::{k8s_openapi, registry};
use knarr_client::{Api, Error, ListOptions, Object, TypedApi};
use knarr_node::host::{CommandError, CommandOutput, Host};
use knarr_node::plugins::{CallError, Code};
use knarr_node::runtime::ContainerConfig;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::Mutation;
use crate::clocks::Rate;
use crate::observer::Observer;
use crate::runtime::Condition;
use crate::staging::Staging;

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
/// The exit code of `mount` and `umount` when they fail.
const FAILED: i32 = 32;

/// Who has a disk open.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holder {
    pub node: String,
    /// The pod's UID.
    pub uid: String,
    pub by: DiskUser,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DiskUser {
    Mount(PathBuf),
    /// A container's process, by the container's id.
    Process(String),
}

/// One host, over its reboots.
pub(crate) struct NodeHost {
    pub node: String,
    pub observer: Arc<Observer>,
    condition: Arc<Condition>,
    pub mutation: Option<Mutation>,
    pub staging: Staging,
    rate: Rate,
    state: Mutex<State>,
}

struct State {
    up_since: Instant,
    /// Which disk is mounted at which path.
    mounts: BTreeMap<PathBuf, String>,
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

    /// The host as one incarnation of the kubelet reaches it.
    pub fn host_access(self: &Arc<Self>, dead: CancellationToken) -> Arc<dyn Host> {
        Arc::new(HostAccess {
            host: self.clone(),
            dead,
        })
    }

    /// After a reboot nothing is mounted. The processes have been killed before.
    pub fn rebooted(&self) {
        let mounts = {
            let mut state = self.state.lock();
            state.up_since = Instant::now();
            std::mem::take(&mut state.mounts)
        };
        for (at, disk) in mounts {
            self.observer.closes(&disk, &self.mounted(at));
        }
        self.forget_staged();
    }

    pub fn is_mounted_at(&self, at: &Path) -> bool {
        self.state.lock().mounts.contains_key(at)
    }

    fn mounted(&self, at: PathBuf) -> Holder {
        Holder {
            node: self.node.clone(),
            uid: uid_in(&at),
            by: DiskUser::Mount(at),
        }
    }

    pub fn mount(&self, disk: &str, at: &Path) -> Result<(), String> {
        // A cleanup in between has removed the mount point.
        if !at.is_dir() {
            return Err(format!("mount point {} does not exist", at.display()));
        }
        let before = self.state.lock().mounts.insert(at.into(), disk.into());
        if before.is_some() {
            return Err(format!("{} is mounted already", at.display()));
        }
        self.observer.opens(disk, &self.mounted(at.into()));
        Ok(())
    }

    pub fn unmount(&self, at: &Path) -> Result<(), String> {
        let Some(disk) = self.state.lock().mounts.remove(at) else {
            return Err(format!("{}: not mounted", at.display()));
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

/// The host as one incarnation of its kubelet reaches it. A program that was started continues when the kubelet dies.
struct HostAccess {
    host: Arc<NodeHost>,
    dead: CancellationToken,
}

impl std::fmt::Debug for HostAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "host access of {}", self.host.node)
    }
}

#[async_trait]
impl Host for HostAccess {
    async fn run(&self, program: &str, args: &[&str]) -> Result<CommandOutput, CommandError> {
        if !self.dead.is_cancelled() {
            let line = format!("{} is to {program} {}", self.host.node, display_args(args));
            self.host.observer.note(&line);
        }
        let host = self.host.clone();
        let (program, args) = (
            program.to_string(),
            args.iter().map(|a| a.to_string()).collect::<Vec<_>>(),
        );
        let done = self.host.condition.order(async move {
            if let Some(ran) = host.run_staging(&program, &args) {
                return Ok(Ok(ran));
            }
            let (source, at) = match args.as_slice() {
                [.., source, at] => (source.as_str(), at.as_str()),
                [at] => ("", at.as_str()),
                [] => ("", ""),
            };
            let disk = source.strip_prefix(SERVER).and_then(|s| s.strip_prefix(':'));
            let done = match (program.as_str(), disk) {
                ("mount", Some(disk)) => host.mount(disk, Path::new(at)),
                ("umount", _) => host.unmount(Path::new(at)),
                _ => Err(format!("no {program} of {source} here")),
            };
            Ok(done.map(|()| CommandOutput {
                code: Some(0),
                output: String::new(),
            }))
        });
        let done = tokio::select! {
            biased;
            () = self.dead.cancelled() => std::future::pending().await,
            done = done => done,
        };
        let failed = |output: String| CommandOutput {
            code: Some(FAILED),
            output,
        };
        Ok(match done {
            Ok(Ok(ran)) => ran,
            Ok(Err(why)) => failed(why),
            Err(error) => failed(error.to_string()),
        })
    }

    fn is_mounted(&self, at: &Path) -> std::io::Result<bool> {
        Ok(self.host.is_mounted_at(at) || self.host.is_staged(at))
    }

    fn device(&self, by_path: &str) -> Option<PathBuf> {
        self.host.staging_device(by_path)
    }

    fn has_fake_plugins(&self) -> bool {
        self.host.staging.is_registered()
    }

    async fn call_plugin(
        &self,
        _socket: &Path,
        method: &'static str,
        request: Vec<u8>,
    ) -> Option<std::result::Result<Vec<u8>, CallError>> {
        if !self.dead.is_cancelled() {
            self.host
                .observer
                .note(&format!("{} is to do {method}", self.host.node));
        }
        let host = self.host.clone();
        let called = self
            .host
            .condition
            .order(async move { Ok(host.call_driver(method, &request)) });
        let called = tokio::select! {
            biased;
            () = self.dead.cancelled() => std::future::pending().await,
            called = called => called,
        };
        Some(called.unwrap_or_else(|error| {
            Err(CallError {
                code: Code::Unavailable,
                message: error.to_string(),
            })
        }))
    }

    fn since_boot(&self) -> Option<Duration> {
        let up = self.host.state.lock().up_since.elapsed();
        let up = self.host.rate.counted(up);
        let counts_slowly = self.host.mutation == Some(Mutation::FenceItselfLate);
        Some(if counts_slowly { up / 2 } else { up })
    }
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

/// Without the directory of this run, which differs in each.
fn display_args(args: &[&str]) -> String {
    let own = |arg: &&str| match arg.split_once("/pods/") {
        Some((_, rest)) => format!("pods/{rest}"),
        None => arg.to_string(),
    };
    args.iter().map(own).collect::<Vec<_>>().join(" ")
}
