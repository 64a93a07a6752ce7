//! The thread that writes: many transactions, one fsync.
//!
//! The file of the log is longer than the log: zeros follow, which the next frames overwrite. An fsync after a write that makes a file longer
//! waits for the file system's journal, too; that of an overwrite waits for the data only. Large groups, of many writers, are
//! appended without zeros: one wait for the journal is little for each of them, and the zeros would be as many bytes again. A log that ends in
//! zeros is complete ([`super::file::Frames`]).

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::disk::Disk;
use super::file::{DataFile, Location, failed, is_full};
use super::format::{Encoder, begin_frame, end_frame};
use super::rewrite::{Plan, Rewrite};
use super::{Shared, read_pair};
use crate::index::Version;
use crate::{
    Compare, Error, Event, KeyValue, MAX_TXN_BYTES, Op, Revision, Txn, TxnAndDelete, TxnResult, deletion,
};

/// A group of transactions is full at this size: about what the disk writes in the time of some fsyncs, and small
/// enough that no transaction waits long behind it.
pub(super) const BATCH_BYTES: usize = 4 << 20;

const _: () = assert!(BATCH_BYTES + 2 * MAX_TXN_BYTES <= super::format::MAX_FRAME_BYTES);

/// Transactions taken from the queue at once.
const BATCH_REQUESTS: usize = 1024;

/// The longest wait for a group to fill, however slow the disk is.
const GATHER: Duration = Duration::from_millis(1);

/// Changes forgotten at once after a compaction, with all readers locked out: about a millisecond.
const FORGET_CHANGES: usize = 1000;

/// Buffers larger than this are freed after use; an idle process should be small.
const BUFFER_BYTES: usize = 256 << 10;

pub(super) enum Request {
    Txn(Txn, oneshot::Sender<Result<TxnResult, Error>>),
    TxnAndDelete(Txn, Bytes, oneshot::Sender<Result<TxnAndDelete, Error>>),
    Compact(Revision, oneshot::Sender<Result<(), Error>>),
}

/// What will be answered once the group is durable, or fails.
enum Answer {
    Txn(TxnResult, oneshot::Sender<Result<TxnResult, Error>>),
    TxnAndDelete(TxnAndDelete, oneshot::Sender<Result<TxnAndDelete, Error>>),
    Compact(oneshot::Sender<Result<(), Error>>),
}

impl Answer {
    /// Sends the answer. The caller may have stopped waiting.
    fn send(self, failure: Option<&Error>) {
        match (self, failure) {
            (Answer::Txn(result, to), None) => drop(to.send(Ok(result))),
            (Answer::TxnAndDelete(result, to), None) => drop(to.send(Ok(result))),
            (Answer::Compact(to), None) => drop(to.send(Ok(()))),
            (Answer::Txn(_, to), Some(error)) => drop(to.send(Err(error.clone()))),
            (Answer::TxnAndDelete(_, to), Some(error)) => drop(to.send(Err(error.clone()))),
            (Answer::Compact(to), Some(error)) => drop(to.send(Err(error.clone()))),
        }
    }
}

/// The newest version of a key in the group, and its value.
struct Pending {
    version: Version<Location>,
    pair: KeyValue,
}

/// A key that exists, and its newest version.
type Newest = Option<(Bytes, Version<Location>)>;

/// What a group of transactions will change, if it becomes durable.
#[derive(Default)]
struct Group {
    revision: Revision,
    newest: HashMap<Bytes, Pending>,
    inserts: Vec<(Bytes, Version<Location>)>,
    events: Vec<Event>,
    compact: Option<Revision>,
    answers: Vec<Answer>,
}

/// Zeros follow only groups of which so many fit into them.
const SMALL_GROUPS: usize = 4;

pub(super) struct Writer {
    shared: Arc<Shared>,
    disk: Disk,
    log: Arc<DataFile>,
    requests: mpsc::Receiver<Request>,
    buffer: Vec<u8>,
    /// The length of the log's file: zeros are after the log's end.
    file_bytes: u64,
    /// Set if the end of the log could not be repaired: nothing may be appended after that.
    broken: Option<Error>,
    /// There was a compaction, and what it made unreadable is not all forgotten yet.
    forgetting: bool,
    /// How many transactions the next group may have.
    in_flight: usize,
    /// How long the last fsync took.
    sync_time: Duration,
    rewrite: Option<Rewrite>,
}

impl Drop for Writer {
    /// However the thread ends: without it nothing more will be published.
    fn drop(&mut self) {
        self.shared.hub.close();
    }
}

