//! The policies: `None` assigns nothing, `Static` assigns the memory of Guaranteed pods (`policy_static.go`).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::PodUid;

use super::MEMORY;
use super::hints::{self, Reusable};
use super::reserved::{self, NodeMemory, ReservedError, ReservedMemory, reserved_on};
use super::state::{Block, State, StateError, assign, is_same_group};
use crate::admission::Rejection;
use crate::guaranteed::{self, MemoryRequests, uid};
use crate::topologymanager::{Hint, NumaMask, ProviderHints};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error(transparent)]
    Reserved(#[from] ReservedError),
    #[error("[memorymanager] you should specify the system reserved memory")]
    NoneReserved,
    #[error("Invalid state, please drain node and remove policy state file")]
    State(#[source] StateError),
}

/// Why a container does not get its memory, with v1.36's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    #[error(
        "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
    )]
    NoDefault,
    #[error("[memorymanager] failed to find the default preferred hint")]
    NoPreferredDefault,
    #[error("[memorymanager] failed to find NUMA nodes to extend the current topology hint")]
    NoExtension,
    #[error("[memorymanager] failed to find the extended preferred hint")]
    NoPreferredExtension,
    #[error("[memorymanager] preferred hint violates NUMA node allocation")]
    ViolatesGroups,
}

impl From<AllocationError> for Rejection {
    fn from(error: AllocationError) -> Self {
        crate::topologymanager::unexpected(&error)
    }
}

/// The memory manager. [`Default`] is the policy `None`.
#[derive(Clone, Debug, Default)]
pub struct MemoryManager {
    is_static: bool,
    state: State,
}

impl MemoryManager {
    /// The static policy, with the state of the checkpoint. `withheld` is the memory that is not allocatable to pods.
    pub fn new_static(
        nodes: &BTreeMap<u32, NodeMemory>,
        withheld: &BTreeMap<String, u64>,
        reserved: &[ReservedMemory],
        restored: State,
    ) -> Result<Self, PolicyError> {
        let reserved = reserved_on(nodes, withheld, reserved)?;
        if reserved
            .values()
            .all(|of| of.get(MEMORY).is_none_or(|bytes| *bytes == 0))
        {
            return Err(PolicyError::NoneReserved);
        }
        let fresh = reserved::fresh(nodes, &reserved);
        Ok(MemoryManager {
            is_static: true,
            state: restored.validated(fresh).map_err(PolicyError::State)?,
        })
    }

