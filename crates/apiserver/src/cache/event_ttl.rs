//! Events are deleted some time after they were last written, as those of kube-apiserver (`--event-ttl`, the TTL): a cluster records them
//! without end, and nothing else deletes the Events of objects that stay.
//!
//! A server notes the store's revision at intervals. An Event whose last write is of a revision that was noted a TTL ago is deleted,
//! unless it is written meanwhile. So no time that a client has set counts. What a TTL ago was is not known to a server that has
//! just started: it deletes the Events once that are old by every time that they contain, and the others a TTL after its start.
//! Of the servers of one store each does this; an Event that another one has deleted is skipped.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::{Object, registry};
use knarr_client::Clock;
use tokio::time::Instant;

use super::maintenance::CacheMaintenance;

/// How many intervals a TTL has: an Event may be kept for two of them longer.
const PARTS: u32 = 60;
/// The shortest interval: after each, all Events are scanned.
const SHORTEST: Duration = Duration::from_secs(1);
/// The longest interval, unless there would be too many notes. kube-apiserver may keep an Event for a minute longer, too: those of a
/// minute share a lease of etcd.
const LONGEST: Duration = Duration::from_secs(60);
/// The most notes, of 24 bytes each: a day of minutes.
const MOST_NOTES: u32 = 24 * 60;
/// Events that are collected at a time.
const BATCH: usize = 500;

/// The revisions that the store had at intervals within the last TTL.
struct Notes {
    ttl: Duration,
    /// When each was noted, counted from any fixed moment, and the revision.
    kept: VecDeque<(Duration, u64)>,
}

impl Notes {
    fn new(ttl: Duration) -> Self {
        Notes {
            ttl,
            kept: VecDeque::new(),
        }
    }

    /// The time between two notes.
    fn interval(&self) -> Duration {
        let precise = (self.ttl / PARTS).clamp(SHORTEST, LONGEST);
        precise.max(self.ttl / MOST_NOTES)
    }

    /// Notes the revision of this time. Returns the last revision that was noted a TTL ago or earlier, if it was not returned before.
    fn note(&mut self, at: Duration, revision: u64) -> Option<u64> {
        self.kept.push_back((at, revision));
        let mut old = None;
        while let Some((noted, revision)) = self.kept.front().copied()
            && at.saturating_sub(noted) >= self.ttl
        {
            old = Some(revision);
            self.kept.pop_front();
        }
        old
    }
}

/// Deletes the Events whose last write is a TTL ago, while the server exists.
pub(crate) async fn delete_old_events(
    maintenance: Weak<CacheMaintenance>,
    clock: Arc<dyn Clock>,
    ttl: Duration,
) {
    let began = Instant::now();
    let mut notes = Notes::new(ttl);
    let mut is_first = true;
    loop {
        tokio::time::sleep(notes.interval()).await;
        let revision = match maintenance.upgrade() {
            None => return,
            Some(maintenance) if !maintenance.cache.is_synced() => continue,
            Some(maintenance) => maintenance.cache.revision(),
        };
        // Noted before the deletions, which take time.
        let old = notes.note(began.elapsed(), revision);
        if std::mem::take(&mut is_first)
            && let Ok(before) = clock.now().checked_sub(ttl)
        {
            delete(&maintenance, revision, |event| is_older(event, before)).await;
        }
        if let Some(revision) = old {
            delete(&maintenance, revision, |_| true).await;
        }
    }
}

/// Deletes the Events that were last written at this revision or before, if they are old.
async fn delete(maintenance: &Weak<CacheMaintenance>, revision: u64, is_old: impl Fn(&Object) -> bool) {
    let mut after = String::new();
    loop {
        let mut unchanged = Vec::new();
        {
            let Some(maintenance) = maintenance.upgrade() else {
                return;
            };
            let Ok(events) = maintenance.cache.of(&registry::EVENT) else {
                return;
            };
            events.scan("", &after, |event| {
                if event.revision() <= revision {
                    unchanged.push(event.clone());
                }
                unchanged.len() < BATCH
            });
        }
        let Some(last) = unchanged.last() else {
            return;
        };
        after = crate::keys::local(last.namespace(), last.name());
        // Not within the scan: it holds the lock of all Events, and their times are decoded.
        for event in unchanged.iter().filter(|event| is_old(event)) {
            let Some(maintenance) = maintenance.upgrade() else {
                return;
            };
            if let Err(error) = maintenance.cache.delete(event, None).await {
                // The next note's deletion covers what is left.
                tracing::debug!(%error, "cannot delete old Events");
                return;
            }
        }
    }
}

/// Whether every time in an Event is before this one.
fn is_older(event: &Object, than: Timestamp) -> bool {
    let is_older = event.with_typed(|event: &Event| {
        let meta = &event.metadata;
        let managers = meta.managed_fields.iter().flatten();
        let series = event.series.as_ref();
        let mut times = managers
            .filter_map(|manager| Some(manager.time.as_ref()?.0))
            .chain(meta.creation_timestamp.as_ref().map(|time| time.0))
            .chain(event.last_timestamp.as_ref().map(|time| time.0))
            .chain(event.event_time.as_ref().map(|time| time.0))
            .chain(series.and_then(|series| Some(series.last_observed_time.as_ref()?.0)));
        times.all(|time| time < than)
    });
    is_older.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn notes_are_as_far_apart_as_the_ttl_demands_and_never_many() {
        const HOUR: u64 = 60 * 60;
        // TTL, interval, notes that are kept
        for (ttl, interval, notes) in [
            (seconds(1), seconds(1), 1),
            (seconds(90), Duration::from_millis(1500), 60),
            (seconds(600), seconds(10), 60),
            (seconds(HOUR), seconds(60), 60),
            (seconds(24 * HOUR), seconds(60), 1440),
            (seconds(168 * HOUR), seconds(420), 1440),
            (seconds(40 * 365 * 24 * HOUR), seconds(876_000), 1440),
        ] {
            let mut kept = Notes::new(ttl);
            assert_eq!(kept.interval(), interval, "{ttl:?}");
            for n in 1..=2 * MOST_NOTES {
                kept.note(interval * n, u64::from(n));
            }
            assert_eq!(kept.kept.len(), notes, "{ttl:?}");
        }
    }

    #[test]
    fn a_revision_is_old_when_it_was_noted_a_ttl_ago() {
        let mut notes = Notes::new(seconds(10));
        // seconds, the revision then -> what is old
        for (at, revision, old) in [
            (1, 100, None),
            (2, 100, None),
            (10, 130, None),
            (11, 140, Some(100)),
            (11, 141, None),
            // The server waited for its store: of several that are old the last one is returned.
            (20, 150, Some(130)),
            (60, 160, Some(150)),
            (69, 170, None),
            (70, 180, Some(160)),
        ] {
            assert_eq!(notes.note(seconds(at), revision), old, "{at} s");
        }
    }
}
