//! N1: an address that a pod may still use is given to no other pod, and a podCIDR that a node may still use to no
//! other node. A pod may use its address while its sandbox is on a running host, cut off or not.

use std::collections::BTreeSet;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use knarr_api::k8s_openapi;

use crate::finding::Finding;
use crate::world::{Observation, World};

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    match seen {
        Observation::Leased { node, sandbox } => {
            let own = (node.to_string(), sandbox.to_string());
            let Some(lease) = world.leases.get(&own) else {
                return Ok(());
            };
            let ranges = world.ranges.get(*node).cloned().unwrap_or_default();
            for address in &lease.addresses {
                if !ranges.iter().any(|range| range.contains(address)) {
                    return Err(Finding(format!(
                        "{sandbox} on {node} gets {address}, which is in no range of that node"
                    )));
                }
                let others = world.leases.iter().filter(|(of, _)| **of != own);
                let same = others
                    .into_iter()
                    .find(|(_, other)| other.addresses.contains(address));
                if let Some(((at, other), _)) = same {
                    return Err(Finding(format!(
                        "{sandbox} on {node} gets {address}, which {other} on {at} still has"
                    )));
                }
            }
            Ok(())
        }
        Observation::Ranges { node } => {
            let Some(own) = world.ranges.get(*node) else {
                return Ok(());
            };
            for (other, ranges) in world.ranges.iter().filter(|(other, _)| *other != node) {
                // One that was deleted and registers again has none until it is given one.
                let has_some = world
                    .nodes
                    .get(other)
                    .is_some_and(|node| !self::ranges(node).is_empty());
                let may_use = has_some || world.leases.keys().any(|(at, _)| at == other);
                let mut pairs = own.iter().flat_map(|a| ranges.iter().map(move |b| (a, b)));
                let overlap = pairs.find(|(a, b)| a.contains(*b) || b.contains(*a));
                if let Some((range, _)) = overlap.filter(|_| may_use) {
                    return Err(Finding(format!("{node} gets {range}, which {other} still has")));
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The podCIDRs of a node, in the store.
pub(crate) fn ranges(node: &Node) -> BTreeSet<IpNet> {
    let all = node.spec.iter().flat_map(|s| s.pod_cidrs.iter().flatten());
    all.filter_map(|range| range.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::world::Lease;

    /// Seed 981000537: a node was deleted, another one got its podCIDR, and it registered again.
    #[test]
    fn n1_a_range_is_taken_from_a_node_that_has_it_or_a_sandbox_in_it() {
        let range = || BTreeSet::from(["10.244.1.64/26".parse().unwrap()]);
        // The other node's object, whether it has a sandbox, whether the rule holds.
        for (other, has_sandbox, holds) in [
            (Some(json!({"podCIDRs": ["10.244.1.64/26"]})), false, false),
            (Some(json!({})), false, true),
            (Some(json!({})), true, false),
            (None, false, true),
            (None, true, false),
        ] {
            let mut world = World::default();
            for node in ["n3", "n4"] {
                world.ranges.insert(node.into(), range());
            }
            if let Some(spec) = &other {
                let node = json!({"metadata": {"name": "n3"}, "spec": spec});
                world
                    .nodes
                    .insert("n3".into(), serde_json::from_value(node).unwrap());
            }
            if has_sandbox {
                let lease = Lease {
                    addresses: Vec::new(),
                    is_attached: true,
                };
                world.leases.insert(("n3".into(), "s".into()), lease);
            }
            let found = check(&Observation::Ranges { node: "n4" }, &world);
            assert_eq!(found.is_ok(), holds, "{other:?} {has_sandbox}");
        }
    }
}
