//! The watch cache: every object in memory, kept up to date by one watch of the store.
//!
//! - Reads and watches are served from the cache, never from the store (but for lists at an old revision). Where the store
//!   is shared with other servers, a read first waits until the cache has caught up with the store.
//! - A write is answered after the cache has applied it, so every client reads its own writes.
//! - A write of this process is not decoded again: the writer deposits its typed value, and the feed takes it when the
//!   store's watch returns the same bytes. Servers of one process may share decoded objects ([`Decoded`]).
//! - An object that cannot be decoded is reported and skipped.

mod built_in;
pub mod change;
mod custom;
mod decoded;
mod definition;
pub(crate) mod event_ttl;
mod feed;
mod index;
pub mod kind;
pub(crate) mod maintenance;
mod samples;
mod term;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use knarr_api::emulation::Emulation;
use knarr_api::{AnyObject, Kind, Object, object};
use knarr_apimachinery::Error;
use knarr_client::Term;
use knarr_store::{Compare, Op, Store, Txn, TxnResult};
use parking_lot::{Mutex, RwLock};
use prometheus::IntCounter;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::encryption::AtRest;
use crate::keys::{self, group_name};
use crate::metrics::Metrics;
use built_in::BuiltInCaches;
use custom::CustomKinds;
pub use custom::KindCacheRef;
pub use decoded::Decoded;
pub(crate) use kind::KindCache;

/// The watch cache. See the module.
pub struct Cache {
    store: Arc<dyn Store>,
    built_in_kinds: BuiltInCaches,
    custom: RwLock<CustomKinds>,
    /// Everything up to this revision has been applied.
    revision: AtomicU64,
    is_synced: AtomicBool,
    waiters: Mutex<BTreeMap<u64, Vec<oneshot::Sender<()>>>>,
    deposits: Mutex<BTreeMap<Bytes, Vec<Deposit>>>,
    deposit_ids: AtomicU64,
    at_rest: Option<AtRest>,
    metrics: Arc<Metrics>,
    /// The decoded objects that this server shares with others of its process.
    decoded: Option<Arc<Decoded>>,
    /// Keys whose values are encrypted with a key or provider that is no longer the first; writing them again changes that.
    stale: Mutex<HashSet<Bytes>>,
}

/// A write in flight, which the feed need not decode.
struct Deposit {
    id: u64,
    value: Bytes,
    typed: Option<Box<dyn AnyObject>>,
    materialized: oneshot::Sender<Arc<Object>>,
}

/// How often a write without a resourceVersion is tried again when the object is written in between.
pub(crate) const WRITE_ATTEMPTS: usize = 100;

/// The message of the error (409) for a write whose object was written in between.
pub(crate) const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// The result of a conditional write.
pub enum Written<T> {
    Done(T),
    /// The object was written in between; the cache has that write already.
    Conflict,
}

impl Cache {
    pub fn new(store: Arc<dyn Store>) -> Arc<Self> {
        Self::with(store, None, Arc::default(), None)
    }

    /// With encryption at rest, and decoded objects shared with other servers of this process.
    pub(crate) fn with(
        store: Arc<dyn Store>,
        at_rest: Option<AtRest>,
        metrics: Arc<Metrics>,
        decoded: Option<Arc<Decoded>>,
    ) -> Arc<Self> {
        Arc::new(Cache {
            store,
            built_in_kinds: BuiltInCaches::default(),
            custom: RwLock::default(),
            revision: AtomicU64::new(0),
            is_synced: AtomicBool::new(false),
            waiters: Mutex::default(),
            deposits: Mutex::default(),
            deposit_ids: AtomicU64::new(0),
            at_rest,
            metrics,
            decoded,
            stale: Mutex::default(),
        })
    }

