//! Killing the process that writes, and filling its disk. The process is this test binary, started again with a role
//! in its environment; it is killed by its own handle.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use knarr_store::{Config, Error, KeyRange, Op, Range, Txn, TxnResult, open};
use tempfile::TempDir;

use crate::suite::{get, key, put};

/// What the child is to do, and with which directory.
const ROLE: &str = "KNARR_STORE_TEST_ROLE";
const DIR: &str = "KNARR_STORE_TEST_DIR";

const WRITERS: usize = 16;

/// Long enough that every value spans file pages, so that a kill can tear it.
fn value(n: u64) -> Vec<u8> {
    format!("{n} ").repeat(700).into_bytes()
}

fn child(role: &str, dir: &Path, unshare: bool) -> Command {
    let exe = std::env::current_exe().unwrap();
    let mut command = if unshare {
        // A mount namespace of its own: the mount is removed with the process.
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount"]).arg(exe);
        command
    } else {
        Command::new(exe)
    };
    command.args([
        "--exact",
        "crash::child_process",
        "--nocapture",
        "--test-threads=1",
    ]);
    command
        .env(ROLE, role)
        .env(DIR, dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

/// Not a test by itself: what the other processes do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let dir = std::env::var(DIR).unwrap();
    match role.as_str() {
        "write" => write_until_killed(dir.as_ref()).await,
        "fill" => fill_the_disk(dir.as_ref()).await,
        other => panic!("no role {other}"),
    }
}

/// Each writer counts up in its own key, and prints what was acknowledged.
async fn write_until_killed(dir: &Path) {
    let store = open(Config::Embedded {
        dir: dir.to_path_buf(),
    })
    .await
    .unwrap();
    let writer = |w: usize| {
        let store = store.clone();
        tokio::spawn(async move {
            let name = format!("writer/{w}");
            let first = get(&*store, &name).await.map_or(0, |kv| kv.version) + 1;
            for n in first.. {
                let revision = put(&*store, &name, value(n)).await;
                // One call, so that a kill cannot leave half a line among whole ones.
                let line = format!("ack {w} {n} {revision}\n");
                std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                if n.is_multiple_of(50) {
                    store.compact(revision.saturating_sub(100).max(1)).await.unwrap();
                }
            }
        })
    };
    for writer in (0..WRITERS).map(writer).collect::<Vec<_>>() {
        writer.await.unwrap();
    }
}

/// What a child had acknowledged when it was killed.
fn kill_after(mut child: Child, acks: usize) -> Vec<(usize, u64, u64)> {
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut seen = Vec::new();
    // None at the end, which may be in the middle of a line. The test harness begins the first line.
    let mut next = || -> Option<Option<(usize, u64, u64)>> {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let line = line.strip_suffix('\n')?;
        let numbers = line.split_once("ack ").map(|(_, numbers)| numbers);
        Some(numbers.map(|numbers| {
            let mut numbers = numbers.split(' ').map(|number| number.parse::<u64>().unwrap());
            let mut number = || numbers.next().unwrap();
            (number() as usize, number(), number())
        }))
    };
    while seen.len() < acks {
        seen.extend(next().expect("the child ended by itself"));
    }
    child.kill().unwrap();
    // What it had printed before it died was acknowledged too.
    while let Some(ack) = next() {
        seen.extend(ack);
    }
    child.wait().unwrap();
    seen
}

#[tokio::test]
async fn no_acknowledged_write_is_lost_by_kill_9() {
    let dir = TempDir::new().unwrap();
    let mut newest = [0; WRITERS];
    let mut last_revision = 1;
    for round in 0..12 {
        let child = child("write", dir.path(), false).spawn().unwrap();
        for (w, n, revision) in kill_after(child, 40 + 97 * round) {
            assert!(n > newest[w], "writer {w} returned from {} to {n}", newest[w]);
            newest[w] = n;
            last_revision = revision.max(last_revision);
        }
        let store = open(Config::Embedded {
            dir: dir.path().to_path_buf(),
        })
        .await
        .unwrap();
        assert!(store.revision().await.unwrap() >= last_revision);
        for (w, newest) in newest.iter_mut().enumerate() {
            let kv = get(&*store, format!("writer/{w}")).await;
            let Some(kv) = kv else {
                assert_eq!(*newest, 0, "round {round}, writer {w}: the key is missing");
                continue;
            };
            assert!(
                kv.version >= *newest,
                "round {round}, writer {w}: {} of {newest}",
                kv.version
            );
            assert_eq!(kv.value, value(kv.version), "round {round}, writer {w}");
            // One write may have been durable without being acknowledged any more.
            assert!(kv.version <= *newest + 1);
            *newest = kv.version;
        }
    }
}

/// On a real file system of 4 MB.
async fn fill_the_disk(dir: &Path) {
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=4m", "knarr-test"])
        .arg(dir)
        .status();
    assert!(mount.unwrap().success(), "cannot mount a tmpfs");
    let config = Config::Embedded {
        dir: dir.join("data"),
    };
    let store = open(config.clone()).await.unwrap();
    let mut acknowledged = Vec::new();
    let full = loop {
        let k = format!("{:06}", acknowledged.len());
        let ops = vec![Op::Put {
            key: key(&k),
            value: value(acknowledged.len() as u64).into(),
        }];
        match store
            .txn(Txn {
                compares: vec![],
                ops,
            })
            .await
        {
            Ok(TxnResult::Committed { revision }) => acknowledged.push((k, revision)),
            other => break other,
        }
        assert!(acknowledged.len() < 10_000, "the disk does not fill");
    };
    assert!(matches!(full, Err(Error::NoSpace(_))), "{full:?}");
    let all = Range {
        keys: KeyRange::prefix(""),
        ..Range::default()
    };
    let check = |kvs: Vec<knarr_store::KeyValue>| {
        let found: Vec<_> = kvs
            .iter()
            .map(|kv| (kv.key.escape_ascii().to_string(), kv.mod_revision))
            .collect();
        assert_eq!(found, acknowledged);
        assert!(kvs.iter().enumerate().all(|(n, kv)| kv.value == value(n as u64)));
    };
    check(store.range(all.clone()).await.unwrap().kvs);
    drop(store);
    let store = open(config).await.unwrap();
    check(store.range(all).await.unwrap().kvs);
    println!("filled with {}", acknowledged.len());
    std::process::exit(0);
}

#[tokio::test]
async fn a_full_disk_is_an_error_and_loses_nothing() {
    let dir = TempDir::new().unwrap();
    let child = child("fill", dir.path(), true)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    let output = tokio::time::timeout(Duration::from_secs(60), output)
        .await
        .unwrap()
        .unwrap();
    let message =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && message.contains("filled with "),
        "{message}"
    );
}
