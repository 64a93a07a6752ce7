//! S7: a disk without a lock of its own is never open on two nodes, or for two pods if it is for one. Forced
//! deletions do not change that; only the out-of-service taint of a node takes its disks from it.

use crate::finding::Finding;
use crate::world::{Holder, Observation, World};

fn is_given_up(holder: &Holder, world: &World) -> bool {
    world.pods.get(&holder.uid).is_some_and(|life| life.given_up)
}

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::Opened { disk: name, by } = seen else {
        return Ok(());
    };
    let Some(disk) = world.disks.get(*name) else {
        return Err(Finding(format!("{} opens {name}, which is no disk", by.node)));
    };
    for (other, since) in &disk.open {
        let apart = other.node != by.node || disk.one_pod && other.uid != by.uid;
        // Its order may have been in progress when its own node was declared out of service.
        if !apart || is_given_up(other, world) || is_given_up(by, world) {
            continue;
        }
        return Err(Finding(format!(
            "{name} is opened on {} for pod {} while {} has had it open for pod {} for {:#}{}",
            by.node,
            by.uid,
            other.node,
            other.uid,
            world.now.duration_since(*since),
            if disk.one_pod {
                ", and it is for one pod"
            } else {
                ""
            }
        )));
    }
    Ok(())
}
