//! The plugins, one file each, with kube-scheduler's names, messages and arithmetic.
//!
//! The filters that read one node at a time are in the list [`FILTERS`]; those on volumes are called by [`crate::storage`], and the scores by
//! [`crate::evaluation`], which keeps them in a column each. [`pod_topology_spread`] and [`inter_pod_affinity`] compare nodes with each other: they keep
//! sums over topology domains for each class of pods and are called by [`crate::evaluation`]. Where no node fits,
//! [`default_preemption`] runs, and after it [`cross_node_preemption`].

pub mod cross_node_preemption;
pub mod default_preemption;
pub mod dynamic_resources;
pub mod image_locality;
pub mod inter_pod_affinity;
pub mod node_affinity;
pub mod node_name;
pub mod node_ports;
pub mod node_resources_balanced_allocation;
pub mod node_resources_fit;
pub mod node_unschedulable;
pub mod node_volume_limits;
pub mod pod_topology_spread;
pub mod taint_toleration;
pub mod volume_binding;
pub mod volume_restrictions;
pub mod volume_zone;

use std::borrow::Cow;

use knarr_apimachinery::labels::SelectorError;

use crate::cluster::NodeIndex;
use crate::dynamic_resources::AllocationError;
use crate::node_info::NodeInfo;
use crate::pod_info::PodClass;
use crate::profile::Profile;

/// The best score of one plugin on one node.
pub const MAX_NODE_SCORE: i64 = 100;

/// Why a node or a pod was rejected (`Status` of the scheduling framework).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnschedulableStatus {
    /// Empty: the node was not filtered, because PreFilter had selected others.
    pub plugin: &'static str,
    /// kube-scheduler's messages.
    pub reasons: Vec<Cow<'static, str>>,
    /// Whether removing pods from the node may help: code Unschedulable, else UnschedulableAndUnresolvable.
    pub resolvable: bool,
}

impl UnschedulableStatus {
    /// Removing pods from the node does not help (`UnschedulableAndUnresolvable`).
    pub fn unresolvable(plugin: &'static str, reason: impl Into<Cow<'static, str>>) -> Self {
        UnschedulableStatus {
            plugin,
            reasons: vec![reason.into()],
            resolvable: false,
        }
    }

    /// Terminating pods of lower priority on the node may help (`Unschedulable`).
    pub fn unschedulable(plugin: &'static str, reason: &'static str) -> Self {
        UnschedulableStatus {
            plugin,
            reasons: vec![reason.into()],
            resolvable: true,
        }
    }

    /// The code's name in the scheduling framework.
    pub fn code(&self) -> &'static str {
        if self.resolvable {
            "Unschedulable"
        } else {
            "UnschedulableAndUnresolvable"
        }
    }
}

/// Why PreFilter rejects the pod, before any node is filtered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PreFilterError {
    /// A plugin rejected the pod itself.
    Unschedulable(UnschedulableStatus),
    /// A plugin failed (such as with a selector that does not parse).
    Error(PluginError),
}

/// Why a plugin failed, which ends the pod's attempt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PluginError {
    #[error(transparent)]
    PodTopologySpread(SelectorError),
    #[error("running PreFilter plugin {name:?}: {0}", name = volume_binding::NAME)]
    VolumeBinding(#[source] volume_binding::VolumeBindingError),
    #[error("running {name:?} filter plugin: {0}", name = dynamic_resources::NAME)]
    DynamicResources(#[source] AllocationError),
}

/// Pods of one class that are added to (or, negative, removed from) a node in a simulation, compared with the snapshot.
#[derive(Debug)]
pub struct PodChange<'a, T> {
    pub node: NodeIndex,
    /// How they affect the counts of a plugin.
    pub interaction: &'a T,
    pub count: i64,
}

type Filter = fn(&Profile, &PodClass, &NodeInfo) -> Result<(), UnschedulableStatus>;

/// The filters that read one node, in the order in which they run; those on volumes and on several nodes run after
/// them.
pub const FILTERS: &[(&str, Filter)] = &[
    (node_unschedulable::NAME, node_unschedulable::filter),
    (taint_toleration::NAME, taint_toleration::filter),
    (node_affinity::NAME, node_affinity::filter),
    (node_ports::NAME, node_ports::filter),
    (node_resources_fit::NAME, node_resources_fit::filter),
];

/// Runs the filters that read one node.
pub fn filter(profile: &Profile, pod: &PodClass, node: &NodeInfo) -> Result<(), UnschedulableStatus> {
    let used = FILTERS.iter().filter(|(name, _)| profile.filters(name));
    for (_, filter) in used {
        filter(profile, pod, node)?;
    }
    Ok(())
}

/// Normalizes scores to 0 … [`MAX_NODE_SCORE`] by the largest; `reverse` makes the smallest the best
/// (DefaultNormalizeScore).
pub fn normalize(scores: &mut [i64], reverse: bool) {
    let max = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        let scaled = if max == 0 {
            0
        } else {
            *score * MAX_NODE_SCORE / max
        };
        *score = if reverse { MAX_NODE_SCORE - scaled } else { scaled };
    }
}
