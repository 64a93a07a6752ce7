//! Device plugins (v1beta1): they register at the kubelet's socket or in its registry, report their devices on a
//! stream, and allocate them for containers on request.
//!
//! What is chosen is decided by [`knarr_kubelet::devicemanager`]; here plugins are called, each with a deadline and without
//! a lock held, and what containers have is written down before they start.

mod checkpoint;
mod server;
pub mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::PodUid;
use knarr_client::Clock;
use knarr_client::metrics::{self, Histogram};
use knarr_kubelet::admission::Rejection;
use knarr_kubelet::devicemanager as devices;
use knarr_kubelet::devicemanager::{Capacity, Choice, ContainerOptions, DeviceManager, Request};
use knarr_kubelet::guaranteed::containers;
use knarr_kubelet::topologymanager::NumaMask;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::plugins::call::stream;
use crate::plugins::{Handler, HandlerError, Plugin, call};
use crate::untrusted_fs::Pool;

/// The kubelet's directory of device plugins' sockets and its own.
pub const DIRECTORY: &str = "device-plugins";
const VERSION: &str = "v1beta1";
/// How long a plugin may take to accept a connection and return its options, or to start reporting.
const CONNECT: Duration = Duration::from_secs(10);
/// Deadline of `GetPreferredAllocation` and `PreStartContainer` (v1.36: 30 s).
const PREPARE: Duration = Duration::from_secs(30);
/// Deadline of `Allocate`. v1.36 waits without limit and blocks all pods of the node; here only the requesting pod
/// waits.
const ALLOCATE: Duration = Duration::from_secs(120);
/// Plugins of one node.
const PLUGINS_MAX: usize = 256;
/// Upper bounds of `kubelet_device_plugin_alloc_duration_seconds`: Prometheus' own.
const ALLOCATION_SECONDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// How long allocations of each resource took, in seconds.
pub type Durations = BTreeMap<String, Histogram>;

