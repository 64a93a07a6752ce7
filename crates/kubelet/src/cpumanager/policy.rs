//! The policies: `none` assigns nothing, `static` assigns exclusive CPUs to containers of Guaranteed pods
//! (`policy_static.go`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::PodUid;

use super::assignment::{NotEnough, Sorting, take_packed};
use super::cpuset::{self, CpuSet};
use super::distribution::take_distributed;
use super::options::{OptionError, Options};
use super::state::{State, StateError};
use super::{CpuTopology, Level};
use crate::admission::Rejection;
use crate::guaranteed::{self, uid};
use crate::topologymanager::{Hint, NumaMask, ProviderHints, masks_of};

const CPU: &str = "cpu";

/// The settings of the static policy.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub options: Options,
    /// `systemReserved` and `kubeReserved` together, in millicores.
    pub reserved_milli_cpus: i64,
    /// `reservedSystemCPUs`; empty: the first ones by the topology.
    pub reserved: CpuSet,
    /// Whether the topology manager's policy is `single-numa-node`.
    pub is_single_numa_node: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("could not detect number of cpus")]
    NoCpus,
    #[error(transparent)]
    Options(#[from] OptionError),
    #[error(
        "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"
    )]
    NoneReserved,
    #[error(
        "[cpumanager] unable to reserve the required amount of CPUs (size of {reserved} did not equal {count})"
    )]
    CannotReserve { reserved: String, count: usize },
    #[error("invalid state, please drain node and remove policy state file")]
    State(#[source] StateError),
}

/// Why a container does not get its CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    #[error("SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {per_core}")]
    NotWholeCores { requested: usize, per_core: usize },
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, \
         requested CPUs = {requested}, CPUs per core = {per_core}"
    )]
    NotEnoughCores {
        available: usize,
        requested: usize,
        per_core: usize,
    },
    #[error(transparent)]
    NotEnough(#[from] NotEnough),
}

impl From<AllocationError> for Rejection {
    fn from(error: AllocationError) -> Self {
        match error {
            AllocationError::NotEnough(error) => crate::topologymanager::unexpected(&error),
            of_cores => Rejection::new("SMTAlignmentError", of_cores.to_string()),
        }
    }
}

/// The result of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocated {
    /// The container uses the shared pool.
    Shared,
    /// It has exclusive CPUs already.
    Existing,
    New {
        is_uncore_aligned: bool,
    },
}

#[derive(Clone, Debug)]
struct Static {
    topology: CpuTopology,
    options: Options,
    reserved: CpuSet,
    /// All threads of the cores of reserved CPUs.
    reserved_cores: CpuSet,
}

/// The CPU manager. [`Default`] is the policy `none`.
#[derive(Clone, Debug, Default)]
pub struct CpuManager {
    policy: Option<Static>,
    state: State,
}

impl CpuManager {
    /// The static policy, with the state of the checkpoint.
    pub fn new_static(
        topology: CpuTopology,
        settings: Settings,
        restored: State,
    ) -> Result<Self, PolicyError> {
        let options = settings.options;
        options.validate(&topology, settings.is_single_numa_node)?;
        let all = topology.cpus();
        if all.is_empty() {
            return Err(PolicyError::NoCpus);
        }
        let count = usize::try_from(settings.reserved_milli_cpus.max(0)).unwrap_or(usize::MAX);
        let count = count.div_ceil(1000);
        if count == 0 {
            return Err(PolicyError::NoneReserved);
        }
        let mut policy = Static {
            topology,
            options,
            reserved: settings.reserved,
            reserved_cores: CpuSet::new(),
        };
        if policy.reserved.is_empty() {
            policy.reserved = policy.take(&all, count).unwrap_or_default();
        }
        if policy.reserved.len() != count || !policy.reserved.is_subset(&all) {
            let reserved = cpuset::format(&policy.reserved);
            return Err(PolicyError::CannotReserve { reserved, count });
        }
        policy.reserved_cores = policy.cores_of(&policy.reserved);
        let state = restored.validated(&all, &policy.reserved, options.strict_reservation);
        Ok(CpuManager {
            policy: Some(policy),
            state: state.map_err(PolicyError::State)?,
        })
    }

