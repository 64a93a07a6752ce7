//! The options of a container from one device plugin, and those of all plugins together, for the runtime.

use std::collections::{BTreeMap, BTreeSet};

/// A plugin's response to Allocate for one container and resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    pub envs: BTreeMap<String, String>,
    pub mounts: Vec<Mount>,
    pub devices: Vec<DeviceNode>,
    pub annotations: BTreeMap<String, String>,
    /// Fully qualified names (`vendor.example/gpu=0`).
    pub cdi_devices: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    pub container_path: String,
    pub host_path: String,
    pub read_only: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceNode {
    pub container_path: String,
    pub host_path: String,
    /// Of `r`, `w` and `m`.
    pub permissions: String,
}

/// A container's options from all its plugins. If two conflict, the first one (by resource name) wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerOptions {
    pub envs: BTreeMap<String, String>,
    pub mounts: Vec<Mount>,
    pub devices: Vec<DeviceNode>,
    pub annotations: BTreeMap<String, String>,
    pub cdi_devices: Vec<String>,
}

impl ContainerOptions {
    pub fn of<'a>(allocations: impl Iterator<Item = &'a Allocation>) -> Self {
        let mut all = ContainerOptions::default();
        let (mut mounted, mut nodes) = (BTreeSet::new(), BTreeSet::new());
        for allocation in allocations {
            for (name, value) in &allocation.envs {
                all.envs.entry(name.clone()).or_insert_with(|| value.clone());
            }
            for (key, value) in &allocation.annotations {
                all.annotations
                    .entry(key.clone())
                    .or_insert_with(|| value.clone());
            }
            for mount in &allocation.mounts {
                if mounted.insert(&mount.container_path) {
                    all.mounts.push(mount.clone());
                }
            }
            for node in &allocation.devices {
                if nodes.insert(&node.container_path) {
                    all.devices.push(node.clone());
                }
            }
            all.add_cdi_devices(allocation.cdi_devices.iter().cloned());
        }
        all
    }

    pub fn add_cdi_devices(&mut self, names: impl IntoIterator<Item = String>) {
        for name in names {
            if !self.cdi_devices.contains(&name) {
                self.cdi_devices.push(name);
            }
        }
    }
}
