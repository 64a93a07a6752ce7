//! Seats lent between priority levels, as kube-apiserver lends them: every ten seconds each level's seats are set anew
//! by what it asked for meanwhile, within what it lends at most and what it may borrow.
//!
//! Plain deciding: what was asked goes in, seats come out.

use std::time::Duration;

/// How often seats are shared out anew.
pub(super) const ADJUST_EVERY: Duration = Duration::from_secs(10);
/// How slowly a demand that has gone is forgotten: half of it in five minutes.
const SMOOTHING: f64 = 0.977;
/// A level that asks for nothing still counts for this much.
const LEAST_TARGET: f64 = 0.001;

/// What a level was configured to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    pub nominal: usize,
    /// Seats that are never lent.
    pub least: usize,
    /// Seats with all that may be borrowed.
    pub most: usize,
}

impl Bounds {
    /// Of a level with so many seats that lends and borrows these percentages of them; without a limit it borrows as
    /// many as there are (`all`).
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
            least: nominal - lendable,
            most: match borrowing_percent {
                Some(more) => nominal.saturating_add(percent(more)),
                None => nominal.saturating_add(all),
            },
        }
    }
}

/// How many seats were asked for in some time, those that were waited for among them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Demand {
    pub highest: usize,
    pub average: f64,
    pub deviation: f64,
}

/// The demand while it goes on: changes are told with their moments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observer {
    now: usize,
    since: Duration,
    highest: usize,
    seconds: f64,
    sum: f64,
    squares: f64,
}

impl Observer {
    /// From `at` on, nothing being asked for.
    pub fn new(at: Duration) -> Self {
        Observer {
            now: 0,
            since: at,
            highest: 0,
            seconds: 0.0,
            sum: 0.0,
            squares: 0.0,
        }
    }

    /// From `at` on so many are asked for.
    pub fn set(&mut self, seats: usize, at: Duration) {
        self.pass(at);
        self.now = seats;
        self.highest = self.highest.max(seats);
    }

    fn pass(&mut self, at: Duration) {
        let seconds = at.saturating_sub(self.since).as_secs_f64();
        let now = self.now as f64;
        self.seconds += seconds;
        self.sum += seconds * now;
        self.squares += seconds * now * now;
        self.since = self.since.max(at);
    }

    /// What was asked for since the last time; `None` if no time has passed.
    pub fn take(&mut self, at: Duration) -> Option<Demand> {
        self.pass(at);
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
        *self = Observer {
            now: self.now,
            highest: self.now,
            ..Observer::new(self.since)
        };
        Some(demand)
    }
}

/// A demand smoothed: it rises at once and falls slowly.
pub(super) fn smoothed(before: f64, demand: &Demand) -> f64 {
    let envelope = demand.average + demand.deviation;
    envelope.max(SMOOTHING * before + (1.0 - SMOOTHING) * envelope)
}

/// A level that seats are shared out to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Borrower {
    pub bounds: Bounds,
    pub highest: usize,
    pub smoothed: f64,
}

impl Borrower {
    /// What it keeps however much others want: what it asked for of its own.
    fn keeps(&self) -> usize {
        self.bounds.least.max(self.bounds.nominal.min(self.highest))
    }
}

/// The seats of each level, of `all` that there are; exempt levels need so many of these.
pub(super) fn shared_out(levels: &[Borrower], all: usize, exempt: usize) -> Vec<usize> {
    let least: usize = levels.iter().map(|l| l.bounds.least).sum();
    let kept: usize = levels.iter().map(Borrower::keeps).sum();
    let left = all.saturating_sub(exempt);
    if left <= least {
        return levels.iter().map(|l| l.bounds.least).collect();
    }
    if left <= kept {
        let part = (left - least) as f64 / (kept - least) as f64;
        let of = |level: &Borrower| {
            let more = level.keeps() - level.bounds.least;
            level.bounds.least + (more as f64 * part).round() as usize
        };
        return levels.iter().map(of).collect();
    }
    let proportion = fair_proportion(levels, all as f64);
    levels
        .iter()
        .map(|l| seats_at(l, proportion).round() as usize)
        .collect()
}

