//! Publishes commits to the watchers of an engine.
//!
//! A group of commits becomes one shared batch. Watchers that see all of it share it, watchers of the same range share
//! its selected events, and a ring of the latest batches lets a watch start a little in the past without reading the
//! history. Nothing here waits for a watcher: one whose queue is full gets [`Error::Lagged`] and is removed, so it
//! costs the others nothing and a bounded amount of memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::progress::Progress;
use crate::{Error, Event, KeyRange, Revision, Watch, WatchItem};

/// Batches that may wait for one watcher. At the engine's highest commit rate (some thousands a second) that is about a
/// second without reading.
pub(crate) const WATCH_QUEUE_BATCHES: usize = 4096;

/// Bytes of events that may wait for one watcher: some ten thousand pods of 5 KB. Watchers
/// share the events, so this is also about what all slow ones together hold.
pub(crate) const WATCH_QUEUE_BYTES: usize = 64 << 20;

/// Bytes of recent events kept for watches that start in the past: they are always in memory, and the idle process
/// should stay small. A watch that begins at the revision of a range is behind by the milliseconds between the two;
/// one that is further behind reads the history.
pub(crate) const RING_BYTES: usize = 1 << 20;

/// Batches in the ring, for when the events are small. Deletions are: after many of them the batches stay for as long
/// as an idle cluster writes little, and each can keep a page of the allocator from being returned.
const RING_BATCHES: usize = 256;

/// Changes read from the history at once for a watch that begins before the ring.
pub(crate) const CATCH_UP_EVENTS: usize = 500;

/// Items of history that may wait for one watcher; each is read when there is room for it.
const CATCH_UP_AHEAD: usize = 4;

/// Where changes are found that the ring no longer has.
#[async_trait]
pub(crate) trait History: Send + Sync + 'static {
    /// The changes in `keys` from `from` on by whole transactions, not many more than `enough`; with them the
    /// revision up to which this is everything.
    async fn changes_since(
        &self,
        keys: &KeyRange,
        from: Revision,
        enough: usize,
    ) -> Result<(Vec<Event>, Revision), Error>;
}

struct Watcher {
    items: mpsc::Sender<Result<WatchItem, Error>>,
    /// Changes before this revision were delivered already, or were not requested.
    from: Revision,
    /// The size of each queued item, oldest first; those taken out are dropped from the front.
    queued: VecDeque<usize>,
    queued_bytes: usize,
}

impl Watcher {
    /// Queues the events; `false` if the watcher was dropped or has to be removed.
    fn offer(&mut self, events: &Arc<Vec<Event>>, bytes: usize) -> bool {
        let waiting = self.items.max_capacity() - self.items.capacity();
        while self.queued.len() > waiting {
            self.queued_bytes -= self.queued.pop_front().unwrap_or(0);
        }
        // The channel has room for one item more than we use: the bad news.
        if waiting >= WATCH_QUEUE_BATCHES || self.queued_bytes > WATCH_QUEUE_BYTES {
            if self.items.try_send(Err(Error::Lagged)).is_err() {
                tracing::debug!("a watcher that fell behind was dropped already");
            }
            return false;
        }
        self.queued.push_back(bytes);
        self.queued_bytes += bytes;
        self.items.try_send(Ok(WatchItem::Events(events.clone()))).is_ok()
    }
}

/// All watchers of one range.
struct Group {
    keys: KeyRange,
    watchers: Vec<Watcher>,
}

struct Batch {
    events: Arc<Vec<Event>>,
    bytes: usize,
    last: Revision,
}

struct Inner {
    revision: Revision,
    groups: Vec<Group>,
    ring: VecDeque<Batch>,
    ring_bytes: usize,
    /// The ring has every change from this revision on.
    ring_from: Revision,
    closed: bool,
}

pub(crate) struct Hub {
    inner: Mutex<Inner>,
    progress: Arc<Progress>,
}

fn weight(event: &Event) -> usize {
    size_of::<Event>() + event.kv.key.len() + event.kv.value.len()
}

