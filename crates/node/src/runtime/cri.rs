//! [`Runtime`] over CRI v1 (containerd 1.6 and later), on a local socket.
//!
//! The connection is made when it is first needed, and made again when it broke. Every call has a time limit. The calls that make, start,
//! stop and remove are spans with CRI's names.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use hyper_util::rt::TokioIo;
use k8s_cri::v1;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::{ContainerId, SandboxId};
use knarr_kubelet::runtime::{Container, ContainerState, Exit, PodRef, Sandbox};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tracing::instrument;

use super::events::RecentExits;
use super::grpc::runtime_error;
use super::{
    AuthConfig, ContainerConfig, ContainerDetail, ExecOptions, ExecOutput, Image, ImageFs, PodSandboxConfig,
    Result, Runtime, RuntimeError, RuntimeEvent, RuntimeStatus, SandboxDetail, Usage,
};
use crate::grpc::{BytesCodec, Call, decode, methods};
use crate::kubelet::labels;

/// Deadline of read-only calls.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// For calls that make or remove; kubelet's `runtime-request-timeout`.
const WRITE_TIMEOUT: Duration = Duration::from_secs(120);
/// A pull may take long; containerd checks its progress.
const PULL_TIMEOUT: Duration = Duration::from_secs(3600);
/// Lists of thousands of containers are larger than tonic's 4 MiB.
const MAX_MESSAGE: usize = 64 << 20;

methods! {
    v1::VersionRequest, "/runtime.v1.RuntimeService/Version" => v1::VersionResponse;
    v1::StatusRequest, "/runtime.v1.RuntimeService/Status" => v1::StatusResponse;
    v1::ListPodSandboxRequest, "/runtime.v1.RuntimeService/ListPodSandbox" => v1::ListPodSandboxResponse;
    v1::PodSandboxStatusRequest, "/runtime.v1.RuntimeService/PodSandboxStatus" => v1::PodSandboxStatusResponse;
    v1::RunPodSandboxRequest, "/runtime.v1.RuntimeService/RunPodSandbox" => v1::RunPodSandboxResponse;
    v1::StopPodSandboxRequest, "/runtime.v1.RuntimeService/StopPodSandbox" => v1::StopPodSandboxResponse;
    v1::RemovePodSandboxRequest, "/runtime.v1.RuntimeService/RemovePodSandbox" => v1::RemovePodSandboxResponse;
    v1::ListContainersRequest, "/runtime.v1.RuntimeService/ListContainers" => v1::ListContainersResponse;
    v1::ContainerStatusRequest, "/runtime.v1.RuntimeService/ContainerStatus" => v1::ContainerStatusResponse;
    v1::CreateContainerRequest, "/runtime.v1.RuntimeService/CreateContainer" => v1::CreateContainerResponse;
    v1::StartContainerRequest, "/runtime.v1.RuntimeService/StartContainer" => v1::StartContainerResponse;
    v1::StopContainerRequest, "/runtime.v1.RuntimeService/StopContainer" => v1::StopContainerResponse;
    v1::RemoveContainerRequest, "/runtime.v1.RuntimeService/RemoveContainer" => v1::RemoveContainerResponse;
    v1::UpdateContainerResourcesRequest, "/runtime.v1.RuntimeService/UpdateContainerResources" => v1::UpdateContainerResourcesResponse;
    v1::ExecSyncRequest, "/runtime.v1.RuntimeService/ExecSync" => v1::ExecSyncResponse;
    v1::ListContainerStatsRequest, "/runtime.v1.RuntimeService/ListContainerStats" => v1::ListContainerStatsResponse;
    v1::ExecRequest, "/runtime.v1.RuntimeService/Exec" => v1::ExecResponse;
    v1::AttachRequest, "/runtime.v1.RuntimeService/Attach" => v1::AttachResponse;
    v1::PortForwardRequest, "/runtime.v1.RuntimeService/PortForward" => v1::PortForwardResponse;
    v1::ReopenContainerLogRequest, "/runtime.v1.RuntimeService/ReopenContainerLog" => v1::ReopenContainerLogResponse;
    v1::ListImagesRequest, "/runtime.v1.ImageService/ListImages" => v1::ListImagesResponse;
    v1::ImageStatusRequest, "/runtime.v1.ImageService/ImageStatus" => v1::ImageStatusResponse;
    v1::PullImageRequest, "/runtime.v1.ImageService/PullImage" => v1::PullImageResponse;
    v1::RemoveImageRequest, "/runtime.v1.ImageService/RemoveImage" => v1::RemoveImageResponse;
    v1::ImageFsInfoRequest, "/runtime.v1.ImageService/ImageFsInfo" => v1::ImageFsInfoResponse;
}

