//! Logs with zeros after their end, as they are while a process has them open and after it was killed.

use std::fs;

use tempfile::TempDir;

use super::super::format::{FileKind, HEADER_BYTES, Header};
use super::{example, open, pairs, put, reopened};
use crate::Error;

/// The zeros that are after a log when the process is killed.
const ZEROS: [u8; 1000] = [0; 1000];

#[tokio::test]
async fn a_log_that_ends_in_zeros_is_complete_up_to_its_last_whole_group() {
    let dir = TempDir::new().unwrap();
    let (log, ends) = example(dir.path()).await;
    let (revision, pairs) = reopened(&[&log[..], &ZEROS].concat()).await.unwrap();
    assert_eq!((revision, pairs.len()), (7, 4));
    // Sectors of the last group that did not reach the disk are zeros.
    let last = ends[5];
    for place in last..log.len() {
        for change in [log[place], 0x80] {
            let mut torn = [&log[..], &ZEROS].concat();
            torn[place] ^= change;
            if torn[place] == log[place] {
                continue;
            }
            let (revision, _) = reopened(&torn).await.unwrap();
            assert_eq!(revision, 6, "byte {place}");
        }
    }
    let (revision, _) = reopened(&[&log[..last], &ZEROS].concat()).await.unwrap();
    assert_eq!(revision, 6);
    // Damage that is not at the end is found all the same.
    for place in HEADER_BYTES..last {
        let mut damaged = [&log[..], &ZEROS].concat();
        damaged[place] ^= 0x10;
        let error = reopened(&damaged).await.unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "byte {place}: {error}");
    }
}

/// As a crash leaves the logs after a rewrite has begun the next one.
#[tokio::test]
async fn the_log_before_the_last_one_may_end_in_zeros_but_not_early() {
    let dir = TempDir::new().unwrap();
    let (log, ends) = example(dir.path()).await;
    let next = Header {
        kind: FileKind::Log,
        number: 2,
        salt: 7,
        oldest: 1,
        revision: 7,
    };
    let last = ends[5];
    let mut torn = log.clone();
    torn[log.len() - 1] ^= 1;
    for (first, damaged) in [
        (&log[..], None),
        (&log[..last], Some("0000000002.log")),
        (&torn[..], Some("0000000001.log")),
    ] {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("0000000001.log"), [first, &ZEROS].concat()).unwrap();
        fs::write(dir.path().join("0000000002.log"), next.encode()).unwrap();
        match (open(dir.path()).await, damaged) {
            (Ok(store), None) => {
                assert_eq!(pairs(&store).await.unwrap().len(), 4);
                assert_eq!(put(&store, "after", b"the crash").await, 8);
            }
            (Err(Error::Corrupt { path, .. }), Some(damaged)) => assert!(path.ends_with(damaged), "{path}"),
            (opened, damaged) => panic!("{:?} instead of {damaged:?}", opened.map(|_| ())),
        }
    }
}
