//! The agent's half of the CNI plugin: listens, and maintains what attachments need in the kernel.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipnet::IpNet;
use knarr_cni::kernel::netlink;
use knarr_cni::protocol::{Code, Command, Failure, MAX_MESSAGE_BYTES, Reply, Request};
use knarr_cni::sandbox::SandboxId;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{Instrument, Span, debug_span};

use super::addresses::Addresses;
use super::host_ports;
use super::kernel::sysctl;
use super::records::{self, Record, Records};
use super::registry::{Attachment, Pods};
use super::table::{self, Settings};

/// Plugins that are served at once; more wait in the socket's backlog.
const MAX_CONNECTIONS: usize = 256;
/// Attachments that are worked on in the kernel at once: it does most of this one after the other.
pub(super) const MAX_WORKERS: usize = 16;
/// A plugin sends its request at once.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the table is checked: other programs may flush all rules of the host.
const TABLE_PERIOD: Duration = Duration::from_secs(10);

/// What the control plane and the routes to other nodes decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeNetwork {
    /// Of this node, both families; several of a family are used one after the other.
    pub pod_cidrs: Vec<IpNet>,
    /// Destinations that see pods' own addresses: all pods, and further ranges. All others see the node's.
    pub cluster_cidrs: Vec<IpNet>,
    /// The node's, at most one a family: the source of what the node sends to its pods.
    pub node_addresses: Vec<IpAddr>,
    /// Of pods' links, in bytes.
    pub mtu: u32,
}

/// Runs before a pod can send or receive anything.
#[async_trait]
pub trait BeforeUp: Send + Sync {
    /// `ADD` waits for it, 10 seconds at the most; an error, or no answer in time, fails it.
    async fn before_up(&self, attachment: &Attachment) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// No hook.
pub struct NoHook;

#[async_trait]
impl BeforeUp for NoHook {
    async fn before_up(&self, _: &Attachment) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }
}

/// The bridge network of earlier versions, whose pods keep it until they terminate.
#[derive(Clone, Debug)]
pub struct EarlierNetwork {
    pub bridge: String,
    /// Where host-local keeps the network's leases: a file named for each address, with the sandbox's id as first line.
    pub leases: PathBuf,
}

