//! Makes sandboxes and containers, and starts them: what a container is given is fetched and written first.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_cri::v1::PodSandboxConfig;
use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use knarr_client::{Clock, Error};
use knarr_kubelet::pod::{Event, find_spec};
use knarr_kubelet::runtime::ContainerState;
use knarr_kubelet::self_fencing::Ending;
use tokio::sync::{SemaphorePermit, mpsc};
use tokio::time::sleep;
use tracing::warn;

use super::downward::DownwardValues;
use super::env::Sources;
use super::resources::CpuQuota;
use super::security_context::Seccomp;
use super::worker::{Msg, RETRY};
use super::{Shared, at_most_one, container, enforcement, env, exit, sandbox, self_fencing};
use crate::cgroup;
use crate::dra::cdi;
use crate::logs::links;
use crate::runtime::RuntimeError;
use crate::untrusted_fs::{self, Dir, NewFile};
use crate::volumes;

/// Directories of logs, which collectors read.
const LOGS_MODE: u32 = 0o755;
/// The pod's `/etc/hosts`, in its directory.
const HOSTS: &str = "etc-hosts";

pub(super) async fn create_sandbox(
    shared: &Shared,
    inbox: &mpsc::UnboundedSender<Msg>,
    pod: &core::Pod,
    config: &PodSandboxConfig,
) -> Result<(String, Vec<String>), String> {
    let failed_text = |e: RuntimeError| e.to_string();
    let handler = runtime_handler(shared, pod).await.map_err(failed_text)?;
    sandbox::check_supported(pod, &handler, &shared.config)?;
    let uid = pod.metadata.uid.as_deref().unwrap_or("");
    let logs = PathBuf::from(&config.log_directory);
    let made = shared
        .volumes
        .files()
        .run(uid, move || Dir::make(&logs, LOGS_MODE));
    made.await.map_err(|e| e.to_string())?;
    enforcement::update_portions(shared, Some(pod)).await;
    if shared.config.machine.is_host()
        && let Err(error) = limit_pod(shared, pod).await
    {
        // The runtime makes the cgroup itself; only the pod's own limits would be missing.
        warn!(pod = pod.metadata.name, %error, "cannot set up a pod's cgroup");
    }
    let _permit = shared.starts.acquire().await;
    let made = shared.runtime.run_sandbox(config, &handler).await;
    let id = made.map_err(failed_text)?;
    shared.owners.lock().insert(id.clone(), inbox.clone());
    let detail = shared.runtime.sandbox(&id).await.map_err(failed_text)?;
    Ok((id, detail.sandbox.ips))
}

/// Makes the pod's group, if it is not there, and gives it the pod's limits.
async fn limit_pod(shared: &Shared, pod: &core::Pod) -> std::io::Result<()> {
    let configuration = &shared.config.configuration;
    let quota = super::resources::quota_of_pod(shared, pod);
    let limits = super::resources::of_pod(pod, configuration, quota, &shared.huge_pages);
    let group = super::resources::group(pod);
    cgroup::ensure(configuration.cgroup_driver, &group, &limits).await
}

async fn runtime_handler(shared: &Shared, pod: &core::Pod) -> Result<String, RuntimeError> {
    use k8s_openapi::api::node::v1::RuntimeClass;
    let Some(name) = pod.spec.as_ref().and_then(|s| s.runtime_class_name.as_deref()) else {
        return Ok(String::new());
    };
    match shared.api.get(RuntimeClass::kind_of(), "", name).await {
        Ok(class) => Ok(class
            .get::<RuntimeClass>()
            .map(|c| c.handler.clone())
            .unwrap_or_default()),
        Err(error) => Err(RuntimeError::new("NotFound", error.to_string())),
    }
}

