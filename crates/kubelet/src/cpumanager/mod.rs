//! The CPU manager: exclusive CPUs of containers.
//!
//! With the policy `static` containers of Guaranteed pods that request an integer number of CPUs get exclusive CPUs, and all
//! others share the rest. This is the deciding half: it chooses CPUs by the node's topology and keeps the state;
//! `knarr-node` sets containers' cpusets and writes the checkpoint. A CPU is never assigned to two containers, except that a
//! container may reuse those of a finished init container of its pod.

mod assignment;
pub mod checkpoint;
pub mod cpuset;
mod distribution;
mod options;
mod policy;
#[cfg(test)]
mod policy_tests;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

pub use assignment::{NotEnough, Sorting, take_packed};
pub use cpuset::CpuSet;
pub use distribution::take_distributed;
pub use options::{Gates, OptionError, Options};
pub use policy::{Allocated, AllocationError, CpuManager, PolicyError, Settings};
pub use state::{State, StateError};

/// The location of a CPU. Core, socket and cache ids are unique on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    pub core: u32,
    pub socket: u32,
    pub numa_node: u32,
    /// The last-level cache.
    pub uncore_cache: u32,
}

/// The levels of the topology that CPUs are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    NumaNode,
    Socket,
    UncoreCache,
    Core,
}

/// The CPUs of a node.
#[derive(Clone, Debug, Default)]
pub struct CpuTopology(BTreeMap<u32, Cpu>);

impl CpuTopology {
    pub fn new(cpus: BTreeMap<u32, Cpu>) -> CpuTopology {
        CpuTopology(cpus)
    }

    pub fn get(&self, cpu: u32) -> Option<&Cpu> {
        self.0.get(&cpu)
    }

    pub fn cpus(&self) -> BTreeSet<u32> {
        self.0.keys().copied().collect()
    }

    pub(crate) fn id(&self, cpu: u32, level: Level) -> Option<u32> {
        let of = self.get(cpu)?;
        Some(match level {
            Level::NumaNode => of.numa_node,
            Level::Socket => of.socket,
            Level::UncoreCache => of.uncore_cache,
            Level::Core => of.core,
        })
    }

    /// The CPUs of a group.
    pub(crate) fn cpus_in(&self, level: Level, id: u32) -> BTreeSet<u32> {
        let all = self.0.keys().copied();
        all.filter(|cpu| self.id(*cpu, level) == Some(id)).collect()
    }

    /// The ids of a level's groups.
    pub(crate) fn ids(&self, level: Level) -> BTreeSet<u32> {
        self.0.keys().filter_map(|cpu| self.id(*cpu, level)).collect()
    }

    /// The number of groups on the node.
    pub(crate) fn count(&self, level: Level) -> usize {
        self.ids(level).len()
    }

    /// The average, rounded down.
    pub(crate) fn cpus_per(&self, level: Level) -> usize {
        self.0.len() / self.count(level).max(1)
    }
}
