//! Revisioned keys with etcd's semantics: one global revision, compare-and-swap on mod revisions, multi-key
//! transactions, ranges at a revision, watches from a revision, compaction.
//!
//! [`Store`] is the contract; the engines behind it pass one test suite. An acknowledged write is durable
//! (in the embedded engine after one fsync that many writers share). No engine knows what is in a value.
//!
//! # Where things are
//!
//! Each engine: `memory.rs`, `embedded/`, `etcd.rs`. In the embedded one `writer.rs` makes groups durable and decides what happens when that fails (a full
//! disk), `disk.rs` has all calls of the operating system, `load.rs` the recovery. `hub.rs` publishes to watchers; `index.rs` has the versions of keys.

mod embedded;
mod etcd;
mod hub;
mod index;
mod memory;
mod progress;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

use self::progress::Progress;
pub use etcd::{Credentials, EtcdConfig, Tls};

/// The store's clock: counts up by one with every transaction that changes something. The first write is 2
/// (as in etcd, whose empty store is at 1).
pub type Revision = u64;

/// A key with its value and history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    pub key: Bytes,
    pub value: Bytes,
    /// Revision of the write that created the key (since its last deletion).
    pub create_revision: Revision,
    /// Revision of its last write.
    pub mod_revision: Revision,
    /// Writes since its creation, 1 for the first.
    pub version: u64,
}

/// A range read.
#[derive(Clone, Debug, Default)]
pub struct Range {
    pub keys: KeyRange,
    /// Read as of this revision; `None` reads the newest.
    pub at: Option<Revision>,
    /// At most so many pairs, in key order; 0 is no limit.
    pub limit: usize,
    /// Only count.
    pub count_only: bool,
}

/// Which keys: `[start, end)` in byte order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    pub start: Bytes,
    /// `None`: just the one key `start`. An empty end: up to the last key.
    pub end: Option<Bytes>,
}

impl KeyRange {
    pub fn one(key: impl Into<Bytes>) -> Self {
        KeyRange {
            start: key.into(),
            end: None,
        }
    }

    /// All keys that begin with `prefix`; all keys for an empty prefix.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let start = prefix.into();
        let mut end = start.to_vec();
        while end.last() == Some(&0xff) {
            end.pop();
        }
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        KeyRange {
            start,
            end: Some(end.into()),
        }
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        match &self.end {
            None => key == self.start,
            Some(end) => key >= &self.start[..] && (end.is_empty() || key < &end[..]),
        }
    }
}

/// What a range read found.
#[derive(Clone, Debug, Default)]
pub struct RangeResult {
    /// The store's revision when it answered.
    pub revision: Revision,
    pub kvs: Vec<KeyValue>,
    /// Whether the limit cut the answer short.
    pub more: bool,
    /// How many keys are in the range, whatever the limit.
    pub count: usize,
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The key's last write is this revision; 0: the key does not exist.
    ModRevision { key: Bytes, is: Revision },
}

/// A write of a transaction. A key may be written once in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Put { key: Bytes, value: Bytes },
    Delete { key: Bytes },
}

/// All of `ops` if all of `compares` hold, else nothing.
#[derive(Clone, Debug, Default)]
pub struct Txn {
    pub compares: Vec<Compare>,
    pub ops: Vec<Op>,
}

/// The largest transaction: twice what the API server lets into a request body, and well below what a frame of the
/// log may be.
pub const MAX_TXN_BYTES: usize = 6 << 20;

impl Txn {
    /// Rejects what no engine accepts, whatever the store contains.
    fn check(&self) -> Result<(), Error> {
        let mut written: Vec<&[u8]> = self.ops.iter().map(|op| &op.key()[..]).collect();
        written.sort_unstable();
        if written.first().is_some_and(|key| key.is_empty()) {
            return Err(Error::BadTxn("a key is empty".into()));
        }
        if let Some(twice) = written.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::BadTxn(format!(
                "key {} is written twice",
                twice[0].escape_ascii()
            )));
        }
        let bytes: usize = self.ops.iter().map(Op::bytes).sum();
        if bytes > MAX_TXN_BYTES {
            return Err(Error::BadTxn(format!(
                "it writes {bytes} bytes, the limit is {MAX_TXN_BYTES}"
            )));
        }
        Ok(())
    }
}

impl Op {
    fn key(&self) -> &Bytes {
        match self {
            Op::Put { key, .. } | Op::Delete { key } => key,
        }
    }

    /// About its size in a log.
    fn bytes(&self) -> usize {
        const LENGTHS: usize = 16;
        LENGTHS
            + match self {
                Op::Put { key, value } => key.len() + value.len(),
                Op::Delete { key } => key.len(),
            }
    }
}

/// What became of a transaction.
#[derive(Clone, Debug)]
pub enum TxnResult {
    /// Written, durably, at this revision (the current one if it changed nothing).
    Committed { revision: Revision },
    /// A comparison failed. For each compare in order: the key as it is now, `None` if absent.
    Failed {
        revision: Revision,
        current: Vec<Option<KeyValue>>,
    },
}

