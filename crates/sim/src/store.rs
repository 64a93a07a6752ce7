//! The store behind all API servers, with every commit told to the observer in the moment it is made; and one
//! server's way to it, which can be slow or cut.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use knarr_apiserver::cache::Decoded;
use knarr_client::Term;
use knarr_store::{Error, KeyRange, Op, Range, RangeResult, Revision, Store, Txn, TxnResult, Watch};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;

use crate::Mutation;
use crate::distortion;
use crate::observer::Observer;
use crate::random::Stream;

/// Items between a store's watch and the server that reads it.
const WATCH_BUFFER: usize = 1024;

tokio::task_local! {
    /// In which leader's term the writes of this task were decided.
    pub(crate) static WRITTEN_IN: Term;
}

pub(crate) struct ObservedStore {
    pub inner: Arc<dyn Store>,
    pub observer: Arc<Observer>,
    pub mutation: Option<Mutation>,
    /// What the servers over it share: each still has a watch, a cache and a way of its own.
    pub decoded: Arc<Decoded>,
}

#[async_trait]
impl Store for ObservedStore {
    async fn range(&self, range: Range) -> Result<RangeResult, Error> {
        self.inner.range(range).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResult, Error> {
        let txn = match self.mutation {
            None => txn,
            mutation => distortion::transaction(mutation, &self.observer, txn),
        };
        let ops = txn.ops.clone();
        // The memory store is done when it is first polled: nothing comes between the commit and its telling.
        let result = self.inner.txn(txn).await?;
        if let TxnResult::Committed { revision } = &result {
            if let Ok(term) = WRITTEN_IN.try_with(Term::clone) {
                self.observer.led(&term, ops.iter().map(key_of));
            }
            for op in &ops {
                match op {
                    Op::Put { key, value } => self.observer.committed(key, *revision, Some(value)),
                    Op::Delete { key } => self.observer.committed(key, *revision, None),
                }
            }
        }
        Ok(result)
    }

    async fn watch(&self, keys: KeyRange, from: Revision) -> Result<Watch, Error> {
        self.inner.watch(keys, from).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), Error> {
        self.inner.compact(revision).await
    }

    async fn revision(&self) -> Result<Revision, Error> {
        self.inner.revision().await
    }

    fn is_shared(&self) -> bool {
        // As etcd, where there are several servers.
        true
    }
}

fn key_of(op: &Op) -> &[u8] {
    match op {
        Op::Put { key, .. } | Op::Delete { key } => key,
    }
}

struct Link {
    cut: bool,
    /// What others write is not told, while requests go through: this server's cache is behind.
    behind: bool,
    /// How long a request takes at most, where the way is slow.
    slowest_millis: u64,
    chance: Stream,
}

/// One server's way to the store. A cut is a partition between server and store.
pub(crate) struct StoreLink {
    inner: Arc<ObservedStore>,
    link: Arc<Mutex<Link>>,
    changed: Arc<Notify>,
}

impl StoreLink {
    pub fn new(inner: Arc<ObservedStore>, chance: Stream) -> Arc<Self> {
        Arc::new(StoreLink {
            inner,
            link: Arc::new(Mutex::new(Link {
                cut: false,
                behind: false,
                slowest_millis: 0,
                chance,
            })),
            changed: Arc::default(),
        })
    }

    pub fn set_cut(&self, cut: bool) {
        self.link.lock().cut = cut;
        self.changed.notify_waiters();
    }

    pub fn set_behind(&self, behind: bool) {
        self.link.lock().behind = behind;
        self.changed.notify_waiters();
    }

    pub fn is_well(&self) -> bool {
        let link = self.link.lock();
        !link.cut && !link.behind
    }

    pub fn set_slowest(&self, millis: u64) {
        self.link.lock().slowest_millis = millis;
    }

    pub fn is_cut(&self) -> bool {
        self.link.lock().cut
    }

    /// The way there; after it the store has the request.
    async fn travel(&self) -> Result<(), Error> {
        let delay = {
            let mut link = self.link.lock();
            let slowest = link.slowest_millis;
            match slowest {
                0 => 0,
                slowest => link.chance.between(0, slowest),
            }
        };
        if delay > 0 {
            sleep(Duration::from_millis(delay)).await;
        }
        self.back()
    }

    fn back(&self) -> Result<(), Error> {
        match self.is_cut() {
            true => Err(Error::Unavailable("no member of the store answers".into())),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Store for StoreLink {
    async fn range(&self, range: Range) -> Result<RangeResult, Error> {
        self.travel().await?;
        self.inner.range(range).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResult, Error> {
        self.travel().await?;
        let result = self.inner.txn(txn).await;
        let slow = self.link.lock().slowest_millis > 0;
        if slow {
            // The answer has its own way: what was committed may never be heard of.
            self.travel().await?;
        }
        result
    }

    async fn watch(&self, keys: KeyRange, from: Revision) -> Result<Watch, Error> {
        self.travel().await?;
        let mut inner = self.inner.watch(keys, from).await?;
        let (items, heard) = mpsc::channel(WATCH_BUFFER);
        let (link, changed) = (self.link.clone(), self.changed.clone());
        tokio::spawn(async move {
            loop {
                let item = tokio::select! {
                    biased;
                    () = items.closed() => return,
                    item = inner.next() => item,
                };
                let Some(item) = item else { return };
                loop {
                    let mut again = std::pin::pin!(changed.notified());
                    again.as_mut().enable();
                    let tells = {
                        let link = link.lock();
                        !link.cut && !link.behind
                    };
                    if tells {
                        break;
                    }
                    tokio::select! {
                        biased;
                        () = items.closed() => return,
                        () = again => {}
                    }
                }
                let failed = item.is_err();
                if items.send(item).await.is_err() || failed {
                    return;
                }
            }
        });
        Ok(Watch::relayed(heard, from))
    }

    async fn compact(&self, revision: Revision) -> Result<(), Error> {
        self.travel().await?;
        self.inner.compact(revision).await
    }

    async fn revision(&self) -> Result<Revision, Error> {
        self.travel().await?;
        self.inner.revision().await
    }

    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }
}
