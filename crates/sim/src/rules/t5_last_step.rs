//! T5: all processes have exited before the object is removed, and before its status says so; the last status is
//! final when it is removed.

use knarr_api::kinds::pod::is_terminal;

use crate::finding::Finding;
use crate::world::{Observation, World, node_of};

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let (uid, pod, what) = match seen {
        Observation::PodRemoved { uid, last } => (*uid, *last, "left the store"),
        Observation::PodWritten { uid, after, .. } if is_terminal(after) => {
            (*uid, *after, "is said to have ended")
        }
        _ => return Ok(()),
    };
    if world.is_released(uid) {
        return Ok(());
    }
    if let Some(process) = world.of_pod(uid).next()
        // PodGC removes it on the evidence that the node was off, and does not see that the pod has been started since.
        && !world.may_run_when_removed(uid)
    {
        return Err(Finding(format!(
            "the pod {what} while its container {} still runs on {}",
            process.container, process.node
        )));
    }
    let statuses = pod
        .status
        .iter()
        .flat_map(|s| s.container_statuses.iter().flatten());
    let running = statuses.filter(|c| c.state.as_ref().is_some_and(|s| s.running.is_some()));
    if let Some(running) = running.map(|c| &c.name).next()
        && !node_of(pod).is_empty()
        // A host that was switched off could not report how they exited.
        && !world.is_fenced(node_of(pod))
    {
        return Err(Finding(format!(
            "the pod {what}, its last status says that {running} runs"
        )));
    }
    Ok(())
}
