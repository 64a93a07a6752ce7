//! Makes sandboxes and containers, and starts them: what a container is given is fetched and written first.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_cri::v1::PodSandboxConfig;
use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use knarr_apimachinery::ids::{ContainerId, SandboxId};
use knarr_client::{Api, Clock, Store, TypedApi};
use knarr_kubelet::dra::ClaimError;
use knarr_kubelet::pod::{CreateFailure, Event, find_spec};
use knarr_kubelet::runtime::ContainerState;
use knarr_kubelet::self_fencing::TerminationMode;
use tokio::sync::SemaphorePermit;
use tokio::time::sleep;
use tracing::{instrument, warn};

use super::at_most_one::StartAnnouncements;
use super::config::Config;
use super::downward::DownwardValues;
use super::enforcement::PodCgroups;
use super::env::Sources;
use super::inbox::Inbox;
use super::node_resources::NodeResources;
use super::pod_runtime::PodRuntime;
use super::resource_managers::ResourceManagers;
use super::resources::CpuQuota;
use super::retry::RETRY;
use super::security_context::Seccomp;
use super::self_fencing::SelfFencer;
use super::start_denied::StartDenied;
use super::{container, env, exit, namespaces, sandbox};
use crate::cgroup;
use crate::devicemanager;
use crate::dra::cdi;
use crate::logs::links;
use crate::runtime::RuntimeError;
use crate::untrusted_fs::{self, Dir, NewFile};
use crate::volumes::layout::POD_DIR_MODE;
use crate::volumes::{VolumeError, Volumes};

/// Directories of logs, which collectors read.
const LOGS_MODE: u32 = 0o755;
/// The pod's `/etc/hosts`, in its directory.
const HOSTS: &str = "etc-hosts";

