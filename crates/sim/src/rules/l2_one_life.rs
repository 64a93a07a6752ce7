//! L2: a pod (UID) is bound once and never moves.

use crate::finding::Finding;
use crate::world::{Observation, World, node_of};

pub(crate) fn check(seen: &Observation<'_>, _: &World) -> Result<(), Finding> {
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
        return Err(Finding(format!("a pod bound to {was:?} was moved to {is:?}")));
    }
    Ok(())
}
