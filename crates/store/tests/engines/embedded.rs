//! The embedded engine as its users see it: the suite, and opening again.

use std::path::Path;
use std::sync::Arc;

use knarr_store::{Config, Error, KeyRange, Range, Store, open};
use tempfile::TempDir;

use crate::suite::{self, Law};

async fn open_in(dir: &Path) -> Arc<dyn Store> {
    open(Config::Embedded {
        dir: dir.to_path_buf(),
    })
    .await
    .unwrap()
}

async fn with_store(law: Law) {
    let dir = TempDir::new().unwrap();
    law(open_in(dir.path()).await).await;
}

crate::laws!(with_store);

#[tokio::test]
async fn everything_is_there_after_reopening() {
    let dir = TempDir::new().unwrap();
    let store = open_in(dir.path()).await;
    for i in 0..100 {
        suite::put(&*store, format!("k{}", i % 10), format!("{i}")).await;
    }
    store.compact(60).await.unwrap();
    let read = |store: Arc<dyn Store>| async move {
        let mut seen = Vec::new();
        for at in 60..=101 {
            let range = Range {
                keys: KeyRange::prefix(""),
                at: Some(at),
                ..Range::default()
            };
            seen.push(store.range(range).await.unwrap().kvs);
        }
        let mut watch = store.watch(KeyRange::prefix("k"), 60).await.unwrap();
        (seen, suite::events(&mut watch, 42).await)
    };
    let before = read(store).await;
    let store = open_in(dir.path()).await;
    assert_eq!(store.revision().await.unwrap(), 101);
    let too_old = store.watch(KeyRange::prefix("k"), 59).await.map(|_| ());
    assert!(
        matches!(
            too_old,
            Err(Error::Compacted {
                requested: 59,
                oldest: 60
            })
        ),
        "{too_old:?}"
    );
    assert_eq!(read(store).await, before);
}

#[tokio::test]
async fn a_directory_is_held_by_one_store_at_a_time() {
    let dir = TempDir::new().unwrap();
    let store = open_in(dir.path()).await;
    let second = open(Config::Embedded {
        dir: dir.path().to_path_buf(),
    })
    .await
    .map(|_| ());
    let error = second.unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    assert!(
        error.to_string().contains(dir.path().to_str().unwrap()),
        "{error}"
    );
    drop(store);
    open_in(dir.path()).await;
}

#[tokio::test]
async fn a_path_that_cannot_be_a_directory_is_named() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("file/data");
    std::fs::write(dir.path().join("file"), "").unwrap();
    let error = open(Config::Embedded { dir: path.clone() })
        .await
        .map(|_| ())
        .unwrap_err();
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
}
