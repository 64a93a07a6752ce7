//! The caches that components read from: the objects of one kind as of some resourceVersion, shared in the process (client-go's Indexer).
//!
//! A [`Store`] is written by one informer only. Event handlers are called for every change after the store contains it; a handler
//! only enqueues a key, and what is then done follows from the state in the store. Once [`Store::last_sync_revision`] returns a
//! revision, the store contains the changes up to it *and* the handlers have been called for them.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::marker::PhantomData;
use std::sync::Arc;

use knarr_api::registry::Registered;
use knarr_api::{Kind, Object, ObjectKey, Shared};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::notified_until;

/// A change of one object, as event handlers get it (client-go's OnAdd, OnUpdate and OnDelete).
#[derive(Clone, Debug)]
pub enum Change {
    Added(Arc<Object>),
    Modified { old: Arc<Object>, new: Arc<Object> },
    Deleted(Arc<Object>),
}

impl Change {
    /// The state before the change; `None` if the object was added.
    pub fn before(&self) -> Option<&Arc<Object>> {
        match self {
            Change::Added(_) => None,
            Change::Modified { old, .. } | Change::Deleted(old) => Some(old),
        }
    }

    /// The state after the change; `None` if the object was deleted.
    pub fn after(&self) -> Option<&Arc<Object>> {
        match self {
            Change::Added(new) | Change::Modified { new, .. } => Some(new),
            Change::Deleted(_) => None,
        }
    }

    /// The object's new state, or its last one if it was deleted.
    pub fn object(&self) -> &Arc<Object> {
        match self {
            Change::Added(object) | Change::Modified { new: object, .. } | Change::Deleted(object) => object,
        }
    }
}

/// A secondary index of a store (client-go's IndexFunc): objects are found by `value`.
#[derive(Clone, Copy)]
pub struct Index {
    pub name: &'static str,
    pub value: fn(&Object) -> Option<String>,
    /// Whether two versions of one object are known to have the same value without making it. Most changes keep it.
    pub is_unchanged: fn(&Object, &Object) -> bool,
}

/// By the uid of the controller (`ownerReferences[].controller`); objects without one are found under [`orphans_of`] their
/// namespace. Every store has this index.
pub const CONTROLLER: Index = Index {
    name: "controller",
    value: |object| {
        // Also known of a slim object: of each change the earlier version is asked, too.
        Some(match object.controller_uid() {
            "" => orphans_of(object.namespace()),
            uid => uid.to_string(),
        })
    },
    is_unchanged: |old, new| old.controller_uid() == new.controller_uid(),
};

/// The value of [`CONTROLLER`] for the objects of a namespace without a controller. No uid contains a slash.
pub fn orphans_of(namespace: &str) -> String {
    format!("/{namespace}")
}

/// Pods by the node that they are bound to; pods without a node are found under `""`.
pub const NODE_NAME: Index = Index {
    name: "spec.nodeName",
    value: |object| {
        // An error if the object is not a Pod.
        object.field("spec.nodeName").ok()
    },
    is_unchanged: |_, _| false,
};

type Handler = Box<dyn Fn(&Change) + Send + Sync>;
type Buckets = BTreeMap<String, BTreeSet<Arc<ObjectKey>>>;

/// A key that is found by its names: no key is made for a lookup.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct StoredKey(Arc<ObjectKey>);

/// Namespace and name, in the order of [`ObjectKey`].
trait Names {
    fn names(&self) -> (&str, &str);
}

impl Names for StoredKey {
    fn names(&self) -> (&str, &str) {
        (&self.0.namespace, &self.0.name)
    }
}

impl Names for (&str, &str) {
    fn names(&self) -> (&str, &str) {
        (self.0, self.1)
    }
}

impl PartialEq for dyn Names + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.names() == other.names()
    }
}

impl Eq for dyn Names + '_ {}

impl PartialOrd for dyn Names + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn Names + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.names().cmp(&other.names())
    }
}

