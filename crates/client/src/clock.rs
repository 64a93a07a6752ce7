//! The wall clock, which is passed to components: they read the time nowhere else.

use std::sync::Arc;

use knarr_api::k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::time::{Instant, sleep};

/// A wall clock.
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

/// The node's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Starts at a given time and advances with tokio's clock, which tests pause and the simulation drives.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    epoch: Timestamp,
    started: Instant,
}

impl TokioClock {
    /// A clock that shows `epoch` now.
    pub fn new(epoch: Timestamp) -> Self {
        TokioClock {
            epoch,
            started: Instant::now(),
        }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        SignedDuration::try_from(self.started.elapsed())
            .ok()
            .and_then(|elapsed| self.epoch.checked_add(elapsed).ok())
            .unwrap_or(Timestamp::MAX)
    }
}

/// A smaller difference is not a clock step.
const MIN_STEP: SignedDuration = SignedDuration::from_secs(2);
/// How often the clocks are compared.
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_secs(1);

/// Begins at the time of another clock and then advances monotonically, whatever the other one is set to: a grace period
/// of forty seconds lasts forty seconds.
#[derive(Clone)]
pub struct SteadyClock {
    of: Arc<dyn Clock>,
    even: TokioClock,
}

impl SteadyClock {
    pub fn new(of: Arc<dyn Clock>) -> Self {
        let even = TokioClock::new(of.now());
        SteadyClock { of, even }
    }

    /// Returns once the other clock was stepped (or the node was suspended): measurements by this one have to start again, with a new one.
    pub async fn stepped(&self) {
        while self.of.now().duration_since(self.even.now()).abs() <= MIN_STEP {
            sleep(POLL_INTERVAL).await;
        }
    }
}

impl Clock for SteadyClock {
    fn now(&self) -> Timestamp {
        self.even.now()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use parking_lot::Mutex;
    use tokio::time::timeout;

    use super::*;

    struct Settable(TokioClock, Mutex<SignedDuration>);

    impl Clock for Settable {
        fn now(&self) -> Timestamp {
            self.0.now() + *self.1.lock()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_is_noticed_and_changes_nothing_meanwhile() {
        let epoch = Timestamp::from_second(1_800_000_000).unwrap();
        for by in [-3600, 3600] {
            let wall = Arc::new(Settable(TokioClock::new(epoch), Mutex::default()));
            let steady = SteadyClock::new(wall.clone());
            assert!(
                timeout(Duration::from_secs(3600), steady.stepped())
                    .await
                    .is_err(),
                "it was not set"
            );
            *wall.1.lock() = SignedDuration::from_secs(by);
            assert_eq!(
                steady.now(),
                epoch + SignedDuration::from_secs(3600),
                "set by {by} s"
            );
            steady.stepped().await;
            assert_eq!(SteadyClock::new(wall.clone()).now(), wall.now());
        }
    }
}