/// Why a container does not get its devices; shown to users.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Choose(#[from] devices::Error),
    #[error("endpoint {0} has been stopped")]
    Stopped(String),
    #[error("device plugin GetPreferredAllocation rpc failed with err: {0}")]
    Prefer(#[source] crate::plugins::CallError),
    #[error(transparent)]
    Allocate(crate::plugins::CallError),
    #[error("no containers return in allocation response of {0}")]
    NoAnswer(String),
    #[error("device plugin PreStartContainer rpc failed with err: {0}")]
    PreStart(#[source] crate::plugins::CallError),
    #[error(transparent)]
    NotAllocated(#[from] devices::PreStartError),
    #[error("failed to write checkpoint file {file:?}: {why}", file = checkpoint::FILE)]
    Checkpoint { why: String },
}

impl Error {
    pub(crate) fn rejection(&self) -> Rejection {
        Rejection {
            reason: "UnexpectedAdmissionError".into(),
            message: format!("Allocate failed due to {self}, which is unexpected"),
        }
    }
}

/// Why a device plugin is not registered; the plugin is notified of it.
#[derive(Debug, thiserror::Error)]
enum RegistrationError {
    #[error("more than {} device plugins", PLUGINS_MAX)]
    TooMany,
    #[error("failed to get device plugin options: {0}")]
    Options(#[source] crate::plugins::CallError),
    #[error(
        "manager version, {}, is not among plugin supported versions {versions:?}",
        VERSION
    )]
    Version { versions: Vec<String> },
    #[error("invalid name of device plugin socket: the ResourceName {resource:?} is invalid")]
    ResourceName { resource: String },
}

/// A registered plugin. Dropping it closes its stream.
struct Endpoint {
    socket: PathBuf,
    /// Distinguishes it from one that registered later for the same resource.
    generation: u64,
    watching: JoinHandle<()>,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

#[derive(Default)]
struct Endpoints {
    generation: u64,
    /// How often plugins have registered, by resource.
    registrations: BTreeMap<String, u64>,
    by_resource: BTreeMap<String, Endpoint>,
}

/// See the module.
pub struct Devices {
    directory: PathBuf,
    files: Pool,
    clock: Arc<dyn Clock>,
    state: Mutex<DeviceManager>,
    endpoints: Mutex<Endpoints>,
    /// Held while the checkpoint is written; contains what was written last.
    checkpoint: tokio::sync::Mutex<Vec<u8>>,
    changed: Notify,
    allocations: Mutex<Durations>,
    /// Uids of pods with a device whose health has changed.
    health_changed: mpsc::UnboundedSender<PodUid>,
}

impl Devices {
    /// `root` is the kubelet's directory; the clock is never set.
    pub fn new(
        root: &Path,
        files: Pool,
        clock: Arc<dyn Clock>,
        health_changed: mpsc::UnboundedSender<PodUid>,
    ) -> Arc<Self> {
        Arc::new(Devices {
            directory: root.join(DIRECTORY),
            files,
            clock,
            state: Mutex::default(),
            endpoints: Mutex::default(),
            checkpoint: tokio::sync::Mutex::default(),
            changed: Notify::new(),
            allocations: Mutex::default(),
            health_changed,
        })
    }

    /// Restores the checkpoint of an earlier kubelet. No pod is admitted before.
    pub async fn restore(&self) {
        let directory = self.directory.clone();
        let read = self
            .files
            .run(DIRECTORY, move || checkpoint::read(&directory))
            .await;
        match read {
            Ok(Some(restored)) => {
                let now = self.clock.now();
                *self.state.lock() = DeviceManager::restored(restored.resources, restored.assigned, now);
            }
            Ok(None) => {}
            Err(error) => {
                warn!(%error, "cannot read which devices containers have; they will be allocated again");
            }
        }
    }

    /// Serves plugins' registrations until dropped, and disconnects the plugins then.
    pub async fn run(self: Arc<Self>) {
        struct DisconnectOnDrop<'a>(&'a Devices);
        impl Drop for DisconnectOnDrop<'_> {
            fn drop(&mut self) {
                self.0.endpoints.lock().by_resource.clear();
            }
        }
        let _ending = DisconnectOnDrop(&self);
        server::run(&self, &self.directory).await;
    }

    /// Returns when the node's capacity may have changed.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    pub fn capacity(&self) -> Capacity {
        self.state.lock().capacity(self.clock.now())
    }

    /// How often plugins have registered, and how long their allocations took, by resource.
    pub fn counts(&self) -> (BTreeMap<String, u64>, Durations) {
        let registrations = self.endpoints.lock().registrations.clone();
        (registrations, self.allocations.lock().clone())
    }

    /// Reads the state.
    pub fn with<T>(&self, read: impl FnOnce(&DeviceManager) -> T) -> T {
        read(&self.state.lock())
    }

    /// Whether a pod requests a resource of a plugin.
    pub fn concerns(&self, pod: &Pod) -> bool {
        let state = self.state.lock();
        containers(pod).any(|c| !state.requests(pod, c).is_empty())
    }

    /// Has the plugins allocate everything that a pod's containers request.
    pub async fn allocate_pod(&self, pod: &Pod) -> Result<(), Rejection> {
        for container in containers(pod) {
            let allocated = self.allocate(pod, container, None).await;
            allocated.map_err(|e| e.rejection())?;
        }
        Ok(())
    }

    /// Has the plugins allocate what one container requests, near these NUMA nodes where that is known.
    pub async fn allocate(
        &self,
        pod: &Pod,
        container: &Container,
        affinity: Option<NumaMask>,
    ) -> Result<(), Error> {
        let requests = self.state.lock().requests(pod, container);
        let mut is_new = false;
        for (resource, count) in requests {
            let request = Request {
                pod,
                container: &container.name,
                resource: &resource,
                count,
                affinity,
            };
            is_new |= self.allocate_resource(&request).await?;
        }
        match is_new {
            true => self.save().await,
            false => Ok(()),
        }
    }

    /// Whether the container has got something that it did not have.
    async fn allocate_resource(&self, request: &Request<'_>) -> Result<bool, Error> {
        let mut choice = self.state.lock().choose(request, None)?;
        if let Choice::Prefer {
            available,
            must_include,
            count,
        } = choice
        {
            let preferred = self
                .prefer(request.resource, available, must_include, count)
                .await?;
            choice = self.state.lock().choose(request, Some(&preferred))?;
        }
        let Choice::Allocate(chosen) = choice else {
            return Ok(false);
        };
        match self.call_allocate(request.resource, chosen).await {
            Ok(answer) => {
                self.state.lock().assign(request, answer.into());
                Ok(true)
            }
            Err(error) => {
                self.state.lock().release_reserved(request);
                Err(error)
            }
        }
    }

    async fn prefer(
        &self,
        resource: &str,
        available: BTreeSet<String>,
        must_include: BTreeSet<String>,
        count: usize,
    ) -> Result<BTreeSet<String>, Error> {
        let socket = self.socket(resource)?;
        let request = wire::ContainerPreferredAllocationRequest {
            available_device_ids: available.into_iter().collect(),
            must_include_device_ids: must_include.into_iter().collect(),
            allocation_size: i32::try_from(count).unwrap_or(i32::MAX),
        };
        let request = wire::PreferredAllocationRequest {
            container_requests: vec![request],
        };
        let answer = call(&socket, request, PREPARE).await.map_err(Error::Prefer)?;
        let first = answer.container_responses.into_iter().next();
        Ok(first.into_iter().flat_map(|r| r.device_ids).collect())
    }

    async fn call_allocate(
        &self,
        resource: &str,
        devices: BTreeSet<String>,
    ) -> Result<wire::ContainerAllocateResponse, Error> {
        let socket = self.socket(resource)?;
        let request = wire::AllocateRequest {
            container_requests: vec![wire::ContainerAllocateRequest {
                devices_ids: devices.into_iter().collect(),
            }],
        };
        let begin = Instant::now();
        let answer = call(&socket, request, ALLOCATE).await;
        {
            let mut allocations = self.allocations.lock();
            let histogram = allocations.entry(resource.to_string());
            let histogram = histogram.or_insert_with(|| metrics::histogram(ALLOCATION_SECONDS));
            histogram.observe(begin.elapsed().as_secs_f64());
        }
        let answer = answer.map_err(Error::Allocate)?;
        let first = answer.container_responses.into_iter().next();
        first.ok_or_else(|| Error::NoAnswer(resource.to_string()))
    }

    fn socket(&self, resource: &str) -> Result<PathBuf, Error> {
        let endpoints = self.endpoints.lock();
        let endpoint = endpoints.by_resource.get(resource);
        endpoint
            .map(|e| e.socket.clone())
            .ok_or_else(|| Error::Stopped(resource.to_string()))
    }

    /// What a container that is about to be created gets. One that has lost its devices in a restart of the node gets others.
    pub async fn container_options(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Result<ContainerOptions, Error> {
        let uid = &PodUid::of(&pod.metadata);
        let requests = self.state.lock().requests(pod, container);
        let has_all = {
            let state = self.state.lock();
            let own = state.assigned().of_container(uid, &container.name);
            requests
                .iter()
                .all(|(name, _)| own.is_some_and(|own| own.contains_key(name)))
        };
        if !has_all {
            self.allocate(pod, container, None).await?;
        }
        for (resource, _) in &requests {
            let devices = {
                let state = self.state.lock();
                state.pre_start(uid, &container.name, resource)?
            };
            if let Some(devices_ids) = devices {
                let request = wire::PreStartContainerRequest { devices_ids };
                let called = call(&self.socket(resource)?, request, PREPARE).await;
                called.map_err(Error::PreStart)?;
            }
        }
        Ok(self.state.lock().assigned().options(uid, &container.name))
    }

    /// A pod has terminated: its devices may be allocated to others.
    pub fn release(self: &Arc<Self>, uid: &PodUid) {
        if self.state.lock().release(uid) {
            self.clone().save_soon();
        }
    }

    /// All pods of the node are known: nothing is kept for others.
    pub fn retain_pods(self: &Arc<Self>, is_there: impl Fn(&str) -> bool) {
        if self.state.lock().retain_pods(is_there) {
            self.clone().save_soon();
        }
    }

    fn save_soon(self: Arc<Self>) {
        crate::task::spawn(async move {
            if let Err(error) = self.save().await {
                warn!(%error, "what containers have of device plugins is not written down");
            }
        });
    }

    async fn save(&self) -> Result<(), Error> {
        let failed = |why: String| Error::Checkpoint { why };
        let mut written = self.checkpoint.lock().await;
        let bytes = checkpoint::encode(&self.state.lock()).map_err(|e| failed(e.to_string()))?;
        if *written == bytes {
            return Ok(());
        }
        let (directory, content) = (self.directory.clone(), bytes.clone());
        let write = move || checkpoint::write(&directory, &content);
        let done = self.files.run(DIRECTORY, write).await;
        done.map_err(|e| failed(e.to_string()))?;
        *written = bytes;
        Ok(())
    }

    /// Connects to a plugin and follows its reports until it disconnects or another one registers for its resource.
    async fn connect(self: &Arc<Self>, resource: &str, socket: &Path) -> Result<(), RegistrationError> {
        let is_known = self.endpoints.lock().by_resource.contains_key(resource);
        if !is_known && self.endpoints.lock().by_resource.len() >= PLUGINS_MAX {
            return Err(RegistrationError::TooMany);
        }
        let options = call(socket, wire::GetDevicePluginOptions {}, CONNECT).await;
        let options = options.map_err(RegistrationError::Options)?;
        let mut endpoints = self.endpoints.lock();
        endpoints.generation += 1;
        *endpoints.registrations.entry(resource.to_string()).or_default() += 1;
        let generation = endpoints.generation;
        self.state.lock().registered(resource, options.into());
        let watching = {
            let (devices, resource, socket) = (self.clone(), resource.to_string(), socket.to_path_buf());
            crate::task::spawn(async move {
                devices.watch(&resource, &socket).await;
                devices.disconnect(&resource, |endpoint| endpoint.generation == generation);
            })
        };
        let endpoint = Endpoint {
            socket: socket.to_path_buf(),
            generation,
            watching,
        };
        endpoints.by_resource.insert(resource.to_string(), endpoint);
        info!(resource, socket = %socket.display(), "a device plugin is registered");
        Ok(())
    }

    async fn watch(&self, resource: &str, socket: &Path) {
        let mut reports = match stream(socket, wire::ListAndWatch {}, CONNECT).await {
            Ok(reports) => reports,
            Err(error) => return warn!(resource, %error, "ListAndWatch of a device plugin failed"),
        };
        loop {
            match reports.message().await {
                Ok(Some(report)) => {
                    let pods = self.state.lock().reported(resource, report.by_id());
                    for uid in pods {
                        // The receiver is dropped only with the whole kubelet.
                        let _ = self.health_changed.send(uid);
                    }
                    self.changed.notify_one();
                    if let Err(error) = self.save().await {
                        warn!(%error, "which devices there are is not written down");
                    }
                }
                Ok(None) => return info!(resource, "ListAndWatch of a device plugin ended"),
                Err(error) => return warn!(resource, %error, "ListAndWatch of a device plugin ended"),
            }
        }
    }

    fn disconnect(&self, resource: &str, is_meant: impl Fn(&Endpoint) -> bool) {
        let mut endpoints = self.endpoints.lock();
        if endpoints.by_resource.get(resource).is_some_and(is_meant) {
            self.state.lock().stopped(resource, self.clock.now());
            endpoints.by_resource.remove(resource);
            info!(resource, "a device plugin has disconnected");
            self.changed.notify_one();
        }
    }
}

fn validate(resource: &str, versions: &[String]) -> Result<(), RegistrationError> {
    if !versions.iter().any(|v| v == VERSION) {
        let versions = versions.to_vec();
        return Err(RegistrationError::Version { versions });
    }
    match knarr_api::kinds::pod::resources::is_extended(resource) {
        true => Ok(()),
        false => Err(RegistrationError::ResourceName {
            resource: resource.into(),
        }),
    }
}

/// Plugins that register in the kubelet's registry.
pub struct Registrar(pub Arc<Devices>);

#[async_trait]
impl Handler for Registrar {
    fn kind(&self) -> &'static str {
        "DevicePlugin"
    }

    fn validate(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        Ok(validate(&plugin.name, &plugin.versions)?)
    }

    async fn register(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        Ok(self.0.connect(&plugin.name, &plugin.endpoint).await?)
    }

    async fn deregister(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        let is_meant = |endpoint: &Endpoint| endpoint.socket == plugin.endpoint;
        self.0.disconnect(&plugin.name, is_meant);
        Ok(())
    }
}
