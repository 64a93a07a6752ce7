//! Reflector and informers: a reflector keeps a [`Store`] equal to the API by one watch, which is resumed when it breaks off, and
//! starts with a new list when its resourceVersion is too old. [`Caches`] has one informer a kind for the process, as client-go's
//! SharedInformerFactory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use knarr_api::registry::{self, Registered};
use knarr_api::{Kind, Object, ObjectKey};
use knarr_apimachinery::Error;
use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use crate::api::{Api, WatchEvent, WatchOptions, WatchStream};
use crate::cache::{Cache, Index, NODE_NAME, Store};
use crate::custom_kinds::served::CustomKinds;
use crate::metrics::reflector::{KindMetrics, ReflectorMetrics};
use crate::workqueue::Backoff;

/// The back-off between two attempts to watch.
const RECONNECT: Backoff = Backoff {
    base: Duration::from_millis(50),
    max: Duration::from_secs(30),
};

/// How often decoded forms of objects that were not changed lately are dropped from the stores.
const SLIM_EVERY: Duration = Duration::from_secs(30);

async fn keep_slim(store: Arc<Store>) {
    loop {
        sleep(SLIM_EVERY).await;
        store.slim();
    }
}

/// Which objects an informer watches; all of the kind by default.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    pub namespace: String,
    pub label_selector: String,
    pub field_selector: String,
}

/// What a reflector writes to (client-go's ReflectorStore): a [`Store`], or something that keeps less of each object. Each has one
/// reflector.
pub trait ReflectorStore: Send + Sync + 'static {
    /// The object was added or modified.
    fn apply(&self, object: &Arc<Object>);
    /// The object was deleted; `last` is its last state, where that is known.
    fn remove(&self, key: &ObjectKey, last: Option<&Arc<Object>>);
    /// A list is complete: objects with other keys were deleted (client-go's Replace).
    fn retain(&self, keys: &BTreeSet<ObjectKey>);
    /// All changes up to this revision have been applied; called for the first time when the initial list is complete.
    fn advance(&self, revision: u64);
}

impl ReflectorStore for Store {
    fn apply(&self, object: &Arc<Object>) {
        Store::apply(self, object);
    }

    fn remove(&self, key: &ObjectKey, last: Option<&Arc<Object>>) {
        Store::remove(self, key, last);
    }

    fn retain(&self, keys: &BTreeSet<ObjectKey>) {
        Store::retain(self, keys);
    }

    fn advance(&self, revision: u64) {
        Store::advance(self, revision);
    }
}

/// Runs a reflector until dropped.
pub async fn run(api: Arc<dyn Api>, kind: Kind, scope: Scope, store: Arc<impl ReflectorStore>) {
    run_with_max_backoff(RECONNECT.max, api, kind, scope, store).await;
}

/// As [`run`], with a shorter maximum of the back-off, where a change must not be learned late. For at most one kind a process: many
/// reflectors that retry so often would keep an API server busy that has just restarted.
pub async fn run_with_max_backoff(
    max_backoff: Duration,
    api: Arc<dyn Api>,
    kind: Kind,
    scope: Scope,
    store: Arc<impl ReflectorStore>,
) {
    let reflector = Reflector {
        api,
        kind,
        scope,
        store,
        max_backoff,
        metrics: None,
    };
    reflector.run().await;
}

/// See the module.
struct Reflector<S> {
    api: Arc<dyn Api>,
    kind: Kind,
    scope: Scope,
    store: Arc<S>,
    max_backoff: Duration,
    metrics: Option<KindMetrics>,
}

struct WatchOutcome {
    progressed: bool,
    error: Option<Error>,
}