    pub fn is_static(&self) -> bool {
        self.policy.is_some()
    }

    pub fn options(&self) -> Options {
        self.policy.as_ref().map_or_else(Options::default, |p| p.options)
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    /// The CPUs that can be assigned: all that are not reserved.
    pub fn allocatable(&self) -> CpuSet {
        let policy = self.policy.iter();
        policy
            .flat_map(|p| {
                p.topology
                    .cpus()
                    .into_iter()
                    .filter(|cpu| !p.reserved.contains(cpu))
            })
            .collect()
    }

    /// The allocatable CPUs that are not exclusive to a container.
    pub fn available(&self) -> CpuSet {
        let reserved = |cpu: &&u32| self.policy.as_ref().is_some_and(|p| p.reserved.contains(*cpu));
        self.state
            .default
            .iter()
            .filter(|cpu| !reserved(cpu))
            .copied()
            .collect()
    }

    /// The number of exclusive CPUs of each NUMA node.
    pub fn exclusive_by_numa_node(&self) -> BTreeMap<u32, usize> {
        let mut all = BTreeMap::new();
        let Some(policy) = &self.policy else { return all };
        for cpu in self.state.exclusive() {
            if let Some(node) = policy.topology.id(cpu, Level::NumaNode) {
                *all.entry(node).or_default() += 1;
            }
        }
        all
    }

    /// A container's exclusive CPUs.
    pub fn exclusive(&self, uid: &PodUid, container: &str) -> Option<&CpuSet> {
        self.state.of_container(uid, container)
    }

    pub fn has_exclusive(&self, uid: &PodUid) -> bool {
        self.state.assigned.get(uid).is_some_and(|of| !of.is_empty())
    }

    /// The CPUs on which a container may run: its exclusive ones, else the shared pool. `None` with the policy `none`.
    pub fn affinity(&self, uid: &PodUid, container: &str) -> Option<&CpuSet> {
        self.policy.as_ref()?;
        Some(self.exclusive(uid, container).unwrap_or(&self.state.default))
    }

    /// The topology hints of a container's CPUs.
    pub fn hints(&self, pod: &Pod, container: &Container) -> ProviderHints {
        let requested = match guaranteed::qualifies(pod) {
            true => guaranteed::cpus(container),
            false => 0,
        };
        let Some(policy) = self.policy.as_ref().filter(|_| requested > 0) else {
            return ProviderHints::new();
        };
        let hints = match self.exclusive(&uid(pod), &container.name) {
            Some(own) if own.len() != requested => Vec::new(),
            Some(own) => policy.hints(own, &CpuSet::new(), requested),
            None => {
                let reusable = self.reusable(pod, &container.name);
                policy.hints(&self.available(), &reusable, requested)
            }
        };
        ProviderHints::from([(CPU.to_string(), Some(hints))])
    }

    /// The topology hints of all of a pod's CPUs.
    pub fn pod_hints(&self, pod: &Pod) -> ProviderHints {
        let of = |c: &Container| u64::try_from(guaranteed::cpus(c)).unwrap_or(0);
        let requested = match guaranteed::qualifies(pod) {
            true => usize::try_from(guaranteed::most_at_a_time(pod, of)).unwrap_or(usize::MAX),
            false => 0,
        };
        let Some(policy) = self.policy.as_ref().filter(|_| requested > 0) else {
            return ProviderHints::new();
        };
        let mut assigned = CpuSet::new();
        let mut is_changed = false;
        for container in guaranteed::containers(pod) {
            if let Some(own) = self.exclusive(&uid(pod), &container.name) {
                is_changed |= own.len() != guaranteed::cpus(container);
                assigned.extend(own);
            }
        }
        let hints = match assigned.len() == requested {
            _ if is_changed => Vec::new(),
            true => policy.hints(&assigned, &CpuSet::new(), requested),
            false => policy.hints(&self.available(), &assigned, requested),
        };
        ProviderHints::from([(CPU.to_string(), Some(hints))])
    }

    /// Assigns exclusive CPUs to a container, on the NUMA nodes of `affinity` if that is given.
    pub fn allocate(
        &mut self,
        pod: &Pod,
        container: &Container,
        affinity: Option<NumaMask>,
    ) -> Result<Allocated, AllocationError> {
        let count = match guaranteed::qualifies(pod) {
            true => guaranteed::cpus(container),
            false => 0,
        };
        let Some(policy) = self.policy.as_ref().filter(|_| count > 0) else {
            return Ok(Allocated::Shared);
        };
        if self.exclusive(&uid(pod), &container.name).is_some() {
            return Ok(Allocated::Existing);
        }
        policy.check_whole_cores(&self.state.default, count)?;
        let mut usable = self.available();
        usable.extend(self.reusable(pod, &container.name));
        let mut cpus = CpuSet::new();
        if let Some(affinity) = affinity {
            let near = policy.near(affinity, &usable);
            cpus = policy.take(&near, near.len().min(count))?;
        }
        let others = usable.difference(&cpus).copied().collect();
        cpus.extend(policy.take(&others, count - cpus.len())?);
        let caches = cpus
            .iter()
            .map(|cpu| policy.topology.id(*cpu, Level::UncoreCache));
        let is_uncore_aligned = caches.collect::<std::collections::BTreeSet<_>>().len() <= 1;
        self.state.assign(&uid(pod), &container.name, cpus);
        Ok(Allocated::New { is_uncore_aligned })
    }

    /// Releases the CPUs of a terminated pod; returns whether it had exclusive ones.
    pub fn release(&mut self, uid: &PodUid) -> bool {
        self.state.release(uid)
    }

    /// Releases the CPUs of pods that do not exist any more; returns whether there were any.
    pub fn retain_pods(&mut self, is_there: impl Fn(&str) -> bool) -> bool {
        let deleted: Vec<PodUid> = self
            .state
            .assigned
            .keys()
            .filter(|uid| !is_there(uid))
            .cloned()
            .collect();
        for uid in &deleted {
            self.state.release(uid);
        }
        !deleted.is_empty()
    }

    /// The CPUs of init containers that have finished when a container starts, unless another container reuses them.
    fn reusable(&self, pod: &Pod, container: &str) -> CpuSet {
        let mut reusable = CpuSet::new();
        for (other, has_finished) in guaranteed::before(pod, container) {
            let own = self.exclusive(&uid(pod), &other.name).into_iter().flatten();
            for cpu in own {
                match has_finished {
                    true => drop(reusable.insert(*cpu)),
                    false => drop(reusable.remove(cpu)),
                }
            }
        }
        reusable
    }
}

impl Static {
    fn cores_of(&self, cpus: &CpuSet) -> CpuSet {
        let cores = cpus.iter().filter_map(|cpu| self.topology.id(*cpu, Level::Core));
        cores
            .flat_map(|core| self.topology.cpus_in(Level::Core, core))
            .collect()
    }

