//! N4, at each commit of a node's kernel: new connections go to the endpoints that are ready and do not terminate,
//! and to those that terminate and still serve only where there are no others (KEP-1669), by the Services and
//! EndpointSlices of the revisions that the node's agent has reached, computed here independently. And without faults
//! an endpoint is removed within a bound: the controllers write that it terminates, and each node's kernel follows.

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;

use super::n3_at_rest::differs;
use crate::finding::Finding;
use crate::world::{Observation, World};

/// From a change to its arrival, if all components involved have been free of faults for as long: leaders change; a request
/// whose answer was lost at the end of a fault is given up after 30 s, and the watch is then opened again after a back-off of
/// up to 30 s and half as much by its jitter.
const FOLLOWS_WITHIN: SignedDuration = SignedDuration::from_secs(90);

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    if !world.versions.is_kept() {
        return Ok(());
    }
    match seen {
        Observation::Programmed { node } => as_of(world, node),
        Observation::Tick => {
            slices_follow(world)?;
            kernels_follow(world)
        }
        _ => Ok(()),
    }
}

fn as_of(world: &World, node: &str) -> Result<(), Finding> {
    let (Some((services, slices)), Some(table)) = (world.reached.get(node), world.proxy_tables.get(node))
    else {
        return Ok(());
    };
    let all_services = world.versions.services.at(*services);
    // An agent that lists again applies one object after the other, and reports only at the end how far it is.
    let later = world.versions.slices.written_after(*slices);
    let revisions = std::iter::once(*slices).chain(later);
    let candidates: Vec<_> = revisions
        .map(|revision| world.versions.slices.at(revision))
        .collect();
    differs(node, table, &all_services, &candidates).map_err(|what| {
        Finding(format!(
            "as of {services} (Services) and {slices} (EndpointSlices), {what}"
        ))
    })
}

/// Whether these components have all been free of faults for long enough.
fn are_well(world: &World, of: impl Fn(&str) -> bool) -> bool {
    let since = world.all_well_since(of);
    since.is_some_and(|since| world.now.duration_since(since) >= FOLLOWS_WITHIN)
}

/// EndpointSlices do not offer pods that were deleted long ago.
fn slices_follow(world: &World) -> Result<(), Finding> {
    if !are_well(world, |name| name.starts_with("control")) {
        return Ok(());
    }
    for slice in world.slices.values() {
        let name = slice.metadata.name.as_deref().unwrap_or_default();
        for endpoint in slice.endpoints.iter().flatten() {
            let conditions = endpoint.conditions.clone().unwrap_or_default();
            let uid = endpoint
                .target_ref
                .as_ref()
                .and_then(|target| target.uid.as_deref());
            let Some(life) = uid.and_then(|uid| world.pods.get(uid)) else {
                continue;
            };
            let offered = conditions.ready != Some(false) && conditions.terminating != Some(true);
            let since = life.deleted_at.or(life.removed_at);
            let since = since.map(|at| world.now.duration_since(at));
            if let Some(since) = since.filter(|since| offered && *since > FOLLOWS_WITHIN) {
                let pod = life.pod.metadata.name.as_deref().unwrap_or_default();
                return Err(Finding(format!(
                    "EndpointSlice {name} offers {pod}, which was deleted {since:#} ago"
                )));
            }
        }
    }
    Ok(())
}

/// What was written long ago has reached the kernels.
fn kernels_follow(world: &World) -> Result<(), Finding> {
    let Ok(by) = world.now.checked_sub(FOLLOWS_WITHIN) else {
        return Ok(());
    };
    let (services, slices) = (
        world.versions.services.newest_by(by),
        world.versions.slices.newest_by(by),
    );
    for node in world.proxy_tables.keys() {
        let agent = format!("node/{node}");
        let (of_services, of_slices) = world.reached.get(node).copied().unwrap_or_default();
        if (of_services < services || of_slices < slices) && are_well(world, |name| name == agent) {
            return Err(Finding(format!(
                "the kernel of {node} is as of {of_services} (Services) and {of_slices} (EndpointSlices), \
                 expected {services} and {slices}, which were written {FOLLOWS_WITHIN:#} ago"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::world::Life;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A slice that offers a pod which was deleted at second 100, or says that it terminates.
    fn world(terminates: bool, now: i64) -> World {
        let mut world = World {
            now: at(now),
            ..World::default()
        };
        world.versions.keep();
        let slice = json!({
            "metadata": {"name": "s", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "ports": [{"port": 80}],
            "endpoints": [{
                "addresses": ["10.0.0.1"],
                "targetRef": {"kind": "Pod", "name": "a", "uid": "u"},
                "conditions": {"ready": !terminates, "serving": true, "terminating": terminates},
            }],
        });
        world
            .slices
            .insert("s".into(), serde_json::from_value(slice.clone()).unwrap());
        let text = slice.to_string();
        let key = "discovery.k8s.io/endpointslices/ns/s";
        world.versions.add(key, 7, at(100), Some(text.as_bytes()));
        let life = Life {
            deleted_at: Some(at(100)),
            ..Life::new(Arc::default(), at(0))
        };
        world.pods.insert("u".into(), life);
        world.proxy_tables.insert("n1".into(), Default::default());
        for name in ["control-a", "node/n1"] {
            world.well_since.insert(name.into(), Some(at(0)));
        }
        world
    }

    #[test]
    fn n4_a_slice_that_offers_what_was_deleted_long_ago_is_seen() {
        for (terminates, now, well_since, is_right) in [
            (false, 150, 0, true),
            (true, 200, 0, true),
            (false, 200, 0, false),
            (false, 200, 190, true),
        ] {
            let mut world = world(terminates, now);
            world.reached.insert("n1".into(), (7, 7));
            world.well_since.insert("control-a".into(), Some(at(well_since)));
            let found = check(&Observation::Tick, &world);
            assert_eq!(
                found.is_ok(),
                is_right,
                "{terminates} {now} {well_since}: {found:?}"
            );
        }
    }

    #[test]
    fn n4_a_kernel_that_does_not_follow_is_seen() {
        for (reached, now, well_since, is_right) in [
            (7, 200, 0, true),
            (6, 150, 0, true),
            (6, 200, 0, false),
            (6, 200, 190, true),
        ] {
            let mut world = world(true, now);
            world.reached.insert("n1".into(), (0, reached));
            world.well_since.insert("node/n1".into(), Some(at(well_since)));
            let found = check(&Observation::Tick, &world);
            assert_eq!(found.is_ok(), is_right, "{reached} {now} {well_since}: {found:?}");
        }
    }
}
