//! The etcd engine, against a real etcd that each test starts for itself on loopback.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use etcd_client::{Client, Permission};
use knarr_store::{Config, Credentials, Error, EtcdConfig, KeyRange, Range, Store, Tls, Txn, open};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::suite::{self, Law};

/// How long etcd may take to start: it elects itself first.
const START: Duration = Duration::from_secs(60);

/// A running etcd; stopped when dropped.
struct Etcd {
    child: Child,
    url: String,
    tls: Option<Tls>,
    _dir: TempDir,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Two free addresses. Another process may take one before etcd does; then starting is tried again.
fn free_addresses() -> [String; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().to_string())
}

/// Writes a CA, and a certificate for 127.0.0.1 with its key, to the directory. The same certificate is the client's.
fn write_certificates(dir: &Path) -> Tls {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(vec![]).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.distinguished_name.push(DnType::CommonName, "knarr test CA");
    let ca_certificate = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().unwrap();
    let mut leaf = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
    leaf.distinguished_name.push(DnType::CommonName, "knarr test");
    leaf.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let certificate = leaf.signed_by(&key, &issuer).unwrap().pem();
    std::fs::write(dir.join("ca.pem"), &ca_certificate).unwrap();
    std::fs::write(dir.join("certificate.pem"), &certificate).unwrap();
    std::fs::write(dir.join("key.pem"), key.serialize_pem()).unwrap();
    Tls {
        ca: Some(ca_certificate.into()),
        identity: Some((certificate.into(), key.serialize_pem().into())),
    }
}

impl Etcd {
    fn spawn(with_tls: bool) -> Etcd {
        let dir = TempDir::new().unwrap();
        let [client, peer] = free_addresses();
        let scheme = if with_tls { "https" } else { "http" };
        let (client, peer) = (format!("{scheme}://{client}"), format!("http://{peer}"));
        let mut command = Command::new("etcd");
        command
            .arg("--data-dir")
            .arg(dir.path().join("data"))
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
            .stderr(Stdio::null());
        let tls = with_tls.then(|| write_certificates(dir.path()));
        if with_tls {
            let flags = [
                ("--trusted-ca-file", "ca.pem"),
                ("--cert-file", "certificate.pem"),
                ("--key-file", "key.pem"),
            ];
            for (flag, file) in flags {
                command.arg(flag).arg(dir.path().join(file));
            }
            command.arg("--client-cert-auth");
        }
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("cannot run `etcd`: {error}. This test needs it: on Debian, apt-get install etcd-server")
        });
        Etcd {
            child,
            url: client,
            tls,
            _dir: dir,
        }
    }

    fn config(&self, prefix: &str) -> EtcdConfig {
        EtcdConfig {
            endpoints: vec![self.url.clone()],
            prefix: prefix.into(),
            credentials: None,
            tls: self.tls.clone(),
        }
    }

    async fn start() -> Etcd {
        Etcd::start_with(false).await
    }

    async fn start_with(tls: bool) -> Etcd {
        let deadline = tokio::time::Instant::now() + START;
        let mut etcd = Etcd::spawn(tls);
        loop {
            let error = match open(Config::Etcd(etcd.config(""))).await {
                Ok(_) => return etcd,
                Err(error) => error,
            };
            assert!(
                tokio::time::Instant::now() < deadline,
                "etcd did not start: {error}"
            );
            if etcd.child.try_wait().unwrap().is_some() {
                etcd = Etcd::spawn(tls);
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
async fn a_lost_etcd_is_reported_to_writers_and_watchers() {
    let etcd = Etcd::start().await;
    let store = etcd.store("/knarr/").await;
    suite::put(&*store, "a", "1").await;
    let mut watch = store.watch(KeyRange::prefix(""), 0).await.unwrap();
    drop(etcd);
    loop {
        match suite::next(&mut watch).await {
            Some(Ok(_)) => {}
            Some(Err(error)) => break assert!(matches!(error, Error::Unavailable(_)), "{error}"),
            None => panic!("the watch ended without an error"),
        }
    }
    let read = store.revision().await;
    assert!(matches!(read, Err(Error::Unavailable(_))), "{read:?}");
}

/// Forwards connections to an etcd until it has to lose the answers: then requests arrive and their connection breaks.
async fn relay(to: String, lose_answers: Arc<AtomicBool>) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (to, lose_answers) = (to.clone(), lose_answers.clone());
            tokio::spawn(async move {
                let server = tokio::net::TcpStream::connect(to).await.unwrap();
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let requests = tokio::spawn(async move {
                    // Ends with the connection, however that ends.
                    drop(tokio::io::copy(&mut from_client, &mut to_server).await);
                });
                let mut bytes = vec![0; 64 << 10];
                loop {
                    match from_server.read(&mut bytes).await {
                        Ok(read) if read > 0 && !lose_answers.load(Ordering::SeqCst) => {
                            if to_client.write_all(&bytes[..read]).await.is_err() {
                                break;
                            }
                        }
                        _ => break,
                    }
                }
                requests.abort();
            });
        }
    });
    format!("http://{address}")
}

