//! Tests that need the engine's inside: failing disks, damaged files, freed space.

mod crashes;
mod zeros_after_the_log;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;

use super::EmbeddedStore;
use super::disk::Disk;
use super::disk::simulated::SimulatedDisk;
use super::format::HEADER_BYTES;
use super::rewrite::LIMITS;
use crate::{Compare, Error, KeyRange, Op, Range, Revision, Store, Txn, TxnResult, WatchItem};

/// A store on a disk that can be full or broken.
async fn open_on(disk: &Arc<SimulatedDisk>) -> Result<EmbeddedStore, Error> {
    EmbeddedStore::open_on(DIR.into(), Disk::Simulated(disk.clone())).await
}

/// Where the store is on simulated disks.
const DIR: &str = "/var/lib/knarr";

async fn open(dir: &Path) -> Result<EmbeddedStore, Error> {
    EmbeddedStore::open(dir.to_path_buf()).await
}

async fn try_put(store: &EmbeddedStore, key: &str, value: &[u8]) -> Result<Revision, Error> {
    let ops = vec![Op::Put {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::copy_from_slice(value),
    }];
    match store
        .txn(Txn {
            compares: vec![],
            ops,
        })
        .await?
    {
        TxnResult::Committed { revision } => Ok(revision),
        other => panic!("{other:?}"),
    }
}

async fn put(store: &EmbeddedStore, key: &str, value: &[u8]) -> Revision {
    try_put(store, key, value).await.unwrap()
}

async fn pairs(store: &EmbeddedStore) -> Result<BTreeMap<String, Bytes>, Error> {
    let found = store
        .range(Range {
            keys: KeyRange::prefix(""),
            ..Range::default()
        })
        .await?;
    Ok(found
        .kvs
        .into_iter()
        .map(|kv| (kv.key.escape_ascii().to_string(), kv.value))
        .collect())
}

fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    paths.sort();
    paths
}

/// A log of some groups of one transaction each, and where each group ends.
async fn example(dir: &Path) -> (Vec<u8>, Vec<usize>) {
    let store = open(dir).await.unwrap();
    let log = files(dir, "log").remove(0);
    let mut ends = vec![HEADER_BYTES];
    for n in 0..6u8 {
        put(&store, &format!("k{}", n % 4), &[n; 20]).await;
        ends.push(store.size_bytes().await.unwrap() as usize);
    }
    // While the store is open, zeros follow: the next group makes the file no longer.
    let file_bytes = fs::metadata(&log).unwrap().len() as usize;
    assert!(ends[6] < file_bytes && file_bytes == ends[1] + LIMITS.log_bytes);
    drop(store);
    let log = fs::read(&log).unwrap();
    assert_eq!(log.len(), ends[6]);
    (log, ends)
}

/// The store made of these bytes: its revision and pairs, or the error.
async fn reopened(log: &[u8]) -> Result<(Revision, BTreeMap<String, Bytes>), Error> {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("0000000001.log"), log).unwrap();
    let store = open(dir.path()).await?;
    let seen = (store.revision().await?, pairs(&store).await?);
    // What was cut off must not appear, and writing must continue.
    let revision = put(&store, "after", b"the crash").await;
    assert_eq!(revision, seen.0 + 1);
    drop(store);
    let again = open(dir.path()).await?;
    assert_eq!(again.revision().await?, revision);
    assert_eq!(pairs(&again).await?.len(), seen.1.len() + 1);
    Ok(seen)
}

#[tokio::test]
async fn a_log_cut_at_any_byte_has_all_groups_before_it() {
    let dir = TempDir::new().unwrap();
    let (log, ends) = example(dir.path()).await;
    for len in 0..HEADER_BYTES {
        let error = reopened(&log[..len]).await.unwrap_err();
        assert!(
            matches!(error, Error::Corrupt { .. }),
            "no crash cuts at {len}: {error}"
        );
    }
    for len in HEADER_BYTES..=log.len() {
        let whole = ends.iter().filter(|end| **end <= len).count().max(1) - 1;
        let (revision, pairs) = reopened(&log[..len]).await.unwrap();
        assert_eq!(revision, 1 + whole as Revision, "cut at {len}");
        assert_eq!(pairs.len(), whole.min(4), "cut at {len}");
        for n in 0..whole {
            let newest = (n..whole).step_by(4).next_back().unwrap() as u8;
            assert_eq!(pairs[&format!("k{}", n % 4)], vec![newest; 20], "cut at {len}");
        }
    }
}