impl<S: ReflectorStore> Reflector<S> {
    async fn run(self) {
        let waits = Backoff {
            max: self.max_backoff,
            ..RECONNECT
        };
        let mut after = None;
        let mut failures = 0;
        loop {
            let options = WatchOptions {
                namespace: self.scope.namespace.clone(),
                label_selector: self.scope.label_selector.clone(),
                field_selector: self.scope.field_selector.clone(),
                after,
            };
            let begun = Instant::now();
            let error = match self.api.watch(&self.kind, options).await {
                Ok(stream) => {
                    let outcome = self.handle_watch(stream, &mut after, begun).await;
                    if outcome.progressed {
                        failures = 0;
                    }
                    outcome.error
                }
                Err(error) => Some(error),
            };
            if let Some(error) = error {
                if error.is_expired() {
                    after = None;
                }
                if failures >= 3 {
                    warn!(kind = self.kind.plural(), %error, "watch failed, retrying");
                } else {
                    debug!(kind = self.kind.plural(), %error, "watch closed");
                }
            }
            sleep(waits.after(failures)).await;
            failures = (failures + 1).min(16);
        }
    }

    /// Applies the events of one watch until it ends. `after` is the revision to resume it from: `None` until the initial list is
    /// complete.
    async fn handle_watch(
        &self,
        mut stream: WatchStream,
        after: &mut Option<u64>,
        begun: Instant,
    ) -> WatchOutcome {
        let store = &*self.store;
        // During the initial list: the keys of its objects.
        let mut seen = after.is_none().then(BTreeSet::new);
        let mut events = 0;
        let mut error = None;
        while let Some(event) = stream.next().await {
            let revision = match event {
                Err(failed) => {
                    error = Some(failed);
                    break;
                }
                Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                    if let Some(seen) = &mut seen {
                        seen.insert(ObjectKey::of(&object));
                    }
                    store.apply(&object);
                    object.revision()
                }
                Ok(WatchEvent::Deleted(object)) => {
                    let key = ObjectKey::of(&object);
                    if let Some(seen) = &mut seen {
                        seen.remove(&key);
                    }
                    store.remove(&key, Some(&object));
                    object.revision()
                }
                Ok(WatchEvent::Bookmark(revision)) => {
                    if let Some(seen) = seen.take() {
                        if let Some(metrics) = &self.metrics {
                            metrics.listed(seen.len(), begun.elapsed());
                        }
                        store.retain(&seen);
                    }
                    revision
                }
            };
            events += 1;
            if seen.is_none() {
                *after = Some(after.map_or(revision, |a| a.max(revision)));
                store.advance(revision);
                if let Some(metrics) = &self.metrics {
                    metrics.advanced(revision);
                }
            }
        }
        if let Some(metrics) = &self.metrics {
            metrics.watched(events, begun.elapsed());
        }
        WatchOutcome {
            progressed: events > 0,
            error,
        }
    }
}

/// The stores of one process, one a kind, each with an informer that starts at the first request for it. All informers stop when
/// this is dropped.
pub struct Caches {
    api: Arc<dyn Api>,
    /// In the order in which they were started. There are some dozens, and comparing kinds is cheap.
    stores: Mutex<Vec<Informer>>,
    informers: Mutex<JoinSet<()>>,
    pub(crate) custom: CustomKinds,
    metrics: Option<ReflectorMetrics>,
}

/// A store and the tasks that write to it.
struct Informer {
    /// The store's; here it is compared without reading each store on the way.
    kind: Kind,
    store: Arc<Store>,
    tasks: [AbortHandle; 2],
}

impl Informer {
    fn is_of(&self, kind: &Kind) -> bool {
        self.kind == *kind
    }
}

impl Caches {
    pub fn new(api: Arc<dyn Api>) -> Self {
        Caches {
            api,
            stores: Mutex::default(),
            informers: Mutex::default(),
            custom: CustomKinds::default(),
            metrics: None,
        }
    }

