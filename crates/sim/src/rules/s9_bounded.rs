//! S9: a controller does not create pods without end. The largest workload of a history has some ten pods; those that
//! terminate, have finished or are lost with their node come on top while faults last; two managers that disagree,
//! because of an old view or of their clocks, make more of them: each pod that one deletes terminates for its grace period.

use crate::finding::Finding;
use crate::world::{Observation, POD_COUNT, World, controller};

/// The most pods of one controller, finished and terminating ones included.
const PODS_MAX: usize = 100;

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::PodWritten {
        before: None, after, ..
    } = seen
    else {
        return Ok(());
    };
    let Some(owner) = controller(after) else {
        return Ok(());
    };
    let lives = world.pods.values().filter(|life| !life.removed());
    let siblings = lives
        .filter(|life| controller(&life.pod).is_some_and(|of| of.uid == owner.uid))
        .count();
    let most = if world.has_manager_without_lease() {
        POD_COUNT
    } else {
        PODS_MAX
    };
    if siblings <= most {
        return Ok(());
    }
    Err(Finding(format!(
        "{} {} has {siblings} pods: more than {most} are created without end",
        owner.kind, owner.name
    )))
}
