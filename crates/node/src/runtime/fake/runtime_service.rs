//! The calls of the CRI that the fake runtime answers from its records, with containerd's errors.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use knarr_apimachinery::ids::{ContainerId, SandboxId};
use knarr_kubelet::runtime::{Container, ContainerState, PodRef, Sandbox};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use super::{ContainerEvent, End, FakeRuntime, Record, State, StopBehavior, is_running, key};
use crate::kubelet::labels;
use crate::runtime::{
    AuthConfig, ContainerConfig, ContainerDetail, ExecOptions, ExecOutput, Image, ImageFs, PodSandboxConfig,
    Result, Runtime, RuntimeError, RuntimeEvent, RuntimeStatus, SandboxDetail, Usage,
};

impl FakeRuntime {
    fn send_term(&self, id: &str, stop_behavior: StopBehavior) {
        let end = {
            let (state, clock, id) = (self.state.clone(), self.clock.clone(), id.to_string());
            move || {
                let now = clock.now();
                state.lock().exit(&id, 0, End::Asked, now);
            }
        };
        {
            let state = self.state.lock();
            if let Some(record) = state.containers.get(id) {
                state.notify(&record.container, &ContainerEvent::TermSent);
            }
        }
        match stop_behavior {
            StopBehavior::Obeys | StopBehavior::Finishes(_) => end(),
            // The caller may have stopped waiting by then; the process still exits.
            StopBehavior::Lingers(time) => drop(tokio::spawn(async move {
                tokio::time::sleep(time).await;
                end();
            })),
            StopBehavior::Ignores => {}
        }
    }

    fn up(&self) -> Result<parking_lot::MutexGuard<'_, State>> {
        let state = self.state.lock();
        if state.down {
            return Err(RuntimeError::new("Unavailable", "connection refused"));
        }
        Ok(state)
    }
}

fn pod_ref(labels_of: &std::collections::HashMap<String, String>) -> PodRef {
    let get = |key| labels_of.get(key).cloned().unwrap_or_default();
    PodRef {
        uid: get(labels::POD_UID).into(),
        namespace: get(labels::POD_NAMESPACE),
        name: get(labels::POD_NAME),
    }
}

/// containerd's error for a name that is taken, perhaps by an object whose creator never received the answer.
fn reserved(what: &str, name: &str, id: &str) -> RuntimeError {
    let text = format!("failed to reserve {what} name {name:?}: name {name:?} is reserved for {id:?}");
    RuntimeError::new("Unknown", text)
}

fn unsupported<T>(what: &str) -> Result<T> {
    Err(RuntimeError::new(
        "Unimplemented",
        format!("the runtime in memory has no {what}"),
    ))
}

#[async_trait]
impl Runtime for FakeRuntime {
    async fn status(&self) -> Result<RuntimeStatus> {
        self.up().map(|_| RuntimeStatus {
            name: "fake".into(),
            version: "1.0".into(),
            ready: true,
            network_ready: true,
            message: String::new(),
        })
    }

