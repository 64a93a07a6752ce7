//! T2: a pod that was told to end does: on a node that is well nothing outlives its grace by much.

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;

use crate::world::{Seen, World};

/// What a runtime that fails now and then may cost: each failure gives the whole grace again (T4).
const GRACES: i32 = 3;
/// Besides: orders that are slow, lists that have to be asked for again.
const SLACK: SignedDuration = SignedDuration::from_secs(60);

pub(crate) fn check(seen: &Seen<'_>, world: &World) -> Result<(), String> {
    let Seen::Tick = seen else { return Ok(()) };
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
        let asked = (deadline.0 - grace).max(well);
        // By the clock of its node, and by any other's.
        let passed = world.now.duration_since(asked);
        let had = world.rate(&process.node).counted_signed(passed).min(passed);
        if had > grace * GRACES + SLACK {
            return Err(format!(
                "container {} of {} still runs on {}, {had:#} after it was to end within {grace:#}",
                process.container, process.name, process.node
            ));
        }
    }
    Ok(())
}
