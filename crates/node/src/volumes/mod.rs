//! A pod's volumes on this node: set up before its containers, kept current while it runs, torn down after it.
//!
//! A pod's files are below `<root>/pods/<uid>`: volumes at `volumes/<plugin>/<name>`, as every kubelet lays them out.
//! Setting up again what is set up is harmless: that is how a restarted kubelet finds its pods' volumes.

mod attach;
mod claims;
mod empty_dir;
mod error;
mod expansion;
mod files;
mod host_path;
pub(crate) mod layout;
mod local;
pub(crate) mod mounts;
mod storage;
mod sub_path;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_api::kinds::persistent_volume::{csi_attachment, csi_unique_name, exclusive_attachment};
use knarr_apimachinery::ids::{NodeName, PodUid};
use knarr_client::events::EventRecorder;
use knarr_client::{Api, Clock};
use knarr_kubelet::attached_volumes::Step;
use knarr_kubelet::devicemanager::DeviceNode;
use knarr_kubelet::{empty_dir::medium, env_file, resources};
use parking_lot::Mutex;
use tracing::{debug, warn};

use crate::host::Host;
use crate::kubelet::downward::DownwardValues;
use crate::kubelet::env::{EnvFile, EnvFileError, expand};
use crate::kubelet::machine::Machine;
use crate::kubelet::own_node::OwnNode;
use crate::untrusted_fs::{self, Dir, Links, Pool};
pub use error::VolumeError;
use error::mount_error;
use expansion::Expansions;
use files::FileVolumes;
use layout::{POD_DIR_MODE, local_root, pod_dir, volume_dir};
pub use storage::csi_wire;
use storage::{FsGroup, VolumeMode, give_to};

/// Before the VolumeAttachments are listed again.
const ATTACHMENTS_RETRY: Duration = Duration::from_secs(15);
/// Before the CSINode object is tried again.
const CSI_NODE_RETRY: Duration = Duration::from_secs(1);

/// Where claimed volumes are on this node, by the pod's uid and the volume's name.
pub(crate) type ClaimedPaths = Arc<Mutex<BTreeMap<(PodUid, String), PathBuf>>>;

/// Where one of a container's mounts is on the node.
#[derive(Clone, Debug)]
pub struct Mounted {
    pub path: PathBuf,
    /// A property of the volume, whatever the mount requests.
    pub read_only: bool,
}

/// The volumes of one node's pods.
pub struct Volumes {
    root: PathBuf,
    api: Arc<dyn Api>,
    machine: Machine,
    files: Pool,
    file_volumes: FileVolumes,
    claimed: ClaimedPaths,
    attached: attach::Attachments,
    /// What comes from elsewhere.
    storage_manager: storage::StorageManager,
    expansions: Expansions,
    /// Pods whose volumes are being set up or torn down.
    busy: Mutex<BTreeSet<PodUid>>,
    node: NodeName,
}

/// An operation on all volumes of one pod.
struct Operation<'a> {
    of: &'a Volumes,
    uid: PodUid,
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.of.busy.lock().remove(&self.uid);
    }
}

/// The name of the claim that a volume of the pod is of, if it is of one.
pub(crate) fn claim_of(pod: &core::Pod, volume: &core::Volume) -> Option<String> {
    claims::of(pod, volume).map(|claim| claim.name)
}

impl Volumes {
    /// What registers the CSI drivers of its volumes.
    pub(crate) fn csi_registrar(&self) -> storage::Registrar {
        self.storage_manager.registrar()
    }

    pub(crate) fn new(
        root: PathBuf,
        own_node: Arc<OwnNode>,
        (api, recorder, clock): (Arc<dyn Api>, EventRecorder, Arc<dyn Clock>),
        (machine, host): (Machine, Arc<dyn Host>),
        files: Pool,
        claimed: ClaimedPaths,
    ) -> Self {
        let node = NodeName::from(own_node.name());
        if let Err(error) = close(&root) {
            warn!(%error, path = %root.display(), "cannot close the kubelet's directory to other users");
        }
        let tools = storage::Tools {
            files: files.clone(),
            host,
            drivers: Arc::default(),
            api: api.clone(),
            node: node.clone(),
        };
        let in_use = storage::VolumesInUse::default();
        Volumes {
            storage_manager: storage::StorageManager::new(root.clone(), tools, in_use.clone()),
            expansions: Expansions::new(api.clone(), recorder, clock, node.clone()),
            attached: attach::Attachments::new(api.clone(), own_node, root.clone(), in_use),
            busy: Mutex::default(),
            node,
            root,
            machine,
            file_volumes: FileVolumes::new(api.clone(), files.clone()),
            files,
            api,
            claimed,
        }
    }

