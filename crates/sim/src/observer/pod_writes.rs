//! S9: components that undo each other's work are known by how often pods are written. Other kinds do not count: two controller
//! managers overwrite each other's statuses, see [`managers_may_disagree`].

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use crate::clocks::APART;
use crate::world::{POD_COUNT, World};

/// More than any cluster here needs in a period, even when all its components start.
pub(super) const MOST_WRITES: u32 = 5_000;
pub(super) const PERIOD_SECONDS: i64 = 10;
/// A manager that ignores the lease and the leader do what is due at some time, such as the end of a surge, at different times, because their
/// clocks differ: in between one deletes what the other creates. That lasts no longer than a period, so it is in two at most.
const PERIODS_OF_OTHER_CLOCKS: u32 = 2;
const _: () = assert!(APART.as_secs() <= PERIOD_SECONDS);
/// A watch that failed during a fault is opened again at the latest this long after it: client-go's reflector waits up
/// to 30 s, half as much again by its jitter.
const WATCHES_AGAIN_WITHIN: SignedDuration = SignedDuration::from_secs(60);

/// Whether too many writes in this many periods in a row may be those of two controller managers, one of which ignores
/// the lease: one creates the pods that the other deletes or evicts, as often as requests take, because their clocks
/// differ or one has an old view. In Kubernetes only the client's rate limit (20 a second for each controller) bounds
/// that.
pub(super) fn managers_may_disagree(periods: u32, world: &World) -> bool {
    let existing = world.pods.values().filter(|life| !life.removed()).count();
    let watches = |since: Timestamp| world.now.duration_since(since) >= WATCHES_AGAIN_WITHIN;
    let may_view_be_old = existing < POD_COUNT && !world.all_well_since(|_| true).is_some_and(watches);
    world.has_manager_without_lease() && (periods <= PERIODS_OF_OTHER_CLOCKS || may_view_be_old)
}

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
    use std::sync::Arc;

    use super::*;
    use crate::world::{Life, WITHOUT_LEASE};

    #[test]
    fn s9_only_a_manager_without_the_lease_with_other_clocks_or_an_old_view_may_undo_the_leaders_work() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let both = || vec!["control-a", WITHOUT_LEASE];
        for (managers, well_since, existing, periods, expected) in [
            (vec!["control-a"], Some(95), 1, 1, false),
            (vec!["control-a"], None, 1, 1, false),
            (both(), None, 1, 3, true),
            (both(), Some(41), 1, 3, true),
            (both(), Some(40), 1, 3, false),
            (both(), Some(40), 1, 2, true),
            (both(), None, 150, 3, true),
            (both(), None, POD_COUNT, 3, false),
            (both(), Some(40), POD_COUNT, 2, true),
        ] {
            let well = managers.iter().map(|name| (name.to_string(), well_since.map(at)));
            let mut world = World {
                now: at(100),
                well_since: well.collect(),
                ..World::default()
            };
            let pods = (0..existing).map(|pod| (format!("u{pod}"), Life::new(Arc::default(), at(0))));
            world.pods.extend(pods);
            let what = format!("{managers:?}, well since {well_since:?}, {existing} pods, {periods} periods");
            assert_eq!(managers_may_disagree(periods, &world), expected, "{what}");
        }
    }

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
