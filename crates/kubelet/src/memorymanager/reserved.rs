//! The memory of each NUMA node that is reserved for the system (`reservedMemory`).

use std::collections::{BTreeMap, BTreeSet};

use knarr_api::kinds::pod::resources::is_hugepages;

use super::MEMORY;
use super::state::{MachineState, NodeState, Table};

/// The memory of one NUMA node, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMemory {
    pub memory: u64,
    /// By resource (`hugepages-2Mi`).
    pub huge_pages: BTreeMap<String, u64>,
}

/// One entry of `reservedMemory`: bytes by resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservedMemory {
    pub numa_node: u32,
    pub limits: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservedError {
    #[error(
        "the reserved memory configuration references a NUMA node {0} that does not exist on this machine"
    )]
    NoNode(u32),
    #[error(
        "the total amount {reserved:?} of type {resource:?} is not equal to the value {allocatable:?} determined by \
         Node Allocatable feature"
    )]
    NotEqual {
        reserved: String,
        resource: String,
        allocatable: String,
    },
}

/// The reservation on each NUMA node. The sums have to equal the difference between capacity and Node Allocatable.
pub fn reserved_on(
    nodes: &BTreeMap<u32, NodeMemory>,
    withheld: &BTreeMap<String, u64>,
    reserved: &[ReservedMemory],
) -> Result<BTreeMap<u32, BTreeMap<String, u64>>, ReservedError> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    let mut by_node: BTreeMap<u32, BTreeMap<String, u64>> = BTreeMap::new();
    for entry in reserved {
        if !nodes.contains_key(&entry.numa_node) {
            return Err(ReservedError::NoNode(entry.numa_node));
        }
        let of_node = by_node.entry(entry.numa_node).or_default();
        for (resource, bytes) in &entry.limits {
            let sum = sums.entry(resource.clone()).or_default();
            *sum = sum.saturating_add(*bytes);
            of_node.insert(resource.clone(), *bytes);
        }
    }
    let is_memory = |name: &&str| *name == MEMORY || is_hugepages(name);
    let mut resources: BTreeSet<&str> = sums.keys().map(String::as_str).collect();
    resources.extend(withheld.keys().map(String::as_str).filter(is_memory));
    for resource in resources {
        let (reserved, allocatable) = (
            sums.get(resource).copied().unwrap_or(0),
            withheld.get(resource).copied().unwrap_or(0),
        );
        if reserved != allocatable {
            return Err(ReservedError::NotEqual {
                reserved: reserved.to_string(),
                resource: resource.to_string(),
                allocatable: allocatable.to_string(),
            });
        }
    }
    Ok(by_node)
}

/// The tables of a node without pods.
pub(super) fn fresh(
    nodes: &BTreeMap<u32, NodeMemory>,
    reserved: &BTreeMap<u32, BTreeMap<String, u64>>,
) -> MachineState {
    let of_node = |(node, has): (&u32, &NodeMemory)| {
        let reserved = |resource: &str| {
            let of_node = reserved.get(node);
            of_node.and_then(|of| of.get(resource)).copied().unwrap_or(0)
        };
        let huge: u64 = has.huge_pages.values().sum();
        let free_of_huge = has.memory.saturating_sub(huge);
        let table = |resource: &str, total: u64, usable: u64| {
            let reserved = reserved(resource);
            let table = Table::new(total, reserved, usable.saturating_sub(reserved));
            (resource.to_string(), table)
        };
        let huge = has
            .huge_pages
            .iter()
            .map(|(resource, bytes)| table(resource, *bytes, *bytes));
        let state = NodeState {
            number_of_assignments: 0,
            memory_map: huge.chain([table(MEMORY, has.memory, free_of_huge)]).collect(),
            cells: vec![*node],
        };
        (*node, state)
    };
    nodes.iter().map(of_node).collect()
}
