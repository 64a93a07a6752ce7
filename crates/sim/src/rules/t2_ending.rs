//! T2: a pod that was deleted terminates: on a node without faults nothing runs for much longer than its grace
//! period.

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;

use crate::finding::Finding;
use crate::world::{Observation, World};

/// The cost of a runtime that fails now and then: each failure starts the grace period again (T4).
const GRACES: i32 = 3;
/// In addition: slow calls, lists that have to be repeated.
const SLACK: SignedDuration = SignedDuration::from_secs(60);

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::Tick = seen else { return Ok(()) };
    for process in world.processes.values() {
        let Some(life) = world.pods.get(&process.uid).filter(|life| !life.removed()) else {
            continue;
        };
        let meta = &life.pod.metadata;
        let (Some(deadline), Some(grace)) = (&meta.deletion_timestamp, meta.deletion_grace_period_seconds)
        else {
            continue;
        };
        let grace = SignedDuration::from_secs(grace);
        let node = format!("node/{}", process.node);
        let Some(well) = world.all_well_since(|name| name == node) else {
            continue;
        };
        let stop_requested = (deadline.0 - grace).max(well);
        // By the clock of its node, and by any other's.
        let passed = world.now.duration_since(stop_requested);
        let had = world.rate(&process.node).counted_signed(passed).min(passed);
        if had > grace * GRACES + SLACK {
            return Err(Finding(format!(
                "container {} of {} still runs on {}, {had:#} after it was to end within {grace:#}",
                process.container, process.name, process.node
            )));
        }
    }
    Ok(())
}
