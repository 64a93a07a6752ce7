//! What lies between a component and the API: delays, lost requests, answers lost after the commit, requests that
//! arrive long after their sender gave up (or died), partitions, watches that stall or break.
//!
//! A [`Network`] belongs to a component and outlives its incarnations; a [`Wire`] is one incarnation's. When an
//! incarnation dies, its requests hang forever, apart from those already sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use knarr_api::k8s_openapi::api::autoscaling::v1::Scale;
use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_api::{AnyObject, registry};
use knarr_apiserver::Server;
use knarr_client::{
    Api, Component, DeleteOptions, Error, Identities, Kind, List, ListOptions, Object, Patch, Result, Term,
    WatchEvent, WatchOptions, WatchStream,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::Mutation;
use crate::definitions;
use crate::disks;
use crate::distortion;
use crate::observer::Observer;
use crate::random::Stream;
use crate::servers::ApiServer;
use crate::store::WRITTEN_IN;
use crate::store_faults::FROM_COMPONENT;
use crate::upgrade;

/// The namespace of the leases by which nodes say that they are there.
const NODE_LEASES: &str = "kube-node-lease";
/// A proxy that heard no answer sends a request once more within this time.
const AGAIN_WITHIN_MILLIS: u64 = 10_000;

/// How bad it is, in thousandths of the requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weather {
    /// Refused before anything was done.
    pub refused: u32,
    /// Done, but the answer is lost.
    pub unanswered: u32,
    /// Done only seconds later, when the sender has long given up.
    pub late: u32,
    /// Done, and done again, if doing it twice is as good as once by HTTP's word (PUT, DELETE): a proxy heard no answer.
    pub again: u32,
    pub slowest_millis: u64,
}

struct State {
    weather: Weather,
    cut: bool,
    stalled: bool,
    /// Requests arrive and are carried out, and nothing comes back.
    deaf: bool,
    /// Writes that were sent have not arrived.
    held: bool,
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
                deaf: false,
                held: false,
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

    /// A partition in one direction: what is sent arrives, nothing is heard.
    pub fn set_deaf(&self, deaf: bool) {
        self.state.lock().deaf = deaf;
        self.changed.notify_waiters();
    }

    /// What is written arrives when this is over, as from a machine that was paused or a switch that kept it.
    pub fn set_held(&self, held: bool) {
        self.state.lock().held = held;
        self.changed.notify_waiters();
    }

