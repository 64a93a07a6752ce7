//! Keeps a [`Catalog`] equal to the API's Services and EndpointSlices, for all that read it on this node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::registry::{ENDPOINT_SLICE, SERVICE};
use knarr_api::well_known::LAST_CHANGE_TRIGGER_TIME;
use knarr_api::{Kind, Object, ObjectKey};
use knarr_client::Api;
use knarr_client::informer::{self, ReflectorStore, Scope};
use knarr_network::catalog::{Catalog, ServiceKey};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::signal::Signal;

/// Withdrawals that are remembered: of far more pods than terminate on one node at a time.
const WITHDRAWN_KEPT: usize = 16 << 10;

/// What has changed since the last call, and the revisions that the catalog has reached.
#[derive(Debug, Default)]
pub struct Changes {
    pub services: BTreeSet<ServiceKey>,
    pub reached: SyncedRevisions,
    /// Changes of Services, and of slices, that this comes from.
    pub service_changes: usize,
    pub slice_changes: usize,
    /// The trigger times of the changed slices, as far as their controller wrote them; [`MAX_TRIGGERS`] at the most.
    pub triggered: Vec<Timestamp>,
}

/// For changes that are not taken for a long time.
const MAX_TRIGGERS: usize = 1024;

impl Changes {
    fn add(&mut self, from: &Source, changed: &[ServiceKey], reached: SyncedRevisions) {
        self.services.extend(changed.iter().cloned());
        self.reached = reached;
        if changed.is_empty() {
            return;
        }
        match from {
            Source::Service => self.service_changes += 1,
            Source::Slice { triggered } => {
                self.slice_changes += 1;
                let has_room = self.triggered.len() < MAX_TRIGGERS;
                self.triggered.extend(triggered.filter(|_| has_room));
            }
        }
    }
}

/// What a change comes from.
enum Source {
    Service,
    Slice { triggered: Option<Timestamp> },
}

/// The revisions up to which the catalog shows everything; `None` until the first full list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncedRevisions {
    pub services: Option<u64>,
    pub slices: Option<u64>,
    /// Of the last slice that took away an endpoint to which new connections were sent; 0 if none has yet.
    pub withdrawn: u64,
}

impl SyncedRevisions {
    /// Both first lists are there.
    pub fn is_synced(&self) -> bool {
        self.services.is_some() && self.slices.is_some()
    }
}

/// A subscriber of the catalog. Changes gather until they are taken: many changes of one Service are one.
pub struct Subscription {
    gathered: Arc<Mutex<Changes>>,
    bell: watch::Receiver<()>,
}

impl Subscription {
    /// Waits until something has changed (or a revision was reached) and takes it; `None` when the catalog was dropped.
    pub async fn changes(&mut self) -> Option<Changes> {
        self.bell.changed().await.ok()?;
        let mut gathered = self.gathered.lock();
        let next = Changes {
            reached: gathered.reached,
            ..Changes::default()
        };
        Some(std::mem::replace(&mut *gathered, next))
    }
}

#[derive(Default)]
struct State {
    catalog: RwLock<Catalog>,
    reached: Mutex<SyncedRevisions>,
    /// The revisions at which addresses were last withdrawn, of those that were.
    withdrawn: Mutex<BTreeMap<IpAddr, u64>>,
    /// Counts reports.
    moved: Signal<u64>,
    subscribers: Mutex<Vec<Subscriber>>,
}

struct Subscriber {
    gathered: Arc<Mutex<Changes>>,
    bell: watch::Sender<()>,
}

impl State {
    fn report(&self, from: &Source, changed: &[ServiceKey]) {
        let reached = *self.reached.lock();
        self.moved.update(|count| *count += 1);
        // A subscriber that was dropped has closed its channel.
        self.subscribers.lock().retain(|subscriber| {
            subscriber.gathered.lock().add(from, changed, reached);
            subscriber.bell.send(()).is_ok()
        });
    }
}

