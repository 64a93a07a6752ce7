//! Borrowing of seats between priority levels, as in kube-apiserver (KEP-1040): every ten seconds each level's seats
//! are set by its demand since the last time, within its lendable seats and its borrowing limit.
//!
//! Deciding code only: the input is the demand, the output the seats.

use std::time::Duration;

/// How often seats are adjusted.
pub(super) const ADJUST_EVERY: Duration = Duration::from_secs(10);
/// How slowly the smoothed demand falls: by half in five minutes.
const SMOOTHING: f64 = 0.977;
/// The smallest target of a level without demand.
const MIN_TARGET: f64 = 0.001;

/// The configured seats of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    pub nominal: usize,
    /// Seats that are never lent.
    pub min: usize,
    /// Seats with all that may be borrowed.
    pub max: usize,
}

impl Bounds {
    /// Bounds of a level with `nominal` seats that lends and borrows these percentages of them; without a limit it
    /// borrows up to all seats (`all`).
    pub fn new(
        nominal: usize,
        lendable_percent: usize,
        borrowing_percent: Option<usize>,
        all: usize,
    ) -> Self {
        let percent = |percent: usize| (nominal.saturating_mul(percent) + 50) / 100;
        let lendable = percent(lendable_percent).min(nominal);
        Bounds {
            nominal,
            min: nominal - lendable,
            max: match borrowing_percent {
                Some(more) => nominal.saturating_add(percent(more)),
                None => nominal.saturating_add(all),
            },
        }
    }
}

/// The demand for seats in a period: seats in use and requests that wait.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Demand {
    pub highest: usize,
    pub average: f64,
    pub deviation: f64,
}

/// Observes the demand over time, from the moments at which it changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct DemandObserver {
    now: usize,
    since: Duration,
    highest: usize,
    seconds: f64,
    sum: f64,
    squares: f64,
}

impl DemandObserver {
    /// Begins at `at`, without demand.
    pub fn new(at: Duration) -> Self {
        DemandObserver {
            now: 0,
            since: at,
            highest: 0,
            seconds: 0.0,
            sum: 0.0,
            squares: 0.0,
        }
    }

    /// Sets the demand from `at` on.
    pub fn set(&mut self, seats: usize, at: Duration) {
        self.advance(at);
        self.now = seats;
        self.highest = self.highest.max(seats);
    }

    fn advance(&mut self, at: Duration) {
        let seconds = at.saturating_sub(self.since).as_secs_f64();
        let now = self.now as f64;
        self.seconds += seconds;
        self.sum += seconds * now;
        self.squares += seconds * now * now;
        self.since = self.since.max(at);
    }

    /// The demand since the last call; `None` if no time has passed.
    pub fn take(&mut self, at: Duration) -> Option<Demand> {
        self.advance(at);
        if self.seconds <= 0.0 {
            return None;
        }
        let average = self.sum / self.seconds;
        let variance = self.squares / self.seconds - average * average;
        let demand = Demand {
            highest: self.highest,
            average,
            deviation: variance.max(0.0).sqrt(),
        };
        *self = DemandObserver {
            now: self.now,
            highest: self.now,
            ..DemandObserver::new(self.since)
        };
        Some(demand)
    }
}

/// The smoothed demand: it rises at once and falls slowly.
pub(super) fn smoothed(before: f64, demand: &Demand) -> f64 {
    let envelope = demand.average + demand.deviation;
    envelope.max(SMOOTHING * before + (1.0 - SMOOTHING) * envelope)
}

/// A priority level whose seats are adjusted.
#[derive(Clone, Copy, Debug)]
pub(super) struct LevelDemand {
    pub bounds: Bounds,
    pub highest: usize,
    pub smoothed: f64,
}

impl LevelDemand {
    /// The seats that other levels cannot take: the demand, up to the nominal seats.
    fn min_seats(&self) -> usize {
        self.bounds.min.max(self.bounds.nominal.min(self.highest))
    }
}

/// The seats of each level, of `all` seats; exempt levels use so many of these.
pub(super) fn allocate_seats(levels: &[LevelDemand], all: usize, exempt: usize) -> Vec<usize> {
    let min: usize = levels.iter().map(|l| l.bounds.min).sum();
    let kept: usize = levels.iter().map(LevelDemand::min_seats).sum();
    let left = all.saturating_sub(exempt);
    if left <= min {
        return levels.iter().map(|l| l.bounds.min).collect();
    }
    if left <= kept {
        let part = (left - min) as f64 / (kept - min) as f64;
        let of = |level: &LevelDemand| {
            let more = level.min_seats() - level.bounds.min;
            level.bounds.min + (more as f64 * part).round() as usize
        };
        return levels.iter().map(of).collect();
    }
    let proportion = fair_proportion(levels, all as f64);
    levels
        .iter()
        .map(|l| seats_at(l, proportion).round() as usize)
        .collect()
}

fn target(level: &LevelDemand) -> f64 {
    level.smoothed.max(level.min_seats() as f64).max(MIN_TARGET)
}

