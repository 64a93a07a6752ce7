//! The DRA drivers of this node: plugins of the type `DRAPlugin`, several of one driver at times (while it is updated).
//!
//! A driver is usable while one of its plugins is connected. The ResourceSlices of a driver without a connection for 30
//! s are deleted, so that no pod is scheduled here to wait for it; so are all ResourceSlices of the node when the
//! kubelet starts, until their drivers publish them again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::resource::v1::ResourceSlice;
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use knarr_apimachinery::ids::{NodeName, PodUid};
use knarr_client::api::Preconditions;
use knarr_client::{Api, Clock, DeleteOptions, ListOptions};
use knarr_kubelet::dra::Claims;
use knarr_kubelet::dra::health::DevicesHealth;
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use super::wire::{NodeWatchResourcesRequest, Version};
use crate::plugins::call::stream;
use crate::plugins::{Handler, HandlerError, Plugin};

/// `defaultWipingDelay`: time enough to stop a driver's pod and start the next.
const WIPE_AFTER: Duration = Duration::from_secs(30);
/// Between attempts to delete slices: at first, and at most.
const WIPE_RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// Between attempts to connect to a plugin that is registered.
const CONNECT_RETRY: Duration = Duration::from_secs(1);
/// How long a stream of health reports may take to start, and the pause between attempts.
const HEALTH_BEGIN: Duration = Duration::from_secs(10);
const HEALTH_RETRY: Duration = Duration::from_secs(5);
/// Plugins of one node.
const PLUGINS_MAX: usize = 256;

/// Aborted when dropped.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A plugin of a driver.
struct PluginConnection {
    endpoint: PathBuf,
    version: Version,
    is_connected: bool,
    /// Follow the connection, and what it reports of its devices.
    _tasks: [Task; 2],
}

#[derive(Default)]
struct State {
    /// By driver, in the order in which they registered.
    plugins: BTreeMap<String, Vec<PluginConnection>>,
    /// The slices of these drivers are about to be deleted.
    wipes: BTreeMap<String, Task>,
}

/// See the module.
pub struct Drivers {
    api: Arc<dyn Api>,
    node: NodeName,
    wipe_after: Duration,
    health: Arc<DriversHealth>,
    state: Mutex<State>,
}

/// Receives the health of drivers' devices.
pub struct DriversHealth {
    pub clock: Arc<dyn Clock>,
    pub claims: Arc<Mutex<Claims>>,
    pub devices: Mutex<DevicesHealth>,
    /// Uids of pods with a device whose health has changed.
    pub changed: mpsc::UnboundedSender<PodUid>,
}

impl Drivers {
    pub fn new(api: Arc<dyn Api>, node: NodeName, health: Arc<DriversHealth>) -> Arc<Self> {
        Self::with_wipe_after(WIPE_AFTER, api, node, health)
    }

    /// With another time to wait before the slices of a driver that is not usable are deleted.
    pub fn with_wipe_after(
        wipe_after: Duration,
        api: Arc<dyn Api>,
        node: NodeName,
        health: Arc<DriversHealth>,
    ) -> Arc<Self> {
        Arc::new(Drivers {
            api,
            node,
            wipe_after,
            health,
            state: Mutex::default(),
        })
    }

