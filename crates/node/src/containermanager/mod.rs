//! The container manager: CPUs, memory and devices of containers, allocated together and aligned with each other.
//!
//! Allocations are decided in `knarr-kubelet` by the CPU, memory, device and topology manager. Here they are called in
//! the kubelet's order when a pod is admitted, their decisions are checkpointed before a container starts, and
//! containers are kept on their CPUs ([`reconcile`]). With the policies `none`, which are the default, only device
//! plugins take part and the machine is not read.

use knarr_apimachinery::ids::PodUid;

mod admission;
mod counts;
pub mod machine;
pub mod reconcile;
mod start;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_api::k8s_openapi;
use knarr_kubelet::admission::Rejection;
use knarr_kubelet::allocatable::withheld_memory;
use knarr_kubelet::configuration::{KubeletConfiguration, ResourceManagers};
use knarr_kubelet::cpumanager::{CpuManager, CpuSet, cpuset};
use knarr_kubelet::guaranteed;
use knarr_kubelet::memorymanager::{Block, MemoryManager};
use knarr_kubelet::topologymanager::{Policy, TopologyManager};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::devicemanager::Devices;
use crate::untrusted_fs::Pool;
pub use counts::{Aligned, Counts, Metrics};
use start::StoredCheckpoints;
pub use start::{CheckpointError, StartError, shown};

/// Where a container runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// As in `cpuset.cpus`; empty: on all CPUs.
    pub cpus: String,
    /// As in `cpuset.mems`; empty: with memory of all NUMA nodes.
    pub memory_nodes: String,
    /// It has its CPUs to itself, so that no quota holds for it (KEP 4540's gate DisableCPUQuotaWithExclusiveCPUs).
    pub has_exclusive_cpus: bool,
}

#[derive(Default)]
struct Managers {
    cpu: CpuManager,
    memory: MemoryManager,
    topology: Option<TopologyManager>,
    numa_nodes: BTreeSet<u32>,
    counts: Counts,
}

/// See the module.
pub struct ContainerManager {
    root: PathBuf,
    /// [`machine::DEVICES`].
    machine: PathBuf,
    files: Pool,
    devices: Arc<Devices>,
    configuration: ResourceManagers,
    reserved_milli_cpus: i64,
    withheld: BTreeMap<String, u64>,
    managers: Mutex<Managers>,
    /// Held while a pod's resources are aligned: its hints must stay valid until all of it is allocated.
    aligning: tokio::sync::Mutex<()>,
    written: tokio::sync::Mutex<StoredCheckpoints>,
    /// Why the managers have not started; reported in the node's status.
    error: Mutex<Option<String>>,
    /// The shared CPUs may be others.
    changed: Notify,
}

