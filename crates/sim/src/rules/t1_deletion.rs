//! T1: a bound pod that has not ended is marked before it goes; the time it is given is never lengthened, and the
//! mark never taken back.

use crate::clocks::APART;
use crate::world::{Seen, World, is_finished, node_of};

pub(crate) fn check(seen: &Seen<'_>, world: &World) -> Result<(), String> {
    match seen {
        Seen::PodRemoved { uid, last } => {
            let unmarked = last.metadata.deletion_timestamp.is_none();
            if unmarked && !node_of(last).is_empty() && !is_finished(last) && !world.is_released(uid) {
                return Err("a bound pod left the store without having been asked to end".into());
            }
            Ok(())
        }
        Seen::PodWritten {
            before: Some(before),
            after,
            ..
        } => {
            let (was, is) = (&before.metadata, &after.metadata);
            let Some(deadline) = &was.deletion_timestamp else {
                return Ok(());
            };
            let Some(now) = &is.deletion_timestamp else {
                return Err("a deletion was taken back".into());
            };
            // One that has passed may be moved up to now, as Kubernetes does (by the clock of whichever server is asked);
            // nothing is given by that.
            if now.0 > deadline.0.max(world.now + APART) {
                return Err(format!("a deletion was put off from {} to {}", deadline.0, now.0));
            }
            let (was, is) = (
                was.deletion_grace_period_seconds,
                is.deletion_grace_period_seconds,
            );
            if is > was || is.is_none() {
                return Err(format!("a deletion's grace went from {was:?} to {is:?}"));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}
