//! All objects of one kind, its recent changes, and its watchers.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use knarr_api::{Kind, Object};
use knarr_apimachinery::Error;
use knarr_apimachinery::capacity::ShrinkSparse;
use parking_lot::RwLock;
use tokio::sync::mpsc;

use super::change::{Change, Filter};
use super::index::{Index, IndexedBy};
use crate::keys;

/// How many changes of a kind are kept for watches that resume. As maintenance drops old ones, a kind has so many only under load: kube-apiserver's
/// watch cache grows, too, so that it has the changes of the last 75 s, to 102 400 at most (`defaultUpperBoundCapacity`).
pub(super) const WINDOW_CHANGES: usize = 16 * 1024;
/// How much memory the kept changes of a kind may hold; the reason why they may be fewer than kube-apiserver's.
const WINDOW_BYTES: usize = 32 << 20;
/// How many of the newest changes are kept however old they are (kube-apiserver's `defaultLowerBoundCapacity`).
const LAST_CHANGES: usize = 100;
/// How many of the newest changes keep their typed values: components of this process read them at once. Older ones
/// keep only their encoding.
const FRESH_CHANGES: usize = 128;
/// A kind with at most so many objects keeps their typed values, however they were used: together they are hardly
/// larger than the window of changes, and most would soon be decoded again.
const FEW_OBJECTS: usize = 256;
/// How many objects drop their typed value, or how many changes are dropped, before the lock is released.
const SLIM_BATCH: usize = 1000;
/// How many changes may wait for one watcher; a watcher that falls further behind is dropped and has to watch again.
pub const WATCHER_BUFFER: usize = 1024;

pub struct KindCache {
    pub kind: Kind,
    indexed_by: Option<IndexedBy>,
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Arc<Object>>,
    index: Index,
    window: VecDeque<Arc<Change>>,
    window_bytes: usize,
    /// Every change after this revision is in the window.
    window_from: u64,
    /// The last change.
    newest: u64,
    watchers: Vec<Watcher>,
    /// How often objects of the kind had been decoded again ([`decoded_again`](knarr_api::kind::KindInfo::decoded_again)) when all but the newest were
    /// found without typed values. While that is the number, there is nothing to drop. `None`: they have to be visited.
    settled: Option<u64>,
}

struct Watcher {
    /// Empty: all namespaces.
    namespace: String,
    /// The only name that the watcher's field selector can match; empty for any.
    name: String,
    /// The only value of the kind's index that the watcher's field selector can match; empty for any.
    indexed: String,
    changes: mpsc::Sender<Arc<Change>>,
}

impl Watcher {
    /// A cheap check, so that a watch of one object, or of one node's pods, costs the others nothing. The watcher filters what passes.
    /// `indexed` has the values by which the object is or was found.
    fn may_match(&self, object: &Object, indexed: &[String]) -> bool {
        (self.namespace.is_empty() || self.namespace == object.namespace())
            && (self.name.is_empty() || self.name == object.name())
            && (self.indexed.is_empty() || indexed.contains(&self.indexed))
    }
}

/// A watch as the cache returns it: the changes up to now, and a channel with those that follow.
pub struct Subscription {
    /// The kind's last change before the watch began.
    pub revision: u64,
    /// The objects at the beginning, if the watch asked for them.
    pub initial: Vec<Arc<Object>>,
    /// Changes since the revision that the watch asked for.
    pub missed: Vec<Arc<Change>>,
    /// Closed when the watcher falls behind or the cache starts over.
    pub changes: mpsc::Receiver<Arc<Change>>,
}

impl KindCache {
    pub fn new(kind: &Kind) -> Self {
        KindCache {
            kind: kind.clone(),
            indexed_by: IndexedBy::of(kind),
            state: RwLock::default(),
        }
    }

    /// Replaces all objects by these, as of `revision`. Watchers are dropped: they have to list again.
    pub fn load(&self, mut objects: BTreeMap<String, Arc<Object>>, revision: u64) {
        let mut index = Index::default();
        if let Some(by) = self.indexed_by {
            for (key, object) in &objects {
                index.change(by, key, None, Some(object));
            }
        }
        if objects.len() > FEW_OBJECTS {
            objects.values_mut().for_each(|o| *o = o.slim());
        }
        *self.state.write() = State {
            objects,
            index,
            window_from: revision,
            newest: revision,
            ..State::default()
        };
    }

