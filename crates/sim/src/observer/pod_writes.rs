//! S9: components that undo each other's work are known by how often pods are written. Other kinds do not count: two controller
//! managers overwrite each other's statuses, see [`World::managers_may_disagree`].
//!
//! [`World::managers_may_disagree`]: crate::world::World::managers_may_disagree

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;

use crate::clocks::APART;

/// More than any cluster here needs in a period, even when all its components start.
pub(super) const MOST_WRITES: u32 = 5_000;
pub(super) const PERIOD_SECONDS: i64 = 10;
/// A manager that ignores the lease and the leader do what is due at some time, such as the end of a surge, at different times, because their
/// clocks differ: in between one deletes what the other creates. That lasts no longer than a period, so it is in two at most.
pub(super) const PERIODS_OF_OTHER_CLOCKS: u32 = 2;
const _: () = assert!(APART.as_secs() <= PERIOD_SECONDS);

/// The writes of pods in the current period.
#[derive(Debug, Default)]
pub(super) struct PodWrites {
    period: i64,
    writes: u32,
    /// So many periods directly before had too many.
    excessive_before: u32,
}

impl PodWrites {
    /// Counts a write. With the first one that is too many in a period: how many periods in a row had too many, with this one.
    pub fn add(&mut self, now: Timestamp) -> Option<u32> {
        let period = now.as_second() / PERIOD_SECONDS;
        if period != self.period {
            let was_excessive = self.writes >= MOST_WRITES && period == self.period + 1;
            *self = PodWrites {
                period,
                writes: 0,
                excessive_before: if was_excessive {
                    self.excessive_before + 1
                } else {
                    0
                },
            };
        }
        self.writes += 1;
        (self.writes == MOST_WRITES).then_some(self.excessive_before + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s9_periods_with_too_many_writes_are_counted_in_a_row() {
        let mut writes = PodWrites::default();
        for (second, count, expected) in [
            (0, MOST_WRITES - 1, None),
            (10, MOST_WRITES, Some(1)),
            (10, MOST_WRITES, None),
            (20, MOST_WRITES, Some(2)),
            (39, MOST_WRITES, Some(3)),
            (40, 1, None),
            (50, MOST_WRITES, Some(1)),
            (70, MOST_WRITES, Some(1)),
        ] {
            let now = Timestamp::from_second(second).unwrap();
            let found = (0..count).filter_map(|_| writes.add(now)).next();
            assert_eq!(found, expected, "{count} at {second} s");
        }
    }
}
