//! The memory store, with every commit told to the observer in the moment it is made.

use std::sync::Arc;

use async_trait::async_trait;
use knarr_store::{Error, KeyRange, Op, Range, RangeResult, Revision, Store, Txn, TxnResult, Watch};

use crate::observer::Observer;

pub(crate) struct ObservedStore {
    pub inner: Arc<dyn Store>,
    pub observer: Arc<Observer>,
}

#[async_trait]
impl Store for ObservedStore {
    async fn range(&self, range: Range) -> Result<RangeResult, Error> {
        self.inner.range(range).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResult, Error> {
        let ops = txn.ops.clone();
        // The memory store is done when it is first polled: nothing comes between the commit and its telling.
        let result = self.inner.txn(txn).await?;
        if let TxnResult::Committed { revision } = &result {
            for op in &ops {
                match op {
                    Op::Put { key, value } => self.observer.committed(key, *revision, Some(value)),
                    Op::Delete { key } => self.observer.committed(key, *revision, None),
                }
            }
        }
        Ok(result)
    }

    async fn watch(&self, keys: KeyRange, from: Revision) -> Result<Watch, Error> {
        self.inner.watch(keys, from).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), Error> {
        self.inner.compact(revision).await
    }

    async fn revision(&self) -> Result<Revision, Error> {
        self.inner.revision().await
    }
}
