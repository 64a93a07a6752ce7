//! S2: only a pod's own kubelet completes its deletion, after its processes have exited; every other component only
//! requests it, with the UID as a precondition. Only pods without a kubelet are deleted by force.

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::is_terminal;

use crate::finding::Finding;
use crate::world::{Life, Observation, World};

/// How long a node must have been missing before PodGC may delete its pods: 40 s by its own clock, which drifts.
const QUARANTINE: SignedDuration = SignedDuration::from_millis(39_900);
/// It reads the API once more before the request: the longest time between that read and the request.
const ASKS_WITHIN: SignedDuration = SignedDuration::from_secs(35);

/// Whether no component could have seen its node missing for long enough.
fn released_too_early(life: &Life, world: &World) -> bool {
    let Some(absence) = world.absences.get(life.node()) else {
        // It was bound to a node that never existed.
        return world.nodes.contains_key(life.node());
    };
    let until = absence.until.unwrap_or(world.now);
    until.duration_since(absence.from) < QUARANTINE || world.now.duration_since(until) > ASKS_WITHIN
}

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::DeleteAsked { by, name, options } = seen else {
        return Ok(());
    };
    let Some(uid) = &options.preconditions.uid else {
        return Err(Finding(format!(
            "{by} deletes pod {name} without saying which uid it means"
        )));
    };
    if options.grace_period_seconds != Some(0) {
        return Ok(());
    }
    let Some(life) = world.pods.get(uid) else {
        return Err(Finding(format!(
            "{by} deletes pod {name} of a uid that never was: {uid}"
        )));
    };
    match by.strip_prefix("node/") {
        Some(node) if life.node() != node => Err(Finding(format!(
            "{by} completes the deletion of {name}, which is bound to {:?}",
            life.node()
        ))),
        Some(_) => match world.of_pod(uid).next() {
            Some(process) if !life.released => Err(Finding(format!(
                "{by} completes the deletion of {name} while its container {} runs",
                process.container
            ))),
            _ => Ok(()),
        },
        None if life.node().is_empty() || is_terminal(&life.pod) => Ok(()),
        None if world.is_fenced(life.node()) => Ok(()),
        None if !life.released => Err(Finding(format!(
            "{by} removes {name} by force, which {} answers for",
            life.node()
        ))),
        None if life.declared_dead => Ok(()),
        None if released_too_early(life, world) => Err(Finding(format!(
            "{by} releases {name} although its node {} has not been missing for {QUARANTINE:#}",
            life.node()
        ))),
        None => Ok(()),
    }
}
