//! [`Runtime`] in memory, for tests and the simulation: containers that exist only as records.
//!
//! Time is tokio's, which a test can pause. A container runs until it is told to end, or until the test ends it;
//! images are those that were put there. Nothing here is reached outside of tests and simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_client::Clock;
use knarr_kubelet::runtime::{Container, ContainerState, Exit, PodRef, Sandbox};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use super::{
    AuthConfig, ContainerConfig, ContainerDetail, ExecOptions, ExecOutput, Image, PodSandboxConfig, Result,
    Runtime, RuntimeError, RuntimeEvent, RuntimeStatus, SandboxDetail, Usage,
};
use crate::kubelet::labels;

/// Whether a container's process ends when it is asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manners {
    Obeys,
    /// Only KILL ends it.
    Ignores,
}

struct Record {
    container: Container,
    manners: Manners,
    /// Rings when it ends.
    ended: Arc<Notify>,
    log_path: String,
}

#[derive(Default)]
struct State {
    made: u64,
    sandboxes: BTreeMap<String, Sandbox>,
    containers: BTreeMap<String, Record>,
    images: BTreeSet<String>,
    listeners: Vec<mpsc::UnboundedSender<RuntimeEvent>>,
    ignoring: BTreeSet<String>,
    /// Every start there ever was: container id and name with its pod's uid.
    starts: Vec<(String, String)>,
    down: bool,
}

/// See the module.
pub struct FakeRuntime {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

impl FakeRuntime {
    pub fn new(clock: Arc<dyn Clock>, images: &[&str]) -> Self {
        let state = State {
            images: images.iter().map(|i| (*i).to_string()).collect(),
            ..State::default()
        };
        FakeRuntime {
            clock,
            state: Mutex::new(state),
        }
    }

    /// Containers of this name do not listen to TERM from now on.
    pub fn ignore_term(&self, container: &str) {
        self.state.lock().ignoring.insert(container.into());
    }

    /// Calls fail with `Unavailable` while it is down; what runs goes on.
    pub fn set_down(&self, down: bool) {
        let mut state = self.state.lock();
        state.down = down;
        if down {
            state.listeners.clear();
        }
    }

    /// The process ends by itself. False if it does not run.
    pub fn exit(&self, id: &str, code: i32) -> bool {
        let now = self.clock.now();
        self.state.lock().exit(id, code, now)
    }

    /// Every start there ever was: the container's id, and `<pod uid>/<container name>`.
    pub fn starts(&self) -> Vec<(String, String)> {
        self.state.lock().starts.clone()
    }

    /// What runs: container ids with `<pod uid>/<container name>`.
    pub fn running(&self) -> Vec<(String, String)> {
        let state = self.state.lock();
        let running = state.containers.values().filter(|r| is_running(&r.container));
        running
            .map(|r| (r.container.id.clone(), key(&r.container)))
            .collect()
    }

    fn up(&self) -> Result<parking_lot::MutexGuard<'_, State>> {
        let state = self.state.lock();
        if state.down {
            return Err(RuntimeError::new("Unavailable", "connection refused"));
        }
        Ok(state)
    }
}

fn key(container: &Container) -> String {
    format!("{}/{}", container.pod.uid, container.name)
}

fn is_running(container: &Container) -> bool {
    matches!(container.state, ContainerState::Running { .. })
}

impl State {
    fn id(&mut self, what: &str) -> String {
        self.made += 1;
        format!("{what}{}", self.made)
    }

    fn exit(&mut self, id: &str, code: i32, now: Timestamp) -> bool {
        let Some(record) = self.containers.get_mut(id) else {
            return false;
        };
        let ContainerState::Running { started_at } = record.container.state else {
            return false;
        };
        record.container.state = ContainerState::Exited(Exit {
            code,
            reason: if code == 0 { "Completed" } else { "Error" }.into(),
            message: String::new(),
            started_at: Some(started_at),
            finished_at: Some(now),
        });
        record.ended.notify_waiters();
        let event = RuntimeEvent::Exited { id: id.into() };
        self.listeners
            .retain(|listener| listener.send(event.clone()).is_ok());
        true
    }
}

