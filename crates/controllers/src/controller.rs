//! What every controller is: the kinds it watches, the keys a change concerns, and what it wants done for a key.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use knarr_api::{Kind, Object, ObjectKey, Shared};

use crate::action::{Action, Failure};

/// What is known of the cluster: the caches, which may lag behind the API.
pub trait View {
    fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Arc<Object>>;
    /// In the order of namespace and name; everything if `namespace` is empty.
    fn list(&self, kind: &Kind, namespace: &str) -> Vec<Arc<Object>>;
    /// What the owner with this uid controls.
    fn controlled_by(&self, kind: &Kind, uid: &str) -> Vec<Arc<Object>>;
    /// What nobody controls in this namespace.
    fn orphans(&self, kind: &Kind, namespace: &str) -> Vec<Arc<Object>>;
    /// Pods bound to this node.
    fn pods_on(&self, node: &str) -> Vec<Arc<Object>>;
    /// The kinds that users brought and whose objects are in the view.
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

/// An object as it was and as it is; at least one of the two is there.
#[derive(Clone, Copy)]
pub struct Changed<'a> {
    pub kind: &'a Kind,
    pub old: Option<&'a Object>,
    pub new: Option<&'a Object>,
}

impl<'a> Changed<'a> {
    /// As it is, or as it was when it went.
    pub fn object(&self) -> Option<&'a Object> {
        self.new.or(self.old)
    }

    /// Both of its states, as far as there are.
    pub fn states(&self) -> impl Iterator<Item = &'a Object> {
        self.old.into_iter().chain(self.new)
    }

    /// The object's own key, if it is of this kind.
    pub fn key_of(&self, kind: &Kind) -> Option<ObjectKey> {
        (self.kind == kind)
            .then(|| self.object().map(ObjectKey::of))
            .flatten()
    }
}

/// What a controller decides from.
pub struct Context<'a> {
    pub view: &'a dyn View,
    pub key: &'a ObjectKey,
    pub now: Timestamp,
    /// The first of the actions decided a moment ago that failed: say so in the status and do nothing else.
    pub failure: Option<&'a Failure>,
}

/// A controller. It keeps nothing between two calls: what it knows stands in the [`View`].
pub trait Controller: Send + Sync + 'static {
    /// As it stands in events: `replicaset-controller`.
    fn name(&self) -> &'static str;

    /// The service account in `kube-system` that it acts as: kube-controller-manager's for this controller, or one of
    /// knarr's own (`knarr-…`). ClusterRole `system:controller:<account>` says what it may do.
    fn account(&self) -> &'static str;

    /// The kinds whose changes can concern it. The view holds these.
    fn watches(&self) -> Vec<&'static Kind>;

    /// Whether changes of every kind that users brought concern it, too.
    fn watches_custom_kinds(&self) -> bool {
        false
    }

    /// The keys to look at because of a change. Naming too many costs time, too few costs correctness.
    fn keys(&self, view: &dyn View, changed: Changed<'_>) -> Vec<ObjectKey>;

    /// What is to be done for this key, in order.
    fn reconcile(&self, context: &Context<'_>) -> Vec<Action>;
}
