//! NodePorts: no two pods get one port of a node.

use super::{Plugin, Refusal};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;

const REASON: &str = "node(s) didn't have free ports for the requested pod ports";

/// See the module.
pub struct NodePorts;

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        "NodePorts"
    }

    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Refusal> {
        if pod.host_ports.is_empty() {
            return Ok(());
        }
        let taken = |wanted| node.host_ports().any(|used| used.conflicts(wanted));
        if pod.host_ports.iter().any(taken) {
            return Err(Refusal::of_pods(vec![REASON.into()]));
        }
        Ok(())
    }

    fn looks_at_pods(&self) -> bool {
        true
    }
}