impl ContainerManager {
    /// `root` is the kubelet's directory.
    pub fn new(
        root: &Path,
        files: Pool,
        devices: Arc<Devices>,
        configuration: &KubeletConfiguration,
        capacity: &BTreeMap<String, Quantity>,
    ) -> Self {
        ContainerManager {
            root: root.to_path_buf(),
            machine: machine::DEVICES.into(),
            files,
            devices,
            reserved_milli_cpus: configuration.reserved_milli_cpus(),
            withheld: withheld_memory(capacity, configuration),
            configuration: configuration.resource_managers.clone(),
            managers: Mutex::default(),
            aligning: tokio::sync::Mutex::default(),
            written: tokio::sync::Mutex::default(),
            error: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn is_active(&self) -> bool {
        let of = &self.configuration;
        of.is_cpu_static || of.is_memory_static || of.topology_policy != Policy::None
    }

    /// Why the node cannot run pods.
    pub fn error(&self) -> Option<String> {
        self.error.lock().clone()
    }

    /// Where a container that is about to be created runs. Init containers before it have terminated.
    pub fn placement(self: &Arc<Self>, pod: &Pod, container: &str) -> Placement {
        if !self.is_active() {
            return Placement::default();
        }
        let mut managers = self.managers.lock();
        let uid = &guaranteed::uid(pod);
        let nodes: CpuSet = managers.memory.numa_nodes(uid, container);
        let placement = Placement {
            cpus: managers
                .cpu
                .affinity(uid, container)
                .map(cpuset::format)
                .unwrap_or_default(),
            memory_nodes: cpuset::format(&nodes),
            has_exclusive_cpus: managers.cpu.exclusive(uid, container).is_some(),
        };
        let is_changed = managers.memory.started(pod, container);
        drop(managers);
        if is_changed {
            self.clone().save_soon();
        }
        placement
    }

    /// A container has started; the shared CPUs may be others than when it was created.
    pub fn note_started(&self) {
        if self.configuration.is_cpu_static {
            self.changed.notify_one();
        }
    }

    /// Whether a container, or any of the pod, has CPUs to itself, so that no quota holds.
    pub fn has_exclusive_cpus(&self, uid: &PodUid, container: Option<&str>) -> bool {
        let managers = self.managers.lock();
        match container {
            Some(container) => managers.cpu.exclusive(uid, container).is_some(),
            None => managers.cpu.has_exclusive(uid),
        }
    }

    /// Whether a pod may be resized in place: what is allocated exclusively stays as it is
    /// (InPlacePodVerticalScalingExclusiveCPUs and -ExclusiveMemory are off by default).
    pub fn admit_resize(&self, allocated: &Pod, requested: &Pod) -> Result<(), Rejection> {
        let of = &self.configuration;
        let is_changed = |name: &str| {
            let request = |c: &Container| {
                let requests = c.resources.as_ref().and_then(|r| r.requests.as_ref());
                let amount = requests.and_then(|r| r.get(name));
                amount.and_then(|q| knarr_apimachinery::quantity::Quantity::of(q).ok())
            };
            let before: BTreeMap<&str, _> = guaranteed::containers(allocated)
                .map(|c| (c.name.as_str(), request(c)))
                .collect();
            guaranteed::containers(requested).any(|c| before.get(c.name.as_str()) != Some(&request(c)))
        };
        for (is_static, resource, policy) in [
            (of.is_cpu_static, "cpu", "CPU Manager policy \"static\""),
            (of.is_memory_static, "memory", "Memory Manager policy \"Static\""),
        ] {
            if is_static && guaranteed::is_guaranteed(requested) && is_changed(resource) {
                return Err(Rejection {
                    reason: knarr_kubelet::pod::INFEASIBLE.into(),
                    message: format!("Resize is infeasible for Guaranteed Pods alongside {policy}"),
                });
            }
        }
        Ok(())
    }

    /// The CPUs that can be allocated, and the memory.
    pub fn allocatable(&self) -> (CpuSet, Vec<Block>) {
        let managers = self.managers.lock();
        (managers.cpu.allocatable(), managers.memory.allocatable())
    }

    /// What a container has to itself.
    pub fn exclusive(&self, uid: &PodUid, container: &str) -> (CpuSet, Vec<Block>) {
        let managers = self.managers.lock();
        let cpus = managers
            .cpu
            .exclusive(uid, container)
            .cloned()
            .unwrap_or_default();
        (cpus, managers.memory.blocks(uid, container).to_vec())
    }

    pub fn metrics(&self) -> Metrics {
        let managers = self.managers.lock();
        Metrics::of(managers.counts.clone(), &managers.cpu, &self.devices)
    }

    /// A pod has terminated: its resources may be allocated to others.
    pub fn release(self: &Arc<Self>, uid: &PodUid) {
        self.devices.release(uid);
        if self.release_managed(uid) {
            self.changed.notify_one();
            self.clone().save_soon();
        }
    }

    fn release_managed(&self, uid: &PodUid) -> bool {
        let mut managers = self.managers.lock();
        let had_cpus = managers.cpu.release(uid);
        managers.memory.release(uid) || had_cpus
    }

    /// All pods of the node are known: nothing is kept for others.
    pub fn retain_pods(self: &Arc<Self>, is_there: impl Fn(&str) -> bool) {
        self.devices.retain_pods(&is_there);
        let is_changed = {
            let mut managers = self.managers.lock();
            let had_cpus = managers.cpu.retain_pods(&is_there);
            managers.memory.retain_pods(&is_there) || had_cpus
        };
        if is_changed {
            self.changed.notify_one();
            self.clone().save_soon();
        }
    }
}