    async fn arrives(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if !self.state.lock().held {
                return;
            }
            changed.await;
        }
    }

    pub fn break_watches(&self) {
        self.state.lock().breaks += 1;
        self.changed.notify_waiters();
    }

    pub fn is_cut(&self) -> bool {
        self.state.lock().cut
    }

    fn hears(&self) -> bool {
        let state = self.state.lock();
        !state.cut && !state.deaf
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

    /// After which pause a request is sent once more, if it is.
    fn draw_again(&self) -> Option<Duration> {
        let mut state = self.state.lock();
        let again = state.weather.again;
        // Where the weather knows of none, nothing is drawn.
        (again > 0 && state.chance.per_mille(again)).then(|| state.chance.millis(0, AGAIN_WITHIN_MILLIS))
    }

    /// Carries one request over, as the weather lets it.
    async fn carry<T: Send + 'static>(
        self: &Arc<Self>,
        write: bool,
        gone: &CancellationToken,
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
            let (gone, network) = (gone.clone(), self.clone());
            tokio::spawn(async move {
                sleep(travel).await;
                network.arrives().await;
                if gone.is_cancelled() {
                    return;
                }
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
        if matches!(fate, Fate::Unanswered) || !self.hears() {
            return Err(Error::timeout("the connection was lost before an answer came"));
        }
        answer
    }

    /// Whether all goes through, and is told.
    pub fn is_well(&self) -> bool {
        let state = self.state.lock();
        !state.cut && !state.stalled && !state.deaf && !state.held
    }

    fn choose(&self, servers: usize) -> usize {
        let last = u64::try_from(servers.saturating_sub(1)).unwrap_or_default();
        usize::try_from(self.state.lock().chance.between(0, last)).unwrap_or_default()
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
                if !state.cut && !state.stalled && !state.deaf {
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
    observer: Arc<Observer>,
    breaks: u64,
    /// Its server.
    gone: CancellationToken,
}

async fn next(mut watched: Watched) -> Option<(Result<WatchEvent>, Option<Watched>)> {
    let network = watched.network.clone();
    let event = tokio::select! {
        biased;
        event = watched.inner.next() => event,
        () = network.broken(watched.breaks) => None,
        () = watched.gone.cancelled() => None,
    };
    let lag = network.lag();
    if !lag.is_zero() {
        sleep(lag).await;
    }
    if watched.gone.is_cancelled() || !network.flows(watched.breaks).await {
        return Some((Err(Error::unavailable("the watch's connection was lost")), None));
    }
    let event = event?;
    if let Ok(event) = &event {
        let (object, gone) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => (Some(object), ""),
            WatchEvent::Deleted(object) => (Some(object), " is gone"),
            WatchEvent::Bookmark(_) => (None, ""),
        };
        if let Some(object) = object {
            watched.observer.tell(|| seen(&network.name, object) + gone);
        }
    }
    Some((event, Some(watched)))
}

/// For the story: a component has this object as it was at its revision.
fn seen(who: &str, object: &Object) -> String {
    let (kind, revision) = (object.kind().plural(), object.revision());
    format!(
        "{who} sees {revision} {kind} {}",
        full_name(object.namespace(), object.name())
    )
}

fn full_name(namespace: &str, name: &str) -> String {
    match namespace {
        "" => name.to_string(),
        namespace => format!("{namespace}/{name}"),
    }
}

/// Who asks.
#[derive(Clone)]
pub(crate) enum Identity {
    Component(Component),
    /// A mistake that is played: nothing denies it what it does.
    Mistaken,
    Administrator,
}

impl Identity {
    fn api(&self, server: &Arc<Server>) -> Arc<dyn Api> {
        match self {
            Identity::Component(component) => server.api(component),
            Identity::Mistaken => server.api_as("mistaken", ["system:masters"]),
            Identity::Administrator => server.api_as("admin", ["system:masters"]),
        }
    }
}

/// The server a component talks to: the next one, when this one does not answer.
struct Choice {
    server: usize,
    connection: Option<Connection>,
}

/// To one incarnation of a server.
#[derive(Clone)]
struct Connection {
    gone: CancellationToken,
    server: Arc<Server>,
}

/// Objects by namespace and name.
type Kept = BTreeMap<(String, String), Arc<Object>>;

/// The API as one incarnation of a component reaches it.
pub(crate) struct Wire {
    servers: Arc<Vec<Arc<ApiServer>>>,
    identity: Identity,
    /// Shared by all that one process is to the API.
    choice: Arc<Mutex<Choice>>,
    pub network: Arc<Network>,
    pub observer: Arc<Observer>,
    /// This incarnation is no more.
    pub dead: CancellationToken,
    pub mutation: Option<Mutation>,
    /// It is of the version before.
    is_former: bool,
    /// The leader's term that its writes are part of.
    term: Option<Term>,
    /// For [`Mutation::KeepReleased`]: every pod ever heard of, by namespace and name.
    kept: Arc<Mutex<Kept>>,
}

impl Wire {
    pub fn new(
        servers: Arc<Vec<Arc<ApiServer>>>,
        identity: Identity,
        network: Arc<Network>,
        observer: Arc<Observer>,
        dead: CancellationToken,
        mutation: Option<Mutation>,
    ) -> Self {
        let server = network.choose(servers.len());
        Wire {
            servers,
            identity,
            choice: Arc::new(Mutex::new(Choice {
                server,
                connection: None,
            })),
            network,
            observer,
            dead,
            mutation,
            is_former: false,
            term: None,
            kept: Arc::default(),
        }
    }

    /// The same of the version before.
    pub fn former(mut self, is_former: bool) -> Self {
        self.is_former = is_former;
        self
    }

    /// To the server it talks to; none: it is refused.
    fn connect(&self) -> Option<Connection> {
        let mut choice = self.choice.lock();
        if let Some(connection) = choice.connection.as_ref().filter(|c| !c.gone.is_cancelled()) {
            return Some(connection.clone());
        }
        choice.connection = self.connect_to(choice.server);
        choice.connection.clone()
    }

    fn connect_to(&self, server: usize) -> Option<Connection> {
        let server = self.servers.get(server % self.servers.len().max(1))?;
        let (gone, server) = server.running()?;
        Some(Connection { gone, server })
    }

    /// The API as this identity has it over a connection.
    fn api(&self, connection: &Connection) -> Arc<dyn Api> {
        let api = self.identity.api(&connection.server);
        match &self.term {
            Some(term) if self.mutation != Some(Mutation::ForgetTerm) => api.during(term.clone()),
            _ => api,
        }
    }

    /// The same process as somebody else.
    pub fn acting_as(&self, identity: Identity) -> Self {
        Wire {
            servers: self.servers.clone(),
            identity,
            choice: self.choice.clone(),
            network: self.network.clone(),
            observer: self.observer.clone(),
            dead: self.dead.clone(),
            mutation: self.mutation,
            is_former: self.is_former,
            term: self.term.clone(),
            kept: self.kept.clone(),
        }
    }

    fn in_term(&self, term: Term) -> Self {
        let choice = Choice {
            server: self.choice.lock().server,
            connection: None,
        };
        Wire {
            choice: Arc::new(Mutex::new(choice)),
            term: Some(term),
            ..self.acting_as(self.identity.clone())
        }
    }

    /// Tries another server from now on.
    fn turn_away(&self) {
        let mut choice = self.choice.lock();
        choice.server = (choice.server + 1) % self.servers.len().max(1);
        choice.connection = None;
    }

    async fn send<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
        &self,
        write: bool,
        request: impl FnOnce(Arc<dyn Api>) -> F,
    ) -> Result<T> {
        let sent = async {
            let Some(connection) = self.connect() else {
                return Err(self.refused().await);
            };
            let gone = &connection.gone;
            let request = request(self.api(&connection));
            match self.term.clone() {
                Some(term) => self.send_to(write, gone, WRITTEN_IN.scope(term, request)).await,
                None => self.send_to(write, gone, request).await,
            }
        };
        tokio::select! {
            biased;
            () = self.dead.cancelled() => std::future::pending().await,
            answer = sent => answer,
        }
    }

    /// As [`Wire::send`], for a write of which HTTP says that it may be repeated: what stands between may send it a second
    /// time, to another server, and it is the second answer that comes back.
    async fn send_repeatable<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
        &self,
        request: impl Fn(Arc<dyn Api>) -> F,
    ) -> Result<T> {
        let Some(pause) = self.network.draw_again() else {
            return self.send(true, request).await;
        };
        let second = self.connect_to(self.choice.lock().server + 1);
        let second = second.map(|second| (second.gone.clone(), request(self.api(&second))));
        let note = format!(
            "a write of {} is sent again after {} ms",
            self.network.name,
            pause.as_millis()
        );
        let observer = self.observer.clone();
        self.send(true, |api| {
            let first = request(api);
            async move {
                let answer = first.await;
                let Some((gone, second)) = second else {
                    return answer;
                };
                observer.note(&note);
                sleep(pause).await;
                match gone.is_cancelled() {
                    true => Err(Error::timeout("the connection was lost before an answer came")),
                    false => second.await,
                }
            }
        })
        .await
    }

    /// For the story: who asks for what, and what they are answered.
    async fn told<T>(&self, what: String, asked: impl Future<Output = Result<T>>) -> Result<T> {
        let (who, observer) = (&self.network.name, &self.observer);
        observer.tell(|| format!("{who} asks to {what}"));
        let answer = asked.await;
        observer.tell(|| match &answer {
            Ok(_) => format!("{who} is answered: {what}: done"),
            Err(e) => format!("{who} is answered: {what}: {e}"),
        });
        answer
    }

    async fn refused(&self) -> Error {
        self.turn_away();
        sleep(Duration::from_millis(20)).await;
        Error::unavailable("dial tcp: connection refused")
    }

    /// To the incarnation of a server that rings `gone` when it dies.
    async fn send_to<T: Send + 'static>(
        &self,
        write: bool,
        gone: &CancellationToken,
        request: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let answer = tokio::select! {
            biased;
            // Whatever it has done, it did not live to say.
            () = gone.cancelled() => Err(Error::timeout("the connection was lost before an answer came")),
            answer = self.network.carry(write, gone, FROM_COMPONENT.scope((), request)) => answer,
        };
        if answer.as_ref().is_err_and(|e| e.code() >= 500) {
            self.turn_away();
        }
        answer
    }

    /// For [`Mutation::MountWithoutAttach`]: the node that takes every record of volumes for its own.
    fn asks_nobody(&self, kind: &Kind) -> Option<&str> {
        let applies =
            self.mutation == Some(Mutation::MountWithoutAttach) && kind == &registry::VOLUME_ATTACHMENT;
        self.network.name.strip_prefix("node/").filter(|_| applies)
    }

    /// For [`Mutation::MissOwners`]: whether the controllers do not see objects of this kind.
    fn misses(&self, kind: &Kind) -> bool {
        let is_controller = self.network.name.starts_with("control-");
        is_controller && self.mutation == Some(Mutation::MissOwners) && kind.group() == definitions::GROUP
    }

    fn is_kubelet(&self) -> bool {
        self.network.name.starts_with("node/")
    }

    /// When a node's lease is being written: now. The node's network agent writes one of its own, which renews nothing.
    fn renewal_begins(&self, kind: &Kind, object: &dyn AnyObject) -> Option<Timestamp> {
        let is_node_lease = object.metadata().namespace.as_deref() == Some(NODE_LEASES);
        let renews = kind == &registry::LEASE && is_node_lease && self.is_kubelet();
        renews.then(|| self.observer.world(|w| w.now))
    }

    /// A list as a mistaken component takes it.
    fn distort_list(&self, kind: &Kind, namespace: &str, mut list: List) -> List {
        if kind == &registry::ENDPOINT_SLICE && self.is_kubelet() && self.mutation.is_some() {
            let read = |slice| distortion::read_slice(self.mutation, slice);
            list.items = list.items.into_iter().map(read).collect();
        }
        if kind != &registry::POD {
            return list;
        }
        let (mutation, is_kubelet) = (self.mutation, self.is_kubelet());
        list.items
            .retain(|pod| !distortion::hides(mutation, is_kubelet, pod));
        list.items = list
            .items
            .into_iter()
            .map(|pod| distortion::read(mutation, is_kubelet, pod))
            .collect();
        match self.mutation {
            Some(Mutation::KeepReleased) if self.is_kubelet() => {
                let mut kept = self.kept.lock();
                for pod in list.items.iter().filter(|pod| !is_forced(pod)) {
                    kept.insert((pod.namespace().to_string(), pod.name().to_string()), pod.clone());
                }
                let all = kept
                    .values()
                    .filter(|p| namespace.is_empty() || p.namespace() == namespace);
                list.items = all.cloned().collect();
            }
            _ => {}
        }
        list
    }

    /// As [`Wire::distort_list`], for what a watch tells.
    fn distort_watch(&self, kind: &Kind, stream: WatchStream) -> WatchStream {
        if kind == &registry::ENDPOINT_SLICE && self.is_kubelet() && self.mutation.is_some() {
            let mutation = self.mutation;
            let read = move |event| match event {
                Ok(WatchEvent::Added(slice)) => {
                    Ok(WatchEvent::Added(distortion::read_slice(mutation, slice)))
                }
                Ok(WatchEvent::Modified(slice)) => {
                    Ok(WatchEvent::Modified(distortion::read_slice(mutation, slice)))
                }
                other => other,
            };
            return stream.map(read).boxed();
        }
        if kind != &registry::POD {
            return stream;
        }
        let (mutation, is_kubelet) = (self.mutation, self.is_kubelet());
        if mutation.is_none() {
            return stream;
        }
        let stream = stream
            .map(move |event| match event {
                Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod))
                    if distortion::hides(mutation, is_kubelet, &pod) =>
                {
                    Ok(WatchEvent::Deleted(pod))
                }
                Ok(WatchEvent::Added(pod)) => {
                    Ok(WatchEvent::Added(distortion::read(mutation, is_kubelet, pod)))
                }
                Ok(WatchEvent::Modified(pod)) => {
                    Ok(WatchEvent::Modified(distortion::read(mutation, is_kubelet, pod)))
                }
                other => other,
            })
            .boxed();
        match mutation {
            Some(Mutation::KeepReleased) if self.is_kubelet() => {
                let kept = self.kept.clone();
                let keep = move |event: &Result<WatchEvent>| {
                    let hears = match event {
                        Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) if !is_forced(pod) => {
                            let key = (pod.namespace().to_string(), pod.name().to_string());
                            kept.lock().insert(key, pod.clone());
                            true
                        }
                        Ok(WatchEvent::Bookmark(_)) | Err(_) => true,
                        Ok(_) => false,
                    };
                    std::future::ready(hears)
                };
                stream.filter(keep).boxed()
            }
            _ => stream,
        }
    }
}

