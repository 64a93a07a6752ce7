//! T1: a bound pod that has not terminated gets a deletionTimestamp before it is removed; its grace period is never
//! lengthened, and the deletionTimestamp is never removed.

use knarr_api::kinds::pod::is_terminal;

use crate::clocks::APART;
use crate::finding::Finding;
use crate::world::{Observation, World, node_of};

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    match seen {
        Observation::PodRemoved { uid, last } => {
            let unmarked = last.metadata.deletion_timestamp.is_none();
            if unmarked && !node_of(last).is_empty() && !is_terminal(last) && !world.is_released(uid) {
                return Err(Finding(
                    "a bound pod left the store without having been asked to end".into(),
                ));
            }
            Ok(())
        }
        Observation::PodWritten {
            before: Some(before),
            after,
            ..
        } => {
            let (was, is) = (&before.metadata, &after.metadata);
            let Some(deadline) = &was.deletion_timestamp else {
                return Ok(());
            };
            let Some(now) = &is.deletion_timestamp else {
                return Err(Finding("a deletion was taken back".into()));
            };
            // A deletionTimestamp in the past may be moved up to now, as Kubernetes does (by the clock of the server
            // that handles the request); that gives no more time.
            if now.0 > deadline.0.max(world.now + APART) {
                return Err(Finding(format!(
                    "a deletion was put off from {} to {}",
                    deadline.0, now.0
                )));
            }
            let (was, is) = (
                was.deletion_grace_period_seconds,
                is.deletion_grace_period_seconds,
            );
            if is > was || is.is_none() {
                return Err(Finding(format!(
                    "a deletion's grace changed from {was:?} to {is:?}"
                )));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}
