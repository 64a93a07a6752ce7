//! Volumes that a node has once for all its pods (NodeStage, or an iSCSI login and the mount of a device) and
//! publishes to each pod (NodePublish, or a bind mount): the programs and the CSI driver of a host, simulated. The
//! kubelet that calls them is the real one.
//!
//! Calls that were begun are carried out although the kubelet that made them has died, unless the host crashes
//! before.

use std::io;
use std::path::{Path, PathBuf};

use knarr_node::host::CommandOutput;
use knarr_node::plugins::watcher::{PluginInfo, RegistrationStatusResponse};
use knarr_node::plugins::{CallError, Code};
use knarr_node::volumes::csi_wire as csi;
use prost::Message;

use crate::Mutation;
use crate::disks::NodeHost;
use crate::staged::State;
use crate::world::Step;

/// The CSI driver's name. The handle of each of its volumes is the PersistentVolume's name.
pub(crate) const DRIVER: &str = "csi.sim";
/// Before a disk's name: its iSCSI target.
pub(crate) const TARGET: &str = "iqn.2026-01.sim:";
pub(crate) const PORTAL: &str = "198.51.100.1:3260";
/// Before a disk's name: its device path after a login.
const DEVICE: &str = "/dev/sim/";
/// `iscsiadm`: the session exists; no objects found. `blkid` and `mount`: no such device.
const SESSION_EXISTS: i32 = 15;
const NO_RECORDS: i32 = 21;
const NO_DEVICE: i32 = 32;

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
            Err(why) => ran(NO_DEVICE, &why.to_string()),
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
        let mounted = self.mount(&asked.volume_id, target);
        mounted.map_err(|e| internal(e.to_string()))?;
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
