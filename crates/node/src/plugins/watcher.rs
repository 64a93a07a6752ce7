//! Finds plugins by their sockets in the kubelet's `plugins_registry`, requests their info, and registers each with the
//! handler of its type (`pluginregistration` v1). A plugin whose socket was removed or created again is deregistered.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use super::call::{call_on, methods};
use super::error::CallError;
use crate::host::Host;
use crate::untrusted_fs::{Dir, Kind};
use crate::watch::Changes;

/// The kubelet's directory of it.
pub const REGISTRY: &str = "plugins_registry";
const DIRECTORY_MODE: u32 = 0o750;
/// Between two scans of the directory, if it has changed or a plugin is not registered yet.
const SCAN: Duration = Duration::from_secs(1);
/// Sockets of the directory that are registered.
const SOCKETS_MAX: usize = 4096;
/// Deadlines of `GetInfo` and `NotifyRegistrationStatus` (v1.36 waits ten seconds for the connection; then one and
/// five).
const GET_INFO: Duration = Duration::from_secs(11);
const NOTIFY: Duration = Duration::from_secs(15);
/// Before a registration that failed is tried again: at first, and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(122));

#[derive(Clone, PartialEq, prost::Message)]
pub struct InfoRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PluginInfo {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(string, tag = "2")]
    pub name: String,
    /// The plugin's own socket; empty: the one in the registry.
    #[prost(string, tag = "3")]
    pub endpoint: String,
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    #[prost(string, tag = "2")]
    pub error: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RegistrationStatusResponse {}

methods! {
    InfoRequest, "/pluginregistration.Registration/GetInfo" => PluginInfo;
    RegistrationStatus, "/pluginregistration.Registration/NotifyRegistrationStatus" => RegistrationStatusResponse;
}

/// A plugin as it presents itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    pub name: String,
    /// Its socket in the registry, which identifies the registration.
    pub socket: PathBuf,
    /// Where it is called.
    pub endpoint: PathBuf,
    pub versions: Vec<String>,
}

/// Why a plugin is not registered or deregistered: an error of its own type's handler.
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;