/// The seats of a level at this proportion of its target.
fn seats_at(level: &LevelDemand, proportion: f64) -> f64 {
    let (min, max) = (level.min_seats() as f64, level.bounds.max as f64);
    (target(level) * proportion).max(min).min(max.max(min))
}

/// The proportion of the targets at which all seats are allocated. The allocated seats grow with it, linearly between the
/// points at which a level reaches one of its bounds; so this finds the segment in which `all` lies.
fn fair_proportion(levels: &[LevelDemand], all: f64) -> f64 {
    let given = |proportion: f64| -> f64 { levels.iter().map(|l| seats_at(l, proportion)).sum() };
    let bounds = |l: &LevelDemand| {
        let max = l.bounds.max.max(l.min_seats());
        [l.min_seats() as f64 / target(l), max as f64 / target(l)]
    };
    let mut turns: Vec<f64> = levels.iter().flat_map(bounds).collect();
    turns.sort_by(f64::total_cmp);
    let mut before = 0.0;
    for turn in turns {
        let (low, high) = (given(before), given(turn));
        if high >= all {
            return match high > low {
                true => before + (turn - before) * ((all - low) / (high - low)).max(0.0),
                false => turn,
            };
        }
        before = turn;
    }
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_lends_and_borrows_what_it_is_configured_to() {
        for (nominal, lendable, borrowing, (min, max)) in [
            (100, 0, Some(0), (100, 100)),
            (100, 50, Some(20), (50, 120)),
            (31, 33, None, (21, 631)),
            (3, 50, Some(50), (1, 5)),
            (0, 100, Some(100), (0, 0)),
        ] {
            let bounds = Bounds::new(nominal, lendable, borrowing, 600);
            assert_eq!((bounds.min, bounds.max), (min, max), "{nominal}");
        }
    }

    #[test]
    fn demand_is_its_highest_its_average_and_how_it_varies() {
        let at = Duration::from_secs;
        let mut observer = DemandObserver::new(at(0));
        assert_eq!(observer.take(at(0)), None);
        observer.set(4, at(0));
        observer.set(0, at(5));
        let demand = observer.take(at(10)).unwrap();
        assert_eq!((demand.highest, demand.average, demand.deviation), (4, 2.0, 2.0));
        // A constant demand is not forgotten, and a clock that is set back does no harm.
        observer.set(3, at(10));
        observer.set(3, at(9));
        let demand = observer.take(at(20)).unwrap();
        assert_eq!((demand.highest, demand.average, demand.deviation), (3, 3.0, 0.0));
        assert_eq!(observer.take(at(21)).unwrap().highest, 3);

        let burst = Demand {
            highest: 9,
            average: 5.0,
            deviation: 1.0,
        };
        let quiet = Demand::default();
        let high = smoothed(0.0, &burst);
        assert_eq!(high, 6.0);
        let later = smoothed(high, &quiet);
        assert!(5.8 < later && later < high, "{later}");
        // Fallen by half in about five minutes.
        let half = (0..30).fold(high, |before, _| smoothed(before, &quiet));
        assert!((2.9..3.1).contains(&half), "{half}");
    }

    #[test]
    fn seats_are_allocated_by_demand_within_what_is_lent() {
        let level = |nominal, min, max, highest, smoothed| LevelDemand {
            bounds: Bounds { nominal, min, max },
            highest,
            smoothed,
        };
        for (what, levels, exempt, seats) in [
            (
                "no demand: in proportion to the minimum seats",
                vec![level(50, 50, 100, 0, 0.0), level(50, 50, 100, 0, 0.0)],
                0,
                vec![50, 50],
            ),
            (
                "one has much demand, the other lends half",
                vec![level(50, 50, 200, 90, 90.0), level(50, 25, 100, 0, 0.0)],
                0,
                vec![75, 25],
            ),
            (
                "borrowing has its limit, the rest is returned",
                vec![level(50, 50, 60, 90, 90.0), level(50, 25, 100, 0, 0.0)],
                0,
                vec![60, 40],
            ),
            (
                "a level whose demand is its nominal seats has them",
                vec![level(50, 50, 200, 90, 90.0), level(50, 25, 100, 40, 40.0)],
                0,
                vec![60, 40],
            ),
            (
                "the demand of two is more than a third lends: by their demand",
                vec![
                    level(30, 0, 300, 60, 60.0),
                    level(30, 0, 300, 120, 120.0),
                    level(60, 0, 300, 0, 0.0),
                ],
                0,
                vec![40, 80, 0],
            ),
            (
                "exempt levels take all that is lent",
                vec![level(50, 40, 100, 90, 90.0), level(50, 40, 100, 50, 50.0)],
                30,
                vec![40, 40],
            ),
            (
                "exempt levels take some of it",
                vec![level(50, 40, 100, 90, 90.0), level(50, 40, 100, 50, 50.0)],
                10,
                vec![45, 45],
            ),
            ("no levels", vec![], 10, vec![]),
        ] {
            let all: usize = levels.iter().map(|l| l.bounds.nominal).sum();
            let found = allocate_seats(&levels, all, exempt);
            assert_eq!(found, seats, "{what}");
            if exempt == 0 {
                assert_eq!(found.iter().sum::<usize>(), all, "{what}");
            }
        }
    }
}
