//! The wall clock, handed in: nothing else in a component knows what time it is.

use std::sync::Arc;

use knarr_api::k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::time::{Instant, sleep};

/// Tells the time of day.
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Starts at a given time and goes on with tokio's clock, which a test can pause and a simulation drives.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    epoch: Timestamp,
    started: Instant,
}

impl TokioClock {
    /// It is `epoch` now.
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

/// How much a clock is to be set by to count as set.
const STEP: SignedDuration = SignedDuration::from_secs(2);
/// How often that is looked for.
const LOOKS_EVERY: std::time::Duration = std::time::Duration::from_secs(1);

/// Goes evenly from what another clock shows when it is made, however that one is set afterwards: what waits by it for
/// forty seconds waits for forty seconds.
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

    /// Returns once the other clock has been set (or the machine was asleep): what was measured by this one is to begin
    /// anew, by a new one.
    pub async fn set(&self) {
        while self.of.now().duration_since(self.even.now()).abs() <= STEP {
            sleep(LOOKS_EVERY).await;
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
                timeout(Duration::from_secs(3600), steady.set()).await.is_err(),
                "it was not set"
            );
            *wall.1.lock() = SignedDuration::from_secs(by);
            assert_eq!(
                steady.now(),
                epoch + SignedDuration::from_secs(3600),
                "set by {by} s"
            );
            steady.set().await;
            assert_eq!(SteadyClock::new(wall.clone()).now(), wall.now());
        }
    }
}
