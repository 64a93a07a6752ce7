//! One pod's task: feeds the pod's state machine and carries out what it decides.
//!
//! An action that takes time runs in a task of its own and answers with an event; the worker itself never waits.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_cri::v1::PodSandboxConfig;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::registry::Registered;
use knarr_api::{AnyObject, k8s_openapi};
use knarr_client::events::{EventType, reference_to};
use knarr_client::{Clock, Error};
use knarr_kubelet::admission::Rejection;
use knarr_kubelet::pod::{Action, Event, Hook, Node, Pod, find_spec};
use knarr_kubelet::runtime::{Container, ContainerState, Sandbox};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::downward::Place;
use super::env::Sources;
use super::remove::{remove_container, remove_logs};
use super::resize::resize;
use super::resources::CpuQuota;
use super::security_context::Seccomp;
use super::status::Write;
use super::wall_clock::WallClock;
use super::{
    Found, Shared, container, enforcement, env, exit, pod_kind, pull, sandbox, self_fencing, status,
};
use crate::cgroup;
use crate::logs::links;
use crate::probe::{self, Target};
use crate::runtime::RuntimeError;
use crate::volumes::VolumeError;

/// Between attempts at what cannot be given up.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

pub(crate) enum Msg {
    Event(Event),
    /// This container, or the sandbox, has ended.
    Look {
        id: String,
    },
    Observed {
        since: Timestamp,
        sandboxes: Vec<Sandbox>,
        containers: Vec<Container>,
    },
    /// A static pod's mirror has gone, or is to go.
    MirrorGone,
    /// Nobody is being looked at under this id any more.
    Looked {
        id: String,
    },
}

/// Who says what a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Api,
    /// A static pod: the API only has its mirror.
    File,
}

/// A handle on a pod's task.
pub(super) struct Worker {
    inbox: mpsc::UnboundedSender<Msg>,
    task: JoinHandle<()>,
    ended: Arc<AtomicBool>,
}

impl Worker {
    pub fn start(
        shared: Arc<Shared>,
        pod: Arc<core::Pod>,
        found: Option<Found>,
        admitted: Result<(), Rejection>,
        origin: Origin,
        cancel: CancellationToken,
    ) -> Self {
        let (inbox, messages) = mpsc::unbounded_channel();
        let rejected = admitted.is_err();
        if let Err(rejection) = admitted {
            // Whatever else it is told comes later.
            let _ = inbox.send(Msg::Event(Event::Reject(rejection)));
        }
        let ended = Arc::<AtomicBool>::default();
        let task = tokio::spawn(run(
            shared,
            pod,
            found.filter(|_| !rejected),
            (rejected, origin),
            (inbox.clone(), ended.clone()),
            messages,
            cancel,
        ));
        Worker { inbox, task, ended }
    }

    pub fn send(&self, message: Msg) {
        // A worker that has forgotten its pod needs no more news of it.
        let _ = self.inbox.send(message);
    }

    /// Whether nothing is left of the pod but what is told of it.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }
}

struct Doer {
    shared: Arc<Shared>,
    machine: Pod,
    inbox: mpsc::UnboundedSender<Msg>,
    ended: Arc<AtomicBool>,
    writes: mpsc::UnboundedSender<Write>,
    timer: Option<Timestamp>,
    wall: WallClock,
    hooks: BTreeMap<(String, Hook), AbortHandle>,
    looking: BTreeSet<String>,
    /// The sandbox in use, as it was asked for.
    sandbox: Option<Arc<PodSandboxConfig>>,
    sandbox_attempt: u32,
    /// Of a static pod: what was told last.
    told: Option<Box<core::PodStatus>>,
    origin: Origin,
    done: bool,
}

