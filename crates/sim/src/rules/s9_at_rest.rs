//! S9: a cluster in which nothing is left to do writes only heartbeats: leases, each node's status every few minutes,
//! and events of containers. A component that keeps writing has not converged, and never will.

use k8s_openapi::api::core::v1::ContainerStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;

use crate::finding::Finding;
use crate::world::{Life, Observation, World};

/// A node's status is written every five minutes; clocks differ.
const NODE_WRITTEN_AFTER: SignedDuration = SignedDuration::from_secs(290);
/// What follows a container's start is written within this time.
const RESTARTED_WITHIN: SignedDuration = SignedDuration::from_secs(10);
/// The container that exits by itself again and again: its pod is never at rest.
const FAILS: &str = "fails";

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::Written { key } = seen else {
        return Ok(());
    };
    if key.starts_with("coordination.k8s.io/leases/") || key.starts_with("core/events/") {
        return Ok(());
    }
    // Between API servers: each renews its own key.
    if key.starts_with("masterleases/") {
        return Ok(());
    }
    // A policy's status forgets moves that are an hour old.
    if key.starts_with("placement.knarr.io/rebalancepolicies/") {
        return Ok(());
    }
    if world.placement.is_moving(world.now) {
        return Ok(());
    }
    if let Some(node) = key.strip_prefix("core/nodes/") {
        let before = world.node_written.get(node);
        let after = before.map(|at| world.now.duration_since(*at));
        return match after.filter(|after| *after < NODE_WRITTEN_AFTER) {
            Some(after) => Err(Finding(format!(
                "node {node} is written {after:#} after it was written, with nothing left to be done"
            ))),
            None => Ok(()),
        };
    }
    let pod = key.strip_prefix("core/pods/").and_then(|pod| pod.split_once('/'));
    if pod.is_some_and(|(namespace, name)| is_restarted(world, namespace, name)) {
        return Ok(());
    }
    Err(Finding(format!("{key} is written, with nothing left to be done")))
}

/// Whether a container of the pod exits again and again, or waited until a moment ago: a pod without a controller is at rest with a container
/// in back-off, which takes five minutes.
fn is_restarted(world: &World, namespace: &str, name: &str) -> bool {
    let named = |life: &&Life| {
        let meta = &life.pod.metadata;
        !life.removed() && meta.namespace.as_deref() == Some(namespace) && meta.name.as_deref() == Some(name)
    };
    let Some(pod) = world.pods.values().find(named).map(|life| &life.pod) else {
        return false;
    };
    let fails = pod
        .spec
        .as_ref()
        .is_some_and(|s| s.containers.iter().any(|c| c.name == FAILS));
    let lately = |at: &Time| world.now.duration_since(at.0) <= RESTARTED_WITHIN;
    let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_deref());
    let waits = |status: &ContainerStatus| {
        let state = status.state.as_ref();
        let started = state.and_then(|s| s.running.as_ref()?.started_at.as_ref());
        state.is_some_and(|s| s.waiting.is_some()) || started.is_some_and(lately)
    };
    fails || statuses.into_iter().flatten().any(waits)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::Pod;
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;

    /// Seed 1104000010: a budget of the hour held a move back until nothing else was left to be done.
    #[test]
    fn s9_what_follows_a_move_may_be_written_at_rest() {
        for (requested, holds) in [(None, false), (Some(995), true), (Some(900), false)] {
            let mut world = World {
                now: Timestamp::from_second(1_000).unwrap(),
                ..World::default()
            };
            world.placement.last_requested = requested.map(|at| Timestamp::from_second(at).unwrap());
            let key = "policy/poddisruptionbudgets/placed/spread";
            assert_eq!(
                check(&Observation::Written { key }, &world).is_ok(),
                holds,
                "{requested:?}"
            );
        }
    }

    /// Seed 980000140: a pod without a controller was in back-off when nothing else was left to be done.
    #[test]
    fn s9_a_pod_at_rest_may_be_written_once_its_back_off_is_over() {
        let running =
            |second: i64| json!({"running": {"startedAt": Timestamp::from_second(second).unwrap()}});
        for (container, state, holds) in [
            ("obeys", json!({"waiting": {"reason": "CrashLoopBackOff"}}), true),
            ("obeys", running(991), true),
            ("obeys", running(1), false),
            ("fails", running(1), true),
            ("obeys", json!({"terminated": {"exitCode": 0}}), false),
        ] {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"namespace": "metered", "name": "p7"}, "spec": {"containers": [{"name": container}]},
                "status": {"containerStatuses": [
                    {"name": container, "image": "i", "imageID": "i", "ready": false, "restartCount": 1, "state": state},
                ]},
            }))
            .unwrap();
            let world = World {
                now: Timestamp::from_second(1_000).unwrap(),
                pods: [("u".to_string(), Life::new(Arc::new(pod), Timestamp::UNIX_EPOCH))].into(),
                ..World::default()
            };
            let check = |key| check(&Observation::Written { key }, &world);
            assert_eq!(
                check("core/pods/metered/p7").is_ok(),
                holds,
                "{container} {state}"
            );
            assert!(check("core/pods/default/p7").is_err() && check("core/pods/metered/p8").is_err());
        }
    }
}
