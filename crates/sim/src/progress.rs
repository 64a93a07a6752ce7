//! Whether virtual time advances.
//!
//! It advances only when no task can run. Components that work without waiting for anything, or that undo each
//! other's work within milliseconds, would keep a history at one moment, or in one second, for ever: no rule about what
//! has to happen by some time could find them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_client::{Clock, TokioClock};
use tokio::sync::Notify;

/// The most readings of all clocks together at one moment. Histories of fifty nodes have some ten thousand when all
/// start.
pub(crate) const READINGS: u64 = 200_000;

/// True time, of which all clocks of a history are read: it counts how often at one moment.
pub(crate) struct Progress {
    clock: TokioClock,
    /// The moment of the last reading, in nanoseconds.
    moment: AtomicI64,
    readings: AtomicU64,
    stuck: Notify,
}

impl Progress {
    pub fn new(clock: TokioClock) -> Arc<Self> {
        Arc::new(Progress {
            clock,
            moment: AtomicI64::new(0),
            readings: AtomicU64::new(0),
            stuck: Notify::new(),
        })
    }

    /// Runs a part of a history; `None` if it stays at one moment.
    pub async fn of<T>(&self, part: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = part => Some(done),
            () = self.stuck.notified() => None,
        }
    }
}

impl Clock for Progress {
    fn now(&self) -> Timestamp {
        let now = self.clock.now();
        let moment = i64::try_from(now.as_nanosecond()).unwrap_or(i64::MAX);
        if self.moment.swap(moment, Ordering::Relaxed) != moment {
            self.readings.store(0, Ordering::Relaxed);
        } else if self.readings.fetch_add(1, Ordering::Relaxed) == READINGS {
            self.stuck.notify_one();
        }
        now
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_does_not_wait_stops_a_history_and_one_that_waits_does_not() {
        for (pause, is_stuck) in [(Duration::ZERO, true), (Duration::from_millis(1), false)] {
            let progress = Progress::new(TokioClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
            let clock = progress.clone();
            let task = tokio::spawn(async move {
                loop {
                    for _ in 0..1_000 {
                        clock.now();
                    }
                    match pause.is_zero() {
                        true => tokio::task::yield_now().await,
                        false => tokio::time::sleep(pause).await,
                    }
                }
            });
            let part = tokio::time::sleep(Duration::from_secs(2));
            assert_eq!(progress.of(part).await.is_none(), is_stuck, "{pause:?}");
            task.abort();
        }
    }
}
