//! The API as one incarnation of a component reaches it, over its [`Network`].
//!
//! When the incarnation dies, its requests hang forever, except those already sent.

mod distorted;
mod requests;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_api::{AnyObject, registry};
use knarr_apiserver::Server;
use knarr_client::{Api, Component, Error, Kind, Object, Result, Term};
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::Mutation;
use crate::definitions;
use crate::network::Network;
use crate::observer::Observer;
use crate::placement::{NAMESPACE, TENANT, is_of};
use crate::rules::b5_cross_node::preemptors;
use crate::servers::ApiServer;
use crate::store::WRITTEN_IN;
use crate::store_faults::FROM_COMPONENT;
use crate::world::Life;

/// The namespace of the nodes' leases (heartbeats).
const NODE_LEASES: &str = "kube-node-lease";

/// The user of a request.
#[derive(Clone)]
pub(crate) enum Identity {
    Component(Component),
    /// A mutant: no authorization denies what it does.
    Mutant,
    Administrator,
}

impl Identity {
    fn api(&self, server: &Arc<Server>) -> Arc<dyn Api> {
        match self {
            Identity::Component(component) => server.api(component),
            Identity::Mutant => server.api_as("mistaken", ["system:masters"]),
            Identity::Administrator => server.api_as("admin", ["system:masters"]),
        }
    }
}

/// The server that a component talks to: the next one, if this one does not answer.
struct ServerChoice {
    server: usize,
    connection: Option<Connection>,
}

/// To one incarnation of a server.
#[derive(Clone)]
struct Connection {
    stopped: CancellationToken,
    server: Arc<Server>,
}

/// Objects by namespace and name.
type PodsByName = BTreeMap<(String, String), Arc<Object>>;

/// The API as one incarnation of a component reaches it.
pub(crate) struct ComponentApi {
    servers: Arc<Vec<Arc<ApiServer>>>,
    identity: Identity,
    /// Shared by all clients of one process.
    choice: Arc<Mutex<ServerChoice>>,
    pub network: Arc<Network>,
    pub observer: Arc<Observer>,
    /// Cancelled when this incarnation dies.
    pub dead: CancellationToken,
    pub mutation: Option<Mutation>,
    /// It is of the previous version.
    is_former: bool,
    /// The leader's term that its writes are part of.
    term: Option<Term>,
    /// For [`Mutation::KeepReleased`]: every pod ever seen, by namespace and name.
    kept: Arc<Mutex<PodsByName>>,
}

