//! A jump of the wall clock: what was due in ten seconds is still due in ten seconds.
//!
//! Deadlines are kept as wall clock times, as all other times of a pod are. When the clock jumps, all times that are
//! waited for or measured from move with it; reported times (starts and terminations of containers) stay as they were
//! reported, and their offset from the clock is kept next to them. So no container is killed early, and none waits for a
//! time that the clock reaches hours later.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::Pod;

/// Moves a time by a jump of the clock; at the limits of `Timestamp` it saturates.
pub(crate) fn move_by(at: &mut Timestamp, by: SignedDuration) {
    *at = moved(*at, by);
}

pub(crate) fn moved(at: Timestamp, by: SignedDuration) -> Timestamp {
    let end = if by.is_negative() {
        Timestamp::MIN
    } else {
        Timestamp::MAX
    };
    at.checked_add(by).unwrap_or(end)
}

impl Pod {
    pub(super) fn clock_jumped(&mut self, by: SignedDuration) {
        self.volumes.clock_jumped(by);
        self.sandboxes.clock_jumped(by);
        self.barrier.clock_jumped(by);
        self.eviction.clock_jumped(by);
        self.resize.clock_jumped(by);
        self.status.clock_jumped(by);
        if let Some(at) = &mut self.probing_since {
            move_by(at, by);
        }
        if let Some(termination) = &mut self.termination {
            termination.clock_jumped(by);
        }
        for container in &mut self.containers {
            container.clock_jumped(by);
        }
    }
}
