//! NodePorts: a host port is used once on a node for each protocol and address.

use super::UnschedulableStatus;
use crate::node_info::NodeInfo;
use crate::pod_info::PodClass;
use crate::profile::Profile;

pub const NAME: &str = "NodePorts";

pub fn filter(_: &Profile, pod: &PodClass, node: &NodeInfo) -> Result<(), UnschedulableStatus> {
    let taken = |wanted| node.host_ports().iter().any(|p| p.conflicts(wanted));
    if pod.host_ports.iter().any(taken) {
        return Err(UnschedulableStatus::unschedulable(
            NAME,
            "node(s) didn't have free ports for the requested pod ports",
        ));
    }
    Ok(())
}
