//! S1: there are never two running sets of processes of one identity (namespace and name), nor two runs of one
//! container.
//!
//! Only pods with a chosen name are an identity: bare pods and, of controllers, those of a StatefulSet.

use crate::finding::Finding;
use crate::world::{Observation, World};

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::Started(new) = seen else {
        return Ok(());
    };
    for other in world.processes.values() {
        let itself = other.node == new.node && other.id == new.id;
        if itself || other.namespace != new.namespace || other.name != new.name {
            continue;
        }
        if other.uid != new.uid {
            // A user released one of them; that one may also be the later to start (its order was in progress).
            if world.is_released(&other.uid) || world.is_released(&new.uid) {
                continue;
            }
            return Err(Finding(format!(
                "{}/{} was started on {} while {} of the same name, another uid, runs on {}",
                new.name, new.container, new.node, other.container, other.node
            )));
        }
        if other.container == new.container {
            return Err(Finding(format!(
                "container {} of {} was started on {} while it runs on {}",
                new.container, new.name, new.node, other.node
            )));
        }
    }
    Ok(())
}
