//! Events are deleted an hour after they were last written, as those of kube-apiserver (`--event-ttl`): a cluster records them without
//! end, and nothing else deletes the Events of objects that stay.
//!
//! A server notes the store's revision once a minute. An Event whose last write is of a revision that was noted an hour ago is deleted,
//! unless it is written meanwhile. So no time that a client has set counts. What an hour ago was is not known to a server that has
//! just started: it deletes the Events once that are old by every time that they contain, and the others an hour after its start.
//! Of the servers of one store each does this; an Event that another one has deleted is skipped.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::{Object, registry};
use knarr_client::Clock;

use super::maintenance::CacheMaintenance;

/// Between two notes of the revision.
const NOTE_EVERY: Duration = Duration::from_secs(60);
/// How many notes ago an Event must have been written last.
const NOTES: usize = 60;
/// The same as a time.
const TTL: SignedDuration = SignedDuration::from_hours(1);
/// Events that are collected at a time.
const BATCH: usize = 500;

/// Deletes old Events while the server exists.
pub(crate) async fn delete_old_events(maintenance: Weak<CacheMaintenance>, clock: Arc<dyn Clock>) {
    let mut notes = VecDeque::with_capacity(NOTES + 1);
    loop {
        tokio::time::sleep(NOTE_EVERY).await;
        let revision = match maintenance.upgrade() {
            None => return,
            Some(maintenance) if !maintenance.cache.is_synced() => continue,
            Some(maintenance) => maintenance.cache.revision(),
        };
        if notes.is_empty() {
            let before = clock.now() - TTL;
            delete(&maintenance, revision, |event| is_older(event, before)).await;
        }
        notes.push_back(revision);
        if notes.len() > NOTES
            && let Some(revision) = notes.pop_front()
        {
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
                // The next minute's note covers what is left.
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
