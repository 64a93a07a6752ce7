//! The engine for tests and the simulation: everything in this process, no files, no threads, no timers. A call
//! is done when it is first polled, so a history depends on nothing but the order of the calls.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::hub::{History, Hub};
use crate::index::{Change, Index, Version};
use crate::{
    Compare, Error, Event, KeyRange, KeyValue, Op, Range, RangeResult, Revision, Store, Txn, TxnResult, Watch,
};

pub(crate) struct MemoryStore {
    index: Arc<Shared>,
    hub: Arc<Hub>,
}

struct Shared(Mutex<Index<Bytes>>);

impl MemoryStore {
    pub fn new() -> Self {
        let index = Index::new();
        let hub = Hub::new(index.revision());
        MemoryStore {
            index: Arc::new(Shared(Mutex::new(index))),
            hub,
        }
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        self.hub.close();
    }
}

fn pair(key: &Bytes, version: &Version<Bytes>) -> KeyValue {
    KeyValue {
        key: key.clone(),
        value: version.value.clone().unwrap_or_default(),
        create_revision: version.create_revision,
        mod_revision: version.mod_revision,
        version: version.version,
    }
}

fn event(key: &Bytes, now: &Version<Bytes>) -> Event {
    Event {
        kv: pair(key, now),
        deleted: now.value.is_none(),
    }
}

#[async_trait]
impl History for Shared {
    async fn changes_since(
        &self,
        keys: &KeyRange,
        from: Revision,
        enough: usize,
    ) -> Result<(Vec<Event>, Revision), Error> {
        let (changes, upto) = self.0.lock().changes_since(keys, from, enough)?;
        let to_event = |c: &Change<Bytes>| event(&c.key, &c.now);
        Ok((changes.iter().map(to_event).collect(), upto))
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn range(&self, range: Range) -> Result<RangeResult, Error> {
        let found = self.index.0.lock().range(&range)?;
        Ok(RangeResult {
            revision: found.revision,
            kvs: found
                .entries
                .iter()
                .map(|(key, version)| pair(key, version))
                .collect(),
            more: found.more,
            count: found.count,
        })
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResult, Error> {
        txn.check()?;
        let mut index = self.index.0.lock();
        let holds = |compare: &Compare| {
            let Compare::ModRevision { key, is } = compare;
            index.get(key).map_or(0, |(_, version)| version.mod_revision) == *is
        };
        if !txn.compares.iter().all(holds) {
            let current = txn.compares.iter().map(|compare| {
                let Compare::ModRevision { key, .. } = compare;
                index.get(key).map(|(key, version)| pair(key, version))
            });
            let current = current.collect();
            return Ok(TxnResult::Failed {
                revision: index.revision(),
                current,
            });
        }
        let revision = index.revision() + 1;
        let mut events = Vec::new();
        for op in txn.ops {
            let (key, value) = match op {
                Op::Put { key, value } => (key, Some(value)),
                Op::Delete { key } if index.get(&key).is_none() => continue,
                Op::Delete { key } => (key, None),
            };
            // Not the caller's key: that may be a piece of something much larger.
            let key = Bytes::copy_from_slice(&key);
            let version = index.write(key.clone(), revision, value);
            events.push(event(&key, version));
        }
        if events.is_empty() {
            return Ok(TxnResult::Committed {
                revision: index.revision(),
            });
        }
        // Under the lock, so that watchers are notified in the order of the revisions.
        self.hub.publish(events, revision);
        Ok(TxnResult::Committed { revision })
    }

    async fn watch(&self, keys: KeyRange, from: Revision) -> Result<Watch, Error> {
        let oldest = self.index.0.lock().oldest();
        if from != 0 && from < oldest {
            return Err(Error::Compacted {
                requested: from,
                oldest,
            });
        }
        Ok(self.hub.watch(keys, from, || self.index.clone()))
    }

    async fn compact(&self, revision: Revision) -> Result<(), Error> {
        let mut index = self.index.0.lock();
        if index.can_compact(revision)? {
            index.compact(revision);
            index.forget(usize::MAX, |_, _| ());
        }
        Ok(())
    }

    async fn revision(&self) -> Result<Revision, Error> {
        Ok(self.index.0.lock().revision())
    }
}
