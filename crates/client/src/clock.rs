//! The wall clock, handed in: nothing else in a component knows what time it is.

use std::sync::Arc;

use knarr_api::k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

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
