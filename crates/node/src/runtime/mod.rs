//! The container runtime, as the kubelet needs it: one trait, two implementations.
//!
//! [`cri`] speaks CRI v1 to containerd; `fake` keeps containers in memory for tests and the simulation.
//! Configurations are CRI's own messages; results are the types of `knarr_kubelet::runtime`.

pub mod cri;
pub mod events;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod grpc;

use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use k8s_cri::v1;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::{ContainerId, SandboxId};
use knarr_kubelet::runtime::{Container, PodRef, Sandbox};

pub use v1::{AuthConfig, ContainerConfig, LinuxContainerResources, PodSandboxConfig};

/// An error of the runtime, with gRPC's code and the runtime's message.
#[derive(Clone, Debug, thiserror::Error)]
#[error("rpc error: code = {code} desc = {message}")]
pub struct RuntimeError {
    /// `NotFound`, `Unavailable`, `DeadlineExceeded`, `Unknown`, …
    pub code: &'static str,
    pub message: String,
}

impl RuntimeError {
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        RuntimeError {
            code,
            message: message.into(),
        }
    }

    pub fn not_found(what: &str, id: &str) -> Self {
        Self::new("NotFound", format!("{what} {id:?} not found"))
    }

    pub fn is_not_found(&self) -> bool {
        self.code == "NotFound"
    }

    /// The runtime is not reachable; it may come back.
    pub fn is_unavailable(&self) -> bool {
        self.code == "Unavailable"
    }
}

pub type Result<T, E = RuntimeError> = std::result::Result<T, E>;

/// An event; the receiver reads the state again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeEvent {
    /// The first process of this container (or sandbox) exited.
    Exited { id: String },
    /// Events may have been missed: list everything.
    Resync,
}

/// What runs, and how well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// `containerd`
    pub name: String,
    /// `1.6.20`
    pub version: String,
    pub ready: bool,
    pub network_ready: bool,
    /// Why one of them is not.
    pub message: String,
}

/// The details of one sandbox that lists lack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxDetail {
    pub sandbox: Sandbox,
    /// Path of its network namespace; none for pods in the host's.
    pub netns: Option<String>,
    pub pid: Option<u32>,
}

/// The details of one container that lists lack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerDetail {
    pub container: Container,
    pub log_path: String,
    /// The host path of the termination message, by the mount that carries it.
    pub mounts: Vec<(String, String)>,
    pub pid: Option<u32>,
}

/// An image on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    pub id: String,
    pub tags: Vec<String>,
    pub digests: Vec<String>,
    pub size_bytes: u64,
    /// The user the image runs as: a number, or a name.
    pub uid: Option<i64>,
    pub username: String,
    pub pinned: bool,
}

/// The result of a command in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    pub exit_code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// What a streamed command needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOptions {
    pub command: Vec<String>,
    pub tty: bool,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

/// CPU and memory of one container, as of `at`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub container_id: ContainerId,
    pub pod: PodRef,
    pub name: String,
    pub at: Timestamp,
    pub cpu_nanoseconds: u64,
    pub memory_working_set_bytes: u64,
    pub writable_layer_bytes: u64,
    pub writable_layer_inodes: u64,
}

/// The file system of images on this node, and their use of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageFs {
    pub path: std::path::PathBuf,
    pub used_bytes: Option<u64>,
}

