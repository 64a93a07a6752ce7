//! The engine for several servers: an etcd v3 cluster, spoken to through etcd-client.
//!
//! etcd's revision is the store's revision, so other users of the same etcd increase it too; keys have a prefix. It
//! differs from our own engines in this: progress is reported when etcd reports it (every ten minutes by default), and a
//! watch from a compacted revision may get that error as its first item.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use etcd_client::{
    Certificate, Client, CompareOp, ConnectOptions, EventType, GetOptions, Identity, KvClient,
    MaintenanceClient, ResponseHeader, TlsOptions, TxnOp, TxnOpResponse, WatchClient, WatchOptions,
    WatchResponse, WatchStream,
};
use tokio::sync::mpsc;

use crate::hub::WATCH_QUEUE_BATCHES;
use crate::progress::Progress;
use crate::{
    Compare, Error, Event, KeyRange, KeyValue, Op, Range, RangeResult, Revision, Store, Txn, TxnResult,
    Watch, WatchItem,
};

/// The endpoints of etcd and the credentials of its client.
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// URLs, such as `https://10.0.0.1:2379`.
    pub endpoints: Vec<String>,
    /// The prefix of every key; several clusters can share one etcd by it.
    pub prefix: String,
    pub credentials: Option<Credentials>,
    pub tls: Option<Tls>,
}

#[derive(Clone)]
pub struct Credentials {
    pub user: String,
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// PEM texts.
#[derive(Clone)]
pub struct Tls {
    /// The CAs of etcd's certificate; `None`: the host's trusted CAs.
    pub ca: Option<Vec<u8>>,
    /// Our certificate and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// How long one request may take, connecting included.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How often a connection without traffic is tried, so that a watch notices a vanished server.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The largest answer: a list of some hundred thousand pods. etcd itself has no limit for answers.
const MAX_ANSWER_BYTES: usize = 1 << 30;

pub(crate) struct EtcdStore {
    kv: KvClient,
    maintenance: MaintenanceClient,
    watches: WatchClient,
    prefix: Bytes,
}

impl EtcdStore {
    pub async fn connect(config: EtcdConfig) -> Result<Self, Error> {
        let mut options = ConnectOptions::new()
            .with_timeout(TIMEOUT)
            .with_connect_timeout(TIMEOUT)
            .with_keep_alive(KEEP_ALIVE, TIMEOUT)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some(Credentials { user, password }) = config.credentials {
            options = options.with_user(user, password);
        }
        // With TLS 1.3 a server that requires a certificate and gets none ends the connection after the handshake, often
        // without its reason reaching the client.
        let is_anonymous = config.tls.as_ref().is_some_and(|tls| tls.identity.is_none());
        if let Some(tls) = config.tls {
            let mut desired = match tls.ca {
                Some(ca) => TlsOptions::new().ca_certificate(Certificate::from_pem(ca)),
                None => TlsOptions::new().with_native_roots(),
            };
            if let Some((certificate, key)) = tls.identity {
                desired = desired.identity(Identity::from_pem(certificate, key));
            }
            options = options.with_tls(desired);
        }
        let unreachable = |error: String| {
            let hint = if is_anonymous {
                " (no client certificate was shown to it)"
            } else {
                ""
            };
            Error::Unavailable(format!("etcd at {}{hint}: {error}", config.endpoints.join(", ")))
        };
        let connecting = Client::connect(&config.endpoints, Some(options));
        let client = connecting.await.map_err(|error| unreachable(explained(&error)))?;
        let store = EtcdStore {
            kv: client.kv_client().max_decoding_message_size(MAX_ANSWER_BYTES),
            maintenance: client.maintenance_client(),
            watches: client.watch_client().max_decoding_message_size(MAX_ANSWER_BYTES),
            prefix: Bytes::from(config.prefix),
        };
        // Connecting is lazy; the caller needs an error now.
        store.revision().await.map_err(|error| match error {
            Error::Unavailable(why) => unreachable(why),
            error => unreachable(error.to_string()),
        })?;
        Ok(store)
    }

    fn key(&self, key: &[u8]) -> Vec<u8> {
        [&self.prefix, key].concat()
    }

    /// Start and, unless it is a single key, end as etcd expects them.
    fn range_of(&self, keys: &KeyRange) -> (Vec<u8>, Option<Vec<u8>>) {
        let start = self.key(&keys.start);
        let end = keys.end.as_ref().map(|end| match &end[..] {
            [] => KeyRange::prefix(self.prefix.clone())
                .end
                .unwrap_or_default()
                .to_vec(),
            end => self.key(end),
        });
        // To etcd, NUL is the empty key as a start, and "up to the last key" as an end.
        let start = if start.is_empty() { vec![0] } else { start };
        (start, end.map(|end| if end.is_empty() { vec![0] } else { end }))
    }