/// The catalog of this node. Dropping it ends its watches.
pub struct Shared {
    state: Arc<State>,
    _watches: JoinSet<()>,
}

impl Shared {
    /// Begins to watch Services and EndpointSlices of all namespaces.
    pub fn start(api: Arc<dyn Api>) -> Self {
        let state = Arc::new(State::default());
        let mut watches = JoinSet::new();
        for kind in [&SERVICE, &ENDPOINT_SLICE] {
            let sink = Arc::new(Feed {
                state: state.clone(),
                is_services: *kind == SERVICE,
            });
            watches.spawn(informer::run(
                api.clone(),
                Kind::clone(kind),
                Scope::default(),
                sink,
            ));
        }
        Shared {
            state,
            _watches: watches,
        }
    }

    /// The revision at which one of these addresses was last withdrawn from new connections; `None` if none was, or
    /// long ago.
    pub fn withdrawn(&self, addresses: &[IpAddr]) -> Option<u64> {
        let withdrawn = self.state.withdrawn.lock();
        addresses
            .iter()
            .filter_map(|address| withdrawn.get(address).copied())
            .max()
    }

    /// Returns as soon as the condition holds for the catalog and its revisions.
    pub async fn wait_for(&self, mut holds: impl FnMut(&Catalog, SyncedRevisions) -> bool) {
        let now = |_: &u64| {
            let reached = self.reached();
            holds(&self.read(), reached)
        };
        self.state.moved.wait_for(now).await;
    }

    /// The revisions that the catalog has reached.
    pub fn reached(&self) -> SyncedRevisions {
        *self.state.reached.lock()
    }

    /// Held while a question is answered, not longer: changes wait for it.
    pub fn read(&self) -> RwLockReadGuard<'_, Catalog> {
        self.state.catalog.read()
    }

    /// Everything there is counts as changed to a new subscriber.
    pub fn subscribe(&self) -> Subscription {
        let (bell, changed) = watch::channel(());
        // Locked in the same order as by changes, so that none falls between.
        let mut subscribers = self.state.subscribers.lock();
        let catalog = self.state.catalog.read();
        let gathered = Arc::new(Mutex::new(Changes {
            services: catalog.services().map(|(key, _)| key.clone()).collect(),
            reached: *self.state.reached.lock(),
            ..Changes::default()
        }));
        subscribers.push(Subscriber {
            gathered: gathered.clone(),
            bell,
        });
        let mut bell = changed;
        bell.mark_changed();
        Subscription { gathered, bell }
    }
}

/// Processes the events of one of the two watches.
struct Feed {
    state: Arc<State>,
    is_services: bool,
}

impl Feed {
    fn source(&self, triggered: Option<Timestamp>) -> Source {
        match self.is_services {
            true => Source::Service,
            false => Source::Slice { triggered },
        }
    }

    fn keep(&self, object: &Object) -> Vec<ServiceKey> {
        if self.is_services {
            let service = object.get::<core::Service>();
            let mut catalog = self.state.catalog.write();
            let changed = service.and_then(|service| catalog.apply_service(service));
            return changed.into_iter().collect();
        }
        let slice = object.get::<EndpointSlice>();
        let mut catalog = self.state.catalog.write();
        let changed = slice.map(|slice| catalog.apply_slice(slice)).unwrap_or_default();
        self.note_withdrawals(catalog.take_withdrawn(), object.revision());
        changed
    }

    /// Recorded while the catalog is locked: a reader that sees that an address is not offered any more sees this, too.
    fn note_withdrawals(&self, addresses: Vec<IpAddr>, revision: u64) {
        if addresses.is_empty() {
            return;
        }
        let mut withdrawn = self.state.withdrawn.lock();
        withdrawn.extend(addresses.into_iter().map(|address| (address, revision)));
        if withdrawn.len() > WITHDRAWN_KEPT {
            let mut revisions: Vec<u64> = withdrawn.values().copied().collect();
            revisions.sort_unstable();
            let oldest = revisions[revisions.len() / 2];
            withdrawn.retain(|_, at| *at >= oldest);
        }
        drop(withdrawn);
        let mut reached = self.state.reached.lock();
        reached.withdrawn = reached.withdrawn.max(revision);
    }