#[tokio::test]
async fn a_torn_last_group_is_left_out_whatever_is_in_it() {
    let dir = TempDir::new().unwrap();
    let (log, ends) = example(dir.path()).await;
    let last = ends[ends.len() - 2];
    for place in last..log.len() {
        for change in [1, 0x80, 0xff] {
            let mut torn = log.clone();
            torn[place] ^= change;
            let (revision, _) = reopened(&torn).await.unwrap();
            assert_eq!(revision, 6, "byte {place}");
        }
    }
    for garbage in [
        vec![0; 1],
        vec![0; 5000],
        vec![0xff; 300],
        log[..ends[1]].to_vec(),
        log[ends[0]..].to_vec(),
    ] {
        let (revision, pairs) = reopened(&[&log[..], &garbage].concat()).await.unwrap();
        assert_eq!((revision, pairs.len()), (7, 4));
    }
}

#[tokio::test]
async fn damage_before_the_last_group_is_never_passed_over() {
    let dir = TempDir::new().unwrap();
    let (log, ends) = example(dir.path()).await;
    for place in 0..ends[ends.len() - 2] {
        let mut damaged = log.clone();
        damaged[place] ^= 0x10;
        let error = reopened(&damaged).await.unwrap_err();
        let frame = ends.iter().rev().find(|end| **end <= place);
        let expected = frame.map_or("header".to_string(), |_| "at offset ".to_string());
        let named = matches!(&error, Error::Corrupt { path, why } if path.ends_with("0000000001.log")
            && (why.contains(&expected) || place < HEADER_BYTES));
        assert!(named, "byte {place}: {error}");
    }
}

#[tokio::test]
async fn a_missing_log_is_noticed() {
    let dir = TempDir::new().unwrap();
    let (log, _) = example(dir.path()).await;
    fs::write(dir.path().join("0000000003.log"), &log).unwrap();
    let error = open(dir.path()).await.map(|_| ()).unwrap_err();
    assert!(
        matches!(&error, Error::Corrupt { path, .. } if path.ends_with("0000000002.log")),
        "{error}"
    );
    assert_eq!(
        fs::read(dir.path().join("0000000001.log")).unwrap(),
        log,
        "nothing was touched"
    );
}

#[tokio::test]
async fn a_value_that_rots_under_a_running_store_is_not_returned() {
    let dir = TempDir::new().unwrap();
    let store = open(dir.path()).await.unwrap();
    put(&store, "a", b"precious").await;
    let log = files(dir.path(), "log").remove(0);
    let mut bytes = fs::read(&log).unwrap();
    let place = bytes.windows(8).position(|window| window == b"precious").unwrap();
    bytes[place] ^= 1;
    fs::write(&log, bytes).unwrap();
    let error = pairs(&store).await.unwrap_err().to_string();
    assert!(
        error.contains(log.to_str().unwrap()) && error.contains(&format!("offset {place}")),
        "{error}"
    );
}

#[tokio::test]
async fn a_full_disk_takes_nothing_with_it() {
    for left in [0, 1, 11, 12, 13, 40, 100] {
        let disk = SimulatedDisk::new(1);
        let store = open_on(&disk).await.unwrap();
        put(&store, "a", b"1").await;
        let mut watch = store.watch(KeyRange::prefix(""), 2).await.unwrap();
        disk.set_room(Some(left));
        let error = try_put(&store, "b", &[7; 200]).await.unwrap_err();
        assert!(
            matches!(&error, Error::NoSpace(message) if message.contains("0000000001.log")),
            "{error}"
        );
        assert_eq!(store.revision().await.unwrap(), 2);
        assert_eq!(pairs(&store).await.unwrap().len(), 1);
        disk.set_room(None);
        assert_eq!(put(&store, "c", b"3").await, 3, "room again");
        for expected in ["a", "c"] {
            loop {
                match watch.next().await.unwrap().unwrap() {
                    WatchItem::Events(events) => break assert_eq!(events[0].kv.key, expected),
                    WatchItem::Progress(_) => {}
                }
            }
        }
        drop(store);
        let store = open_on(&disk).await.unwrap();
        assert_eq!(
            pairs(&store).await.unwrap().into_keys().collect::<Vec<_>>(),
            ["a", "c"]
        );
    }
}

