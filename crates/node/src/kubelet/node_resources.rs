//! What the node has and gives to pods: read once at start, as in Kubernetes.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_api::k8s_openapi;
use knarr_apimachinery::quantity::canonicalize;
use knarr_kubelet::allocatable::{allocatable, max_pods};
use knarr_kubelet::huge_pages::{self, PageSizes};
use nix::sys::statvfs::statvfs;

use super::config::Config;
use super::container;
use super::machine::Machine;

/// See the module.
pub(super) struct NodeResources {
    pub memory_bytes: i64,
    pub capacity: BTreeMap<String, Quantity>,
    pub allocatable: BTreeMap<String, Quantity>,
    pub huge_pages: PageSizes,
}

impl NodeResources {
    pub fn of(config: &Config) -> Self {
        let (cpus, memory_bytes) = size(config.machine);
        let capacity = capacity(config, cpus, memory_bytes);
        NodeResources {
            memory_bytes,
            allocatable: allocatable(&capacity, &config.configuration),
            huge_pages: PageSizes::of_capacity(&capacity),
            capacity,
        }
    }
}

/// CPUs, and memory in bytes.
pub(super) fn size(machine: Machine) -> (usize, i64) {
    match machine {
        Machine::Host => {
            let meminfo = crate::host_fs::read_to_string("/proc/meminfo").unwrap_or_default();
            let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
            (cpus, container::memory_bytes(&meminfo).unwrap_or(0))
        }
        Machine::Hollow { cpus, memory_bytes } => (cpus, memory_bytes),
    }
}

fn capacity(config: &Config, cpus: usize, memory_bytes: i64) -> BTreeMap<String, Quantity> {
    let quantity = |text: String| Quantity(text);
    let mut capacity = BTreeMap::from([
        ("cpu".to_string(), quantity(cpus.to_string())),
        (
            "memory".to_string(),
            quantity(format!("{}Ki", memory_bytes / 1024)),
        ),
        (
            "pods".to_string(),
            quantity(max_pods(&config.configuration, cpus).to_string()),
        ),
    ]);
    capacity.extend(huge_pages::capacity(&config.machine.huge_pages()));
    let mut paths = config.root_dir.ancestors();
    let disk = if config.machine.is_host() {
        paths.find_map(|path| statvfs(path).ok())
    } else {
        None
    };
    if let Some(disk) = disk {
        let bytes = disk.blocks() * disk.fragment_size();
        capacity.insert(
            "ephemeral-storage".into(),
            quantity(format!("{}Ki", bytes / 1024)),
        );
    }
    // In the API's canonical form: otherwise every write would seem to change it.
    capacity.values_mut().for_each(canonicalize);
    capacity
}
