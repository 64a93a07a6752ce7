//! Watches: the initial objects, the changes since a revision, the changes as they happen, and bookmarks.
//!
//! All watchers share the encoding of an event. A watcher that falls behind is dropped and its client watches again from its
//! last revision; its connection never delays a write.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use knarr_api::{Kind, Object};
use knarr_apimachinery::Error;
use knarr_apimachinery::capacity::ShrinkSparse;
use knarr_apimachinery::field::{ErrorList, Path};
use prometheus::IntCounter;
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, Sleep};

use crate::cache::Cache;
use crate::cache::change::{Change, EventType, Filter};
use crate::conversion::Converter;
use crate::pipeline::Pipeline;
use crate::pipeline::read::{ListQuery, bad_revision, invalid_options};

/// The interval of bookmarks.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// A watch without a timeout ends between this time and twice this time, so that reconnections spread.
const DEFAULT_TIMEOUT_SECONDS: u64 = 1800;

/// The options of a watch.
#[derive(Clone, Debug, Default)]
pub struct WatchQuery {
    pub list: ListQuery,
    pub timeout_seconds: Option<u64>,
    pub bookmarks: bool,
    pub send_initial_events: Option<bool>,
}

/// An item of a watch.
#[derive(Debug)]
pub enum Item {
    /// The object of the event; with the change it comes from, unless it is an initial object or a webhook converted it.
    Event(EventType, Arc<Object>, Option<Arc<Change>>),
    /// An object could not be converted. The watch ends.
    Failed(Error),
    /// All changes up to this revision have been sent.
    Bookmark { revision: u64, initial_events_end: bool },
}

/// A running watch. Dropping it ends it.
pub struct Watcher {
    cache: Arc<Cache>,
    /// Set if a webhook converts the objects; they are filtered after that.
    converter: Option<Arc<Converter>>,
    failed: bool,
    pub filter: Filter,
    after: u64,
    pending: VecDeque<Item>,
    missed: VecDeque<Arc<Change>>,
    changes: mpsc::Receiver<Arc<Change>>,
    bookmarks: Option<Interval>,
    /// One timer for the whole watch: one for each wait would be entered and removed with each event.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Counts the events that were sent, once there are any.
    sent_events: OnceLock<IntCounter>,
}

impl Pipeline {
    /// Begins a watch.
    pub(crate) async fn watch(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        query: &WatchQuery,
    ) -> Result<Watcher, Error> {
        validate(query)?;
        let mut list = query.list.clone();
        if !name.is_empty() {
            let and = if list.field_selector.is_empty() { "" } else { "," };
            list.field_selector = format!("{}{and}metadata.name={name}", list.field_selector);
        }
        let filter = self.filter(kind, namespace, &list)?;
        let version = match list.resource_version.as_str() {
            "" => 0,
            text => text
                .parse()
                .map_err(|_| Error::new(500, "", bad_revision(text)))?,
        };
        let initial = query.send_initial_events == Some(true);
        if list.resource_version.is_empty() {
            self.wait_until_caught_up().await?;
        }
        if initial {
            self.wait_for_revision(version).await?;
        }
        let now = self.cache.revision();
        let after = match (query.send_initial_events, version) {
            (Some(true), _) | (None, 0) => None,
            (Some(false), 0) => Some(now),
            (_, version) => Some(version),
        };
        let mut watcher = self.follow(filter, after).await?;
        if query.bookmarks {
            if initial {
                watcher.pending.push_back(Item::Bookmark {
                    revision: watcher.after,
                    initial_events_end: true,
                });
            }
            let mut ticks = tokio::time::interval_at(Instant::now() + BOOKMARK_EVERY, BOOKMARK_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            watcher.bookmarks = Some(ticks);
        }
        let seconds = query.timeout_seconds.filter(|s| *s > 0).unwrap_or_else(|| {
            let mut spread = [0; 8];
            self.entropy.fill(&mut spread);
            DEFAULT_TIMEOUT_SECONDS + u64::from_le_bytes(spread) % DEFAULT_TIMEOUT_SECONDS
        });
        watcher.deadline = Some(Box::pin(tokio::time::sleep(Duration::from_secs(seconds))));
        Ok(watcher)
    }

    /// A watch without timeout or bookmarks: of the current objects and the changes that follow (`None`), or of the changes after `after`.
    pub(crate) async fn follow(&self, filter: Filter, after: Option<u64>) -> Result<Watcher, Error> {
        // Read first: all kinds are at least at this revision, and this one at its own last change.
        let revision = self.cache.revision();
        let by_webhook = filter.kind.is_converted_by_webhook();
        let subscription = match by_webhook {
            true => {
                let everything = Filter::everything(&filter.kind, &filter.namespace);
                self.cache.of(&filter.kind)?.subscribe(&everything, after)?
            }
            false => self.cache.of(&filter.kind)?.subscribe(&filter, after)?,
        };
        let mut initial = subscription.initial;
        if by_webhook {
            self.converter.all(&mut initial, &filter.kind).await?;
            initial.retain(|object| filter.matches(object));
        }
        let mut pending = VecDeque::with_capacity(initial.len());
        for object in initial {
            pending.push_back(Item::Event(EventType::Added, object, None));
        }
        Ok(Watcher {
            cache: self.cache.clone(),
            converter: by_webhook.then(|| self.converter.clone()),
            failed: false,
            filter,
            after: after.unwrap_or(revision.max(subscription.revision)),
            pending,
            missed: subscription.missed.into(),
            changes: subscription.changes,
            bookmarks: None,
            deadline: None,
            sent_events: OnceLock::new(),
        })
    }
}

impl Watcher {
    /// How many initial objects are still to be sent.
    pub fn initial_len(&self) -> usize {
        self.pending.len()
    }