#[tokio::test]
async fn a_failed_sync_leaves_nothing_behind() {
    let disk = SimulatedDisk::new(1);
    let store = open_on(&disk).await.unwrap();
    put(&store, "a", b"1").await;
    disk.fail_syncs(1);
    let error = try_put(&store, "b", b"2").await.unwrap_err();
    assert!(matches!(error, Error::Io(_)), "{error}");
    assert_eq!(put(&store, "c", b"3").await, 3);
    drop(store);
    let store = open_on(&disk).await.unwrap();
    assert_eq!(
        pairs(&store).await.unwrap().into_keys().collect::<Vec<_>>(),
        ["a", "c"]
    );
}

#[tokio::test]
async fn a_log_that_cannot_be_cut_back_is_only_read() {
    let disk = SimulatedDisk::new(1);
    let store = open_on(&disk).await.unwrap();
    put(&store, "a", b"1").await;
    disk.fail_syncs(1);
    disk.fail_cuts(true);
    let error = try_put(&store, "b", b"2").await.unwrap_err();
    assert!(
        matches!(error, Error::Unavailable(_)),
        "it is not known whether it was written: {error}"
    );
    disk.fail_cuts(false);
    let error = try_put(&store, "c", b"3").await.unwrap_err();
    assert!(matches!(error, Error::Io(_)), "{error}");
    assert_eq!(
        pairs(&store).await.unwrap().into_keys().collect::<Vec<_>>(),
        ["a"]
    );
    drop(store);
    let store = open_on(&disk).await.unwrap();
    let pairs = pairs(&store).await.unwrap();
    assert!(pairs.contains_key("a") && !pairs.contains_key("c"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_share_an_fsync() {
    let disk = SimulatedDisk::new(1);
    let store = open_on(&disk).await.unwrap();
    let store = Arc::new(store);
    let before = disk.syncs();
    let writer = |w: usize| {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 0..50u8 {
                put(&store, &format!("{w}"), &[n; 100]).await;
            }
        })
    };
    for writer in (0..32).map(writer).collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let syncs = disk.syncs() - before;
    assert!(syncs < 32 * 50 / 2, "{syncs} fsyncs for {} transactions", 32 * 50);
}

/// In one group, later transactions see earlier ones.
#[tokio::test]
async fn a_group_is_a_sequence() {
    let dir = TempDir::new().unwrap();
    let store = open(dir.path()).await.unwrap();
    let mut watch = store.watch(KeyRange::prefix(""), 0).await.unwrap();
    let key = Bytes::from_static(b"n");
    let swap = |is: Revision, value: &'static str| Txn {
        compares: vec![Compare::ModRevision { key: key.clone(), is }],
        ops: vec![Op::Put {
            key: key.clone(),
            value: Bytes::from_static(value.as_bytes()),
        }],
    };
    let delete = Txn {
        compares: vec![],
        ops: vec![Op::Delete { key: key.clone() }],
    };
    // Handed in before the writer can answer the first: joined futures are polled in order, on one thread.
    let (a, b, c, d, e) = tokio::join!(
        store.txn(swap(0, "1")),
        store.txn(swap(2, "2")),
        store.txn(swap(2, "x")),
        store.txn(delete),
        store.txn(swap(0, "3")),
    );
    assert!(matches!(a, Ok(TxnResult::Committed { revision: 2 })), "{a:?}");
    assert!(matches!(b, Ok(TxnResult::Committed { revision: 3 })), "{b:?}");
    let Ok(TxnResult::Failed { revision: 3, current }) = c else {
        panic!("{c:?}")
    };
    assert_eq!(current[0].as_ref().unwrap().value, "2");
    assert!(matches!(d, Ok(TxnResult::Committed { revision: 4 })), "{d:?}");
    assert!(matches!(e, Ok(TxnResult::Committed { revision: 5 })), "{e:?}");
    let mut received = Vec::new();
    while received.len() < 4 {
        if let WatchItem::Events(events) = watch.next().await.unwrap().unwrap() {
            received.extend(
                events
                    .iter()
                    .map(|e| (e.kv.mod_revision, e.kv.version, e.deleted)),
            );
        }
    }
    assert_eq!(
        received,
        [(2, 1, false), (3, 2, false), (4, 0, true), (5, 1, false)]
    );
}

