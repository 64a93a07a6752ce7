//! The memory manager: the NUMA nodes of containers' memory and huge pages.
//!
//! With the policy `Static` the memory of Guaranteed pods is reserved on NUMA nodes. This is the deciding half: it keeps the
//! tables of the NUMA nodes; `knarr-node` sets `cpuset.mems` and writes the checkpoint. NUMA nodes whose memory is assigned
//! together are a group, and no container gets memory of a part of a group.

pub mod checkpoint;
mod hints;
mod policy;
mod reserved;
mod state;
#[cfg(test)]
mod tests;

pub use policy::{AllocationError, MemoryManager, PolicyError};
pub use reserved::{NodeMemory, ReservedError, ReservedMemory, reserved_on};
pub use state::{Block, MachineState, NodeState, State, StateError, Table};

/// The resource that is managed in addition to huge pages (`hugepages-2Mi`).
pub const MEMORY: &str = "memory";