    /// The cache of the kind as which `kind` is stored. 404 for kinds that are not stored at all.
    pub fn of(&self, kind: &Kind) -> Result<KindCacheRef<'_>, Error> {
        if let Some(cache) = self.built_in_kinds.of(kind) {
            return Ok(KindCacheRef::BuiltIn(cache));
        }
        let stored = kind.stored();
        self.built_in(group_name(&stored), stored.plural())
            .map(KindCacheRef::BuiltIn)
            .or_else(|| {
                let custom = self.custom_cache(&group_plural(&stored));
                custom.map(KindCacheRef::Custom)
            })
            .ok_or_else(|| Error::not_found(kind.resource_ref("")))
    }

    fn built_in(&self, group: &str, plural: &str) -> Option<&KindCache> {
        self.built_in_kinds.named(group, plural)
    }

    fn built_in_caches(&self) -> impl Iterator<Item = &KindCache> {
        self.built_in_kinds.all()
    }

    pub fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.of(kind).ok()?.get(&keys::local(namespace, name))
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Everything up to this revision has been applied.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// Serves the kinds of an emulated version. To be called before anything is served.
    pub(crate) fn emulate(&self, emulation: Emulation) {
        *self.custom.write() = CustomKinds::emulating(emulation);
    }

    /// Whether the cache has been filled and its feed runs.
    pub fn is_synced(&self) -> bool {
        self.is_synced.load(Ordering::Acquire)
    }

    /// Drops typed values that were decoded a while ago, see [`Object::slim`].
    pub fn slim(&self) {
        self.built_in_caches().for_each(KindCache::slim);
        self.custom_caches().iter().for_each(|cache| cache.slim());
    }

    /// Drops the changes up to `revision` that no watch needs to resume, see [`KindCache::forget_changes`].
    pub(crate) fn forget_changes(&self, revision: u64) {
        self.built_in_caches()
            .for_each(|cache| cache.forget_changes(revision));
        self.custom_caches()
            .iter()
            .for_each(|cache| cache.forget_changes(revision));
    }

    /// Returns once everything up to `revision` has been applied.
    pub async fn wait_for(&self, revision: u64) {
        let receiver = {
            let mut waiters = self.waiters.lock();
            if self.revision() >= revision {
                return;
            }
            let (sender, receiver) = oneshot::channel();
            waiters.entry(revision).or_default().push(sender);
            receiver
        };
        // The sender is dropped only together with the cache.
        let _ = receiver.await;
    }

    /// Drops the history up to now: watches and lists of earlier revisions get 410.
    pub async fn forget_history(&self) -> Result<(), knarr_store::Error> {
        let now = self.revision();
        for kind in self.built_in_caches() {
            kind.forget_history(now);
        }
        for kind in self.custom_caches() {
            kind.forget_history(now);
        }
        self.store.compact(now).await
    }

    fn advance(&self, revision: u64) {
        let mut waiters = self.waiters.lock();
        if revision > self.revision() {
            self.revision.store(revision, Ordering::Release);
        }
        let later = waiters.split_off(&(revision + 1));
        for sender in std::mem::replace(&mut *waiters, later).into_values().flatten() {
            let _ = sender.send(());
        }
    }

    /// Writes `typed` if the key's last write is `expected_revision` (0: if it does not exist), and only while `term` lasts. `encoding` is
    /// `typed`'s, if the caller has it already ([`Object::encode_for_store`]): it is what is stored.
    pub async fn put(
        &self,
        kind: &Kind,
        typed: Box<dyn AnyObject>,
        encoding: Option<Vec<u8>>,
        expected_revision: u64,
        term: Option<&Term>,
    ) -> Result<Written<Arc<Object>>, Error> {
        let written = self.write(kind, typed, encoding, expected_revision, false, term);
        Ok(match written.await? {
            Written::Done((object, _)) => Written::Done(object),
            Written::Conflict => Written::Conflict,
        })
    }

    /// Writes `typed` over the object of `expected_revision` as [`Cache::put`] does, and deletes it: in one write where the store can do so.
    /// With the object as it was written comes the revision of the deletion; `None` if it may not be deleted: another write came in between.
    pub(crate) async fn put_and_delete(
        &self,
        kind: &Kind,
        typed: Box<dyn AnyObject>,
        expected_revision: u64,
        term: Option<&Term>,
    ) -> Result<Written<(Arc<Object>, Option<u64>)>, Error> {
        self.write(kind, typed, None, expected_revision, true, term).await
    }

    /// As [`Cache::put`]; an object that is not created is deleted after the write if `then_deletes`.
    async fn write(
        &self,
        kind: &Kind,
        mut typed: Box<dyn AnyObject>,
        encoding: Option<Vec<u8>>,
        expected_revision: u64,
        then_deletes: bool,
        term: Option<&Term>,
    ) -> Result<Written<(Arc<Object>, Option<u64>)>, Error> {
        let meta = typed.metadata();
        let key = keys::key(
            kind,
            meta.namespace.as_deref().unwrap_or(""),
            meta.name.as_deref().unwrap_or(""),
        );
        let encoding = encoding.unwrap_or_else(|| Object::encode_for_store(&mut *typed));
        let mut value = object::kept(encoding);
        if let Some(AtRest { encryption, entropy }) = &self.at_rest {
            value = encryption
                .seal((kind.group(), kind.plural()), &key, value, &**entropy)
                .map_err(|e| Error::internal(format!("{}: {e}", kind.plural())))?;
        }
        // Another server may get the write from the store before this one.
        let typed = match &self.decoded {
            Some(decoded) if self.at_rest.is_none() => {
                decoded.offer(value.clone(), typed);
                None
            }
            _ => Some(typed),
        };
        let (materialized, mut written) = oneshot::channel();
        let id = self.deposit_ids.fetch_add(1, Ordering::Relaxed);
        let deposit_guard = DepositGuard {
            cache: self,
            key: key.clone(),
            id,
        };
        self.deposits
            .lock()
            .entry(key.clone())
            .or_default()
            .push(Deposit {
                id,
                value: value.clone(),
                typed,
                materialized,
            });
        let txn = Txn {
            compares: vec![Compare::ModRevision {
                key: key.clone(),
                is: expected_revision,
            }],
            ops: vec![Op::Put {
                key: key.clone(),
                value: value.clone(),
            }],
        };
        let begun = Instant::now();
        let (operation, result, deleted) = if expected_revision == 0 {
            ("create", self.commit_creation(kind, txn, term).await?, None)
        } else {
            let deletes = then_deletes.then_some(&key);
            let committed = self.commit(txn, deletes, term).await?;
            ("update", committed.txn, committed.deleted)
        };
        self.metrics.store_took(operation, kind.plural(), begun.elapsed());
        match result {
            TxnResult::Committed { revision } => {
                // The cache may be past the write without having seen it: it was filled from a new list, or the store
                // shows another value than the one that was written. It is committed.
                let materialized = match deleted {
                    // The cache gets the write before the deletion, so that waiting for the deletion is enough.
                    Some(deleted) => {
                        self.wait_for(deleted).await;
                        written.try_recv().ok()
                    }
                    None => tokio::select! {
                        biased;
                        Ok(object) = written => Some(object),
                        () = self.wait_for(revision) => None,
                    },
                };
                let object = match materialized {
                    Some(object) => object,
                    None => self.materialize(kind, &key, &value, revision)?.object,
                };
                Ok(Written::Done((object, deleted)))
            }
            TxnResult::Failed { revision, .. } => {
                drop(deposit_guard);
                self.wait_for(revision).await;
                Ok(Written::Conflict)
            }
        }
    }

    /// Deletes the object if it is still at the revision it carries, and only while `term` lasts. The revision of the
    /// deletion is returned.
    pub async fn delete(&self, object: &Object, term: Option<&Term>) -> Result<Written<u64>, Error> {
        let key = keys::key(object.kind(), object.namespace(), object.name());
        let txn = Txn {
            compares: vec![Compare::ModRevision {
                key: key.clone(),
                is: object.revision(),
            }],
            ops: vec![Op::Delete { key }],
        };
        let begun = Instant::now();
        let result = self.commit(txn, None, term).await?.txn;
        self.metrics
            .store_took("delete", object.kind().plural(), begun.elapsed());
        let (TxnResult::Committed { revision } | TxnResult::Failed { revision, .. }) = &result;
        self.wait_for(*revision).await;
        Ok(match result {
            TxnResult::Committed { revision } => Written::Done(revision),
            TxnResult::Failed { .. } => Written::Conflict,
        })
    }

    /// An object that was deleted at `revision`, at that revision: the one that watchers got, while it is among the last changes.
    pub(crate) fn deleted_at(&self, object: &Object, revision: u64) -> Arc<Object> {
        let cache = self.of(object.kind()).ok();
        let deleted = cache.and_then(|cache| cache.deleted_at(revision));
        deleted
            .filter(|deleted| deleted.kind() == object.kind() && deleted.uid() == object.uid())
            .unwrap_or_else(|| Arc::new(object.at_revision(revision)))
    }

    /// Counts the events that are sent to watchers of a kind.
    pub(crate) fn watch_events(&self, kind: &Kind) -> IntCounter {
        self.metrics
            .watch_events_of(kind.group(), kind.version(), kind.kind())
    }

    /// A value as it was before it was encrypted.
    pub(crate) fn decrypted(&self, kind: &Kind, key: &Bytes, value: &Bytes) -> Result<Bytes, Error> {
        let Some(at_rest) = &self.at_rest else {
            return Ok(value.clone());
        };
        let found = at_rest
            .encryption
            .open((kind.group(), kind.plural()), key, value)
            .map_err(Error::internal)?;
        let mut stale = self.stale.lock();
        if found.stale {
            stale.insert(key.clone());
        } else {
            stale.remove(key);
        }
        Ok(found.value)
    }

    /// Whether the object's value would be encrypted otherwise if it were written now.
    pub(crate) fn is_stale(&self, object: &Object) -> bool {
        self.at_rest.is_some() && {
            let key = keys::key(object.kind(), object.namespace(), object.name());
            self.stale.lock().contains(&key)
        }
    }

    /// Decodes a value of the store, or takes the typed value if this process wrote it.
    /// The writers that wait for it must be notified after the cache has it.
    fn materialize(
        &self,
        kind: &Kind,
        key: &Bytes,
        stored: &Bytes,
        revision: u64,
    ) -> Result<Materialized, Error> {
        let mut waiters = Vec::new();
        let mut typed = None;
        {
            let mut deposits = self.deposits.lock();
            if let Some(waiting) = deposits.get_mut(key) {
                // Two writers may have sent the same bytes; only one of them succeeded, and which one is not known here.
                for mut deposit in waiting.extract_if(.., |d| d.value == *stored) {
                    typed = typed.or(deposit.typed.take());
                    waiters.push(deposit.materialized);
                }
                if waiting.is_empty() {
                    deposits.remove(key);
                }
            }
        }
        let value = self.decrypted(kind, key, stored)?;
        let kind = &kind_of_stored(kind, &value);
        let of = |typed| Arc::new(Object::from_stored(kind, typed, &value, revision));
        let shared = self.decoded.as_ref();
        let known = shared.and_then(|d| d.find(kind, &value, revision));
        if known.is_none() {
            typed = typed.or_else(|| shared?.take(&value));
        }
        // An object that was written while its definition changed is decoded by the new definition.
        let own = |typed: &dyn AnyObject| kind.ops.custom().is_none_or(|ops| ops.is_own(typed));
        let typed = typed.filter(|typed| own(&**typed));
        let object = match (known, typed) {
            (Some(known), _) => known,
            (None, Some(typed)) => {
                let written = of(typed);
                shared.inspect(|d| d.keep_written(written.clone()));
                written
            }
            (None, None) => {
                let read = of(decode(kind, &value)?);
                shared.inspect(|d| d.keep(read.clone()));
                read
            }
        };
        Ok(Materialized { object, waiters })
    }
}