impl ComponentApi {
    pub fn new(
        servers: Arc<Vec<Arc<ApiServer>>>,
        identity: Identity,
        network: Arc<Network>,
        observer: Arc<Observer>,
        dead: CancellationToken,
        mutation: Option<Mutation>,
    ) -> Self {
        let server = network.choose(servers.len());
        ComponentApi {
            servers,
            identity,
            choice: Arc::new(Mutex::new(ServerChoice {
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

    /// The same, of the previous version.
    pub fn former(mut self, is_former: bool) -> Self {
        self.is_former = is_former;
        self
    }

    /// The connection to its server; none: connection refused.
    fn connect(&self) -> Option<Connection> {
        let mut choice = self.choice.lock();
        if let Some(connection) = choice.connection.as_ref().filter(|c| !c.stopped.is_cancelled()) {
            return Some(connection.clone());
        }
        choice.connection = self.connect_to(choice.server);
        choice.connection.clone()
    }

    fn connect_to(&self, server: usize) -> Option<Connection> {
        let server = self.servers.get(server % self.servers.len().max(1))?;
        let (stopped, server) = server.running()?;
        Some(Connection { stopped, server })
    }

    /// The API of this identity over a connection.
    fn api(&self, connection: &Connection) -> Arc<dyn Api> {
        let api = self.identity.api(&connection.server);
        match &self.term {
            Some(term) if self.mutation != Some(Mutation::ForgetTerm) => api.with_term(term.clone()),
            _ => api,
        }
    }

    /// The same process with another identity.
    pub fn acting_as(&self, identity: Identity) -> Self {
        ComponentApi {
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
        let choice = ServerChoice {
            server: self.choice.lock().server,
            connection: None,
        };
        ComponentApi {
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
                return Err(self.rejected().await);
            };
            let stopped = &connection.stopped;
            let request = request(self.api(&connection));
            match self.term.clone() {
                Some(term) => {
                    self.send_to(write, stopped, WRITTEN_IN.scope(term, request))
                        .await
                }
                None => self.send_to(write, stopped, request).await,
            }
        };
        tokio::select! {
            biased;
            () = self.dead.cancelled() => std::future::pending().await,
            answer = sent => answer,
        }
    }

    /// As [`ComponentApi::send`], for an idempotent write: a proxy may send it a second time, to another server, and
    /// the second answer is returned. `copy` is called only then.
    async fn send_repeatable<B, T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
        &self,
        body: B,
        copy: fn(&B) -> B,
        request: impl Fn(Arc<dyn Api>, B) -> F,
    ) -> Result<T> {
        let Some(pause) = self.network.draw_again() else {
            return self.send(true, |api| request(api, body)).await;
        };
        let second = self.connect_to(self.choice.lock().server + 1);
        let second = second.map(|second| {
            let again = request(self.api(&second), copy(&body));
            (second.stopped.clone(), again)
        });
        let note = format!(
            "a write of {} is sent again after {} ms",
            self.network.name,
            pause.as_millis()
        );
        let observer = self.observer.clone();
        self.send(true, |api| {
            let first = request(api, body);
            async move {
                let answer = first.await;
                let Some((stopped, second)) = second else {
                    return answer;
                };
                observer.note(&note);
                sleep(pause).await;
                match stopped.is_cancelled() {
                    true => Err(Error::timeout("the connection was lost before an answer came")),
                    false => second.await,
                }
            }
        })
        .await
    }

    /// For the story, if there is one: the request, as `what` describes it, and its answer.
    async fn record_request<T>(
        &self,
        what: Option<String>,
        asked: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let Some(what) = what else {
            return asked.await;
        };
        let (who, observer) = (&self.network.name, &self.observer);
        observer.record(|| format!("{who} asks to {what}"));
        let answer = asked.await;
        observer.record(|| match &answer {
            Ok(_) => format!("{who} is answered: {what}: done"),
            Err(e) => format!("{who} is answered: {what}: {e}"),
        });
        answer
    }

    async fn rejected(&self) -> Error {
        self.turn_away();
        sleep(Duration::from_millis(20)).await;
        Error::unavailable("dial tcp: connection refused")
    }

    /// To the incarnation of a server that cancels `stopped` when it dies.
    async fn send_to<T: Send + 'static>(
        &self,
        write: bool,
        stopped: &CancellationToken,
        request: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let answer = tokio::select! {
            biased;
            // Whatever it has done, it died before it could answer.
            () = stopped.cancelled() => Err(Error::timeout("the connection was lost before an answer came")),
            answer = self.network.carry(write, stopped, FROM_COMPONENT.scope((), request)) => answer,
        };
        if answer.as_ref().is_err_and(|e| e.code() >= 500) {
            self.turn_away();
        }
        answer
    }

    /// For [`Mutation::MountWithoutAttach`]: the node, if it takes every VolumeAttachment for its own.
    fn reports_all_attached(&self, kind: &Kind) -> Option<&str> {
        let applies =
            self.mutation == Some(Mutation::MountWithoutAttach) && kind == &registry::VOLUME_ATTACHMENT;
        self.network.name.strip_prefix("node/").filter(|_| applies)
    }

    /// For [`Mutation::MissOwners`]: whether the controllers do not see objects of this kind.
    fn misses(&self, kind: &Kind) -> bool {
        let is_controller = self.network.name.starts_with("control-");
        is_controller && self.mutation == Some(Mutation::MissOwners) && kind.group() == definitions::GROUP
    }

    /// For [`Mutation::LeaveVictims`]: whether this pod is in the way of one whose preemption a fault has interrupted.
    fn leaves(&self, namespace: &str, name: &str) -> bool {
        let is_tenant = |life: &Life| {
            let named = life.pod.metadata.name.as_deref() == Some(name);
            named && !life.removed() && is_of(&life.pod, TENANT)
        };
        let is_controller = self.network.name.starts_with("control-");
        is_controller
            && namespace == NAMESPACE
            && self.observer.world(|world| {
                let is_interrupted =
                    preemptors(world).any(|(uid, _)| world.placement.interrupted.contains(uid));
                is_interrupted && world.pods.values().any(is_tenant)
            })
    }

    fn is_kubelet(&self) -> bool {
        self.network.name.starts_with("node/")
    }

    /// The time now, if this is the write of a node's lease. The node's network agent writes one of its own, which
    /// renews nothing.
    fn renewal_begins(&self, kind: &Kind, object: &dyn AnyObject) -> Option<Timestamp> {
        let is_node_lease = object.metadata().namespace.as_deref() == Some(NODE_LEASES);
        let renews = kind == &registry::LEASE && is_node_lease && self.is_kubelet();
        renews.then(|| self.observer.world(|w| w.now))
    }
}
