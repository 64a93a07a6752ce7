//! B4: a pod that must not run twice (by its annotation or, where nodes are told so, by what it is) runs no longer where its
//! node's lease has not moved for the 40 s after which others may take the node for lost. A kubelet that died since, or whose runtime was not well, ends it
//! when it is back (docs/promises.md).

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_kubelet::self_fencing::LOST;

use crate::world::{Seen, World};

/// How long a kubelet that comes back, or whose runtime does, needs for what should have ended long ago, at the most.
const CATCHES_UP_WITHIN: SignedDuration = SignedDuration::from_secs(15);

/// What a node's hands are called among what is well or not: its kubelet and its runtime, whatever its link is like.
pub(crate) fn hands(node: &str) -> String {
    format!("hands/{node}")
}

pub(crate) fn check(seen: &Seen<'_>, world: &World) -> Result<(), String> {
    let Seen::Tick = seen else { return Ok(()) };
    let Ok(lost) = SignedDuration::try_from(LOST) else {
        return Ok(());
    };
    for process in world.processes.values() {
        let concerned = world
            .pods
            .get(&process.uid)
            .is_some_and(|life| world.is_fenced_by_its_node(&process.uid, &life.pod));
        let Some(renewed) = world.renewed.get(&process.node).filter(|_| concerned) else {
            continue;
        };
        let silent = world.now.duration_since(*renewed);
        let able = hands(&process.node);
        let able = world.all_well_since(|name| name == able);
        let in_time =
            |since: Timestamp| since <= *renewed || world.now.duration_since(since) >= CATCHES_UP_WITHIN;
        if silent >= lost && able.is_some_and(in_time) {
            return Err(format!(
                "container {} of {} still runs on {}, whose lease has not moved for {silent:#}",
                process.container, process.name, process.node
            ));
        }
    }
    Ok(())
}
