//! B6: surge-first eviction. A Ready pod that has opted in is evicted when its replacement is Ready, or ten minutes after the first
//! request; and at rest its ReplicaSet has no pod too many.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::surge_first::{WINDOW, is_surge_first};
use knarr_api::kinds::pod::{is_active, is_ready};

use super::placed::{is_calm, of_set};
use crate::finding::Finding;
use crate::placement::{KNOWN_AFTER, NAMESPACE, SPREAD, is_of, is_recorded};
use crate::world::{Observation, World, controller, disrupted_by};

/// The clocks of the servers are less than this apart, in seconds.
const CLOCKS_APART_SECONDS: i64 = 60;
/// How long an eviction waits at least, by the true time.
const WAITS: SignedDuration = SignedDuration::from_secs(WINDOW.as_secs() - CLOCKS_APART_SECONDS);
/// What a server knows of other pods may be so old, and [`KNOWN_AFTER`] while all are well. The pod itself is compared with
/// the store.
const OLD: SignedDuration = SignedDuration::from_secs(120);

fn evicted(uid: &str, before: &Pod, world: &World) -> Result<(), Finding> {
    let name = before.metadata.name.as_deref().unwrap_or_default();
    let Some(requested) = world.placement.recorded.get(uid).filter(|_| is_recorded(before)) else {
        return Err(Finding(format!(
            "{name} is evicted, and no request is recorded on it"
        )));
    };
    let set = controller(before)
        .map(|owner| owner.uid.as_str())
        .unwrap_or_default();
    let Some(wanted) = world.placement.sets.get(set) else {
        return Ok(());
    };
    let old = if is_calm(world) { KNOWN_AFTER } else { OLD };
    let lately = |at| world.now.duration_since(at) <= old;
    if world.now.duration_since(*requested) >= WAITS || lately(wanted.since) {
        return Ok(());
    }
    // Those that are being replaced do not count, nor do those that have been unready for long.
    let counts = |(uid, life): &(&String, &crate::world::Life)| {
        let was_there = life.removed_at.is_none_or(lately) && life.deleted_at.is_none_or(lately);
        let was_ready = is_ready(&life.pod) || world.placement.ready.get(*uid).is_some_and(|at| lately(*at));
        // A record that is older than the window counts no more (seed 982000091); the servers' clocks differ.
        let recorded = world.placement.recorded.get(*uid);
        let is_replaced = recorded.is_some_and(|at| !lately(*at) && world.now.duration_since(*at) < WAITS);
        let of_set = controller(&life.pod).is_some_and(|owner| owner.uid == set);
        of_set && was_there && was_ready && !is_replaced
    };
    let others = world.pods.iter().filter(|(of, _)| of.as_str() != uid);
    let ready = others.filter(counts).count();
    match ready < wanted.count {
        true => Err(Finding(format!(
            "{name} is evicted before it is replaced: {ready} other pods are Ready, {} are wanted",
            wanted.count
        ))),
        false => Ok(()),
    }
}

fn at_rest(world: &World) -> Result<(), Finding> {
    for (set, wanted) in &world.placement.sets {
        let active = |pod: &&Pod| is_of(pod, SPREAD) && is_active(pod);
        let pods = of_set(world, set).filter(active).count();
        if pods > wanted.count {
            return Err(Finding(format!(
                "{NAMESPACE}/{SPREAD} has {pods} pods of {}, with nothing left to be done",
                wanted.count
            )));
        }
    }
    Ok(())
}

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    match seen {
        Observation::PodWritten {
            uid,
            before: Some(before),
            after,
        } if is_of(after, SPREAD) => {
            let is_evicted = |pod: &Pod| disrupted_by(pod) == Some("EvictionByEvictionAPI");
            let waits =
                is_surge_first(before) && is_ready(before) && before.metadata.deletion_timestamp.is_none();
            match waits && is_evicted(after) && !is_evicted(before) {
                true => evicted(uid, before, world),
                false => Ok(()),
            }
        }
        // What was held back for an hour may be moved at rest, and is then replaced first.
        Observation::Tick if world.resting && !world.placement.is_moving(world.now) => at_rest(world),
        _ => Ok(()),
    }
}