    pub fn is_static(&self) -> bool {
        self.is_static
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    /// The memory that can be assigned, a block for each NUMA node and resource.
    pub fn allocatable(&self) -> Vec<Block> {
        let of_node = |(node, state): (&u32, &super::NodeState)| {
            let tables = state.memory_map.iter().filter(|(_, table)| table.allocatable > 0);
            let block = |(resource, table): (&String, &super::Table)| Block {
                nodes: vec![*node],
                resource: resource.clone(),
                bytes: table.allocatable,
            };
            tables.map(block).collect::<Vec<_>>()
        };
        self.state.machine.iter().flat_map(of_node).collect()
    }

    pub fn blocks(&self, uid: &PodUid, container: &str) -> &[Block] {
        self.state.of_container(uid, container).map_or(&[], Vec::as_slice)
    }

    /// The NUMA nodes of a container's memory; empty: it may use all.
    pub fn numa_nodes(&self, uid: &PodUid, container: &str) -> BTreeSet<u32> {
        let blocks = self.blocks(uid, container).iter();
        blocks.flat_map(|block| block.nodes.iter().copied()).collect()
    }

    fn concerns(&self, pod: &Pod) -> bool {
        self.is_static && guaranteed::qualifies(pod)
    }

    /// The topology hints of a container's memory.
    pub fn hints(&self, pod: &Pod, container: &Container) -> ProviderHints {
        if !self.concerns(pod) {
            return ProviderHints::new();
        }
        let requests = guaranteed::memory(container);
        match self.state.of_container(&uid(pod), &container.name) {
            Some(blocks) => regenerated(blocks, &requests),
            None => self.calculated(&requests, &self.reusable(pod, &container.name)),
        }
    }

    /// The topology hints of all of a pod's memory.
    pub fn pod_hints(&self, pod: &Pod) -> ProviderHints {
        if !self.concerns(pod) {
            return ProviderHints::new();
        }
        let of_container = |c: &Container| guaranteed::memory(c);
        let resources: BTreeSet<String> = {
            // As in v1.36 a resource that only init containers request counts for none.
            let spec = pod.spec.iter().flat_map(|s| &s.containers);
            spec.flat_map(|c| of_container(c).into_keys()).collect()
        };
        let most = |resource: &str| {
            let of = |c: &Container| of_container(c).get(resource).copied().unwrap_or(0);
            guaranteed::most_at_a_time(pod, of)
        };
        let requests: MemoryRequests = resources.into_iter().map(|r| (r.clone(), most(&r))).collect();
        if requests.is_empty() {
            return ProviderHints::new();
        }
        let mut assigned = guaranteed::containers(pod)
            .filter_map(|container| self.state.of_container(&uid(pod), &container.name));
        match assigned.next() {
            Some(blocks) => regenerated(blocks, &requests),
            None => self.calculated(&requests, &Reusable::new()),
        }
    }

    fn calculated(&self, requests: &MemoryRequests, reusable: &Reusable) -> ProviderHints {
        let hints = hints::all(&self.state.machine, requests, reusable);
        if hints.is_empty() {
            // v1.36 returns no hints then, which means no preference; the allocation fails.
            return ProviderHints::new();
        }
        let resources = requests.keys();
        resources
            .map(|resource| (resource.clone(), Some(hints.clone())))
            .collect()
    }

    /// Assigns memory to a container, from the NUMA nodes of `hint` or a set that has all of them; returns whether the
    /// assignment is new.
    pub fn allocate(
        &mut self,
        pod: &Pod,
        container: &Container,
        hint: Hint,
    ) -> Result<bool, AllocationError> {
        if !self.concerns(pod) || self.state.of_container(&uid(pod), &container.name).is_some() {
            return Ok(false);
        }
        let requests = guaranteed::memory(container);
        if requests.is_empty() {
            return Ok(false);
        }
        let reusable = self.reusable(pod, &container.name);
        let nodes = self.nodes(&requests, &reusable, hint)?;
        let ids: Vec<u32> = nodes.nodes().collect();
        let mut blocks = Vec::new();
        for (resource, bytes) in requests {
            let left = reusable.get(&(nodes, resource.clone())).copied().unwrap_or(0);
            assign(
                &mut self.state.machine,
                &ids,
                &resource,
                bytes.saturating_sub(left),
            );
            blocks.push(Block {
                nodes: ids.clone(),
                resource,
                bytes,
            });
        }
        self.reuse_memory(pod, container, &blocks);
        let containers = self.state.assigned.entry(uid(pod)).or_default();
        containers.insert(container.name.clone(), blocks);
        Ok(true)
    }

    fn nodes(
        &self,
        requests: &MemoryRequests,
        reusable: &Reusable,
        hint: Hint,
    ) -> Result<NumaMask, AllocationError> {
        let machine = &self.state.machine;
        // As the hints of memory: those of all resources are the same.
        let possible = || hints::all(machine, requests, reusable);
        let (mut nodes, mut is_preferred) = (hint.affinity, hint.is_preferred);
        if nodes.is_none() {
            let best = hints::best(possible()).ok_or(AllocationError::NoDefault)?;
            if is_preferred && !best.is_preferred {
                return Err(AllocationError::NoPreferredDefault);
            }
            (nodes, is_preferred) = (best.affinity, best.is_preferred);
        }
        let mut nodes = nodes.unwrap_or_default();
        if !hints::satisfies(machine, nodes, requests) {
            let has_all = |hint: &Hint| hint.affinity.is_some_and(|mask| mask.and(nodes) == nodes);
            let best = hints::best(possible().into_iter().filter(has_all));
            let best = best.ok_or(AllocationError::NoExtension)?;
            if is_preferred && !best.is_preferred {
                return Err(AllocationError::NoPreferredExtension);
            }
            nodes = best.affinity.unwrap_or_default();
        }
        match hints::violates_groups(machine, nodes) {
            true => Err(AllocationError::ViolatesGroups),
            false => Ok(nodes),
        }
    }

    /// The memory of earlier init containers that will have finished, without what other containers reuse.
    fn reusable(&self, pod: &Pod, container: &str) -> Reusable {
        let mut reusable = Reusable::new();
        for (other, has_finished) in guaranteed::before(pod, container) {
            if !has_finished {
                continue;
            }
            for block in self.blocks(&uid(pod), &other.name) {
                if let Some(mask) = NumaMask::of(block.nodes.iter().copied()) {
                    let left = reusable.entry((mask, block.resource.clone())).or_default();
                    *left = left.saturating_add(block.bytes);
                }
            }
        }
        reusable
    }

    /// Memory that a container reuses from earlier init containers is not released with these.
    fn reuse_memory(&mut self, pod: &Pod, container: &Container, blocks: &[Block]) {
        let mut left = blocks.to_vec();
        for (other, has_finished) in guaranteed::before(pod, &container.name) {
            let Some(containers) = self.state.assigned.get_mut(&uid(pod)).filter(|_| has_finished) else {
                continue;
            };
            for old in containers.get_mut(&other.name).into_iter().flatten() {
                let is_same =
                    |new: &&mut Block| new.resource == old.resource && is_same_group(&new.nodes, &old.nodes);
                if let Some(new) = left.iter_mut().find(is_same) {
                    let taken = old.bytes.min(new.bytes);
                    old.bytes -= taken;
                    new.bytes -= taken;
                }
            }
        }
    }

    /// A container starts, so the init containers before it have finished; returns whether any of them had memory.
    pub fn started(&mut self, pod: &Pod, container: &str) -> bool {
        let mut is_changed = false;
        for (other, has_finished) in guaranteed::before(pod, container) {
            is_changed |= has_finished && self.state.release(&uid(pod), &other.name);
        }
        is_changed
    }

    /// Releases the memory of a terminated pod; returns whether it had any.
    pub fn release(&mut self, uid: &PodUid) -> bool {
        let containers = self.state.assigned.get(uid);
        let names: Vec<String> = containers.into_iter().flat_map(|c| c.keys().cloned()).collect();
        for name in &names {
            self.state.release(uid, name);
        }
        !names.is_empty()
    }

    /// Releases the memory of pods that do not exist any more; returns whether there were any.
    pub fn retain_pods(&mut self, is_there: impl Fn(&str) -> bool) -> bool {
        let deleted: Vec<PodUid> = self
            .state
            .assigned
            .keys()
            .filter(|uid| !is_there(uid))
            .cloned()
            .collect();
        for uid in &deleted {
            self.release(uid);
        }
        !deleted.is_empty()
    }
}

/// The hints of memory that is assigned; without any if it is not what is requested.
fn regenerated(blocks: &[Block], requests: &MemoryRequests) -> ProviderHints {
    let is_requested = |block: &Block| requests.get(&block.resource) == Some(&block.bytes);
    if blocks.len() != requests.len() || !blocks.iter().all(is_requested) {
        return ProviderHints::new();
    }
    let hint = |block: &Block| {
        let hint = Hint {
            affinity: NumaMask::of(block.nodes.iter().copied()),
            is_preferred: true,
        };
        (block.resource.clone(), Some(vec![hint]))
    };
    blocks.iter().map(hint).collect()
}