/// Whether somebody has said that this pod's node is not waited for.
fn is_forced(pod: &Object) -> bool {
    pod.metadata().deletion_grace_period_seconds == Some(0)
}

impl Identities for Wire {
    fn of(&self, component: &Component) -> Arc<dyn Api> {
        Arc::new(self.acting_as(Identity::Component(component.clone())))
    }

    fn during(self: Arc<Self>, term: Term) -> Arc<dyn Identities> {
        Arc::new(self.in_term(term))
    }
}

#[async_trait]
impl Api for Wire {
    fn during(self: Arc<Self>, term: Term) -> Arc<dyn Api> {
        Arc::new(self.in_term(term))
    }

    async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Arc<Object>> {
        if let Some(node) = self.asks_nobody(kind) {
            return disks::attached_to(node, name);
        }
        if self.misses(kind) {
            return Err(Error::not_found(kind.about(name)));
        }
        let (kind, namespace, name) = (kind.clone(), namespace.to_string(), name.to_string());
        self.send(
            false,
            |api| async move { api.get(&kind, &namespace, &name).await },
        )
        .await
    }

    async fn list(&self, kind: &Kind, options: ListOptions) -> Result<List> {
        let (asked, namespace) = (kind.clone(), options.namespace.clone());
        let list = self.send(false, |api| async move { api.list(&asked, options).await });
        let mut list = self.distort_list(kind, &namespace, list.await?);
        if self.misses(kind) {
            list.items.clear();
        }
        for object in &list.items {
            self.observer
                .tell(|| seen(&self.network.name, object) + " in a list");
        }
        Ok(list)
    }

