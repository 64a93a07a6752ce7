//! B3: scaling down deletes from the fullest zone, if nothing that comes first decides: all pods are Ready, and none is being replaced.

use knarr_api::kinds::pod;

use super::placed::{counts, is_calm, zone_of_node};
use crate::finding::Finding;
use crate::placement::{KNOWN_AFTER, SPREAD, is_of, is_recorded};
use crate::world::{Life, Observation, World, is_ready};

/// Whether it is equal to every other such pod in all that comes before the spread.
fn is_plain(life: &Life, world: &World) -> bool {
    let node = world.nodes.get(life.node());
    let is_well = node.is_some_and(|node| {
        let mut taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
        // The constraint honors taints: pods of a cordoned node do not count.
        is_ready(node) && !taints.any(|taint| taint.effect != "PreferNoSchedule")
    });
    is_well && pod::is_ready(&life.pod) && !is_recorded(&life.pod)
}

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::DeleteAsked { by, name, options } = seen else {
        return Ok(());
    };
    let uid = options.preconditions.uid.as_deref().unwrap_or_default();
    let placement = &world.placement;
    // One that is being deleted is not removed by scaling down, but with its lost node.
    let is_scaled = |life: &&Life| is_of(&life.pod, SPREAD) && life.deleted_at.is_none();
    let Some(life) = world.pods.get(uid).filter(is_scaled) else {
        return Ok(());
    };
    let mut siblings = world
        .pods
        .values()
        .filter(|life| !life.removed() && life.deleted_at.is_none() && is_of(&life.pod, SPREAD));
    let is_decided_by_spread = placement.scales_down_by_spread
        && by.starts_with("control-")
        && world.now.duration_since(placement.changed) >= KNOWN_AFTER
        && is_calm(world)
        && siblings.all(|life| is_plain(life, world));
    let Some(zone) = zone_of_node(world, life.node()).filter(|_| is_decided_by_spread) else {
        return Ok(());
    };
    let others = counts(world, true);
    // The pod itself is marked already.
    let has = others.get(zone).copied().unwrap_or_default() + 1;
    match others.values().copied().max().filter(|most| *most > has) {
        Some(most) => Err(Finding(format!(
            "{name} is deleted in {zone}, which has {has} pods, and another zone has {most}"
        ))),
        None => Ok(()),
    }
}