    fn forget(&self, key: &ObjectKey, revision: u64) -> Option<ServiceKey> {
        let mut catalog = self.state.catalog.write();
        if self.is_services {
            return catalog.remove_service(&key.namespace, &key.name);
        }
        let changed = catalog.remove_slice(&key.namespace, &key.name);
        self.note_withdrawals(catalog.take_withdrawn(), revision);
        changed
    }
}

impl ReflectorStore for Feed {
    fn apply(&self, object: &Arc<Object>) {
        let changed = self.keep(object);
        if !changed.is_empty() {
            let annotations = object.metadata().annotations.as_ref();
            let triggered = annotations
                .and_then(|all| all.get(LAST_CHANGE_TRIGGER_TIME))
                .and_then(|time| time.parse().ok());
            self.state.report(&self.source(triggered), &changed);
        }
    }

    fn remove(&self, key: &ObjectKey, last: Option<&Arc<Object>>) {
        // A slice missing in a list was deleted some time after the last known revision.
        let known = self.state.reached.lock().slices.unwrap_or(0);
        let revision = last.map_or(known, |object| object.revision());
        let changed = self.forget(key, revision);
        if let Some(changed) = changed {
            self.state.report(&self.source(None), &[changed]);
        }
    }

    fn retain(&self, keys: &BTreeSet<ObjectKey>) {
        let known: Vec<ObjectKey> = {
            let catalog = self.state.catalog.read();
            if self.is_services {
                let services = catalog.services();
                services
                    .map(|(k, _)| ObjectKey::new(&*k.namespace, &*k.name))
                    .collect()
            } else {
                catalog
                    .slice_names()
                    .map(|(ns, name)| ObjectKey::new(ns, name))
                    .collect()
            }
        };
        for removed in known.iter().filter(|key| !keys.contains(key)) {
            self.remove(removed, None);
        }
    }

    fn advance(&self, revision: u64) {
        {
            let mut reached = self.state.reached.lock();
            let field = match self.is_services {
                true => &mut reached.services,
                false => &mut reached.slices,
            };
            *field = Some(field.map_or(revision, |before| before.max(revision)));
        }
        self.state.report(&self.source(None), &[]);
    }
}

#[cfg(test)]
mod tests {
    use knarr_client::api::TypedApi;
    use knarr_client::fake::FakeApi;
    use knarr_client::{DeleteOptions, TokioClock};
    use serde_json::json;

    use super::*;

    fn service(name: &str) -> core::Service {
        let object =
            json!({"metadata": {"namespace": "ns", "name": name}, "spec": {"clusterIP": "10.0.0.1"}});
        serde_json::from_value(object).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn n3_changes_accumulate_until_they_are_taken_and_a_relist_removes_deleted_objects() {
        let api = Arc::new(FakeApi::new(Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH))));
        for name in ["a", "b"] {
            api.create_as(service(name)).await.unwrap();
        }
        let shared = Shared::start(api.clone());
        let mut subscription = shared.subscribe();
        let mut seen = BTreeSet::new();
        while seen.len() < 2 || !subscription.gathered.lock().reached.is_synced() {
            let changes = subscription.changes().await.unwrap();
            seen.extend(changes.services.iter().map(ToString::to_string));
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["ns/a", "ns/b"]);
        assert_eq!(
            shared.subscribe().changes().await.unwrap().services.len(),
            2,
            "a late one, too"
        );
        api.break_watches(true);
        api.delete(&SERVICE, "ns", "a", DeleteOptions::default())
            .await
            .unwrap();
        let changes = loop {
            let changes = subscription.changes().await.unwrap();
            if !changes.services.is_empty() {
                break changes;
            }
        };
        assert_eq!(
            changes
                .services
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
            ["ns/a"]
        );
        assert!(shared.read().service_named("ns", "a").is_none());
    }
}