impl Writer {
    pub fn new(
        shared: Arc<Shared>,
        disk: Disk,
        log: Arc<DataFile>,
        requests: mpsc::Receiver<Request>,
    ) -> Self {
        Writer {
            shared,
            disk,
            file_bytes: log.len(),
            log,
            requests,
            buffer: Vec::new(),
            broken: None,
            forgetting: false,
            in_flight: 0,
            sync_time: Duration::ZERO,
            rewrite: None,
        }
    }

    /// Until the store is dropped; what was handed in before is still written.
    pub fn run(mut self) {
        let mut waiting = Vec::with_capacity(BATCH_REQUESTS);
        while self.take(&mut waiting) {
            let mut requests = waiting.drain(..).peekable();
            while requests.peek().is_some() {
                self.commit(&mut requests);
            }
            // The clients just answered, and new ones.
            self.in_flight += self.requests.len();
            if self.forget() {
                self.reclaim();
            }
        }
        if let Some(rewrite) = self.rewrite.take() {
            rewrite.stop();
        }
        self.cut_zeros();
    }

    /// Takes what waits, and waits for it unless there is something to forget; `false` when the store is dropped.
    fn take(&mut self, waiting: &mut Vec<Request>) -> bool {
        if !self.forgetting {
            let some = self.requests.blocking_recv_many(waiting, BATCH_REQUESTS) > 0;
            self.gather(waiting);
            return some;
        }
        while waiting.len() < BATCH_REQUESTS {
            match self.requests.try_recv() {
                Ok(request) => waiting.push(request),
                Err(mpsc::error::TryRecvError::Empty) => break,
                Err(mpsc::error::TryRecvError::Disconnected) => return !waiting.is_empty(),
            }
        }
        true
    }

    /// Waits a little for the clients that were answered last: writers under load send their next request at once.
    /// Without this they split into two halves, each waiting for the other's fsync. A lone writer is not waited for.
    fn gather(&mut self, waiting: &mut Vec<Request>) {
        let expected = self.in_flight.min(BATCH_REQUESTS);
        if waiting.len() < expected {
            let deadline = Instant::now() + (self.sync_time / 4).min(GATHER);
            while waiting.len() < expected {
                match self.requests.try_recv() {
                    Ok(request) => waiting.push(request),
                    // To the writers' threads, if there are fewer cores than those.
                    Err(_) if Instant::now() < deadline => std::thread::yield_now(),
                    Err(_) => break,
                }
            }
        }
        self.in_flight = waiting.len();
    }

    /// Does a part of what a compaction left to do; `true` if that was the last.
    pub(super) fn forget(&mut self) -> bool {
        if !self.forgetting {
            return false;
        }
        let mut state = self.shared.state.write();
        state.forget(FORGET_CHANGES);
        self.forgetting = state.index.has_forgettable();
        !self.forgetting
    }

    #[cfg(test)]
    pub(super) fn has_forgettable(&self) -> bool {
        self.forgetting
    }

    #[cfg(test)]
    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Makes one group of the requests, as many as fit.
    pub(super) fn commit(&mut self, requests: &mut impl Iterator<Item = Request>) {
        self.buffer.clear();
        let frame = begin_frame(&mut self.buffer);
        let mut group = Group {
            revision: self.shared.state.read().index.revision(),
            ..Group::default()
        };
        Encoder {
            buffer: &mut self.buffer,
        }
        .u64(group.revision + 1);
        let empty = self.buffer.len();
        while self.buffer.len() < BATCH_BYTES
            && let Some(request) = requests.next()
        {
            match request {
                Request::Txn(txn, to) => {
                    let (was, revision) = (self.buffer.len(), group.revision);
                    match self.add_txn(&mut group, txn) {
                        Ok(result) => group.answers.push(Answer::Txn(result, to)),
                        Err(error) => {
                            debug_assert!(was == self.buffer.len() && revision == group.revision);
                            drop(to.send(Err(error)));
                        }
                    }
                }
                Request::TxnAndDelete(txn, key, to) => match self.add_txn_and_delete(&mut group, txn, key) {
                    Ok(result) => group.answers.push(Answer::TxnAndDelete(result, to)),
                    Err(error) => drop(to.send(Err(error))),
                },
                Request::Compact(revision, to) => match self.add_compaction(&mut group, revision) {
                    Ok(()) => group.answers.push(Answer::Compact(to)),
                    Err(error) => drop(to.send(Err(error))),
                },
            }
        }
        let outcome = if self.buffer.len() == empty {
            Ok(())
        } else {
            self.write(frame)
        };
        let failure = outcome.err();
        if failure.is_none() {
            self.publish(&mut group);
        }
        group
            .answers
            .drain(..)
            .for_each(|answer| answer.send(failure.as_ref()));
        if self.buffer.capacity() > BUFFER_BYTES {
            self.buffer = Vec::new();
        }
        self.forgetting |= group.compact.is_some() && failure.is_none();
    }

