//! S2: only a pod's own kubelet completes its deletion, after the processes are gone; every other component asks, and
//! says which uid it means. By force only what no kubelet answers for.

use crate::world::{Seen, World, is_finished};

pub(crate) fn check(seen: &Seen<'_>, world: &World) -> Result<(), String> {
    let Seen::DeleteAsked { by, name, options } = seen else {
        return Ok(());
    };
    let Some(uid) = &options.preconditions.uid else {
        return Err(format!(
            "{by} deletes pod {name} without saying which uid it means"
        ));
    };
    if options.grace_period_seconds != Some(0) {
        return Ok(());
    }
    let Some(life) = world.pods.get(uid) else {
        return Err(format!("{by} deletes pod {name} of a uid that never was: {uid}"));
    };
    match by.strip_prefix("node/") {
        Some(node) if life.node() != node => Err(format!(
            "{by} completes the deletion of {name}, which is bound to {:?}",
            life.node()
        )),
        Some(_) => match world.of_pod(uid).next() {
            Some(process) if !life.released => Err(format!(
                "{by} completes the deletion of {name} while its container {} runs",
                process.container
            )),
            _ => Ok(()),
        },
        None if life.node().is_empty() || life.released || is_finished(&life.pod) => Ok(()),
        None => Err(format!(
            "{by} removes {name} by force, which {} answers for",
            life.node()
        )),
    }
}
