//! The topology manager: the NUMA nodes on which the resources of a container or pod are aligned.
//!
//! Each resource provides hints: sets of NUMA nodes from which it could be allocated. The policy merges them into the best
//! one and decides whether the pod is admitted. The CPU, memory and device managers allocate.

mod mask;
mod merge;
mod options;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use mask::{MAX_NODES, NumaMask, masks_of};
pub(crate) use options::parse_bool;
pub use options::{DEFAULT_MAX_NODES, OptionError, Options};

use crate::admission::Rejection;

/// The reason of a pod that was not admitted.
pub const TOPOLOGY_AFFINITY_ERROR: &str = "TopologyAffinityError";
/// Its message.
pub const TOPOLOGY_AFFINITY_MESSAGE: &str = "Resources cannot be allocated with Topology locality";

/// The rejection of a pod whose resources cannot be aligned.
pub fn rejection() -> Rejection {
    Rejection::new(TOPOLOGY_AFFINITY_ERROR, TOPOLOGY_AFFINITY_MESSAGE)
}

/// The rejection of a pod whose resources are not allocated for another reason.
pub fn unexpected(error: &dyn std::error::Error) -> Rejection {
    Rejection::new(
        "UnexpectedAdmissionError",
        format!("Allocate failed due to {error}, which is unexpected"),
    )
}

/// A set of NUMA nodes from which a resource can be allocated; without an affinity any of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hint {
    pub affinity: Option<NumaMask>,
    pub is_preferred: bool,
}

/// The hints of one provider. A resource with `None` has no preference; with no hints it cannot be allocated anywhere.
pub type ProviderHints = BTreeMap<String, Option<Vec<Hint>>>;

/// `topologyManagerPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    #[default]
    None,
    BestEffort,
    Restricted,
    SingleNumaNode,
}

impl Policy {
    pub fn parse(name: &str) -> Option<Policy> {
        match name {
            "none" => Some(Policy::None),
            "best-effort" => Some(Policy::BestEffort),
            "restricted" => Some(Policy::Restricted),
            "single-numa-node" => Some(Policy::SingleNumaNode),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Policy::None => "none",
            Policy::BestEffort => "best-effort",
            Policy::Restricted => "restricted",
            Policy::SingleNumaNode => "single-numa-node",
        }
    }

    /// Whether what it admits is aligned (`IsAlignmentGuaranteed`).
    pub fn guarantees_alignment(self) -> bool {
        self == Policy::SingleNumaNode
    }
}

/// `topologyManagerScope`: whose resources are aligned together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    #[default]
    Container,
    Pod,
}

impl Scope {
    pub fn name(self) -> &'static str {
        match self {
            Scope::Container => "container",
            Scope::Pod => "pod",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("cannot discover NUMA topology: error getting NUMA distances from cadvisor")]
    NoDistances,
    #[error("unsupported on machines with more than {0} NUMA Nodes")]
    TooManyNodes(usize),
    #[error("bit number must be in range 0-63")]
    NodeOutOfRange,
}

/// The distances from a NUMA node to each node, by id.
pub type Distances = BTreeMap<u32, BTreeMap<u32, u64>>;

/// The topology manager.
#[derive(Clone, Debug)]
pub struct TopologyManager {
    policy: Policy,
    options: Options,
    all: NumaMask,
    distances: Distances,
}

impl TopologyManager {
    /// `nodes` are the NUMA nodes of the node with the known distances.
    pub fn new(policy: Policy, options: Options, nodes: Distances) -> Result<Self, Error> {
        if policy != Policy::None {
            if options.prefer_closest && nodes.values().any(BTreeMap::is_empty) {
                return Err(Error::NoDistances);
            }
            if nodes.len() > options.max_nodes {
                return Err(Error::TooManyNodes(options.max_nodes));
            }
        }
        let all = match policy {
            Policy::None => NumaMask::default(),
            _ => NumaMask::of(nodes.keys().copied()).ok_or(Error::NodeOutOfRange)?,
        };
        Ok(TopologyManager {
            policy,
            options,
            all,
            distances: nodes,
        })
    }

    /// The best hint of all providers, and whether the container (or pod) is admitted with it.
    pub fn merge(&self, providers: &[ProviderHints]) -> (Hint, bool) {
        if self.policy == Policy::None {
            return (Hint::default(), true);
        }
        let mut hints = merge::of_each_resource(providers);
        if self.policy == Policy::SingleNumaNode {
            let is_single = |h: &Hint| h.is_preferred && h.affinity.is_none_or(|a| a.count() == 1);
            hints.iter_mut().for_each(|of| of.retain(is_single));
        }
        let mut best = self.best(&hints);
        if self.policy == Policy::SingleNumaNode && best.affinity == Some(self.all) {
            best.affinity = None;
        }
        (best, self.policy == Policy::BestEffort || best.is_preferred)
    }
}
