//! Notices that the wall clock was set: it went another way than the clock that only goes forward.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_client::{Clock, TokioClock};

/// What the clock is slewed by, or what lies between two readings on a busy machine, is no jump.
const JUMP: SignedDuration = SignedDuration::from_secs(1);

/// What the wall clock would show had nobody set it since its last jump.
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
    async fn a_jump_is_what_the_wall_clock_did_beside_going_on() {
        let begin = Timestamp::from_second(1_800_000_000).unwrap();
        let mut clock = WallClock::new(begin);
        let seconds = SignedDuration::from_secs;
        tokio::time::advance(std::time::Duration::from_secs(10)).await;
        assert_eq!(clock.jumped(begin + seconds(10)), None);
        tokio::time::advance(std::time::Duration::from_secs(10)).await;
        assert_eq!(clock.jumped(begin + seconds(3620)), Some(seconds(3600)));
        assert_eq!(clock.jumped(begin + seconds(3620)), None, "told once");
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