    /// The revision of the initial objects.
    pub fn revision(&self) -> u64 {
        self.after
    }

    /// Counts events that were sent.
    pub(crate) fn sent(&self, events: usize) {
        let counter = self
            .sent_events
            .get_or_init(|| self.cache.watch_events(&self.filter.kind));
        counter.inc_by(events as u64);
    }

    /// The next item; `None` at the end, on timeout or because it fell behind.
    pub async fn next(&mut self) -> Option<Item> {
        loop {
            if let Some(item) = self.pending.pop_front() {
                return Some(item);
            }
            if self.failed {
                return None;
            }
            if let Some(change) = self.missed.front().cloned() {
                // If the caller stops waiting while a webhook is called, the change is still there.
                let item = self.converted_event(&change).await;
                self.missed.pop_front();
                if item.is_some() {
                    return item;
                }
                continue;
            }
            // All that there was at the beginning has been sent, and a watch may last for weeks.
            self.pending.shrink_sparse();
            self.missed.shrink_sparse();
            let tick = async {
                match &mut self.bookmarks {
                    Some(ticks) => {
                        ticks.tick().await;
                    }
                    None => std::future::pending().await,
                }
            };
            let end = async {
                match &mut self.deadline {
                    Some(deadline) => deadline.as_mut().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                change = self.changes.recv() => {
                    self.missed.push_back(change?);
                }
                () = end => return None,
                () = tick => {
                    // A server that is behind the one that the client used before must not send an older revision.
                    let revision = self.cache.revision().max(self.after);
                    // The cache sends changes before it advances: if none is waiting, all up to this revision were sent.
                    match self.changes.try_recv() {
                        Ok(change) => self.missed.push_back(change),
                        Err(_) => return Some(Item::Bookmark { revision, initial_events_end: false }),
                    }
                }
            }
        }
    }

    /// The next item, if it is ready.
    pub fn try_next(&mut self) -> Option<Item> {
        if let Some(item) = self.pending.pop_front() {
            return Some(item);
        }
        if self.converter.is_some() {
            return None;
        }
        loop {
            let change = match self.missed.pop_front() {
                Some(change) => change,
                None => self.changes.try_recv().ok()?,
            };
            if let Some(item) = self.event(change) {
                return Some(item);
            }
        }
    }

    /// Like [`Watcher::event`], for objects that a webhook converts.
    async fn converted_event(&mut self, change: &Arc<Change>) -> Option<Item> {
        let Some(converter) = self.converter.clone() else {
            return self.event(change.clone());
        };
        if change.revision <= self.after && self.after > 0 {
            return None;
        }
        match converted_event_for(&converter, change, &self.filter).await {
            Ok(seen) => seen.map(|(event_type, object)| Item::Event(event_type, object, None)),
            Err(error) => {
                self.failed = true;
                Some(Item::Failed(error))
            }
        }
    }

    fn event(&self, change: Arc<Change>) -> Option<Item> {
        if change.revision <= self.after && self.after > 0 {
            return None;
        }
        let (event_type, object) = change.event_for(&self.filter)?;
        Some(Item::Event(event_type, object.clone(), Some(change)))
    }
}

/// The event that `filter` gets for a change whose objects a webhook converts.
async fn converted_event_for(
    converter: &Converter,
    change: &Change,
    filter: &Filter,
) -> Result<Option<(EventType, Arc<Object>)>, Error> {
    if !filter.namespace.is_empty() && filter.namespace != change.object.namespace() {
        return Ok(None);
    }
    let before = match &change.prev {
        Some(prev) => Some(converter.watched(prev, &filter.kind).await?),
        None => None,
    };
    if change.deleted {
        // The last state, at the revision of the deletion.
        let last = before.filter(|before| filter.matches(before));
        return Ok(last.map(|last| (EventType::Deleted, Arc::new(last.at_revision(change.revision)))));
    }
    let after = converter.watched(&change.object, &filter.kind).await?;
    let was_seen = before.as_ref().is_some_and(|before| filter.matches(before));
    Ok(match (was_seen, filter.matches(&after)) {
        (false, false) => None,
        (false, true) => Some((EventType::Added, after)),
        (true, true) => Some((EventType::Modified, after)),
        (true, false) => {
            before.map(|before| (EventType::Deleted, Arc::new(before.at_revision(change.revision))))
        }
    })
}

fn validate(query: &WatchQuery) -> Result<(), Error> {
    let mut errors = ErrorList::new();
    let list = &query.list;
    let path = Path::new("resourceVersionMatch");
    let m = list.resource_version_match.as_str();
    // A watch from the beginning or from any revision sends initial events, unless it sets `sendInitialEvents`.
    let is_legacy = query.send_initial_events.is_none() && m.is_empty();
    let is_legacy = is_legacy && matches!(list.resource_version.as_str(), "" | "0");
    if query.send_initial_events.is_some() && m != "NotOlderThan" {
        errors.forbidden(
            &path,
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        );
    }
    if !m.is_empty() {
        if query.send_initial_events.is_none() {
            errors.forbidden(
                &path,
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            );
        }
        if m != "NotOlderThan" {
            errors.not_supported(&path, m, &["NotOlderThan"]);
        }
    }
    if !list.continue_token.is_empty() && (is_legacy || !m.is_empty()) {
        errors.forbidden(
            &path,
            "resourceVersionMatch is forbidden when continue is provided",
        );
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(invalid_options("ListOptions", &errors))
    }
}

#[cfg(test)]
mod tests {
    use knarr_api::k8s_openapi::api::core::v1::ConfigMap;
    use knarr_api::registry;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_watch_ends_at_its_deadline_whatever_it_has_sent_before() {
        let store = knarr_store::open(knarr_store::Config::Memory).await.unwrap();
        let (sender, changes) = mpsc::channel(1);
        let kind = &registry::CONFIG_MAP;
        let mut watcher = Watcher {
            cache: Cache::new(store),
            converter: None,
            failed: false,
            filter: Filter::everything(kind, ""),
            after: 0,
            pending: VecDeque::new(),
            missed: VecDeque::new(),
            changes,
            bookmarks: None,
            deadline: Some(Box::pin(tokio::time::sleep(Duration::from_secs(10)))),
            sent_events: OnceLock::new(),
        };
        let begun = Instant::now();
        for _ in 0..3 {
            let object = Arc::new(Object::from_typed(kind, Box::new(ConfigMap::default())));
            let change = Arc::new(Change::new(object, None, false));
            let later = async {
                tokio::time::sleep(Duration::from_secs(3)).await;
                sender.send(change).await
            };
            let (item, sent) = tokio::join!(watcher.next(), later);
            assert!(sent.is_ok() && matches!(item, Some(Item::Event(EventType::Added, _, _))));
            watcher.sent(1);
        }
        assert!(watcher.next().await.is_none());
        assert_eq!(begun.elapsed().as_secs(), 10);
        assert_eq!(watcher.sent_events.get().map(IntCounter::get), Some(3));
    }
}