    /// Drops all changes; watches cannot resume before `now`.
    pub fn forget_history(&self, now: u64) {
        let mut state = self.state.write();
        state.window.clear();
        state.window.shrink_sparse();
        state.window_bytes = 0;
        state.window_from = state.newest.max(now);
        // Those of the newest changes have typed values.
        state.settled = None;
    }

    pub fn get(&self, local: &str) -> Option<Arc<Object>> {
        self.state.read().objects.get(local).cloned()
    }

    /// The revision of the kind's last change.
    pub fn newest(&self) -> u64 {
        self.state.read().newest
    }

    pub fn count(&self) -> usize {
        self.state.read().objects.len()
    }

    /// The changes that are kept, and about how many bytes they hold.
    pub fn kept_changes(&self) -> (usize, usize) {
        let state = self.state.read();
        (state.window.len(), state.window_bytes)
    }

    /// Calls `visit` with the objects of a namespace (all, if empty) after `after` (a local key; empty: from the
    /// first), in key order, until it returns false. Returns the revision of the kind's last change at that time.
    pub fn scan(&self, namespace: &str, after: &str, visit: impl FnMut(&Arc<Object>) -> bool) -> u64 {
        let state = self.state.read();
        state.visit(None, namespace, after, visit);
        state.newest
    }

    /// As [`KindCache::scan`], with all objects that `filter` matches, and perhaps others. The object that it names is found without
    /// a scan.
    pub fn scan_for(&self, filter: &Filter, mut visit: impl FnMut(&Arc<Object>) -> bool) -> u64 {
        let state = self.state.read();
        let has_key = !filter.namespace.is_empty() || !filter.kind.namespaced();
        match filter.name().filter(|_| has_key) {
            Some(name) => {
                if let Some(object) = state.objects.get(keys::local(&filter.namespace, name).as_str()) {
                    visit(object);
                }
            }
            None => state.visit(self.required(filter), &filter.namespace, "", visit),
        }
        state.newest
    }

    /// The objects of a namespace (all, if empty) that are indexed by `value`, in key order, until `visit` returns false.
    pub fn scan_index(&self, value: &str, namespace: &str, visit: impl FnMut(&Arc<Object>) -> bool) {
        self.state.read().visit(Some(value), namespace, "", visit);
    }

    fn required<'a>(&self, filter: &'a Filter) -> Option<&'a str> {
        self.indexed_by?.required(filter)
    }

    /// Everything that `filter` matches, in key order.
    pub fn list(&self, filter: &Filter) -> Vec<Arc<Object>> {
        let mut found = Vec::new();
        self.scan_for(filter, |object| {
            if filter.matches(object) {
                found.push(object.clone());
            }
            true
        });
        found
    }

    /// The changes after a revision, and the revision of the last; `None` if they are no longer in the window.
    pub fn changes_after(&self, after: u64) -> Option<(Vec<Arc<Change>>, u64)> {
        let state = self.state.read();
        if after < state.window_from {
            return None;
        }
        let first = state.window.partition_point(|c| c.revision <= after);
        Some((state.window.range(first..).cloned().collect(), state.newest))
    }

    /// The object that was deleted at `revision`, at that revision; `None` if there is no such change in the window.
    pub fn deleted_at(&self, revision: u64) -> Option<Arc<Object>> {
        let state = self.state.read();
        let at = state.window.partition_point(|c| c.revision < revision);
        let change = state.window.get(at)?;
        (change.deleted && change.revision == revision).then(|| change.object.clone())
    }

    /// Begins a watch. `after` = `None` begins with all objects; a revision begins after it.
    /// 410 if the changes since that revision are no longer in the window.
    pub fn subscribe(&self, filter: &Filter, after: Option<u64>) -> Result<Subscription, Error> {
        let (sender, changes) = mpsc::channel(WATCHER_BUFFER);
        let mut state = self.state.write();
        let mut missed = Vec::new();
        let mut initial = Vec::new();
        match after {
            Some(after) if after < state.window_from => {
                return Err(Error::expired(format!(
                    "too old resource version: {after} ({})",
                    state.window_from
                )));
            }
            Some(after) => {
                let first = state.window.partition_point(|c| c.revision <= after);
                missed.extend(state.window.range(first..).cloned());
            }
            None => state.visit(self.required(filter), &filter.namespace, "", |object| {
                initial.extend(filter.matches(object).then(|| object.clone()));
                true
            }),
        }
        state.watchers.push(Watcher {
            namespace: filter.namespace.clone(),
            name: filter.name().unwrap_or_default().to_string(),
            indexed: self.required(filter).unwrap_or_default().to_string(),
            changes: sender,
        });
        Ok(Subscription {
            revision: state.newest,
            initial,
            missed,
            changes,
        })
    }

    /// Applies an object's new value. The previous value is part of the change that watchers get. Returns how many watchers were closed
    /// because they were too far behind.
    pub fn put(&self, local: &str, object: Arc<Object>) -> usize {
        let mut state = self.state.write();
        // One search, also for a new object: a second one would cost more than the key that an update drops.
        let prev = state.objects.insert(local.to_string(), object.clone());
        if let Some(prev) = &prev {
            state.slim_change_to(prev);
        }
        if let Some(by) = self.indexed_by {
            state.index.change(by, local, prev.as_deref(), Some(&object));
        }
        state.publish(Change::new(object, prev, false), self.indexed_by)
    }

    /// Applies a deletion at `revision`. Returns how many watchers were closed because they were too far behind.
    pub fn remove(&self, local: &str, revision: u64) -> usize {
        let mut state = self.state.write();
        let Some(prev) = state.objects.remove(local) else {
            return 0;
        };
        state.slim_change_to(&prev);
        if let Some(by) = self.indexed_by {
            state.index.change(by, local, Some(&prev), None);
        }
        let last = Arc::new(prev.at_revision(revision));
        state.publish(Change::new(last, Some(prev), true), self.indexed_by)
    }
}

