//! Detects that the wall clock was set: it moved otherwise than the steady clock.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_client::{Clock, TokioClock};

/// Slewing, or the delay between two readings on a busy host, is no jump.
const JUMP: SignedDuration = SignedDuration::from_secs(1);

/// What the wall clock would show had it not been set since its last jump.
#[derive(Clone, Copy, Debug)]
pub(super) struct WallClock(TokioClock);

impl WallClock {
    /// It is `now`.
    pub(super) fn new(now: Timestamp) -> Self {
        WallClock(TokioClock::new(now))
    }

    /// How far it has jumped since the last jump: forward is positive. Small differences add up until they are one,
    /// unless they go away again.
    pub(super) fn jumped(&mut self, now: Timestamp) -> Option<SignedDuration> {
        let by = now.duration_since(self.0.now());
        if by.abs() < JUMP {
            return None;
        }
        *self = WallClock::new(now);
        Some(by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_jump_is_a_step_of_the_wall_clock_that_the_steady_clock_did_not_make() {
        let begin = Timestamp::from_second(1_800_000_000).unwrap();
        let mut clock = WallClock::new(begin);
        let seconds = SignedDuration::from_secs;
        tokio::time::advance(std::time::Duration::from_secs(10)).await;
        assert_eq!(clock.jumped(begin + seconds(10)), None);
        tokio::time::advance(std::time::Duration::from_secs(10)).await;
        assert_eq!(clock.jumped(begin + seconds(3620)), Some(seconds(3600)));
        assert_eq!(clock.jumped(begin + seconds(3620)), None, "reported once");
        tokio::time::advance(std::time::Duration::from_secs(5)).await;
        assert_eq!(clock.jumped(begin + seconds(25)), Some(seconds(-3600)));
        assert_eq!(clock.jumped(begin + SignedDuration::from_millis(25_900)), None);
        assert_eq!(
            clock.jumped(begin + seconds(27)),
            Some(seconds(2)),
            "slow drifts count once they are large"
        );
    }
}