/// The kind of a value in the store. Objects that a webhook converts are decoded in the version in which they were written;
/// all others in the storage version.
pub(crate) fn kind_of_stored(kind: &Kind, value: &[u8]) -> Kind {
    #[derive(serde::Deserialize)]
    struct Version {
        #[serde(rename = "apiVersion")]
        api_version: String,
    }
    if !kind.is_converted_by_webhook() {
        return kind.clone();
    }
    // A version that the definition does not have any more is decoded as the storage version.
    let version = serde_json::from_slice::<Version>(value).ok();
    let found = version.and_then(|v| kind.version_of_definition(&v.api_version));
    found.unwrap_or_else(|| kind.clone())
}

fn decode(kind: &Kind, value: &[u8]) -> Result<Box<dyn AnyObject>, Error> {
    let decoded = kind.ops.decode(value);
    Ok(decoded.map_err(|e| Error::internal(e.to_string()))?.object)
}

/// An object from the store, and the writers that wait for it.
struct Materialized {
    object: Arc<Object>,
    waiters: Vec<oneshot::Sender<Arc<Object>>>,
}

impl Materialized {
    fn notify(self) {
        for writer in self.waiters {
            // The writer may have given up waiting.
            let _ = writer.send(self.object.clone());
        }
    }
}

/// Removes a deposit when its write failed or was cancelled.
struct DepositGuard<'a> {
    cache: &'a Cache,
    key: Bytes,
    id: u64,
}

impl Drop for DepositGuard<'_> {
    fn drop(&mut self) {
        let mut deposits = self.cache.deposits.lock();
        if let Some(waiting) = deposits.get_mut(&self.key) {
            waiting.retain(|d| d.id != self.id);
            if waiting.is_empty() {
                deposits.remove(&self.key);
            }
        }
    }
}

fn group_plural(kind: &Kind) -> String {
    format!("{}/{}", group_name(kind), kind.plural())
}

/// A store error as the error that a client gets.
pub fn store_error(error: knarr_store::Error) -> Error {
    use knarr_store::Error as E;
    match error {
        E::Compacted { .. } => Error::expired("The resourceVersion for the provided list is too old."),
        E::FutureRevision { requested, newest } => Error::timeout(format!(
            "Timeout: Too large resource version: {requested}, current: {newest}"
        )),
        E::Unavailable(_) | E::Closed | E::Lagged => Error::unavailable(error.to_string()),
        E::NoSpace(_) | E::Locked { .. } | E::Corrupt { .. } | E::BadTxn(_) | E::Io(_) => {
            Error::internal(error)
        }
    }
}
