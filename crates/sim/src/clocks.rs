//! Every host has a clock of its own: off by some time, and drifting.
//!
//! Bounded as hosts with NTP are, and a little worse. Elapsed time (tokio's) is the same for all: the quartz of a
//! host is off by some hundred millionths, which no timeout here notices. A clock may also be set, as administrators
//! and hypervisors do.
//!
//! In some histories nodes count elapsed time at a [`Rate`] of their own: what self-fencing counts, and the grace
//! period that a runtime gives to a process. Controllers count correctly: only the difference between nodes and
//! controllers matters to SPEC B4, and a rule that demands termination 5 % sooner tests the same as a controller that
//! counts 5 % faster.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_client::Clock;

use knarr_kubelet::self_fencing::DRIFT_PERCENT;

use crate::progress::Progress;
use crate::random::Stream;
use crate::switches::{Switch, Switches};

/// The largest offset of a clock at the beginning.
pub(crate) const OFF_MILLIS: u64 = 2_000;
/// The largest difference of two clocks in a history: both offsets at the beginning, and both drifts.
pub(crate) const APART: SignedDuration = SignedDuration::from_secs(6);
/// Millionths.
const DRIFT: u64 = 200;
/// The largest drift: an hour's, until time synchronization holds it.
const DRIFTS_MICROS: i64 = 720_000;

pub(crate) struct DriftingClock {
    real: Arc<Progress>,
    epoch: Timestamp,
    off: SignedDuration,
    /// In millionths of the time that passes.
    drift: i64,
    /// The sum of its changes, in milliseconds.
    set_by: AtomicI64,
}

impl DriftingClock {
    pub fn new(real: Arc<Progress>, epoch: Timestamp, chance: &mut Stream) -> Self {
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

    /// Sets the clock forward or back.
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

/// How fast a host's clock counts elapsed time, per mille of its true speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate(u32);

/// The true speed.
const EVEN: u32 = 1_000;
/// Wrong clocks have a rate between these, per mille: a virtual machine that is paused again and again, or one whose
/// host has a wrong clock frequency.
const SLOWEST: u32 = 500;
const FASTEST: u32 = 2_000;
/// Hosts whose clock is wrong, in histories with wrong clocks, per mille.
const WRONG_PER_MILLE: u32 = 400;

impl Rate {
    pub const EVEN: Rate = Rate(EVEN);
    /// The slowest that self-fencing allows for, rounded up, and the fastest.
    const BOUND: [u32; 2] = [
        (EVEN * 100).div_ceil(100 + DRIFT_PERCENT),
        EVEN * (100 + DRIFT_PERCENT) / 100,
    ];

    /// Draws the rate of a host, in a history with these switches.
    pub fn draw(on: Switches, chance: &mut Stream) -> Self {
        let [slow, fast] = Self::BOUND;
        let mut between = |low: u32, high: u32| {
            let drawn = chance.between(low.into(), high.into());
            Rate(u32::try_from(drawn).unwrap_or(EVEN))
        };
        let rate = match on.has(Switch::DriftingClocks) {
            true => between(slow, fast),
            false => Rate::EVEN,
        };
        let wrong = [between(SLOWEST, slow - 1), between(fast + 1, FASTEST)];
        let is_wrong = on.has(Switch::WrongClocks) && chance.per_mille(WRONG_PER_MILLE);
        match (is_wrong, chance.per_mille(500)) {
            (true, true) => wrong[0],
            (true, false) => wrong[1],
            (false, _) => rate,
        }
    }

    pub fn is_within_bound(self) -> bool {
        (Self::BOUND[0]..=Self::BOUND[1]).contains(&self.0)
    }

    /// What this clock counts while so much time passes.
    pub fn counted(self, passed: Duration) -> Duration {
        passed * self.0 / EVEN
    }

    /// The same for a signed duration.
    pub fn counted_signed(self, passed: SignedDuration) -> SignedDuration {
        let millis = passed.as_millis() * i128::from(self.0) / i128::from(EVEN);
        SignedDuration::from_millis(i64::try_from(millis).unwrap_or(i64::MAX))
    }

    /// What a node counts at most while so much time passes: with this clock, or with its wall clock, which time synchronization
    /// holds. A deletion's deadline is a time of the wall clock, a container's timeout is elapsed time.
    pub fn counted_by_either(self, passed: SignedDuration) -> SignedDuration {
        self.counted_signed(passed).max(passed)
    }

    /// How much time passes while this clock counts so much.
    pub fn passes(self, counted: Duration) -> Duration {
        counted * EVEN / self.0
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ms a second", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::stream;

    #[test]
    fn rates_are_within_the_bound_of_self_fencing_unless_clocks_are_wrong() {
        let drawn = |on: &[Switch]| {
            let on: Switches = on.iter().copied().collect();
            let rates = (0..400).map(move |seed| Rate::draw(on, &mut stream(seed, "rate")));
            rates.collect::<Vec<_>>()
        };
        assert!(drawn(&[]).iter().all(|rate| *rate == Rate::EVEN));
        let drifting = drawn(&[Switch::DriftingClocks]);
        assert!(drifting.iter().all(|rate| rate.is_within_bound()));
        assert!(drifting.iter().any(|rate| rate.0 == Rate::BOUND[0]));
        let wrong = drawn(&[Switch::WrongClocks]);
        let beyond = wrong.iter().filter(|rate| !rate.is_within_bound()).count();
        assert!((100..220).contains(&beyond), "{beyond}");
        // Of a slow clock and the wall clock the latter counts more.
        for (rate, counted) in [(808, 17_251), (1_000, 17_251), (2_000, 34_502)] {
            let passed = SignedDuration::from_millis(17_251);
            let most = Rate(rate).counted_by_either(passed);
            assert_eq!(most, SignedDuration::from_millis(counted), "{rate}");
        }
        // 40 s on the fastest clock are 38.1 s; 35 s on the slowest are 36.75 s.
        let [slow, fast] = Rate::BOUND.map(Rate);
        assert_eq!(fast.passes(Duration::from_secs(40)).as_millis(), 38_095);
        assert_eq!(slow.passes(Duration::from_secs(35)).as_millis(), 36_726);
    }
}
