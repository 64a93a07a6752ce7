//! All objects of one kind, its recent changes, and those who watch it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use knarr_api::{Error, Kind, Object};
use parking_lot::RwLock;
use tokio::sync::mpsc;

use super::change::{Change, Filter};
use crate::keys;

/// How many changes of a kind are kept for watches that resume.
const WINDOW_CHANGES: usize = 4096;
/// How much memory the kept changes of a kind may hold on to.
const WINDOW_BYTES: usize = 32 << 20;
/// How many of the newest changes keep their typed values: components of this process look at those at once. What is
/// older is kept slim.
const FRESH_CHANGES: usize = 128;
/// A kind with at most so many objects keeps their typed values, whoever asked for them and when: together they are hardly
/// larger than the window, and what is made slim is mostly read again soon.
const FEW_OBJECTS: usize = 256;
/// How many objects are made slim before others get the lock.
const SLIM_BATCH: usize = 1000;
/// How many changes may wait for one watcher; one that falls further behind is dropped and has to resume.
pub const WATCHER_BUFFER: usize = 1024;

pub struct KindCache {
    pub kind: Kind,
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Arc<Object>>,
    window: VecDeque<Arc<Change>>,
    window_bytes: usize,
    /// Every change after this revision is in the window.
    window_from: u64,
    /// The last change.
    newest: u64,
    watchers: Vec<Watcher>,
}

struct Watcher {
    /// Empty: all namespaces.
    namespace: String,
    /// The only name it can be told about, empty for any.
    name: String,
    changes: mpsc::Sender<Arc<Change>>,
}

impl Watcher {
    /// A cheap look, so that a watch of one object costs others nothing. What passes is filtered by the watcher.
    fn may_care(&self, object: &Object) -> bool {
        (self.namespace.is_empty() || self.namespace == object.namespace())
            && (self.name.is_empty() || self.name == object.name())
    }
}

/// A watch as the cache hands it out: what happened up to now, and then what happens.
pub struct Subscription {
    /// The kind's last change before it began.
    pub revision: u64,
    /// The state at the beginning, if that was asked for.
    pub initial: Vec<Arc<Object>>,
    /// Changes since the revision that was asked for.
    pub missed: Vec<Arc<Change>>,
    /// Ends when the watcher fell behind or the cache starts over.
    pub changes: mpsc::Receiver<Arc<Change>>,
}

impl KindCache {
    pub fn new(kind: &Kind) -> Self {
        KindCache {
            kind: kind.clone(),
            state: RwLock::default(),
        }
    }

    /// Starts over with this state, as of `revision`. Watchers are let go: they have to list again.
    pub fn load(&self, mut objects: BTreeMap<String, Arc<Object>>, revision: u64) {
        if objects.len() > FEW_OBJECTS {
            objects.values_mut().for_each(|o| *o = o.slim());
        }
        *self.state.write() = State {
            objects,
            window_from: revision,
            newest: revision,
            ..State::default()
        };
    }

    /// Forgets all changes; watches cannot resume before `now`.
    pub fn forget_history(&self, now: u64) {
        let mut state = self.state.write();
        state.window.clear();
        state.window_bytes = 0;
        state.window_from = state.newest.max(now);
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

    /// Calls `visit` with the objects of a namespace (all, if empty) after `after` (a local key; empty: from the
    /// first), in key order, until it says stop. Returns the revision of the kind's last change as of then.
    pub fn scan(&self, namespace: &str, after: &str, mut visit: impl FnMut(&Arc<Object>) -> bool) -> u64 {
        let state = self.state.read();
        let prefix = if namespace.is_empty() {
            String::new()
        } else {
            format!("{namespace}/")
        };
        let start = if after > prefix.as_str() {
            Bound::Excluded(after)
        } else {
            Bound::Included(prefix.as_str())
        };
        for (key, object) in state.objects.range::<str, _>((start, Bound::Unbounded)) {
            if !key.starts_with(&prefix) || !visit(object) {
                break;
            }
        }
        state.newest
    }

    /// Everything that `filter` matches, in key order.
    pub fn list(&self, filter: &Filter) -> Vec<Arc<Object>> {
        let mut found = Vec::new();
        self.scan(&filter.namespace, "", |object| {
            if filter.matches(object) {
                found.push(object.clone());
            }
            true
        });
        found
    }

    /// The changes after a revision, and the revision of the last; `None` where that history is gone.
    pub fn changes_after(&self, after: u64) -> Option<(Vec<Arc<Change>>, u64)> {
        let state = self.state.read();
        if after < state.window_from {
            return None;
        }
        let first = state.window.partition_point(|c| c.revision <= after);
        Some((state.window.range(first..).cloned().collect(), state.newest))
    }

    /// Begins a watch. `after` = `None` begins with the state there is; a revision begins behind it.
    /// 410 where that history is gone.
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
            None => initial.extend(state.objects.values().filter(|o| filter.matches(o)).cloned()),
        }
        state.watchers.push(Watcher {
            namespace: filter.namespace.clone(),
            name: filter.name().unwrap_or_default().to_string(),
            changes: sender,
        });
        Ok(Subscription {
            revision: state.newest,
            initial,
            missed,
            changes,
        })
    }

    /// Takes in an object's new value. What it was before is part of the change that watchers get.
    pub fn put(&self, local: &str, object: Arc<Object>) {
        let mut state = self.state.write();
        let prev = match state.objects.get_mut(local) {
            Some(slot) => Some(std::mem::replace(slot, object.clone())),
            None => state.objects.insert(local.to_string(), object.clone()),
        };
        state.publish(Change::new(object, prev, false));
    }

    /// Takes in a deletion at `revision`.
    pub fn remove(&self, local: &str, revision: u64) {
        let mut state = self.state.write();
        if let Some(prev) = state.objects.remove(local) {
            let last = Arc::new(prev.at_revision(revision));
            state.publish(Change::new(last, Some(prev), true));
        }
    }
}

