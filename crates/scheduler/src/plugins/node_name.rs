//! NodeName: a pod that names its node goes there or nowhere.

use super::Refusal;
use crate::node_info::NodeInfo;

pub const NAME: &str = "NodeName";

/// Which node a pod names is no matter of its class: pods that name one are judged apart.
pub fn filter(wanted: &str, node: &NodeInfo) -> Result<(), Refusal> {
    if wanted.is_empty() || wanted == node.name {
        return Ok(());
    }
    Err(Refusal::of_node(
        NAME,
        "node(s) didn't match the requested node name",
    ))
}
