//! The rules, one file each, under kube-scheduler's names, with its words and its arithmetic.

pub mod node_affinity;
pub mod node_name;
pub mod node_ports;
pub mod node_resources_balanced_allocation;
pub mod node_resources_fit;
pub mod node_unschedulable;
pub mod taint_toleration;

use std::borrow::Cow;

use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;

/// The best score of one plugin on one node.
pub const MAX_NODE_SCORE: i64 = 100;

/// Why a node is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// In kube-scheduler's words.
    pub reasons: Vec<Cow<'static, str>>,
    /// Whether the node could be had if pods on it went.
    pub pods_in_the_way: bool,
}

impl Refusal {
    /// Whatever becomes of its pods, the node is refused.
    pub fn of_node(reason: &'static str) -> Self {
        Refusal {
            reasons: vec![reason.into()],
            pods_in_the_way: false,
        }
    }

    pub fn of_pods(reasons: Vec<Cow<'static, str>>) -> Self {
        Refusal {
            reasons,
            pods_in_the_way: true,
        }
    }
}

/// One rule: which nodes it refuses, and how good it finds the others.
pub trait Plugin: Send + Sync {
    fn name(&self) -> &'static str;

    fn filter(&self, _pod: &PodInfo, _node: &NodeInfo) -> Result<(), Refusal> {
        Ok(())
    }

    /// Whether what it says of a node depends on the pods there (so that one's end may change it).
    fn looks_at_pods(&self) -> bool {
        false
    }

    /// How much its score counts; 0 if it gives none.
    fn weight(&self) -> i64 {
        0
    }

    /// Whether this pod is scored by it at all.
    fn scores(&self, _pod: &PodInfo) -> bool {
        self.weight() > 0
    }

    /// 0 to [`MAX_NODE_SCORE`], unless [`Plugin::normalize`] brings it there.
    fn score(&self, _pod: &PodInfo, _node: &NodeInfo) -> i64 {
        0
    }

    fn normalize(&self, _scores: &mut [i64]) {}
}

/// All of them, in the order in which they filter.
pub fn default() -> Vec<Box<dyn Plugin>> {
    vec![
        Box::new(node_unschedulable::NodeUnschedulable),
        Box::new(node_name::NodeName),
        Box::new(taint_toleration::TaintToleration),
        Box::new(node_affinity::NodeAffinity),
        Box::new(node_ports::NodePorts),
        Box::new(node_resources_fit::NodeResourcesFit),
        Box::new(node_resources_balanced_allocation::NodeResourcesBalancedAllocation),
    ]
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
