//! A watch neither skips nor repeats events: after the list that a watcher began with, over all interruptions and servers, its
//! events are exactly the versions that were committed since, in the order of their revisions, and of the type that follows
//! from the register's state. What was committed is known from the results of writers and readers and from other watchers.

use std::collections::BTreeMap;

use super::Violation;
use crate::history::{Change, Received, Snapshot, Version};

const RULE: &str = "watches";

/// What is known to have been committed, by revision.
#[derive(Clone, Debug, Default)]
pub struct Committed {
    /// From writers, readers, lists and watchers.
    pub versions: BTreeMap<u64, (String, Version)>,
    /// From watchers; the response to a deletion has no revision.
    pub deletions: BTreeMap<u64, String>,
}

impl Committed {
    /// Adds a version. Two different ones of one revision are a violation.
    pub fn version(&mut self, key: &str, version: Version) -> Result<(), Violation> {
        let new = (key.to_string(), version);
        let known = self
            .versions
            .entry(version.revision)
            .or_insert_with(|| new.clone());
        if *known == new {
            return Ok(());
        }
        let (other, was) = known;
        Err(Violation::new(
            RULE,
            key,
            format!(
                "revision {} is write {} here and write {} of {other} elsewhere",
                version.revision, version.write, was.write
            ),
        ))
    }

    /// Adds what a watcher received.
    pub fn received(&mut self, received: &[Received]) -> Result<(), Violation> {
        for one in received {
            match one {
                Received::Event {
                    change: Change::Deleted,
                    key,
                    version,
                } => {
                    self.deletions.insert(version.revision, key.clone());
                }
                Received::Event { key, version, .. } => self.version(key, *version)?,
                Received::Listed(snapshot) => self.snapshot(snapshot)?,
                Received::Opened { .. } | Received::Bookmark(_) | Received::Ended(_) => {}
            }
        }
        Ok(())
    }

    pub fn snapshot(&mut self, snapshot: &Snapshot) -> Result<(), Violation> {
        let mut registers = snapshot.registers.iter();
        registers.try_for_each(|(key, version)| self.version(key, *version))
    }

    /// The revisions by writes.
    pub fn seen(&self) -> BTreeMap<u64, u64> {
        let versions = self.versions.values();
        versions.map(|(_, v)| (v.write, v.revision)).collect()
    }
}

/// A watcher's position and the registers that it has there.
struct Replay<'a> {
    watcher: &'a str,
    state: Snapshot,
    committed: &'a Committed,
    /// Lists of other clients, by revision.
    lists: &'a BTreeMap<u64, &'a Snapshot>,
}

/// Checks everything that one watcher received. Returns its registers at the end, with which the check of what it receives
/// later begins (as if they had been listed).
pub fn check(
    watcher: &str,
    received: &[Received],
    committed: &Committed,
    lists: &[&Snapshot],
) -> Result<Option<Snapshot>, Violation> {
    let lists = lists.iter().map(|list| (list.revision, *list)).collect();
    let mut replay: Option<Replay<'_>> = None;
    for one in received {
        if let Received::Listed(snapshot) = one {
            replay = Some(Replay {
                watcher,
                state: snapshot.clone(),
                committed,
                lists: &lists,
            });
        } else {
            let replay = replay
                .as_mut()
                .ok_or_else(|| Violation::new(RULE, watcher, "it opened a watch before its first list"))?;
            replay.apply(one)?;
        }
    }
    Ok(replay.map(|replay| replay.state))
}

