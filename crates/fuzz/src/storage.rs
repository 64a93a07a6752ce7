//! The store's files after they were damaged: a log of five transactions, and the bytes to change.
//!
//! The first byte says how: some of the file's bytes are changed, the file is cut, or a frame with a right checksum and
//! the input as its payload is put behind it (what a store of another version could have left). Whatever is opened is
//! what was there after some number of its transactions, in their order, and can be written to; or it is refused.

use std::path::Path;

use bytes::Bytes;
use knarr_store::{Config, KeyRange, Op, Range, Store, Txn};
use tempfile::TempDir;

use crate::Target;

/// What stands before the frames of a log, and before a frame's payload (`store/src/embedded/format.rs`).
const HEADER_BYTES: usize = 44;
const WRITES: u8 = 5;

pub const TARGET: Target = Target {
    name: "storage",
    check: |data| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(damaged(data));
    },
    seeds: || {
        vec![
            [&[0u8][..], &[60, 1, 0xff]].concat(),
            [&[1u8][..], &[100]].concat(),
            // A transaction that puts "k" to "v", after revision 7.
            [
                &[2u8][..],
                &7u64.to_le_bytes(),
                &[1, 1, 0, 0, 0, 1, 1, 0, 0, 0, b'k', 1, 0, 0, 0, b'v'],
            ]
            .concat(),
            // A compaction to 3.
            [&[2u8][..], &7u64.to_le_bytes(), &[2], &3u64.to_le_bytes()].concat(),
        ]
    },
};

async fn open(dir: &Path) -> Result<std::sync::Arc<dyn Store>, knarr_store::Error> {
    knarr_store::open(Config::Embedded {
        dir: dir.to_path_buf(),
    })
    .await
}

async fn put(store: &dyn Store, n: u8) {
    let (key, value) = (
        Bytes::copy_from_slice(&[b'a' + n]),
        Bytes::copy_from_slice(&[n; 9]),
    );
    let txn = Txn {
        compares: vec![],
        ops: vec![Op::Put { key, value }],
    };
    store
        .txn(txn)
        .await
        .expect("a store that was opened is written to");
}

async fn pairs(store: &dyn Store) -> Result<Vec<(Bytes, Bytes)>, knarr_store::Error> {
    let all = Range {
        keys: KeyRange::prefix(Bytes::new()),
        ..Range::default()
    };
    let found = store.range(all).await?;
    Ok(found.kvs.into_iter().map(|kv| (kv.key, kv.value)).collect())
}

async fn damaged(data: &[u8]) {
    let Some((how, data)) = data.split_first() else {
        return;
    };
    let dir = TempDir::new().expect("a folder");
    let store = open(dir.path()).await.expect("a new store opens");
    for n in 0..WRITES {
        put(&*store, n).await;
    }
    drop(store);
    let path = dir.path().join("0000000001.log");
    let mut log = std::fs::read(&path).expect("its log");
    let foreign = how % 3 == 2;
    match how % 3 {
        0 => {
            for change in data.chunks_exact(3) {
                let place = usize::from(u16::from_le_bytes([change[0], change[1]])) % log.len();
                log[place] ^= change[2];
            }
        }
        1 => log.truncate(data.first().map_or(0, |len| usize::from(*len) % log.len())),
        _ => {
            let (salt, place) = (log[16..24].to_vec(), (log.len() as u64).to_le_bytes());
            let mut head = (data.len() as u32).to_le_bytes().to_vec();
            head.extend(crc32fast::hash(data).to_le_bytes());
            let crc = crc32fast::hash(&[&salt[..], &place, &head].concat());
            log.extend(head);
            log.extend(crc.to_le_bytes());
            log.extend_from_slice(data);
        }
    }
    let whole = log.len() >= HEADER_BYTES;
    std::fs::write(&path, &log).expect("the log is written");
    let Ok(store) = open(dir.path()).await else { return };
    assert!(whole || how % 3 == 1, "a log without its header was taken");
    let Ok(found) = pairs(&*store).await else { return };
    if !foreign {
        let expected: Vec<(Bytes, Bytes)> = (0..found.len() as u8)
            .map(|n| {
                (
                    Bytes::copy_from_slice(&[b'a' + n]),
                    Bytes::copy_from_slice(&[n; 9]),
                )
            })
            .collect();
        assert_eq!(found, expected, "not what was there after {} writes", found.len());
    }
    let before = store.revision().await.expect("its revision");
    put(&*store, WRITES).await;
    assert_eq!(store.revision().await.expect("its revision"), before + 1);
    drop(store);
    let again = open(dir.path())
        .await
        .expect("what was opened and written opens again");
    assert_eq!(again.revision().await.expect("its revision"), before + 1);
}
