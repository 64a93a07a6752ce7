//! The default engine: files in a directory, made for many small durable writes and one process.
//!
//! An append-only log, an index of all keys in memory, and a *base*, which replaces all logs before it. Values stay on
//! disk (the page cache is the cache): memory grows with the number of keys and of changes since the last compaction,
//! not with their size. The files' format is in [`mod@format`], recovery after a crash in [`load`].
//!
//! One thread writes. It takes all waiting transactions, checks them one after the other against the index and the
//! earlier ones in the group, appends all of them as one frame, makes that durable with one fsync, and only then
//! publishes it to readers and watchers and acknowledges. So readers never see what a crash could lose, and a write
//! that failed (disk full) leaves nothing behind.
//!
//! # Why not an existing engine
//!
//! Measured with one program for all: 64 writers, 1 KB values, one writer thread that commits what waits
//! (32 a commit) and fsyncs; two cores, virtual disk with an fsync of 0.1 ms, two runs of 4 s each.
//!
//! | | durable writes/s | p50 | p99 | without fsync |
//! |---|---|---|---|---|
//! | redb 4.4 | 21 800, 23 500 | 2.7 ms | 4.3 ms | 66 000, 88 000 |
//! | fjall 3.1 | 80 300, 85 200 | 0.58 ms | 4.2 ms | 134 000, 98 000 |
//! | a log and an index | 139 600, 157 900 | 0.40 ms | 0.85 ms | 249 000, 189 000 |
//!
//! The first two would also need revisions, and so a key for each version and an index over them; the log already is
//! the history. The rest of what it needs is in this directory.
//!
//! The whole engine behind its trait (conditions, revisions, previous values read back, events), in one minute on
//! the same machine while it also compiled: 98 300 and 97 900 durable writes/s, p50 0.61 ms, p99 1.1 ms, where redb
//! did 24 500, fjall 98 100 and the bare log 135 100. Letting groups fill ([`writer`]) came after that and was worth a
//! factor of 1.3 to 4, alternating with the build before it on a busier machine. A store of a million 1 KB values opens in
//! 1.7 s (4 to 5 s with eight other processes on the two cores) and holds about 260 bytes of memory per key;
//! compacting it takes the caller 50 µs. `knarr_bench::store` measures all of this.

mod disk;
mod file;
mod format;
mod load;
mod rewrite;
#[cfg(test)]
mod tests;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::RwLock;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;

use self::disk::Disk;
use self::file::{DataFile, Location};
use self::writer::{Request, Writer};
use crate::hub::{History, Hub};
use crate::index::{Index, Version};
use crate::{
    Error, Event, KeyRange, KeyValue, Range, RangeResult, Revision, Store, Txn, TxnAndDelete, TxnResult,
    Watch,
};

/// Transactions that may wait for the writer before callers wait to hand theirs in.
const QUEUE: usize = 4096;

pub(crate) struct EmbeddedStore {
    shared: Arc<Shared>,
    /// `None` only while the store is being dropped.
    requests: Option<mpsc::Sender<Request>>,
    writer: Option<JoinHandle<()>>,
    /// Last, so that the directory is unlocked when the writer is done.
    _lock: load::DirLock,
}

struct Shared {
    dir: PathBuf,
    state: RwLock<State>,
    hub: Arc<Hub>,
    limits: rewrite::RewriteLimits,
}

type Files = Arc<[Arc<DataFile>]>;

/// What is durable, and where.
struct State {
    index: Index<Location>,
    /// Few: a base, the log, and during a rewrite the next of each.
    files: Files,
    /// About how many bytes of the files are still needed.
    live_bytes: u64,
    ids: u32,
}

/// The size of a version in a base, without key and value.
const VERSION_BYTES: u64 = 34;

fn weight(key: &[u8], version: &Version<Location>) -> u64 {
    VERSION_BYTES + key.len() as u64 + version.value.map_or(0, |location| u64::from(location.len))
}

impl State {
    fn new() -> Self {
        State {
            index: Index::new(),
            files: Arc::new([]),
            live_bytes: 0,
            ids: 0,
        }
    }

    fn next_id(&mut self) -> u32 {
        self.ids += 1;
        self.ids
    }

    fn add(&mut self, file: DataFile) -> Arc<DataFile> {
        let file = Arc::new(file);
        self.files = self.files.iter().chain([&file]).cloned().collect();
        file
    }

    fn insert(&mut self, key: Bytes, version: Version<Location>) {
        self.live_bytes += weight(&key, &version);
        self.index.insert(key, version);
    }

    fn place(&mut self, key: Bytes, version: Version<Location>) {
        self.live_bytes += weight(&key, &version);
        self.index.place(key, version);
    }

    fn write(&mut self, key: Bytes, revision: Revision, value: Option<Location>) {
        let key_bytes = key.clone();
        let version = self.index.write(key, revision, value);
        self.live_bytes += weight(&key_bytes, version);
    }

    fn forget(&mut self, changes: usize) {
        let mut dropped = 0;
        self.index
            .forget(changes, |key, version| dropped += weight(key, version));
        self.live_bytes -= dropped;
    }

    fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len()).sum()
    }
}

