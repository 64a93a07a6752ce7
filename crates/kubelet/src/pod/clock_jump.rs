//! The wall clock is set: what was to happen in ten seconds still happens in ten seconds.
//!
//! Waits are kept as times of day, as everything else of a pod is told in them. When the clock jumps, all times that
//! something is waited for or measured from move along; times that are shown (starts and ends of containers) stay as
//! they were told, and how far they are off is kept beside them. Nobody is killed early for it, and nobody waits for
//! a time that the clock will only reach in hours.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::barrier::Barrier;
use super::container::{Container, Work};
use super::sandbox::Sandbox;
use super::{Pod, Volumes};

/// Moves a time by a jump of the clock; at the ends of time it stops.
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
        let waits = [
            match &mut self.volumes {
                Volumes::Wanted { not_before } => not_before.as_mut(),
                _ => None,
            },
            match &mut self.sandbox {
                Sandbox::Wanted { not_before } => not_before.as_mut(),
                _ => None,
            },
            match &mut self.barrier {
                Barrier::Closed { until } => Some(until),
                Barrier::Open => None,
            },
            self.sandbox_made_at.as_mut(),
            self.probing_since.as_mut(),
            self.eviction.as_mut().map(|(_, since)| since),
        ];
        for at in waits.into_iter().flatten().chain(self.resize.waits()) {
            move_by(at, by);
        }
        self.start_time_off += by;
        if let Some(ending) = &mut self.ending {
            ending.clock_jumped(by);
        }
        for container in &mut self.containers {
            container.clock_jumped(by);
        }
    }
}

impl Container {
    fn clock_jumped(&mut self, by: SignedDuration) {
        let waits = [
            self.retry_at.as_mut(),
            self.pull_failed.as_mut().map(|(at, _)| at),
            self.told_back_off.as_mut(),
            self.show_back_off_at.as_mut(),
        ];
        let probes = self.probes.iter_mut().map(|probe| probe.next_at.as_mut());
        for at in waits.into_iter().chain(probes).flatten() {
            move_by(at, by);
        }
        self.crash.clock_jumped(by);
        self.pull.clock_jumped(by);
        if let Work::Stopping(stop) = &mut self.work {
            stop.clock_jumped(by);
        }
        self.run_off += by;
        self.previous_off += by;
    }
}