    fn take(&self, available: &CpuSet, count: usize) -> Result<CpuSet, NotEnough> {
        let sorting = match self.options.distribute_across_cores {
            true => Sorting::Spread,
            false => Sorting::Packed,
        };
        if self.options.distribute_across_numa {
            let group = match self.options.full_pcpus_only {
                true => self.topology.cpus_per(Level::Core),
                false => 1,
            };
            return take_distributed(&self.topology, available, count, group, sorting);
        }
        let by_cache = self.options.align_by_uncore_cache;
        take_packed(&self.topology, available, count, sorting, by_cache)
    }

    fn check_whole_cores(&self, shared: &CpuSet, requested: usize) -> Result<(), AllocationError> {
        let per_core = self.topology.cpus_per(Level::Core).max(1);
        if !self.options.full_pcpus_only {
            return Ok(());
        }
        if !requested.is_multiple_of(per_core) {
            return Err(AllocationError::NotWholeCores { requested, per_core });
        }
        let available = shared.difference(&self.reserved_cores).count();
        match requested > available {
            true => Err(AllocationError::NotEnoughCores {
                available,
                requested,
                per_core,
            }),
            false => Ok(()),
        }
    }

    /// Those CPUs that are on the NUMA nodes, or on their sockets if CPUs are aligned by socket.
    fn near(&self, affinity: NumaMask, cpus: &CpuSet) -> CpuSet {
        let is_on = |cpu: &u32| {
            let node = self.topology.id(*cpu, Level::NumaNode);
            node.is_some_and(|node| affinity.contains(node))
        };
        if !self.options.align_by_socket {
            return cpus.iter().filter(|cpu| is_on(cpu)).copied().collect();
        }
        let sockets = self.sockets(affinity);
        let socket = |cpu: &&u32| self.topology.id(**cpu, Level::Socket);
        let is_near = |cpu: &&u32| socket(cpu).is_some_and(|socket| sockets.contains(&socket));
        cpus.iter().filter(is_near).copied().collect()
    }