fn weigh(events: &[Event]) -> usize {
    events.iter().map(weight).sum()
}

impl Hub {
    /// For a store that is at `revision`.
    pub fn new(revision: Revision) -> Arc<Self> {
        Arc::new(Hub {
            inner: Mutex::new(Inner {
                revision,
                groups: Vec::new(),
                ring: VecDeque::new(),
                ring_bytes: 0,
                ring_from: revision + 1,
                closed: false,
            }),
            progress: Progress::new(revision),
        })
    }

    /// Publishes one or more transactions, the last of which made `revision`.
    pub fn publish(&self, events: Vec<Event>, revision: Revision) {
        let mut inner = self.inner.lock();
        inner.revision = revision;
        let bytes = weigh(&events);
        let events = Arc::new(events);
        for group in &mut inner.groups {
            group.notify(&events, bytes, revision);
        }
        inner.groups.retain(|group| !group.watchers.is_empty());
        inner.ring.push_back(Batch {
            events,
            bytes,
            last: revision,
        });
        inner.ring_bytes += bytes;
        while inner.ring_bytes > RING_BYTES || inner.ring.len() > RING_BATCHES {
            let Some(oldest) = inner.ring.pop_front() else {
                break;
            };
            inner.ring_bytes -= oldest.bytes;
            inner.ring_from = oldest.last + 1;
        }
        drop(inner);
        self.progress.set(revision);
    }

    /// Ends all watches.
    pub fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closed = true;
        inner.groups.clear();
    }

    /// Begins a watch. What happened before and is not in the ring any more comes from `history`.
    pub fn watch(
        self: &Arc<Self>,
        keys: KeyRange,
        from: Revision,
        history: impl FnOnce() -> Arc<dyn History>,
    ) -> Watch {
        let (items, receiver) = mpsc::channel(WATCH_QUEUE_BATCHES + 1);
        let joined = Arc::new(AtomicBool::new(false));
        let watch = Watch::new(
            receiver,
            self.progress.clone(),
            joined.clone(),
            from.saturating_sub(1),
        );
        if !self.join(&keys, from, &items, &joined) {
            tokio::spawn(catch_up(self.clone(), history(), keys, from, items, joined));
        }
        watch
    }

    /// Adds the watcher if everything it has to receive first is in the ring (one item at most, for which its queue has
    /// room).
    fn join(
        &self,
        keys: &KeyRange,
        from: Revision,
        items: &mpsc::Sender<Result<WatchItem, Error>>,
        joined: &AtomicBool,
    ) -> bool {
        let mut inner = self.inner.lock();
        if inner.closed {
            return true;
        }
        let mut watcher = Watcher {
            items: items.clone(),
            from,
            queued: VecDeque::new(),
            queued_bytes: 0,
        };
        if from != 0 && from <= inner.revision {
            if from < inner.ring_from {
                return false;
            }
            let first = inner.ring.partition_point(|batch| batch.last < from);
            let missed = inner.ring.range(first..).flat_map(|batch| batch.events.iter());
            let missed: Vec<Event> = missed
                .filter(|e| e.kv.mod_revision >= from && keys.contains(&e.kv.key))
                .cloned()
                .collect();
            let bytes = weigh(&missed);
            if !missed.is_empty() && !watcher.offer(&Arc::new(missed), bytes) {
                return true;
            }
        }
        for group in &mut inner.groups {
            group.watchers.retain(|watcher| !watcher.items.is_closed());
        }
        inner.groups.retain(|group| !group.watchers.is_empty());
        match inner.groups.iter_mut().find(|group| group.keys == *keys) {
            Some(group) => group.watchers.push(watcher),
            None => inner.groups.push(Group {
                keys: keys.clone(),
                watchers: vec![watcher],
            }),
        }
        joined.store(true, Ordering::Release);
        true
    }
}

