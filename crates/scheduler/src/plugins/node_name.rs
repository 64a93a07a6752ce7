//! NodeName: a pod that names its node goes nowhere else.

use super::{Plugin, Refusal};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;

/// See the module.
pub struct NodeName;

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        "NodeName"
    }

    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Refusal> {
        let wanted = pod.node_name();
        if wanted.is_empty() || wanted == node.name {
            return Ok(());
        }
        Err(Refusal::of_node("node(s) didn't match the requested node name"))
    }
}
