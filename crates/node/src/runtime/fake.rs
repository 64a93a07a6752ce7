//! [`Runtime`] in memory, for tests and the simulation: containers that exist only as records.
//!
//! Time is tokio's, which a test can pause. A container runs until it is stopped, or until the test ends it; images are
//! those that were added. Used by tests and the simulation only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_client::Clock;
use knarr_kubelet::ids::{ContainerId, SandboxId};
use knarr_kubelet::runtime::{Container, ContainerState, Exit, PodRef, Sandbox};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use super::{
    AuthConfig, ContainerConfig, ContainerDetail, ExecOptions, ExecOutput, Image, ImageFs, PodSandboxConfig,
    Result, Runtime, RuntimeError, RuntimeEvent, RuntimeStatus, SandboxDetail, Usage,
};
use crate::kubelet::labels;

/// How a container's process reacts to TERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopBehavior {
    Obeys,
    /// It exits this long after TERM.
    Lingers(Duration),
    /// Only KILL terminates it.
    Ignores,
    /// It exits by itself this long after its start, with code 0.
    Finishes(Duration),
}

/// Why a process exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    ByItself,
    Asked,
    Killed,
}

/// An event of a container's process, reported at the moment it happens.
#[derive(Clone, Debug)]
pub enum ContainerEvent {
    Started,
    /// TERM was sent.
    TermSent,
    Ended(End),
}

type Observer = Box<dyn Fn(&Container, &ContainerEvent) + Send + Sync>;

/// What gives sandboxes their addresses, as a CNI plugin does.
#[async_trait]
pub trait PodNetwork: Send + Sync {
    /// ADD: the sandbox's addresses. If it fails there is no sandbox, and DEL follows.
    async fn add(&self, sandbox: &Sandbox) -> Result<Vec<String>>;

    /// DEL, perhaps repeated. Nothing runs in the sandbox any more.
    async fn delete(&self, sandbox: &str) -> Result<()>;
}

struct Record {
    container: Container,
    config: ContainerConfig,
    stop_behavior: StopBehavior,
    /// Notified when it exits.
    ended: Arc<Notify>,
    log_path: String,
}

#[derive(Default)]
struct State {
    made: u64,
    /// The second number of pods' addresses; the last two count.
    subnet: u8,
    sandboxes: BTreeMap<SandboxId, Sandbox>,
    /// Those that wait for their addresses.
    made_now: BTreeMap<SandboxId, Sandbox>,
    network: Option<Arc<dyn PodNetwork>>,
    /// Counts reboots: a sandbox under way does not outlive one.
    boots: u64,
    containers: BTreeMap<ContainerId, Record>,
    images: BTreeSet<String>,
    listeners: Vec<mpsc::UnboundedSender<RuntimeEvent>>,
    /// By container name; the others obey.
    stop_behavior: BTreeMap<String, StopBehavior>,
    observer: Option<Observer>,
    /// Every start there ever was: container id and name with its pod's uid.
    starts: Vec<(String, String)>,
    down: bool,
    /// Incremented when the runtime stops: calls in flight fail then.
    outages: u64,
}

/// See the module.
pub struct FakeRuntime {
    clock: Arc<dyn Clock>,
    state: Arc<Mutex<State>>,
}

