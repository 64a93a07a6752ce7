//! Volumes that a node has once for all its pods (NodeStage, or an iSCSI login and the mount of a device) and
//! publishes to each pod (NodePublish, or a bind mount): the programs and the CSI driver of a host, simulated. The
//! kubelet that calls them is the real one.
//!
//! Calls that were begun are carried out although the kubelet that made them has died, unless the host crashes
//! before.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use knarr_node::host::CommandOutput;
use knarr_node::plugins::watcher::{PluginInfo, REGISTRY, RegistrationStatusResponse};
use knarr_node::plugins::{CallError, Code};
use knarr_node::volumes::csi_wire as csi;
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::Mutation;
use crate::coverage::Scope;
use crate::disks::NodeHost;
use crate::faults::{Faults, later};
use crate::random::Stream;
use crate::rules::s7_staging::Step;
use crate::switches::Switch;

/// The CSI driver's name. The handle of each of its volumes is the PersistentVolume's name.
pub(crate) const DRIVER: &str = "csi.sim";
/// Before a disk's name: its iSCSI target.
pub(crate) const TARGET: &str = "iqn.2026-01.sim:";
pub(crate) const PORTAL: &str = "198.51.100.1:3260";
/// Before a disk's name: its device path after a login.
const DEVICE: &str = "/dev/sim/";
/// A fault that waits for a step gives up after that.
const WAITS_FOR_STEP: Duration = Duration::from_secs(30);
/// Faults between steps that hit the attacher, and those of a node that hit its host, per mille.
const ATTACHERS_PER_MILLE: u32 = 250;
const REBOOTS_PER_MILLE: u32 = 400;
/// `iscsiadm`: the session exists; no objects found. `blkid` and `mount`: no such device.
const SESSION_EXISTS: i32 = 15;
const NO_RECORDS: i32 = 21;
const NO_DEVICE: i32 = 32;

/// The staged volumes of a host. None of this survives a reboot.
#[derive(Default)]
pub(crate) struct Staging {
    state: Mutex<State>,
    /// Its driver has registered its socket.
    is_registered: AtomicBool,
    /// Notified of each step.
    pub steps: Arc<Notify>,
}

#[derive(Default)]
struct State {
    /// Which disk is staged at which path.
    staged: BTreeMap<PathBuf, String>,
    /// Disks whose targets the host is logged in at.
    sessions: BTreeSet<String>,
}

impl Staging {
    pub fn is_registered(&self) -> bool {
        self.is_registered.load(Ordering::Relaxed)
    }

    /// The node's driver registers its socket with the kubelet.
    pub fn register(&self, kubelet: &Path) -> io::Result<()> {
        self.is_registered.store(true, Ordering::Relaxed);
        show_socket(kubelet)
    }
}

fn show_socket(kubelet: &Path) -> io::Result<()> {
    let directory = kubelet.join(REGISTRY);
    std::fs::create_dir_all(&directory)?;
    let socket = directory.join("csi.sock");
    match std::fs::exists(&socket)? {
        true => Ok(()),
        // No process listens: the calls do not go through the socket.
        false => UnixListener::bind(socket).map(drop),
    }
}

fn ran(code: i32, output: &str) -> CommandOutput {
    CommandOutput {
        code: Some(code),
        output: output.into(),
    }
}

fn failed(code: Code, message: String) -> CallError {
    CallError { code, message }
}

fn read<M: Message + Default>(request: &[u8]) -> Result<M, CallError> {
    M::decode(request).map_err(|e| failed(Code::InvalidArgument, e.to_string()))
}

impl NodeHost {
    fn step(&self, step: &Step) {
        self.observer.stored(step);
        self.staging.steps.notify_waiters();
    }

    fn stage(&self, disk: &str, at: &Path) {
        let before = self.staging.state.lock().staged.insert(at.into(), disk.into());
        if before.is_none() {
            self.step(&Step::Staged(disk.into(), self.node.clone()));
        }
    }

    fn unstage(&self, at: &Path) {
        let disk = self.staging.state.lock().staged.remove(at);
        if let Some(disk) = disk {
            self.step(&Step::Unstaged(disk, self.node.clone()));
        }
    }

