//! S8: a DaemonSet does not have a second pod on a node while the one before is still terminating. The pods have
//! generated names, so only the controller itself ensures this; it holds if every controller has had time to see that
//! pod. A pod that a controller has seen stays known to it: a cache that falls behind later still has it.

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::is_terminal;

use crate::finding::Finding;
use crate::world::{Observation, World, node_of, owner};

/// The longest time that a request of a component without faults is in progress: a late one arrives 20 s after it was
/// sent, an unanswered one is given up after 30 s.
const KNOWN_AFTER: SignedDuration = SignedDuration::from_secs(60);
/// The time in which a controller without faults receives a pod; watches lag by a second at most.
const NOTICED_WITHIN: SignedDuration = SignedDuration::from_secs(5);

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::PodWritten { uid, before, after } = seen else {
        return Ok(());
    };
    let node = node_of(after);
    let bound = !node.is_empty() && before.is_none_or(|before| node_of(before).is_empty());
    let Some(set) = owner(after, "DaemonSet").filter(|_| bound) else {
        return Ok(());
    };
    // The controller decided then, however much later the scheduler bound it.
    let created = world.pods.get(*uid).map_or(world.now, |life| life.first_seen);
    for (other, life) in &world.pods {
        let known = created.checked_sub(KNOWN_AFTER).is_ok_and(|by| {
            let controllers = |name: &str| name.starts_with("control");
            by >= life.first_seen && world.each_was_well(controllers, life.first_seen..by, NOTICED_WITHIN)
        });
        let holds = !life.removed() && !life.released && !is_terminal(&life.pod);
        if other != uid
            && known
            && holds
            && life.node() == node
            && owner(&life.pod, "DaemonSet") == Some(set)
            && world.of_pod(other).next().is_some()
        {
            return Err(Finding(format!(
                "a DaemonSet's pod was placed on {node} while {} of the same set still runs there",
                life.pod.metadata.name.as_deref().unwrap_or_default()
            )));
        }
    }
    Ok(())
}