    /// The key and its version as they will be after what is in the group so far. The value is not read.
    fn newest_version(&self, group: &Group, key: &[u8]) -> Newest {
        if let Some(pending) = group.newest.get(key) {
            let live = pending.version.value.is_some();
            return live.then(|| (pending.pair.key.clone(), pending.version.clone()));
        }
        let state = self.shared.state.read();
        let (key, version) = state.index.get(key)?;
        Some((key.clone(), version.clone()))
    }

    /// The key as it will be after what is in the group so far.
    fn newest(&self, group: &Group, key: &[u8]) -> Result<Option<KeyValue>, Error> {
        if let Some(pending) = group.newest.get(key) {
            let live = pending.version.value.is_some();
            return Ok(live.then(|| pending.pair.clone()));
        }
        let (key, version, files) = {
            let state = self.shared.state.read();
            match state.index.get(key) {
                None => return Ok(None),
                Some((key, version)) => (key.clone(), version.clone(), state.files.clone()),
            }
        };
        read_pair(&files, &key, &version).map(Some)
    }

    fn add_txn(&mut self, group: &mut Group, txn: Txn) -> Result<TxnResult, Error> {
        // A key that is written most often has a condition: it is searched for once.
        let mut compared: Vec<(&Bytes, Newest)> = Vec::with_capacity(txn.compares.len());
        for Compare::ModRevision { key, is } in &txn.compares {
            let newest = self.newest_version(group, key);
            if newest.as_ref().map_or(0, |(_, version)| version.mod_revision) != *is {
                let keys = txn.compares.iter().map(|Compare::ModRevision { key, .. }| key);
                let current = keys.map(|key| self.newest(group, key));
                let current = current.collect::<Result<_, Error>>()?;
                return Ok(TxnResult::Failed {
                    revision: group.revision,
                    current,
                });
            }
            compared.push((key, newest));
        }
        // Nothing from here on can fail: a transaction is in the group whole or not at all.
        let mut writes = Vec::with_capacity(txn.ops.len());
        for op in txn.ops {
            let before = match compared.iter_mut().find(|(key, _)| *key == op.key()) {
                Some((_, newest)) => newest.take(),
                None => self.newest_version(group, op.key()),
            };
            match op {
                Op::Put { key, value } => writes.push((key, Some(value), before)),
                Op::Delete { .. } if before.is_none() => {}
                Op::Delete { key } => writes.push((key, None, before)),
            }
        }
        if writes.is_empty() {
            return Ok(TxnResult::Committed {
                revision: group.revision,
            });
        }
        group.revision += 1;
        let revision = group.revision;
        let mut encoder = Encoder {
            buffer: &mut self.buffer,
        };
        encoder.txn(writes.len());
        for (key, value, before) in writes {
            let span = encoder.op(&key, value.as_deref());
            let (known_key, before) = before.unzip();
            let place = self.log.len();
            let location = span.map(|span| Location {
                file: self.log.id,
                len: span.len as u32,
                offset: place + span.start as u64,
                crc: crc32fast::hash(value.as_deref().unwrap_or_default()),
            });
            let version = Version::after(before.as_ref(), revision, location);
            // Not the caller's key: that may be a piece of something much larger.
            let key = known_key.unwrap_or_else(|| Bytes::copy_from_slice(&key));
            let pair = KeyValue {
                key: key.clone(),
                value: value.unwrap_or_default(),
                create_revision: version.create_revision,
                mod_revision: revision,
                version: version.version,
            };
            group.events.push(Event {
                kv: pair.clone(),
                deleted: version.value.is_none(),
            });
            group.inserts.push((key.clone(), version.clone()));
            group.newest.insert(key, Pending { version, pair });
        }
        Ok(TxnResult::Committed { revision })
    }

    /// The transaction and, if it is committed, the deletion of the key after it: both are in the group, or neither.
    fn add_txn_and_delete(&mut self, group: &mut Group, txn: Txn, key: Bytes) -> Result<TxnAndDelete, Error> {
        let conditions = txn.compares.clone();
        let txn = self.add_txn(group, txn)?;
        let deleted = match txn {
            TxnResult::Committed { revision } => {
                self.add_txn(group, deletion(conditions, key, revision)).ok()
            }
            TxnResult::Failed { .. } => None,
        };
        let deleted = deleted.as_ref().and_then(TxnResult::committed);
        Ok(TxnAndDelete { txn, deleted })
    }

    fn add_compaction(&mut self, group: &mut Group, revision: Revision) -> Result<(), Error> {
        if revision > group.revision {
            // Not the group's revision: that is answered before the group is durable.
            return Err(Error::FutureRevision {
                requested: revision,
                newest: self.shared.state.read().index.revision(),
            });
        }
        let done = group
            .compact
            .unwrap_or(0)
            .max(self.shared.state.read().index.oldest());
        if revision > done {
            Encoder {
                buffer: &mut self.buffer,
            }
            .compaction(revision);
            group.compact = Some(revision);
        }
        Ok(())
    }

