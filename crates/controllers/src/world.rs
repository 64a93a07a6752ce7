//! A [`View`] of a list of objects, on which a controller is run, for table tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use knarr_api::{Kind, Object, ObjectKey};

use crate::action::{Action, Create, Delete, Failure, Verb};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::fencing::kinds::Custom;
use crate::owner::controller_of;

/// The objects of a test.
#[derive(Default)]
pub struct World {
    objects: BTreeMap<(String, ObjectKey), Arc<Object>>,
    /// The number of created objects, for generated names.
    created: usize,
}

/// The kind `Widget` of `example.com/v1`.
pub fn widgets() -> Kind {
    custom_kind("example.com", "widgets", "Widget")
}

/// A namespaced custom kind of version `v1`.
pub fn custom_kind(group: &str, plural: &str, kind: &str) -> Kind {
    let definition = serde_json::json!({"metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true}]},
        "status": {"conditions": [{"type": "Established", "status": "True"}]}});
    let definition = serde_json::from_value(definition).unwrap();
    knarr_api::custom::Names::of(&definition).unwrap().kind()
}

/// Second `n` of the test.
pub fn at(n: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + n).unwrap()
}

/// An object that is in no world, with uid and resourceVersion as [`World::put`] sets them.
pub fn object<T: Registered>(value: serde_json::Value) -> Arc<Object> {
    World::default().put(serde_json::from_value::<T>(value).unwrap())
}

/// A create that the API rejected.
pub fn failure(kind: &Kind) -> Failure {
    Failure {
        verb: Verb::Create,
        kind: kind.clone(),
        name: "rejected".into(),
        error: knarr_apimachinery::Error::conflict(
            kind.resource_ref("rejected"),
            "another client was faster",
        ),
    }
}

impl World {
    /// Adds or updates an object, with a uid from its name and resourceVersion 1 unless it has its own.
    pub fn put<T: Registered>(&mut self, mut object: T) -> Arc<Object> {
        let kind = T::kind_of();
        let meta = object.metadata_mut();
        let name = meta.name.clone().unwrap();
        meta.uid.get_or_insert_with(|| format!("uid-{name}"));
        meta.resource_version.get_or_insert_with(|| "1".into());
        let object = Arc::new(Object::from_typed(kind, object.into_object()));
        self.objects.insert(
            (kind.plural().to_string(), ObjectKey::of(&object)),
            object.clone(),
        );
        object
    }

    /// Adds or updates a custom resource.
    pub fn put_json(&mut self, kind: &Kind, json: &str) -> Arc<Object> {
        let object = kind.ops.decode(json.as_bytes()).unwrap().object;
        let object = Arc::new(Object::from_typed(kind, object));
        self.objects.insert(
            (kind.plural().to_string(), ObjectKey::of(&object)),
            object.clone(),
        );
        object
    }

    /// The same for knarr's own custom resources.
    pub fn put_custom<T: Custom>(&mut self, value: &T) {
        let mut object = value.to_object().unwrap();
        let meta = object.metadata_mut();
        let name = meta.name.clone().unwrap();
        meta.uid.get_or_insert_with(|| format!("uid-{name}"));
        let object = Arc::new(Object::from_typed(T::kind(), object));
        self.objects
            .insert((T::kind().plural().to_string(), ObjectKey::of(&object)), object);
    }

    /// Applies the updates among these actions.
    pub fn take_updates(&mut self, actions: &[Action]) {
        for action in actions {
            let (kind, objects) = match action {
                Action::Update { kind, object, .. } => (kind, std::slice::from_ref(object)),
                Action::UpdateMany { kind, objects, .. } => (kind, objects.as_slice()),
                _ => continue,
            };
            for object in objects {
                let object = Arc::new(Object::from_typed(kind, object.clone_box()));
                self.objects
                    .insert((kind.plural().to_string(), ObjectKey::of(&object)), object);
            }
        }
    }

