//! The reserved memory of each NUMA node, and the containers that it is reserved for.

use std::collections::BTreeMap;

use knarr_apimachinery::ids::PodUid;
use serde::{Deserialize, Serialize};

/// Memory that is assigned to a container from a group of NUMA nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    #[serde(rename = "numaAffinity")]
    pub nodes: Vec<u32>,
    /// `memory` or a size of huge pages.
    #[serde(rename = "type")]
    pub resource: String,
    #[serde(rename = "size")]
    pub bytes: u64,
}

/// One resource of a NUMA node, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Table {
    pub total: u64,
    pub system_reserved: u64,
    pub allocatable: u64,
    pub reserved: u64,
    pub free: u64,
}

impl Table {
    pub(super) fn new(total: u64, system_reserved: u64, allocatable: u64) -> Self {
        Table {
            total,
            system_reserved,
            allocatable,
            reserved: 0,
            free: allocatable,
        }
    }

    /// Reserves as much as is free; the rest comes from another NUMA node.
    fn reserve(&mut self, bytes: u64) -> u64 {
        let taken = bytes.min(self.free);
        self.free -= taken;
        self.reserved = self.reserved.saturating_add(taken);
        bytes - taken
    }

    fn release(&mut self, bytes: u64) -> u64 {
        let released = bytes.min(self.reserved);
        self.reserved -= released;
        self.free = self.free.saturating_add(released);
        bytes - released
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeState {
    /// The number of blocks that use the NUMA node.
    pub number_of_assignments: u64,
    pub memory_map: BTreeMap<String, Table>,
    /// The node's group: the nodes that it is assigned together with.
    pub cells: Vec<u32>,
}

/// By NUMA node.
pub type MachineState = BTreeMap<u32, NodeState>;

/// The memory manager's state. Assignments are by pod UID and container name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub machine: MachineState,
    pub assigned: BTreeMap<PodUid, BTreeMap<String, Vec<Block>>>,
}

/// Why a checkpoint's state does not match this node, with v1.36's messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    #[error("[memorymanager] machine state can not be empty when it has memory assignments")]
    EmptyMachine,
    #[error(
        "[memorymanager] (pod: {0}, container: {1}) the memory assignment uses the NUMA that does not exist"
    )]
    NoNode(PodUid, String),
    #[error(
        "[memorymanager] (pod: {0}, container: {1}) the memory assignment uses memory resource that does not exist"
    )]
    NoResource(PodUid, String),
    #[error("[memorymanager] the expected machine state is different from the real one")]
    OtherMachine,
}

/// Assigns a block: its NUMA nodes become a group. `bytes` are reserved; reused memory of init containers is reserved
/// already.
pub(super) fn assign(machine: &mut MachineState, nodes: &[u32], resource: &str, mut bytes: u64) {
    for node in nodes {
        let Some(state) = machine.get_mut(node) else {
            continue;
        };
        state.number_of_assignments = state.number_of_assignments.saturating_add(1);
        state.cells = nodes.to_vec();
        if let Some(table) = state.memory_map.get_mut(resource) {
            bytes = table.reserve(bytes);
        }
    }
}

impl State {
    pub fn of_container(&self, uid: &PodUid, container: &str) -> Option<&Vec<Block>> {
        self.assigned.get(uid)?.get(container)
    }

    /// Releases a container's memory; returns whether it had any.
    pub fn release(&mut self, uid: &PodUid, container: &str) -> bool {
        let Some(containers) = self.assigned.get_mut(uid) else {
            return false;
        };
        let blocks = containers.remove(container);
        if containers.is_empty() {
            self.assigned.remove(uid);
        }
        for block in blocks.iter().flatten() {
            let mut bytes = block.bytes;
            for node in &block.nodes {
                let Some(state) = self.machine.get_mut(node) else {
                    continue;
                };
                state.number_of_assignments = state.number_of_assignments.saturating_sub(1);
                if state.number_of_assignments == 0 {
                    state.cells = vec![*node];
                }
                if let Some(table) = state.memory_map.get_mut(&block.resource) {
                    bytes = table.release(bytes);
                }
            }
        }
        blocks.is_some()
    }

    /// Checks a restored state against `fresh`, the node without pods; an empty one becomes `fresh`.
    pub(super) fn validated(mut self, fresh: MachineState) -> Result<State, StateError> {
        if self.machine.is_empty() {
            if !self.assigned.is_empty() {
                return Err(StateError::EmptyMachine);
            }
            self.machine = fresh;
            return Ok(self);
        }
        let mut expected = fresh;
        for (uid, containers) in &self.assigned {
            for (container, blocks) in containers {
                let whose = || (uid.clone(), container.clone());
                for block in blocks {
                    for node in &block.nodes {
                        let (uid, container) = whose();
                        let Some(state) = expected.get(node) else {
                            return Err(StateError::NoNode(uid, container));
                        };
                        if !state.memory_map.contains_key(&block.resource) {
                            return Err(StateError::NoResource(uid, container));
                        }
                    }
                    assign(&mut expected, &block.nodes, &block.resource, block.bytes);
                }
            }
        }
        match is_same(&self.machine, &expected) {
            true => Ok(self),
            false => Err(StateError::OtherMachine),
        }
    }
}

fn sorted(cells: &[u32]) -> Vec<u32> {
    let mut cells = cells.to_vec();
    cells.sort_unstable();
    cells
}

pub(super) fn is_same_group(a: &[u32], b: &[u32]) -> bool {
    sorted(a) == sorted(b)
}

/// Reservations are compared by group: their distribution within a group depends on the order of assignments.
fn is_same(a: &MachineState, b: &MachineState) -> bool {
    let in_group = |machine: &MachineState, cells: &[u32], resource: &str| -> (u64, u64) {
        let tables = cells
            .iter()
            .filter_map(|node| machine.get(node)?.memory_map.get(resource));
        tables.fold((0, 0), |(free, reserved), table| {
            (
                table.free.saturating_add(free),
                table.reserved.saturating_add(reserved),
            )
        })
    };
    let fixed = |table: &Table| (table.total, table.system_reserved, table.allocatable);
    let is_same_node = |node: &u32, of_a: &NodeState| {
        let Some(of_b) = b.get(node) else { return false };
        of_a.number_of_assignments == of_b.number_of_assignments
            && is_same_group(&of_a.cells, &of_b.cells)
            && of_a.memory_map.len() == of_b.memory_map.len()
            && of_a.memory_map.iter().all(|(resource, table)| {
                let other = of_b.memory_map.get(resource);
                other.is_some_and(|other| fixed(other) == fixed(table))
                    && in_group(a, &of_a.cells, resource) == in_group(b, &of_a.cells, resource)
            })
    };
    a.len() == b.len() && a.iter().all(|(node, state)| is_same_node(node, state))
}