fn pod_ref(labels_of: &std::collections::HashMap<String, String>) -> PodRef {
    let get = |key| labels_of.get(key).cloned().unwrap_or_default();
    PodRef {
        uid: get(labels::POD_UID),
        namespace: get(labels::POD_NAMESPACE),
        name: get(labels::POD_NAME),
    }
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

    async fn sandbox(&self, id: &str) -> Result<SandboxDetail> {
        let state = self.up()?;
        let sandbox = state.sandboxes.get(id).cloned();
        Ok(SandboxDetail {
            sandbox: sandbox.ok_or_else(|| RuntimeError::not_found("sandbox", id))?,
            netns: None,
            pid: None,
        })
    }

    async fn run_sandbox(&self, config: &PodSandboxConfig, _: &str) -> Result<String> {
        let mut state = self.up()?;
        let id = state.id("sandbox");
        let number = state.made;
        let sandbox = Sandbox {
            id: id.clone(),
            pod: pod_ref(&config.labels),
            attempt: config.metadata.as_ref().map_or(0, |m| m.attempt),
            ready: true,
            created_at: self.clock.now(),
            ips: vec![format!("10.0.{}.{}", number / 256 % 256, number % 256)],
        };
        state.sandboxes.insert(id.clone(), sandbox);
        Ok(id)
    }

    async fn stop_sandbox(&self, id: &str) -> Result<()> {
        let now = self.clock.now();
        let mut state = self.up()?;
        if let Some(sandbox) = state.sandboxes.get_mut(id) {
            sandbox.ready = false;
            sandbox.ips.clear();
        }
        let inside = state.containers.values().filter(|r| r.container.sandbox_id == id);
        for container in inside.map(|r| r.container.id.clone()).collect::<Vec<_>>() {
            state.exit(&container, 137, now);
        }
        Ok(())
    }

    async fn remove_sandbox(&self, id: &str) -> Result<()> {
        self.stop_sandbox(id).await?;
        let mut state = self.up()?;
        state.sandboxes.remove(id);
        state.containers.retain(|_, r| r.container.sandbox_id != id);
        Ok(())
    }

    async fn containers(&self) -> Result<Vec<Container>> {
        let state = self.up()?;
        Ok(state.containers.values().map(|r| r.container.clone()).collect())
    }

    async fn container(&self, id: &str) -> Result<ContainerDetail> {
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
        sandbox_id: &str,
        config: &ContainerConfig,
        sandbox: &PodSandboxConfig,
    ) -> Result<String> {
        let mut state = self.up()?;
        if !state.sandboxes.get(sandbox_id).is_some_and(|s| s.ready) {
            return Err(RuntimeError::not_found("sandbox", sandbox_id));
        }
        let id = state.id("container");
        let metadata = config.metadata.clone().unwrap_or_default();
        let image = config.image.clone().unwrap_or_default().image;
        let ignores = state.ignoring.contains(&metadata.name);
        let hash = config.annotations.get(labels::CONTAINER_HASH).cloned();
        let record = Record {
            container: Container {
                id: id.clone(),
                sandbox_id: sandbox_id.into(),
                pod: pod_ref(&config.labels),
                name: metadata.name,
                attempt: metadata.attempt,
                hash: hash.unwrap_or_default(),
                state: ContainerState::Created,
                created_at: self.clock.now(),
                image_id: image.clone(),
                image,
            },
            manners: if ignores { Manners::Ignores } else { Manners::Obeys },
            ended: Arc::new(Notify::new()),
            log_path: format!("{}/{}", sandbox.log_directory, config.log_path),
        };
        state.containers.insert(id.clone(), record);
        Ok(id)
    }

    async fn start_container(&self, id: &str) -> Result<()> {
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
        record.container.state = ContainerState::Running { started_at: now };
        let started = (id.to_string(), key(&record.container));
        state.starts.push(started);
        Ok(())
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let (ended, manners) = {
            let state = self.up()?;
            match state.containers.get(id) {
                Some(record) if is_running(&record.container) => (record.ended.clone(), record.manners),
                _ => return Ok(()),
            }
        };
        if manners == Manners::Obeys && !grace.is_zero() {
            self.exit(id, 0);
            return Ok(());
        }
        if timeout(grace, ended.notified()).await.is_err() {
            self.exit(id, 137);
        }
        Ok(())
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        self.exit(id, 137);
        self.up()?.containers.remove(id);
        Ok(())
    }

    async fn exec(&self, id: &str, _: &[String], _: Option<Duration>) -> Result<ExecOutput> {
        let state = self.up()?;
        match state.containers.get(id) {
            Some(record) if is_running(&record.container) => Ok(ExecOutput::default()),
            _ => Err(RuntimeError::not_found("running container", id)),
        }
    }

    async fn usage(&self) -> Result<Vec<Usage>> {
        self.up().map(|_| Vec::new())
    }

    async fn exec_url(&self, _: &str, _: &ExecOptions) -> Result<String> {
        unsupported("stream server")
    }

    async fn attach_url(&self, _: &str, _: &ExecOptions) -> Result<String> {
        unsupported("stream server")
    }

    async fn port_forward_url(&self, _: &str, _: &[i32]) -> Result<String> {
        unsupported("stream server")
    }

    async fn update_container(&self, id: &str, _: &k8s_cri::v1::LinuxContainerResources) -> Result<()> {
        match self.up()?.containers.contains_key(id) {
            true => Ok(()),
            false => Err(RuntimeError::not_found("container", id)),
        }
    }

    async fn reopen_log(&self, _: &str) -> Result<()> {
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
}

fn image(name: &str) -> Image {
    Image {
        id: name.into(),
        tags: vec![name.into()],
        ..Image::default()
    }
}
