//! Keeps a [`Store`] equal to what the API holds: one watch, taken up again where it broke off, begun anew where its
//! history is gone. [`Caches`] keeps one informer a kind for the whole process.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use knarr_api::registry::{self, Registered};
use knarr_api::{Error, Kind, Object, ObjectKey};
use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;
use tracing::{debug, warn};

use crate::api::{Api, WatchEvent, WatchOptions, WatchStream};
use crate::cache::{Cache, Index, NODE_NAME, Store};
use crate::custom_kinds::CustomKinds;
use crate::workqueue::Backoff;

/// Waits between two attempts to reach the API.
const RECONNECT: Backoff = Backoff {
    base: Duration::from_millis(50),
    max: Duration::from_secs(30),
};

/// How often typed values that nobody needs any more, most likely, are let go.
const SLIM_EVERY: Duration = Duration::from_secs(30);

async fn keep_slim(store: Arc<Store>) {
    loop {
        sleep(SLIM_EVERY).await;
        store.slim();
    }
}

/// Which objects an informer follows; everything by default.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    pub namespace: String,
    pub label_selector: String,
    pub field_selector: String,
}

/// What an informer feeds: a [`Store`], or what keeps less of each object. Only one informer feeds it.
pub trait Sink: Send + Sync + 'static {
    /// The object is new or has changed.
    fn apply(&self, object: &Arc<Object>);
    /// The object is gone; `last` is its last state, where that is known.
    fn remove(&self, key: &ObjectKey, last: Option<&Arc<Object>>);
    /// A full list is complete: only these objects are left.
    fn retain(&self, keys: &BTreeSet<ObjectKey>);
    /// All changes up to this revision have been applied; called first when the first list is complete.
    fn advance(&self, revision: u64);
}

impl Sink for Store {
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

/// Follows the API until it is dropped.
pub async fn run(api: Arc<dyn Api>, kind: Kind, scope: Scope, store: Arc<impl Sink>) {
    run_within(RECONNECT.max, api, kind, scope, store).await;
}

/// As [`run`], for what must not be learned late: waits no longer than `longest` between two attempts. For one kind a process
/// at the most: many that try so often keep an API server busy that has just come back.
pub async fn run_within(
    longest: Duration,
    api: Arc<dyn Api>,
    kind: Kind,
    scope: Scope,
    store: Arc<impl Sink>,
) {
    let waits = Backoff {
        max: longest,
        ..RECONNECT
    };
    let mut after = None;
    let mut failures = 0;
    loop {
        let options = WatchOptions {
            namespace: scope.namespace.clone(),
            label_selector: scope.label_selector.clone(),
            field_selector: scope.field_selector.clone(),
            after,
        };
        let ended = match api.watch(&kind, options).await {
            Ok(stream) => {
                let heard = follow(stream, &*store, &mut after).await;
                if heard.progressed {
                    failures = 0;
                }
                heard.error
            }
            Err(error) => Some(error),
        };
        if let Some(error) = ended {
            if error.is_expired() {
                after = None;
            }
            if failures >= 3 {
                warn!(kind = kind.plural(), %error, "cannot watch, trying again");
            } else {
                debug!(kind = kind.plural(), %error, "watch ended");
            }
        }
        sleep(waits.after(failures)).await;
        failures = (failures + 1).min(16);
    }
}

struct Heard {
    progressed: bool,
    error: Option<Error>,
}

/// Takes one watch in until it ends. `after` is where to take it up again: `None` until a full picture was there.
async fn follow(mut stream: WatchStream, store: &impl Sink, after: &mut Option<u64>) -> Heard {
    // While a first picture is being told: what of it was seen.
    let mut seen = after.is_none().then(BTreeSet::new);
    let mut progressed = false;
    while let Some(event) = stream.next().await {
        let revision = match event {
            Err(error) => {
                return Heard {
                    progressed,
                    error: Some(error),
                };
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
                    store.retain(&seen);
                }
                revision
            }
        };
        progressed = true;
        if seen.is_none() {
            *after = Some(after.map_or(revision, |a| a.max(revision)));
            store.advance(revision);
        }
    }
    Heard {
        progressed,
        error: None,
    }
}

/// The stores of one process, one a kind, each begun when first asked for. All of them end with this value.
pub struct Caches {
    api: Arc<dyn Api>,
    /// In the order in which they were asked for. There are some dozens, and comparing kinds is cheap.
    stores: Mutex<Vec<Kept>>,
    informers: Mutex<JoinSet<()>>,
    pub(crate) custom: CustomKinds,
}

/// A store and what keeps it.
struct Kept {
    store: Arc<Store>,
    tasks: [AbortHandle; 2],
}

impl Kept {
    fn is_of(&self, kind: &Kind) -> bool {
        self.store.kind() == kind
    }
}