impl FakeRuntime {
    pub fn new(clock: Arc<dyn Clock>, images: &[&str]) -> Self {
        let state = State {
            images: images.iter().map(|i| (*i).to_string()).collect(),
            ..State::default()
        };
        FakeRuntime {
            clock,
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Pods get addresses of `10.<subnet>.0.0/16` from now on, so that nodes have different ones.
    pub fn set_subnet(&self, subnet: u8) {
        self.state.lock().subnet = subnet;
    }

    /// From now on sandboxes get their addresses from there.
    pub fn set_network(&self, network: Arc<dyn PodNetwork>) {
        self.state.lock().network = Some(network);
    }

    /// Containers of this name do not listen to TERM from now on.
    pub fn ignore_term(&self, container: &str) {
        self.set_stop_behavior(container, StopBehavior::Ignores);
    }

    /// How containers of this name react to TERM from now on.
    pub fn set_stop_behavior(&self, container: &str, stop_behavior: StopBehavior) {
        self.state
            .lock()
            .stop_behavior
            .insert(container.into(), stop_behavior);
    }

    /// `observer` is called with every event. It must not call back.
    pub fn observe(&self, observer: impl Fn(&Container, &ContainerEvent) + Send + Sync + 'static) {
        self.state.lock().observer = Some(Box::new(observer));
    }

    /// Adds an image.
    pub fn add_image(&self, name: &str) {
        self.state.lock().images.insert(name.into());
    }

    /// Calls fail with `Unavailable` while it is down; containers keep running.
    pub fn set_down(&self, down: bool) {
        let mut state = self.state.lock();
        state.down = down;
        if down {
            state.outages += 1;
            state.listeners.clear();
        }
    }

    pub fn is_down(&self) -> bool {
        self.state.lock().down
    }

    /// The host reboots: no process survives, the records stay.
    pub fn reboot(&self) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.boots += 1;
        state.made_now.clear();
        let ids: Vec<ContainerId> = state.containers.keys().cloned().collect();
        for id in ids {
            state.exit(&id, 255, End::ByItself, now);
        }
        for sandbox in state.sandboxes.values_mut() {
            sandbox.ready = false;
            sandbox.ips.clear();
        }
    }

    /// As [`FakeRuntime::reboot`], and its disk is another's: nothing is known of what was there.
    pub fn wipe(&self) {
        self.reboot();
        let mut state = self.state.lock();
        state.containers.clear();
        state.sandboxes.clear();
    }

    /// The process that holds a sandbox's network dies; its containers keep running. False if there is none.
    pub fn break_sandbox(&self, id: &str) -> bool {
        let mut state = self.state.lock();
        let sandbox = state.sandboxes.get_mut(id).filter(|s| s.ready);
        let broken = sandbox.map(|sandbox| sandbox.ready = false);
        broken.is_some()
    }

    /// The ids of the sandboxes that are ready.
    pub fn ready_sandboxes(&self) -> Vec<SandboxId> {
        let state = self.state.lock();
        let ready = state.sandboxes.values().filter(|s| s.ready);
        ready.map(|s| s.id.clone()).collect()
    }

    /// The process exits by itself. False if it does not run.
    pub fn exit(&self, id: &str, code: i32) -> bool {
        let now = self.clock.now();
        self.state.lock().exit(id, code, End::ByItself, now)
    }

    /// Every start there ever was: the container's id, and `<pod uid>/<container name>`.
    pub fn starts(&self) -> Vec<(String, String)> {
        self.state.lock().starts.clone()
    }

    /// The configuration of the newest container of this name.
    pub fn config_of(&self, container: &str) -> Option<ContainerConfig> {
        let state = self.state.lock();
        let records = state.containers.values();
        let named = records.filter(|record| record.container.name == container);
        named
            .max_by_key(|record| record.container.attempt)
            .map(|r| r.config.clone())
    }

    /// What runs: container ids with `<pod uid>/<container name>`.
    pub fn running(&self) -> Vec<(ContainerId, String)> {
        let state = self.state.lock();
        let running = state.containers.values().filter(|r| is_running(&r.container));
        running
            .map(|r| (r.container.id.clone(), key(&r.container)))
            .collect()
    }

    /// Sends TERM.
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

    fn notify(&self, container: &Container, event: &ContainerEvent) {
        if let Some(observer) = &self.observer {
            observer(container, event);
        }
    }

    fn exit(&mut self, id: &str, code: i32, end: End, now: Timestamp) -> bool {
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
        let container = record.container.clone();
        self.notify(&container, &ContainerEvent::Ended(end));
        let event = RuntimeEvent::Exited { id: id.into() };
        self.listeners
            .retain(|listener| listener.send(event.clone()).is_ok());
        true
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
