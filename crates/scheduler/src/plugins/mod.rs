//! The rules, one file each, under kube-scheduler's names, with its words and its arithmetic.
//!
//! Most look at one node at a time and are called from the two lists here; those on volumes are called by
//! [`crate::storage`]. [`pod_topology_spread`] and
//! [`inter_pod_affinity`] compare nodes with each other: they keep sums over topology domains for each class of pods and
//! are asked by [`crate::evaluation`], as is [`default_preemption`].

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

use crate::node_info::NodeInfo;
use crate::pod_info::PodClass;
use crate::profile::Profile;

/// The best score of one plugin on one node.
pub const MAX_NODE_SCORE: i64 = 100;

/// Why a node is refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    /// Empty: the node was not looked at, for another plugin had named others.
    pub plugin: &'static str,
    /// In kube-scheduler's words.
    pub reasons: Vec<Cow<'static, str>>,
    /// Whether the node could be had if pods on it went.
    pub pods_in_the_way: bool,
}

impl Refusal {
    /// Whatever becomes of its pods, the node is refused.
    pub fn of_node(plugin: &'static str, reason: &'static str) -> Self {
        Refusal {
            plugin,
            reasons: vec![reason.into()],
            pods_in_the_way: false,
        }
    }

    /// Whatever the node, the pod is refused.
    pub fn of_pod(plugin: &'static str, words: String) -> Self {
        Refusal {
            plugin,
            reasons: vec![words.into()],
            pods_in_the_way: false,
        }
    }

    pub fn of_pods(plugin: &'static str, reason: &'static str) -> Self {
        Refusal {
            plugin,
            reasons: vec![reason.into()],
            pods_in_the_way: true,
        }
    }

    /// As the framework calls it.
    pub fn code(&self) -> &'static str {
        if self.pods_in_the_way {
            "Unschedulable"
        } else {
            "UnschedulableAndUnresolvable"
        }
    }
}

type Filter = fn(&Profile, &PodClass, &NodeInfo) -> Result<(), Refusal>;

/// The rules on one node, in the order in which they filter; those on volumes and on several
/// nodes come after them.
pub const FILTERS: &[(&str, Filter)] = &[
    (node_unschedulable::NAME, node_unschedulable::filter),
    (taint_toleration::NAME, taint_toleration::filter),
    (node_affinity::NAME, node_affinity::filter),
    (node_ports::NAME, node_ports::filter),
    (node_resources_fit::NAME, node_resources_fit::filter),
];

/// What the rules on one node say of it.
pub fn filter(profile: &Profile, pod: &PodClass, node: &NodeInfo) -> Result<(), Refusal> {
    let used = FILTERS.iter().filter(|(name, _)| profile.filters(name));
    for (_, filter) in used {
        filter(profile, pod, node)?;
    }
    Ok(())
}

/// Brings scores to 0 … [`MAX_NODE_SCORE`] by the largest; `reverse` makes the smallest the best.
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