/// Keys with and without a condition, that exist, that do not and that were deleted, in one transaction.
#[tokio::test]
async fn a_write_continues_the_history_of_its_key_with_and_without_a_condition() {
    let dir = TempDir::new().unwrap();
    let store = open(dir.path()).await.unwrap();
    for (key, revision) in [("a", 2), ("b", 3), ("c", 4)] {
        assert_eq!(put(&store, key, b"1").await, revision);
    }
    let bytes = |key: &'static str| Bytes::from_static(key.as_bytes());
    let condition = |key, is| Compare::ModRevision { key: bytes(key), is };
    let delete = Txn {
        compares: vec![condition("c", 4)],
        ops: vec![Op::Delete { key: bytes("c") }],
    };
    let write = Txn {
        compares: vec![condition("c", 0), condition("a", 2), condition("d", 0)],
        ops: ["a", "b", "c", "d", "e"]
            .map(|key| Op::Put {
                key: bytes(key),
                value: bytes("2"),
            })
            .into(),
    };
    // One group: the second sees what the first is about to do.
    let (deleted, written) = tokio::join!(store.txn(delete), store.txn(write.clone()));
    assert!(
        matches!(deleted, Ok(TxnResult::Committed { revision: 5 })),
        "{deleted:?}"
    );
    assert!(
        matches!(written, Ok(TxnResult::Committed { revision: 6 })),
        "{written:?}"
    );
    let again = store.txn(write).await.unwrap();
    let TxnResult::Failed { revision: 6, current } = again else {
        panic!("{again:?}")
    };
    let current: Vec<_> = current.iter().flatten().map(|kv| kv.mod_revision).collect();
    assert_eq!(current, [6, 6, 6]);
    let range = Range {
        keys: KeyRange::prefix(""),
        ..Range::default()
    };
    let kvs = store.range(range).await.unwrap().kvs;
    let seen: Vec<_> = kvs
        .iter()
        .map(|kv| (kv.create_revision, kv.mod_revision, kv.version))
        .collect();
    assert_eq!(seen, [(2, 6, 2), (3, 6, 2), (6, 6, 1), (6, 6, 1), (6, 6, 1)]);
}

/// A file that compaction removes in between is not counted.
fn disk_bytes(dir: &Path) -> u64 {
    let files = fs::read_dir(dir).unwrap();
    files
        .map(|entry| match entry.unwrap().metadata() {
            Ok(file) => file.len(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => 0,
            Err(e) => panic!("{e}"),
        })
        .sum()
}

async fn until(mut done: impl FnMut() -> bool) {
    let wait = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait)
        .await
        .expect("it did not come true");
}

