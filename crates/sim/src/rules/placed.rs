//! What the rules on knarr's own placement (B3, B5, B6) have in common.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;

use super::quota::SERVERS;
use crate::placement::{KNOWN_AFTER, SPREAD, ZONE, is_of};
use crate::world::{World, controller, node_of};

/// Whether the controllers and the servers have been free of faults for so long that they know everything that was written
/// before. It is never the case with a controller manager that ignores the lease: two schedulers, or two controllers of one
/// ReplicaSet, do not know of each other's decisions.
pub(crate) fn is_calm(world: &World) -> bool {
    let deciding = |name: &str| name == SERVERS || name.starts_with("control-");
    let since = world.all_well_since(deciding);
    !world.has_manager_without_lease()
        && since.is_some_and(|since| world.now.duration_since(since) >= KNOWN_AFTER)
}

/// The zone of this node, if it exists.
pub(crate) fn zone_of_node<'a>(world: &'a World, node: &str) -> Option<&'a str> {
    let labels = world.nodes.get(node)?.metadata.labels.as_ref()?;
    labels.get(ZONE).map(String::as_str)
}

/// How many pods of [`SPREAD`] that stay are in each zone.
pub(crate) fn counts(world: &World, without_requested: bool) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for life in world.pods.values() {
        let stays =
            !life.removed() && life.deleted_at.is_none() && !(without_requested && life.deletion_requested);
        if stays
            && is_of(&life.pod, SPREAD)
            && let Some(zone) = zone_of_node(world, node_of(&life.pod))
        {
            *counts.entry(zone).or_default() += 1;
        }
    }
    counts
}

/// The pods of a ReplicaSet that exist.
pub(crate) fn of_set<'a>(world: &'a World, set: &'a str) -> impl Iterator<Item = &'a Pod> {
    let lives = world.pods.values().filter(|life| !life.removed());
    let pods = lives.map(|life| &*life.pod);
    pods.filter(move |pod| controller(pod).is_some_and(|owner| owner.uid == set))
}
