//! The caches that components read from: the objects of one kind as of some resourceVersion, shared in the process (client-go's Indexer).
//!
//! A [`Store`] is written by one informer only. Event handlers are called for every change after the store contains it; a handler
//! only enqueues a key, and what is then done follows from the state in the store. Once [`Store::last_sync_revision`] returns a
//! revision, the store contains the changes up to it *and* the handlers have been called for them.

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
};

type Handler = Box<dyn Fn(&Change) + Send + Sync>;
type Buckets = BTreeMap<String, BTreeSet<Arc<ObjectKey>>>;

#[derive(Default)]
struct Objects {
    /// The indexes share the keys.
    objects: BTreeMap<Arc<ObjectKey>, Arc<Object>>,
    /// In the order of [`Store::indexes`].
    indexes: Vec<Buckets>,
    /// The last changes; objects that changed earlier are kept without their decoded form.
    fresh: VecDeque<(Arc<ObjectKey>, u64)>,
}

/// How many of the last changed objects keep their decoded form: most reads of an object come soon after its change.
const FRESH_CHANGES: usize = 128;
/// A store of at most this many objects keeps all decoded forms: they take little memory, and most would be decoded again soon.
const FEW_OBJECTS: usize = 256;

impl Objects {
    /// Records a change, and drops the decoded form of the object that is no longer among the last.
    fn age(&mut self, key: Arc<ObjectKey>, revision: u64) {
        self.fresh.push_back((key, revision));
        if self.fresh.len() > FRESH_CHANGES
            && let Some((key, revision)) = self.fresh.pop_front()
            && self.objects.len() > FEW_OBJECTS
            && let Some(object) = self.objects.get_mut(&key)
            && object.revision() == revision
        {
            *object = object.slim();
        }
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
                objects: BTreeMap::new(),
                indexes: vec![Buckets::new(); indexes.len()],
                fresh: VecDeque::new(),
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
        let key = ObjectKey::new(namespace, name);
        self.content.read().objects.get(&key).cloned()
    }

    /// In the order of their keys; all namespaces if `namespace` is empty.
    pub fn list(&self, namespace: &str) -> Vec<Arc<Object>> {
        let content = self.content.read();
        if namespace.is_empty() {
            return content.objects.values().cloned().collect();
        }
        content
            .objects
            .range::<ObjectKey, _>(ObjectKey::new(namespace, "")..)
            .take_while(|(key, _)| key.namespace == namespace)
            .map(|(_, object)| object.clone())
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
            .filter_map(|key| content.objects.get(key).cloned())
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
        let key = Arc::new(ObjectKey::of(new));
        let handlers = self.handlers.lock();
        let old = {
            let mut content = self.content.write();
            let old = content.objects.insert(key.clone(), new.clone());
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
            let old = content.objects.remove(key);
            self.reindex(&mut content, key, old.as_deref(), None);
            old
        };
        if let Some(old) = old {
            let change = Change::Deleted(last.cloned().unwrap_or(old));
            handlers.iter().for_each(|handler| handler(&change));
        }
    }

    /// Drops the decoded forms of all objects but the last changed ones. A store of [few objects](FEW_OBJECTS) is left as it is.
    pub(crate) fn slim(&self) {
        if self.len() <= FEW_OBJECTS {
            return;
        }
        let mut content = self.content.write();
        let fresh = content.fresh.front().map_or(u64::MAX, |(_, revision)| *revision);
        for object in content.objects.values_mut() {
            if object.revision() < fresh && !object.is_slim() {
                *object = object.slim();
            }
        }
    }

    /// Removes the objects whose keys are not among `keys`, after a relist.
    pub(crate) fn retain(&self, keys: &BTreeSet<ObjectKey>) {
        let deleted: Vec<ObjectKey> = {
            let content = self.content.read();
            content
                .objects
                .keys()
                .filter(|k| !keys.contains(&***k))
                .map(|k| ObjectKey::clone(k))
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

    fn reindex(&self, content: &mut Objects, key: &ObjectKey, old: Option<&Object>, new: Option<&Object>) {
        for (index, buckets) in self.indexes.iter().zip(&mut content.indexes) {
            let was = old.and_then(index.value);
            let is = new.and_then(index.value);
            if was == is {
                continue;
            }
            if let Some(was) = was
                && let Some(keys) = buckets.get_mut(&was)
            {
                keys.remove(key);
                if keys.is_empty() {
                    buckets.remove(&was);
                }
            }
            if let Some(is) = is
                && let Some((key, _)) = content.objects.get_key_value(key)
            {
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
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use knarr_api::{k8s_openapi, registry};

    use super::*;

    #[test]
    fn an_object_without_its_decoded_form_is_found_by_its_controller_and_not_decoded() {
        let store = Store::new(&registry::CONFIG_MAP, &[]);
        let version = |revision: u64, owners: serde_json::Value| {
            let map: ConfigMap = serde_json::from_value(serde_json::json!({
                "metadata": {
                    "name": "m", "namespace": "n", "resourceVersion": revision.to_string(), "ownerReferences": owners,
                },
                "data": {"k": "v".repeat(2048)},
            }))
            .unwrap();
            Arc::new(Object::from_typed(&registry::CONFIG_MAP, Box::new(map))).slim()
        };
        let owner = |uid: &str, controller: bool| {
            serde_json::json!({
                "apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": uid, "controller": controller,
            })
        };
        let orphans = orphans_of("n");
        for (revision, owners, found_by) in [
            (1, serde_json::json!([owner("a", false)]), orphans.as_str()),
            (2, serde_json::json!([owner("a", false), owner("b", true)]), "b"),
            (3, serde_json::json!([owner("c", true)]), "c"),
            (4, serde_json::json!([]), orphans.as_str()),
        ] {
            let object = version(revision, owners);
            store.apply(&object);
            for value in [orphans.as_str(), "a", "b", "c"] {
                let found = store.by_index(CONTROLLER.name, value).len();
                assert_eq!(found, usize::from(value == found_by), "{revision}: {value}");
            }
            assert!(object.is_slim(), "{revision}");
        }
    }

    #[test]
    fn a_store_of_few_objects_keeps_their_typed_values_and_one_of_many_those_that_changed_last() {
        for (objects, kept) in [(FEW_OBJECTS, FEW_OBJECTS), (FEW_OBJECTS + 1, FRESH_CHANGES)] {
            let store = Store::new(&registry::CONFIG_MAP, &[]);
            for number in 1..=objects {
                let mut map = ConfigMap::default();
                map.metadata.name = Some(format!("m{number}"));
                map.metadata.resource_version = Some(number.to_string());
                map.data = Some([("k".to_string(), "v".repeat(2048))].into());
                store.apply(&Arc::new(Object::from_typed(
                    &registry::CONFIG_MAP,
                    Box::new(map),
                )));
            }
            store.slim();
            let full = store.list("").iter().filter(|object| !object.is_slim()).count();
            assert_eq!(full, kept, "of {objects}");
        }
    }
}
