//! Notices that the wall clock was set: it went another way than the clock that only goes forward.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use tokio::time::Instant;

/// What the clock is slewed by, or what lies between two readings on a busy machine, is no jump.
const JUMP: SignedDuration = SignedDuration::from_secs(1);

/// The wall clock as it was last looked at, and when that was.
#[derive(Clone, Copy, Debug)]
pub(super) struct WallClock {
    seen: Timestamp,
    at: Instant,
}

impl WallClock {
    /// It is `now`.
    pub(super) fn new(now: Timestamp) -> Self {
        WallClock {
            seen: now,
            at: Instant::now(),
        }
    }

    /// How far it has jumped since the last look: forward is positive.
    pub(super) fn jumped(&mut self, now: Timestamp) -> Option<SignedDuration> {
        let at = Instant::now();
        let went = now.duration_since(self.seen);
        let passed = SignedDuration::try_from(at.duration_since(self.at)).unwrap_or(SignedDuration::MAX);
        let by = went.saturating_sub(passed);
        // Small differences add up until they are one, unless they go away again.
        if by.abs() < JUMP {
            return None;
        }
        (self.seen, self.at) = (now, at);
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
