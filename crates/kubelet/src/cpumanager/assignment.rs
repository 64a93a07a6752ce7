//! Taking CPUs so that as few NUMA nodes, sockets, caches and cores as possible are shared (`cpu_assignment.go`).
//!
//! Larger groups are taken whole first; of two groups the one with fewer free CPUs, then the lower id.

use std::collections::{BTreeMap, BTreeSet};

use super::{CpuTopology, Level};

/// In what order single CPUs are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sorting {
    /// All threads of a core, then the next core.
    #[default]
    Packed,
    /// One thread of each core first (`distribute-cpus-across-cores`).
    Spread,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not enough cpus available to satisfy request: requested={requested}, available={available}")]
pub struct NotEnough {
    pub requested: usize,
    pub available: usize,
}

/// Takes `count` of the available CPUs from as few groups as possible. CPUs that the node does not have are ignored.
pub fn take_packed(
    topology: &CpuTopology,
    available: &BTreeSet<u32>,
    count: usize,
    sorting: Sorting,
    aligns_by_uncore_cache: bool,
) -> Result<BTreeSet<u32>, NotEnough> {
    let mut cpus = Accumulator::new(topology, available, count);
    if count > cpus.free.len() {
        return Err(NotEnough {
            requested: count,
            available: available.len(),
        });
    }
    let levels = match cpus.is_numa_first() {
        true => [Level::NumaNode, Level::Socket],
        false => [Level::Socket, Level::NumaNode],
    };
    levels.into_iter().for_each(|level| cpus.take_full(level));
    if aligns_by_uncore_cache {
        cpus.take_uncore_caches();
    }
    if sorting == Sorting::Packed {
        cpus.take_full(Level::Core);
    }
    let remaining = cpus.sorted_cpus(sorting);
    cpus.take(remaining.into_iter().take(cpus.needed).collect());
    Ok(cpus.taken)
}

/// CPUs that are being taken.
pub(super) struct Accumulator<'a> {
    pub topology: &'a CpuTopology,
    pub free: BTreeSet<u32>,
    pub taken: BTreeSet<u32>,
    pub needed: usize,
}

impl<'a> Accumulator<'a> {
    pub fn new(topology: &'a CpuTopology, available: &BTreeSet<u32>, count: usize) -> Self {
        Accumulator {
            topology,
            free: available.intersection(&topology.cpus()).copied().collect(),
            taken: BTreeSet::new(),
            needed: count,
        }
    }

    /// Whether a NUMA node has whole sockets, not a socket whole NUMA nodes.
    fn is_numa_first(&self) -> bool {
        self.topology.count(Level::Socket) >= self.topology.count(Level::NumaNode)
    }

    pub fn free_in(&self, level: Level, id: u32) -> BTreeSet<u32> {
        let cpus = self.free.iter().copied();
        cpus.filter(|cpu| self.topology.id(*cpu, level) == Some(id))
            .collect()
    }

    /// The groups of these CPUs, by the number of free CPUs and the id.
    fn groups(&self, cpus: &BTreeSet<u32>, level: Level) -> Vec<u32> {
        let mut free: BTreeMap<u32, usize> = BTreeMap::new();
        for id in self.free.iter().filter_map(|cpu| self.topology.id(*cpu, level)) {
            *free.entry(id).or_default() += 1;
        }
        let ids: BTreeSet<u32> = cpus
            .iter()
            .filter_map(|cpu| self.topology.id(*cpu, level))
            .collect();
        let mut ids: Vec<u32> = ids.into_iter().collect();
        ids.sort_by_key(|id| (free.get(id).copied(), *id));
        ids
    }

    /// The groups of one level, in the order of the groups of another.
    fn groups_within(&self, outer: Level, level: Level) -> Vec<u32> {
        let outer_ids = self.sorted(outer).into_iter();
        outer_ids
            .flat_map(|id| self.groups(&self.free_in(outer, id), level))
            .collect()
    }

    /// All groups with free CPUs, in the order in which they are taken.
    pub fn sorted(&self, level: Level) -> Vec<u32> {
        match (level, self.is_numa_first()) {
            (Level::NumaNode, true) | (Level::Socket, false) => self.groups(&self.free, level),
            (Level::NumaNode, false) => self.groups_within(Level::Socket, level),
            (Level::Socket, true) | (Level::UncoreCache, _) => self.groups_within(Level::NumaNode, level),
            (Level::Core, true) => self.groups_within(Level::Socket, level),
            (Level::Core, false) => self.groups_within(Level::NumaNode, level),
        }
    }

    fn sorted_cpus(&self, sorting: Sorting) -> Vec<u32> {
        let level = match sorting {
            Sorting::Packed => Level::Core,
            Sorting::Spread => Level::Socket,
        };
        let ids = self.sorted(level).into_iter();
        ids.flat_map(|id| self.free_in(level, id)).collect()
    }

    pub fn take(&mut self, cpus: BTreeSet<u32>) {
        for cpu in cpus {
            if self.free.remove(&cpu) {
                self.taken.insert(cpu);
                self.needed = self.needed.saturating_sub(1);
            }
        }
    }

    fn size(&self, level: Level, id: u32) -> usize {
        match level {
            Level::Core | Level::Socket => self.topology.cpus_per(level),
            Level::NumaNode | Level::UncoreCache => {
                let all = self.topology.0.keys();
                all.filter(|cpu| self.topology.id(**cpu, level) == Some(id))
                    .count()
            }
        }
    }

    /// Takes completely free groups, while as many CPUs are needed.
    fn take_full(&mut self, level: Level) {
        for id in self.sorted(level) {
            let free = self.free_in(level, id);
            if free.len() == self.size(level, id) && free.len() <= self.needed {
                self.take(free);
            }
        }
    }

    fn take_uncore_caches(&mut self) {
        let size = self.topology.cpus_per(Level::UncoreCache);
        for id in self.sorted(Level::UncoreCache) {
            if self.needed >= size {
                self.take_full(Level::UncoreCache);
            }
            if self.needed == 0 {
                return;
            }
            self.take_part_of_uncore_cache(id);
        }
    }

    /// Takes the CPUs that are still needed from one cache, if it has enough.
    fn take_part_of_uncore_cache(&mut self, id: u32) {
        let per_core = self.topology.cpus_per(Level::Core).max(1);
        let free = self.free_in(Level::UncoreCache, id);
        let core = |cpu: &u32| self.topology.id(*cpu, Level::Core);
        let cores: BTreeSet<u32> = free.iter().filter_map(core).collect();
        let cores: BTreeSet<u32> = cores.into_iter().take(self.needed.div_ceil(per_core)).collect();
        let is_of = |cpu: &&u32| core(cpu).is_some_and(|c| cores.contains(&c));
        let mut cpus: BTreeSet<u32> = self.free.iter().filter(is_of).copied().collect();
        if !self.needed.is_multiple_of(2) && per_core > 1 && cpus.len() > self.needed {
            cpus.pop_last();
        }
        if cpus.len() == self.needed {
            self.take(cpus);
        }
    }
}