impl<'a> Borrow<dyn Names + 'a> for StoredKey {
    fn borrow(&self) -> &(dyn Names + 'a) {
        self
    }
}

impl Borrow<ObjectKey> for StoredKey {
    fn borrow(&self) -> &ObjectKey {
        &self.0
    }
}

/// An object with its key.
struct Stored {
    key: Arc<ObjectKey>,
    object: Arc<Object>,
}

#[derive(Default)]
struct Objects {
    /// The indexes share the keys.
    objects: BTreeMap<StoredKey, Stored>,
    /// In the order of [`Store::indexes`].
    indexes: Vec<Buckets>,
    /// The last changes; objects that changed earlier are kept without their decoded form.
    fresh: VecDeque<(Arc<ObjectKey>, u64)>,
    /// How often objects of the kind had been decoded again ([`decoded_again`](knarr_api::kind::KindInfo::decoded_again)) when all but the last changed
    /// were found without their decoded form. While that is the number, there is nothing to drop. `None`: they have to be visited.
    settled: Option<u64>,
}

/// How many of the last changed objects keep their decoded form: most reads of an object come soon after its change.
const FRESH_CHANGES: usize = 128;
/// A store of at most this many objects keeps all decoded forms: they take little memory, and most would be decoded again soon.
const FEW_OBJECTS: usize = 256;

impl Objects {
    /// Adds or replaces an object; returns its key, and the object before it.
    fn put(&mut self, new: &Arc<Object>) -> (Arc<ObjectKey>, Option<Arc<Object>>) {
        let names: &dyn Names = &(new.namespace(), new.name());
        if let Some(stored) = self.objects.get_mut(names) {
            let old = std::mem::replace(&mut stored.object, new.clone());
            return (stored.key.clone(), Some(old));
        }
        let key = Arc::new(ObjectKey::of(new));
        let stored = Stored {
            key: key.clone(),
            object: new.clone(),
        };
        self.objects.insert(StoredKey(key.clone()), stored);
        (key, None)
    }

    /// Records a change, and drops the decoded form of the object that is no longer among the last.
    fn age(&mut self, key: Arc<ObjectKey>, revision: u64) {
        self.fresh.push_back((key, revision));
        if self.fresh.len() <= FRESH_CHANGES {
            return;
        }
        let Some((key, revision)) = self.fresh.pop_front() else {
            return;
        };
        if self.objects.len() <= FEW_OBJECTS {
            // It keeps its decoded form.
            self.settled = None;
        } else if let Some(stored) = self.objects.get_mut(&*key)
            && stored.object.revision() == revision
        {
            stored.object = stored.object.slim();
        }
    }

    /// Drops the decoded forms of all objects but the last changed ones; whether no other is left.
    fn slim(&mut self) -> bool {
        let oldest = self.fresh.front().map_or(u64::MAX, |(_, revision)| *revision);
        let last: BTreeSet<u64> = self.fresh.iter().map(|(_, revision)| *revision).collect();
        let mut is_complete = true;
        for stored in self.objects.values_mut() {
            let revision = stored.object.revision();
            if stored.object.is_slim() {
                continue;
            }
            if revision < oldest {
                stored.object = stored.object.slim();
            } else {
                // A list is not in the order of the changes.
                is_complete &= last.contains(&revision);
            }
        }
        is_complete
    }
}

/// The objects of one kind. See the module.
pub struct Store {
    kind: Kind,
    indexes: Vec<Index>,
    content: RwLock<Objects>,
    /// Locked during a change and the calls of the handlers, so that a new handler misses no change and gets none twice.
    handlers: Mutex<Vec<Handler>>,
    /// The revision up to which the store is complete; `None` until the initial list is complete.
    last_sync_revision: Mutex<Option<u64>>,
    /// Notified when `last_sync_revision` advances. Waiting tasks are woken in the order in which they began to wait (`tokio::sync::watch`
    /// wakes them in random order, and a simulation could not be replayed).
    advanced: Notify,
}

