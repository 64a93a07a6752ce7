//! NodePorts: a port of the node itself is had once for each protocol and address.

use super::Refusal;
use crate::node_info::NodeInfo;
use crate::pod_info::PodClass;
use crate::profile::Profile;

pub const NAME: &str = "NodePorts";

pub fn filter(_: &Profile, pod: &PodClass, node: &NodeInfo) -> Result<(), Refusal> {
    let taken = |wanted| node.host_ports().iter().any(|p| p.conflicts(wanted));
    if pod.host_ports.iter().any(taken) {
        return Err(Refusal::of_pods(
            NAME,
            "node(s) didn't have free ports for the requested pod ports",
        ));
    }
    Ok(())
}
