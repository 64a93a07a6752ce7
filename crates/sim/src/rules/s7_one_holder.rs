//! S7: a disk without a lock of its own is never open on two nodes, or for two pods where it is for one. Forced deletions
//! change nothing of that; only who says of a node that it is gone for good takes its disks from it.

use crate::disks::Holder;
use crate::world::{Seen, World};

fn is_given_up(holder: &Holder, world: &World) -> bool {
    world.pods.get(&holder.uid).is_some_and(|life| life.given_up)
}

pub(crate) fn check(seen: &Seen<'_>, world: &World) -> Result<(), String> {
    let Seen::Opened { disk: name, by } = seen else {
        return Ok(());
    };
    let Some(disk) = world.disks.get(*name) else {
        return Err(format!("{} opens {name}, which is no disk", by.node));
    };
    for (other, since) in &disk.open {
        let apart = other.node != by.node || disk.one_pod && other.uid != by.uid;
        // Its order may have been under way when its own node was given up.
        if !apart || is_given_up(other, world) || is_given_up(by, world) {
            continue;
        }
        return Err(format!(
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
        ));
    }
    Ok(())
}