    /// How files are reached that containers can change.
    pub fn files(&self) -> &Pool {
        &self.files
    }

    /// Where everything of one pod is.
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        pod_dir(&self.root, uid)
    }

    fn path(&self, uid: &str, volume: &core::Volume) -> PathBuf {
        volume_dir(&self.root, uid, volume)
    }

    /// Begins the only operation on a pod's volumes: the garbage collector may tear down those of a deleted pod that its worker
    /// still sets up.
    fn begin(&self, uid: &PodUid) -> Result<Operation<'_>, VolumeError> {
        let uid = uid.clone();
        match self.busy.lock().insert(uid.clone()) {
            true => Ok(Operation { of: self, uid }),
            false => Err(VolumeError::Busy { uid }),
        }
    }

    /// Makes all volumes of a pod. The first that cannot be made is the error.
    pub async fn setup(&self, pod: &core::Pod, values: &DownwardValues) -> Result<(), VolumeError> {
        let uid = &PodUid::of(&pod.metadata);
        let _operation = self.begin(uid)?;
        let mut kept_current = Vec::new();
        let own = self.pod_dir(uid);
        self.files
            .run(uid, move || Dir::make(&own, POD_DIR_MODE).map(drop))
            .await
            .map_err(|e| VolumeError::PodDirectory { why: e.to_string() })?;
        for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
            let failed = |why: String| VolumeError::SetUp {
                volume: volume.name.clone(),
                why,
            };
            let path = self.path(uid, volume);
            let group = fs_group(pod);
            if let Some(empty) = &volume.empty_dir {
                let memory = values.allocatable.get("memory");
                let memory = memory.map_or(0, |bytes| resources::amount("memory", bytes));
                let medium = medium(empty, pod, memory).map_err(|e| failed(e.to_string()))?;
                let group = group.map(|g| g.id);
                let made = self.files.run(uid, move || empty_dir::make(&path, medium, group));
                made.await.map_err(|e| failed(e.to_string()))?;
            } else if let Some(host) = &volume.host_path {
                let (path, kind) = (host.path.clone(), host.type_.clone().unwrap_or_default());
                let checked = self.files.run(uid, move || Ok(host_path::check(&path, &kind)));
                checked
                    .await
                    .map_err(|e| failed(e.to_string()))?
                    .map_err(|e| failed(e.to_string()))?;
            } else if files::is_files(volume) {
                let group = group.map(|g| g.id);
                let written = self.file_volumes.set_up(pod, volume, &path, group, values);
                written.await.map_err(|e| failed(e.to_string()))?;
                kept_current.push((volume.clone(), path));
            } else if let Some(claim) = claims::of(pod, volume) {
                let found = self.claim(pod, volume, &claim).await?;
                let mut claimed = self.claimed.lock();
                claimed.insert((uid.clone(), volume.name.clone()), found);
            } else if let Some(desired) = storage::inline(&*self.api, pod, volume, group)
                .await
                .map_err(|e| failed(e.to_string()))?
            {
                let found = self.storage_manager.set_up(&desired).await;
                let found =
                    found.map_err(|failure| mount_error(&desired.name, desired.terms.mode, failure))?;
                let mut claimed = self.claimed.lock();
                claimed.insert((uid.clone(), volume.name.clone()), found);
            } else {
                return Err(failed("this kind of volume is not supported by knarr yet".into()));
            }
        }
        if !kept_current.is_empty() {
            let group = fs_group(pod).map(|g| g.id);
            self.file_volumes.keep_current(pod, kept_current, group, values);
        }
        Ok(())
    }

    /// Where a claim's volume is, once this pod may use it.
    async fn claim(
        &self,
        pod: &core::Pod,
        volume: &core::Volume,
        claim: &claims::ClaimReference,
    ) -> Result<PathBuf, VolumeError> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        let uid = &PodUid::of(&pod.metadata);
        let failed = |why: String| VolumeError::Claim {
            volume: volume.name.clone(),
            why: format!("error processing PVC {namespace}/{}: {why}", claim.name),
        };
        let (bound, claimed) = claims::volume(&*self.api, pod, claim)
            .await
            .map_err(|e| failed(e.to_string()))?;
        let name = claimed.object().name();
        let mode = claimed.spec.as_ref().and_then(|s| s.volume_mode.as_deref());
        let mode = VolumeMode::of(mode);
        claims::check_mode(pod, &volume.name, mode).map_err(|e| VolumeError::Claim {
            volume: volume.name.clone(),
            why: e.to_string(),
        })?;
        let desired = storage::claimed(&*self.api, pod, &claimed, claim.read_only, fs_group(pod)).await;
        let desired = desired.map_err(|e| failed(e.to_string()))?;
        // What cannot be had is not waited for.
        let path = match &desired {
            Some(_) => PathBuf::new(),
            None => claims::local_path(&claimed, mode).map_err(|e| failed(e.to_string()))?,
        };
        let mut attachment = None;
        if let Some(exclusive) = exclusive_attachment(&claimed) {
            let desired_attachment = attach::DesiredAttachment::from(exclusive);
            let held = self.attached.hold(uid, name, &desired_attachment).await;
            held.map_err(|e| failed(e.to_string()))?;
            attachment = Some(desired_attachment.attachment);
        } else if let Some(csi) = claimed.spec.as_ref().and_then(|s| s.csi.as_ref())
            && storage::is_attached(&*self.api, &csi.driver)
                .await
                .map_err(|e| failed(e.to_string()))?
        {
            let desired_attachment = attach::DesiredAttachment {
                attachment: csi_attachment(&csi.volume_handle, &csi.driver, &self.node),
                attacher: csi.driver.clone(),
                one_pod: false,
            };
            let label = csi_unique_name(&csi.driver, &csi.volume_handle);
            self.attached
                .hold(uid, &label, &desired_attachment)
                .await
                .map_err(|e| failed(e.to_string()))?;
            attachment = Some(desired_attachment.attachment);
        }
        if desired.is_none() && mode == VolumeMode::Block {
            let device = path.clone();
            let checked = self.files.run(uid, move || local::check_device(&device));
            checked.await.map_err(|e| VolumeError::SetUpDevice {
                volume: name.to_string(),
                why: format!("{}: {e}", path.display()),
            })?;
            return Ok(path);
        }
        let Some(mut desired) = desired else {
            let (local_path, volume) = (local_root(&self.root), (*claimed).clone());
            let made = self.files.run(uid, move || local::make(&local_path, &volume));
            made.await
                .map_err(|e| failed(format!("cannot make {}: {e}", path.display())))?;
            let is_local = claimed.spec.as_ref().is_some_and(|s| s.local.is_some());
            // The first pod's group owns it as long as it is in use.
            if let Some(group) = fs_group(pod).filter(|_| is_local && !claim.read_only)
                && !self.is_used_by_another(uid, &path)
            {
                let at = path.clone();
                let given = self.files.run(uid, move || give_to(group, &at, false));
                given
                    .await
                    .map_err(|e| failed(format!("applyFSGroup failed for vol {name}: {e}")))?;
            }
            return Ok(path);
        };
        desired.attachment = attachment;
        let found = self.storage_manager.set_up(&desired).await;
        let found = found.map_err(|failure| mount_error(name, mode, failure))?;
        if desired.is_expandable() {
            let expanded = self
                .expansions
                .begin(&self.storage_manager, pod, &bound, &claimed, &desired)
                .await;
            let volume = name.to_string();
            expanded.map_err(|error| {
                let why = error.to_string();
                match mode {
                    VolumeMode::Filesystem => VolumeError::Expand { volume, why },
                    VolumeMode::Block => VolumeError::ExpandDevice { volume, why },
                }
            })?;
        }
        Ok(found)
    }

    fn is_used_by_another(&self, uid: &PodUid, path: &Path) -> bool {
        let claimed = self.claimed.lock();
        claimed.iter().any(|((of, _), at)| of != uid && at == path)
    }

    /// Keeps the API's records of this node's volumes current, until dropped.
    pub(crate) async fn run(&self) {
        let _refreshers = self.file_volumes.abort_on_drop();
        let in_use = |path: &Path| self.claimed.lock().values().any(|used| used == path);
        let root = local_root(&self.root);
        let clean = local::clean(
            self.api.clone(),
            self.node.clone(),
            root,
            self.files.clone(),
            in_use,
        );
        let end_use = async {
            while let Err(error) = self.release_unknown().await {
                debug!(%error, "cannot release the VolumeAttachments of an earlier kubelet yet");
                tokio::time::sleep(ATTACHMENTS_RETRY).await;
            }
        };
        // Also on a node without any driver.
        let csi_node = async {
            while self.machine.is_host()
                && let Err(error) = storage::node_info::make(&*self.api, &self.node).await
            {
                debug!(%error, "cannot make this node's CSINode yet");
                tokio::time::sleep(CSI_NODE_RETRY).await;
            }
        };
        let expand = async {
            if self.machine.is_host() {
                self.expansions.run(&self.storage_manager).await;
            }
        };
        tokio::join!(clean, end_use, csi_node, expand);
    }

    /// Whether this pod uses a volume that is for one node or pod.
    pub(crate) fn uses_exclusive(&self, uid: &str) -> bool {
        self.attached.uses(uid)
    }

    /// The attached volumes that pods use, as the node's status names them.
    pub(crate) fn in_use(&self) -> Vec<String> {
        self.attached.in_use()
    }

    /// Where on the node the container's mount is that has this index in `volumeMounts`. A subPath is made if it is not there, and mounted by itself.
    pub async fn mounted(
        &self,
        pod: &core::Pod,
        container: &str,
        index: usize,
        mount: &core::VolumeMount,
        environment: &[(String, String)],
    ) -> Result<Mounted, VolumeError> {
        let uid = &PodUid::of(&pod.metadata);
        let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        let volume = volumes.into_iter().find(|v| v.name == mount.name);
        let volume = volume.ok_or_else(|| VolumeError::NoVolume {
            volume: mount.name.clone(),
            container: container.into(),
        })?;
        // What is made of objects is the kubelet's to write (CVE-2017-1002102).
        let read_only = files::is_files(volume) || claims::of(pod, volume).is_some_and(|c| c.read_only);
        let claimed = self
            .claimed
            .lock()
            .get(&(uid.clone(), volume.name.clone()))
            .cloned();
        let base = match (&volume.host_path, claimed) {
            (Some(host), _) => PathBuf::from(&host.path),
            (None, Some(path)) => path,
            (None, None) => self.path(uid, volume),
        };
        let value = |name: &str| {
            environment
                .iter()
                .find(|(n, _)| n == name)
                .map(|(_, v)| v.clone())
        };
        let sub_path = match (&mount.sub_path, &mount.sub_path_expr) {
            (Some(path), _) if !path.is_empty() => path.clone(),
            (_, Some(path)) if !path.is_empty() => expand(path, value),
            _ => {
                return Ok(Mounted {
                    path: base,
                    read_only,
                });
            }
        };
        let desired = sub_path::SubPath {
            pod_dir: self.pod_dir(uid),
            volume: volume.name.clone(),
            container: container.into(),
            index,
            base,
            path: sub_path,
        };
        let is_seen = self.machine.is_host();
        let prepared = self.files.run(uid, move || match is_seen {
            true => desired.mount(),
            false => desired.make(),
        });
        let path = prepared.await.map_err(|error| {
            warn!(volume = mount.name, container, %error, "cannot prepare a subPath");
            VolumeError::SubPath {
                mount: mount.name.clone(),
                container: container.into(),
            }
        })?;
        Ok(Mounted { path, read_only })
    }

    /// The device of the node that a container gets for one of its `volumeDevices`.
    pub fn device(
        &self,
        pod: &core::Pod,
        container: &str,
        device: &core::VolumeDevice,
    ) -> Result<DeviceNode, VolumeError> {
        let uid = &PodUid::of(&pod.metadata);
        let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        let claim = volumes
            .into_iter()
            .find(|v| v.name == device.name)
            .and_then(|v| claims::of(pod, v));
        let claimed = self.claimed.lock();
        let path = claimed.get(&(uid.clone(), device.name.clone()));
        let (Some(claim), Some(path)) = (claim, path) else {
            return Err(VolumeError::NoVolume {
                volume: device.name.clone(),
                container: container.into(),
            });
        };
        Ok(DeviceNode {
            container_path: device.device_path.clone(),
            host_path: path.display().to_string(),
            permissions: if claim.read_only { "r" } else { "mrw" }.into(),
        })
    }

    /// The start of a file of variables that a container of this pod wrote, and where it is.
    pub async fn env_file(&self, pod: &core::Pod, volume: &str, path: &str) -> Result<EnvFile, EnvFileError> {
        let uid = &PodUid::of(&pod.metadata);
        let mut volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        // The API rejects anything but emptyDir; in a static pod's manifest it is reported here.
        let found = volumes.find(|v| v.name == volume && v.empty_dir.is_some());
        let missing = || EnvFileError::NoVolume {
            volume: volume.into(),
        };
        let base = self.path(uid, found.ok_or_else(missing)?);
        let (at, inside) = (base.join(path), path.to_string());
        let read = self.files.run(uid, move || {
            Dir::open(&base)?.read(&inside, Links::InRoot, env_file::FILE_BYTES)
        });
        match read.await {
            Ok((text, cut)) => Ok(EnvFile { at, text, cut }),
            Err(error) => {
                warn!(pod = pod.metadata.name, path = %at.display(), %error, "cannot read a file of variables");
                Err(EnvFileError::Unreadable)
            }
        }
    }

    /// Unstages and then releases the attached volumes without users that this pod left last; without a pod, that were left
    /// under an earlier kubelet. One that fails keeps no other; the last failure is the error.
    async fn end_use(&self, last_user: Option<&PodUid>) -> Result<(), VolumeError> {
        loop {
            let steps = self.attached.steps(last_user);
            if steps.is_empty() {
                return Ok(());
            }
            let mut failed = None;
            for step in steps {
                let done = match step {
                    Step::Unstage { attachment } => {
                        let unstaged = self.storage_manager.unstage(&attachment).await;
                        unstaged.map_err(|e| VolumeError::UnmountDevice {
                            attachment,
                            why: e.to_string(),
                        })
                    }
                    Step::Release { attachment } => {
                        let released = self.attached.release(&attachment).await;
                        released.map_err(|e| VolumeError::Release { why: e.to_string() })
                    }
                };
                failed = done.err().or(failed);
            }
            if let Some(error) = failed {
                return Err(error);
            }
        }
    }

    async fn release_unknown(&self) -> Result<(), VolumeError> {
        let released = self.attached.release_unknown().await;
        let ended = self.end_use(None).await;
        released.map_err(|e| VolumeError::Release { why: e.to_string() })?;
        ended
    }

    /// Unmounts and removes everything of a pod.
    pub async fn teardown(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let _operation = self.begin(uid)?;
        let recovered = self.attached.recover();
        recovered.map_err(|e| VolumeError::Release { why: e.to_string() })?;
        self.file_volumes.forget(uid).await;
        self.expansions.forget(uid);
        let failed = |why: String| VolumeError::TearDown {
            path: self.pod_dir(uid).display().to_string(),
            why,
        };
        // SubPath mounts keep their volumes busy otherwise.
        let own = self.pod_dir(uid);
        let unmounted = self.files.run(uid, move || sub_path::unmount_all(&own));
        unmounted.await.map_err(|e| failed(e.to_string()))?;
        // Before anything of the pod's directory is removed: what is mounted there may be storage of others.
        let torn_down = self.storage_manager.tear_down(uid).await;
        torn_down.map_err(|e| failed(e.to_string()))?;
        let own = self.pod_dir(uid);
        if !uid.is_empty() {
            let own = own.clone();
            let unmounted = self.files.run(uid, move || unmount_below(&own));
            unmounted.await.map_err(|e| failed(e.to_string()))?;
        }
        self.claimed.lock().retain(|(of, _), _| of != uid);
        self.attached.leave(uid);
        // While its directory exists: the garbage collector finds it by that, and retries.
        self.end_use(Some(uid)).await?;
        if !uid.is_empty() {
            let removed = self.files.run(uid, move || untrusted_fs::remove(&own));
            removed.await.map_err(|e| failed(e.to_string()))?;
        }
        Ok(())
    }
}

/// The kubelet's directory, and that of its pods: also where they were made with other modes.
fn close(root: &Path) -> std::io::Result<()> {
    for path in [root.to_path_buf(), root.join("pods"), root.join("plugins")] {
        let directory = Dir::make(&path, POD_DIR_MODE)?;
        directory.set_mode(directory.own_stat()?.st_mode & POD_DIR_MODE)?;
    }
    Ok(())
}

/// Unmounts what is mounted below a directory that is to be removed, the innermost first: mounted content must not be
/// deleted.
fn unmount_below(directory: &Path) -> std::io::Result<()> {
    for mounted in mounts::below(directory)? {
        untrusted_fs::unmount_all_at(&mounted)?;
    }
    Ok(())
}

fn fs_group(pod: &core::Pod) -> Option<FsGroup> {
    let context = pod.spec.as_ref()?.security_context.as_ref()?;
    Some(FsGroup {
        id: context.fs_group.and_then(|g| u32::try_from(g).ok())?,
        on_root_mismatch: context.fs_group_change_policy.as_deref() == Some("OnRootMismatch"),
    })
}
