//! What lies between a component and the API: delays, lost requests, answers lost after the commit, requests that
//! arrive long after their sender gave up (or died), partitions, watches that stall or break.
//!
//! A [`Network`] belongs to a component and outlives its incarnations; a [`Wire`] is one incarnation's. When an
//! incarnation dies, its requests hang forever, apart from those already sent.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use knarr_api::{AnyObject, registry};
use knarr_client::{
    Api, DeleteOptions, Error, Kind, List, ListOptions, Object, Patch, Result, WatchEvent, WatchOptions,
    WatchStream,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::Sabotage;
use crate::observer::Observer;
use crate::random::Stream;

/// How bad it is, in thousandths of the requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weather {
    /// Refused before anything was done.
    pub refused: u32,
    /// Done, but the answer is lost.
    pub unanswered: u32,
    /// Done only seconds later, when the sender has long given up.
    pub late: u32,
    pub slowest_millis: u64,
}

struct State {
    weather: Weather,
    cut: bool,
    stalled: bool,
    /// Counts the times all connections broke.
    breaks: u64,
    chance: Stream,
}

pub(crate) struct Network {
    pub name: String,
    state: Mutex<State>,
    changed: Notify,
}

enum Fate {
    Normal,
    Refused,
    Unanswered,
    Late(Duration),
}

impl Network {
    pub fn new(name: &str, chance: Stream) -> Self {
        Network {
            name: name.to_string(),
            state: Mutex::new(State {
                weather: Weather::default(),
                cut: false,
                stalled: false,
                breaks: 0,
                chance,
            }),
            changed: Notify::new(),
        }
    }

    pub fn set_weather(&self, weather: Weather) {
        self.state.lock().weather = weather;
    }

    /// A partition; when it heals, watches go on where they were or have broken.
    pub fn set_cut(&self, cut: bool) {
        {
            let mut state = self.state.lock();
            state.cut = cut;
            if !cut && state.chance.per_mille(700) {
                state.breaks += 1;
            }
        }
        self.changed.notify_waiters();
    }

    /// Watches tell nothing while requests go through: caches are stale.
    pub fn set_stalled(&self, stalled: bool) {
        self.state.lock().stalled = stalled;
        self.changed.notify_waiters();
    }

    pub fn break_watches(&self) {
        self.state.lock().breaks += 1;
        self.changed.notify_waiters();
    }

    fn is_cut(&self) -> bool {
        self.state.lock().cut
    }

    fn draw(&self, write: bool) -> (Duration, Duration, Fate) {
        let mut state = self.state.lock();
        let weather = state.weather;
        let chance = &mut state.chance;
        // Most requests are quick whatever the weather.
        let mut delay = || {
            if weather.slowest_millis == 0 || chance.per_mille(800) {
                chance.millis(0, 2)
            } else {
                chance.millis(0, weather.slowest_millis)
            }
        };
        let (there, back) = (delay(), delay());
        let fate = if chance.per_mille(weather.refused) {
            Fate::Refused
        } else if chance.per_mille(weather.unanswered) {
            Fate::Unanswered
        } else if write && chance.per_mille(weather.late) {
            Fate::Late(chance.millis(500, 20_000))
        } else {
            Fate::Normal
        };
        (there, back, fate)
    }

    /// Carries one request over, as the weather lets it.
    async fn carry<T: Send + 'static>(
        self: &Arc<Self>,
        write: bool,
        request: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (there, back, fate) = self.draw(write);
        let unreachable = || Error::unavailable("dial tcp: connection refused");
        if self.is_cut() {
            sleep(there + Duration::from_millis(200)).await;
            return Err(unreachable());
        }
        let (travel, patience) = match fate {
            Fate::Refused => {
                sleep(there).await;
                return Err(unreachable());
            }
            Fate::Late(time) => (time, Duration::from_millis(500)),
            Fate::Normal | Fate::Unanswered => (there, Duration::from_secs(30)),
        };
        let answer = if write {
            // A task of its own: what is sent arrives, whatever becomes of its sender.
            let (answered, answer) = oneshot::channel();
            tokio::spawn(async move {
                sleep(travel).await;
                // Whoever asked may be gone.
                let _ = answered.send(request.await);
            });
            match tokio::time::timeout(patience, answer).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) | Err(_) => return Err(Error::timeout("the request timed out")),
            }
        } else {
            sleep(travel).await;
            request.await
        };
        sleep(back).await;
        if matches!(fate, Fate::Unanswered) || self.is_cut() {
            return Err(Error::timeout("the connection was lost before an answer came"));
        }
        answer
    }

    fn lag(&self) -> Duration {
        let mut state = self.state.lock();
        let slowest = state.weather.slowest_millis / 4;
        if slowest > 0 && state.chance.per_mille(50) {
            state.chance.millis(0, slowest)
        } else {
            Duration::ZERO
        }
    }

    /// Waits while nothing is told. `false`: the connection has broken meanwhile.
    async fn flows(&self, breaks: u64) -> bool {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let state = self.state.lock();
                if state.breaks != breaks {
                    return false;
                }
                if !state.cut && !state.stalled {
                    return true;
                }
            }
            changed.await;
        }
    }

    async fn broken(&self, breaks: u64) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.state.lock().breaks != breaks {
                return;
            }
            changed.await;
        }
    }
}

struct Watched {
    inner: WatchStream,
    network: Arc<Network>,
    breaks: u64,
}