    #[must_use]
    pub fn with_metrics(mut self, metrics: ReflectorMetrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// The store of this kind; starts its informer if there is none yet. Needs a tokio runtime.
    pub fn store(&self, kind: &Kind) -> Arc<Store> {
        let mut stores = self.stores.lock();
        if let Some(informer) = stores.iter().find(|informer| informer.is_of(kind)) {
            return informer.store.clone();
        }
        let indexes: &[Index] = if kind == &registry::POD { &[NODE_NAME] } else { &[] };
        let store = Arc::new(Store::new(kind, indexes));
        let reflector = Reflector {
            api: self.api.clone(),
            kind: kind.clone(),
            scope: Scope::default(),
            store: store.clone(),
            max_backoff: RECONNECT.max,
            metrics: self.metrics.as_ref().map(|metrics| metrics.of(kind)),
        };
        let mut tasks = self.informers.lock();
        // Aborted tasks are removed when new ones are added.
        while tasks.try_join_next().is_some() {}
        let tasks = [
            tasks.spawn(reflector.run()),
            tasks.spawn(keep_slim(store.clone())),
        ];
        stores.push(Informer {
            kind: kind.clone(),
            store: store.clone(),
            tasks,
        });
        store
    }

    /// The store of this kind, if it has an informer.
    pub fn existing(&self, kind: &Kind) -> Option<Arc<Store>> {
        let stores = self.stores.lock();
        let informer = stores.iter().find(|informer| informer.is_of(kind))?;
        Some(informer.store.clone())
    }

    /// Stops the informer of a kind. With `objects_too` its event handlers are called for the deletion of all objects.
    pub(crate) fn forget(&self, kind: &Kind, objects_too: bool) {
        let informer = {
            let mut stores = self.stores.lock();
            let Some(at) = stores.iter().position(|informer| informer.is_of(kind)) else {
                return;
            };
            stores.remove(at)
        };
        informer.tasks.iter().for_each(AbortHandle::abort);
        if objects_too {
            informer.store.retain(&BTreeSet::new());
        }
        informer.store.remove_event_handlers();
    }

    /// The store of T's kind with its Rust type.
    pub fn cache<T: Registered>(&self) -> Cache<T> {
        match Cache::new(self.store(T::kind_of())) {
            Some(cache) => cache,
            None => unreachable!("the store of T's kind is of T's kind"),
        }
    }

    /// Waits until the initial lists of all informers are complete (client-go's WaitForCacheSync).
    pub async fn synced(&self) {
        let stores: Vec<_> = self.stores.lock().iter().map(|k| k.store.clone()).collect();
        for store in stores {
            store.synced().await;
        }
    }

    /// Stops all informers and removes all event handlers.
    pub fn stop(&self) {
        self.informers.lock().abort_all();
        for informer in self.stores.lock().iter() {
            informer.store.remove_event_handlers();
        }
        self.custom.stop();
    }
}

impl Drop for Caches {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use k8s_openapi::api::core::v1::ConfigMap;
    use k8s_openapi::jiff::Timestamp;
    use knarr_api::k8s_openapi;

    use super::*;
    use crate::api::{DeleteOptions, TypedApi};
    use crate::cache::Change;
    use crate::clock::TokioClock;
    use crate::fake::FakeApi;

    fn config_map(name: &str, value: &str) -> ConfigMap {
        let mut map = ConfigMap::default();
        map.metadata.namespace = Some("default".into());
        map.metadata.name = Some(name.into());
        map.data = Some([("v".to_string(), value.to_string())].into());
        map
    }