impl KindCache {
    /// Drops the typed values that were decoded since the last call: of older changes, and of objects, unless there
    /// are [few](FEW_OBJECTS) of them.
    pub fn slim(&self) {
        self.slim_objects();
        let mut after = 0;
        while let Some(last) = self.state.write().slim_changes(after) {
            after = last;
        }
    }

    fn slim_objects(&self) {
        // Before the objects are visited: what is decoded meanwhile is found the next time.
        let decoded = self.kind.decoded_again();
        {
            let mut state = self.state.write();
            if state.objects.len() <= FEW_OBJECTS {
                state.settled = None;
                return;
            }
            if decoded.is_some() && state.settled == decoded {
                return;
            }
        }
        let mut after = Bound::Unbounded;
        loop {
            let mut state = self.state.write();
            let fresh = state.fresh_from();
            let range = (after, Bound::<String>::Unbounded);
            let mut last = None;
            for (key, object) in state.objects.range_mut(range).take(SLIM_BATCH) {
                if object.revision() < fresh && !object.is_slim() {
                    *object = object.slim();
                }
                last = Some(key);
            }
            let Some(last) = last.cloned() else {
                state.settled = decoded;
                return;
            };
            after = Bound::Excluded(last);
        }
    }
}

impl KindCache {
    /// Drops the changes up to `upto`, but for the [last](LAST_CHANGES), of which it drops the typed values.
    pub fn forget_changes(&self, upto: u64) {
        loop {
            let dropped = self.state.write().forget_changes(upto);
            if dropped < SLIM_BATCH {
                return;
            }
        }
    }
}

impl State {
    /// Drops at most one batch of changes; returns how many.
    fn forget_changes(&mut self, upto: u64) -> usize {
        let old = self.window.partition_point(|c| c.revision <= upto);
        let spare = self.window.len().saturating_sub(LAST_CHANGES);
        let dropped = old.min(spare).min(SLIM_BATCH);
        for _ in 0..dropped {
            self.drop_oldest();
        }
        self.window.shrink_sparse();
        // Those that are left are among the last, and no component reads them any more.
        let left = if dropped < SLIM_BATCH { old - dropped } else { 0 };
        for at in 0..left {
            if !self.window[at].is_slim() {
                let slim = self.slim_change(at);
                self.forget_typed(&slim);
            }
        }
        dropped
    }

    /// Drops the oldest change; `false` if there is none.
    fn drop_oldest(&mut self) -> bool {
        let Some(old) = self.window.pop_front() else {
            return false;
        };
        self.window_bytes -= old.weight_bytes();
        // The object of a slim change became slim with it.
        if !old.object.is_slim() {
            self.forget_typed(&old);
        }
        self.window_from = old.revision;
        true
    }

