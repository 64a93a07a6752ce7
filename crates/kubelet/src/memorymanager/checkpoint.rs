//! `memory_manager_state`: the state as v1.36's kubelet writes it, with its checksum, so that either reads the other's file.

use std::collections::BTreeMap;

use knarr_apimachinery::ids::PodUid;
use serde::{Deserialize, Serialize};

use super::state::{Block, MachineState, NodeState, State, Table};
use crate::checksum::fnv32a;

/// In the kubelet's directory.
pub const FILE: &str = "memory_manager_state";
const STATIC: &str = "Static";

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Checkpoint {
    policy_name: String,
    machine_state: MachineState,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<PodUid, BTreeMap<String, Vec<Block>>>,
    checksum: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the checkpoint")]
    Json(#[from] serde_json::Error),
    #[error("checkpoint is corrupted")]
    Checksum,
    #[error("[memorymanager] configured policy {STATIC:?} differs from state checkpoint policy {0:?}")]
    OtherPolicy(String),
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(" ")
}

fn numbers(of: &[u32]) -> String {
    joined(of.iter().map(u32::to_string))
}

impl Checkpoint {
    /// Over the Go structures as the kubelet's checkpoint manager prints them.
    fn checksum(&self) -> u64 {
        let table = |(resource, t): (&String, &Table)| {
            format!(
                "{resource}:<*>{{TotalMemSize:(uint64){} SystemReserved:(uint64){} Allocatable:(uint64){} \
                 Reserved:(uint64){} Free:(uint64){}}}",
                t.total, t.system_reserved, t.allocatable, t.reserved, t.free
            )
        };
        let node = |(id, node): (&u32, &NodeState)| {
            format!(
                "{id}:<*>{{NumberOfAssignments:(int){} MemoryMap:(map[v1.ResourceName]*state.MemoryTable)map[{}] \
                 Cells:([]int)[{}]}}",
                node.number_of_assignments,
                joined(node.memory_map.iter().map(table)),
                numbers(&node.cells)
            )
        };
        let block = |b: &Block| {
            format!(
                "{{NUMAAffinity:([]int)[{}] Type:(v1.ResourceName){} Size:(uint64){}}}",
                numbers(&b.nodes),
                b.resource,
                b.bytes
            )
        };
        let container =
            |(name, blocks): (&String, &Vec<Block>)| format!("{name}:[{}]", joined(blocks.iter().map(block)));
        let pod = |(uid, of): (&PodUid, &BTreeMap<String, Vec<Block>>)| {
            format!("{uid}:map[{}]", joined(of.iter().map(container)))
        };
        let text = format!(
            "(*state.MemoryManagerCheckpoint){{PolicyName:(string){} MachineState:(state.NUMANodeMap)map[{}] \
             Entries:(state.ContainerMemoryAssignments)map[{}] Checksum:(checksum.Checksum)0}}",
            self.policy_name,
            joined(self.machine_state.iter().map(node)),
            joined(self.entries.iter().map(pod))
        );
        u64::from(fnv32a(&text))
    }
}

/// The file's content with the static policy.
pub fn encode(state: &State) -> Result<Vec<u8>, Error> {
    let mut checkpoint = Checkpoint {
        policy_name: STATIC.into(),
        machine_state: state.machine.clone(),
        entries: state.assigned.clone(),
        checksum: 0,
    };
    checkpoint.checksum = checkpoint.checksum();
    Ok(serde_json::to_vec(&checkpoint)?)
}

/// Reads a file that a kubelet with the static policy has written.
pub fn decode(bytes: &[u8]) -> Result<State, Error> {
    let checkpoint: Checkpoint = serde_json::from_slice(bytes)?;
    // Files of old kubelets have no checksum.
    if checkpoint.checksum != 0 && checkpoint.checksum != checkpoint.checksum() {
        return Err(Error::Checksum);
    }
    if checkpoint.policy_name != STATIC {
        return Err(Error::OtherPolicy(checkpoint.policy_name));
    }
    Ok(State {
        machine: checkpoint.machine_state,
        assigned: checkpoint.entries,
    })
}
