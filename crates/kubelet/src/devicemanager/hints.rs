//! The topology hints of the devices of a container or pod.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_api::k8s_openapi;

use super::{Device, DeviceManager, Resource};
use crate::guaranteed::{self, uid};
use crate::topologymanager::{Hint, NumaMask, ProviderHints, masks_of};

/// Devices by whether they are on the NUMA nodes of the affinity.
#[derive(Debug, Default)]
pub(super) struct ByAffinity {
    pub aligned: BTreeSet<String>,
    pub unaligned: BTreeSet<String>,
    /// Devices without topology information; all devices if there is no affinity.
    pub others: BTreeSet<String>,
}

fn nodes(device: &Device) -> impl Iterator<Item = u32> {
    device
        .numa_nodes
        .iter()
        .filter_map(|node| u32::try_from(*node).ok())
}

fn is_in(device: &Device, mask: NumaMask) -> bool {
    nodes(device).any(|node| mask.contains(node))
}

impl Resource {
    /// Whether any device has topology information.
    fn has_topology(&self) -> bool {
        self.devices.values().any(|device| !device.numa_nodes.is_empty())
    }

    pub(super) fn by_affinity(&self, available: &BTreeSet<String>, affinity: Option<NumaMask>) -> ByAffinity {
        let mut all = ByAffinity::default();
        let affinity = affinity.filter(|_| self.has_topology());
        for id in available {
            let device = self
                .devices
                .get(id)
                .filter(|device| !device.numa_nodes.is_empty());
            let to = match (affinity, device) {
                (None, _) | (_, None) => &mut all.others,
                (Some(affinity), Some(device)) if is_in(device, affinity) => &mut all.aligned,
                _ => &mut all.unaligned,
            };
            to.insert(id.clone());
        }
        all
    }

    /// The sets of NUMA nodes that have this many devices and all reusable ones. Only NUMA nodes with devices are considered.
    fn hints(
        &self,
        available: &BTreeSet<String>,
        reusable: &BTreeSet<String>,
        requested: usize,
        numa_nodes: &BTreeSet<u32>,
    ) -> Vec<Hint> {
        let mut considered: BTreeSet<u32> = self.devices.values().flat_map(nodes).collect();
        considered.retain(|node| numa_nodes.contains(node));
        if considered.is_empty() {
            considered.clone_from(numa_nodes);
        }
        let in_mask = |mask: NumaMask, ids: &BTreeSet<String>| {
            let devices = ids.iter().filter_map(|id| self.devices.get(id));
            devices.filter(|device| is_in(device, mask)).count()
        };
        let reused: BTreeSet<String> = {
            let has_topology = |id: &&String| self.devices.get(*id).is_some_and(|d| !d.numa_nodes.is_empty());
            reusable.iter().filter(has_topology).cloned().collect()
        };
        let all: BTreeSet<String> = self.devices.keys().cloned().collect();
        let mut least = u32::try_from(considered.len()).unwrap_or(u32::MAX);
        let mut masks = Vec::new();
        for mask in masks_of(&considered) {
            if in_mask(mask, &all) >= requested {
                least = least.min(mask.count());
            }
            let has_reused = in_mask(mask, &reused) == reused.len();
            if has_reused && reused.len() + in_mask(mask, available) >= requested {
                masks.push(mask);
            }
        }
        let hint = |mask: NumaMask| Hint {
            affinity: Some(mask),
            is_preferred: mask.count() == least,
        };
        masks.into_iter().map(hint).collect()
    }
}

impl DeviceManager {
    /// The topology hints of a container's devices; `numa_nodes` are the NUMA nodes of the node.
    pub fn hints(&self, pod: &Pod, container: &Container, numa_nodes: &BTreeSet<u32>) -> ProviderHints {
        let requests = self.requests(pod, container).into_iter();
        let hints = requests.map(|(resource, requested)| {
            let own = self.assigned.devices_of(&uid(pod), &container.name, &resource);
            let reusable = self.assigned.reusable(pod, &container.name, &resource);
            let hints = self.hints_of(&resource, own, &reusable, requested, numa_nodes);
            (resource, hints)
        });
        hints.collect()
    }

    /// The topology hints of all of a pod's devices.
    pub fn pod_hints(&self, pod: &Pod, numa_nodes: &BTreeSet<u32>) -> ProviderHints {
        let mut by_container: BTreeMap<&str, BTreeMap<String, usize>> = BTreeMap::new();
        let mut resources = BTreeSet::new();
        for container in guaranteed::containers(pod) {
            let requests: BTreeMap<String, usize> = self.requests(pod, container).into_iter().collect();
            resources.extend(requests.keys().cloned());
            by_container.insert(&container.name, requests);
        }
        let hints = resources.into_iter().map(|resource| {
            let of = |container: &Container| {
                let requests = by_container.get(container.name.as_str());
                let count = requests.and_then(|of| of.get(&resource)).copied().unwrap_or(0);
                u64::try_from(count).unwrap_or(u64::MAX)
            };
            let requested = usize::try_from(guaranteed::most_at_a_time(pod, of)).unwrap_or(usize::MAX);
            let own: BTreeSet<String> = guaranteed::containers(pod)
                .filter_map(|c| self.assigned.devices_of(&uid(pod), &c.name, &resource))
                .flatten()
                .collect();
            let own = (!own.is_empty()).then_some(own);
            let hints = self.hints_of(&resource, own, &BTreeSet::new(), requested, numa_nodes);
            (resource, hints)
        });
        hints.collect()
    }

    fn hints_of(
        &self,
        resource: &str,
        own: Option<BTreeSet<String>>,
        reusable: &BTreeSet<String>,
        requested: usize,
        numa_nodes: &BTreeSet<u32>,
    ) -> Option<Vec<Hint>> {
        let known = self
            .resources
            .get(resource)
            .filter(|known| known.has_topology())?;
        if let Some(own) = own {
            return Some(match own.len() == requested {
                true => known.hints(&own, &BTreeSet::new(), requested, numa_nodes),
                false => Vec::new(),
            });
        }
        let in_use = self.in_use(resource);
        let available: BTreeSet<String> = known.healthy.difference(&in_use).cloned().collect();
        match available.union(reusable).count() < requested {
            true => Some(Vec::new()),
            false => Some(known.hints(&available, reusable, requested, numa_nodes)),
        }
    }
}