impl TxnResult {
    /// The revision at which it was committed.
    fn committed(&self) -> Option<Revision> {
        match self {
            TxnResult::Committed { revision } => Some(*revision),
            TxnResult::Failed { .. } => None,
        }
    }
}

/// What became of a transaction and of the deletion after it ([`Store::txn_and_delete`]).
#[derive(Clone, Debug)]
pub struct TxnAndDelete {
    pub txn: TxnResult,
    /// The revision of the deletion; `None` if it is not known to be made: the transaction failed, the key was written after it, or the store
    /// did not answer.
    pub deleted: Option<Revision>,
}

/// The transaction that deletes `key` if its last write is `revision`, and if the `conditions` on other keys hold.
fn deletion(mut conditions: Vec<Compare>, key: Bytes, revision: Revision) -> Txn {
    conditions.retain(|Compare::ModRevision { key: of, .. }| *of != key);
    conditions.push(Compare::ModRevision {
        key: key.clone(),
        is: revision,
    });
    Txn {
        compares: conditions,
        ops: vec![Op::Delete { key }],
    }
}

/// One change, as a watch delivers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The pair after the change; for a deletion, key and `mod_revision` of the deletion, and an empty value.
    pub kv: KeyValue,
    pub deleted: bool,
}

/// What a watch yields.
#[derive(Clone, Debug)]
pub enum WatchItem {
    /// All changes of one or more whole transactions, in order; never half of a transaction.
    Events(Arc<Vec<Event>>),
    /// Nothing in the range changed up to and including this revision.
    Progress(Revision),
}

/// A running watch. Dropping it ends it.
pub struct Watch {
    items: mpsc::Receiver<Result<WatchItem, Error>>,
    /// The revision up to which the engine has notified all its watchers.
    progress: Arc<Progress>,
    /// Set once everything that happened before the watch began is in `items`.
    joined: Arc<AtomicBool>,
    delivered: Revision,
}

impl Watch {
    /// A watch whose items come from an intermediary between a store and its reader: `items`, errors and progress too,
    /// in order.
    pub fn relayed(items: mpsc::Receiver<Result<WatchItem, Error>>, from: Revision) -> Self {
        Watch::new(
            items,
            Progress::new(0),
            Arc::new(AtomicBool::new(true)),
            from.saturating_sub(1),
        )
    }

    fn new(
        items: mpsc::Receiver<Result<WatchItem, Error>>,
        progress: Arc<Progress>,
        joined: Arc<AtomicBool>,
        delivered: Revision,
    ) -> Self {
        Watch {
            items,
            progress,
            joined,
            delivered,
        }
    }

    /// The next item; `None` once the store is closed. After an error comes nothing more. May be dropped while
    /// it waits, nothing is lost by that.
    ///
    /// Progress is reported whenever no event is left, so a reader that waits for a revision reaches it without a write
    /// in its range.
    pub async fn next(&mut self) -> Option<Result<WatchItem, Error>> {
        loop {
            // Read in this order: what was queued before `progress` moved is then seen by try_recv.
            let joined = self.joined.load(Ordering::Acquire);
            let progress = self.progress.revision();
            let item = match self.items.try_recv() {
                Ok(item) => Some(item),
                Err(mpsc::error::TryRecvError::Disconnected) => return None,
                Err(mpsc::error::TryRecvError::Empty) if joined && progress > self.delivered => {
                    Some(Ok(WatchItem::Progress(progress)))
                }
                Err(mpsc::error::TryRecvError::Empty) => tokio::select! {
                    biased;
                    item = self.items.recv() => Some(item?),
                    () = self.progress.moves_from(progress) => None,
                },
            };
            match &item {
                Some(Ok(WatchItem::Events(events))) => {
                    self.delivered = events
                        .last()
                        .map_or(self.delivered, |event| event.kv.mod_revision);
                }
                Some(Ok(WatchItem::Progress(revision))) => self.delivered = *revision,
                Some(Err(_)) => {}
                None => continue,
            }
            return item;
        }
    }
}

/// Why the store rejected a request.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("revision {requested} has been compacted; the oldest kept is {oldest}")]
    Compacted { requested: Revision, oldest: Revision },
    #[error("revision {requested} is in the future; the newest is {newest}")]
    FutureRevision { requested: Revision, newest: Revision },
    #[error("a watcher fell too far behind and was dropped")]
    Lagged,
    #[error("the transaction is malformed: {0}")]
    BadTxn(String),
    #[error("the disk is full: {0}")]
    NoSpace(String),
    #[error("another process holds the data directory {path}")]
    Locked { path: String },
    #[error("the data in {path} cannot be read: {why}")]
    Corrupt { path: String, why: String },
    #[error("the store cannot be reached: {0}")]
    Unavailable(String),
    #[error("the store is closed")]
    Closed,
    #[error("storage failed: {0}")]
    Io(Arc<std::io::Error>),
}

