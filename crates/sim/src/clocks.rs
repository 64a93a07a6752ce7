//! Every machine has a clock of its own: off by some, and drifting.
//!
//! Bounded as machines that keep time by NTP are, and a little worse. Elapsed time (tokio's) is the same for all: a
//! machine's quartz is off by some hundred millionths, which no time-out here notices. A clock may also be set, as
//! administrators and virtual machines' hosts do.

use std::sync::atomic::{AtomicI64, Ordering};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_client::{Clock, TokioClock};

use crate::random::Stream;

/// No clock is off by more than this in the beginning.
pub(crate) const OFF_MILLIS: u64 = 2_000;
/// What two clocks may differ by at any time in a history: both off in the beginning, and what both drift.
pub(crate) const APART: SignedDuration = SignedDuration::from_secs(6);
/// Millionths.
const DRIFT: u64 = 200;
/// By so much, until whatever keeps its time holds it: an hour's drift.
const DRIFTS_MICROS: i64 = 720_000;

pub(crate) struct DriftingClock {
    real: TokioClock,
    epoch: Timestamp,
    off: SignedDuration,
    /// In millionths of the time that passes.
    drift: i64,
    /// By how much it has been set, in milliseconds.
    set_by: AtomicI64,
}

impl DriftingClock {
    pub fn new(real: TokioClock, epoch: Timestamp, chance: &mut Stream) -> Self {
        let around = |chance: &mut Stream, most: u64| {
            let drawn = i64::try_from(chance.between(0, 2 * most)).unwrap_or_default();
            drawn - i64::try_from(most).unwrap_or_default()
        };
        let (mut off, mut drift) = (0, 0);
        if chance.per_mille(500) {
            off = around(chance, OFF_MILLIS);
            drift = around(chance, DRIFT);
        }
        DriftingClock {
            real,
            epoch,
            off: SignedDuration::from_millis(off),
            drift,
            set_by: AtomicI64::new(0),
        }
    }

    /// It shows so much more, or less, from now on.
    pub fn set(&self, by_millis: i64) {
        self.set_by.store(by_millis, Ordering::Relaxed);
    }
}

impl Clock for DriftingClock {
    fn now(&self) -> Timestamp {
        let real = self.real.now();
        let passed = i64::try_from(real.duration_since(self.epoch).as_micros()).unwrap_or(i64::MAX);
        let drifted = passed.saturating_mul(self.drift) / 1_000_000;
        let drifted = SignedDuration::from_micros(drifted.clamp(-DRIFTS_MICROS, DRIFTS_MICROS));
        let set_by = SignedDuration::from_millis(self.set_by.load(Ordering::Relaxed));
        let shown = real.checked_add(self.off + drifted + set_by);
        shown.unwrap_or(real)
    }
}
