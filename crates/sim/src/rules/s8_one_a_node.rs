//! S8: a DaemonSet's pod is not doubled on its node while the one before still ends. Its names are made up, so only the
//! controller's own care keeps it so; it holds where every controller has had time to see that pod. What it has seen it
//! does not forget: a cache that falls behind later still has that pod.

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;

use crate::world::{Seen, World, is_finished, node_of, owner};

/// No request is under way for longer where its sender is well: a late one comes 20 s after it was sent, an unanswered one
/// is given up after 30 s.
const KNOWN_AFTER: SignedDuration = SignedDuration::from_secs(60);
/// In which a controller that is well hears of a pod; watches lag by a second at the most.
const HEARS_WITHIN: SignedDuration = SignedDuration::from_secs(5);

pub(crate) fn check(seen: &Seen<'_>, world: &World) -> Result<(), String> {
    let Seen::PodWritten { uid, before, after } = seen else {
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
            by >= life.first_seen && world.each_was_well(controllers, (life.first_seen, by), HEARS_WITHIN)
        });
        let holds = !life.removed() && !life.released && !is_finished(&life.pod);
        if other != uid
            && known
            && holds
            && life.node() == node
            && owner(&life.pod, "DaemonSet") == Some(set)
            && world.of_pod(other).next().is_some()
        {
            return Err(format!(
                "a DaemonSet's pod was placed on {node} while {} of the same set still runs there",
                life.pod.metadata.name.as_deref().unwrap_or_default()
            ));
        }
    }
    Ok(())
}
