//! S6: a node is reported as fenced, and its pods and disks are released, only after it was off since its fencing
//! began. That nothing of it runs or has a disk open by then, S1, S7 and T5 check: they make no exception for a
//! fenced node, except T5 for pods that may run twice and were started when the node was switched on again.

use crate::finding::Finding;
use crate::world::{Observation, World};

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::Fenced { fencing, node } = seen else {
        return Ok(());
    };
    let began = world.fencings.get(*fencing);
    let switch = world.switches.get(*node).copied().unwrap_or_default();
    if switch.off || switch.last_off.as_ref() >= began {
        return Ok(());
    }
    Err(Finding(format!(
        "{fencing} says that {node} is fenced, and it is not and was not off since agents began"
    )))
}
