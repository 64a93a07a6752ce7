//! L2: a pod (UID) is bound once and never moves.

use crate::world::{Observation, World, node_of};

pub(crate) fn check(seen: &Observation<'_>, _: &World) -> Result<(), String> {
    let Observation::PodWritten {
        before: Some(before),
        after,
        ..
    } = seen
    else {
        return Ok(());
    };
    let (was, is) = (node_of(before), node_of(after));
    if !was.is_empty() && was != is {
        return Err(format!("a pod bound to {was:?} was moved to {is:?}"));
    }
    Ok(())
}
