//! S6: a node is said to be fenced, and its pods and disks are released, only after it was off since its fencing began.
//! That nothing of it runs or has a disk open when they are, S1, S7 and T5 see: a fenced node excuses nothing.

use crate::world::{Seen, World};

pub(crate) fn check(seen: &Seen<'_>, world: &World) -> Result<(), String> {
    let Seen::Fenced { fencing, node } = seen else {
        return Ok(());
    };
    let began = world.fencings.get(*fencing);
    let switch = world.switches.get(*node).copied().unwrap_or_default();
    if switch.off || switch.last_off.as_ref() >= began {
        return Ok(());
    }
    Err(format!(
        "{fencing} says that {node} is fenced, and it is not and was not off since agents began"
    ))
}