/// Why a plugin is not registered; the plugin is notified of it.
#[derive(Debug, thiserror::Error)]
enum RegisterPluginError {
    #[error(
        "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {}, err: {source}",
        socket.display()
    )]
    GetInfo { socket: PathBuf, source: CallError },
    #[error(
        "RegisterPlugin error -- no handler registered for plugin type: {kind} at socket {}",
        socket.display()
    )]
    NoHandler { kind: String, socket: PathBuf },
    #[error("RegisterPlugin error -- plugin validation failed with err: {0}")]
    Validate(#[source] HandlerError),
    #[error("RegisterPlugin error -- plugin registration failed with err: {0}")]
    Register(#[source] HandlerError),
}

/// What registers the plugins of one type.
#[async_trait]
pub trait Handler: Send + Sync {
    /// `CSIPlugin`, `DevicePlugin`, `DRAPlugin`.
    fn kind(&self) -> &'static str;

    fn validate(&self, plugin: &Plugin) -> Result<(), HandlerError>;

    async fn register(&self, plugin: &Plugin) -> Result<(), HandlerError>;

    /// Tried again as long as it fails.
    async fn deregister(&self, plugin: &Plugin) -> Result<(), HandlerError>;
}

/// Distinguishes a socket from one that was created later with its name.
type Identity = (u64, i64, u64);

enum State {
    /// A task is registering or deregistering it.
    Busy,
    Registered(Plugin, Arc<dyn Handler>),
    Failed {
        why: String,
        wait: Duration,
        not_before: Instant,
    },
}

struct Known {
    identity: Identity,
    state: State,
}

/// See the module.
pub struct Watcher {
    directory: PathBuf,
    handlers: Vec<Arc<dyn Handler>>,
    host: Arc<dyn Host>,
    /// By the socket in the registry.
    known: Mutex<BTreeMap<PathBuf, Known>>,
    /// The last scan found every plugin registered, and nothing to be done: so does the next one, if the directory does not change.
    is_settled: AtomicBool,
}

impl Watcher {
    pub fn new(directory: PathBuf, handlers: Vec<Arc<dyn Handler>>, host: Arc<dyn Host>) -> Arc<Self> {
        Arc::new(Watcher {
            directory,
            handlers,
            host,
            known: Mutex::default(),
            is_settled: AtomicBool::new(false),
        })
    }

    /// Follows the directory, until dropped.
    pub async fn run(self: Arc<Self>) {
        if let Err(error) = Dir::make(&self.directory, DIRECTORY_MODE) {
            warn!(%error, directory = %self.directory.display(), "cannot create the registry of plugins");
        }
        let mut changes = Changes::of(&self.directory);
        let mut tasks = tokio::task::JoinSet::new();
        loop {
            if changes.take() || !self.is_settled.load(Ordering::Relaxed) {
                for task in self.scan() {
                    tasks.spawn(task);
                }
            }
            while tasks.try_join_next().is_some() {}
            sleep(SCAN).await;
        }
    }

    /// What one scan of the directory finds to be done. None of it waits for another.
    pub(crate) fn scan(self: &Arc<Self>) -> Vec<BoxFuture<'static, ()>> {
        let there = match sockets(&self.directory) {
            Ok(there) => there,
            Err(error) => {
                warn!(%error, directory = %self.directory.display(), "cannot read the directory of plugins");
                self.is_settled.store(false, Ordering::Relaxed);
                return Vec::new();
            }
        };
        let now = Instant::now();
        let mut tasks: Vec<BoxFuture<'static, ()>> = Vec::new();
        let mut known = self.known.lock();
        known.retain(|socket, known| match &known.state {
            State::Failed { .. } => there.get(socket) == Some(&known.identity),
            _ => true,
        });
        for (socket, entry) in known.iter_mut() {
            let is_there = there.get(socket) == Some(&entry.identity);
            if !is_there && matches!(entry.state, State::Registered(..)) {
                let before = std::mem::replace(&mut entry.state, State::Busy);
                if let State::Registered(plugin, handler) = before {
                    tasks.push(Box::pin(self.clone().deregister(plugin, handler)));
                }
            }
        }
        for (socket, identity) in there {
            let wait = match known.get(&socket).map(|known| &known.state) {
                None => RETRY.0,
                Some(State::Failed { wait, not_before, .. }) if *not_before <= now => {
                    (*wait * 2).min(RETRY.1)
                }
                Some(_) => continue,
            };
            let last = known.insert(
                socket.clone(),
                Known {
                    identity,
                    state: State::Busy,
                },
            );
            let last = match last.map(|known| known.state) {
                Some(State::Failed { why, .. }) => Some(why),
                _ => None,
            };
            tasks.push(Box::pin(self.clone().register(socket, (wait, last))));
        }
        let settled = known
            .values()
            .all(|known| matches!(known.state, State::Registered(..)));
        self.is_settled.store(settled, Ordering::Relaxed);
        tasks
    }

    async fn register(self: Arc<Self>, socket: PathBuf, (wait, last): (Duration, Option<String>)) {
        let state = match self.try_register(&socket).await {
            Ok((plugin, handler)) => State::Registered(plugin, handler),
            Err(error) => {
                let why = error.to_string();
                // The same error is not logged at each attempt.
                if last.as_ref() != Some(&why) {
                    warn!(socket = %socket.display(), why, "a plugin is not registered");
                }
                State::Failed {
                    why,
                    wait,
                    not_before: Instant::now() + wait,
                }
            }
        };
        if let Some(known) = self.known.lock().get_mut(&socket) {
            known.state = state;
        }
    }

    async fn try_register(&self, socket: &Path) -> Result<(Plugin, Arc<dyn Handler>), RegisterPluginError> {
        let answer = call_on(&*self.host, socket, InfoRequest {}, GET_INFO).await;
        let info = answer.map_err(|source| RegisterPluginError::GetInfo {
            socket: socket.into(),
            source,
        })?;
        let accepted = self.accept(socket, info).await;
        let status = RegistrationStatus {
            plugin_registered: accepted.is_ok(),
            error: accepted
                .as_ref()
                .err()
                .map(ToString::to_string)
                .unwrap_or_default(),
        };
        // A plugin that does not listen to its status is registered all the same.
        if let Err(error) = call_on(&*self.host, socket, status, NOTIFY).await {
            debug!(socket = %socket.display(), %error, "cannot notify a plugin of its registration");
        }
        accepted
    }

    async fn accept(
        &self,
        socket: &Path,
        info: PluginInfo,
    ) -> Result<(Plugin, Arc<dyn Handler>), RegisterPluginError> {
        let kind = &info.kind;
        let handler = self.handlers.iter().find(|h| h.kind() == kind).ok_or_else(|| {
            let (kind, socket) = (kind.clone(), socket.to_path_buf());
            RegisterPluginError::NoHandler { kind, socket }
        })?;
        let endpoint = match info.endpoint.as_str() {
            "" => socket.to_path_buf(),
            endpoint => PathBuf::from(endpoint.strip_prefix("unix://").unwrap_or(endpoint)),
        };
        let plugin = Plugin {
            name: info.name,
            socket: socket.to_path_buf(),
            endpoint,
            versions: info.supported_versions,
        };
        handler.validate(&plugin).map_err(RegisterPluginError::Validate)?;
        handler
            .register(&plugin)
            .await
            .map_err(RegisterPluginError::Register)?;
        Ok((plugin, handler.clone()))
    }

    async fn deregister(self: Arc<Self>, plugin: Plugin, handler: Arc<dyn Handler>) {
        let done = handler.deregister(&plugin).await;
        let mut known = self.known.lock();
        match done {
            Ok(()) => drop(known.remove(&plugin.socket)),
            Err(why) => {
                // It stays registered until the next scan.
                warn!(plugin = plugin.name, %why, "cannot deregister a plugin yet");
                if let Some(known) = known.get_mut(&plugin.socket) {
                    known.state = State::Registered(plugin, handler);
                }
            }
        }
    }
}

fn sockets(directory: &Path) -> std::io::Result<BTreeMap<PathBuf, Identity>> {
    let open = match Dir::open_named(directory) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        other => other?,
    };
    let mut found = BTreeMap::new();
    for entry in open.entries(SOCKETS_MAX)? {
        if entry.kind != Kind::Socket {
            continue;
        }
        // A socket that was removed meanwhile is noticed at the next scan.
        if let Ok(identity) = identity(&open, &entry.name) {
            found.insert(directory.join(&entry.name), identity);
        }
    }
    Ok(found)
}

/// The creation time distinguishes it from another one with the same inode; permissions may change.
fn identity(directory: &Dir, name: &OsStr) -> std::io::Result<Identity> {
    let stat = directory.stat(name)?;
    Ok((stat.st_ino, stat.st_mtime, stat.st_mtime_nsec))
}
