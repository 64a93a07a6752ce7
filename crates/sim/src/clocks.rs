//! Every machine has a clock of its own: off by some, and drifting.
//!
//! Bounded as machines that keep time by NTP are, and a little worse. Elapsed time (tokio's) is the same for all: a
//! machine's quartz is off by some hundred millionths, which no time-out here notices. A clock may also be set, as
//! administrators and virtual machines' hosts do.
//!
//! In some histories nodes count elapsed time at a [`Rate`] of their own: what self-fencing counts, and the grace that a
//! runtime gives a process. Controllers count as it is: only how nodes and controllers differ matters to SPEC B4, and a
//! rule that asks for the end 5 % sooner is as good as a controller that counts 5 % faster.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_client::{Clock, TokioClock};

use knarr_kubelet::self_fencing::DRIFT_PERCENT;

use crate::random::Stream;
use crate::switches::{Switch, Switches};

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

/// How fast a machine's clock counts elapsed time, in thousandths of how fast it passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate(u32);

/// As fast as time passes.
const EVEN: u32 = 1_000;
/// Wrong clocks count at a rate between these, in thousandths: a virtual machine that is paused again and again, or one whose
/// host measured its frequency wrongly.
const SLOWEST: u32 = 500;
const FASTEST: u32 = 2_000;
/// Machines whose clock is wrong, in histories with wrong clocks, in thousandths.
const WRONG_PER_MILLE: u32 = 400;

impl Rate {
    pub const EVEN: Rate = Rate(EVEN);
    /// The slowest that self-fencing allows for, rounded up, and the fastest.
    const BOUND: [u32; 2] = [
        (EVEN * 100).div_ceil(100 + DRIFT_PERCENT),
        EVEN * (100 + DRIFT_PERCENT) / 100,
    ];

    /// A machine's, in a history with these switches.
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

    /// The same of a signed time.
    pub fn counted_signed(self, passed: SignedDuration) -> SignedDuration {
        let millis = passed.as_millis() * i128::from(self.0) / i128::from(EVEN);
        SignedDuration::from_millis(i64::try_from(millis).unwrap_or(i64::MAX))
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
        // 40 s by a clock that is as fast as it may be are 38.1 s; 35 s by the slowest are 36.75 s.
        let [slow, fast] = Rate::BOUND.map(Rate);
        assert_eq!(fast.passes(Duration::from_secs(40)).as_millis(), 38_095);
        assert_eq!(slow.passes(Duration::from_secs(35)).as_millis(), 36_726);
    }
}