/// Reads a version's value; an empty one for a deletion.
fn read_pair(files: &[Arc<DataFile>], key: &Bytes, version: &Version<Location>) -> Result<KeyValue, Error> {
    let value = match version.value {
        None => Bytes::new(),
        Some(location) => match files.iter().find(|file| file.id == location.file) {
            Some(file) => file.read_value(location, key)?,
            None => {
                let why = format!("the file of {} is not open", key.escape_ascii());
                return Err(Error::Corrupt {
                    path: format!("file {}", location.file),
                    why,
                });
            }
        },
    };
    Ok(KeyValue {
        key: key.clone(),
        value,
        create_revision: version.create_revision,
        mod_revision: version.mod_revision,
        version: version.version,
    })
}

#[async_trait]
impl History for Shared {
    async fn changes_since(
        &self,
        keys: &KeyRange,
        from: Revision,
        enough: usize,
    ) -> Result<(Vec<Event>, Revision), Error> {
        let (changes, upto, files) = {
            let state = self.state.read();
            let (changes, upto) = state.index.changes_since(keys, from, enough)?;
            (changes, upto, state.files.clone())
        };
        let read = move || {
            let to_event = changes.iter().map(|change| {
                Ok(Event {
                    kv: read_pair(&files, &change.key, &change.now)?,
                    deleted: change.now.value.is_none(),
                })
            });
            to_event.collect::<Result<Vec<Event>, Error>>()
        };
        Ok((spawn_blocking(read).await.map_err(|_| Error::Closed)??, upto))
    }
}

impl EmbeddedStore {
    pub async fn open(dir: PathBuf) -> Result<Self, Error> {
        EmbeddedStore::open_on(dir, Disk::Real).await
    }

    async fn open_on(dir: PathBuf, disk: Disk) -> Result<Self, Error> {
        spawn_blocking(move || EmbeddedStore::open_blocking(&dir, disk))
            .await
            .map_err(|_| Error::Closed)?
    }

    fn open_blocking(dir: &Path, disk: Disk) -> Result<Self, Error> {
        let lock = load::lock(&disk, dir)?;
        let load::Loaded { state, log } = load::load(dir, &disk)?;
        let revision = state.index.revision();
        tracing::info!(
            dir = %dir.display(), revision, oldest = state.index.oldest(), bytes = state.file_bytes(),
            "opened the store"
        );
        let hub = Hub::new(revision);
        let shared = Arc::new(Shared {
            dir: dir.to_path_buf(),
            state: RwLock::new(state),
            hub,
            limits: rewrite::LIMITS,
        });
        let (requests, receiver) = mpsc::channel(QUEUE);
        let writer = Writer::new(shared.clone(), disk, log, receiver);
        let thread = std::thread::Builder::new().name("knarr-store".into());
        let writer = thread
            .spawn(move || writer.run())
            .map_err(|e| Error::Io(Arc::new(e)))?;
        Ok(EmbeddedStore {
            shared,
            requests: Some(requests),
            writer: Some(writer),
            _lock: lock,
        })
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Request,
    ) -> Result<T, Error> {
        let (answer, answered) = oneshot::channel();
        let requests = self.requests.as_ref().ok_or(Error::Closed)?;
        requests.send(request(answer)).await.map_err(|_| Error::Closed)?;
        // The writer ends without an answer only by a panic, after which the file may hold the write or not.
        answered
            .await
            .unwrap_or_else(|_| Err(Error::Unavailable("the writer thread died".into())))
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the store's writer thread had panicked");
        }
    }
}

#[async_trait]
impl Store for EmbeddedStore {
    async fn range(&self, range: Range) -> Result<RangeResult, Error> {
        let (found, files) = {
            let state = self.shared.state.read();
            (state.index.range(&range)?, state.files.clone())
        };
        let (revision, more, count) = (found.revision, found.more, found.count);
        if found.entries.is_empty() {
            return Ok(RangeResult {
                revision,
                kvs: Vec::new(),
                more,
                count,
            });
        }
        let read = move || {
            let pairs = found
                .entries
                .iter()
                .map(|(key, version)| read_pair(&files, key, version));
            pairs.collect::<Result<Vec<KeyValue>, Error>>()
        };
        let kvs = spawn_blocking(read).await.map_err(|_| Error::Closed)??;
        Ok(RangeResult {
            revision,
            kvs,
            more,
            count,
        })
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResult, Error> {
        txn.check()?;
        self.ask(|answer| Request::Txn(txn, answer)).await
    }

    async fn txn_and_delete(&self, txn: Txn, key: Bytes) -> Result<TxnAndDelete, Error> {
        txn.check()?;
        self.ask(|answer| Request::TxnAndDelete(txn, key, answer)).await
    }

    fn deletes_in_one_write(&self) -> bool {
        true
    }

    async fn watch(&self, keys: KeyRange, from: Revision) -> Result<Watch, Error> {
        let oldest = self.shared.state.read().index.oldest();
        if from != 0 && from < oldest {
            return Err(Error::Compacted {
                requested: from,
                oldest,
            });
        }
        Ok(self.shared.hub.watch(keys, from, || self.shared.clone()))
    }

    async fn compact(&self, revision: Revision) -> Result<(), Error> {
        self.ask(|answer| Request::Compact(revision, answer)).await
    }

    async fn revision(&self) -> Result<Revision, Error> {
        Ok(self.shared.state.read().index.revision())
    }

    async fn size_bytes(&self) -> Result<u64, Error> {
        let files = self.shared.state.read().files.clone();
        Ok(files.iter().map(|file| file.len()).sum())
    }
}
