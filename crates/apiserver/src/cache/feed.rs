//! Fills the cache and keeps it in step with the store.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use knarr_api::Object;
use knarr_store::{Event, KeyRange, KeyValue, Range, Watch, WatchItem};
use tokio::sync::oneshot;
use tracing::{error, info, warn};

use super::custom::DEFINITIONS;
use super::{Cache, TakenIn, store_error};
use crate::keys;

/// How long to wait before the store is asked again after it failed.
const RETRY: Duration = Duration::from_millis(250);

impl Cache {
    /// Fills the cache and starts to follow the store; returns once it is filled. The task ends when `stop`'s
    /// other end is dropped.
    pub async fn start(self: &Arc<Self>, stop: oneshot::Receiver<()>) -> Result<(), knarr_store::Error> {
        let watch = self.fill().await?;
        let cache = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = cache.follow(watch) => {}
                _ = stop => {}
            }
            cache.in_step.store(false, Ordering::Release);
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
        // Objects of custom kinds are understood once their definitions are.
        let mut custom: HashMap<&str, Vec<(&str, &KeyValue)>> = HashMap::new();
        let leases = keys::MASTER_LEASES.as_bytes();
        for kv in found.kvs.iter().filter(|kv| !kv.key.starts_with(leases)) {
            let Some((group_plural, local)) = keys::split(&kv.key) else {
                warn!(key = %kv.key.escape_ascii(), "passed over a key that is no object's");
                continue;
            };
            if !self.kinds.contains_key(group_plural) {
                custom.entry(group_plural).or_default().push((local, kv));
            } else if let Some(taken_in) = self.read(group_plural, kv) {
                let objects = by_kind.entry(group_plural).or_default();
                objects.insert(local.to_string(), taken_in.object);
            }
        }
        let definitions = by_kind
            .get(DEFINITIONS)
            .map(|d| d.values().cloned().collect::<Vec<_>>());
        self.redefine(&definitions.unwrap_or_default(), found.revision);
        for (group_plural, cache) in &self.kinds {
            let objects = by_kind.remove(group_plural.as_str()).unwrap_or_default();
            cache.load(objects, found.revision);
        }
        for (group_plural, kvs) in custom {
            let read = kvs.into_iter().filter_map(|(local, kv)| {
                let taken_in = self.read(group_plural, kv)?;
                Some((local.to_string(), taken_in.object))
            });
            let objects = read.collect();
            if let Some(cache) = self.held(group_plural) {
                cache.load(objects, found.revision);
            }
        }
        self.advance(found.revision);
        self.in_step.store(true, Ordering::Release);
        Ok(watch)
    }

    fn read(&self, group_plural: &str, kv: &KeyValue) -> Option<TakenIn> {
        let Some(cache) = self.held(group_plural) else {
            warn!(key = %kv.key.escape_ascii(), "passed over an object of an unknown kind");
            return None;
        };
        match self.materialize(&cache.kind, kv) {
            Ok(taken_in) => Some(taken_in),
            Err(e) => {
                error!(key = %kv.key.escape_ascii(), "passed over an object that cannot be read: {e}");
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
                    warn!("the store's watch ended: {e}");
                    watch = self.resume().await;
                }
                None => match self.store.revision().await {
                    Err(knarr_store::Error::Closed) => return,
                    _ => watch = self.resume().await,
                },
            }
        }
    }

    /// A new watch behind what has been seen or, where that history is gone, a fresh start.
    async fn resume(&self) -> Watch {
        loop {
            let from = self.revision() + 1;
            let again = match self.store.watch(KeyRange::prefix(keys::ROOT), from).await {
                Err(knarr_store::Error::Compacted { .. }) => {
                    info!(from, "starting over: the store's history is gone");
                    self.fill().await
                }
                other => other,
            };
            match again {
                Ok(watch) => return watch,
                Err(e) => {
                    warn!("cannot follow the store: {}", store_error(e));
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
            let Some(cache) = self.held(group_plural) else {
                continue;
            };
            let is_definition = group_plural == DEFINITIONS;
            if event.deleted {
                cache.remove(local, event.kv.mod_revision);
                if is_definition {
                    self.undefine(local);
                }
            } else if let Some(taken_in) = self.read(group_plural, &event.kv) {
                cache.put(local, taken_in.object.clone());
                if is_definition {
                    self.define(&taken_in.object, event.kv.mod_revision);
                }
                taken_in.tell();
            } else {
                // Better gone than stale: what cannot be read is not there.
                cache.remove(local, event.kv.mod_revision);
            }
        }
        self.advance(newest);
    }
}