impl Store {
    pub fn new(kind: &Kind, more_indexes: &[Index]) -> Self {
        let mut indexes = vec![CONTROLLER];
        indexes.extend_from_slice(more_indexes);
        Store {
            kind: kind.clone(),
            content: RwLock::new(Objects {
                indexes: vec![Buckets::new(); indexes.len()],
                ..Objects::default()
            }),
            indexes,
            handlers: Mutex::new(Vec::new()),
            last_sync_revision: Mutex::new(None),
            advanced: Notify::new(),
        }
    }

    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let names: &dyn Names = &(namespace, name);
        let content = self.content.read();
        content.objects.get(names).map(|stored| stored.object.clone())
    }

    /// In the order of their keys; all namespaces if `namespace` is empty.
    pub fn list(&self, namespace: &str) -> Vec<Arc<Object>> {
        let content = self.content.read();
        if namespace.is_empty() {
            let all = content.objects.values();
            return all.map(|stored| stored.object.clone()).collect();
        }
        content
            .objects
            .range::<ObjectKey, _>(ObjectKey::new(namespace, "")..)
            .take_while(|(key, _)| key.0.namespace == namespace)
            .map(|(_, stored)| stored.object.clone())
            .collect()
    }

    /// The objects with this value in the index of this name, in the order of their keys; none where the store
    /// has no such index.
    pub fn by_index(&self, index: &str, value: &str) -> Vec<Arc<Object>> {
        let content = self.content.read();
        let Some(at) = self.indexes.iter().position(|i| i.name == index) else {
            return Vec::new();
        };
        let keys = content.indexes[at].get(value);
        keys.into_iter()
            .flatten()
            .filter_map(|key| content.objects.get(&**key))
            .map(|stored| stored.object.clone())
            .collect()
    }

    pub fn len(&self) -> usize {
        self.content.read().objects.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `handler` for every object in the store, as `Added`, and then for every change, one at a time, in order.
    /// It runs on the informer's task and must not block.
    pub fn add_event_handler(&self, handler: impl Fn(&Change) + Send + Sync + 'static) {
        let mut handlers = self.handlers.lock();
        for object in self.list("") {
            handler(&Change::Added(object));
        }
        handlers.push(Box::new(handler));
    }

    /// Removes all event handlers (which often hold references to what holds this store).
    pub fn remove_event_handlers(&self) {
        self.handlers.lock().clear();
    }

    /// The revision up to which the store is complete (client-go's LastSyncResourceVersion); `None` until the initial list is complete.
    pub fn last_sync_revision(&self) -> Option<u64> {
        *self.last_sync_revision.lock()
    }

    /// Waits until the initial list is complete (client-go's HasSynced).
    pub async fn synced(&self) {
        self.wait_until(|store| store.last_sync_revision().is_some())
            .await;
    }

    /// Waits until the store contains everything up to `revision` and the handlers have been called for it.
    pub async fn wait_for(&self, revision: u64) {
        self.wait_until(|store| store.last_sync_revision().is_some_and(|r| r >= revision))
            .await;
    }

    /// Waits until a condition on the store holds, which is checked after each change.
    pub async fn wait_until(&self, shows: impl Fn(&Store) -> bool) {
        notified_until(&self.advanced, || shows(self).then_some(())).await;
    }

    /// Adds or updates an object.
    pub(crate) fn apply(&self, new: &Arc<Object>) {
        let handlers = self.handlers.lock();
        let old = {
            let mut content = self.content.write();
            let (key, old) = content.put(new);
            self.reindex(&mut content, &key, old.as_deref(), Some(new));
            content.age(key, new.revision());
            old
        };
        let notify = |change: Change| handlers.iter().for_each(|handler| handler(&change));
        match old {
            None => notify(Change::Added(new.clone())),
            Some(old) if old.revision() == new.revision() && old.uid() == new.uid() => {}
            // The deletion of the first one was missed.
            Some(old) if old.uid() != new.uid() => {
                notify(Change::Deleted(old));
                notify(Change::Added(new.clone()));
            }
            Some(old) => notify(Change::Modified {
                old,
                new: new.clone(),
            }),
        }
    }

    /// Removes an object that was deleted; `last` is its last state, where that is known.
    pub(crate) fn remove(&self, key: &ObjectKey, last: Option<&Arc<Object>>) {
        let handlers = self.handlers.lock();
        let old = {
            let mut content = self.content.write();
            let removed = content.objects.remove(key);
            if let Some(Stored { key, object }) = &removed {
                self.reindex(&mut content, key, Some(object), None);
            }
            removed.map(|stored| stored.object)
        };
        if let Some(old) = old {
            let change = Change::Deleted(last.cloned().unwrap_or(old));
            handlers.iter().for_each(|handler| handler(&change));
        }
    }

    /// Drops the decoded forms of all objects but the last changed ones. A store of [few objects](FEW_OBJECTS) is left as it is.
    pub(crate) fn slim(&self) {
        // Before the objects are visited: what is decoded meanwhile is found the next time.
        let decoded = self.kind.decoded_again();
        let mut content = self.content.write();
        if content.objects.len() <= FEW_OBJECTS {
            content.settled = None;
        } else if decoded.is_none() || content.settled != decoded {
            let is_complete = content.slim();
            content.settled = decoded.filter(|_| is_complete);
        }
    }

    /// Removes the objects whose keys are not among `keys`, after a relist.
    pub(crate) fn retain(&self, keys: &BTreeSet<ObjectKey>) {
        let deleted: Vec<ObjectKey> = {
            let content = self.content.read();
            content
                .objects
                .keys()
                .filter(|k| !keys.contains(&*k.0))
                .map(|k| ObjectKey::clone(&k.0))
                .collect()
        };
        for key in deleted {
            self.remove(&key, None);
        }
    }

    pub(crate) fn advance(&self, revision: u64) {
        let mut last_sync_revision = self.last_sync_revision.lock();
        if last_sync_revision.is_none_or(|r| r < revision) {
            *last_sync_revision = Some(revision);
            drop(last_sync_revision);
            self.advanced.notify_waiters();
        }
    }

    fn reindex(
        &self,
        content: &mut Objects,
        key: &Arc<ObjectKey>,
        old: Option<&Object>,
        new: Option<&Object>,
    ) {
        for (index, buckets) in self.indexes.iter().zip(&mut content.indexes) {
            if let (Some(old), Some(new)) = (old, new)
                && (index.is_unchanged)(old, new)
            {
                continue;
            }
            let was = old.and_then(index.value);
            let is = new.and_then(index.value);
            if was == is {
                continue;
            }
            if let Some(was) = was
                && let Some(keys) = buckets.get_mut(&was)
            {
                keys.remove(&**key);
                if keys.is_empty() {
                    buckets.remove(&was);
                }
            }
            if let Some(is) = is {
                buckets.entry(is).or_default().insert(key.clone());
            }
        }
    }
}

/// A [`Store`] with its Rust type.
pub struct Cache<T> {
    store: Arc<Store>,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for Cache<T> {
    fn clone(&self) -> Self {
        Cache {
            store: self.store.clone(),
            of: PhantomData,
        }
    }
}

impl<T: Registered> Cache<T> {
    /// `None` if the store has another kind.
    pub fn new(store: Arc<Store>) -> Option<Self> {
        (store.kind() == T::kind_of()).then_some(Cache {
            store,
            of: PhantomData,
        })
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<Shared<T>> {
        self.store.get(namespace, name).and_then(|o| Shared::new(o).ok())
    }

    pub fn list(&self, namespace: &str) -> Vec<Shared<T>> {
        typed(self.store.list(namespace))
    }

    pub fn by_index(&self, index: &str, value: &str) -> Vec<Shared<T>> {
        typed(self.store.by_index(index, value))
    }
}

fn typed<T: 'static>(objects: Vec<Arc<Object>>) -> Vec<Shared<T>> {
    objects.into_iter().filter_map(|o| Shared::new(o).ok()).collect()
}

#[cfg(test)]
mod tests;