    /// Deletes what former drivers have published; waits until dropped.
    pub async fn run(&self) {
        struct DisconnectOnDrop<'a>(&'a Drivers);
        impl Drop for DisconnectOnDrop<'_> {
            fn drop(&mut self) {
                *self.0.state.lock() = State::default();
            }
        }
        let _ending = DisconnectOnDrop(self);
        self.wipe(None).await;
        std::future::pending().await
    }

    /// Where a driver is called: the newest of its plugins that is connected, else the newest.
    pub fn get(&self, driver: &str) -> Option<(PathBuf, Version)> {
        let state = self.state.lock();
        let plugins = state.plugins.get(driver)?;
        let connected = plugins.iter().rev().find(|plugin| plugin.is_connected);
        let plugin = connected.or(plugins.last())?;
        Some((plugin.endpoint.clone(), plugin.version))
    }

    fn add(
        self: &Arc<Self>,
        driver: &str,
        endpoint: &Path,
        version: Version,
    ) -> Result<(), RegistrationError> {
        let mut state = self.state.lock();
        let count: usize = state.plugins.values().map(Vec::len).sum();
        if count >= PLUGINS_MAX {
            return Err(RegistrationError::TooMany);
        }
        let plugins = state.plugins.entry(driver.to_string()).or_default();
        if plugins.iter().any(|plugin| plugin.endpoint == endpoint) {
            return Err(RegistrationError::AlreadyRegistered {
                endpoint: endpoint.into(),
                driver: driver.into(),
            });
        }
        let monitor = monitor(Arc::downgrade(self), driver.to_string(), endpoint.to_path_buf());
        let watch = watch_health(self.health.clone(), driver.to_string(), endpoint.to_path_buf());
        plugins.push(PluginConnection {
            endpoint: endpoint.to_path_buf(),
            version,
            is_connected: false,
            _tasks: [Task(crate::task::spawn(monitor)), Task(crate::task::spawn(watch))],
        });
        info!(driver, endpoint = %endpoint.display(), ?version, "registered a DRA driver");
        self.sync(&mut state, driver);
        Ok(())
    }

    fn remove(self: &Arc<Self>, driver: &str, endpoint: &Path) {
        let mut state = self.state.lock();
        let Some(plugins) = state.plugins.get_mut(driver) else {
            return;
        };
        plugins.retain(|plugin| plugin.endpoint != endpoint);
        if plugins.is_empty() {
            state.plugins.remove(driver);
        }
        info!(driver, endpoint = %endpoint.display(), "a plugin of a DRA driver has disconnected");
        self.sync(&mut state, driver);
    }

    fn connection_changed(self: &Arc<Self>, driver: &str, endpoint: &Path, is_connected: bool) {
        let mut state = self.state.lock();
        let plugins = state.plugins.get_mut(driver).into_iter().flatten();
        for plugin in plugins.filter(|plugin| plugin.endpoint == endpoint) {
            plugin.is_connected = is_connected;
        }
        debug!(driver, is_connected, "the connection to a DRA driver changed");
        self.sync(&mut state, driver);
    }

    /// Has the slices of a driver deleted if it is not usable for too long.
    fn sync(self: &Arc<Self>, state: &mut State, driver: &str) {
        let mut plugins = state.plugins.get(driver).into_iter().flatten();
        if plugins.any(|plugin| plugin.is_connected) {
            state.wipes.remove(driver);
            return;
        }
        if state.wipes.contains_key(driver) {
            return;
        }
        let (own, name, after) = (Arc::downgrade(self), driver.to_string(), self.wipe_after);
        let wipe = crate::task::spawn(async move {
            sleep(after).await;
            if let Some(own) = own.upgrade() {
                own.wipe(Some(&name)).await;
            }
        });
        state.wipes.insert(driver.to_string(), Task(wipe));
    }

    /// Deletes the node's slices, or those of one driver; tries until it is done.
    async fn wipe(&self, driver: Option<&str>) {
        let mut wait = WIPE_RETRY.0;
        while let Err(error) = self.try_wipe(driver).await {
            debug!(%error, driver, "cannot delete the node's ResourceSlices yet");
            sleep(wait).await;
            wait = (wait * 2).min(WIPE_RETRY.1);
        }
    }

    async fn try_wipe(&self, driver: Option<&str>) -> knarr_apimachinery::Result<()> {
        let kind = ResourceSlice::kind_of();
        let mut field_selector = format!("spec.nodeName={}", self.node);
        if let Some(driver) = driver {
            field_selector = format!("spec.driver={driver},{field_selector}");
        }
        let options = ListOptions {
            field_selector,
            ..ListOptions::default()
        };
        for slice in self.api.list(kind, options).await?.items {
            let options = DeleteOptions {
                preconditions: Preconditions {
                    uid: Some(slice.uid().to_string()),
                    ..Preconditions::default()
                },
                ..DeleteOptions::default()
            };
            match self.api.delete(kind, "", slice.name(), options).await {
                Ok(_) => warn!(
                    slice = slice.name(),
                    "deleted a ResourceSlice whose driver is not connected"
                ),
                // It was deleted, or created again by a driver that reconnected.
                Err(error) if error.is_not_found() || error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Keeps a connection to a plugin and reports whether it is connected.
async fn monitor(drivers: Weak<Drivers>, driver: String, endpoint: PathBuf) {
    loop {
        if let Ok(stream) = UnixStream::connect(&endpoint).await {
            let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
            if let Ok((requests, connection)) = handshake.await {
                let _requests: http2::SendRequest<Empty<Bytes>> = requests;
                report(&drivers, &driver, &endpoint, true);
                if let Err(error) = connection.await {
                    debug!(driver, %error, "the connection to a DRA driver ended");
                }
                report(&drivers, &driver, &endpoint, false);
            }
        }
        sleep(CONNECT_RETRY).await;
    }
}

/// Follows a plugin's health reports. Many plugins have no such service and are called again all the same: after an
/// update a plugin may have it.
async fn watch_health(health: Arc<DriversHealth>, driver: String, endpoint: PathBuf) {
    loop {
        match stream(&endpoint, NodeWatchResourcesRequest {}, HEALTH_BEGIN).await {
            Ok(mut reports) => {
                while let Ok(Some(report)) = reports.message().await {
                    let now = health.clock.now();
                    let changed = health.devices.lock().report(&driver, report.reports(), now);
                    let pods = health.claims.lock().pods_with(&driver, &changed);
                    for uid in pods {
                        // The receiver is dropped only with the whole kubelet.
                        let _ = health.changed.send(uid);
                    }
                }
                health.devices.lock().clear(&driver);
                debug!(driver, "a DRA driver no longer reports the health of its devices");
            }
            Err(error) => debug!(driver, %error, "a DRA driver does not report the health of its devices"),
        }
        sleep(HEALTH_RETRY).await;
    }
}

fn report(drivers: &Weak<Drivers>, driver: &str, endpoint: &Path, is_connected: bool) {
    if let Some(drivers) = drivers.upgrade() {
        drivers.connection_changed(driver, endpoint, is_connected);
    }
}

/// Registers drivers with the kubelet.
pub struct Registrar(pub Arc<Drivers>);

/// Why a driver is not registered; the plugin is notified of it.
#[derive(Debug, thiserror::Error)]
enum RegistrationError {
    #[error("more than {} plugins of DRA drivers", PLUGINS_MAX)]
    TooMany,
    #[error("endpoint {} already registered for DRA driver plugin {driver}", endpoint.display())]
    AlreadyRegistered { endpoint: PathBuf, driver: String },
    #[error(
        "invalid supported gRPC versions of DRA driver plugin {driver} at endpoint {}: {source}",
        endpoint.display()
    )]
    Versions {
        driver: String,
        endpoint: PathBuf,
        source: VersionsError,
    },
}

#[derive(Debug, thiserror::Error)]
enum VersionsError {
    #[error("empty list of supported gRPC services (aka supported versions)")]
    Empty,
    #[error(
        "none of services supported by the plugin ({0:?}) are supported by the kubelet ([\"v1.DRAPlugin\" \
         \"v1beta1.DRAPlugin\"])"
    )]
    Unsupported(Vec<String>),
}

fn version(plugin: &Plugin) -> Result<Version, RegistrationError> {
    let source = match plugin.versions.as_slice() {
        [] => VersionsError::Empty,
        versions => match versions.iter().find_map(|v| Version::of_service(v)) {
            Some(version) => return Ok(version),
            None => VersionsError::Unsupported(versions.to_vec()),
        },
    };
    Err(RegistrationError::Versions {
        driver: plugin.name.clone(),
        endpoint: plugin.endpoint.clone(),
        source,
    })
}

#[async_trait]
impl Handler for Registrar {
    fn kind(&self) -> &'static str {
        "DRAPlugin"
    }

    fn validate(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        version(plugin)?;
        Ok(())
    }

    async fn register(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        Ok(self.0.add(&plugin.name, &plugin.endpoint, version(plugin)?)?)
    }

    async fn deregister(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        self.0.remove(&plugin.name, &plugin.endpoint);
        Ok(())
    }
}
