//! S5, T6: what was released (its node was said to be gone for good, or somebody used force) ends as soon as its node
//! hears of it, and nothing of it is started again.

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;

use crate::world::{Seen, World};

/// From a node's being well to its having ended what it should not have: it follows its pods (it may have to try again, at
/// most 5 s apart), looks at its runtime (10 s), and gives what it ends a short grace (30 s at most, where a
/// call to the runtime has to be made again).
const HEARS_WITHIN: SignedDuration = SignedDuration::from_secs(60);

pub(crate) fn check(seen: &Seen<'_>, world: &World) -> Result<(), String> {
    let Seen::Tick = seen else { return Ok(()) };
    for process in world.processes.values() {
        let Some(gone) = world.pods.get(&process.uid).and_then(|life| life.removed_at) else {
            continue;
        };
        let node = format!("node/{}", process.node);
        let Some(well) = world.all_well_since(|name| name == node) else {
            continue;
        };
        let since = world.now.duration_since(well.max(gone));
        if since > HEARS_WITHIN {
            return Err(format!(
                "container {} of {} still runs on {}, which has been well for {since:#} since the pod left the store",
                process.container, process.name, process.node
            ));
        }
    }
    Ok(())
}