async fn run(
    shared: Arc<Shared>,
    pod: Arc<core::Pod>,
    found: Option<Found>,
    (rejected, origin): (bool, Origin),
    (inbox, ended): (mpsc::UnboundedSender<Msg>, Arc<AtomicBool>),
    mut messages: mpsc::UnboundedReceiver<Msg>,
    cancel: CancellationToken,
) {
    let node = Node {
        ips: shared.config.node_ips.clone(),
        resume: shared.config.termination_resume,
        endpoint_barrier: SignedDuration::try_from(shared.config.endpoint_barrier)
            .unwrap_or(SignedDuration::ZERO),
        longest_restart_wait: shared.config.configuration.max_container_restart_period,
    };
    let (writes, to_write) = mpsc::unbounded_channel();
    let writer = tokio::spawn(status::run(
        shared.clone(),
        pod.clone(),
        origin,
        to_write,
        inbox.clone(),
    ));
    let mut doer = Doer {
        machine: Pod::new(pod, node),
        wall: WallClock::new(shared.clock.now()),
        shared,
        inbox,
        ended,
        writes,
        timer: None,
        hooks: BTreeMap::new(),
        looking: BTreeSet::new(),
        sandbox: None,
        sandbox_attempt: 0,
        told: None,
        origin,
        done: false,
    };
    doer.note_allocation();
    if let Some((since, sandboxes, containers)) = found {
        let first = doer.complete(since, sandboxes, containers, true).await;
        doer.step(first);
    } else if !rejected {
        doer.step(Event::Timer);
    }
    while !doer.done {
        let now = doer.now();
        let wait = doer.timer.map(|at| {
            let left = at.duration_since(now);
            Duration::try_from(left).unwrap_or(Duration::ZERO)
        });
        tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            message = messages.recv() => match message {
                Some(Msg::Event(event)) => doer.step(event),
                Some(Msg::Look { id }) => doer.look(id),
                Some(Msg::MirrorGone) => doer.write(Write::MirrorGone),
                Some(Msg::Looked { id }) => { doer.looking.remove(&id); }
                Some(Msg::Observed { since, sandboxes, containers }) => {
                    let event = doer.complete(since, sandboxes, containers, false).await;
                    doer.step(event);
                }
                None => break,
            },
            () = sleep(wait.unwrap_or(Duration::MAX)), if wait.is_some() => {
                doer.timer = None;
                doer.step(Event::Timer);
            }
        }
    }
    writer.abort();
    let mut owners = doer.shared.owners.lock();
    owners.retain(|_, owner| !owner.same_channel(&doer.inbox));
}

impl Doer {
    fn step(&mut self, event: Event) {
        if let Event::Updated(object) = &event {
            self.write(Write::Object(object.clone()));
        }
        let now = self.now();
        self.step_at(event, now);
    }

    /// The time of day. If it has jumped, the machine knows.
    fn now(&mut self) -> Timestamp {
        let now = self.shared.clock.now();
        if let Some(by) = self.wall.jumped(now) {
            debug!(pod = self.machine.object().metadata.name, %by, "the wall clock was set");
            // Each step sets it anew.
            self.timer = None;
            self.step_at(Event::ClockJumped { by }, now);
        }
        now
    }

    fn step_at(&mut self, event: Event, now: Timestamp) {
        let may_allocate = matches!(event, Event::Updated(_) | Event::ResizeAdmitted(_));
        let actions = self.machine.step(event, now);
        if may_allocate {
            self.note_allocation();
        }
        for action in actions {
            debug!(pod = self.machine.object().metadata.name, ?action, "decided");
            self.carry_out(action);
        }
        if self.machine.has_ended() && !self.ended.swap(true, Ordering::Relaxed) {
            self.shared.pod_ended.notify_one();
        }
    }

    /// Others count what is allocated to this pod, not what it asks for.
    fn note_allocation(&self) {
        let allocated = self.machine.allocated();
        let uid = allocated.metadata.uid.clone().unwrap_or_default();
        self.shared.granted.lock().insert(uid, allocated);
    }

    fn write(&self, write: Write) {
        // The writer ends only with the worker.
        let _ = self.writes.send(write);
    }

    /// Fills in what lists do not tell, for what is not known yet. In the beginning the worker waits for it.
    async fn complete(
        &mut self,
        since: Timestamp,
        mut sandboxes: Vec<Sandbox>,
        mut containers: Vec<Container>,
        first: bool,
    ) -> Event {
        let pod = self.machine.object().clone();
        for sandbox in sandboxes.iter_mut().filter(|s| s.ready && first) {
            if let Ok(detail) = self.shared.runtime.sandbox(&sandbox.id).await {
                sandbox.ips = detail.sandbox.ips;
            }
            self.own(&sandbox.id);
            self.sandbox_attempt = sandbox.attempt;
        }
        let known = |id: &str| {
            let runs = self.machine.containers().iter().filter_map(|c| c.run.as_ref());
            runs.into_iter().find(|r| r.id == id).is_some()
        };
        let mut gone = Vec::new();
        for container in &mut containers {
            let running = matches!(container.state, ContainerState::Running { .. });
            if running && known(&container.id) {
                continue;
            }
            match self.shared.runtime.container(&container.id).await {
                Ok(detail) => {
                    container.state = match exit::of_detail(&pod, &detail) {
                        Some(exit) => ContainerState::Exited(exit),
                        None => detail.container.state,
                    };
                }
                Err(error) if error.is_not_found() => gone.push(container.id.clone()),
                // That it was made, and has not been started, the list says.
                Err(_) if container.state == ContainerState::Created => {}
                // Without its detail nothing is said about its end: it is as if it still ran.
                Err(_) => {
                    container.state = ContainerState::Running {
                        started_at: container.created_at,
                    };
                }
            }
        }
        containers.retain(|c| !gone.contains(&c.id));
        if first {
            containers.iter().for_each(|c| self.own(&c.id));
        }
        Event::Observed {
            since,
            sandboxes,
            containers,
        }
    }

