//! The watch cache: every object in memory, kept up by one watch of the store.
//!
//! - Reads and watches are served from here, never from the store (but for lists at an old revision). Where the store is
//!   shared with other servers, reads first wait until everything that is there is here.
//! - A write is answered after the cache has taken it in, so everybody reads their own writes.
//! - A write of this process is not parsed again: the writer deposits its typed value, and the feed picks it
//!   up when the store's watch tells the same bytes. Servers of one process may share what they have read ([`Decoded`]).
//! - An object that cannot be decoded is reported and passed over.

pub mod change;
mod custom;
mod decoded;
mod feed;
pub mod kind;
mod term;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use knarr_api::emulation::Emulation;
use knarr_api::{AnyObject, Error, Kind, Object, registry};
use knarr_client::Term;
use knarr_store::{Compare, KeyValue, Op, Store, Txn, TxnResult};
use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::encryption::AtRest;
use crate::keys;
use crate::metrics::Metrics;
use custom::Custom;
pub use custom::Held;
pub use decoded::Decoded;
pub(crate) use kind::KindCache;

/// See the module.
pub struct Cache {
    store: Arc<dyn Store>,
    /// By `<group>/<plural>` of the stored kind.
    kinds: HashMap<String, KindCache>,
    custom: RwLock<Custom>,
    /// Everything up to here has been taken in.
    revision: AtomicU64,
    in_step: AtomicBool,
    waiters: Mutex<BTreeMap<u64, Vec<oneshot::Sender<()>>>>,
    deposits: Mutex<HashMap<Bytes, Vec<Deposit>>>,
    deposit_ids: AtomicU64,
    at_rest: Option<AtRest>,
    metrics: Arc<Metrics>,
    /// What this server has in common with others of its process.
    decoded: Option<Arc<Decoded>>,
    /// Keys whose values would be encrypted otherwise today; writing them again does it.
    stale: Mutex<HashSet<Bytes>>,
}

/// A write on its way: what the feed need not parse.
struct Deposit {
    id: u64,
    value: Bytes,
    typed: Option<Box<dyn AnyObject>>,
    taken_in: oneshot::Sender<Arc<Object>>,
}

/// What became of a conditional write.
pub enum Written<T> {
    Done(T),
    /// Somebody else was faster; the cache knows by now.
    Conflict,
}

impl Cache {
    pub fn new(store: Arc<dyn Store>) -> Arc<Self> {
        Self::with(store, None, Arc::default(), None)
    }

    /// With values encrypted in the store, and beside other servers of this process.
    pub(crate) fn with(
        store: Arc<dyn Store>,
        at_rest: Option<AtRest>,
        metrics: Arc<Metrics>,
        decoded: Option<Arc<Decoded>>,
    ) -> Arc<Self> {
        let kinds = registry::ALL
            .iter()
            .filter(|k| k.stored_as().is_none() && k.is_stored())
            .map(|k| (group_plural(k), KindCache::new(k)));
        Arc::new(Cache {
            store,
            kinds: kinds.collect(),
            custom: RwLock::default(),
            revision: AtomicU64::new(0),
            in_step: AtomicBool::new(false),
            waiters: Mutex::default(),
            deposits: Mutex::default(),
            deposit_ids: AtomicU64::new(0),
            at_rest,
            metrics,
            decoded,
            stale: Mutex::default(),
        })
    }