async fn next(mut watched: Watched) -> Option<(Result<WatchEvent>, Option<Watched>)> {
    let network = watched.network.clone();
    let event = tokio::select! {
        biased;
        event = watched.inner.next() => event,
        () = network.broken(watched.breaks) => None,
    };
    let lag = network.lag();
    if !lag.is_zero() {
        sleep(lag).await;
    }
    if !network.flows(watched.breaks).await {
        return Some((Err(Error::unavailable("the watch's connection was lost")), None));
    }
    Some((event?, Some(watched)))
}

/// The API as one incarnation of a component reaches it.
pub(crate) struct Wire {
    pub inner: Arc<dyn Api>,
    pub network: Arc<Network>,
    pub observer: Arc<Observer>,
    /// This incarnation is no more.
    pub dead: CancellationToken,
    pub sabotage: Option<Sabotage>,
}

impl Wire {
    async fn send<T: Send + 'static>(
        &self,
        write: bool,
        request: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        tokio::select! {
            biased;
            () = self.dead.cancelled() => std::future::pending().await,
            answer = self.network.carry(write, request) => answer,
        }
    }

    fn is_kubelet(&self) -> bool {
        self.network.name.starts_with("node/")
    }
}

#[async_trait]
impl Api for Wire {
    async fn get(&self, kind: &'static Kind, namespace: &str, name: &str) -> Result<Arc<Object>> {
        let (inner, namespace, name) = (self.inner.clone(), namespace.to_string(), name.to_string());
        self.send(false, async move { inner.get(kind, &namespace, &name).await })
            .await
    }

    async fn list(&self, kind: &'static Kind, options: ListOptions) -> Result<List> {
        let inner = self.inner.clone();
        self.send(false, async move { inner.list(kind, options).await })
            .await
    }

    async fn watch(&self, kind: &'static Kind, options: WatchOptions) -> Result<WatchStream> {
        let inner = self.inner.clone();
        let stream = self
            .send(false, async move { inner.watch(kind, options).await })
            .await?;
        let watched = Watched {
            inner: stream,
            network: self.network.clone(),
            breaks: self.network.state.lock().breaks,
        };
        let events = futures::stream::unfold(Some(watched), |watched| async move {
            match watched {
                Some(watched) => next(watched).await,
                None => None,
            }
        });
        Ok(events.boxed())
    }

    async fn create(&self, kind: &'static Kind, object: Box<dyn AnyObject>) -> Result<Arc<Object>> {
        let inner = self.inner.clone();
        self.send(true, async move { inner.create(kind, object).await })
            .await
    }

    async fn update(
        &self,
        kind: &'static Kind,
        object: Box<dyn AnyObject>,
        subresource: &str,
    ) -> Result<Arc<Object>> {
        let (inner, subresource) = (self.inner.clone(), subresource.to_string());
        if kind == &registry::POD && self.is_kubelet() {
            let meta = object.metadata().clone();
            if self.sabotage == Some(Sabotage::DeleteBeforeTheEnd) && meta.deletion_timestamp.is_some() {
                let (namespace, name) = (meta.namespace.unwrap_or_default(), meta.name.unwrap_or_default());
                let mut options = DeleteOptions {
                    grace_period_seconds: Some(0),
                    ..DeleteOptions::default()
                };
                options.preconditions.uid = meta.uid;
                // Past the rule about requests: the store's own rule has to see it.
                return inner.delete(kind, &namespace, &name, options).await;
            }
        }
        self.send(
            true,
            async move { inner.update(kind, object, &subresource).await },
        )
        .await
    }

    async fn patch(
        &self,
        kind: &'static Kind,
        namespace: &str,
        name: &str,
        subresource: &str,
        patch: Patch,
    ) -> Result<Arc<Object>> {
        let (inner, namespace, name) = (self.inner.clone(), namespace.to_string(), name.to_string());
        let subresource = subresource.to_string();
        self.send(true, async move {
            inner.patch(kind, &namespace, &name, &subresource, patch).await
        })
        .await
    }

    async fn delete(
        &self,
        kind: &'static Kind,
        namespace: &str,
        name: &str,
        mut options: DeleteOptions,
    ) -> Result<Arc<Object>> {
        let (inner, namespace, name) = (self.inner.clone(), namespace.to_string(), name.to_string());
        if kind == &registry::POD {
            match self.sabotage {
                Some(Sabotage::ForceAway) if !self.is_kubelet() => options.grace_period_seconds = Some(0),
                Some(Sabotage::ForgetUid) => options.preconditions.uid = None,
                Some(Sabotage::LoseLastStep) if self.is_kubelet() => {
                    return inner.get(kind, &namespace, &name).await;
                }
                _ => {}
            }
            if !self.dead.is_cancelled() {
                self.observer.delete_asked(&self.network.name, &name, &options);
            }
        }
        self.send(true, async move {
            inner.delete(kind, &namespace, &name, options).await
        })
        .await
    }

    async fn create_subresource(
        &self,
        kind: &'static Kind,
        namespace: &str,
        name: &str,
        subresource: &str,
        body: serde_json::Value,
    ) -> Result<serde_json::Value> {
        let (inner, namespace, name) = (self.inner.clone(), namespace.to_string(), name.to_string());
        let subresource = subresource.to_string();
        self.send(true, async move {
            inner
                .create_subresource(kind, &namespace, &name, &subresource, body)
                .await
        })
        .await
    }
}