/// 16 MB of changes to 16 keys, with some deletions, and reads going on.
async fn churn(store: &EmbeddedStore) -> Revision {
    let value = vec![b'x'; 16 << 10];
    let mut revision = 0;
    for n in 0..64 {
        let put = |k: usize| Op::Put {
            key: format!("k{k:02}").into(),
            value: value.clone().into(),
        };
        let mut ops: Vec<Op> = (0..16).map(put).collect();
        if n % 8 == 7 {
            ops[3] = Op::Delete {
                key: Bytes::from_static(b"k03"),
            };
        }
        match store
            .txn(Txn {
                compares: vec![],
                ops,
            })
            .await
            .unwrap()
        {
            TxnResult::Committed { revision: r } => revision = r,
            other => panic!("{other:?}"),
        }
    }
    revision
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_gives_space_back_and_keeps_the_rest() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path()).await.unwrap();
    for round in 1..=3 {
        let newest = churn(&store).await;
        assert!(disk_bytes(dir.path()) > 15 << 20);
        let oldest = newest - 3;
        let reads = |store: Arc<EmbeddedStore>| async move {
            let mut seen = Vec::new();
            for at in oldest..=newest {
                let range = Range {
                    keys: KeyRange::prefix(""),
                    at: Some(at),
                    ..Range::default()
                };
                seen.push(store.range(range).await.unwrap().kvs);
            }
            seen
        };
        let shared = Arc::new(store);
        let before = reads(shared.clone()).await;
        shared.compact(oldest).await.unwrap();
        // Reading and writing go on meanwhile.
        put(&shared, "meanwhile", &[round; 10]).await;
        until(|| disk_bytes(dir.path()) < 3 << 20).await;
        assert_eq!(reads(shared.clone()).await, before);
        drop(shared);
        let again = Arc::new(open(dir.path()).await.unwrap());
        assert_eq!(reads(again.clone()).await, before);
        assert_eq!(pairs(&again).await.unwrap()["meanwhile"], vec![round; 10]);
        let early = again.watch(KeyRange::prefix(""), oldest - 1).await.map(|_| ());
        assert!(matches!(early, Err(Error::Compacted { .. })));
        store = Arc::into_inner(again).unwrap();
    }
}

/// Whatever a crash leaves of a rewrite, the store is complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_while_giving_space_back_loses_nothing() {
    let dir = TempDir::new().unwrap();
    let store = open(dir.path()).await.unwrap();
    let newest = churn(&store).await;
    let old_log = fs::read(dir.path().join("0000000001.log")).unwrap();
    let expected = pairs(&store).await.unwrap();
    store.compact(newest).await.unwrap();
    until(|| !dir.path().join("0000000001.log").exists()).await;
    drop(store);
    let base = dir.path().join("0000000001.base");
    let base_bytes = fs::read(&base).unwrap();

    // The old log was not removed yet.
    fs::write(dir.path().join("0000000001.log"), &old_log).unwrap();
    assert_eq!(pairs(&open(dir.path()).await.unwrap()).await.unwrap(), expected);
    assert!(!dir.path().join("0000000001.log").exists());

    // The base did not get its name.
    fs::write(dir.path().join("0000000001.log"), &old_log).unwrap();
    fs::rename(&base, dir.path().join("0000000001.base.tmp")).unwrap();
    let store = open(dir.path()).await.unwrap();
    assert_eq!(pairs(&store).await.unwrap(), expected);
    assert!(files(dir.path(), "tmp").is_empty());
    drop(store);

    // A base with its name is whole; one that is not is damage, and nothing is removed because of it.
    for damaged in [
        &base_bytes[..base_bytes.len() - 1],
        &base_bytes[..100],
        &base_bytes[..10],
        &[],
    ] {
        fs::write(&base, damaged).unwrap();
        let error = open(dir.path()).await.map(|_| ()).unwrap_err();
        assert!(
            matches!(&error, Error::Corrupt { path, .. } if path.ends_with("0000000001.base")),
            "{error}"
        );
        assert!(dir.path().join("0000000001.log").exists());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_too_full_to_give_space_back_keeps_everything() {
    let disk = SimulatedDisk::new(1);
    let store = open_on(&disk).await.unwrap();
    let newest = churn(&store).await;
    let expected = pairs(&store).await.unwrap();
    // Enough for the compaction and a new log, not for the base.
    disk.set_room(Some(20_000));
    store.compact(newest).await.unwrap();
    until(|| {
        disk.room() == Some(0)
            && !disk
                .list(DIR.as_ref())
                .iter()
                .any(|path| path.extension().is_some_and(|e| e == "tmp"))
    })
    .await;
    assert_eq!(pairs(&store).await.unwrap(), expected);
    disk.set_room(None);
    put(&store, "k00", b"later").await;
    store.compact(newest + 1).await.unwrap();
    until(|| disk.bytes() < 3 << 20).await;
    drop(store);
    let store = open_on(&disk).await.unwrap();
    assert_eq!(pairs(&store).await.unwrap().len(), expected.len());
}
