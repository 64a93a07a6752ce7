//! Two servers over one store, of which one hears late what the other writes.

use async_trait::async_trait;
use knarr_store::{
    Error as StoreError, KeyRange, Range, RangeResult, Revision, Store, Txn, TxnResult, Watch,
};
use tokio::sync::{mpsc, watch};

use super::*;

/// A way to a store whose watches tell nothing while it is held.
struct Late {
    inner: Arc<dyn Store>,
    held: watch::Receiver<bool>,
}

#[async_trait]
impl Store for Late {
    async fn range(&self, range: Range) -> Result<RangeResult, StoreError> {
        self.inner.range(range).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResult, StoreError> {
        self.inner.txn(txn).await
    }

    async fn watch(&self, keys: KeyRange, from: Revision) -> Result<Watch, StoreError> {
        let mut inner = self.inner.watch(keys, from).await?;
        let (items, heard) = mpsc::channel(16);
        let mut held = self.held.clone();
        tokio::spawn(async move {
            while let Some(item) = inner.next().await {
                // Whoever holds it is the test, which may be over.
                let _ = held.wait_for(|held| !held).await;
                if items.send(item).await.is_err() {
                    return;
                }
            }
        });
        Ok(Watch::relayed(heard, from))
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.inner.compact(revision).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.inner.revision().await
    }

    fn is_shared(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn s5_a_server_that_is_behind_refuses_nothing_for_what_it_remembers() {
    let store = knarr_store::open(knarr_store::Config::Memory).await.unwrap();
    let (hold, held) = watch::channel(false);
    let first = server_over(store.clone()).await;
    let late = server_over(Arc::new(Late { inner: store, held })).await;

    first.api.create_as(config_map("old", "1")).await.unwrap();
    late.api.get(&CONFIG_MAP, "default", "old").await.unwrap();
    hold.send(true).unwrap();
    first.api.create_as(config_map("new", "1")).await.unwrap();
    first
        .api
        .delete(&CONFIG_MAP, "default", "old", DeleteOptions::default())
        .await
        .unwrap();

    // What it has not heard of yet is not "not found", what is gone does not "already exist": it does not know.
    let note = || Patch::Merge(json!({"data": {"k": "2"}}));
    let patched = late.api.patch(&CONFIG_MAP, "default", "new", "", note()).await;
    assert_eq!(patched.unwrap_err().code(), 504);
    let deleted = late
        .api
        .delete(&CONFIG_MAP, "default", "new", DeleteOptions::default())
        .await;
    assert_eq!(deleted.unwrap_err().code(), 504);
    let created = late.api.create_as(config_map("old", "2")).await;
    assert_eq!(created.unwrap_err().code(), 504);

    hold.send(false).unwrap();
    late.api
        .patch(&CONFIG_MAP, "default", "new", "", note())
        .await
        .unwrap();
    late.api.create_as(config_map("old", "2")).await.unwrap();
}