/// Why a sandbox is not made; shown to the user.
#[derive(Debug, thiserror::Error)]
pub(super) enum CreateSandboxError {
    #[error(transparent)]
    Config(#[from] sandbox::SandboxConfigError),
    #[error(transparent)]
    LogDirectory(untrusted_fs::Error),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

/// Why a container is not made; shown to the user.
#[derive(Debug, thiserror::Error)]
pub(super) enum CreateContainerError {
    #[error("the pod has no container {name:?} any more")]
    NoContainer { name: String },
    #[error("{}", .0.message())]
    Source(#[source] knarr_client::Error),
    #[error(transparent)]
    ImageName(#[from] knarr_kubelet::image::InvalidReference),
    #[error("{}", .0.message)]
    InspectImage(#[source] RuntimeError),
    #[error("image {image:?} is not there any more")]
    NoImage { image: String },
    #[error(transparent)]
    Environment(#[from] env::EnvError),
    #[error(transparent)]
    Devices(#[from] devicemanager::Error),
    #[error(transparent)]
    Claims(#[from] ClaimError),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error(transparent)]
    Config(#[from] container::ContainerConfigError),
    #[error("{}", .0.message)]
    RuntimeVersion(#[source] RuntimeError),
    #[error(transparent)]
    CdiDevices(#[from] cdi::Unresolved),
    #[error(transparent)]
    Files(untrusted_fs::Error),
    #[error("{}", .0.message)]
    Runtime(#[source] RuntimeError),
}

impl CreateContainerError {
    /// Of the waiting container: whether its configuration or its creation failed.
    pub fn reason(&self) -> CreateFailure {
        match self {
            CreateContainerError::RuntimeVersion(_)
            | CreateContainerError::CdiDevices(_)
            | CreateContainerError::Files(_)
            | CreateContainerError::Runtime(_) => CreateFailure::Creation,
            _ => CreateFailure::Configuration,
        }
    }
}

/// See the module.
pub(super) struct Launcher {
    pub config: Arc<Config>,
    pub api: Arc<dyn Api>,
    pub clock: Arc<dyn Clock>,
    pub runtime: Arc<PodRuntime>,
    pub volumes: Arc<Volumes>,
    pub managers: Arc<ResourceManagers>,
    pub cgroups: Arc<PodCgroups>,
    pub node: Arc<NodeResources>,
    /// Of the whole cluster.
    pub services: Arc<Store>,
    pub announcements: Arc<StartAnnouncements>,
    pub fencer: Arc<SelfFencer>,
}

/// What the runtime's record says of a container whose start returned an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterFailedStart {
    Started,
    /// A request of an earlier kubelet may be in progress.
    Created,
    NotStarted,
}

impl Launcher {
    #[instrument(level = "info", skip_all, fields(namespace = pod.metadata.namespace, pod = pod.metadata.name, uid = pod.metadata.uid))]
    pub async fn create_sandbox(
        &self,
        inbox: &Inbox,
        pod: &core::Pod,
        config: &PodSandboxConfig,
    ) -> Result<(SandboxId, Vec<String>), CreateSandboxError> {
        let handler = self.runtime_handler(pod).await?;
        sandbox::check_supported(pod, &handler, &self.config)?;
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let logs = PathBuf::from(&config.log_directory);
        let made = self.volumes.files().run(uid, move || Dir::make(&logs, LOGS_MODE));
        made.await.map_err(CreateSandboxError::LogDirectory)?;
        self.cgroups.update_qos(Some(pod)).await;
        if self.config.machine.is_host()
            && let Err(error) = self.cgroups.limit_pod(pod).await
        {
            // The runtime makes the cgroup itself; only the pod's own limits would be missing.
            warn!(pod = pod.metadata.name, %error, "cannot set up a pod's cgroup");
        }
        let _permit = self.runtime.start_permit().await;
        let id = self.runtime.run_sandbox(config, &handler).await?;
        self.runtime.set_owner(&id, inbox);
        let detail = self.runtime.sandbox(&id).await?;
        self.runtime.note_network_namespace(&id, &detail);
        Ok((id, detail.sandbox.ips))
    }

    async fn runtime_handler(&self, pod: &core::Pod) -> Result<String, RuntimeError> {
        use k8s_openapi::api::node::v1::RuntimeClass;
        let Some(name) = pod.spec.as_ref().and_then(|s| s.runtime_class_name.as_deref()) else {
            return Ok(String::new());
        };
        match self.api.get_as::<RuntimeClass>("", name).await {
            Ok(class) => Ok(class.handler.clone()),
            Err(error) => Err(RuntimeError::new("NotFound", error.to_string())),
        }
    }

    #[instrument(level = "debug", skip_all, fields(namespace = pod.metadata.namespace, pod = pod.metadata.name, uid = pod.metadata.uid, container = name))]
    pub async fn create_container(
        &self,
        pod: &core::Pod,
        name: &str,
        attempt: u32,
        sandbox_id: &SandboxId,
        sandbox_config: &PodSandboxConfig,
        values: &DownwardValues,
    ) -> Result<ContainerId, CreateContainerError> {
        use CreateContainerError as Failed;
        let spec = pod.spec.as_ref().and_then(|s| find_spec(s, name));
        let spec = spec.ok_or_else(|| Failed::NoContainer { name: name.into() })?;
        let sources = self.sources(pod, &spec).await?;
        let image_name = knarr_kubelet::image::normalize(spec.image.as_deref().unwrap_or(""))?;
        let image = self
            .runtime
            .image(&image_name)
            .await
            .map_err(Failed::InspectImage)?;
        let image = image.ok_or(Failed::NoImage { image: image_name })?;
        let environment = env::environment(pod, &spec, &sources, values)?;
        let mut devices = self.managers.devices.container_options(pod, &spec).await?;
        devices.add_cdi_devices(self.managers.dra.cdi_devices(pod, &spec)?);
        if !devices.cdi_devices.is_empty() {
            let runtime = self.runtime.status().await;
            let runtime = runtime.map_err(Failed::RuntimeVersion)?;
            if cdi::is_unknown_to(&runtime.name, &runtime.version) {
                devices = cdi::resolve(devices).await?;
            }
        }
        for device in spec.volume_devices.iter().flatten() {
            devices.devices.push(self.volumes.device(pod, name, device)?);
        }
        let mut mounts = Vec::new();
        for (index, mount) in spec.volume_mounts.iter().flatten().enumerate() {
            let mounted = self.volumes.mounted(pod, name, index, mount, &environment).await;
            mounts.push(mounted?);
        }
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let directory = self.volumes.pod_dir(uid);
        let hosts_text = self
            .hosts_text(pod, values)
            .map_err(|e| Failed::Files(e.into()))?;
        let termination_log = exit::message_file(&directory, name, attempt);
        let logs = sandbox::log_directory(pod, &self.config.log_dir).join(name);
        let (hosts, message) = (directory.join(HOSTS), termination_log.clone());
        let written = self.volumes.files().run(uid, move || {
            write_mounted(&hosts, &hosts_text, 0o644)?;
            // Processes of any user write their message, in a directory that no other process of the node enters.
            write_mounted(&message, "", 0o666)?;
            Dir::make(&logs, LOGS_MODE).map(drop)
        });
        written.await.map_err(Failed::Files)?;
        let placement = self.managers.containers.placement(pod, name);
        let config = container::config(container::ContainerInputs {
            pod,
            container: &spec,
            attempt,
            image: &image,
            sources: &sources,
            values,
            mounts,
            devices,
            hosts_file: Some(directory.join(HOSTS)),
            termination_log,
            node_memory_bytes: self.node.memory_bytes,
            cpu_quota: match placement.has_exclusive_cpus {
                true => CpuQuota::NONE,
                false => CpuQuota::of(&self.config.configuration),
            },
            placement,
            huge_pages: &self.node.huge_pages,
            seccomp: Seccomp {
                by_default: self.config.configuration.seccomp_default,
                root: self.config.root_dir.join("seccomp"),
            },
            self_fenced: self
                .fencer
                .is_concerned(pod)
                .then(|| TerminationMode::of(pod, name)),
            oom_group: cgroup::is_unified()
                && self.config.configuration.single_process_oom_kill != Some(true),
        })?;
        let made = self
            .runtime
            .create_container(sandbox_id, &config, sandbox_config)
            .await;
        made.map_err(Failed::Runtime)
    }

    #[instrument(level = "info", skip_all, fields(namespace = pod.metadata.namespace, pod = pod.metadata.name, uid = pod.metadata.uid, container = container))]
    pub async fn start_container(&self, pod: &core::Pod, container: String, id: ContainerId) -> Event {
        let permit = match self.start_permit(pod).await {
            Ok(permit) => permit,
            Err(error) => {
                return Event::ContainerStartFailed {
                    container,
                    id,
                    message: error.to_string(),
                    still_created: false,
                };
            }
        };
        let started = self.runtime.start_container(&id).await;
        drop(permit);
        if let Err(error) = started {
            let after = self.after_failed_start(&id).await;
            if after != AfterFailedStart::Started {
                return Event::ContainerStartFailed {
                    container,
                    id,
                    message: error.message,
                    still_created: after == AfterFailedStart::Created,
                };
            }
        }
        self.managers.containers.note_started();
        let now = self.clock.now();
        let fallback = pod
            .spec
            .as_ref()
            .and_then(|s| find_spec(s, &container))
            .and_then(|c| c.image.clone())
            .unwrap_or_default();
        match self.runtime.container(&id).await {
            Ok(detail) => {
                let directory = links::directory(&self.config.log_dir);
                if let Err(error) = links::link(&directory, &detail.container, Path::new(&detail.log_path)) {
                    warn!(container = %id, %error, "cannot link a container's log");
                }
                let at = match &detail.container.state {
                    ContainerState::Running { started_at } => *started_at,
                    ContainerState::Exited(exit) => exit.started_at.unwrap_or(now),
                    _ => now,
                };
                Event::ContainerStarted {
                    container,
                    id,
                    at,
                    image: detail.container.image,
                    image_id: detail.container.image_id,
                }
            }
            // It did start; only its details are late.
            Err(_) => Event::ContainerStarted {
                container,
                id,
                at: now,
                image: fallback,
                image_id: String::new(),
            },
        }
    }

    /// A turn to start a container of this pod, which may be started now. The error is why it may not be at all.
    ///
    /// Writing [`STARTED_BY`](super::pod_object::STARTED_BY) and waiting for a permit may outlast the node's lease: the
    /// lease is checked after every other wait.
    async fn start_permit(&self, pod: &core::Pod) -> Result<Option<SemaphorePermit<'_>>, StartDenied> {
        self.announcements.may_start(pod).await?;
        loop {
            self.fencer.may_start(pod).await?;
            let permit = self.runtime.start_permit().await;
            if self.fencer.may_start_now(pod) {
                return Ok(permit);
            }
        }
    }

    /// What became of a container whose start returned an error: the answer may have been lost, and taking it for an exit
    /// would start a second one (SPEC S1). Only the runtime's record decides; it is awaited.
    async fn after_failed_start(&self, id: &ContainerId) -> AfterFailedStart {
        let mut wait = RETRY.0;
        loop {
            match self.runtime.container(id).await {
                Ok(detail) => {
                    return match &detail.container.state {
                        ContainerState::Running { .. } => AfterFailedStart::Started,
                        // containerd's record of a start that failed.
                        ContainerState::Exited(exit)
                            if exit.started_at.is_none() || exit.reason == "StartError" =>
                        {
                            AfterFailedStart::NotStarted
                        }
                        ContainerState::Exited(_) => AfterFailedStart::Started,
                        ContainerState::Created => AfterFailedStart::Created,
                        ContainerState::Unknown => AfterFailedStart::NotStarted,
                    };
                }
                Err(error) if error.is_not_found() => return AfterFailedStart::NotStarted,
                Err(error) => {
                    warn!(container = %id, %error, "cannot find out yet whether a container was started")
                }
            }
            sleep(wait).await;
            wait = (wait * 2).min(RETRY.1);
        }
    }

    /// Fetches what the container's environment comes from.
    async fn sources(
        &self,
        pod: &core::Pod,
        container: &core::Container,
    ) -> Result<Sources, CreateContainerError> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        let (maps, secrets) = env::references(container);
        let mut sources = Sources::default();
        for name in maps {
            let map = self.fetch::<core::ConfigMap>(namespace, &name).await?;
            sources.config_maps.insert(name, map);
        }
        for name in secrets {
            let secret = self.fetch::<core::Secret>(namespace, &name).await?;
            sources.secrets.insert(name, secret);
        }
        for (volume, path) in env::files(container) {
            let file = self.volumes.env_file(pod, volume, path).await;
            sources.files.insert((volume.into(), path.into()), file);
        }
        for of in [namespace, "default"] {
            let services = self.services.list(of).into_iter();
            let services = services.filter(|s| of == namespace || s.name() == "kubernetes");
            sources
                .services
                .extend(services.filter_map(|s| s.to_typed::<core::Service>().map(Arc::new)));
        }
        Ok(sources)
    }

    async fn fetch<T: Registered + Clone>(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<T>>, CreateContainerError> {
        match self.api.get(T::kind_of(), namespace, name).await {
            Ok(object) => Ok(object.to_typed::<T>().map(Arc::new)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(CreateContainerError::Source(error)),
        }
    }

    fn hosts_text(&self, pod: &core::Pod, values: &DownwardValues) -> std::io::Result<String> {
        let node = namespaces::host_network(pod)
            .then(|| crate::host_fs::read_to_string("/etc/hosts"))
            .transpose()?;
        let fqdn = sandbox::fqdn(pod, &self.config);
        Ok(container::hosts_file(
            pod,
            &values.pod_ips,
            &sandbox::hostname(pod),
            fqdn.as_deref(),
            node.as_deref(),
        ))
    }
}

/// Writes a file of the pod's directory that is mounted in containers, which may have written it before.
fn write_mounted(path: &Path, text: &str, mode: u32) -> std::io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(std::io::ErrorKind::InvalidInput.into());
    };
    let file = NewFile {
        bytes: text.as_bytes(),
        mode,
        ..NewFile::default()
    };
    Dir::make(parent, POD_DIR_MODE)?.overwrite(name, file)
}
