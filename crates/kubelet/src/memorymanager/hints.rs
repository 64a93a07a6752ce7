//! The sets of NUMA nodes from which memory can be assigned.

use std::collections::BTreeMap;

use super::state::{MachineState, is_same_group};
use crate::guaranteed::MemoryRequests;
use crate::topologymanager::{Hint, NumaMask, masks_of};

/// Memory of finished init containers that later containers of the pod can reuse: bytes by NUMA nodes and resource.
pub(super) type Reusable = BTreeMap<(NumaMask, String), u64>;

fn sum(machine: &MachineState, mask: NumaMask, resource: &str, of: impl Fn(&super::Table) -> u64) -> u64 {
    let tables = mask
        .nodes()
        .filter_map(|node| machine.get(&node)?.memory_map.get(resource));
    tables.map(of).fold(0, u64::saturating_add)
}

/// Whether this much is free on the NUMA nodes.
pub(super) fn satisfies(machine: &MachineState, mask: NumaMask, requests: &MemoryRequests) -> bool {
    let mut requests = requests.iter();
    requests.all(|(resource, bytes)| sum(machine, mask, resource, |t| t.free) >= *bytes)
}

/// Whether a NUMA node of the set belongs to a group that is not the set.
pub(super) fn violates_groups(machine: &MachineState, mask: NumaMask) -> bool {
    let nodes: Vec<u32> = mask.nodes().collect();
    let is_single = nodes.len() == 1;
    let mut used = nodes
        .iter()
        .filter_map(|node| machine.get(node))
        .filter(|n| n.number_of_assignments > 0);
    !is_single && used.any(|n| !is_same_group(&n.cells, &nodes))
}

/// The hints of all resources together: memory and huge pages come from the same nodes.
pub(super) fn all(machine: &MachineState, requests: &MemoryRequests, reusable: &Reusable) -> Vec<Hint> {
    let mut least = u32::try_from(machine.len()).unwrap_or(u32::MAX);
    let mut fitting = Vec::new();
    for mask in masks_of(machine.keys()) {
        let mut needs = requests.iter();
        if !needs.all(|(resource, bytes)| sum(machine, mask, resource, |t| t.allocatable) >= *bytes) {
            continue;
        }
        least = least.min(mask.count());
        let mut only = mask.nodes().filter_map(|node| machine.get(&node));
        let is_of_group = mask.count() == 1 && only.any(|node| node.cells.len() > 1);
        let has_room = |(resource, bytes): (&String, &u64)| {
            let left = reusable.get(&(mask, resource.clone())).copied().unwrap_or(0);
            sum(machine, mask, resource, |t| t.free).saturating_add(left) >= *bytes
        };
        if !is_of_group && !violates_groups(machine, mask) && requests.iter().all(has_room) {
            fitting.push(mask);
        }
    }
    let hint = |mask: NumaMask| Hint {
        affinity: Some(mask),
        is_preferred: mask.count() == least,
    };
    fitting.into_iter().map(hint).collect()
}

/// The narrowest of the preferred hints, else of all.
pub(super) fn best(hints: impl IntoIterator<Item = Hint>) -> Option<Hint> {
    hints
        .into_iter()
        .min_by_key(|hint| (!hint.is_preferred, hint.affinity.map(|mask| (mask.count(), mask))))
}
