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
    let fewest = zones.iter().map(|zone| pods(zone)).min().unwrap_or_default();
    match pods(zone) > fewest + SKEW_MAX {
        true => Err(Finding(format!(
            "{} is bound in {zone}, which has {} pods then; another zone of {zones:?} has {fewest}",
            after.metadata.name.as_deref().unwrap_or_default(),
            pods(zone)
        ))),
        false => Ok(()),
    }
}