    fn sockets(&self, nodes: NumaMask) -> std::collections::BTreeSet<u32> {
        let all = self.topology.cpus().into_iter();
        let cpus = all.filter(|cpu| {
            let node = self.topology.id(*cpu, Level::NumaNode);
            node.is_some_and(|node| nodes.contains(node))
        });
        cpus.filter_map(|cpu| self.topology.id(cpu, Level::Socket))
            .collect()
    }

    /// The sets of NUMA nodes that have this many free CPUs and all reusable ones.
    fn hints(&self, available: &CpuSet, reusable: &CpuSet, requested: usize) -> Vec<Hint> {
        let by_node = |cpus: &CpuSet| {
            let mut all: BTreeMap<u32, usize> = BTreeMap::new();
            for node in cpus
                .iter()
                .filter_map(|cpu| self.topology.id(*cpu, Level::NumaNode))
            {
                *all.entry(node).or_default() += 1;
            }
            all
        };
        let nodes = self.topology.ids(Level::NumaNode);
        let (has, free, reused) = (
            by_node(&self.topology.cpus()),
            by_node(available),
            by_node(reusable),
        );
        let in_mask = |mask: NumaMask, of: &BTreeMap<u32, usize>| -> usize {
            of.iter()
                .filter(|(node, _)| mask.contains(**node))
                .map(|(_, n)| n)
                .sum()
        };
        let mut least = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let mut hints = Vec::new();
        for mask in masks_of(&nodes) {
            if in_mask(mask, &has) >= requested {
                least = least.min(mask.count());
            }
            let has_reused = reused.keys().all(|node| mask.contains(*node));
            if has_reused && in_mask(mask, &free) + reusable.len() >= requested {
                hints.push(mask);
            }
        }
        let is_preferred = |mask: NumaMask| {
            mask.count() == least || self.options.align_by_socket && self.is_socket_aligned(mask, least)
        };
        let hint = |mask: NumaMask| Hint {
            affinity: Some(mask),
            is_preferred: is_preferred(mask),
        };
        hints.into_iter().map(hint).collect()
    }

    /// Whether the NUMA nodes are on as few sockets as possible. There are no more sockets than NUMA nodes
    /// ([`Options::validate`]).
    fn is_socket_aligned(&self, mask: NumaMask, least: u32) -> bool {
        let per_socket = self.topology.count(Level::NumaNode) / self.topology.count(Level::Socket).max(1);
        let least = usize::try_from(least).unwrap_or(usize::MAX);
        self.sockets(mask).len() == least.div_ceil(per_socket.max(1))
    }
}
