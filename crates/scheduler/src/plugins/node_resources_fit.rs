//! NodeResourcesFit: what a pod asks for must be free; the emptier node is the better one (LeastAllocated, cpu and
//! memory alike).

use std::borrow::Cow;

use super::{MAX_NODE_SCORE, Plugin, Refusal};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;

/// See the module.
pub struct NodeResourcesFit;

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }

    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Refusal> {
        let (has, used, asks) = (&node.allocatable, &node.requested, &pod.requests);
        let mut reasons: Vec<Cow<'static, str>> = Vec::new();
        // What the whole node does not have is not had by removing pods either.
        let mut too_large = false;
        let pods = i64::try_from(node.pod_count()).unwrap_or(i64::MAX);
        if pods.saturating_add(1) > has.pods {
            reasons.push("Too many pods".into());
        }
        if !asks.is_nothing() {
            let mut check = |asks: i64, has: i64, used: i64, name: &str| {
                if asks > 0 && asks > has - used {
                    reasons.push(format!("Insufficient {name}").into());
                    too_large |= asks > has;
                }
            };
            check(asks.milli_cpu, has.milli_cpu, used.milli_cpu, "cpu");
            check(asks.memory_bytes, has.memory_bytes, used.memory_bytes, "memory");
            check(
                asks.ephemeral_storage_bytes,
                has.ephemeral_storage_bytes,
                used.ephemeral_storage_bytes,
                "ephemeral-storage",
            );
            for (name, amount) in &asks.scalars {
                let of = |all: &std::collections::BTreeMap<String, i64>| all.get(name).copied().unwrap_or(0);
                check(*amount, of(&has.scalars), of(&used.scalars), name);
            }
        }
        if reasons.is_empty() {
            return Ok(());
        }
        Err(Refusal {
            reasons,
            pods_in_the_way: !too_large,
        })
    }

    fn looks_at_pods(&self) -> bool {
        true
    }

    fn weight(&self) -> i64 {
        1
    }

    fn score(&self, pod: &PodInfo, node: &NodeInfo) -> i64 {
        let (has, used, asks) = (
            &node.allocatable,
            &node.requested_filled_in,
            &pod.requests_filled_in,
        );
        let all = [
            (has.milli_cpu, used.milli_cpu + asks.milli_cpu),
            (has.memory_bytes, used.memory_bytes + asks.memory_bytes),
        ];
        let had = all.iter().filter(|(has, _)| *has != 0);
        let (sum, count) = had.fold((0, 0), |(sum, count), (has, requested)| {
            (sum + free(*has, *requested), count + 1)
        });
        if count == 0 { 0 } else { sum / count }
    }
}

fn free(has: i64, requested: i64) -> i64 {
    if requested > has {
        return 0;
    }
    // Bytes times 100 may not fit 64 bits on very large nodes.
    let score = i128::from(has - requested) * i128::from(MAX_NODE_SCORE) / i128::from(has);
    i64::try_from(score).unwrap_or(0)
}