    /// Appends the buffer and makes it durable, or takes it back.
    fn write(&mut self, frame: usize) -> Result<(), Error> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let end = self.log.len();
        end_frame(&mut self.buffer, frame, self.log.header.salt, end);
        let written = self.append(end).map_err(|e| ("cannot write", e));
        let file = &self.log.file;
        let begin = Instant::now();
        let durable = written.and_then(|()| file.sync().map_err(|e| ("cannot sync", e)));
        self.sync_time = begin.elapsed();
        let Err((doing, error)) = durable else {
            self.log.set_len(end + self.buffer.len() as u64);
            return Ok(());
        };
        self.file_bytes = end;
        let error = failed(doing, &self.log.path, error);
        // Part of it may be in the file, even on the disk. It must be removed before the failure is reported, and
        // before anything is written in its place.
        let cut = file.cut(end).and_then(|()| file.sync());
        let Err(cut) = cut else {
            tracing::warn!(%error, "a group of writes failed; none of it was kept");
            return Err(error);
        };
        let why = format!("{error}; then it could not be cut back: {cut}; restart to go on writing");
        tracing::error!(file = %self.log.path.display(), %why, "the store can only be read from now on");
        self.broken = Some(Error::Io(Arc::new(std::io::Error::other(why.clone()))));
        Err(Error::Unavailable(why))
    }

    /// Writes the buffer at the end of the log; with zeros after it, if the file would become longer and the group is small.
    fn append(&mut self, end: u64) -> io::Result<()> {
        let file = &self.log.file;
        let frame = self.buffer.len();
        if end + frame as u64 <= self.file_bytes {
            return file.write_all_at(&self.buffer, end);
        }
        let zeros = match frame <= self.shared.limits.log_bytes / SMALL_GROUPS {
            true => self.shared.limits.log_bytes,
            false => 0,
        };
        self.buffer.resize(frame + zeros, 0);
        let mut written = file.write_all_at(&self.buffer, end);
        let mut bytes = self.buffer.len();
        self.buffer.truncate(frame);
        // The frame may fit on a disk that has no room for the zeros.
        if zeros > 0 && written.as_ref().is_err_and(is_full) {
            bytes = frame;
            written = file.cut(end).and_then(|()| file.write_all_at(&self.buffer, end));
        }
        self.file_bytes = end + bytes as u64;
        written
    }

    /// Removes the zeros after a log to which nothing more is written.
    fn cut_zeros(&self) {
        if self.broken.is_none()
            && self.file_bytes > self.log.len()
            && let Err(error) = self.log.file.cut(self.log.len())
        {
            // The next start does it.
            tracing::debug!(file = %self.log.path.display(), %error, "cannot remove the zeros after the log");
        }
    }

    /// Lets readers and watchers see what is durable now.
    fn publish(&self, group: &mut Group) {
        if !group.inserts.is_empty() || group.compact.is_some() {
            let mut state = self.shared.state.write();
            for (key, version) in group.inserts.drain(..) {
                state.insert(key, version);
            }
            if let Some(oldest) = group.compact {
                state.index.compact(oldest);
            }
        }
        if !group.events.is_empty() {
            self.shared
                .hub
                .publish(std::mem::take(&mut group.events), group.revision);
        }
    }

    /// Starts to write a new base if enough of the files is not needed any more.
    fn reclaim(&mut self) {
        if self
            .rewrite
            .as_ref()
            .is_some_and(|rewrite| !rewrite.is_finished())
        {
            return;
        }
        let Some(plan) = self.plan_rewrite() else { return };
        match Rewrite::start(plan, self.shared.clone(), self.disk.clone()) {
            Ok(rewrite) => self.rewrite = Some(rewrite),
            // Nothing is lost by it, the next compaction tries again.
            Err(error) => tracing::warn!(%error, "cannot reclaim space"),
        }
    }

    /// What to rewrite, if it is worthwhile; writing continues in the next log then.
    pub(super) fn plan_rewrite(&mut self) -> Option<Plan> {
        match Rewrite::plan(&self.shared, &self.disk, &self.log) {
            Ok(None) => return None,
            Ok(Some((plan, log))) => {
                self.cut_zeros();
                self.file_bytes = log.len();
                self.log = log;
                return Some(plan);
            }
            Err(error @ Error::Unavailable(_)) => {
                tracing::error!(%error, "the store can only be read from now on");
                self.broken = Some(Error::Io(Arc::new(std::io::Error::other(error.to_string()))));
            }
            Err(error) => tracing::warn!(%error, "cannot reclaim space"),
        }
        None
    }
}