    /// The cache of the kind that `kind` is stored as. 404 for kinds that are not stored at all.
    pub fn of(&self, kind: &Kind) -> Result<Held<'_>, Error> {
        self.held(&group_plural(&kind.stored()))
            .ok_or_else(|| Error::not_found(kind.about("")))
    }

    pub fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.of(kind).ok()?.get(&keys::local(namespace, name))
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Everything up to this revision is in here.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// Serves what an older version serves: before anything is served.
    pub(crate) fn emulate(&self, emulation: Emulation) {
        *self.custom.write() = Custom::emulating(emulation);
    }

    /// Whether it has been filled and its feed runs.
    pub fn in_step(&self) -> bool {
        self.in_step.load(Ordering::Acquire)
    }

    /// Lets go of typed values that were asked for a while ago, see [`Object::slim`].
    pub fn slim(&self) {
        self.kinds.values().for_each(KindCache::slim);
        self.custom_caches().iter().for_each(|cache| cache.slim());
    }

    pub fn objects(&self) -> impl Iterator<Item = (Kind, usize)> {
        let custom = self.custom_caches().into_iter();
        let fixed = self.kinds.values().map(|k| (k.kind.clone(), k.count()));
        fixed.chain(custom.map(|k| (k.kind.clone(), k.count())))
    }

    /// Returns once everything up to `revision` has been taken in.
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

    /// Forgets what happened so far: watches and lists of the past have to begin anew.
    pub async fn forget_history(&self) -> Result<(), knarr_store::Error> {
        let now = self.revision();
        for kind in self.kinds.values() {
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

    /// Writes `typed` if the key's last write is `seen` (0: if it does not exist), and only while `term` lasts.
    pub async fn put(
        &self,
        kind: &Kind,
        mut typed: Box<dyn AnyObject>,
        seen: u64,
        term: Option<&Term>,
    ) -> Result<Written<Arc<Object>>, Error> {
        let meta = typed.metadata();
        let key = keys::key(
            kind,
            meta.namespace.as_deref().unwrap_or(""),
            meta.name.as_deref().unwrap_or(""),
        );
        let mut value = Bytes::from(Object::encode_for_store(&mut *typed));
        if let Some(AtRest { encryption, entropy }) = &self.at_rest {
            value = encryption
                .seal((kind.group(), kind.plural()), &key, value, &**entropy)
                .map_err(|e| Error::internal(format!("{}: {e}", kind.plural())))?;
        }
        // Another server may hear of it before this one.
        let typed = match &self.decoded {
            Some(decoded) if self.at_rest.is_none() => {
                decoded.offer(value.clone(), typed);
                None
            }
            _ => Some(typed),
        };
        let (taken_in, written) = oneshot::channel();
        let id = self.deposit_ids.fetch_add(1, Ordering::Relaxed);
        let withdraw = Withdraw {
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
                taken_in,
            });
        let txn = Txn {
            compares: vec![Compare::ModRevision {
                key: key.clone(),
                is: seen,
            }],
            ops: vec![Op::Put { key, value }],
        };
        let begun = Instant::now();
        let result = self.commit(txn, term).await?;
        let operation = if seen == 0 { "create" } else { "update" };
        self.metrics.store_took(operation, kind.plural(), begun.elapsed());
        match result {
            TxnResult::Committed { .. } => written
                .await
                .map(Written::Done)
                .map_err(|_| Error::unavailable("the watch cache is starting over")),
            TxnResult::Failed { revision, .. } => {
                drop(withdraw);
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
        let result = self.commit(txn, term).await?;
        self.metrics
            .store_took("delete", object.kind().plural(), begun.elapsed());
        let (TxnResult::Committed { revision } | TxnResult::Failed { revision, .. }) = &result;
        self.wait_for(*revision).await;
        Ok(match result {
            TxnResult::Committed { revision } => Written::Done(revision),
            TxnResult::Failed { .. } => Written::Conflict,
        })
    }

    pub(crate) fn count_watched(&self, kind: &Kind, events: usize) {
        self.metrics
            .watched(kind.group(), kind.version(), kind.kind(), events as u64);
    }

    /// A value as it was before it was encrypted.
    pub(crate) fn opened(&self, kind: &Kind, kv: &KeyValue) -> Result<Bytes, Error> {
        let Some(at_rest) = &self.at_rest else {
            return Ok(kv.value.clone());
        };
        let found = at_rest
            .encryption
            .open((kind.group(), kind.plural()), &kv.key, &kv.value)
            .map_err(Error::internal)?;
        let mut stale = self.stale.lock();
        if found.stale {
            stale.insert(kv.key.clone());
        } else {
            stale.remove(&kv.key);
        }
        Ok(found.value)
    }

    /// Whether the object's value would be encrypted otherwise today.
    pub(crate) fn is_stale(&self, object: &Object) -> bool {
        self.at_rest.is_some() && {
            let key = keys::key(object.kind(), object.namespace(), object.name());
            self.stale.lock().contains(&key)
        }
    }

    /// The typed value of a write of this process, if this is one; else it is decoded.
    /// Whoever waits for it must be told after the cache has it.
    fn materialize(&self, kind: &Kind, kv: &KeyValue) -> Result<TakenIn, Error> {
        let mut told = Vec::new();
        let mut typed = None;
        {
            let mut deposits = self.deposits.lock();
            if let Some(waiting) = deposits.get_mut(&kv.key) {
                // Two writers may have sent the same bytes; only one of them won, but who is not known here.
                for mut deposit in waiting.extract_if(.., |d| d.value == kv.value) {
                    typed = typed.or(deposit.typed.take());
                    told.push(deposit.taken_in);
                }
                if waiting.is_empty() {
                    deposits.remove(&kv.key);
                }
            }
        }
        let value = self.opened(kind, kv)?;
        let kind = &kind_of_stored(kind, &value);
        let of = |typed| Arc::new(Object::from_stored(kind, typed, &value, kv.mod_revision));
        let shared = self.decoded.as_ref();
        let known = shared.and_then(|d| d.find(kind, &value, kv.mod_revision));
        if known.is_none() {
            typed = typed.or_else(|| shared?.take(&value));
        }
        // What was written while the definition changed is read as the definition says now.
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
        Ok(TakenIn { object, told })
    }
}

/// The kind of a value in the store. Objects that a webhook converts are held in the version in which they were written;
/// all others are read as the storage version.
pub(crate) fn kind_of_stored(kind: &Kind, value: &[u8]) -> Kind {
    #[derive(serde::Deserialize)]
    struct Version {
        #[serde(rename = "apiVersion")]
        api_version: String,
    }
    if !kind.is_converted_by_webhook() {
        return kind.clone();
    }
    // A version that the definition does not know any more is read as if it were the storage version.
    let version = serde_json::from_slice::<Version>(value).ok();
    let found = version.and_then(|v| kind.version_of_definition(&v.api_version));
    found.unwrap_or_else(|| kind.clone())
}

fn decode(kind: &Kind, value: &[u8]) -> Result<Box<dyn AnyObject>, Error> {
    let decoded = kind.ops.decode(value);
    Ok(decoded.map_err(|e| Error::internal(e.to_string()))?.object)
}

/// An object out of the store, and the writers who wait for it.
struct TakenIn {
    object: Arc<Object>,
    told: Vec<oneshot::Sender<Arc<Object>>>,
}

impl TakenIn {
    fn tell(self) {
        for writer in self.told {
            // The writer may have given up waiting.
            let _ = writer.send(self.object.clone());
        }
    }
}

/// Takes a deposit back when its write failed or was given up.
struct Withdraw<'a> {
    cache: &'a Cache,
    key: Bytes,
    id: u64,
}

impl Drop for Withdraw<'_> {
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
    let group = if kind.group().is_empty() {
        "core"
    } else {
        kind.group()
    };
    format!("{group}/{}", kind.plural())
}

/// A store's failure as a client sees it.
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
