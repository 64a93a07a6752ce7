//! S9: a cluster in which nothing is left to do writes only heartbeats: leases, each node's status every few minutes,
//! and events of containers. A component that keeps writing has not converged, and never will.

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;

use crate::finding::Finding;
use crate::world::{Observation, World};

/// A node's status is written every five minutes; clocks differ.
const NODE_WRITTEN_AFTER: SignedDuration = SignedDuration::from_secs(290);
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
    if let Some(pod) = key.strip_prefix("core/pods/")
        && world.pods.values().any(|life| {
            let meta = &life.pod.metadata;
            let named = Some(pod)
                == meta
                    .namespace
                    .as_deref()
                    .zip(meta.name.as_deref())
                    .map(|(n, m)| format!("{n}/{m}"))
                    .as_deref();
            let spec = life.pod.spec.as_ref();
            named && !life.removed() && spec.is_some_and(|s| s.containers.iter().any(|c| c.name == FAILS))
        })
    {
        return Ok(());
    }
    Err(Finding(format!("{key} is written, with nothing left to be done")))
}
