//! The memory engine. Its tests run on a paused clock: nothing in it may wait for time to pass.

use knarr_store::{Config, open};

use crate::suite::{self, Law};

async fn with_store(law: Law) {
    tokio::time::pause();
    law(open(Config::Memory).await.unwrap()).await;
}

crate::laws!(with_store);

#[tokio::test]
async fn a_closed_store_ends_its_watches() {
    let store = open(Config::Memory).await.unwrap();
    suite::put(&*store, "a", "1").await;
    let mut watch = store.watch(knarr_store::KeyRange::prefix(""), 2).await.unwrap();
    drop(store);
    assert_eq!(suite::events(&mut watch, 1).await, ["2:a=1"]);
    assert!(suite::next(&mut watch).await.is_none());
}
