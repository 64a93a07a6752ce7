//! The store behind all API servers, with every commit passed to the observer in the moment it is made; and one
//! server's connection to it, which can be slow or cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use knarr_apiserver::cache::Decoded;
use knarr_client::{Term, notified_until};
use knarr_store::{Error, KeyRange, Op, Range, RangeResult, Revision, Store, Txn, TxnResult, Watch};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;

use crate::Mutation;
use crate::distortion;
use crate::later::later;
use crate::observer::Observer;
use crate::random::Stream;
use crate::store_faults::{FROM_COMPONENT, StoreFaultState};
use crate::stored::{QUOTAS, key_of};
use crate::upgrade::{self, Version};

/// The buffer between a store's watch and the server that reads it.
const WATCH_BUFFER: usize = 1024;

tokio::task_local! {
    /// The leader's term in which the writes of this task were decided.
    pub(crate) static WRITTEN_IN: Term;
}

pub(crate) struct ObservedStore {
    pub inner: Arc<dyn Store>,
    pub observer: Arc<Observer>,
    pub mutation: Option<Mutation>,
    /// What the servers over it share: each still has a watch, a cache and a connection of its own.
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
        // The memory store finishes when it is first polled: nothing happens between the commit and the call of the
        // observer.
        let result = self.inner.txn(txn).await?;
        if let TxnResult::Committed { revision } = &result {
            if let Ok(term) = WRITTEN_IN.try_with(Term::clone) {
                self.observer.led(&term, ops.iter().map(key_of));
            }
            let of_quota = |op: &Op| key_of(op).starts_with(QUOTAS);
            if FROM_COMPONENT.try_with(|()| ()).is_ok() && ops.iter().any(of_quota) {
                self.observer.requested_by_component();
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
        // As etcd with several servers.
        true
    }
}

struct Link {
    cut: bool,
    /// Watches report nothing while requests go through: this server's cache is behind.
    behind: bool,
    /// The longest duration of a request, if the connection is slow.
    slowest_millis: u64,
    chance: Stream,
    damage: StoreFaultState,
}

/// One server's connection to the store. A cut is a partition between server and store.
#[derive(Clone)]
pub(crate) struct StoreLink {
    pub inner: Arc<ObservedStore>,
    version: Arc<Version>,
    link: Arc<Mutex<Link>>,
    changed: Arc<Notify>,
    /// How often the server's watches broke.
    breaks: Arc<AtomicU64>,
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
                damage: StoreFaultState::default(),
            })),
            changed: Arc::default(),
            breaks: Arc::default(),
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

    pub fn with_damage<T>(&self, change: impl FnOnce(&mut StoreFaultState) -> T) -> T {
        change(&mut self.link.lock().damage)
    }

    /// Until [`StoreLink::break_watches`].
    pub fn set_watches_behind(&self) {
        self.with_damage(|damage| damage.is_behind = true);
    }

    pub fn notify_watches(&self) {
        self.changed.notify_waiters();
    }

    /// Watches end with an error; what they had not reported is lost for them.
    pub fn break_watches(&self) {
        self.breaks.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    /// Waits until the server's watches have broken again.
    async fn broken(&self, breaks: u64) {
        let has_broken = || self.breaks.load(Ordering::Relaxed) != breaks;
        notified_until(&self.changed, || has_broken().then_some(())).await;
    }

    /// Waits until the server's watches report.
    async fn reports(&self) {
        notified_until(&self.changed, || self.is_well().then_some(())).await;
    }

    pub fn set_slowest(&self, millis: u64) {
        self.link.lock().slowest_millis = millis;
    }

    pub fn is_cut(&self) -> bool {
        self.link.lock().cut
    }

    /// The time until the store has the request.
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
            // The answer is sent separately: a commit may stay unknown to the server.
            self.travel().await?;
        }
        result
    }

    async fn watch(&self, keys: KeyRange, from: Revision) -> Result<Watch, Error> {
        self.travel().await?;
        let (items, received) = mpsc::channel(WATCH_BUFFER);
        let breaks = self.breaks.load(Ordering::Relaxed);
        let from = match self.inner.mutation {
            Some(Mutation::ResumeTooLate) if breaks > 0 => from + 1,
            _ => from,
        };
        let mut inner = match self.inner.watch(keys.clone(), from).await {
            Err(Error::Compacted { oldest, .. }) if self.inner.mutation == Some(Mutation::SkipCompacted) => {
                self.inner.watch(keys, oldest).await?
            }
            Err(error @ Error::Compacted { .. }) if self.with_damage(StoreFaultState::take_first_item) => {
                // There is room in the buffer: it is the first item.
                let _ = items.try_send(Err(error));
                return Ok(Watch::relayed(received, from));
            }
            other => other?,
        };
        let link = self.clone();
        let lost = || Error::Unavailable("the watch's connection was lost".into());
        tokio::spawn(async move {
            loop {
                let item = tokio::select! {
                    biased;
                    () = items.closed() => return,
                    () = link.broken(breaks) => Some(Err(lost())),
                    item = inner.next() => item,
                };
                let Some(mut item) = item else { return };
                loop {
                    tokio::select! {
                        biased;
                        () = items.closed() => return,
                        () = link.broken(breaks), if item.is_ok() => item = Err(lost()),
                        () = link.reports() => break,
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

impl StoreLink {
    /// Called with each commit: fails if the server does not get the answer.
    pub async fn lose_answer(&self, revision: Revision) -> Result<(), Error> {
        if FROM_COMPONENT.try_with(|()| ()).is_err() {
            return Ok(());
        }
        let Some(lost) = self.with_damage(|damage| damage.lost.pop_front()) else {
            return Ok(());
        };
        let observer = &self.inner.observer;
        observer.note(&format!("the answer to commit {revision} is lost"));
        if let Some(length) = lost.cut {
            self.cut_for(length);
        }
        sleep(lost.after).await;
        Err(Error::Unavailable(
            "the connection was lost before the store answered".into(),
        ))
    }

    /// From now on the store has none of these faults.
    pub fn mend(&self) {
        self.with_damage(|damage| *damage = StoreFaultState::default());
        self.notify_watches();
    }

    /// The store keeps only the newest `keeps` revisions, and the server's watches break.
    pub async fn compact_and_break(&self, keeps: u64, by_first_item: bool) -> Result<(), Error> {
        let store = &self.inner.inner;
        let oldest = store.revision().await?.saturating_sub(keeps).max(1);
        store.compact(oldest).await?;
        let note = format!("the store has compacted its history before revision {oldest}");
        self.inner.observer.note(&note);
        self.with_damage(|damage| {
            damage.is_behind = false;
            damage.fails_by_first_item = by_first_item;
        });
        self.break_watches();
        Ok(())
    }
}

impl StoreLink {
    /// Cuts the server off until then.
    fn cut_for(&self, length: Duration) {
        self.set_cut(true);
        let link = self.clone();
        later(length, move || link.set_cut(false));
    }
}