/// A CRI endpoint.
#[derive(Clone, Debug)]
pub struct Cri {
    channel: Channel,
    socket: PathBuf,
    exits: RecentExits,
}

impl Cri {
    /// Does not connect yet. `endpoint` is a path, or `unix://` and a path.
    pub fn new(endpoint: &str) -> Self {
        let socket = PathBuf::from(endpoint.strip_prefix("unix://").unwrap_or(endpoint));
        let path = socket.clone();
        // The address is not used: the connector uses the socket.
        let channel = Endpoint::from_static("http://containerd.invalid").connect_with_connector_lazy(
            tower::service_fn(move |_| {
                let path = path.clone();
                async move {
                    let stream = tokio::net::UnixStream::connect(path).await?;
                    Ok::<_, std::io::Error>(TokioIo::new(stream))
                }
            }),
        );
        Cri {
            channel,
            socket,
            exits: RecentExits::default(),
        }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Calls the method that takes this request.
    async fn call<C: Call>(&self, limit: Duration, request: C) -> Result<C::Answer> {
        let request = Bytes::from(prost::Message::encode_to_vec(&request));
        let answer = self.call_bytes(limit, C::PATH, request).await?;
        decode(&answer).map_err(runtime_error)
    }

    async fn call_bytes(&self, limit: Duration, method: &'static str, request: Bytes) -> Result<Bytes> {
        let calling = async {
            let grpc = tonic::client::Grpc::new(self.channel.clone());
            let mut grpc = grpc.max_decoding_message_size(MAX_MESSAGE);
            let unready =
                |e: tonic::transport::Error| tonic::Status::unknown(format!("Service was not ready: {e}"));
            grpc.ready().await.map_err(unready)?;
            let path = PathAndQuery::from_static(method);
            grpc.unary(tonic::Request::new(request), path, BytesCodec).await
        };
        match tokio::time::timeout(limit, calling).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(runtime_error(status)),
            Err(_) => Err(RuntimeError::new("DeadlineExceeded", "context deadline exceeded")),
        }
    }
}

/// A missing sandbox or container is a success.
fn ignore_not_found(result: Result<()>) -> Result<()> {
    match result {
        Err(e) if e.is_not_found() => Ok(()),
        other => other,
    }
}

fn nanos(at: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(at)).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn some_nanos(at: i64) -> Option<Timestamp> {
    (at > 0).then(|| nanos(at))
}

type Labels = std::collections::HashMap<String, String>;

fn pod_ref(l: &Labels) -> PodRef {
    let get = |key| l.get(key).cloned().unwrap_or_default();
    PodRef {
        uid: get(labels::POD_UID).into(),
        namespace: get(labels::POD_NAMESPACE),
        name: get(labels::POD_NAME),
    }
}

fn state(code: i32, started_at: i64, exit: impl FnOnce() -> Exit) -> ContainerState {
    match v1::ContainerState::try_from(code) {
        Ok(v1::ContainerState::ContainerCreated) => ContainerState::Created,
        Ok(v1::ContainerState::ContainerRunning) => ContainerState::Running {
            started_at: nanos(started_at),
        },
        Ok(v1::ContainerState::ContainerExited) => ContainerState::Exited(exit()),
        _ => ContainerState::Unknown,
    }
}

fn container(c: v1::Container) -> Container {
    let metadata = c.metadata.unwrap_or_default();
    Container {
        pod: pod_ref(&c.labels),
        name: metadata.name,
        attempt: metadata.attempt,
        hash: c
            .annotations
            .get(labels::CONTAINER_HASH)
            .cloned()
            .unwrap_or_default(),
        self_fenced: labels::termination_mode(&c.annotations),
        // A list knows no start; the creation is close, and the detail knows better.
        state: state(c.state, c.created_at, Exit::default),
        created_at: nanos(c.created_at),
        image: c.image.map(|i| i.image).unwrap_or_default(),
        image_id: c.image_ref,
        id: c.id.into(),
        sandbox_id: c.pod_sandbox_id.into(),
    }
}

fn image(i: v1::Image) -> Image {
    Image {
        id: i.id,
        tags: i.repo_tags,
        digests: i.repo_digests,
        size_bytes: i.size,
        uid: i.uid.map(|u| u.value),
        username: i.username,
        pinned: i.pinned,
    }
}