    fn own(&self, id: &str) {
        self.shared
            .owners
            .lock()
            .insert(id.to_string(), self.inbox.clone());
    }

    fn look(&mut self, id: String) {
        if !self.looking.insert(id.clone()) {
            return;
        }
        let (shared, inbox, pod) = self.parts();
        tokio::spawn(async move {
            if let Some(exit) = exit::look(&shared, &pod, &id).await {
                tell(&inbox, Event::ContainerExited { id: id.clone(), exit });
            }
            let _ = inbox.send(Msg::Looked { id });
        });
    }

    fn parts(&self) -> (Arc<Shared>, mpsc::UnboundedSender<Msg>, Arc<core::Pod>) {
        (
            self.shared.clone(),
            self.inbox.clone(),
            self.machine.object().clone(),
        )
    }

    fn place(&self) -> Place {
        Place {
            pod_ips: self.machine.ips().to_vec(),
            host_ips: self.shared.config.node_ips.clone(),
            allocatable: self.shared.allocatable.clone(),
        }
    }

    /// The sandbox's configuration, the same for all that is made in it.
    fn sandbox_config(&mut self) -> Arc<PodSandboxConfig> {
        if let Some(config) = &self.sandbox {
            return config.clone();
        }
        let text = std::fs::read_to_string(&self.shared.config.resolv_conf).unwrap_or_default();
        let node = sandbox::ResolvConf::parse(&text);
        let config = sandbox::config(
            self.machine.object(),
            self.sandbox_attempt,
            &node,
            &self.shared.config,
        );
        let config = Arc::new(config);
        self.sandbox = Some(config.clone());
        config
    }

