//! B4: a pod whose user asked for at most one (the annotation) runs no longer where its node's lease has not moved for the
//! 40 s after which others may take the node for lost. A kubelet that died since, or whose runtime was not well, ends it
//! when it is back (docs/promises.md).

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::AT_MOST_ONE;
use knarr_kubelet::self_fencing::LOST;

use crate::world::{Seen, World};

/// How long a kubelet that comes back, or whose runtime does, needs for what should have ended long ago, at the most.
const CATCHES_UP_WITHIN: SignedDuration = SignedDuration::from_secs(15);

/// What a node's hands are called among what is well or not: its kubelet and its runtime, whatever its link is like.
pub(crate) fn hands(node: &str) -> String {
    format!("hands/{node}")
}

/// Whether a user asked for its end where its node is cut off.
pub(crate) fn is_asked_for(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations
        .and_then(|a| a.get(AT_MOST_ONE))
        .is_some_and(|v| v == "true")
}

pub(crate) fn check(seen: &Seen<'_>, world: &World) -> Result<(), String> {
    let Seen::Tick = seen else { return Ok(()) };
    let Ok(lost) = SignedDuration::try_from(LOST) else {
        return Ok(());
    };
    for process in world.processes.values() {
        let asked_for = world
            .pods
            .get(&process.uid)
            .is_some_and(|life| is_asked_for(&life.pod));
        let Some(renewed) = world.renewed.get(&process.node).filter(|_| asked_for) else {
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