    /// The objects of a namespace (all, if empty) after a local key, in key order, until `visit` returns false; with `indexed`, only those
    /// that are indexed by that value.
    fn visit(
        &self,
        indexed: Option<&str>,
        namespace: &str,
        after: &str,
        mut visit: impl FnMut(&Arc<Object>) -> bool,
    ) {
        let prefix = match namespace {
            "" => String::new(),
            namespace => format!("{namespace}/"),
        };
        let start = match after > prefix.as_str() {
            true => Bound::Excluded(after),
            false => Bound::Included(prefix.as_str()),
        };
        match indexed {
            Some(value) => {
                let keys = self.index.keys(value, &prefix, start);
                let mut objects = keys.filter_map(|key| self.objects.get(key));
                let _ = objects.all(&mut visit);
            }
            None => {
                let objects = self.objects.range::<str, _>((start, Bound::Unbounded));
                let mut objects = objects.take_while(|(key, _)| key.starts_with(&prefix));
                let _ = objects.all(|(_, object)| visit(object));
            }
        }
    }

    /// The revision of the oldest change that keeps its typed value.
    fn fresh_from(&self) -> u64 {
        let at = self.window.len().saturating_sub(FRESH_CHANGES);
        self.window.get(at).map_or(u64::MAX, |c| c.revision)
    }

    /// Drops the typed value of the change that is just no longer among the newest, and of its object.
    fn slim_oldest(&mut self) {
        let Some(at) = self.window.len().checked_sub(FRESH_CHANGES + 1) else {
            return;
        };
        let slim = self.slim_change(at);
        self.forget_typed(&slim);
    }

    /// Replaces a change in the window by a slim one, which is returned.
    fn slim_change(&mut self, at: usize) -> Arc<Change> {
        let old = &self.window[at];
        let slim = Arc::new(old.slim());
        self.window_bytes = self.window_bytes + slim.weight_bytes() - old.weight_bytes();
        self.window[at] = slim.clone();
        slim
    }

    /// Drops what was decoded of a replaced object from the change that wrote it: the change is kept for longer than
    /// anyone reads the object. To be called before the next change is published.
    fn slim_change_to(&mut self, replaced: &Object) {
        if replaced.is_slim() || replaced.revision() >= self.fresh_from() {
            return;
        }
        let at = self.window.partition_point(|c| c.revision < replaced.revision());
        let is_old = at + FRESH_CHANGES < self.window.len();
        if is_old && !self.window[at].is_slim() {
            self.slim_change(at);
        }
    }

    /// Drops what was decoded of the objects of older changes after a revision, at most one batch of them. Returns the
    /// revision of the last; `None` if there are no more.
    fn slim_changes(&mut self, after: u64) -> Option<u64> {
        let first = self.window.partition_point(|c| c.revision <= after);
        let older = self.window.len().saturating_sub(FRESH_CHANGES);
        let end = older.min(first + SLIM_BATCH);
        for at in first..end {
            if !self.window[at].is_slim() {
                self.slim_change(at);
            }
        }
        let last = end.checked_sub(1).filter(|last| *last >= first)?;
        Some(self.window[last].revision)
    }

    /// Drops the object's typed value, if `change` was its last and there are more than a [few](FEW_OBJECTS) objects.
    fn forget_typed(&mut self, change: &Change) {
        if self.objects.len() <= FEW_OBJECTS {
            // It keeps its typed value.
            self.settled = None;
            return;
        }
        if change.deleted {
            return;
        }
        let key = keys::local(change.object.namespace(), change.object.name());
        if let Some(current) = self.objects.get_mut(&key)
            && current.revision() == change.revision
        {
            *current = change.object.slim();
        }
    }

    /// Sends a change to the watchers; returns how many were full.
    fn publish(&mut self, change: Change, by: Option<IndexedBy>) -> usize {
        let change = Arc::new(change);
        let selects_by_index = self.watchers.iter().any(|w| !w.indexed.is_empty());
        let indexed = by.filter(|_| selects_by_index).map(|by| by.values_of(&change));
        let indexed = indexed.unwrap_or_default();
        let mut full = 0;
        // A watcher that is closed or full is dropped: its receiver ends after the changes it was sent.
        self.watchers.retain(|w| {
            if w.may_match(&change.object, &indexed) {
                let sent = w.changes.try_send(change.clone());
                full += usize::from(matches!(sent, Err(mpsc::error::TrySendError::Full(_))));
                sent.is_ok()
            } else {
                !w.changes.is_closed()
            }
        });
        self.newest = change.revision;
        self.window_bytes += change.weight_bytes();
        self.window.push_back(change);
        self.slim_oldest();
        while self.window.len() > WINDOW_CHANGES || self.window_bytes > WINDOW_BYTES {
            if !self.drop_oldest() {
                break;
            }
        }
        full
    }
}

#[cfg(test)]
mod tests;
