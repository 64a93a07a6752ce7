//! The trait of a controller: the kinds it watches, the keys that a change enqueues, and the reconciliation of a key.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use knarr_api::{Kind, Object, ObjectKey, Shared};

use crate::action::{Action, Failure};

/// The caches (client-go's listers), which may lag behind the API.
pub trait View {
    fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Arc<Object>>;
    /// Objects in the order of namespace and name; of all namespaces if `namespace` is empty.
    fn list(&self, kind: &Kind, namespace: &str) -> Vec<Arc<Object>>;
    /// The objects whose controller has this uid.
    fn controlled_by(&self, kind: &Kind, uid: &str) -> Vec<Arc<Object>>;
    /// The objects without a controller in this namespace.
    fn orphans(&self, kind: &Kind, namespace: &str) -> Vec<Arc<Object>>;
    /// The pods that are bound to this node.
    fn pods_on(&self, node: &str) -> Vec<Arc<Object>>;
    /// The kinds of custom resources whose objects are in the view.
    fn custom_kinds(&self) -> Vec<Kind> {
        Vec::new()
    }
}

fn typed<T: 'static>(objects: Vec<Arc<Object>>) -> Vec<Shared<T>> {
    objects.into_iter().filter_map(|o| Shared::new(o).ok()).collect()
}

impl dyn View + '_ {
    pub fn get_as<T: Registered>(&self, namespace: &str, name: &str) -> Option<Shared<T>> {
        let object = self.get(T::kind_of(), namespace, name)?;
        Shared::new(object).ok()
    }

    pub fn list_as<T: Registered>(&self, namespace: &str) -> Vec<Shared<T>> {
        typed(self.list(T::kind_of(), namespace))
    }

    pub fn controlled_by_as<T: Registered>(&self, uid: &str) -> Vec<Shared<T>> {
        typed(self.controlled_by(T::kind_of(), uid))
    }

    pub fn orphans_as<T: Registered>(&self, namespace: &str) -> Vec<Shared<T>> {
        typed(self.orphans(T::kind_of(), namespace))
    }
}

/// A change of an object: its old and new state, at least one of which is set (client-go's OnAdd, OnUpdate, OnDelete).
#[derive(Clone, Copy)]
pub struct ObjectChange<'a> {
    pub kind: &'a Kind,
    pub old: Option<&'a Object>,
    pub new: Option<&'a Object>,
}

impl<'a> ObjectChange<'a> {
    /// The new state, or the last one if the object was deleted.
    pub fn object(&self) -> Option<&'a Object> {
        self.new.or(self.old)
    }

    /// The old and the new state, where set.
    pub fn states(&self) -> impl Iterator<Item = &'a Object> {
        self.old.into_iter().chain(self.new)
    }

    /// The object's own key, if it has this kind.
    pub fn key_of(&self, kind: &Kind) -> Option<ObjectKey> {
        (self.kind == kind)
            .then(|| self.object().map(ObjectKey::of))
            .flatten()
    }
}

/// The input of a reconciliation.
pub struct Context<'a> {
    pub view: &'a dyn View,
    pub key: &'a ObjectKey,
    pub now: Timestamp,
    /// The action of the reconciliation just before that failed: the controller reports it in the status and does nothing else.
    pub failure: Option<&'a Failure>,
}

/// A controller. It has no state between two calls: it decides from the [`View`] only. It needs no expectations as client-go's
/// ControllerExpectations: the driver reconciles a key again only once the caches show what was written for it.
pub trait Controller: Send + Sync + 'static {
    /// Its name in events: `replicaset-controller`.
    fn name(&self) -> &'static str;

    /// What its work queue is called in metrics: its name, unless another controller has the same.
    fn queue(&self) -> &'static str {
        self.name()
    }

    /// The service account in `kube-system` that it acts as: kube-controller-manager's for this controller, or one of
    /// knarr's own (`knarr-…`). ClusterRole `system:controller:<account>` says what it may do.
    fn account(&self) -> &'static str;

    /// The kinds that it watches. The view has their objects.
    fn watches(&self) -> Vec<&'static Kind>;

    /// Whether it watches all custom resources as well.
    fn watches_custom_kinds(&self) -> bool {
        false
    }

    /// The keys to enqueue for a change. A key too many costs time, a missing one correctness.
    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey>;

    /// Compares the desired with the current state of the key's object, and returns the actions in their order.
    fn reconcile(&self, context: &Context<'_>) -> Vec<Action>;
}
