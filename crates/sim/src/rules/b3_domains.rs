//! B3: a declared zone counts for the spread of pods although it has no nodes.

use super::placed::{counts, is_calm, zone_of_node};
use crate::finding::Finding;
use crate::placement::{KNOWN_AFTER, SPREAD, is_of};
use crate::world::{Observation, World, node_of};

/// The maxSkew of the constraint.
const SKEW_MAX: usize = 1;

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::PodWritten { before, after, .. } = seen else {
        return Ok(());
    };
    let is_bound = !node_of(after).is_empty() && before.is_none_or(|before| node_of(before).is_empty());
    let Some((zones, since)) = world.placement.declared.as_ref().filter(|_| is_bound) else {
        return Ok(());
    };
    let known = |at| world.now.duration_since(at) >= KNOWN_AFTER;
    // The scheduler may not know yet that a zone has fewer pods, or no nodes.
    let is_known = known(*since)
        && known(world.placement.lessened)
        && world.absences.values().all(|absence| known(absence.from))
        && is_calm(world);
    let Some(zone) = zone_of_node(world, node_of(after)).filter(|_| is_known && is_of(after, SPREAD)) else {
        return Ok(());
    };
    let counts = counts(world, false);
    let pods = |zone: &str| counts.get(zone).copied().unwrap_or_default();
    let missing = |other: &str| pods(zone).saturating_sub(SKEW_MAX + pods(other));
    // Bindings of one time are not committed in the order of the decisions: others may be on their way to a zone with nodes.
    let (with_nodes, without): (Vec<&String>, Vec<&String>) =
        zones.iter().partition(|zone| has_nodes(world, zone));
    let awaited: usize = with_nodes.iter().map(|zone| missing(zone)).sum();
    if awaited <= unbound(world) && without.iter().all(|zone| missing(zone) == 0) {
        return Ok(());
    }
    let fewest = zones.iter().map(|zone| pods(zone)).min().unwrap_or_default();
    Err(Finding(format!(
        "{} is bound in {zone}, which has {} pods then; another zone of {zones:?} has {fewest}",
        after.metadata.name.as_deref().unwrap_or_default(),
        pods(zone)
    )))
}

fn has_nodes(world: &World, zone: &str) -> bool {
    world
        .nodes
        .keys()
        .any(|node| zone_of_node(world, node) == Some(zone))
}

/// How many pods of [`SPREAD`] have no node yet.
fn unbound(world: &World) -> usize {
    let lives = world
        .pods
        .values()
        .filter(|life| !life.removed() && life.deleted_at.is_none());
    lives
        .filter(|life| node_of(&life.pod).is_empty() && is_of(&life.pod, SPREAD))
        .count()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::{Node, Pod};
    use knarr_api::k8s_openapi;
    use knarr_api::k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::placement::ZONE;
    use crate::world::Life;

    fn pod(node: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"namespace": "placed", "name": "p", "labels": {"app": SPREAD}}, "spec": {"nodeName": node, "containers": []},
        }))
        .unwrap()
    }

    /// Seed 980000057: of pods that were decided for z1, z2, z1 and z1 the one for z2 was committed first.
    #[test]
    fn b3_bindings_may_be_committed_in_another_order_but_not_instead_of_a_declared_zone() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        // The zones of the nodes, the nodes of the pods (the last one is bound now), how many have no node, and whether the rule holds.
        for (zones, pods, unbound, holds) in [
            (vec!["z1", "z2"], vec!["z2"], 0, true),
            (vec!["z1", "z2"], vec!["z2", "z2"], 0, false),
            (vec!["z1", "z2"], vec!["z2", "z2"], 1, true),
            (vec!["z1", "z2"], vec!["z2", "z2", "z2"], 1, false),
            (vec!["z1", "z2"], vec!["z2", "z2", "z2"], 2, true),
            (vec!["z2"], vec!["z2", "z2"], 3, false),
            (vec!["z2"], vec!["z2"], 3, true),
        ] {
            let mut world = World {
                now: at(100),
                ..World::default()
            };
            world.placement.declared = Some((["z1".to_string(), "z2".to_string()].into(), at(0)));
            world.placement.lessened = at(0);
            for zone in &zones {
                let node: Node =
                    serde_json::from_value(json!({"metadata": {"name": zone, "labels": {ZONE: zone}}}))
                        .unwrap();
                world.nodes.insert(zone.to_string(), node);
            }
            let nodes = pods.iter().copied().chain(std::iter::repeat_n("", unbound));
            for (i, node) in nodes.enumerate() {
                world
                    .pods
                    .insert(format!("u{i}"), Life::new(Arc::new(pod(node)), at(0)));
            }
            let bound = pod(pods.last().unwrap());
            let written = Observation::PodWritten {
                uid: "u",
                before: None,
                after: &bound,
            };
            assert_eq!(
                check(&written, &world).is_ok(),
                holds,
                "{zones:?} {pods:?} {unbound}"
            );
        }
    }
}