    async fn watch(&self, kind: &Kind, options: WatchOptions) -> Result<WatchStream> {
        let begun = async {
            // The stream lives as long as the server it comes from.
            let Some(connection) = self.connect() else {
                return Err(self.refused().await);
            };
            let api = self.api(&connection);
            let gone = connection.gone;
            let asked = kind.clone();
            let request = async move { api.watch(&asked, options).await };
            let stream = self.send_to(false, &gone, request).await?;
            Ok((stream, gone))
        };
        let (stream, gone) = tokio::select! {
            biased;
            () = self.dead.cancelled() => std::future::pending().await,
            begun = begun => begun?,
        };
        self.observer
            .note(&format!("{} watches {}", self.network.name, kind.plural()));
        let stream = match self.misses(kind) {
            true => futures::stream::pending().boxed(),
            false => self.distort_watch(kind, stream),
        };
        let watched = Watched {
            inner: stream,
            gone,
            network: self.network.clone(),
            observer: self.observer.clone(),
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

    async fn scale(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Scale> {
        let (kind, namespace, name) = (kind.clone(), namespace.to_string(), name.to_string());
        self.send(
            false,
            |api| async move { api.scale(&kind, &namespace, &name).await },
        )
        .await
    }

    async fn update_scale(&self, kind: &Kind, scale: Scale) -> Result<Scale> {
        let kind = kind.clone();
        self.send(true, |api| async move { api.update_scale(&kind, scale).await })
            .await
    }

    async fn create(&self, kind: &Kind, object: Box<dyn AnyObject>) -> Result<Arc<Object>> {
        let kind = kind.clone();
        let meta = object.metadata();
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let name = meta.name.as_deref().or(meta.generate_name.as_deref());
        let what = format!(
            "create {} {}",
            kind.plural(),
            full_name(namespace, name.unwrap_or_default())
        );
        // The first renewal is the lease's creation.
        let sent = self.renewal_begins(&kind, &*object);
        let asked = distortion::asked(self.mutation, &*object);
        let of = kind.clone();
        let created = self.send(true, |api| async move { api.create(&kind, object).await });
        let answer = self.told(what, created).await;
        let answer = distortion::answer(self.mutation, &self.observer, (&of, asked), answer);
        self.observer.answered(&self.network.name, &answer);
        if let Some(sent) = sent.filter(|_| answer.is_ok()) {
            self.observer.renewal_answered(&self.network.name, sent);
        }
        answer
    }

    async fn update(
        &self,
        kind: &Kind,
        mut object: Box<dyn AnyObject>,
        subresource: &str,
    ) -> Result<Arc<Object>> {
        let subresource = subresource.to_string();
        distortion::update(self.mutation, kind, &mut *object);
        if self.is_former {
            upgrade::as_former_writes(&mut *object);
        }
        if kind == &registry::POD && self.is_kubelet() {
            distortion::report(self.mutation, &self.observer, &mut *object);
        }
        let is_lost = self.mutation == Some(Mutation::NeverCountAgain) && kind == &registry::RESOURCE_QUOTA;
        if self.asks_nobody(kind).is_some() || is_lost {
            return Ok(Arc::new(Object::from_typed(kind, object)));
        }
        if kind == &registry::POD && self.is_kubelet() {
            let meta = object.metadata().clone();
            if self.mutation == Some(Mutation::DeleteBeforeTheEnd) && meta.deletion_timestamp.is_some() {
                let (namespace, name) = (meta.namespace.unwrap_or_default(), meta.name.unwrap_or_default());
                let mut options = DeleteOptions {
                    grace_period_seconds: Some(0),
                    ..DeleteOptions::default()
                };
                options.preconditions.uid = meta.uid;
                let kind = kind.clone();
                // Past the rule about requests: the store's own rule has to see it.
                return self
                    .send(true, |api| async move {
                        api.delete(&kind, &namespace, &name, options).await
                    })
                    .await;
            }
        }
        let sent = self.renewal_begins(kind, &*object);
        let meta = object.metadata();
        let name = meta.name.as_deref().unwrap_or_default();
        let name = full_name(meta.namespace.as_deref().unwrap_or_default(), name);
        let since = meta.resource_version.as_deref().unwrap_or("any revision");
        let what = format!("update {} {name} {subresource} (from {since})", kind.plural());
        let updated = self.send_repeatable(|api| {
            let (kind, object, subresource) = (kind.clone(), object.clone_box(), subresource.clone());
            async move { api.update(&kind, object, &subresource).await }
        });
        let asked = distortion::asked(self.mutation, &*object);
        let answer = self.told(what, updated).await;
        let answer = distortion::answer(self.mutation, &self.observer, (kind, asked), answer);
        self.observer.answered(&self.network.name, &answer);
        let answer = match answer {
            Err(_) if sent.is_some() && self.mutation == Some(Mutation::TakeSentForRenewed) => {
                return Ok(Arc::new(Object::from_typed(kind, object)));
            }
            answer => answer,
        };
        if let Some(sent) = sent.filter(|_| answer.is_ok()) {
            self.observer.renewal_answered(&self.network.name, sent);
        }
        answer
    }

    async fn patch(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        subresource: &str,
        patch: Patch,
    ) -> Result<Arc<Object>> {
        let is_unannounced = self.is_former || self.mutation == Some(Mutation::StartUnannounced);
        if is_unannounced && upgrade::is_announcement(&patch) {
            return self.get(kind, namespace, name).await;
        }
        let (namespace, name) = (namespace.to_string(), name.to_string());
        let (kind, subresource) = (kind.clone(), subresource.to_string());
        let of = full_name(&namespace, &name);
        let what = format!("patch {} {of} {subresource}", kind.plural());
        let patched = self.send(true, |api| async move {
            api.patch(&kind, &namespace, &name, &subresource, patch).await
        });
        self.told(what, patched).await
    }

    async fn delete(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        mut options: DeleteOptions,
    ) -> Result<Arc<Object>> {
        let (namespace, name) = (namespace.to_string(), name.to_string());
        if kind == &registry::POD {
            match self.mutation {
                Some(Mutation::ForceAway) if !self.is_kubelet() => options.grace_period_seconds = Some(0),
                Some(Mutation::ReplaceLost)
                    if !self.is_kubelet() && self.observer.is_lost_set_pod(&namespace, &name) =>
                {
                    options.grace_period_seconds = Some(0);
                }
                Some(Mutation::ForgetUid) => options.preconditions.uid = None,
                Some(Mutation::LoseLastStep) if self.is_kubelet() => {
                    return self.get(kind, &namespace, &name).await;
                }
                _ => {}
            }
            if !self.dead.is_cancelled() {
                self.observer.delete_asked(&self.network.name, &name, &options);
            }
        }
        let grace = options.grace_period_seconds;
        let grace = grace.map_or("its own".to_string(), |seconds| format!("{seconds} s"));
        let of = full_name(&namespace, &name);
        let what = format!("delete {} {of} (grace: {grace})", kind.plural());
        let deleted = self.send_repeatable(|api| {
            let (namespace, name, options) = (namespace.clone(), name.clone(), options.clone());
            let kind = kind.clone();
            async move { api.delete(&kind, &namespace, &name, options).await }
        });
        self.told(what, deleted).await
    }

    async fn create_subresource(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        subresource: &str,
        body: serde_json::Value,
    ) -> Result<serde_json::Value> {
        let (namespace, name) = (namespace.to_string(), name.to_string());
        let (kind, subresource) = (kind.clone(), subresource.to_string());
        let of = full_name(&namespace, &name);
        let what = format!("create {} {of} {subresource}", kind.plural());
        let created = self.send(true, |api| async move {
            api.create_subresource(&kind, &namespace, &name, &subresource, body)
                .await
        });
        self.told(what, created).await
    }
}