    pub fn is_staged(&self, at: &Path) -> bool {
        self.staging.state.lock().staged.contains_key(at)
    }

    /// After a reboot and the loss of all mounts: nothing is staged any more.
    pub fn forget_staged(&self) {
        let State { staged, sessions } = std::mem::take(&mut *self.staging.state.lock());
        for disk in staged.into_values() {
            self.step(&Step::Unstaged(disk, self.node.clone()));
        }
        for disk in sessions {
            self.step(&Step::LoggedOut(disk, self.node.clone()));
        }
    }

    /// The device of a disk while its session lasts.
    pub fn staging_device(&self, by_path: &str) -> Option<PathBuf> {
        let (_, rest) = by_path.split_once(TARGET)?;
        let disk = rest.strip_suffix("-lun-0")?;
        let is_there = self.staging.state.lock().sessions.contains(disk);
        is_there.then(|| PathBuf::from(format!("{DEVICE}{disk}")))
    }

    /// Runs a program, if it is for such a volume.
    pub fn run_staging(&self, program: &str, args: &[String]) -> Option<CommandOutput> {
        match program {
            "iscsiadm" => Some(self.iscsiadm(args)),
            "blkid" => Some(match self.has_device(args.last()?) {
                true => ran(0, "TYPE=ext4\n"),
                false => ran(NO_DEVICE, "no such device"),
            }),
            "fsck" => Some(ran(0, "")),
            "mount" => {
                let [.., source, at] = args else { return None };
                self.mount_staged(source, Path::new(at))
            }
            "umount" => {
                let at = Path::new(args.last()?);
                self.is_staged(at).then(|| {
                    self.unstage(at);
                    ran(0, "")
                })
            }
            _ => None,
        }
    }

    fn has_device(&self, device: &str) -> bool {
        let disk = device.strip_prefix(DEVICE);
        disk.is_some_and(|disk| self.staging.state.lock().sessions.contains(disk))
    }

    fn iscsiadm(&self, args: &[String]) -> CommandOutput {
        let disk = args.iter().find_map(|arg| arg.strip_prefix(TARGET));
        let Some(disk) = disk else { return ran(0, "") };
        let asks = |what: &str| args.iter().any(|arg| arg == what);
        let node = self.node.clone();
        if asks("--login") {
            if !self.staging.state.lock().sessions.insert(disk.into()) {
                return ran(SESSION_EXISTS, "session exists");
            }
            self.step(&Step::LoggedIn(disk.into(), node));
        } else if asks("--logout") {
            if !self.staging.state.lock().sessions.remove(disk) {
                return ran(NO_RECORDS, "no matching sessions found");
            }
            self.step(&Step::LoggedOut(disk.into(), node));
        }
        ran(0, "")
    }

    fn mount_staged(&self, source: &str, at: &Path) -> Option<CommandOutput> {
        if let Some(disk) = source.strip_prefix(DEVICE) {
            return Some(match self.has_device(source) && at.is_dir() {
                true => {
                    self.stage(disk, at);
                    ran(0, "")
                }
                false => ran(NO_DEVICE, "no such device, or no such mount point"),
            });
        }
        // What is mounted at another path is bind-mounted at this one too.
        let disk = self.staging.state.lock().staged.get(Path::new(source)).cloned()?;
        Some(match self.mount(&disk, at) {
            Ok(()) => ran(0, ""),
            Err(why) => ran(NO_DEVICE, &why),
        })
    }