pub(super) async fn create_container(
    shared: &Shared,
    pod: &core::Pod,
    name: &str,
    attempt: u32,
    sandbox_id: &str,
    sandbox_config: &PodSandboxConfig,
    values: &DownwardValues,
) -> Result<String, (&'static str, String)> {
    let wrong = |message: String| ("CreateContainerConfigError", message);
    let failed = |e: untrusted_fs::Error| ("CreateContainerError", e.to_string());
    let spec = pod.spec.as_ref().and_then(|s| find_spec(s, name));
    let spec = spec.ok_or_else(|| wrong(format!("the pod has no container {name:?} any more")))?;
    let sources = sources(shared, pod, &spec).await.map_err(wrong)?;
    let image_name = knarr_kubelet::image::normalize(spec.image.as_deref().unwrap_or("")).map_err(wrong)?;
    let image = shared
        .runtime
        .image(&image_name)
        .await
        .map_err(|e| wrong(e.message))?;
    let image = image.ok_or_else(|| wrong(format!("image {image_name:?} is not there any more")))?;
    let environment = env::environment(pod, &spec, &sources, values).map_err(wrong)?;
    let devices = shared.devices.container_options(pod, &spec).await;
    let mut devices = devices.map_err(|e| wrong(e.to_string()))?;
    let claimed = shared.dra.cdi_devices(pod, &spec);
    devices.add_cdi_devices(claimed.map_err(|e| wrong(e.to_string()))?);
    if !devices.cdi_devices.is_empty() {
        let runtime = shared.runtime.status().await;
        let runtime = runtime.map_err(|error| ("CreateContainerError", error.message))?;
        if cdi::is_unknown_to(&runtime.name, &runtime.version) {
            let resolved = cdi::resolve(devices).await;
            devices = resolved.map_err(|error| ("CreateContainerError", error.to_string()))?;
        }
    }
    for device in spec.volume_devices.iter().flatten() {
        let node = shared.volumes.device(pod, name, device);
        devices.devices.push(node.map_err(|e| wrong(e.to_string()))?);
    }
    let mut mounts = Vec::new();
    for (index, mount) in spec.volume_mounts.iter().flatten().enumerate() {
        let mounted = shared
            .volumes
            .mounted(pod, name, (index, mount), &environment)
            .await;
        mounts.push(mounted.map_err(|e| wrong(e.to_string()))?);
    }
    let uid = pod.metadata.uid.as_deref().unwrap_or("");
    let directory = shared.volumes.pod_dir(uid);
    let hosts_text = hosts_text(shared, pod, values).map_err(|e| failed(e.into()))?;
    let termination_log = exit::message_file(&directory, name, attempt);
    let logs = sandbox::log_directory(pod, &shared.config.log_dir).join(name);
    let (hosts, message) = (directory.join(HOSTS), termination_log.clone());
    let written = shared.volumes.files().run(uid, move || {
        write_mounted(&hosts, &hosts_text, 0o644)?;
        // Processes of any user write their message, in a directory that no other process of the node enters.
        write_mounted(&message, "", 0o666)?;
        Dir::make(&logs, LOGS_MODE).map(drop)
    });
    written.await.map_err(failed)?;
    let placement = shared.containers.placement(pod, name);
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
        node_memory_bytes: shared.memory_bytes,
        cpu_quota: match placement.has_exclusive_cpus {
            true => CpuQuota::NONE,
            false => CpuQuota::of(&shared.config.configuration),
        },
        placement,
        huge_pages: &shared.huge_pages,
        seccomp: Seccomp {
            by_default: shared.config.configuration.seccomp_default,
            root: shared.config.root_dir.join("seccomp"),
        },
        self_fenced: self_fencing::is_concerned(shared, pod).then(|| Ending::of(pod, name)),
        oom_group: cgroup::is_unified() && shared.config.configuration.single_process_oom_kill != Some(true),
    })
    .map_err(wrong)?;
    let made = shared
        .runtime
        .create_container(sandbox_id, &config, sandbox_config)
        .await;
    made.map_err(|error| ("CreateContainerError", error.message))
}