fn image_spec(name: &str) -> Option<v1::ImageSpec> {
    Some(v1::ImageSpec {
        image: name.into(),
        ..Default::default()
    })
}

#[async_trait]
impl Runtime for Cri {
    async fn status(&self) -> Result<RuntimeStatus> {
        let version = self.call(READ_TIMEOUT, v1::VersionRequest::default()).await?;
        let request = v1::StatusRequest { verbose: false };
        let response = self.call(READ_TIMEOUT, request).await?;
        let mut status = RuntimeStatus {
            name: version.runtime_name,
            version: version.runtime_version,
            ..RuntimeStatus::default()
        };
        for condition in response.status.unwrap_or_default().conditions {
            match condition.r#type.as_str() {
                "RuntimeReady" => status.ready = condition.status,
                "NetworkReady" => status.network_ready = condition.status,
                _ => continue,
            }
            if !condition.status {
                status.message = format!(
                    "container runtime network not ready: {}=false reason:{} message:{}",
                    condition.r#type, condition.reason, condition.message
                );
            }
        }
        Ok(status)
    }

    async fn events(&self) -> Result<BoxStream<'static, RuntimeEvent>> {
        Ok(super::events::subscribe(self.channel.clone(), self.exits.clone()))
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>> {
        let request = v1::ListPodSandboxRequest { filter: None };
        let response = self.call(READ_TIMEOUT, request).await?;
        let ours = |s: &v1::PodSandbox| s.labels.contains_key(labels::POD_UID);
        let sandbox = |s: v1::PodSandbox| Sandbox {
            pod: pod_ref(&s.labels),
            attempt: s.metadata.map_or(0, |m| m.attempt),
            ready: s.state == v1::PodSandboxState::SandboxReady as i32,
            created_at: nanos(s.created_at),
            ips: Vec::new(),
            id: s.id.into(),
        };
        Ok(response.items.into_iter().filter(ours).map(sandbox).collect())
    }

    async fn sandbox(&self, id: &SandboxId) -> Result<SandboxDetail> {
        let request = v1::PodSandboxStatusRequest {
            pod_sandbox_id: id.into(),
            verbose: true,
        };
        let response = self.call(READ_TIMEOUT, request).await?;
        let status = response.status.unwrap_or_default();
        let network = status.network.unwrap_or_default();
        let mut ips = vec![network.ip];
        ips.extend(network.additional_ips.into_iter().map(|ip| ip.ip));
        ips.retain(|ip| !ip.is_empty());
        // containerd has the rest only in its verbose information.
        let info = response.info.get("info");
        let info: serde_json::Value = info
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let pid = info["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        let namespaces = info["runtimeSpec"]["linux"]["namespaces"].as_array();
        let netns = namespaces
            .into_iter()
            .flatten()
            .find(|n| n["type"] == "network")
            .and_then(|n| n["path"].as_str())
            .map(str::to_string);
        Ok(SandboxDetail {
            sandbox: Sandbox {
                pod: pod_ref(&status.labels),
                attempt: status.metadata.map_or(0, |m| m.attempt),
                ready: status.state == v1::PodSandboxState::SandboxReady as i32,
                created_at: nanos(status.created_at),
                ips,
                id: status.id.into(),
            },
            netns,
            pid: pid.filter(|pid| *pid > 0),
        })
    }

    #[instrument(name = "RunPodSandbox", level = "debug", skip_all)]
    async fn run_sandbox(&self, config: &PodSandboxConfig, handler: &str) -> Result<SandboxId> {
        let request = v1::RunPodSandboxRequest {
            config: Some(config.clone()),
            runtime_handler: handler.into(),
        };
        let response = self.call(WRITE_TIMEOUT * 2, request).await?;
        Ok(response.pod_sandbox_id.into())
    }

    #[instrument(name = "StopPodSandbox", level = "debug", skip_all)]
    async fn stop_sandbox(&self, id: &SandboxId) -> Result<()> {
        let request = v1::StopPodSandboxRequest {
            pod_sandbox_id: id.into(),
        };
        ignore_not_found(self.call(WRITE_TIMEOUT, request).await.map(drop))
    }

    #[instrument(name = "RemovePodSandbox", level = "debug", skip_all)]
    async fn remove_sandbox(&self, id: &SandboxId) -> Result<()> {
        let request = v1::RemovePodSandboxRequest {
            pod_sandbox_id: id.into(),
        };
        ignore_not_found(self.call(WRITE_TIMEOUT, request).await.map(drop))
    }

    async fn containers(&self) -> Result<Vec<Container>> {
        let request = v1::ListContainersRequest { filter: None };
        let response = self.call(READ_TIMEOUT, request).await?;
        let ours = |c: &v1::Container| c.labels.contains_key(labels::POD_UID);
        Ok(response
            .containers
            .into_iter()
            .filter(ours)
            .map(container)
            .collect())
    }

    async fn container(&self, id: &ContainerId) -> Result<ContainerDetail> {
        let request = v1::ContainerStatusRequest {
            container_id: id.into(),
            verbose: false,
        };
        let response = self.call(READ_TIMEOUT, request).await?;
        let status = response.status.unwrap_or_default();
        let metadata = status.metadata.unwrap_or_default();
        let exit = || {
            let exit = Exit {
                code: status.exit_code,
                reason: status.reason.clone(),
                message: status.message.clone(),
                started_at: some_nanos(status.started_at),
                finished_at: some_nanos(status.finished_at),
            };
            self.exits.complete(id, exit)
        };
        Ok(ContainerDetail {
            container: Container {
                id: status.id.clone().into(),
                // CRI does not return it here; the list has it.
                sandbox_id: SandboxId::default(),
                pod: pod_ref(&status.labels),
                name: metadata.name,
                attempt: metadata.attempt,
                hash: status
                    .annotations
                    .get(labels::CONTAINER_HASH)
                    .cloned()
                    .unwrap_or_default(),
                self_fenced: labels::termination_mode(&status.annotations),
                state: state(status.state, status.started_at, exit),
                created_at: nanos(status.created_at),
                image: status.image.as_ref().map(|i| i.image.clone()).unwrap_or_default(),
                image_id: status.image_ref.clone(),
            },
            log_path: status.log_path,
            mounts: status
                .mounts
                .into_iter()
                .map(|m| (m.container_path, m.host_path))
                .collect(),
            pid: None,
        })
    }

    #[instrument(name = "CreateContainer", level = "debug", skip_all)]
    async fn create_container(
        &self,
        sandbox_id: &SandboxId,
        config: &ContainerConfig,
        sandbox: &PodSandboxConfig,
    ) -> Result<ContainerId> {
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox_id.into(),
            config: Some(config.clone()),
            sandbox_config: Some(sandbox.clone()),
        };
        let response = self.call(WRITE_TIMEOUT, request).await?;
        Ok(response.container_id.into())
    }

    #[instrument(name = "StartContainer", level = "debug", skip_all)]
    async fn start_container(&self, id: &ContainerId) -> Result<()> {
        let request = v1::StartContainerRequest {
            container_id: id.into(),
        };
        self.call(WRITE_TIMEOUT, request).await.map(drop)
    }

    #[instrument(name = "StopContainer", level = "debug", skip_all)]
    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let request = v1::StopContainerRequest {
            container_id: id.into(),
            timeout: i64::try_from(grace.as_secs()).unwrap_or(i64::MAX),
        };
        ignore_not_found(
            self.call(grace.saturating_add(WRITE_TIMEOUT), request)
                .await
                .map(drop),
        )
    }

    #[instrument(name = "RemoveContainer", level = "debug", skip_all)]
    async fn remove_container(&self, id: &ContainerId) -> Result<()> {
        let request = v1::RemoveContainerRequest {
            container_id: id.into(),
        };
        ignore_not_found(self.call(WRITE_TIMEOUT, request).await.map(drop))
    }

    async fn update_container(
        &self,
        id: &ContainerId,
        resources: &v1::LinuxContainerResources,
    ) -> Result<()> {
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.into(),
            linux: Some(resources.clone()),
            ..v1::UpdateContainerResourcesRequest::default()
        };
        self.call(READ_TIMEOUT, request).await.map(drop)
    }

    async fn exec(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecOutput> {
        let request = v1::ExecSyncRequest {
            container_id: id.into(),
            cmd: command.to_vec(),
            timeout: timeout.map_or(0, |t| i64::try_from(t.as_secs()).unwrap_or(i64::MAX)),
        };
        // The runtime stops the command at its limit; this only guards against a runtime that does not answer.
        let limit = timeout.map_or(Duration::from_secs(86_400), |t| t.saturating_add(READ_TIMEOUT));
        let response = self.call(limit, request).await?;
        Ok(ExecOutput {
            exit_code: response.exit_code,
            stdout: response.stdout,
            stderr: response.stderr,
        })
    }

    async fn usage(&self) -> Result<Vec<Usage>> {
        let request = v1::ListContainerStatsRequest { filter: None };
        let response = self.call(READ_TIMEOUT, request).await?;
        let usage = |s: v1::ContainerStats| {
            let attributes = s.attributes?;
            let cpu = s.cpu?;
            let layer = s.writable_layer.unwrap_or_default();
            Some(Usage {
                pod: pod_ref(&attributes.labels),
                name: attributes.metadata.map(|m| m.name).unwrap_or_default(),
                container_id: attributes.id.into(),
                at: nanos(cpu.timestamp),
                cpu_nanoseconds: cpu.usage_core_nano_seconds.map_or(0, |v| v.value),
                memory_working_set_bytes: s.memory.and_then(|m| m.working_set_bytes).map_or(0, |v| v.value),
                writable_layer_bytes: layer.used_bytes.map_or(0, |v| v.value),
                writable_layer_inodes: layer.inodes_used.map_or(0, |v| v.value),
            })
        };
        Ok(response.stats.into_iter().filter_map(usage).collect())
    }

    async fn exec_url(&self, container_id: &ContainerId, options: &ExecOptions) -> Result<String> {
        let request = v1::ExecRequest {
            container_id: container_id.into(),
            cmd: options.command.clone(),
            tty: options.tty,
            stdin: options.stdin,
            stdout: options.stdout,
            stderr: options.stderr,
        };
        Ok(self.call(READ_TIMEOUT, request).await?.url)
    }

    async fn attach_url(&self, container_id: &ContainerId, options: &ExecOptions) -> Result<String> {
        let request = v1::AttachRequest {
            container_id: container_id.into(),
            tty: options.tty,
            stdin: options.stdin,
            stdout: options.stdout,
            stderr: options.stderr,
        };
        Ok(self.call(READ_TIMEOUT, request).await?.url)
    }

    async fn port_forward_url(&self, sandbox_id: &SandboxId, ports: &[i32]) -> Result<String> {
        let request = v1::PortForwardRequest {
            pod_sandbox_id: sandbox_id.into(),
            port: ports.to_vec(),
        };
        Ok(self.call(READ_TIMEOUT, request).await?.url)
    }

    async fn reopen_log(&self, container_id: &ContainerId) -> Result<()> {
        let request = v1::ReopenContainerLogRequest {
            container_id: container_id.into(),
        };
        self.call(READ_TIMEOUT, request).await.map(drop)
    }

    async fn images(&self) -> Result<Vec<Image>> {
        let request = v1::ListImagesRequest { filter: None };
        let response = self.call(READ_TIMEOUT, request).await?;
        Ok(response.images.into_iter().map(image).collect())
    }

    async fn image(&self, name: &str) -> Result<Option<Image>> {
        let request = v1::ImageStatusRequest {
            image: image_spec(name),
            verbose: false,
        };
        let response = self.call(READ_TIMEOUT, request).await?;
        Ok(response.image.map(image))
    }

    async fn pull_image(
        &self,
        name: &str,
        auth: Option<&AuthConfig>,
        sandbox: &PodSandboxConfig,
    ) -> Result<String> {
        let request = v1::PullImageRequest {
            image: image_spec(name),
            auth: auth.cloned(),
            sandbox_config: Some(sandbox.clone()),
        };
        Ok(self.call(PULL_TIMEOUT, request).await?.image_ref)
    }

    async fn remove_image(&self, name: &str) -> Result<()> {
        let request = v1::RemoveImageRequest {
            image: image_spec(name),
        };
        ignore_not_found(self.call(WRITE_TIMEOUT, request).await.map(drop))
    }

    async fn image_fs(&self) -> Result<Option<ImageFs>> {
        let request = v1::ImageFsInfoRequest {};
        let response = self.call(READ_TIMEOUT, request).await?;
        let first = response.image_filesystems.into_iter().next();
        Ok(first.and_then(|fs| {
            Some(ImageFs {
                path: fs.fs_id?.mountpoint.into(),
                used_bytes: fs.used_bytes.map(|used| used.value),
            })
        }))
    }

    /// The process that listens on the socket. One that listens for many services (process 1) is not the runtime.
    async fn process(&self) -> Result<Option<u32>> {
        let answers = async {
            let stream = tokio::net::UnixStream::connect(&self.socket).await?;
            stream.peer_cred()
        };
        let peer = answers
            .await
            .map_err(|e| RuntimeError::new("Unavailable", e.to_string()))?;
        let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok());
        Ok(pid.filter(|pid| *pid > 1))
    }
}

#[cfg(test)]
mod tests;