    fn carry_out(&mut self, action: Action) {
        let (shared, inbox, pod) = self.parts();
        match action {
            Action::WriteStatus(status) => {
                self.told = Some(status.clone()).filter(|_| self.origin == Origin::File);
                self.write(Write::Status(status));
            }
            Action::WriteEnds(text) => self.write(Write::Ends(text)),
            Action::AwaitEndpoints => {
                tokio::spawn(async move {
                    let bound = shared.config.endpoint_barrier;
                    if timeout(bound, shared.endpoints.dropped(&pod)).await.is_ok() {
                        tell(&inbox, Event::EndpointsDropped);
                    }
                });
            }
            Action::FinalDelete => self.write(Write::FinalDelete),
            Action::SetTimer(at) => self.timer = Some(at),
            Action::Forget => self.forget(),
            Action::Record {
                container,
                warning,
                reason,
                message,
            } => self.record(container, warning, &reason, message),
            Action::SetUpVolumes => {
                let place = self.place();
                tokio::spawn(async move {
                    let event = match shared.volumes.setup(&pod, &place).await {
                        Ok(()) => Event::VolumesReady,
                        Err(error) => Event::VolumesFailed {
                            others_turn: matches!(error, VolumeError::Claim { .. }),
                            message: error.to_string(),
                        },
                    };
                    tell(&inbox, event);
                });
            }
            Action::TearDownVolumes => {
                tokio::spawn(async move {
                    let uid = pod.metadata.uid.clone().unwrap_or_default();
                    until_done("free a pod's volumes", || shared.volumes.teardown(&uid)).await;
                    tell(&inbox, Event::VolumesGone);
                });
            }
            Action::CreateSandbox { attempt } => {
                self.sandbox_attempt = attempt;
                self.sandbox = None;
                let config = self.sandbox_config();
                let pod = self.machine.allocated();
                tokio::spawn(async move {
                    let event = match create_sandbox(&shared, &inbox, &pod, &config).await {
                        Ok((id, ips)) => Event::SandboxCreated { id, ips },
                        Err(message) => Event::SandboxFailed { message },
                    };
                    tell(&inbox, event);
                });
            }
            Action::StopSandbox { id } => {
                tokio::spawn(async move {
                    until_done("stop a sandbox", || shared.runtime.stop_sandbox(&id)).await;
                    tell(&inbox, Event::SandboxStopped { id });
                });
            }
            Action::RemoveSandbox { id } => {
                let group = super::resources::group(&pod);
                tokio::spawn(async move {
                    until_done("remove a sandbox", || shared.runtime.remove_sandbox(&id)).await;
                    if shared.config.machine.is_host() {
                        cgroup::remove(shared.config.configuration.cgroup_driver, &group).await;
                        enforcement::share_out(&shared, None).await;
                    }
                    shared.owners.lock().remove(&id);
                    tell(&inbox, Event::SandboxRemoved { id });
                });
            }
            Action::InspectImage { container, image } => {
                tokio::spawn(async move {
                    let name = knarr_kubelet::image::normalize(&image).unwrap_or(image);
                    let present = match shared.runtime.image(&name).await {
                        Ok(found) => Ok(found.is_some()),
                        Err(error) => Err(error.to_string()),
                    };
                    tell(&inbox, Event::ImageInspected { container, present });
                });
            }
            Action::PullImage { container, image } => {
                let config = self.sandbox_config();
                tokio::spawn(async move {
                    let result = pull::pull(&shared, &pod, &image, &config).await;
                    tell(&inbox, Event::ImagePulled { container, result });
                });
            }
            Action::CreateContainer {
                container,
                sandbox,
                attempt,
            } => {
                let config = self.sandbox_config();
                let place = self.place();
                let pod = self.machine.allocated();
                tokio::spawn(async move {
                    let made =
                        create_container(&shared, &pod, &container, attempt, &sandbox, &config, &place);
                    let event = match made.await {
                        Ok(id) => {
                            shared.owners.lock().insert(id.clone(), inbox.clone());
                            Event::ContainerCreated { container, id }
                        }
                        Err((reason, message)) => Event::ContainerCreateFailed {
                            container,
                            reason,
                            message,
                        },
                    };
                    tell(&inbox, event);
                });
            }
            Action::StartContainer { container, id } => {
                tokio::spawn(async move {
                    let event = start_container(&shared, &pod, container, id).await;
                    tell(&inbox, event);
                });
            }
            Action::StopContainer { id, grace_seconds } => {
                let grace = Duration::from_secs(u64::try_from(grace_seconds).unwrap_or(0));
                tokio::spawn(async move {
                    match shared.runtime.stop_container(&id, grace).await {
                        Ok(()) => {
                            let _ = inbox.send(Msg::Look { id });
                        }
                        Err(error) => {
                            warn!(container = id, %error, "cannot end a container yet");
                            let message = error.to_string();
                            tell(&inbox, Event::StopFailed { id, message });
                        }
                    }
                });
            }
            Action::AdmitResize => {
                let answer = super::admit_resize(&shared, &pod);
                tell(&inbox, Event::ResizeAdmitted(answer));
            }
            Action::Resize { containers } => {
                let (from, to) = (self.machine.actual(), self.machine.allocated());
                tokio::spawn(async move {
                    let (done, result) = resize(&shared, &from, &to, containers).await;
                    tell(&inbox, Event::Resized { done, result });
                });
            }
            Action::RemoveContainer { id } => {
                tokio::spawn(async move {
                    until_done("remove a container", || remove_container(&shared, &id)).await;
                    shared.owners.lock().remove(&id);
                    tell(&inbox, Event::ContainerRemoved { id });
                });
            }
            Action::RunHook { container, id, hook } => self.hook(container, id, hook),
            Action::CancelHook { id, hook } => {
                if let Some(running) = self.hooks.remove(&(id, hook)) {
                    running.abort();
                }
            }
            Action::Probe { container, id, kind } => {
                let ips = self.machine.ips().to_vec();
                tokio::spawn(async move {
                    let answer = probe::ask(&*shared.runtime, &pod, &container, &id, kind, &ips).await;
                    shared.probes.count(&pod, &container, kind, &answer);
                    tell(&inbox, Event::Probed { id, kind, answer });
                });
            }
        }
    }