impl Replay<'_> {
    fn violation(&self, text: String) -> Violation {
        Violation::new(RULE, self.watcher, text)
    }

    fn apply(&mut self, received: &Received) -> Result<(), Violation> {
        match received {
            Received::Opened { from, server } if *from != self.state.revision => {
                Err(self.violation(format!(
                    "it resumed at {server} from {from}, but was at {}: this is an error of the test",
                    self.state.revision
                )))
            }
            Received::Bookmark(revision) if *revision < self.state.revision => Err(self.violation(format!(
                "a bookmark returns to {revision} from {}",
                self.state.revision
            ))),
            Received::Bookmark(revision) => self.advance(*revision, None),
            Received::Event { change, key, version } => self.event(*change, key, *version),
            Received::Listed(_) | Received::Opened { .. } | Received::Ended(_) => Ok(()),
        }
    }

    fn event(&mut self, change: Change, key: &str, version: Version) -> Result<(), Violation> {
        let revision = version.revision;
        if revision <= self.state.revision {
            return Err(self.violation(format!(
                "{change:?} {key} at revision {revision} after revision {} (a repeated event, or one out of order)",
                self.state.revision
            )));
        }
        self.advance(revision, Some(key))?;
        let before = self.state.registers.get(key).copied();
        let expected = match (before, change) {
            (None, Change::Added) | (Some(_), Change::Modified | Change::Deleted) => None,
            (None, _) => Some("ADDED"),
            (Some(_), _) => Some("MODIFIED or DELETED"),
        };
        if let Some(expected) = expected {
            return Err(self.violation(format!(
                "{change:?} {key} at revision {revision}, expected {expected}: before, the register was {before:?}"
            )));
        }
        match change {
            Change::Deleted => {
                self.state.registers.remove(key);
            }
            Change::Added | Change::Modified => {
                self.state.registers.insert(key.to_string(), version);
            }
        }
        self.compare_lists(revision, revision)
    }

    /// Advances to a revision, with an event of `key` there or without one; a commit before it without an event was skipped.
    fn advance(&mut self, revision: u64, key: Option<&str>) -> Result<(), Violation> {
        let from = self.state.revision;
        if revision == from {
            return Ok(());
        }
        let passed = from + 1..=revision;
        let is_own = |at: u64, of: &str| at == revision && key == Some(of);
        if let Some((at, (of, version))) = self
            .committed
            .versions
            .range(passed.clone())
            .find(|(at, (of, _))| !is_own(**at, of))
        {
            return Err(self.violation(format!(
                "write {} of {of} at revision {at} was skipped between revisions {from} and {revision}",
                version.write
            )));
        }
        if let Some((at, of)) = self
            .committed
            .deletions
            .range(passed)
            .find(|(at, of)| !is_own(**at, of))
        {
            return Err(self.violation(format!(
                "the deletion of {of} at revision {at} was skipped between revisions {from} and {revision}"
            )));
        }
        // Lists between two events are compared with the state after the first of them.
        self.compare_lists(from, revision - 1)?;
        self.state.revision = revision;
        if key.is_none() {
            return self.compare_lists(revision, revision);
        }
        Ok(())
    }

    /// A list of a revision from `from` to `to` must equal the watcher's registers there.
    fn compare_lists(&self, from: u64, to: u64) -> Result<(), Violation> {
        if from > to {
            return Ok(());
        }
        for (revision, list) in self.lists.range(from..=to) {
            let (watched, listed) = (&self.state.registers, &list.registers);
            let keys = watched.keys().chain(listed.keys());
            let differs = keys.into_iter().find(|key| watched.get(*key) != listed.get(*key));
            if let Some(key) = differs {
                return Err(self.violation(format!(
                    "at revision {revision} it has {key} as {:?}, and a list of that revision has {:?}",
                    watched.get(key),
                    listed.get(key)
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v(revision: u64) -> Version {
        Version {
            revision,
            write: revision * 100,
        }
    }

    fn event(change: Change, key: &str, revision: u64) -> Received {
        Received::Event {
            change,
            key: key.into(),
            version: v(revision),
        }
    }

    fn snapshot(revision: u64, registers: &[(&str, u64)]) -> Snapshot {
        Snapshot {
            revision,
            registers: registers.iter().map(|(k, r)| (k.to_string(), v(*r))).collect(),
        }
    }

    use Change::{Added, Deleted, Modified};

    /// A register exists since 5, another is created at 7, changed at 9, and the first deleted at 12.
    fn complete() -> Vec<Received> {
        vec![
            Received::Listed(snapshot(6, &[("a", 5)])),
            Received::Opened {
                server: "s".into(),
                from: 6,
            },
            event(Added, "b", 7),
            Received::Ended("killed".into()),
            Received::Opened {
                server: "t".into(),
                from: 7,
            },
            event(Modified, "b", 9),
            event(Deleted, "a", 12),
            // At its position, and further.
            Received::Bookmark(12),
            Received::Bookmark(14),
        ]
    }

    fn check_against_complete(received: &[Received], lists: &[Snapshot]) -> Result<Option<Snapshot>, String> {
        let mut committed = Committed::default();
        committed.received(&complete()).map_err(|v| v.text)?;
        committed.received(received).map_err(|v| v.text)?;
        let lists: Vec<_> = lists.iter().collect();
        check("w", received, &committed, &lists).map_err(|v| v.text)
    }

    #[test]
    fn events_that_are_what_was_committed_hold_over_a_resumption() {
        let end = check_against_complete(
            &complete(),
            &[
                snapshot(8, &[("a", 5), ("b", 7)]),
                snapshot(9, &[("a", 5), ("b", 9)]),
                snapshot(13, &[("b", 9)]),
            ],
        );
        assert_eq!(end, Ok(Some(snapshot(14, &[("b", 9)]))));
        // A watcher that listed later has to receive fewer events.
        let late = [
            Received::Listed(snapshot(9, &[("a", 5), ("b", 9)])),
            event(Deleted, "a", 12),
        ];
        assert_eq!(
            check_against_complete(&late, &[]),
            Ok(Some(snapshot(12, &[("b", 9)])))
        );
    }

    #[test]
    fn skipped_repeated_and_reordered_events_are_violations() {
        let without = |n: usize| {
            let mut received = complete();
            received.remove(n);
            received
        };
        let found = |received: &[Received]| check_against_complete(received, &[]).unwrap_err();
        assert_eq!(
            found(&without(5)),
            "write 900 of b at revision 9 was skipped between revisions 7 and 12"
        );
        assert_eq!(
            found(&without(6)),
            "the deletion of a at revision 12 was skipped between revisions 9 and 12"
        );
        let mut twice = complete();
        twice.insert(6, event(Modified, "b", 9));
        assert!(found(&twice).contains("a repeated event"), "{}", found(&twice));
        let mut swapped = complete();
        swapped.swap(5, 6);
        assert!(found(&swapped).contains("skipped"), "{}", found(&swapped));
        let mut back = complete();
        back.push(Received::Bookmark(13));
        assert_eq!(found(&back), "a bookmark returns to 13 from 14");
        let mut after_bookmark = complete();
        after_bookmark.insert(5, Received::Bookmark(9));
        assert!(found(&after_bookmark).contains("skipped"));
    }

    #[test]
    fn types_and_contents_that_do_not_fit_are_violations() {
        let mut wrong_type = complete();
        wrong_type[2] = event(Modified, "b", 7);
        assert!(
            check_against_complete(&wrong_type, &[])
                .unwrap_err()
                .contains("expected ADDED")
        );
        let mut other_write = complete();
        other_write[5] = Received::Event {
            change: Modified,
            key: "b".into(),
            version: Version {
                revision: 9,
                write: 1,
            },
        };
        assert_eq!(
            check_against_complete(&other_write, &[]).unwrap_err(),
            "revision 9 is write 1 here and write 900 of b elsewhere"
        );
        let list = snapshot(10, &[("b", 9)]);
        let found = check_against_complete(&complete(), &[list]).unwrap_err();
        assert!(found.starts_with("at revision 10 it has a as Some"), "{found}");
        let unlisted = [event(Added, "b", 7)];
        assert_eq!(
            check_against_complete(&unlisted, &[]).unwrap_err(),
            "it opened a watch before its first list"
        );
    }
}
