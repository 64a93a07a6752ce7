//! Watches: the state there was, what happened since, what happens now, and bookmarks in between.
//!
//! Everybody shares the encoding of an event. A watcher that cannot keep up is dropped and resumes from where
//! it was; its connection never holds up a write.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use knarr_api::field::{Errors, Path};
use knarr_api::{Error, Kind, Object};
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::cache::Cache;
use crate::cache::change::{Change, Filter, Told};
use crate::conversion::Converter;
use crate::pipeline::read::{ListQuery, bad_revision, invalid_options};
use crate::server::Server;

/// How often a watcher that asked for bookmarks gets one.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// A watch without a timeout of its own ends between this and twice this, so that connections spread.
const DEFAULT_TIMEOUT_SECONDS: u64 = 1800;

/// What a watch asks for.
#[derive(Clone, Debug, Default)]
pub struct WatchQuery {
    pub list: ListQuery,
    pub timeout_seconds: Option<u64>,
    pub bookmarks: bool,
    pub send_initial_events: Option<bool>,
}

/// What a watcher is given.
#[derive(Debug)]
pub enum Item {
    /// The object as it is told; with the change it came of, unless it was there at the beginning or a webhook converted it.
    Event(Told, Arc<Object>, Option<Arc<Change>>),
    /// The watch cannot go on: an object could not be converted. Nothing comes after it.
    Failed(Error),
    /// All up to this revision has been told.
    Bookmark { revision: u64, initial_events_end: bool },
}

/// A running watch. Dropping it ends it.
pub struct Watcher {
    cache: Arc<Cache>,
    /// Where a webhook converts the objects; they are filtered after that.
    converter: Option<Arc<Converter>>,
    failed: bool,
    pub filter: Filter,
    after: u64,
    pending: VecDeque<Item>,
    missed: VecDeque<Arc<Change>>,
    changes: mpsc::Receiver<Arc<Change>>,
    bookmarks: Option<Interval>,
    deadline: Option<Instant>,
}

impl Server {
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
            self.hear_all().await?;
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
        watcher.deadline = Some(Instant::now() + Duration::from_secs(seconds));
        Ok(watcher)
    }

    /// A watch without end or bookmarks: of the state there is and what follows (`None`), or of what follows `after`.
    pub(crate) async fn follow(&self, filter: Filter, after: Option<u64>) -> Result<Watcher, Error> {
        // Read first: all kinds are at least here, and this one at its own last change.
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
            pending.push_back(Item::Event(Told::Added, object, None));
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
        })
    }
}

impl Watcher {
    /// How much of the state at the beginning is still to be told.
    pub fn initial_len(&self) -> usize {
        self.pending.len()
    }

    /// The revision that the state at the beginning had.
    pub fn revision(&self) -> u64 {
        self.after
    }

    /// So many events went out.
    pub(crate) fn sent(&self, events: usize) {
        self.cache.count_watched(&self.filter.kind, events);
    }

    /// The next item; `None` at the end, be it because time is up or because it fell behind.
    pub async fn next(&mut self) -> Option<Item> {
        loop {
            if let Some(item) = self.pending.pop_front() {
                return Some(item);
            }
            if self.failed {
                return None;
            }
            if let Some(change) = self.missed.front().cloned() {
                // Whoever stops waiting while a webhook is asked finds the change again.
                let item = self.told_now(&change).await;
                self.missed.pop_front();
                if item.is_some() {
                    return item;
                }
                continue;
            }
            let deadline = self.deadline;
            let tick = async {
                match &mut self.bookmarks {
                    Some(ticks) => {
                        ticks.tick().await;
                    }
                    None => std::future::pending().await,
                }
            };
            let end = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at).await,
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
                    // A server that lags behind the one that was asked before takes nobody back.
                    let revision = self.cache.revision().max(self.after);
                    // The cache hands out changes before it advances: with none waiting, all up to here were told.
                    match self.changes.try_recv() {
                        Ok(change) => self.missed.push_back(change),
                        Err(_) => return Some(Item::Bookmark { revision, initial_events_end: false }),
                    }
                }
            }
        }
    }

    /// The next item, if it is there already.
    pub fn waiting(&mut self) -> Option<Item> {
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
            if let Some(item) = self.told(change) {
                return Some(item);
            }
        }
    }

    /// The same as [`Watcher::told`], with objects that a webhook converts.
    async fn told_now(&mut self, change: &Arc<Change>) -> Option<Item> {
        let Some(converter) = self.converter.clone() else {
            return self.told(change.clone());
        };
        if change.revision <= self.after && self.after > 0 {
            return None;
        }
        match seen_converted(&converter, change, &self.filter).await {
            Ok(seen) => seen.map(|(told, object)| Item::Event(told, object, None)),
            Err(error) => {
                self.failed = true;
                Some(Item::Failed(error))
            }
        }
    }

    fn told(&self, change: Arc<Change>) -> Option<Item> {
        if change.revision <= self.after && self.after > 0 {
            return None;
        }
        let (told, object) = change.seen(&self.filter)?;
        Some(Item::Event(told, object.clone(), Some(change)))
    }
}

/// How `filter` sees a change whose objects a webhook converts.
async fn seen_converted(
    converter: &Converter,
    change: &Change,
    filter: &Filter,
) -> Result<Option<(Told, Arc<Object>)>, Error> {
    if !filter.namespace.is_empty() && filter.namespace != change.object.namespace() {
        return Ok(None);
    }
    let before = match &change.prev {
        Some(prev) => Some(converter.watched(prev, &filter.kind).await?),
        None => None,
    };
    if change.deleted {
        // Its last state, at the revision of the deletion.
        let last = before.filter(|before| filter.matches(before));
        return Ok(last.map(|last| (Told::Deleted, Arc::new(last.at_revision(change.revision)))));
    }
    let after = converter.watched(&change.object, &filter.kind).await?;
    let was_seen = before.as_ref().is_some_and(|before| filter.matches(before));
    Ok(match (was_seen, filter.matches(&after)) {
        (false, false) => None,
        (false, true) => Some((Told::Added, after)),
        (true, true) => Some((Told::Modified, after)),
        (true, false) => before.map(|before| (Told::Deleted, Arc::new(before.at_revision(change.revision)))),
    })
}

fn validate(query: &WatchQuery) -> Result<(), Error> {
    let mut errors = Errors::new();
    let list = &query.list;
    let path = Path::new("resourceVersionMatch");
    let m = list.resource_version_match.as_str();
    // A watch from the beginning or from anything asks for initial events, unless it says otherwise.
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
