//! Feeds the API's objects into the state.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use knarr_api::k8s_openapi;
use knarr_api::registry::{NAMESPACE, NETWORK_POLICY, POD};
use knarr_api::{Kind, Object, ObjectKey};
use knarr_client::informer::{self, ReflectorStore, Scope};

use super::State;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Namespaces,
    Policies,
    LocalPods,
    /// Pods of other nodes.
    Peers,
}

/// The revisions up to which everything is known; `None` until the first list is complete.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SyncedRevisions {
    pub namespaces: Option<u64>,
    pub policies: Option<u64>,
    pub local_pods: Option<u64>,
    pub peers: Option<u64>,
}

impl SyncedRevisions {
    fn of(&mut self, source: Source) -> &mut Option<u64> {
        match source {
            Source::Namespaces => &mut self.namespaces,
            Source::Policies => &mut self.policies,
            Source::LocalPods => &mut self.local_pods,
            Source::Peers => &mut self.peers,
        }
    }

    /// What is needed in any case.
    pub fn is_synced(&self) -> bool {
        self.namespaces.is_some() && self.policies.is_some() && self.local_pods.is_some()
    }
}

/// Where a pod is known from. One of the same name may come on another node, and the two watches do not wait for each
/// other: a state that is older than the known one is passed over.
#[derive(Clone, Debug)]
struct Origin {
    is_local: bool,
    revision: u64,
    uid: Box<str>,
    /// When this pod was seen first: shortly after its creation at the latest, and never before it.
    first_revision: u64,
}

#[derive(Debug, Default)]
pub(super) struct Origins(BTreeMap<ObjectKey, Origin>);

impl Origins {
    /// `false`: what is known is newer.
    fn apply(&mut self, key: ObjectKey, is_local: bool, revision: u64, uid: &str) -> bool {
        let known = self.0.get(&key);
        if known.is_some_and(|known| known.is_local != is_local && known.revision > revision) {
            return false;
        }
        let same = known.filter(|known| *known.uid == *uid);
        let origin = Origin {
            is_local,
            revision,
            uid: uid.into(),
            first_revision: same.map_or(revision, |known| known.first_revision),
        };
        self.0.insert(key, origin);
        true
    }

    /// `false`: it is known from the other watch.
    fn remove(&mut self, key: &ObjectKey, is_local: bool) -> bool {
        let is_own = self.0.get(key).is_some_and(|known| known.is_local == is_local);
        if is_own {
            self.0.remove(key);
        }
        is_own
    }

    fn keys(&self, is_local: bool) -> Vec<ObjectKey> {
        let own = self.0.iter().filter(|(_, origin)| origin.is_local == is_local);
        own.map(|(key, _)| key.clone()).collect()
    }

    pub fn first_revision(&self, namespace: &str, name: &str) -> Option<u64> {
        let origin = self.0.get(&ObjectKey::new(namespace, name))?;
        Some(origin.first_revision)
    }
}

struct Feed {
    state: Arc<State>,
    source: Source,
}

impl Feed {
    fn apply_pod(&self, object: &Object, pod: &Pod) {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let is_local = node == Some(&*self.state.node_name);
        let key = ObjectKey::of(object);
        if is_local != (self.source == Source::LocalPods) {
            // It is of the other watch.
            return;
        }
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let mut origins = self.state.origins.lock();
        if origins.apply(key, is_local, object.revision(), uid) {
            self.state.change(|policies| policies.apply_pod(pod));
        }
    }

    fn known(&self) -> Vec<ObjectKey> {
        let policies = self.state.policies.lock();
        match self.source {
            Source::Namespaces => policies
                .namespace_names()
                .map(|name| ObjectKey::new("", name))
                .collect(),
            Source::Policies => policies
                .policy_keys()
                .map(|key| ObjectKey::new(&*key.namespace, &*key.name))
                .collect(),
            Source::LocalPods | Source::Peers => {
                drop(policies);
                self.state.origins.lock().keys(self.source == Source::LocalPods)
            }
        }
    }
}

impl ReflectorStore for Feed {
    fn apply(&self, object: &Arc<Object>) {
        let state = &self.state;
        match self.source {
            Source::Namespaces => {
                if let Some(namespace) = object.to_typed::<Namespace>() {
                    state.change(|policies| policies.apply_namespace(&namespace));
                }
            }
            Source::Policies => {
                if let Some(policy) = object.to_typed::<NetworkPolicy>() {
                    state.change(|policies| policies.apply_policy(&policy));
                }
            }
            Source::LocalPods | Source::Peers => {
                if let Some(pod) = object.to_typed::<Pod>() {
                    self.apply_pod(object, &pod);
                }
            }
        }
    }

    fn remove(&self, key: &ObjectKey, _: Option<&Arc<Object>>) {
        let state = &self.state;
        match self.source {
            Source::Namespaces => {
                state.change(|policies| policies.remove_namespace(&key.name));
            }
            Source::Policies => {
                state.change(|policies| policies.remove_policy(&key.namespace, &key.name));
            }
            Source::LocalPods | Source::Peers => {
                let mut origins = state.origins.lock();
                if origins.remove(key, self.source == Source::LocalPods) {
                    state.change(|policies| policies.remove_pod(&key.namespace, &key.name));
                }
            }
        }
    }

    fn retain(&self, keys: &BTreeSet<ObjectKey>) {
        for removed in self.known().iter().filter(|key| !keys.contains(key)) {
            self.remove(removed, None);
        }
    }

    fn advance(&self, revision: u64) {
        self.state.reached.update(|reached| {
            let field = reached.of(self.source);
            *field = Some(field.map_or(revision, |before| before.max(revision)));
        });
        self.state.wake.notify_one();
    }
}

fn informer(
    state: &Arc<State>,
    source: Source,
    kind: Kind,
    scope: Scope,
) -> impl Future<Output = ()> + use<> {
    let sink = Arc::new(Feed {
        state: state.clone(),
        source,
    });
    informer::run(state.api.clone(), kind, scope, sink)
}

/// Those that run all the time.
pub(super) fn always(state: &Arc<State>) -> [impl Future<Output = ()> + use<>; 3] {
    let own = Scope {
        field_selector: format!("spec.nodeName={}", state.node_name),
        ..Scope::default()
    };
    [
        informer(state, Source::Namespaces, NAMESPACE.clone(), Scope::default()),
        informer(state, Source::Policies, NETWORK_POLICY.clone(), Scope::default()),
        informer(state, Source::LocalPods, POD.clone(), own),
    ]
}

/// The one of other nodes' pods.
pub(super) fn peers(state: &Arc<State>) -> impl Future<Output = ()> + use<> {
    let others = Scope {
        field_selector: format!("spec.nodeName!={}", state.node_name),
        ..Scope::default()
    };
    informer(state, Source::Peers, POD.clone(), others)
}

/// Drops the pods of other nodes, when they are not watched any more.
pub(super) fn forget_peers(state: &Arc<State>) {
    state.reached.update(|reached| reached.peers = None);
    let feed = Feed {
        state: state.clone(),
        source: Source::Peers,
    };
    feed.retain(&BTreeSet::new());
}
