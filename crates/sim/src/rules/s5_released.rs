//! S5, T6: a released pod (its node was declared out of service, or a user deleted it by force) is terminated as soon
//! as its node receives that, and no container of it is started again.

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;

use crate::finding::Finding;
use crate::world::{Observation, World};

/// The time from the end of all faults on a node until it has terminated such pods: it follows its pods (retries are
/// at most 5 s apart), polls its runtime (10 s), and gives a short grace period (30 s at most, if a call to the
/// runtime has to be repeated).
const NOTICED_WITHIN: SignedDuration = SignedDuration::from_secs(60);

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::Tick = seen else { return Ok(()) };
    for process in world.processes.values() {
        let Some(gone) = world.pods.get(&process.uid).and_then(|life| life.removed_at) else {
            continue;
        };
        let node = format!("node/{}", process.node);
        let Some(well) = world.all_well_since(|name| name == node) else {
            continue;
        };
        let since = world.now.duration_since(well.max(gone));
        if since > NOTICED_WITHIN {
            return Err(Finding(format!(
                "container {} of {} still runs on {}, which has been well for {since:#} since the pod left the store",
                process.container, process.name, process.node
            )));
        }
    }
    Ok(())
}