    fn hook(&mut self, name: String, id: String, hook: Hook) {
        let (shared, inbox, pod) = self.parts();
        let ips = self.machine.ips().to_vec();
        let key = (id.clone(), hook);
        let task =
            tokio::spawn(async move {
                let spec = pod.spec.as_ref().and_then(|s| find_spec(s, &name));
                let lifecycle = spec.as_ref().and_then(|c| c.lifecycle.as_ref());
                let handler = lifecycle.and_then(|l| match hook {
                    Hook::PostStart => l.post_start.as_ref(),
                    Hook::PreStop => l.pre_stop.as_ref(),
                });
                let result = match (handler, spec.as_deref()) {
                    (Some(handler), Some(container)) => {
                        let target = Target {
                            runtime: &*shared.runtime,
                            container,
                            id: &id,
                            ips: &ips,
                        };
                        probe::run_hook(&target, handler).await
                    }
                    _ => Ok(None),
                };
                let result = result.map(|fell_back| {
                if let Some(host) = fell_back {
                    let about = reference_to(pod_kind(), &*pod as &dyn AnyObject);
                    let message = format!(
                        "request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded"
                    );
                    let warning = EventType::Warning;
                    shared.recorder.event(&about, warning, "LifecycleHTTPFallback", message);
                }
            });
                if let Err(why) = &result {
                    debug!(container = name, why, "a lifecycle hook failed");
                }
                tell(&inbox, Event::HookDone { id, hook, result });
            });
        self.hooks.insert(key, task.abort_handle());
    }

    fn record(
        &self,
        container: Option<(knarr_kubelet::pod::Role, String)>,
        warning: bool,
        reason: &str,
        message: String,
    ) {
        let pod: &core::Pod = self.machine.object();
        let mut about = reference_to(pod_kind(), pod as &dyn AnyObject);
        about.field_path = container.map(|(role, name)| format!("{}{{{name}}}", role.field()));
        let type_ = if warning {
            EventType::Warning
        } else {
            EventType::Normal
        };
        self.shared.recorder.event(&about, type_, reason, message);
    }

    /// Nothing is left of the pod: nor are its files.
    fn forget(&mut self) {
        self.done = true;
        let pod = self.machine.object();
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        self.shared.granted.lock().remove(uid);
        self.shared
            .probes
            .forget(pod.metadata.uid.as_deref().unwrap_or(""));
        if let Some(told) = self.told.take() {
            let now = self.shared.steady.now();
            self.shared.ended_statics.lock().note(uid, told, now);
        }
        let logs = sandbox::log_directory(pod, &self.shared.config.log_dir);
        remove_logs(&self.shared, &logs);
    }
}

fn tell(inbox: &mpsc::UnboundedSender<Msg>, event: Event) {
    // A worker that has stopped was not waiting for this.
    let _ = inbox.send(Msg::Event(event));
}

/// Tries until it is so.
pub(super) async fn until_done<T, E, F>(what: &str, mut attempt: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, E>>,
    E: std::fmt::Display,
{
    let mut wait = RETRY.0;
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => warn!(%error, "cannot {what} yet"),
        }
        sleep(wait).await;
        wait = (wait * 2).min(RETRY.1);
    }
}

async fn create_sandbox(
    shared: &Shared,
    inbox: &mpsc::UnboundedSender<Msg>,
    pod: &core::Pod,
    config: &PodSandboxConfig,
) -> Result<(String, Vec<String>), String> {
    let refused = |e: RuntimeError| e.to_string();
    let handler = runtime_handler(shared, pod).await.map_err(refused)?;
    sandbox::can_be_made(pod, &handler, &shared.config)?;
    std::fs::create_dir_all(&config.log_directory).map_err(|e| e.to_string())?;
    enforcement::share_out(shared, Some(pod)).await;
    if shared.config.machine.is_host()
        && let Err(error) = limit_pod(shared, pod).await
    {
        // The runtime makes the cgroup itself; only the pod's own limits would be missing.
        warn!(pod = pod.metadata.name, %error, "cannot set up a pod's cgroup");
    }
    let _turn = shared.starts.acquire().await;
    let made = shared.runtime.run_sandbox(config, &handler).await;
    let id = made.map_err(refused)?;
    shared.owners.lock().insert(id.clone(), inbox.clone());
    let detail = shared.runtime.sandbox(&id).await.map_err(refused)?;
    Ok((id, detail.sandbox.ips))
}

