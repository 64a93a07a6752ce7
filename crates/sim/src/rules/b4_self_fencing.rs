//! B4: an at-most-one pod (by its annotation or, if nodes are configured so, by its kind) does not run where the
//! node's lease has not moved for the 40 s after which the node may be taken for lost. A kubelet that died in
//! between, or whose runtime was failing, terminates it when it is back (docs/promises.md).
//!
//! Where nodes' clocks have different rates, those within the bound terminate such a pod before the fastest clock
//! within the bound has counted these 40 s. A clock beyond the bound terminates it before it has counted 40 s itself,
//! which may be late for others: all other rules hold nevertheless.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_kubelet::self_fencing::{DRIFT_PERCENT, NODE_LOST_AFTER};

use crate::finding::Finding;
use crate::world::{Observation, World};

/// The longest time that a kubelet needs, after it or its runtime has come back, to terminate what should have
/// terminated long ago.
const CATCHES_UP_WITHIN: SignedDuration = SignedDuration::from_secs(15);

/// The name of a node's ability to act, among the components that are free of faults or not: its kubelet and its
/// runtime, whatever its link is like.
pub(crate) fn host_access(node: &str) -> String {
    format!("hands/{node}")
}

/// After this time without a renewal no such pod may run on this node.
fn ended_by(node: &str, world: &World) -> std::time::Duration {
    let Some(rate) = world.rates.get(node) else {
        return NODE_LOST_AFTER;
    };
    let by_the_fastest = NODE_LOST_AFTER * 100 / (100 + DRIFT_PERCENT);
    // KILL is ordered in time; a slow runtime carries it out later.
    let slowest = world.slowest.get(node).map_or(0, |slowest| slowest.as_millis());
    let by_the_fastest =
        by_the_fastest + std::time::Duration::from_millis(u64::try_from(slowest).unwrap_or(0));
    match rate.is_within_bound() {
        true => by_the_fastest,
        false => by_the_fastest.max(rate.passes(NODE_LOST_AFTER)),
    }
}

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::Tick = seen else { return Ok(()) };
    for process in world.processes.values() {
        let Some(renewed) = world.renewed.get(&process.node) else {
            continue;
        };
        let silent = world.now.duration_since(*renewed);
        let Ok(lost) = SignedDuration::try_from(ended_by(&process.node, world)) else {
            continue;
        };
        // Nearly always: this is asked every second.
        if silent < lost {
            continue;
        }
        let concerned = world
            .pods
            .get(&process.uid)
            .is_some_and(|life| world.is_fenced_by_its_node(&process.uid, &life.pod));
        if !concerned {
            continue;
        }
        let able = host_access(&process.node);
        let able = world.all_well_since(|name| name == able);
        // A container of the previous version does not say how it is to be terminated (docs/safety.md, Upgrades): a
        // kubelet that has not received its pod leaves it alone. Renewals may arrive at the API from a kubelet that
        // receives nothing.
        let made = (process.node.clone(), process.id.clone());
        let says_how = !world.made_by_former.contains(&made);
        let received = world.received.get(&process.node);
        let received = received.and_then(|pods| pods.get(&process.uid));
        let knows_how = says_how || received.is_some_and(|at| at <= renewed);
        let in_time = |since: Timestamp| {
            let long_ago = world.now.duration_since(since) >= CATCHES_UP_WITHIN;
            since <= *renewed && knows_how || says_how && long_ago
        };
        if able.is_some_and(in_time) {
            return Err(Finding(format!(
                "container {} of {} still runs on {}, whose lease has not moved for {silent:#}",
                process.container, process.name, process.node
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::world::{Life, Process};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A container of an at-most-one pod, 41 s after the last renewal.
    fn world() -> World {
        let pod = json!({"metadata": {"uid": "u", "annotations": {"knarr.io/at-most-one": "true"}}});
        let life = Life::new(Arc::new(serde_json::from_value(pod).unwrap()), at(0));
        let process = Process::example("c");
        let mut world = World {
            now: at(141),
            ..World::default()
        };
        world.pods.insert("u".into(), life);
        world.processes.insert(("n1".into(), "1".into()), process);
        world.renewed.insert("n1".into(), at(100));
        world
    }

    #[test]
    fn b4_a_container_of_the_previous_version_is_terminated_by_a_kubelet_that_has_received_its_pod() {
        let of_former = ("n1".to_string(), "1".to_string());
        for (able_since, by_former, received, is_broken) in [
            (90, false, None, true),
            (90, true, Some(95), true),
            (90, true, Some(105), false),
            (90, true, None, false),
            // It started after the last renewal.
            (110, false, None, true),
            (130, false, None, false),
            (110, true, Some(112), false),
        ] {
            let mut world = world();
            world.well_since.insert(host_access("n1"), Some(at(able_since)));
            world.made_by_former.extend(by_former.then(|| of_former.clone()));
            let pods = received.map(|second| ("u".to_string(), at(second)));
            world.received.insert("n1".into(), pods.into_iter().collect());
            let found = check(&Observation::Tick, &world);
            assert_eq!(
                found.is_err(),
                is_broken,
                "{able_since} {by_former} {received:?}: {found:?}"
            );
        }
    }
}
