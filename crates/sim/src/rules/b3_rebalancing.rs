//! B3: the rebalancer does not oscillate: it moves nothing once the cluster is at rest, and a workload within an hour no more often
//! than its policy allows.

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;

use crate::finding::Finding;
use crate::placement::{SPREAD, is_of};
use crate::world::{Observation, World};

/// The time that budgets are for; the controllers' clocks are at most a minute apart.
const HOUR: SignedDuration = SignedDuration::from_mins(59);

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let placement = &world.placement;
    match seen {
        // What was held back for an hour may be moved after it, until the policy reports that nothing is left to be moved.
        Observation::MoveAsked { name } if world.resting && !placement.is_held => Err(Finding(format!(
            "the rebalancer evicts {name}, with nothing left to be done"
        ))),
        Observation::PodWritten { after, .. } if is_of(after, SPREAD) => {
            let Some(most) = placement.moves_per_hour else {
                return Ok(());
            };
            let lately = placement
                .moves
                .iter()
                .filter(|at| world.now.duration_since(**at) < HOUR);
            match lately.count() {
                moves if moves > most => Err(Finding(format!(
                    "the rebalancer has moved {SPREAD} {moves} times within an hour, its policy allows {most}"
                ))),
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}