    /// Carries the actions out as the API server: creates and updates are applied, deletes set the deletionTimestamp of pods and remove
    /// other objects.
    pub fn take(&mut self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::Create(create) => self.create(create),
                Action::CreateMany(all) => all.iter().for_each(|create| self.create(create)),
                Action::Delete(delete) => self.delete(delete),
                Action::Release(release) => {
                    self.objects.remove(&("pods".to_string(), release.key().clone()));
                }
                Action::DeleteMany(all) => all.iter().for_each(|delete| self.delete(delete)),
                _ => self.take_updates(std::slice::from_ref(action)),
            }
        }
    }

    fn create(&mut self, create: &Create) {
        let mut object = create.object.clone_box();
        self.created += 1;
        let count = self.created;
        let meta = object.metadata_mut();
        let generated = meta.generate_name.clone().unwrap_or_default();
        let name = meta
            .name
            .get_or_insert_with(|| format!("{generated}{count}"))
            .clone();
        meta.uid.get_or_insert_with(|| format!("uid-{name}"));
        meta.resource_version = Some("1".into());
        let object = Arc::new(Object::from_typed(&create.kind, object));
        let key = (create.kind.plural().to_string(), ObjectKey::of(&object));
        assert!(!self.objects.contains_key(&key), "{key:?} is there already");
        self.objects.insert(key, object);
    }

    fn delete(&mut self, delete: &Delete) {
        let key = (delete.kind.plural().to_string(), delete.key.clone());
        let Some(there) = self.objects.get(&key) else {
            return;
        };
        assert_eq!(there.uid(), delete.uid, "{key:?} is another");
        let is_pod = delete.kind == knarr_api::registry::POD;
        if is_pod
            || there
                .metadata()
                .finalizers
                .as_ref()
                .is_some_and(|f| !f.is_empty())
        {
            let mut ending = there.typed().clone_box();
            ending.metadata_mut().deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
            let ending = Arc::new(Object::from_typed(&delete.kind, ending));
            self.objects.insert(key, ending);
        } else {
            self.objects.remove(&key);
        }
    }

    pub fn remove(&mut self, kind: &Kind, namespace: &str, name: &str) {
        self.objects
            .remove(&(kind.plural().to_string(), ObjectKey::new(namespace, name)));
    }

    /// The keys that a controller enqueues for the change of an object from `old` to `new`.
    pub fn keys(
        &self,
        controller: &dyn Controller,
        old: Option<&Arc<Object>>,
        new: Option<&Arc<Object>>,
    ) -> Vec<String> {
        let changed = ObjectChange {
            kind: new.or(old).unwrap().kind(),
            old: old.map(|o| &**o),
            new: new.map(|o| &**o),
        };
        let keys = controller.keys(self, changed);
        keys.iter().map(ObjectKey::to_string).collect()
    }

    pub fn run(&self, controller: &dyn Controller, key: (&str, &str), now: Timestamp) -> Vec<Action> {
        self.run_after(controller, key, now, None)
    }

    pub fn run_after(
        &self,
        controller: &dyn Controller,
        (namespace, name): (&str, &str),
        now: Timestamp,
        failure: Option<&Failure>,
    ) -> Vec<Action> {
        controller.reconcile(&Context {
            view: self,
            key: &ObjectKey::new(namespace, name),
            now,
            failure,
        })
    }
}

pub fn lines(actions: &[Action]) -> Vec<String> {
    actions.iter().map(Action::to_string).collect()
}

/// The object of the first update of this subresource.
pub fn updated<T: Registered>(actions: &[Action], of: &str) -> Option<T> {
    actions.iter().find_map(|action| match action {
        Action::Update {
            object, subresource, ..
        } if *subresource == of => object.as_any().downcast_ref::<T>().cloned(),
        _ => None,
    })
}

impl View for World {
    fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let key = ObjectKey::new(namespace, name);
        self.objects.get(&(kind.plural().to_string(), key)).cloned()
    }

    fn list(&self, kind: &Kind, namespace: &str) -> Vec<Arc<Object>> {
        let all = self.objects.values().filter(|o| o.kind() == kind);
        all.filter(|o| namespace.is_empty() || o.namespace() == namespace)
            .cloned()
            .collect()
    }

    fn controlled_by(&self, kind: &Kind, uid: &str) -> Vec<Arc<Object>> {
        let mut all = self.list(kind, "");
        all.retain(|o| controller_of(o.metadata()).is_some_and(|c| c.uid == uid));
        all
    }

    fn orphans(&self, kind: &Kind, namespace: &str) -> Vec<Arc<Object>> {
        let mut all = self.list(kind, namespace);
        all.retain(|o| controller_of(o.metadata()).is_none());
        all
    }

    fn custom_kinds(&self) -> Vec<Kind> {
        let kinds = self.objects.values().map(|o| o.kind().clone());
        let mut kinds: Vec<_> = kinds.filter(|kind| kind.ops.custom().is_some()).collect();
        kinds.dedup();
        kinds
    }

    fn pods_on(&self, node: &str) -> Vec<Arc<Object>> {
        let mut all = self.list(&knarr_api::registry::POD, "");
        all.retain(|o| o.get().is_some_and(|pod| crate::pod::node_name(pod) == node));
        all
    }
}
