//! T5: processes are gone before the object is, and before it says that they are; the last status stands when it goes.

use crate::world::{Seen, World, is_finished, node_of};

pub(crate) fn check(seen: &Seen<'_>, world: &World) -> Result<(), String> {
    let (uid, pod, what) = match seen {
        Seen::PodRemoved { uid, last } => (*uid, *last, "left the store"),
        Seen::PodWritten { uid, after, .. } if is_finished(after) => (*uid, *after, "is said to have ended"),
        _ => return Ok(()),
    };
    if world.is_released(uid) {
        return Ok(());
    }
    if let Some(process) = world.of_pod(uid).next() {
        return Err(format!(
            "the pod {what} while its container {} still runs on {}",
            process.container, process.node
        ));
    }
    let statuses = pod
        .status
        .iter()
        .flat_map(|s| s.container_statuses.iter().flatten());
    let running = statuses.filter(|c| c.state.as_ref().is_some_and(|s| s.running.is_some()));
    if let Some(running) = running.map(|c| &c.name).next()
        && !node_of(pod).is_empty()
        // Whoever was switched off could not say how it ended.
        && !world.is_fenced(node_of(pod))
    {
        return Err(format!(
            "the pod {what}, its last status says that {running} runs"
        ));
    }
    Ok(())
}