    fn fake() -> Arc<FakeApi> {
        Arc::new(FakeApi::new(Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH))))
    }

    fn changes_of(store: &Store) -> Arc<Mutex<Vec<String>>> {
        let log = Arc::new(Mutex::new(Vec::new()));
        let to = log.clone();
        store.add_event_handler(move |change| {
            let word = match change {
                Change::Added(_) => "+",
                Change::Modified { .. } => "~",
                Change::Deleted(_) => "-",
            };
            to.lock().push(format!("{word}{}", change.object().name()));
        });
        log
    }

    #[tokio::test(start_paused = true)]
    async fn s5_attempts_are_never_further_apart_than_the_maximum_of_the_back_off() {
        for (max_backoff, expected_seconds) in [(None, 30), (Some(5), 5)] {
            let api = fake();
            let tried = Arc::new(Mutex::new(Vec::new()));
            let tries = tried.clone();
            api.intercept(move |_| {
                tries.lock().push(tokio::time::Instant::now());
                Some(Error::unavailable("dial tcp: connection refused"))
            });
            let store = Arc::new(Store::new(&registry::CONFIG_MAP, &[]));
            let (kind, scope) = (registry::CONFIG_MAP.clone(), Scope::default());
            let task = match max_backoff {
                None => tokio::spawn(run(api, kind, scope, store)),
                Some(seconds) => {
                    let max_backoff = Duration::from_secs(seconds);
                    tokio::spawn(run_with_max_backoff(max_backoff, api, kind, scope, store))
                }
            };
            sleep(Duration::from_secs(600)).await;
            task.abort();
            let tried = tried.lock();
            let waits = tried.windows(2).map(|pair| pair[1] - pair[0]);
            assert_eq!(waits.max(), Some(Duration::from_secs(expected_seconds)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_contains_what_the_api_holds_and_reports_each_change_once() {
        let api = fake();
        api.create_as(config_map("a", "1")).await.unwrap();
        let caches = Caches::new(api.clone());
        let store = caches.store(&registry::CONFIG_MAP);
        let log = changes_of(&store);
        caches.synced().await;
        let b = api.create_as(config_map("b", "1")).await.unwrap();
        api.edit::<ConfigMap>("default", "a", "", |map| map.data = None)
            .await
            .unwrap();
        let last = api
            .delete(&registry::CONFIG_MAP, "default", "b", DeleteOptions::default())
            .await
            .unwrap();
        store.wait_for(last.revision()).await;
        assert_eq!(*log.lock(), ["+a", "+b", "~a", "-b"]);
        assert_eq!(store.list("default").len(), 1);
        assert_eq!(store.list("other").len(), 0);
        assert!(store.get("default", b.object().name()).is_none());
        assert_eq!(
            *changes_of(&store).lock(),
            ["+a"],
            "a late handler gets the objects that exist"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_broken_watch_is_resumed_without_a_new_list_and_an_expired_one_lists_again() {
        for forget in [false, true] {
            let api = fake();
            let caches = Caches::new(api.clone());
            let store = caches.store(&registry::CONFIG_MAP);
            let log = changes_of(&store);
            for name in ["a", "b", "c"] {
                api.create_as(config_map(name, "1")).await.unwrap();
            }
            caches.synced().await;
            api.break_watches(false);
            api.delete(&registry::CONFIG_MAP, "default", "a", DeleteOptions::default())
                .await
                .unwrap();
            api.delete(&registry::CONFIG_MAP, "default", "b", DeleteOptions::default())
                .await
                .unwrap();
            // The same name, another object.
            api.create_as(config_map("b", "2")).await.unwrap();
            if forget {
                api.break_watches(true);
            }
            let last = api.create_as(config_map("d", "1")).await.unwrap();
            store.wait_for(last.object().revision()).await;
            let mut log = log.lock().split_off(3);
            log.sort();
            assert_eq!(log, ["+b", "+d", "-a", "-b"], "forget: {forget}");
            let names: Vec<_> = store.list("").iter().map(|o| o.name().to_string()).collect();
            assert_eq!(names, ["b", "c", "d"]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_metrics_count_lists_and_watches_by_kind() {
        let api = fake();
        let last = api.create_as(config_map("a", "1")).await.unwrap();
        let metrics = crate::metrics::Registry::default();
        let caches = Caches::new(api.clone()).with_metrics(ReflectorMetrics::new(&metrics));
        let store = caches.store(&registry::CONFIG_MAP);
        store.wait_for(last.object().revision()).await;
        api.break_watches(false);
        sleep(Duration::from_secs(1)).await;
        let text = metrics.text();
        let labels = r#"{name="SharedInformerFactory",resource_type="*v1.ConfigMap"}"#;
        for (metric, n) in [("lists_total", 1), ("listed_items", 1), ("watches_total", 1)] {
            let line = format!("reflector_{metric}{labels} {n}");
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_to_reach_an_unavailable_api_back_off() {
        let api = fake();
        let attempts = Arc::new(AtomicUsize::new(0));
        let count = attempts.clone();
        api.intercept(move |request| {
            let n = (request.verb == "watch").then(|| count.fetch_add(1, Ordering::Relaxed));
            n.filter(|n| *n < 8).map(|_| Error::unavailable("away"))
        });
        let caches = Caches::new(api.clone());
        let store = caches.store(&registry::CONFIG_MAP);
        let start = tokio::time::Instant::now();
        store.synced().await;
        // 50 ms * (1 + 2 + 4 + … + 128)
        assert_eq!(start.elapsed().as_millis() / 100, 127);
        assert_eq!(attempts.load(Ordering::Relaxed), 9);
    }
}
