//! The store behind all API servers, with every commit told to the observer in the moment it is made; and one
//! server's way to it, which can be slow or cut.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use knarr_apiserver::cache::Decoded;
use knarr_client::Term;
use knarr_store::{Error, KeyRange, Op, Range, RangeResult, Revision, Store, Txn, TxnResult, Watch};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::sleep;

use crate::Mutation;
use crate::distortion;
use crate::observer::Observer;
use crate::random::Stream;
use crate::store_faults::Damage;
use crate::upgrade::{self, Version};

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

pub(crate) fn key_of(op: &Op) -> &[u8] {
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
    damage: Damage,
}

/// One server's way to the store. A cut is a partition between server and store.
#[derive(Clone)]
pub(crate) struct StoreLink {
    pub inner: Arc<ObservedStore>,
    version: Arc<Version>,
    link: Arc<Mutex<Link>>,
    changed: Arc<Notify>,
    /// Counts the times the server's watches broke.
    breaks: watch::Sender<u64>,
}

impl StoreLink {
    pub fn new(inner: Arc<ObservedStore>, chance: Stream, version: Arc<Version>) -> Arc<Self> {
        Arc::new(StoreLink {
            inner,
            version,
            link: Arc::new(Mutex::new(Link {
                cut: false,
                behind: false,
                slowest_millis: 0,
                chance,
                damage: Damage::default(),
            })),
            changed: Arc::default(),
            breaks: watch::channel(0).0,
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
        !link.cut && !link.behind && !link.damage.is_behind
    }

    pub fn with_damage<T>(&self, change: impl FnOnce(&mut Damage) -> T) -> T {
        change(&mut self.link.lock().damage)
    }

    /// Until [`StoreLink::break_watches`].
    pub fn set_watches_behind(&self) {
        self.with_damage(|damage| damage.is_behind = true);
    }

    pub fn notify_watches(&self) {
        self.changed.notify_waiters();
    }

    /// Watches end with an error; what they had not reported is lost to them.
    pub fn break_watches(&self) {
        self.breaks.send_modify(|breaks| *breaks += 1);
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
        let txn = match self.version.is_former() {
            true => upgrade::as_former_stores(txn),
            false => txn,
        };
        let result = self.inner.txn(txn).await;
        if let Ok(TxnResult::Committed { revision }) = &result {
            self.lose_answer(*revision).await?;
        }
        let slow = self.link.lock().slowest_millis > 0;
        if slow {
            // The answer has its own way: what was committed may never be heard of.
            self.travel().await?;
        }
        result
    }

    async fn watch(&self, keys: KeyRange, from: Revision) -> Result<Watch, Error> {
        self.travel().await?;
        let (items, received) = mpsc::channel(WATCH_BUFFER);
        let mut broken = self.breaks.subscribe();
        let from = match self.inner.mutation {
            Some(Mutation::ResumeTooLate) if *broken.borrow() > 0 => from + 1,
            _ => from,
        };
        let mut inner = match self.inner.watch(keys.clone(), from).await {
            Err(Error::Compacted { oldest, .. }) if self.inner.mutation == Some(Mutation::SkipCompacted) => {
                self.inner.watch(keys, oldest).await?
            }
            Err(error @ Error::Compacted { .. }) if self.with_damage(Damage::take_first_item) => {
                // There is room: it is the first item.
                let _ = items.try_send(Err(error));
                return Ok(Watch::relayed(received, from));
            }
            other => other?,
        };
        let (link, changed) = (self.link.clone(), self.changed.clone());
        tokio::spawn(async move {
            loop {
                let item = tokio::select! {
                    biased;
                    () = items.closed() => return,
                    _ = broken.changed() => Some(Err(Error::Unavailable("the watch's connection was lost".into()))),
                    item = inner.next() => item,
                };
                let Some(mut item) = item else { return };
                loop {
                    let mut again = std::pin::pin!(changed.notified());
                    again.as_mut().enable();
                    let tells = {
                        let link = link.lock();
                        !link.cut && !link.behind && !link.damage.is_behind
                    };
                    if tells {
                        break;
                    }
                    tokio::select! {
                        biased;
                        () = items.closed() => return,
                        _ = broken.changed() => {
                            item = Err(Error::Unavailable("the watch's connection was lost".into()));
                        }
                        () = again => {}
                    }
                }
                let failed = item.is_err();
                if items.send(item).await.is_err() || failed {
                    return;
                }
            }
        });
        Ok(Watch::relayed(received, from))
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
