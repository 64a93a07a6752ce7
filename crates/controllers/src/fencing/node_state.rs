//! What a Node object says: since when the node is lost, whether it has reported since it was fenced, and the out-of-service taint.

use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::kinds::node::OUT_OF_SERVICE;
use knarr_apimachinery::time::seconds;

use super::kinds::NodeFencing;
use crate::node::{NO_EXECUTE, condition};

/// The value of the taint, which marks it as set by this controller.
pub(super) const TAINT_VALUE: &str = "fenced";

/// Since when the node's Ready condition has been Unknown.
pub(super) fn unknown_since(node: &Node) -> Option<Timestamp> {
    let ready = condition(node, "Ready").filter(|c| c.status == "Unknown")?;
    ready.last_transition_time.as_ref().map(|t| t.0)
}

/// Whether the node was ready at its last heartbeat, and the time of that, by the node's clock.
pub(super) fn last_heartbeat(node: &Node) -> Option<(bool, Time)> {
    let ready = condition(node, "Ready")?;
    Some((ready.status == "True", ready.last_heartbeat_time.clone()?))
}

/// Whether the node has reported its status since that heartbeat.
pub(super) fn has_reported_since(since: Option<&Time>, node: &Node) -> bool {
    last_heartbeat(node).map(|(_, at)| at).as_ref() != since
}

/// Whether a fenced node runs again: it is Ready and has reported since it was fenced. That it was Ready before proves nothing: a
/// node that is switched off does not update its status. Clocks are not compared with each other: any of them may have been set.
pub(super) fn has_come_back(fencing: &NodeFencing, node: &Node) -> bool {
    last_heartbeat(node).is_some_and(|(ready, at)| ready && Some(at) != fencing.status.last_heartbeat_time)
}

/// The node with or without the out-of-service taint.
pub(super) fn tainted(node: &Node, out: bool, now: Timestamp) -> Node {
    let mut changed = node.clone();
    let spec = changed.spec.get_or_insert_default();
    let mut taints = spec.taints.take().unwrap_or_default();
    taints.retain(|t| t.key != OUT_OF_SERVICE || t.value.as_deref() != Some(TAINT_VALUE));
    if out {
        taints.push(Taint {
            key: OUT_OF_SERVICE.into(),
            effect: NO_EXECUTE.into(),
            value: Some(TAINT_VALUE.into()),
            time_added: Some(seconds(now)),
        });
    }
    spec.taints = (!taints.is_empty()).then_some(taints);
    changed
}