/// The contract. Linearizable: what a call returned is seen by every later call.
///
/// # Examples
///
/// A key is created only where it is absent, and a watch from a revision yields the change of that revision.
///
/// ```
/// use knarr_store::{Compare, Config, KeyRange, Op, Txn, TxnResult, WatchItem};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), knarr_store::Error> {
/// let store = knarr_store::open(Config::Memory).await?;
/// let create = Txn {
///     compares: vec![Compare::ModRevision { key: "/pods/a/web".into(), is: 0 }],
///     ops: vec![Op::Put { key: "/pods/a/web".into(), value: "v1".into() }],
/// };
/// // The first write of an empty store has revision 2.
/// assert!(matches!(store.txn(create.clone()).await?, TxnResult::Committed { revision: 2 }));
/// assert!(matches!(store.txn(create).await?, TxnResult::Failed { .. }));
///
/// let mut watch = store.watch(KeyRange::prefix("/pods/"), 2).await?;
/// let Some(Ok(WatchItem::Events(events))) = watch.next().await else {
///     panic!("the store is closed");
/// };
/// assert_eq!(events[0].kv.value, "v1");
/// assert!(!events[0].deleted);
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait Store: Send + Sync + 'static {
    async fn range(&self, range: Range) -> Result<RangeResult, Error>;

    /// Durable when it returns `Committed`. On `Err` of the kinds `Io`, `NoSpace` and `Closed` nothing was
    /// written; on `Unavailable` it is not known.
    async fn txn(&self, txn: Txn) -> Result<TxnResult, Error>;

    /// Commits `txn`, which writes `key`, and then deletes the key, on the same conditions on other keys: two revisions, and two changes
    /// for watches. Where it [is one write](Store::deletes_in_one_write) no crash and no other write comes in between. An error is
    /// about `txn`, as of [`Store::txn`].
    async fn txn_and_delete(&self, txn: Txn, key: Bytes) -> Result<TxnAndDelete, Error> {
        let conditions = txn.compares.clone();
        let txn = self.txn(txn).await?;
        let deleted = match txn {
            TxnResult::Committed { revision } => self.txn(deletion(conditions, key, revision)).await.ok(),
            TxnResult::Failed { .. } => None,
        };
        let deleted = deleted.as_ref().and_then(TxnResult::committed);
        Ok(TxnAndDelete { txn, deleted })
    }

    /// Whether [`Store::txn_and_delete`] is one write, and so costs less than two transactions.
    fn deletes_in_one_write(&self) -> bool {
        false
    }

    /// Every change in `keys` from revision `from` on (inclusive), each once, in order. `from` = 0 starts with the next
    /// change; a revision not yet reached is awaited. `Compacted` if that history was removed.
    async fn watch(&self, keys: KeyRange, from: Revision) -> Result<Watch, Error>;

    /// Compacts history before `revision`; reads and watches from there on stay possible. Nothing happens if that was
    /// compacted already.
    async fn compact(&self, revision: Revision) -> Result<(), Error>;

    /// The newest revision.
    async fn revision(&self) -> Result<Revision, Error>;

    /// How many bytes its files have; 0 if there are none.
    async fn size_bytes(&self) -> Result<u64, Error> {
        Ok(0)
    }

    /// Whether other processes may write to it: then there may be changes that no watch has delivered yet.
    fn is_shared(&self) -> bool {
        false
    }
}

/// Which engine, and where.
#[derive(Clone, Debug)]
pub enum Config {
    /// Lost with the process.
    Memory,
    /// Files in a directory, which is made if it is missing and held by one process at a time.
    Embedded {
        dir: PathBuf,
    },
    Etcd(EtcdConfig),
}

/// Opens a store. Needs a tokio runtime.
///
/// # Examples
///
/// The embedded store has what was acknowledged when it is opened again.
///
/// ```
/// use knarr_store::{Config, Op, Txn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let dir = tempfile::tempdir()?;
/// let config = Config::Embedded { dir: dir.path().join("store") };
///
/// let store = knarr_store::open(config.clone()).await?;
/// let put = Op::Put { key: "/pods/a/web".into(), value: "v1".into() };
/// store.txn(Txn { ops: vec![put], ..Txn::default() }).await?;
/// drop(store);
///
/// let store = knarr_store::open(config).await?;
/// assert_eq!(store.revision().await?, 2);
/// # Ok(())
/// # }
/// ```
pub async fn open(config: Config) -> Result<Arc<dyn Store>, Error> {
    Ok(match config {
        Config::Memory => Arc::new(memory::MemoryStore::new()),
        Config::Embedded { dir } => Arc::new(embedded::EmbeddedStore::open(dir).await?),
        Config::Etcd(config) => Arc::new(etcd::EtcdStore::connect(config).await?),
    })
}