fn target(level: &Borrower) -> f64 {
    level.smoothed.max(level.keeps() as f64).max(LEAST_TARGET)
}

/// What a level gets when each gets this part of what it wants.
fn seats_at(level: &Borrower, proportion: f64) -> f64 {
    let (least, most) = (level.keeps() as f64, level.bounds.most as f64);
    (target(level) * proportion).max(least).min(most.max(least))
}

/// The part of what each wants at which all seats are given away. What is given grows with it, straight between the
/// points at which a level comes to one of its bounds; so the piece is looked for on which `all` lies.
fn fair_proportion(levels: &[Borrower], all: f64) -> f64 {
    let given = |proportion: f64| -> f64 { levels.iter().map(|l| seats_at(l, proportion)).sum() };
    let bounds = |l: &Borrower| {
        let most = l.bounds.most.max(l.keeps());
        [l.keeps() as f64 / target(l), most as f64 / target(l)]
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
        for (nominal, lendable, borrowing, (least, most)) in [
            (100, 0, Some(0), (100, 100)),
            (100, 50, Some(20), (50, 120)),
            (31, 33, None, (21, 631)),
            (3, 50, Some(50), (1, 5)),
            (0, 100, Some(100), (0, 0)),
        ] {
            let bounds = Bounds::new(nominal, lendable, borrowing, 600);
            assert_eq!((bounds.least, bounds.most), (least, most), "{nominal}");
        }
    }

    #[test]
    fn demand_is_its_highest_its_average_and_how_it_varies() {
        let at = Duration::from_secs;
        let mut observer = Observer::new(at(0));
        assert_eq!(observer.take(at(0)), None);
        observer.set(4, at(0));
        observer.set(0, at(5));
        let demand = observer.take(at(10)).unwrap();
        assert_eq!((demand.highest, demand.average, demand.deviation), (4, 2.0, 2.0));
        // What goes on is not forgotten, and a clock that goes back does no harm.
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
        // Gone by half in about five minutes.
        let half = (0..30).fold(high, |before, _| smoothed(before, &quiet));
        assert!((2.9..3.1).contains(&half), "{half}");
    }

    #[test]
    fn seats_go_to_who_asks_within_what_is_lent() {
        let level = |nominal, least, most, highest, smoothed| Borrower {
            bounds: Bounds { nominal, least, most },
            highest,
            smoothed,
        };
        for (what, levels, exempt, seats) in [
            (
                "nobody asks: in proportion to what each keeps",
                vec![level(50, 50, 100, 0, 0.0), level(50, 50, 100, 0, 0.0)],
                0,
                vec![50, 50],
            ),
            (
                "one asks much, the other lends half",
                vec![level(50, 50, 200, 90, 90.0), level(50, 25, 100, 0, 0.0)],
                0,
                vec![75, 25],
            ),
            (
                "borrowing has its limit, the rest goes back",
                vec![level(50, 50, 60, 90, 90.0), level(50, 25, 100, 0, 0.0)],
                0,
                vec![60, 40],
            ),
            (
                "who asks for his own has it",
                vec![level(50, 50, 200, 90, 90.0), level(50, 25, 100, 40, 40.0)],
                0,
                vec![60, 40],
            ),
            (
                "two want more than a third lends: by their wants",
                vec![
                    level(30, 0, 300, 60, 60.0),
                    level(30, 0, 300, 120, 120.0),
                    level(60, 0, 300, 0, 0.0),
                ],
                0,
                vec![40, 80, 0],
            ),
            (
                "exempt ones take all that is lent",
                vec![level(50, 40, 100, 90, 90.0), level(50, 40, 100, 50, 50.0)],
                30,
                vec![40, 40],
            ),
            (
                "exempt ones take some of it",
                vec![level(50, 40, 100, 90, 90.0), level(50, 40, 100, 50, 50.0)],
                10,
                vec![45, 45],
            ),
            ("no levels", vec![], 10, vec![]),
        ] {
            let all: usize = levels.iter().map(|l| l.bounds.nominal).sum();
            let found = shared_out(&levels, all, exempt);
            assert_eq!(found, seats, "{what}");
            if exempt == 0 {
                assert_eq!(found.iter().sum::<usize>(), all, "{what}");
            }
        }
    }
}
