//! NodeResourcesBalancedAllocation: a pod goes where it brings the used shares of cpu and memory closer together.

use super::{MAX_NODE_SCORE, Plugin};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;

/// See the module.
pub struct NodeResourcesBalancedAllocation;

impl Plugin for NodeResourcesBalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    fn weight(&self) -> i64 {
        1
    }

    /// A pod that asks for nothing changes no balance.
    fn scores(&self, pod: &PodInfo) -> bool {
        pod.requests.milli_cpu != 0 || pod.requests.memory_bytes != 0
    }

    fn score(&self, pod: &PodInfo, node: &NodeInfo) -> i64 {
        let (has, used, asks) = (&node.allocatable, &node.requested, &pod.requests);
        let half = MAX_NODE_SCORE / 2;
        let with = balance(&[
            (has.milli_cpu, used.milli_cpu + asks.milli_cpu),
            (has.memory_bytes, used.memory_bytes + asks.memory_bytes),
        ]);
        let without = balance(&[
            (has.milli_cpu, used.milli_cpu),
            (has.memory_bytes, used.memory_bytes),
        ]);
        half + (half + with - without) / 2
    }
}

/// 100 where the used shares are equal, 50 where they are as different as can be.
fn balance(of: &[(i64, i64); 2]) -> i64 {
    let mut shares = of
        .iter()
        .filter(|(has, _)| *has != 0)
        .map(|(has, requested)| (*requested as f64 / *has as f64).min(1.0));
    let deviation = match (shares.next(), shares.next()) {
        (Some(a), Some(b)) => ((a - b) / 2.0).abs(),
        _ => 0.0,
    };
    // Between 50 and 100; cut off, not rounded, as kube-scheduler does.
    ((1.0 - deviation) * MAX_NODE_SCORE as f64) as i64
}