    fn pair(&self, pair: &etcd_client::KeyValue) -> KeyValue {
        KeyValue {
            key: Bytes::copy_from_slice(pair.key().strip_prefix(&self.prefix[..]).unwrap_or(pair.key())),
            value: Bytes::copy_from_slice(pair.value()),
            create_revision: pair.create_revision() as Revision,
            mod_revision: pair.mod_revision() as Revision,
            version: pair.version() as u64,
        }
    }

    /// The store's error for a failed request about revision `requested`.
    async fn store_error(&self, error: etcd_client::Error, requested: Revision) -> Error {
        let message = error.to_string();
        if message.contains("required revision has been compacted") {
            return match self.oldest().await {
                Ok(oldest) => Error::Compacted { requested, oldest },
                Err(error) => error,
            };
        }
        if message.contains("required revision is a future revision") {
            return match self.revision().await {
                Ok(newest) => Error::FutureRevision { requested, newest },
                Err(error) => error,
            };
        }
        if message.contains("database space exceeded") {
            return Error::NoSpace(message);
        }
        let malformed = [
            "duplicate key given",
            "too many operations",
            "request is too large",
            "key is not provided",
        ];
        if malformed.iter().any(|text| message.contains(text)) {
            return Error::BadTxn(message);
        }
        Error::Unavailable(message)
    }

    /// The oldest revision that can be read. etcd reports it only to a watch that starts too early.
    async fn oldest(&self) -> Result<Revision, Error> {
        let unavailable = |error: etcd_client::Error| Error::Unavailable(error.to_string());
        let options = WatchOptions::new().with_start_revision(1);
        let mut stream = self
            .watches
            .clone()
            .watch(self.key(b"\0"), Some(options))
            .await
            .map_err(unavailable)?;
        while let Some(response) = stream.message().await.map_err(unavailable)? {
            if response.compact_revision() > 0 {
                return Ok(response.compact_revision() as Revision + 1);
            }
            if response.canceled() {
                break;
            }
        }
        Err(Error::Unavailable(
            "etcd did not report its oldest revision".into(),
        ))
    }
}

/// An error with its causes: etcd-client's and tonic's own messages contain only that the call failed; whether a
/// certificate was rejected is in the causes.
fn explained(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

fn revision_of(header: Option<&ResponseHeader>) -> Revision {
    header.map_or(0, |header| header.revision() as Revision)
}

#[async_trait]
impl Store for EtcdStore {
    async fn range(&self, range: Range) -> Result<RangeResult, Error> {
        let requested = range.at.unwrap_or(0);
        if range.at == Some(0) {
            return Err(Error::Compacted { requested, oldest: 1 });
        }
        let (start, end) = self.range_of(&range.keys);
        let mut options = GetOptions::new()
            .with_limit(range.limit as i64)
            .with_revision(requested as i64);
        if let Some(end) = end {
            options = options.with_range(end);
        }
        if range.count_only {
            options = options.with_count_only();
        }
        let answer = self.kv.clone().get(start, Some(options)).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return Err(self.store_error(error, requested).await),
        };
        Ok(RangeResult {
            revision: revision_of(answer.header()),
            kvs: answer.kvs().iter().map(|pair| self.pair(pair)).collect(),
            more: answer.more(),
            count: answer.count() as usize,
        })
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResult, Error> {
        txn.check()?;
        let expected = txn.compares.len();
        let compared = txn
            .compares
            .iter()
            .map(|Compare::ModRevision { key, .. }| self.key(key));
        let current: Vec<TxnOp> = compared.map(|key| TxnOp::get(key, None)).collect();
        let compares = txn.compares.iter().map(|Compare::ModRevision { key, is }| {
            etcd_client::Compare::mod_revision(self.key(key), CompareOp::Equal, *is as i64)
        });
        let ops = txn.ops.iter().map(|op| match op {
            Op::Put { key, value } => TxnOp::put(self.key(key), value.to_vec(), None),
            Op::Delete { key } => TxnOp::delete(self.key(key), None),
        });
        let request = etcd_client::Txn::new()
            .when(compares.collect::<Vec<_>>())
            .and_then(ops.collect::<Vec<_>>())
            .or_else(current);
        let answer = match self.kv.clone().txn(request).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.store_error(error, 0).await),
        };
        let revision = revision_of(answer.header());
        if answer.succeeded() {
            return Ok(TxnResult::Committed { revision });
        }
        let current: Vec<Option<KeyValue>> = answer
            .op_responses()
            .iter()
            .filter_map(|response| match response {
                TxnOpResponse::Get(got) => Some(got.kvs().first().map(|pair| self.pair(pair))),
                _ => None,
            })
            .collect();
        if current.len() != expected {
            let got = current.len();
            return Err(Error::Unavailable(format!(
                "etcd answered {got} of {expected} reads of a transaction"
            )));
        }
        Ok(TxnResult::Failed { revision, current })
    }