    async fn events(&self) -> Result<BoxStream<'static, RuntimeEvent>> {
        let mut state = self.up()?;
        let (sender, receiver) = mpsc::unbounded_channel();
        state.listeners.push(sender);
        let stream = futures::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|event| (event, receiver))
        });
        Ok(stream.boxed())
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>> {
        self.up().map(|state| state.sandboxes.values().cloned().collect())
    }

    async fn sandbox(&self, id: &SandboxId) -> Result<SandboxDetail> {
        let state = self.up()?;
        let sandbox = state.sandboxes.get(id).cloned();
        Ok(SandboxDetail {
            sandbox: sandbox.ok_or_else(|| RuntimeError::not_found("sandbox", id))?,
            netns: None,
            pid: None,
        })
    }

    async fn run_sandbox(&self, config: &PodSandboxConfig, _: &str) -> Result<SandboxId> {
        let (mut sandbox, network, boots) = {
            let mut state = self.up()?;
            let pod = pod_ref(&config.labels);
            let attempt = config.metadata.as_ref().map_or(0, |m| m.attempt);
            let mut all = state.sandboxes.values().chain(state.made_now.values());
            if let Some(same) = all.find(|s| s.pod.uid == pod.uid && s.attempt == attempt) {
                return Err(reserved("sandbox", &format!("{}_{attempt}", pod.name), &same.id));
            }
            let id = SandboxId::from(state.id("sandbox"));
            let number = state.made;
            let sandbox = Sandbox {
                id: id.clone(),
                pod,
                attempt,
                ready: true,
                created_at: self.clock.now(),
                ips: vec![format!(
                    "10.{}.{}.{}",
                    state.subnet,
                    number / 256 % 256,
                    number % 256
                )],
            };
            let Some(network) = state.network.clone() else {
                state.sandboxes.insert(id.clone(), sandbox);
                return Ok(id);
            };
            state.made_now.insert(id, sandbox.clone());
            (sandbox, network, state.boots)
        };
        let id = sandbox.id.clone();
        let added = network.add(&sandbox).await;
        let failed = {
            let mut state = self.state.lock();
            state.made_now.remove(&id);
            match added {
                Ok(ips) if state.boots == boots => {
                    sandbox.ips = ips;
                    state.sandboxes.insert(id.clone(), sandbox);
                    return Ok(id);
                }
                Ok(_) => RuntimeError::new("Unavailable", "the host went down"),
                Err(error) => error,
            }
        };
        // If this fails the agent finds out by itself that there is no such sandbox.
        let _ = network.delete(&id).await;
        Err(failed)
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<()> {
        let now = self.clock.now();
        let network = {
            let mut state = self.up()?;
            let inside = state
                .containers
                .values()
                .filter(|r| r.container.sandbox_id == *id);
            for container in inside.map(|r| r.container.id.clone()).collect::<Vec<_>>() {
                state.exit(&container, 137, End::Killed, now);
            }
            let network = state.network.clone();
            let Some(sandbox) = state.sandboxes.get_mut(id) else {
                return Ok(());
            };
            sandbox.ready = false;
            network
        };
        if let Some(network) = network {
            network.delete(id).await?;
        }
        if let Some(sandbox) = self.state.lock().sandboxes.get_mut(id) {
            sandbox.ips.clear();
        }
        Ok(())
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<()> {
        self.stop_sandbox(id).await?;
        let mut state = self.up()?;
        state.sandboxes.remove(id);
        state.containers.retain(|_, r| r.container.sandbox_id != *id);
        Ok(())
    }

    async fn containers(&self) -> Result<Vec<Container>> {
        let state = self.up()?;
        Ok(state.containers.values().map(|r| r.container.clone()).collect())
    }

    async fn container(&self, id: &ContainerId) -> Result<ContainerDetail> {
        let state = self.up()?;
        let record = state.containers.get(id);
        let record = record.ok_or_else(|| RuntimeError::not_found("container", id))?;
        Ok(ContainerDetail {
            container: record.container.clone(),
            log_path: record.log_path.clone(),
            mounts: Vec::new(),
            pid: None,
        })
    }

    async fn create_container(
        &self,
        sandbox_id: &SandboxId,
        config: &ContainerConfig,
        sandbox: &PodSandboxConfig,
    ) -> Result<ContainerId> {
        let mut state = self.up()?;
        if !state.sandboxes.get(sandbox_id).is_some_and(|s| s.ready) {
            return Err(RuntimeError::not_found("sandbox", sandbox_id));
        }
        let metadata = config.metadata.clone().unwrap_or_default();
        let pod = pod_ref(&config.labels);
        let same = state
            .containers
            .values()
            .map(|r| &r.container)
            .find(|c| c.pod.uid == pod.uid && c.name == metadata.name && c.attempt == metadata.attempt);
        if let Some(same) = same {
            let name = format!("{}_{}_{}", metadata.name, pod.name, metadata.attempt);
            return Err(reserved("container", &name, &same.id));
        }
        let id = ContainerId::from(state.id("container"));
        let image = config.image.clone().unwrap_or_default().image;
        let stop_behavior = state.stop_behavior.get(&metadata.name).copied();
        let hash = config.annotations.get(labels::CONTAINER_HASH).cloned();
        let record = Record {
            config: config.clone(),
            container: Container {
                id: id.clone(),
                sandbox_id: sandbox_id.clone(),
                pod,
                name: metadata.name,
                attempt: metadata.attempt,
                hash: hash.unwrap_or_default(),
                self_fenced: labels::termination_mode(&config.annotations),
                state: ContainerState::Created,
                created_at: self.clock.now(),
                image_id: image.clone(),
                image,
            },
            stop_behavior: stop_behavior.unwrap_or(StopBehavior::Obeys),
            ended: Arc::new(Notify::new()),
            log_path: format!("{}/{}", sandbox.log_directory, config.log_path),
        };
        state.containers.insert(id.clone(), record);
        Ok(id)
    }

    async fn start_container(&self, id: &ContainerId) -> Result<()> {
        let now = self.clock.now();
        let mut state = self.up()?;
        let record = state.containers.get_mut(id);
        let record = record.ok_or_else(|| RuntimeError::not_found("container", id))?;
        if record.container.state != ContainerState::Created {
            return Err(RuntimeError::new(
                "FailedPrecondition",
                "the container was started before",
            ));
        }
        let sandbox = record.container.sandbox_id.clone();
        if !state.sandboxes.get(&sandbox).is_some_and(|s| s.ready) {
            return Err(RuntimeError::new(
                "Unknown",
                format!("sandbox container {sandbox:?} is not running"),
            ));
        }
        let record = state.containers.get_mut(id);
        let record = record.ok_or_else(|| RuntimeError::not_found("container", id))?;
        record.container.state = ContainerState::Running { started_at: now };
        let container = record.container.clone();
        if let StopBehavior::Finishes(after) = record.stop_behavior {
            let (state, clock, id) = (self.state.clone(), self.clock.clone(), id.to_string());
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                let now = clock.now();
                state.lock().exit(&id, 0, End::ByItself, now);
            });
        }
        state.starts.push((id.to_string(), key(&container)));
        state.notify(&container, &ContainerEvent::Started);
        Ok(())
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let (ended, stop_behavior, outages) = {
            let state = self.up()?;
            match state.containers.get(id) {
                Some(record) if is_running(&record.container) => {
                    (record.ended.clone(), record.stop_behavior, state.outages)
                }
                _ => return Ok(()),
            }
        };
        let kill = || self.state.lock().exit(id, 137, End::Killed, self.clock.now());
        if grace.is_zero() {
            kill();
            return Ok(());
        }
        let mut ended = std::pin::pin!(ended.notified());
        ended.as_mut().enable();
        self.send_term(id, stop_behavior);
        if timeout(grace, ended).await.is_err() {
            // The caller that would have sent KILL was cancelled, if the runtime has stopped meanwhile.
            if self.up()?.outages != outages {
                return Err(RuntimeError::new("Unavailable", "connection reset"));
            }
            kill();
        }
        Ok(())
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<()> {
        let now = self.clock.now();
        let mut state = self.up()?;
        state.exit(id, 137, End::Killed, now);
        state.containers.remove(id);
        Ok(())
    }

    async fn exec(&self, id: &ContainerId, _: &[String], _: Option<Duration>) -> Result<ExecOutput> {
        let state = self.up()?;
        match state.containers.get(id) {
            Some(record) if is_running(&record.container) => Ok(ExecOutput::default()),
            _ => Err(RuntimeError::not_found("running container", id)),
        }
    }

    async fn usage(&self) -> Result<Vec<Usage>> {
        self.up().map(|_| Vec::new())
    }

    async fn exec_url(&self, _: &ContainerId, _: &ExecOptions) -> Result<String> {
        unsupported("stream server")
    }

    async fn attach_url(&self, _: &ContainerId, _: &ExecOptions) -> Result<String> {
        unsupported("stream server")
    }

    async fn port_forward_url(&self, _: &SandboxId, _: &[i32]) -> Result<String> {
        unsupported("stream server")
    }

    async fn update_container(
        &self,
        id: &ContainerId,
        _: &k8s_cri::v1::LinuxContainerResources,
    ) -> Result<()> {
        match self.up()?.containers.contains_key(id) {
            true => Ok(()),
            false => Err(RuntimeError::not_found("container", id)),
        }
    }

    async fn reopen_log(&self, _: &ContainerId) -> Result<()> {
        self.up().map(drop)
    }

    async fn images(&self) -> Result<Vec<Image>> {
        let state = self.up()?;
        Ok(state.images.iter().map(|name| image(name)).collect())
    }

    async fn image(&self, name: &str) -> Result<Option<Image>> {
        let state = self.up()?;
        Ok(state.images.contains(name).then(|| image(name)))
    }

    async fn pull_image(&self, name: &str, _: Option<&AuthConfig>, _: &PodSandboxConfig) -> Result<String> {
        if self.up()?.images.contains(name) {
            return Ok(name.into());
        }
        Err(RuntimeError::not_found("image", name))
    }

    async fn remove_image(&self, name: &str) -> Result<()> {
        self.up()?.images.remove(name);
        Ok(())
    }

    async fn image_fs(&self) -> Result<Option<ImageFs>> {
        self.up().map(|_| None)
    }
}

fn image(name: &str) -> Image {
    Image {
        id: name.into(),
        tags: vec![name.into()],
        ..Image::default()
    }
}
