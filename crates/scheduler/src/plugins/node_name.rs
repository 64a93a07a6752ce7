//! NodeName: a pod with `spec.nodeName` fits that node only.

use super::UnschedulableStatus;
use crate::node_info::NodeInfo;

pub const NAME: &str = "NodeName";

/// `spec.nodeName` is not a part of the class: pods with one are evaluated separately.
pub fn filter(wanted: &str, node: &NodeInfo) -> Result<(), UnschedulableStatus> {
    if wanted.is_empty() || wanted == node.name {
        return Ok(());
    }
    Err(UnschedulableStatus::unresolvable(
        NAME,
        "node(s) didn't match the requested node name",
    ))
}