impl Group {
    fn notify(&mut self, events: &Arc<Vec<Event>>, bytes: usize, last: Revision) {
        let seen = events.iter().filter(|e| self.keys.contains(&e.kv.key)).count();
        if seen == 0 {
            return;
        }
        let (mine, bytes) = if seen == events.len() {
            (events.clone(), bytes)
        } else {
            let cut = events.iter().filter(|e| self.keys.contains(&e.kv.key));
            let cut: Vec<Event> = cut.cloned().collect();
            let bytes = weigh(&cut);
            (Arc::new(cut), bytes)
        };
        let first = mine.first().map_or(0, |e| e.kv.mod_revision);
        self.watchers.retain_mut(|watcher| {
            if watcher.from > last {
                return true;
            }
            let from = std::mem::take(&mut watcher.from);
            if from <= first {
                return watcher.offer(&mine, bytes);
            }
            let later: Vec<Event> = mine
                .iter()
                .filter(|e| e.kv.mod_revision >= from)
                .cloned()
                .collect();
            let bytes = weigh(&later);
            later.is_empty() || watcher.offer(&Arc::new(later), bytes)
        });
    }
}

/// Sends a watcher the past, at the watcher's own pace, until it can join the others.
async fn catch_up(
    hub: Arc<Hub>,
    history: Arc<dyn History>,
    keys: KeyRange,
    mut from: Revision,
    items: mpsc::Sender<Result<WatchItem, Error>>,
    joined: Arc<AtomicBool>,
) {
    loop {
        // The place where a slow watcher makes us, and only us, wait.
        let Ok(permits) = items.reserve_many(WATCH_QUEUE_BATCHES + 1 - CATCH_UP_AHEAD).await else {
            return;
        };
        drop(permits);
        if hub.join(&keys, from, &items, &joined) {
            return;
        }
        let found = history.changes_since(&keys, from, CATCH_UP_EVENTS).await;
        let (item, upto) = match found {
            Ok((events, upto)) if events.is_empty() => (Ok(WatchItem::Progress(upto)), upto),
            Ok((events, upto)) => (Ok(WatchItem::Events(Arc::new(events))), upto),
            Err(error) => (Err(error), 0),
        };
        let failed = item.is_err();
        if items.send(item).await.is_err() || failed {
            return;
        }
        from = upto + 1;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::KeyValue;

    struct NoHistory;

    #[async_trait]
    impl History for NoHistory {
        async fn changes_since(
            &self,
            _: &KeyRange,
            from: Revision,
            _: usize,
        ) -> Result<(Vec<Event>, Revision), Error> {
            panic!("the history was asked for revision {from}")
        }
    }

    fn event(key: &'static str, revision: Revision, bytes: usize) -> Event {
        let kv = KeyValue {
            key: Bytes::from_static(key.as_bytes()),
            value: vec![0; bytes].into(),
            create_revision: revision,
            mod_revision: revision,
            version: 1,
        };
        Event { kv, deleted: false }
    }

    fn watch(hub: &Arc<Hub>, prefix: &'static str, from: Revision) -> Watch {
        hub.watch(KeyRange::prefix(prefix), from, || Arc::new(NoHistory))
    }

    /// Everything that waits, `Progress` as `(revision)`.
    async fn received(watch: &mut Watch) -> String {
        let mut received = Vec::new();
        while let Ok(item) = tokio::time::timeout(std::time::Duration::ZERO, watch.next()).await {
            received.push(match item {
                Some(Ok(WatchItem::Events(events))) => {
                    let one = |e: &Event| format!("{}{}", e.kv.key.escape_ascii(), e.kv.mod_revision);
                    events.iter().map(one).collect::<Vec<_>>().join("+")
                }
                Some(Ok(WatchItem::Progress(revision))) => format!("({revision})"),
                Some(Err(error)) => format!("{error}"),
                None => {
                    received.push("end".into());
                    break;
                }
            });
        }
        received.join(" ")
    }

    #[tokio::test(start_paused = true)]
    async fn watchers_receive_their_range_and_its_progress() {
        let hub = Hub::new(1);
        let (mut a, mut all) = (watch(&hub, "a", 0), watch(&hub, "", 0));
        assert_eq!(received(&mut a).await, "(1)");
        hub.publish(vec![event("a", 2, 1), event("b", 2, 1), event("a", 3, 1)], 3);
        hub.publish(vec![event("b", 4, 1)], 4);
        assert_eq!(received(&mut a).await, "a2+a3 (4)");
        assert_eq!(received(&mut all).await, "a2+b2+a3 b4");
        hub.publish(vec![event("b", 5, 1)], 5);
        hub.publish(vec![event("a", 6, 1)], 6);
        assert_eq!(received(&mut a).await, "a6");
        hub.close();
        assert_eq!(received(&mut a).await, "end");
    }

    #[tokio::test(start_paused = true)]
    async fn watchers_of_one_range_share_their_events() {
        let hub = Hub::new(1);
        let mut watches = [
            watch(&hub, "a", 0),
            watch(&hub, "a", 0),
            watch(&hub, "", 0),
            watch(&hub, "", 0),
        ];
        hub.publish(vec![event("a", 2, 1), event("b", 2, 1)], 2);
        let mut shared = Vec::new();
        for watch in &mut watches {
            match watch.next().await {
                Some(Ok(WatchItem::Events(events))) => shared.push(events),
                other => panic!("{other:?}"),
            }
        }
        assert!(Arc::ptr_eq(&shared[0], &shared[1]) && Arc::ptr_eq(&shared[2], &shared[3]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_begins_in_the_middle_of_the_ring() {
        let hub = Hub::new(1);
        hub.publish(vec![event("a", 2, 1), event("a", 3, 1)], 3);
        hub.publish(vec![event("b", 4, 1), event("a", 5, 1)], 5);
        let (mut from_3, mut from_6, mut from_8) =
            (watch(&hub, "a", 3), watch(&hub, "a", 6), watch(&hub, "a", 8));
        hub.publish(vec![event("a", 6, 1), event("a", 7, 1), event("a", 8, 1)], 8);
        assert_eq!(received(&mut from_3).await, "a3+a5 a6+a7+a8");
        assert_eq!(received(&mut from_6).await, "a6+a7+a8");
        assert_eq!(received(&mut from_8).await, "a8");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_watcher_is_dropped_and_the_others_go_on() {
        // Many small items, then few large ones: both limits.
        for (bytes, expected) in [(1, WATCH_QUEUE_BATCHES), (1 << 20, WATCH_QUEUE_BYTES >> 20)] {
            let hub = Hub::new(1);
            let (mut slow, mut quick) = (watch(&hub, "a", 0), watch(&hub, "a", 0));
            let last = 2 * expected as Revision;
            for revision in 2..=last {
                hub.publish(vec![event("a", revision, bytes)], revision);
                assert!(
                    matches!(quick.next().await, Some(Ok(WatchItem::Events(e))) if e[0].kv.mod_revision == revision)
                );
            }
            let mut got = 0;
            let end = loop {
                match slow.next().await {
                    Some(Ok(_)) => got += 1,
                    end => break end,
                }
            };
            assert!(matches!(end, Some(Err(Error::Lagged))), "{end:?}");
            assert!(slow.next().await.is_none());
            assert_eq!(got, expected, "items of {bytes} bytes");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_ring_is_bounded() {
        let batches = RING_BATCHES as Revision;
        // Large events, and many small ones.
        for (bytes, last, kept) in [
            (RING_BYTES / 40, 100, 30..41),
            (1, 3 * batches, RING_BATCHES..RING_BATCHES + 1),
        ] {
            let hub = Hub::new(1);
            for revision in 2..last {
                hub.publish(vec![event("a", revision, bytes)], revision);
            }
            let inner = hub.inner.lock();
            assert!(inner.ring_bytes <= RING_BYTES, "{bytes}");
            assert!(kept.contains(&inner.ring.len()), "{bytes}: {}", inner.ring.len());
            assert_eq!(inner.ring_from, inner.ring[0].events[0].kv.mod_revision);
        }
    }
}