pub(super) async fn start_container(
    shared: &Shared,
    pod: &core::Pod,
    container: String,
    id: String,
) -> Event {
    let permit = match start_permit(shared, pod).await {
        Ok(permit) => permit,
        Err(message) => {
            return Event::ContainerStartFailed {
                container,
                id,
                message,
            };
        }
    };
    let started = shared.runtime.start_container(&id).await;
    drop(permit);
    if let Err(error) = started
        && !was_started(shared, &id).await
    {
        return Event::ContainerStartFailed {
            container,
            id,
            message: error.message,
        };
    }
    shared.containers.note_started();
    let now = shared.clock.now();
    let fallback = pod
        .spec
        .as_ref()
        .and_then(|s| find_spec(s, &container))
        .and_then(|c| c.image.clone())
        .unwrap_or_default();
    match shared.runtime.container(&id).await {
        Ok(detail) => {
            let directory = links::directory(&shared.config.log_dir);
            if let Err(error) = links::link(&directory, &detail.container, Path::new(&detail.log_path)) {
                warn!(container = id, %error, "cannot link a container's log");
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
/// Writing [`STARTED_BY`](super::at_most_one::STARTED_BY) and waiting for a permit may outlast the node's lease: the
/// lease is checked after every other wait.
async fn start_permit<'a>(
    shared: &'a Shared,
    pod: &core::Pod,
) -> Result<Option<SemaphorePermit<'a>>, String> {
    at_most_one::may_start(shared, pod).await?;
    loop {
        self_fencing::may_start(shared, pod).await?;
        let permit = shared.starts.acquire().await.ok();
        if self_fencing::may_start_now(shared, pod) {
            return Ok(permit);
        }
    }
}

/// Whether a container whose start returned an error has been started: the answer may have been lost, and taking it for
/// an exit would start a second one (SPEC S1). Only the runtime's record decides; it is awaited.
async fn was_started(shared: &Shared, id: &str) -> bool {
    let mut wait = RETRY.0;
    loop {
        match shared.runtime.container(id).await {
            Ok(detail) => {
                return match &detail.container.state {
                    ContainerState::Running { .. } => true,
                    // containerd's record of a start that failed.
                    ContainerState::Exited(exit) => exit.started_at.is_some() && exit.reason != "StartError",
                    ContainerState::Created | ContainerState::Unknown => false,
                };
            }
            Err(error) if error.is_not_found() => return false,
            Err(error) => {
                warn!(container = id, %error, "cannot find out yet whether a container was started")
            }
        }
        sleep(wait).await;
        wait = (wait * 2).min(RETRY.1);
    }
}

/// Fetches what the container's environment comes from.
async fn sources(shared: &Shared, pod: &core::Pod, container: &core::Container) -> Result<Sources, String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    let (maps, secrets) = env::references(container);
    let mut sources = Sources::default();
    for name in maps {
        let map = fetch::<core::ConfigMap>(shared, namespace, &name).await?;
        sources.config_maps.insert(name, map);
    }
    for name in secrets {
        let secret = fetch::<core::Secret>(shared, namespace, &name).await?;
        sources.secrets.insert(name, secret);
    }
    for (volume, path) in env::files(container) {
        let file = shared.volumes.env_file(pod, volume, path).await;
        sources.files.insert((volume.into(), path.into()), file);
    }
    for of in [namespace, "default"] {
        let services = shared.services.list(of).into_iter();
        let services = services.filter(|s| of == namespace || s.name() == "kubernetes");
        sources
            .services
            .extend(services.filter_map(|s| s.to_typed::<core::Service>().map(Arc::new)));
    }
    Ok(sources)
}

async fn fetch<T: Registered + Clone>(
    shared: &Shared,
    namespace: &str,
    name: &str,
) -> Result<Option<Arc<T>>, String> {
    match shared.api.get(T::kind_of(), namespace, name).await {
        Ok(object) => Ok(object.to_typed::<T>().map(Arc::new)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(Error::message(&error).to_string()),
    }
}

fn hosts_text(shared: &Shared, pod: &core::Pod, values: &DownwardValues) -> std::io::Result<String> {
    let node = sandbox::host_network(pod)
        .then(|| crate::host_fs::read_to_string("/etc/hosts"))
        .transpose()?;
    let fqdn = sandbox::fqdn(pod, &shared.config);
    Ok(container::hosts_file(
        pod,
        &values.pod_ips,
        &sandbox::hostname(pod),
        fqdn.as_deref(),
        node.as_deref(),
    ))
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
    Dir::make(parent, volumes::POD_DIR_MODE)?.overwrite(name, file)
}
