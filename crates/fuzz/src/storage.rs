//! The store's files after damage: a log of five transactions is written and then changed by the input.
//!
//! The first byte selects the damage: some bytes are changed, the file is truncated, or a frame with a correct checksum and
//! the input as its payload is appended (as by a store of another version). Then the store either does not open, or has the
//! state after the first n of its transactions and can be written to.

use std::path::Path;

use bytes::Bytes;
use knarr_store::{Config, KeyRange, Op, Range, Store, Txn};
use tempfile::TempDir;

use crate::Target;

/// The size of a log's header (`store/src/embedded/format.rs`).
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
            // A transaction that puts "v" under "k", after revision 7.
            [
                &[2u8][..],
                &7u64.to_le_bytes(),
                &[1, 1, 0, 0, 0, 1, 1, 0, 0, 0, b'k', 1, 0, 0, 0, b'v'],
            ]
            .concat(),
            // A compaction at revision 3.
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
        .expect("a store that opened can be written to");
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
    let Some((damage, data)) = data.split_first() else {
        return;
    };
    let dir = TempDir::new().expect("a directory");
    let store = open(dir.path()).await.expect("a new store opens");
    for n in 0..WRITES {
        put(&*store, n).await;
    }
    drop(store);
    let path = dir.path().join("0000000001.log");
    let mut log = std::fs::read(&path).expect("its log");
    let foreign = damage % 3 == 2;
    match damage % 3 {
        0 => {
            for change in data.chunks_exact(3) {
                let offset = usize::from(u16::from_le_bytes([change[0], change[1]])) % log.len();
                log[offset] ^= change[2];
            }
        }
        1 => log.truncate(data.first().map_or(0, |len| usize::from(*len) % log.len())),
        _ => {
            let (salt, offset) = (log[16..24].to_vec(), (log.len() as u64).to_le_bytes());
            let mut head = (data.len() as u32).to_le_bytes().to_vec();
            head.extend(crc32fast::hash(data).to_le_bytes());
            let crc = crc32fast::hash(&[&salt[..], &offset, &head].concat());
            log.extend(head);
            log.extend(crc.to_le_bytes());
            log.extend_from_slice(data);
        }
    }
    let has_header = log.len() >= HEADER_BYTES;
    std::fs::write(&path, &log).expect("the log is written");
    let Ok(store) = open(dir.path()).await else { return };
    assert!(has_header || damage % 3 == 1, "a log without a header was opened");
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
        assert_eq!(found, expected, "not the state after {} writes", found.len());
    }
    let before = store.revision().await.expect("its revision");
    put(&*store, WRITES).await;
    assert_eq!(store.revision().await.expect("its revision"), before + 1);
    drop(store);
    let again = open(dir.path())
        .await
        .expect("a store that was opened and written opens again");
    assert_eq!(again.revision().await.expect("its revision"), before + 1);
}