impl Caches {
    pub fn new(api: Arc<dyn Api>) -> Self {
        Caches {
            api,
            stores: Mutex::default(),
            informers: Mutex::default(),
            custom: CustomKinds::default(),
        }
    }

    /// The store of this kind; begins to fill it if nobody has asked before. Needs a tokio runtime.
    pub fn store(&self, kind: &Kind) -> Arc<Store> {
        let mut stores = self.stores.lock();
        if let Some(kept) = stores.iter().find(|kept| kept.is_of(kind)) {
            return kept.store.clone();
        }
        let indexes: &[Index] = if kind == &registry::POD { &[NODE_NAME] } else { &[] };
        let store = Arc::new(Store::new(kind, indexes));
        let informer = run(self.api.clone(), kind.clone(), Scope::default(), store.clone());
        let mut tasks = self.informers.lock();
        // Tasks that were aborted are collected here, where new ones come.
        while tasks.try_join_next().is_some() {}
        let tasks = [tasks.spawn(informer), tasks.spawn(keep_slim(store.clone()))];
        stores.push(Kept {
            store: store.clone(),
            tasks,
        });
        store
    }

    /// The store of this kind, if it is kept.
    pub fn existing(&self, kind: &Kind) -> Option<Arc<Store>> {
        let stores = self.stores.lock();
        let kept = stores.iter().find(|kept| kept.is_of(kind))?;
        Some(kept.store.clone())
    }

    /// Ends the store of a kind. If its objects have gone, too, its subscribers are told so.
    pub(crate) fn forget(&self, kind: &Kind, objects_too: bool) {
        let kept = {
            let mut stores = self.stores.lock();
            let Some(at) = stores.iter().position(|kept| kept.is_of(kind)) else {
                return;
            };
            stores.remove(at)
        };
        kept.tasks.iter().for_each(AbortHandle::abort);
        if objects_too {
            kept.store.retain(&BTreeSet::new());
        }
        kept.store.unsubscribe_all();
    }

    /// The same, typed.
    pub fn cache<T: Registered>(&self) -> Cache<T> {
        match Cache::new(self.store(T::kind_of())) {
            Some(cache) => cache,
            None => unreachable!("the store of T's kind is of T's kind"),
        }
    }

    /// Waits until every store that was asked for has its first full picture.
    pub async fn synced(&self) {
        let stores: Vec<_> = self.stores.lock().iter().map(|k| k.store.clone()).collect();
        for store in stores {
            store.synced().await;
        }
    }

    /// Ends all informers and forgets all subscribers.
    pub fn stop(&self) {
        self.informers.lock().abort_all();
        for kept in self.stores.lock().iter() {
            kept.store.unsubscribe_all();
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

    fn told(store: &Store) -> Arc<Mutex<Vec<String>>> {
        let log = Arc::new(Mutex::new(Vec::new()));
        let to = log.clone();
        store.subscribe(move |change| {
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
    async fn s5_attempts_are_never_further_apart_than_was_asked() {
        for (longest, asked) in [(None, 30), (Some(5), 5)] {
            let api = fake();
            let tried = Arc::new(Mutex::new(Vec::new()));
            let tries = tried.clone();
            api.intercept(move |_| {
                tries.lock().push(tokio::time::Instant::now());
                Some(Error::unavailable("dial tcp: connection refused"))
            });
            let store = Arc::new(Store::new(&registry::CONFIG_MAP, &[]));
            let (kind, scope) = (registry::CONFIG_MAP.clone(), Scope::default());
            let task = match longest {
                None => tokio::spawn(run(api, kind, scope, store)),
                Some(seconds) => {
                    let longest = Duration::from_secs(seconds);
                    tokio::spawn(run_within(longest, api, kind, scope, store))
                }
            };
            sleep(Duration::from_secs(600)).await;
            task.abort();
            let tried = tried.lock();
            let waits = tried.windows(2).map(|pair| pair[1] - pair[0]);
            assert_eq!(waits.max(), Some(Duration::from_secs(asked)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_shows_what_the_api_holds_and_tells_each_change_once() {
        let api = fake();
        api.create_as(config_map("a", "1")).await.unwrap();
        let caches = Caches::new(api.clone());
        let store = caches.store(&registry::CONFIG_MAP);
        let log = told(&store);
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
            *told(&store).lock(),
            ["+a"],
            "a late subscriber hears what is there"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_broken_watch_goes_on_without_a_new_list_and_an_expired_one_begins_anew() {
        for forget in [false, true] {
            let api = fake();
            let caches = Caches::new(api.clone());
            let store = caches.store(&registry::CONFIG_MAP);
            let log = told(&store);
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
    async fn an_api_that_is_away_is_asked_less_and_less_often() {
        let api = fake();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
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
        assert_eq!(asked.load(Ordering::Relaxed), 9);
    }
}