/// A write whose answer is lost may have happened: the error is ambiguous, it is not sent a second time, and a paged
/// list at one revision continues over the next connection.
#[tokio::test]
async fn a_write_whose_answer_is_lost_is_not_taken_for_failed() {
    let etcd = Etcd::start().await;
    let direct = etcd.store("/knarr/").await;
    let lose_answers = Arc::new(AtomicBool::new(false));
    let to = etcd.url.trim_start_matches("http://").to_string();
    let mut config = etcd.config("/knarr/");
    config.endpoints = vec![relay(to, lose_answers.clone()).await];
    let store = open(Config::Etcd(config)).await.unwrap();
    for k in ["a", "b", "c"] {
        suite::put(&*store, k, "1").await;
    }
    let at = store.revision().await.unwrap();
    let page = |start: &'static str| Range {
        keys: KeyRange {
            start: suite::key(start),
            end: Some(suite::key("")),
        },
        at: Some(at),
        limit: 2,
        count_only: false,
    };
    let first = store.range(page("a")).await.unwrap();
    assert!(first.more && first.kvs.len() == 2);

    lose_answers.store(true, Ordering::SeqCst);
    let txn = Txn {
        compares: vec![],
        ops: vec![suite::put_op("c", "2")],
    };
    let error = store.txn(txn).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    let written = suite::get(&*direct, "c").await.unwrap();
    assert_eq!(
        (written.value, written.version),
        ("2".into(), 2),
        "once, and not twice"
    );
    let lost = store.range(page("c")).await;
    assert!(matches!(lost, Err(Error::Unavailable(_))), "{lost:?}");

    lose_answers.store(false, Ordering::SeqCst);
    // The broken connection may cost one more request.
    let mut rest = store.range(page("c")).await;
    for _ in 0..3 {
        if rest.is_ok() {
            break;
        }
        rest = store.range(page("c")).await;
    }
    let rest = rest.unwrap();
    assert_eq!(
        (rest.kvs.len(), &rest.kvs[0].value[..]),
        (1, &b"1"[..]),
        "at the first page's revision"
    );
    // etcd still reads the revision just before the oldest.
    suite::put(&*direct, "c", "3").await;
    direct.compact(at + 2).await.unwrap();
    let compacted = store.range(page("c")).await;
    assert!(matches!(compacted, Err(Error::Compacted { .. })), "{compacted:?}");
    let late = store.watch(KeyRange::prefix(""), at).await.map(|_| ());
    assert!(matches!(late, Err(Error::Compacted { .. })), "{late:?}");
}

#[tokio::test]
async fn an_etcd_that_is_not_there_is_named() {
    let [address, _] = free_addresses();
    let url = format!("http://{address}");
    let config = EtcdConfig {
        endpoints: vec![url.clone()],
        prefix: String::new(),
        credentials: None,
        tls: None,
    };
    let error = open(Config::Etcd(config)).await.map(|_| ()).unwrap_err();
    assert!(
        matches!(&error, Error::Unavailable(message) if message.contains(&url)),
        "{error}"
    );
}

#[tokio::test]
async fn tls_with_client_certificates() {
    let etcd = Etcd::start_with(true).await;
    let store = etcd.store("/knarr/").await;
    suite::put(&*store, "a", "1").await;
    assert_eq!(suite::get(&*store, "a").await.unwrap().value, "1");

    let mut anonymous = etcd.config("/knarr/");
    anonymous.tls.as_mut().unwrap().identity = None;
    let mut distrusting = etcd.config("/knarr/");
    let other = TempDir::new().unwrap();
    distrusting.tls.as_mut().unwrap().ca = write_certificates(other.path()).ca;
    // etcd's CA is not among the host's trusted CAs.
    let mut of_the_machine = etcd.config("/knarr/");
    of_the_machine.tls.as_mut().unwrap().ca = None;
    let mut in_plaintext = etcd.config("/knarr/");
    in_plaintext.endpoints = vec![etcd.url.replace("https", "http")];
    in_plaintext.tls = None;
    for (rejected, why) in [
        (anonymous, "no client certificate was shown to it"),
        (distrusting, "invalid peer certificate"),
        (of_the_machine, "invalid peer certificate"),
        (in_plaintext, ""),
    ] {
        let error = open(Config::Etcd(rejected)).await.map(|_| ()).unwrap_err();
        assert!(
            matches!(&error, Error::Unavailable(message) if message.contains(&etcd.url[5..]) && message.contains(why)),
            "{why}: {error}"
        );
    }
}

#[tokio::test]
async fn a_user_that_may_use_the_prefix_only() {
    let etcd = Etcd::start().await;
    let mut admin = Client::connect([&etcd.url], None).await.unwrap();
    admin.user_add("root", "secret", None).await.unwrap();
    admin.user_grant_role("root", "root").await.unwrap();
    admin.role_add("knarr").await.unwrap();
    let everything = Permission::read_write("/knarr/").with_prefix();
    admin.role_grant_permission("knarr", everything).await.unwrap();
    admin.user_add("knarr", "password", None).await.unwrap();
    admin.user_grant_role("knarr", "knarr").await.unwrap();
    admin.auth_enable().await.unwrap();

    let with = |password: &str, prefix: &str| {
        let credentials = Credentials {
            user: "knarr".into(),
            password: password.into(),
        };
        open(Config::Etcd(EtcdConfig {
            credentials: Some(credentials),
            ..etcd.config(prefix)
        }))
    };
    let store = with("password", "/knarr/").await.unwrap();
    let mut watch = store.watch(KeyRange::prefix(""), 0).await.unwrap();
    for value in ["1", "2", "3", "4"] {
        suite::put(&*store, "a", value).await;
    }
    assert_eq!(suite::events(&mut watch, 2).await, ["2:a=1", "3:a=2"]);
    store.compact(5).await.unwrap();
    let old = store
        .range(Range {
            keys: KeyRange::one("a"),
            at: Some(3),
            ..Range::default()
        })
        .await;
    assert!(matches!(old, Err(Error::Compacted { oldest: 5, .. })), "{old:?}");
    for (password, prefix) in [("wrong", "/knarr/"), ("password", "/other/")] {
        let error = with(password, prefix).await.map(|_| ()).unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error}");
    }
}