pub struct Config {
    /// For the records only.
    pub directory: PathBuf,
    /// Its directory is made, closed to others.
    pub socket: PathBuf,
    /// Suffix of what several knarrs in one network namespace would otherwise share.
    pub instance: Option<String>,
    /// `None` until the control plane has given the node its CIDRs: `ADD` then fails and is tried again.
    pub network: watch::Receiver<Option<NodeNetwork>>,
    pub before_up: Arc<dyn BeforeUp>,
    /// Filled by the server; made by the wiring, so that others can have it first.
    pub pods: Pods,
    /// Addresses of the node that host ports are never on: those of the cluster DNS.
    pub reserved: Vec<IpAddr>,
    pub earlier: Option<EarlierNetwork>,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot open the records of pods")]
    Records(#[from] records::Error),
    #[error("cannot listen at {}", .0.display())]
    Listen(PathBuf, #[source] io::Error),
    #[error("cannot configure the kernel")]
    Sysctl(#[source] sysctl::Error),
    #[error("cannot read what the kernel has")]
    Adopt(#[source] netlink::Error),
    #[error("cannot make the table of pods")]
    Table(#[source] host_ports::Error),
    #[error("a thread of the network failed")]
    Thread(#[source] JoinError),
}

/// All that is known. Locked for moments only.
pub(super) struct State {
    pub addresses: Addresses,
    pub records: BTreeMap<SandboxId, Record>,
    /// Since when each is known to this process.
    pub since: BTreeMap<SandboxId, Instant>,
}

impl State {
    /// Whether DEL has answered for the sandbox and its link may not be deleted yet.
    pub fn is_removing(&self, sandbox: &SandboxId) -> bool {
        self.records.get(sandbox).is_some_and(|record| record.is_removing)
    }

    pub fn has_removals(&self) -> bool {
        self.records.values().any(|record| record.is_removing)
    }
}

pub(super) struct Inner {
    pub records: Records,
    pub table: String,
    pub network: watch::Receiver<Option<NodeNetwork>>,
    pub before_up: Arc<dyn BeforeUp>,
    pub pods: Pods,
    pub reserved: Vec<IpAddr>,
    pub earlier: Option<EarlierNetwork>,
    pub state: Mutex<State>,
    /// Held while the table is programmed.
    pub programming: Mutex<()>,
    pub workers: Semaphore,
    /// Sandboxes whose links are to be deleted; see [`super::removal`].
    pub deletions: mpsc::UnboundedSender<SandboxId>,
    /// Counts sandboxes that were removed, their addresses released.
    pub removed: watch::Sender<u64>,
    /// One command at a time for a sandbox.
    pub locks: Mutex<HashMap<SandboxId, Arc<tokio::sync::Mutex<()>>>>,
}

/// The pod network of this node. Dropping it ends the service and leaves all pods as they are. Links of removed pods that are not
/// deleted yet are deleted by the next server, or with the pods' network namespaces; [`Server::finish_removals`] waits for them.
pub struct Server {
    pub(super) inner: Arc<Inner>,
    _tasks: JoinSet<()>,
}

impl Server {
    /// Adopts the current state and starts to listen. Everything happens in the network namespace of the runtime's
    /// threads.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let records = Records::open(&config.directory)?;
        let addresses = Addresses::new(records.last());
        let (deletions, queue) = mpsc::unbounded_channel();
        let inner = Arc::new(Inner {
            records,
            table: table::name(config.instance.as_deref()),
            network: config.network,
            before_up: config.before_up,
            pods: config.pods,
            reserved: config.reserved,
            earlier: config.earlier,
            state: Mutex::new(State {
                addresses,
                records: BTreeMap::new(),
                since: BTreeMap::new(),
            }),
            programming: Mutex::default(),
            workers: Semaphore::new(MAX_WORKERS),
            deletions,
            removed: watch::Sender::new(0),
            locks: Mutex::default(),
        });
        let adopting = inner.clone();
        let installed = tokio::task::spawn_blocking(move || {
            sysctl::enable_forwarding().map_err(StartError::Sysctl)?;
            adopting.adopt()?;
            // No pod may be made before its packets are checked.
            let settings = adopting.settings();
            adopting.install(&settings).map_err(StartError::Table)?;
            Ok::<_, StartError>(settings)
        })
        .await
        .map_err(StartError::Thread)??;
        let listener =
            listen(&config.socket).map_err(|source| StartError::Listen(config.socket.clone(), source))?;
        let mut tasks = JoinSet::new();
        tasks.spawn(maintain(inner.clone(), installed));
        tasks.spawn(inner.clone().delete_links(queue));
        tasks.spawn(serve(inner.clone(), listener));
        Ok(Server { inner, _tasks: tasks })
    }
}

/// Binds next to the socket and renames it into place: no client finds one that does not listen or is open to others.
fn listen(socket: &Path) -> io::Result<UnixListener> {
    if let Some(directory) = socket.parent() {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(directory)?;
    }
    let part = socket.with_extension("part");
    match fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => (),
    }
    let listener = UnixListener::bind(&part)?;
    fs::set_permissions(&part, fs::Permissions::from_mode(0o600))?;
    fs::rename(&part, socket)?;
    Ok(listener)
}

/// Keeps the table installed with the current settings.
async fn maintain(inner: Arc<Inner>, mut installed: Settings) {
    let mut network = inner.network.clone();
    let mut ticks = tokio::time::interval(TABLE_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        tokio::select! {
            _ = ticks.tick() => (),
            changed = network.changed() => {
                if changed.is_err() {
                    // The source of the CIDRs was dropped: they stay as they are.
                    ticks.tick().await;
                }
            }
        }
        let settings = inner.settings();
        let work = inner.clone();
        let is_changed = installed != settings;
        let desired = settings.clone();
        let done = tokio::task::spawn_blocking(move || match is_changed {
            true => work.install(&desired).map(|()| work.restore_routes()),
            false => work.ensure_table(&desired),
        })
        .await;
        match done {
            Ok(Ok(())) => installed = settings,
            Ok(Err(error)) => {
                tracing::error!(error = &error as &dyn Error, "cannot program the table of pods");
            }
            Err(error) => tracing::error!(%error, "a thread of the network failed"),
        }
    }
}

async fn serve(inner: Arc<Inner>, listener: UnixListener) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut commands = JoinSet::new();
    loop {
        // A semaphore that is never closed.
        let Ok(permit) = connections.clone().acquire_owned().await else {
            return;
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = commands.join_next(), if !commands.is_empty() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                let inner = inner.clone();
                commands.spawn(async move {
                    answer(inner, stream).await;
                    drop(permit);
                });
            }
            Err(error) => {
                // Out of descriptors: nothing is lost, plugins wait.
                tracing::error!(%error, "cannot accept a plugin's connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Serves one connection. The command is carried out to its end even if the plugin has exited: it must not stay half
/// done.
async fn answer(inner: Arc<Inner>, mut stream: UnixStream) {
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == 0 => (),
        Ok(peer) => {
            tracing::warn!(uid = peer.uid(), "a plugin's connection is rejected: not root");
            return;
        }
        Err(error) => {
            tracing::warn!(%error, "a plugin's connection is rejected: unknown user");
            return;
        }
    }
    let mut text = Vec::new();
    let mut bounded = (&mut stream).take(MAX_MESSAGE_BYTES);
    match tokio::time::timeout(REQUEST_TIMEOUT, bounded.read_to_end(&mut text)).await {
        Ok(Ok(_)) => (),
        Ok(Err(error)) => {
            tracing::warn!(%error, "cannot read a plugin's request");
            return;
        }
        Err(_) => {
            tracing::warn!("a plugin's request does not come");
            return;
        }
    }
    let reply = match serde_json::from_slice::<Request>(&text) {
        Ok(request) => {
            let span = command_span(&request);
            inner.handle(request).instrument(span).await
        }
        Err(error) => Reply::Failed(
            Failure::new(Code::Decode, "the agent cannot decode the request of the plugin").because(&error),
        ),
    };
    let Ok(text) = serde_json::to_vec(&reply) else {
        return;
    };
    let sent = tokio::time::timeout(REPLY_TIMEOUT, stream.write_all(&text)).await;
    if !matches!(sent, Ok(Ok(()))) {
        tracing::warn!("a plugin does not take its answer");
    }
}

/// The span of a command, for logs and traces.
fn command_span(request: &Request) -> Span {
    let of = request.attachment.as_ref();
    let pod = of.and_then(|of| of.pod.as_ref());
    debug_span!(
        "cni",
        command = ?request.command,
        sandbox = of.map(|of| of.sandbox.as_str()),
        namespace = pod.map(|pod| &*pod.namespace),
        pod = pod.map(|pod| &*pod.name),
    )
}

impl Inner {
    async fn handle(self: Arc<Self>, request: Request) -> Reply {
        let done = |result: Result<(), Failure>| match result {
            Ok(()) => Reply::Done,
            Err(failure) => Reply::Failed(failure),
        };
        let (command, attachment) = (request.command, request.attachment.clone());
        let sandbox = attachment.as_ref().map(|of| of.sandbox.clone());
        let reply = match (command, attachment) {
            (Command::Status, _) => done(self.status()),
            (Command::Gc, _) => done(match request.valid {
                Some(valid) => self.collect_garbage(valid).await,
                None => Err(Failure::new(
                    Code::InvalidConfig,
                    "cni.dev/valid-attachments is missing",
                )),
            }),
            (_, None) => Reply::Failed(Failure::new(
                Code::InvalidEnvironment,
                "the request names no sandbox",
            )),
            // Also while its link is being deleted, for which the lock is held: the runtime repeats DEL when it removes a sandbox
            // that it has stopped.
            (Command::Del, Some(of)) if self.state.lock().is_removing(&of.sandbox) => Reply::Done,
            (command, Some(of)) => {
                let lock = self.lock_of(&of.sandbox);
                let held = lock.lock().await;
                let reply = match command {
                    Command::Add => match self.clone().add(&of, request).await {
                        Ok(added) => Reply::Added(added),
                        Err(failure) => Reply::Failed(failure),
                    },
                    Command::Check => done(self.clone().check(&of, request.prev_result).await),
                    _ => done(self.detach(of.sandbox.clone()).await),
                };
                drop(held);
                drop(lock);
                self.forget_lock(&of.sandbox);
                reply
            }
        };
        if let Reply::Failed(failure) = &reply {
            tracing::warn!(
                ?command,
                sandbox = sandbox.as_ref().map(SandboxId::as_str),
                code = failure.code as u32,
                details = failure.details,
                "{}",
                failure.message
            );
        }
        reply
    }

    pub fn lock_of(&self, sandbox: &SandboxId) -> Arc<tokio::sync::Mutex<()>> {
        self.locks.lock().entry(sandbox.clone()).or_default().clone()
    }

    /// Removes a sandbox that the runtime does not have, once no command works on it.
    pub async fn release(self: &Arc<Self>, sandbox: &SandboxId) -> Result<(), Failure> {
        let lock = self.lock_of(sandbox);
        let held = lock.lock().await;
        let result = self.detach(sandbox.clone()).await;
        drop(held);
        drop(lock);
        self.forget_lock(sandbox);
        result
    }

    pub fn forget_lock(&self, sandbox: &SandboxId) {
        let mut locks = self.locks.lock();
        if locks
            .get(sandbox)
            .is_some_and(|lock| Arc::strong_count(lock) == 1)
        {
            locks.remove(sandbox);
        }
    }

    fn status(&self) -> Result<(), Failure> {
        match self.network.borrow().as_ref() {
            Some(network) if !network.pod_cidrs.is_empty() => Ok(()),
            _ => Err(Failure::new(Code::NotAvailable, "the node has no pod CIDR yet")),
        }
    }

    fn settings(&self) -> Settings {
        let network = self.network.borrow().clone().unwrap_or_default();
        Settings {
            pod_cidrs: network.pod_cidrs,
            cluster_cidrs: network.cluster_cidrs,
            node_addresses: network.node_addresses,
            reserved: self.reserved.clone(),
        }
    }

    fn install(&self, settings: &Settings) -> Result<(), host_ports::Error> {
        let _programming = self.programming.lock();
        host_ports::install(&self.table, settings)?;
        self.apply_ports()
    }

    fn ensure_table(&self, settings: &Settings) -> Result<(), host_ports::Error> {
        let _programming = self.programming.lock();
        if !host_ports::is_installed(&self.table)? {
            tracing::warn!(table = self.table, "the table was removed by others");
            host_ports::install(&self.table, settings)?;
        }
        self.apply_ports()
    }

    /// With `programming` held.
    fn apply_ports(&self) -> Result<(), host_ports::Error> {
        let with_ports: Vec<Record> = {
            let state = self.state.lock();
            let all = state.records.values();
            all.filter(|record| record.is_ready && !record.host_ports.is_empty())
                .cloned()
                .collect()
        };
        host_ports::apply(&self.table, with_ports.iter())
    }

    /// Brings the host ports in the kernel to those of all attachments that are ready.
    pub fn program_ports(&self) -> Result<(), host_ports::Error> {
        let _programming = self.programming.lock();
        if !host_ports::is_installed(&self.table)? {
            host_ports::install(&self.table, &self.settings())?;
        }
        self.apply_ports()
    }
}