/// The container runtime of one node.
///
/// Every call may be repeated: a state that is reached already is a success (stopping what is stopped, removing what is
/// removed). No call takes longer than its own time limit.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    async fn status(&self) -> Result<RuntimeStatus>;
    /// Exits, as they happen. Ends when the runtime disconnects; the receiver subscribes again and relists.
    async fn events(&self) -> Result<BoxStream<'static, RuntimeEvent>>;

    /// Without addresses: [`Runtime::sandbox`] knows them.
    async fn sandboxes(&self) -> Result<Vec<Sandbox>>;
    async fn sandbox(&self, id: &SandboxId) -> Result<SandboxDetail>;
    async fn run_sandbox(&self, config: &PodSandboxConfig, handler: &str) -> Result<SandboxId>;
    /// Terminates every process in it and releases its network.
    async fn stop_sandbox(&self, id: &SandboxId) -> Result<()>;
    async fn remove_sandbox(&self, id: &SandboxId) -> Result<()>;

    /// Exited containers carry no [`Exit`](knarr_kubelet::runtime::Exit) detail here: [`Runtime::container`] knows it.
    async fn containers(&self) -> Result<Vec<Container>>;
    async fn container(&self, id: &ContainerId) -> Result<ContainerDetail>;
    async fn create_container(
        &self,
        sandbox_id: &SandboxId,
        config: &ContainerConfig,
        sandbox: &PodSandboxConfig,
    ) -> Result<ContainerId>;
    async fn start_container(&self, id: &ContainerId) -> Result<()>;
    /// Returns when its processes have exited: TERM (or the image's signal), and KILL after `grace`. A second call with
    /// a shorter grace brings the KILL forward.
    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()>;
    async fn remove_container(&self, id: &ContainerId) -> Result<()>;
    /// Gives a running container other resources.
    async fn update_container(&self, id: &ContainerId, resources: &v1::LinuxContainerResources)
    -> Result<()>;
    async fn exec(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecOutput>;
    async fn usage(&self) -> Result<Vec<Usage>>;

    /// Where the runtime's stream server waits for this command (`http://127.0.0.1:port/exec/token`).
    async fn exec_url(&self, container_id: &ContainerId, options: &ExecOptions) -> Result<String>;
    /// Likewise, for the container's own streams; `options.command` is ignored.
    async fn attach_url(&self, container_id: &ContainerId, options: &ExecOptions) -> Result<String>;
    async fn port_forward_url(&self, sandbox_id: &SandboxId, ports: &[i32]) -> Result<String>;
    /// After its log file was renamed.
    async fn reopen_log(&self, container_id: &ContainerId) -> Result<()>;

    async fn images(&self) -> Result<Vec<Image>>;
    async fn image(&self, name: &str) -> Result<Option<Image>>;
    /// The id of the image pulled.
    async fn pull_image(
        &self,
        name: &str,
        auth: Option<&AuthConfig>,
        sandbox: &PodSandboxConfig,
    ) -> Result<String>;
    /// By name or id.
    async fn remove_image(&self, name: &str) -> Result<()>;
    /// None for a runtime without images on this node's disks.
    async fn image_fs(&self) -> Result<Option<ImageFs>>;
    /// The runtime's own process, where it runs on this host.
    async fn process(&self) -> Result<Option<u32>> {
        Ok(None)
    }
}

/// Finds what a user names: the newest sandbox of a pod that is there.
pub async fn find_sandbox(runtime: &dyn Runtime, namespace: &str, pod: &str) -> Result<SandboxDetail> {
    let newest = runtime
        .sandboxes()
        .await?
        .into_iter()
        .filter(|s| s.pod.namespace == namespace && s.pod.name == pod)
        .max_by_key(|s| (s.ready, s.created_at));
    match newest {
        Some(sandbox) => runtime.sandbox(&sandbox.id).await,
        None => Err(RuntimeError::new(
            "NotFound",
            format!("pod \"{pod}\" in namespace \"{namespace}\" has no sandbox on this node"),
        )),
    }
}

/// Finds what a user names: the newest container of this name in a pod, or (`previous`) the one before it.
pub async fn find_container(
    runtime: &dyn Runtime,
    namespace: &str,
    pod: &str,
    container: &str,
    previous: bool,
) -> Result<ContainerDetail> {
    let mut runs: Vec<Container> = runtime
        .containers()
        .await?
        .into_iter()
        .filter(|c| c.pod.namespace == namespace && c.pod.name == pod && c.name == container)
        .collect();
    runs.sort_by_key(|c| std::cmp::Reverse((c.created_at, c.attempt)));
    // A pod of the same name may have existed before: only the newest pod's runs count.
    let uid = runs.first().map(|c| c.pod.uid.clone());
    let mut runs = runs.into_iter().filter(|c| Some(&c.pod.uid) == uid.as_ref());
    let found = if previous { runs.nth(1) } else { runs.next() };
    match found {
        Some(run) => runtime.container(&run.id).await,
        None => Err(RuntimeError::new(
            "NotFound",
            if previous {
                format!("previous terminated container \"{container}\" in pod \"{pod}\" not found")
            } else {
                format!("container \"{container}\" in pod \"{pod}\" is not there")
            },
        )),
    }
}