    /// A call of the kubelet to the driver.
    pub fn call_driver(&self, method: &str, request: &[u8]) -> Result<Vec<u8>, CallError> {
        let capability = csi::Capability {
            rpc: Some(csi::Rpc {
                kind: csi::STAGE_UNSTAGE,
            }),
        };
        let name = method.rsplit('/').next().unwrap_or_default();
        Ok(match name {
            "GetInfo" => PluginInfo {
                kind: "CSIPlugin".into(),
                name: DRIVER.into(),
                endpoint: String::new(),
                supported_versions: vec!["1.0.0".into()],
            }
            .encode_to_vec(),
            "NotifyRegistrationStatus" => RegistrationStatusResponse {}.encode_to_vec(),
            "NodeGetInfo" => csi::NodeInfo {
                node_id: self.node.clone(),
                ..csi::NodeInfo::default()
            }
            .encode_to_vec(),
            "NodeGetCapabilities" => csi::Capabilities {
                capabilities: vec![capability],
            }
            .encode_to_vec(),
            "NodeStageVolume" => {
                let asked: csi::StageRequest = read(request)?;
                self.stage(&asked.volume_id, Path::new(&asked.staging_target_path));
                csi::Empty {}.encode_to_vec()
            }
            "NodeUnstageVolume" => {
                let asked: csi::UnstageRequest = read(request)?;
                self.unstage(Path::new(&asked.staging_target_path));
                csi::Empty {}.encode_to_vec()
            }
            "NodePublishVolume" => self.publish(&read(request)?)?.encode_to_vec(),
            "NodeUnpublishVolume" => self.unpublish(&read(request)?)?.encode_to_vec(),
            _ => {
                let message = format!("{DRIVER} has no method {method}");
                return Err(failed(Code::Unimplemented, message));
            }
        })
    }

    fn publish(&self, asked: &csi::PublishRequest) -> Result<csi::Empty, CallError> {
        let staged = Path::new(&asked.staging_target_path);
        let target = Path::new(&asked.target_path);
        if !self.is_staged(staged) {
            let message = format!("volume {} is not staged on {}", asked.volume_id, self.node);
            return Err(failed(Code::FailedPrecondition, message));
        }
        if self.is_mounted_at(target) {
            return Ok(csi::Empty {});
        }
        let internal = |why: String| failed(Code::Internal, why);
        match std::fs::create_dir(target) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(internal(e.to_string())),
            _ => {}
        }
        self.mount(&asked.volume_id, target).map_err(internal)?;
        self.staging.steps.notify_waiters();
        Ok(csi::Empty {})
    }

    fn unpublish(&self, asked: &csi::UnpublishRequest) -> Result<csi::Empty, CallError> {
        let target = Path::new(&asked.target_path);
        if self.is_mounted_at(target) {
            // It is mounted: no other process unmounts it.
            let _ = self.unmount(target);
        }
        match std::fs::remove_dir(target) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(failed(Code::Internal, e.to_string()));
            }
            _ => {}
        }
        if self.mutation == Some(Mutation::UnstageEarly) {
            let staged = self.staging.state.lock().staged.clone();
            let of_disk = staged.iter().filter(|(_, disk)| **disk == asked.volume_id);
            of_disk.for_each(|(at, _)| self.unstage(at));
        }
        self.staging.steps.notify_waiters();
        Ok(csi::Empty {})
    }
}

impl Faults {
    /// A node's kubelet or host dies right after the next step of a volume on it, before the kubelet gets the result;
    /// or the attacher is stopped for some time.
    pub fn crash_between_steps(&self, chance: &mut Stream) {
        let length = self.lengths.draw(chance);
        let Some(node) = chance.pick(&self.nodes).cloned() else {
            return;
        };
        let (of_attacher, reboots) = (
            chance.per_mille(ATTACHERS_PER_MILLE),
            chance.per_mille(REBOOTS_PER_MILLE),
        );
        let millis = length.as_millis();
        let (scope, what) = match (of_attacher, reboots) {
            (true, _) => (Scope::Cluster, "the external-attacher is gone".to_string()),
            (false, true) => (
                Scope::Node(&node.name),
                format!("{} reboots after a volume's next step", node.name),
            ),
            (false, false) => (
                Scope::Node(&node.name),
                format!("crash of {}'s kubelet after a volume's next step", node.name),
            ),
        };
        self.observer.strikes(Switch::StagingCrash, scope);
        self.observer.note(&format!("fault: {what} for {millis} ms"));
        if of_attacher {
            self.attacher.iter().for_each(|attacher| attacher.crash(length));
            return;
        }
        let attacher = self.attacher.clone();
        tokio::spawn(async move {
            let steps = node.host.staging.steps.clone();
            let stepped = timeout(WAITS_FOR_STEP, steps.notified()).await.is_ok();
            if !stepped || attacher.is_some_and(|attacher| attacher.is_healed()) {
                return;
            }
            match reboots {
                true => node.reboot(),
                false => node.crash(),
            }
            later(length, move || node.start());
        });
        self.report_health();
    }
}