impl KindCache {
    /// Makes the objects slim again whose typed values somebody has asked for since, unless they are [few](FEW_OBJECTS).
    pub fn slim(&self) {
        if self.count() <= FEW_OBJECTS {
            return;
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
            match last {
                Some(key) => after = Bound::Excluded(key.clone()),
                None => return,
            }
        }
    }
}

impl State {
    /// The revision of the oldest change that keeps its typed value.
    fn fresh_from(&self) -> u64 {
        let at = self.window.len().saturating_sub(FRESH_CHANGES);
        self.window.get(at).map_or(u64::MAX, |c| c.revision)
    }

    /// Makes the change slim that is just no longer among the newest, and its object.
    fn age(&mut self) {
        let Some(at) = self.window.len().checked_sub(FRESH_CHANGES + 1) else {
            return;
        };
        let old = self.window[at].clone();
        let slim = Arc::new(old.slim());
        self.forget_typed(&slim);
        self.window_bytes = self.window_bytes + slim.weight_bytes() - old.weight_bytes();
        self.window[at] = slim;
    }

    /// Keeps the object slim, if `change` was its last and there are more than a [few](FEW_OBJECTS).
    fn forget_typed(&mut self, change: &Change) {
        if self.objects.len() <= FEW_OBJECTS {
            return;
        }
        let key = keys::local(change.object.namespace(), change.object.name());
        if let Some(current) = self.objects.get_mut(&key)
            && current.revision() == change.revision
        {
            *current = change.object.slim();
        }
    }

    fn publish(&mut self, change: Change) {
        let change = Arc::new(change);
        // A watcher that is gone or has no room is let go: its receiver ends after what it was given.
        self.watchers.retain(|w| {
            if w.may_care(&change.object) {
                w.changes.try_send(change.clone()).is_ok()
            } else {
                !w.changes.is_closed()
            }
        });
        self.newest = change.revision;
        self.window_bytes += change.weight_bytes();
        self.window.push_back(change);
        self.age();
        while self.window.len() > WINDOW_CHANGES || self.window_bytes > WINDOW_BYTES {
            let Some(old) = self.window.pop_front() else { break };
            self.window_bytes -= old.weight_bytes();
            self.forget_typed(&old);
            self.window_from = old.revision;
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use knarr_api::{k8s_openapi, registry};

    use super::*;

    #[test]
    fn a_kind_of_few_objects_keeps_their_typed_values_and_one_of_many_those_that_changed_last() {
        for (objects, kept) in [(FEW_OBJECTS, FEW_OBJECTS), (FEW_OBJECTS + 1, FRESH_CHANGES)] {
            let cache = KindCache::new(&registry::CONFIG_MAP);
            for number in 1..=objects {
                let mut map = ConfigMap::default();
                map.metadata.name = Some(format!("m{number}"));
                map.metadata.resource_version = Some(number.to_string());
                map.data = Some([("k".to_string(), "v".repeat(2048))].into());
                let object = Object::from_typed(&registry::CONFIG_MAP, Box::new(map));
                cache.put(&format!("m{number}"), Arc::new(object));
            }
            cache.slim();
            let mut full = 0;
            cache.scan("", "", |object| {
                full += usize::from(!object.is_slim());
                true
            });
            assert_eq!(full, kept, "of {objects}");
        }
    }
}