    async fn watch(&self, keys: KeyRange, from: Revision) -> Result<Watch, Error> {
        let (start, end) = self.range_of(&keys);
        if from != 0 {
            // A watch would learn of a compaction only later.
            let mut options = GetOptions::new().with_count_only().with_revision(from as i64);
            if let Some(end) = &end {
                options = options.with_range(end.clone());
            }
            let read = self.kv.clone().get(start.clone(), Some(options)).await;
            match read {
                Ok(_) => {}
                Err(error) => match self.store_error(error, from).await {
                    Error::FutureRevision { .. } => {}
                    error => return Err(error),
                },
            }
        }
        let mut options = WatchOptions::new()
            .with_start_revision(from as i64)
            .with_progress_notify();
        if let Some(end) = end {
            options = options.with_range(end);
        }
        let mut stream = match self.watches.clone().watch(start, Some(options)).await {
            Ok(stream) => stream,
            Err(error) => return Err(self.store_error(error, from).await),
        };
        // Without the answer it is not sure that the watch sees what is written next.
        let created = match stream.message().await {
            Ok(Some(response)) if response.created() && !response.canceled() => response,
            Ok(Some(response)) => return Err(watch_ended(&response, from)),
            Ok(None) => return Err(Error::Unavailable("etcd ended the watch at once".into())),
            Err(error) => return Err(self.store_error(error, from).await),
        };
        let begins_at = if from == 0 {
            revision_of(created.header())
        } else {
            from - 1
        };
        let (items, receiver) = mpsc::channel(WATCH_QUEUE_BATCHES + 1);
        let progress = Progress::new(begins_at);
        let joined = Arc::new(AtomicBool::new(true));
        let store = EtcdStore {
            kv: self.kv.clone(),
            maintenance: self.maintenance.clone(),
            watches: self.watches.clone(),
            prefix: self.prefix.clone(),
        };
        tokio::spawn(store.forward(stream, from, items, progress.clone()));
        Ok(Watch::new(receiver, progress, joined, from.saturating_sub(1)))
    }

    async fn compact(&self, revision: Revision) -> Result<(), Error> {
        let newest = self.revision().await?;
        if revision > newest {
            return Err(Error::FutureRevision {
                requested: revision,
                newest,
            });
        }
        // Of the revision it compacts to etcd keeps only existing keys, not deletions.
        let Some(last_compacted) = revision
            .checked_sub(1)
            .filter(|last_compacted| *last_compacted > 0)
        else {
            return Ok(());
        };
        match self.kv.clone().compact(last_compacted as i64, None).await {
            Ok(_) => Ok(()),
            Err(error) => match self.store_error(error, revision).await {
                Error::Compacted { .. } => Ok(()),
                error => Err(error),
            },
        }
    }

    async fn revision(&self) -> Result<Revision, Error> {
        // Any linearizable read returns it.
        let options = GetOptions::new().with_count_only();
        let read = self.kv.clone().get(self.key(b"\0"), Some(options)).await;
        let read = read.map_err(|error| Error::Unavailable(explained(&error)))?;
        Ok(revision_of(read.header()))
    }

    async fn size_bytes(&self) -> Result<u64, Error> {
        let status = self.maintenance.clone().status().await;
        let status = status.map_err(|error| Error::Unavailable(explained(&error)))?;
        Ok(u64::try_from(status.db_size()).unwrap_or(0))
    }

    fn is_shared(&self) -> bool {
        true
    }
}

/// Why etcd cancelled a watch.
fn watch_ended(response: &WatchResponse, from: Revision) -> Error {
    match response.compact_revision() {
        0 => Error::Unavailable(format!("etcd ended the watch: {}", response.cancel_reason())),
        compacted => Error::Compacted {
            requested: from,
            oldest: compacted as Revision + 1,
        },
    }
}

impl EtcdStore {
    /// Forwards etcd's events, until either side closes.
    async fn forward(
        self,
        mut stream: WatchStream,
        from: Revision,
        items: mpsc::Sender<Result<WatchItem, Error>>,
        progress: Arc<Progress>,
    ) {
        let last = loop {
            let response = tokio::select! {
                response = stream.message() => response,
                () = items.closed() => return,
            };
            let response = match response {
                Ok(Some(response)) if response.canceled() => break watch_ended(&response, from),
                Ok(Some(response)) => response,
                Ok(None) => break Error::Unavailable("etcd closed the watch".into()),
                Err(error) => break Error::Unavailable(error.to_string()),
            };
            if response.events().is_empty() {
                progress.set(revision_of(response.header()));
                continue;
            }
            let events: Vec<Event> = response
                .events()
                .iter()
                .filter_map(|event| self.event(event))
                .collect();
            if items.max_capacity() - items.capacity() >= WATCH_QUEUE_BATCHES {
                break Error::Lagged;
            }
            if items.send(Ok(WatchItem::Events(Arc::new(events)))).await.is_err() {
                return;
            }
        };
        // One slot in the queue is kept for this; the watcher may have been dropped.
        drop(items.try_send(Err(last)));
    }

    fn event(&self, event: &etcd_client::Event) -> Option<Event> {
        let kv = event.kv().map(|pair| self.pair(pair))?;
        Some(Event {
            kv,
            deleted: event.event_type() == EventType::Delete,
        })
    }
}
