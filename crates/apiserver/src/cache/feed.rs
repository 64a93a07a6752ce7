//! Fills the cache and keeps it up to date from the store's watch.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use knarr_api::Object;
use knarr_store::{Event, KeyRange, KeyValue, Range, Watch, WatchItem};
use tokio::sync::oneshot;
use tracing::{error, info, warn};

use super::custom::DEFINITIONS;
use super::{Cache, KindCache, Materialized, store_error};
use crate::keys;

/// Between two attempts to reach the store after a failure.
const RETRY: Duration = Duration::from_millis(250);

impl Cache {
    /// Fills the cache and starts to follow the store; returns once it is filled. The task ends when the other end of `stop`
    /// is dropped.
    pub async fn start(self: &Arc<Self>, stop: oneshot::Receiver<()>) -> Result<(), knarr_store::Error> {
        let watch = self.fill().await?;
        let cache = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = cache.follow(watch) => {}
                _ = stop => {}
            }
            cache.is_synced.store(false, Ordering::Release);
        });
        Ok(())
    }

    async fn fill(&self) -> Result<Watch, knarr_store::Error> {
        let range = Range {
            keys: KeyRange::prefix(keys::ROOT),
            ..Range::default()
        };
        let found = self.store.range(range).await?;
        let watch = self
            .store
            .watch(KeyRange::prefix(keys::ROOT), found.revision + 1)
            .await?;
        let mut by_kind: HashMap<&str, BTreeMap<String, Arc<Object>>> = HashMap::new();
        // Objects of custom kinds can be decoded only after their definitions.
        let mut custom: BTreeMap<&str, Vec<(&str, &KeyValue)>> = BTreeMap::new();
        let leases = keys::MASTER_LEASES.as_bytes();
        for kv in found.kvs.iter().filter(|kv| !kv.key.starts_with(leases)) {
            let Some((group_plural, local)) = keys::split(&kv.key) else {
                warn!(key = %kv.key.escape_ascii(), "skipped a key in the store that is not an object's");
                continue;
            };
            if !self.is_built_in(group_plural) {
                custom.entry(group_plural).or_default().push((local, kv));
            } else if let Some(materialized) = self.read(group_plural, kv) {
                let objects = by_kind.entry(group_plural).or_default();
                objects.insert(local.to_string(), materialized.object);
            }
        }
        let definitions = by_kind
            .get(DEFINITIONS)
            .map(|d| d.values().cloned().collect::<Vec<_>>());
        self.replace_definitions(&definitions.unwrap_or_default(), found.revision);
        for cache in self.built_in_caches() {
            let of_kind = super::group_plural(&cache.kind);
            let objects = by_kind.remove(of_kind.as_str()).unwrap_or_default();
            cache.load(objects, found.revision);
            self.metrics.cache_initialized(&cache.kind);
        }
        for (group_plural, kvs) in custom {
            let read = kvs.into_iter().filter_map(|(local, kv)| {
                let materialized = self.read(group_plural, kv)?;
                Some((local.to_string(), materialized.object))
            });
            let objects = read.collect();
            if let Some(cache) = self.kind_cache(group_plural) {
                cache.load(objects, found.revision);
                self.metrics.cache_initialized(&cache.kind);
            }
        }
        self.advance(found.revision);
        // No event comes of writes that the list has, or that were replaced before it: their writers use the store's answer.
        self.deposits.lock().clear();
        self.is_synced.store(true, Ordering::Release);
        Ok(watch)
    }

    fn is_built_in(&self, group_plural: &str) -> bool {
        let split = group_plural.split_once('/');
        split.is_some_and(|(group, plural)| self.built_in(group, plural).is_some())
    }

    fn read(&self, group_plural: &str, kv: &KeyValue) -> Option<Materialized> {
        let Some(cache) = self.kind_cache(group_plural) else {
            warn!(key = %kv.key.escape_ascii(), "skipped an object of an unknown kind");
            return None;
        };
        self.read_of(&cache, kv)
    }

    /// The object of the cache's kind that the pair holds.
    fn read_of(&self, cache: &KindCache, kv: &KeyValue) -> Option<Materialized> {
        match self.materialize(&cache.kind, &kv.key, &kv.value, kv.mod_revision) {
            Ok(materialized) => Some(materialized),
            Err(e) => {
                error!(key = %kv.key.escape_ascii(), "skipped an object that cannot be decoded: {e}");
                None
            }
        }
    }

    async fn follow(&self, mut watch: Watch) {
        loop {
            match watch.next().await {
                Some(Ok(WatchItem::Events(events))) => self.apply(&events),
                Some(Ok(WatchItem::Progress(revision))) => self.advance(revision),
                Some(Err(e)) => {
                    warn!("the watch of the store ended: {e}");
                    watch = self.resume().await;
                }
                None => match self.store.revision().await {
                    Err(knarr_store::Error::Closed) => return,
                    _ => watch = self.resume().await,
                },
            }
        }
    }

    /// Watches the store again from the last revision or, where that history was compacted, after filling the cache again.
    async fn resume(&self) -> Watch {
        loop {
            let from = self.revision() + 1;
            let again = match self.store.watch(KeyRange::prefix(keys::ROOT), from).await {
                Err(knarr_store::Error::Compacted { .. }) => {
                    info!(
                        from,
                        "filling the watch cache again: the store has compacted the history since the last revision"
                    );
                    self.fill().await
                }
                other => other,
            };
            match again {
                Ok(watch) => return watch,
                Err(e) => {
                    warn!("cannot watch the store: {}", store_error(e));
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    fn apply(&self, events: &[Event]) {
        let mut newest = 0;
        for event in events {
            newest = newest.max(event.kv.mod_revision);
            let Some((group_plural, local)) = keys::split(&event.kv.key) else {
                continue;
            };
            let Some(cache) = self.kind_cache(group_plural) else {
                continue;
            };
            let is_definition = group_plural == DEFINITIONS;
            let terminated = if event.deleted {
                let terminated = cache.remove(local, event.kv.mod_revision);
                if is_definition {
                    self.remove_definition(local);
                }
                terminated
            } else if let Some(materialized) = self.read_of(&cache, &event.kv) {
                let terminated = cache.put(local, materialized.object.clone());
                if is_definition {
                    self.apply_definition(&materialized.object, event.kv.mod_revision);
                }
                materialized.notify();
                terminated
            } else {
                // An object that cannot be decoded is removed from the cache: absent is better than stale.
                cache.remove(local, event.kv.mod_revision)
            };
            self.metrics.cache_event(&cache.kind, terminated);
        }
        self.advance(newest);
    }
}
