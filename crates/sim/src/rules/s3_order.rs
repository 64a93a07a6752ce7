//! S3: created, bound, started (init, then app), terminated, deleted: never backwards.

use crate::finding::Finding;
use crate::world::{Observation, World};

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::Started(process) = seen else {
        return Ok(());
    };
    let container = &process.container;
    let Some(life) = world.pods.get(&process.uid) else {
        return Err(Finding(format!(
            "container {container} runs for a pod that never was"
        )));
    };
    if life.node() != process.node {
        return Err(Finding(format!(
            "container {container} was started on {}, its pod is bound to {:?}",
            process.node,
            life.node()
        )));
    }
    if life.removed() && !life.released {
        return Err(Finding(format!(
            "container {container} was started after its pod had left the store"
        )));
    }
    let Some(spec) = &life.pod.spec else { return Ok(()) };
    if !spec.containers.iter().any(|c| c.name == *container) {
        return Ok(());
    }
    let inits = spec.init_containers.iter().flatten();
    let mut inits = inits.filter(|c| c.restart_policy.as_deref() != Some("Always"));
    // A new sandbox starts from the first init container again.
    let done = |name: &str| {
        life.completed
            .contains(&(name.to_string(), process.sandbox.clone()))
    };
    if let Some(first) = inits.find(|c| !done(&c.name)) {
        return Err(Finding(format!(
            "container {container} was started before init container {} was done",
            first.name
        )));
    }
    Ok(())
}
