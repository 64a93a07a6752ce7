//! The etcd engine, against a real etcd that each test starts for itself on loopback.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use knarr_store::{Config, Error, EtcdConfig, KeyRange, Store, open};
use tempfile::TempDir;

use crate::suite::{self, Law};

/// How long etcd may take to start: it elects itself first.
const START: Duration = Duration::from_secs(60);

/// A running etcd; gone when dropped.
struct Etcd {
    child: Child,
    url: String,
    _dir: TempDir,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Two free ports. Another process may take one before etcd does; then starting is tried again.
fn free_urls() -> [String; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| format!("http://{}", listener.local_addr().unwrap()))
}

impl Etcd {
    fn spawn() -> Etcd {
        let dir = TempDir::new().unwrap();
        let [client, peer] = free_urls();
        let child = Command::new("etcd")
            .arg("--data-dir")
            .arg(dir.path())
            .args([
                "--name",
                "knarr",
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args([
                "--initial-cluster",
                &format!("knarr={peer}"),
                "--log-level",
                "error",
            ])
            .args(["--heartbeat-interval", "10", "--election-timeout", "100"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("cannot run `etcd`: {error}. This test needs it: on Debian, apt-get install etcd-server")
        });
        Etcd {
            child,
            url: client,
            _dir: dir,
        }
    }

    fn config(&self, prefix: &str) -> EtcdConfig {
        EtcdConfig {
            endpoints: vec![self.url.clone()],
            prefix: prefix.into(),
            credentials: None,
            tls: None,
        }
    }

    async fn start() -> Etcd {
        let deadline = tokio::time::Instant::now() + START;
        let mut etcd = Etcd::spawn();
        loop {
            if open(Config::Etcd(etcd.config(""))).await.is_ok() {
                return etcd;
            }
            assert!(tokio::time::Instant::now() < deadline, "etcd did not start");
            if etcd.child.try_wait().unwrap().is_some() {
                etcd = Etcd::spawn();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn store(&self, prefix: &str) -> Arc<dyn Store> {
        open(Config::Etcd(self.config(prefix))).await.unwrap()
    }
}

async fn with_store(law: Law) {
    let etcd = Etcd::start().await;
    law(etcd.store("/knarr/").await).await;
}

crate::laws!(with_store);

#[tokio::test]
async fn prefixes_keep_clusters_apart() {
    let etcd = Etcd::start().await;
    let (one, other, whole) = (
        etcd.store("/1/").await,
        etcd.store("/2/").await,
        etcd.store("").await,
    );
    let mut watch = other.watch(KeyRange::prefix(""), 0).await.unwrap();
    suite::put(&*one, "a", "mine").await;
    suite::put(&*other, "a", "theirs").await;
    assert_eq!(suite::get(&*one, "a").await.unwrap().value, "mine");
    assert_eq!(suite::get(&*whole, "/1/a").await.unwrap().value, "mine");
    assert_eq!(suite::events(&mut watch, 1).await, ["3:a=theirs"]);
    let range = knarr_store::Range {
        keys: KeyRange::prefix(""),
        ..Default::default()
    };
    assert_eq!(whole.range(range).await.unwrap().count, 2);
}

#[tokio::test]
async fn a_lost_etcd_is_told_to_writers_and_watchers() {
    let etcd = Etcd::start().await;
    let store = etcd.store("/knarr/").await;
    suite::put(&*store, "a", "1").await;
    let mut watch = store.watch(KeyRange::prefix(""), 0).await.unwrap();
    drop(etcd);
    loop {
        match suite::next(&mut watch).await {
            Some(Ok(_)) => {}
            Some(Err(error)) => break assert!(matches!(error, Error::Unavailable(_)), "{error}"),
            None => panic!("the watch ended without a word"),
        }
    }
    let read = store.revision().await;
    assert!(matches!(read, Err(Error::Unavailable(_))), "{read:?}");
}

#[tokio::test]
async fn an_etcd_that_is_not_there_is_named() {
    let [url, _] = free_urls();
    let config = EtcdConfig {
        endpoints: vec![url.clone()],
        prefix: String::new(),
        credentials: None,
        tls: None,
    };
    let error = open(Config::Etcd(config)).await.map(|_| ()).unwrap_err();
    assert!(
        matches!(&error, Error::Unavailable(told) if told.contains(&url)),
        "{error}"
    );
}