/// Makes the pod's group, if it is not there, and gives it the pod's limits.
async fn limit_pod(shared: &Shared, pod: &core::Pod) -> std::io::Result<()> {
    let configuration = &shared.config.configuration;
    let limits = super::resources::of_pod(pod, configuration, &shared.huge_pages);
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

async fn create_container(
    shared: &Shared,
    pod: &core::Pod,
    name: &str,
    attempt: u32,
    sandbox_id: &str,
    sandbox_config: &PodSandboxConfig,
    place: &Place,
) -> Result<String, (&'static str, String)> {
    let wrong = |message: String| ("CreateContainerConfigError", message);
    let failed = |e: std::io::Error| ("CreateContainerError", e.to_string());
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
    let environment = env::environment(pod, &spec, &sources, place).map_err(wrong)?;
    let mut mounts = Vec::new();
    for mount in spec.volume_mounts.iter().flatten() {
        let path = shared.volumes.mount_path(pod, name, mount, &environment).await;
        mounts.push(path.map_err(|e| wrong(e.to_string()))?);
    }
    let uid = pod.metadata.uid.as_deref().unwrap_or("");
    let directory = shared.volumes.pod_dir(uid);
    let hosts = write_hosts(shared, pod, &directory, place).map_err(failed)?;
    let termination_log = directory.join("containers").join(name).join(format!("{attempt}"));
    write_shared(&termination_log, "").map_err(failed)?;
    let logs = sandbox::log_directory(pod, &shared.config.log_dir).join(name);
    std::fs::create_dir_all(logs).map_err(failed)?;
    let config = container::config(container::Parts {
        pod,
        container: &spec,
        attempt,
        image: &image,
        sources: &sources,
        place,
        mounts,
        hosts_file: hosts,
        termination_log,
        node_memory_bytes: shared.memory_bytes,
        cpu_quota: CpuQuota::of(&shared.config.configuration),
        huge_pages: &shared.huge_pages,
        seccomp: Seccomp {
            by_default: shared.config.configuration.seccomp_default,
            root: shared.config.root_dir.join("seccomp"),
        },
        self_fenced: self_fencing::is_concerned(shared, pod),
        oom_group: cgroup::is_unified() && shared.config.configuration.single_process_oom_kill != Some(true),
    })
    .map_err(wrong)?;
    let made = shared
        .runtime
        .create_container(sandbox_id, &config, sandbox_config)
        .await;
    made.map_err(|error| ("CreateContainerError", error.message))
}

async fn start_container(shared: &Shared, pod: &core::Pod, container: String, id: String) -> Event {
    if let Err(message) = self_fencing::may_start(shared, pod).await {
        return Event::ContainerStartFailed {
            container,
            id,
            message,
        };
    }
    let started = {
        let _turn = shared.starts.acquire().await;
        shared.runtime.start_container(&id).await
    };
    if let Err(error) = started
        && !runs_all_the_same(shared, &id).await
    {
        return Event::ContainerStartFailed {
            container,
            id,
            message: error.message,
        };
    }
    let now = shared.clock.now();
    let fallback = pod
        .spec
        .as_ref()
        .and_then(|s| find_spec(s, &container))
        .and_then(|c| c.image.clone())
        .unwrap_or_default();
    match shared.runtime.container(&id).await {
        Ok(detail) => {
            let folder = links::folder(&shared.config.log_dir);
            if let Err(error) = links::link(&folder, &detail.container, Path::new(&detail.log_path)) {
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

/// Whether a container whose start was answered with an error has been started: the answer may have been lost, and
/// taking it for an end would start a second one (SPEC S1). Only the runtime's own record says; it is waited for.
async fn runs_all_the_same(shared: &Shared, id: &str) -> bool {
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
            Err(error) => warn!(container = id, %error, "cannot tell yet whether a container was started"),
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

fn write_hosts(
    shared: &Shared,
    pod: &core::Pod,
    directory: &Path,
    place: &Place,
) -> std::io::Result<Option<PathBuf>> {
    let path = directory.join("etc-hosts");
    let node = sandbox::host_network(pod)
        .then(|| std::fs::read_to_string("/etc/hosts"))
        .transpose()?;
    let fqdn = sandbox::fqdn(pod, &shared.config);
    let text = container::hosts_file(
        pod,
        &place.pod_ips,
        &sandbox::hostname(pod),
        fqdn.as_deref(),
        node.as_deref(),
    );
    write_shared(&path, &text)?;
    Ok(Some(path))
}

/// A file that processes of any user may read and write.
fn write_shared(path: &Path, text: &str) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::write(path, text)?;
    let mode = if text.is_empty() { 0o666 } else { 0o644 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}
