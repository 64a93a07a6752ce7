//! One pod's task: feeds the pod's state machine and carries out what it decides.
//!
//! An action that takes time runs in a task of its own and answers with an event; the worker itself never waits.

mod carry_out;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_cri::v1::PodSandboxConfig;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::is_terminal;
use knarr_apimachinery::ids::{ContainerId, PodUid};
use knarr_client::events::EventType;
use knarr_client::{Api, Clock};
use knarr_kubelet::admission::Rejection;
use knarr_kubelet::pod::{Event, Hook, Node, Pod};
use knarr_kubelet::runtime::{Container, ContainerState, Sandbox};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, debug_span};

use super::admission::PodAdmission;
use super::at_most_one::StartAnnouncements;
use super::config::Config;
use super::downward::DownwardValues;
use super::endpoints::EndpointBarrier;
use super::enforcement::PodCgroups;
use super::events::Events;
use super::exit::ExitReader;
use super::inbox::{Inbox, Msg};
use super::launch::Launcher;
use super::node_resources::NodeResources;
use super::pod_runtime::PodRuntime;
use super::remove::remove_logs;
use super::resize::Resizer;
use super::resource_managers::ResourceManagers;
use super::retry::RETRY;
use super::runtime_snapshot::RunningPod;
use super::static_pods::{MirrorPods, TerminatedStaticPods};
use super::status::{Origin, Write};
use super::wall_clock::WallClock;
use super::{sandbox, status};
use crate::probe;
use crate::runtime::{ContainerDetail, RuntimeError};
use crate::volumes::Volumes;

/// What the worker of a pod carries out its actions with.
pub(super) struct WorkerContext {
    pub config: Arc<Config>,
    pub api: Arc<dyn Api>,
    pub clock: Arc<dyn Clock>,
    pub runtime: Arc<PodRuntime>,
    pub volumes: Arc<Volumes>,
    pub node: Arc<NodeResources>,
    pub managers: Arc<ResourceManagers>,
    pub admission: Arc<PodAdmission>,
    pub launcher: Launcher,
    pub resizer: Resizer,
    pub cgroups: Arc<PodCgroups>,
    pub exits: ExitReader,
    pub endpoints: EndpointBarrier,
    pub announcements: Arc<StartAnnouncements>,
    pub mirrors: Arc<MirrorPods>,
    pub terminated_static_pods: TerminatedStaticPods,
    pub events: Events,
    pub probes: Arc<probe::Counts>,
    /// Notified when only the status of a pod remains to be reported.
    pub pod_terminated: Arc<Notify>,
}

/// A handle on a pod's task.
pub(super) struct Worker {
    inbox: Inbox,
    task: JoinHandle<()>,
    terminated: Arc<AtomicBool>,
}

impl Worker {
    pub fn start(
        context: Arc<WorkerContext>,
        pod: Arc<core::Pod>,
        found: Option<RunningPod>,
        admitted: Result<(), Rejection>,
        origin: Origin,
        cancel: CancellationToken,
    ) -> Self {
        let (inbox, messages) = Inbox::new();
        let rejected = admitted.is_err();
        if let Err(rejection) = admitted {
            // All later messages come after it.
            inbox.event(Event::Reject(rejection));
        }
        let terminated = Arc::<AtomicBool>::default();
        let task = crate::task::spawn(run(
            context,
            pod,
            found.filter(|_| !rejected),
            (rejected, origin),
            (inbox.clone(), terminated.clone()),
            messages,
            cancel,
        ));
        Worker {
            inbox,
            task,
            terminated,
        }
    }

    pub fn send(&self, message: Msg) {
        self.inbox.send(message);
    }

    /// Whether only the pod's status remains to be reported.
    pub fn has_terminated(&self) -> bool {
        self.terminated.load(Ordering::Relaxed)
    }

    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }
}

struct PodWorker {
    context: Arc<WorkerContext>,
    machine: Pod,
    inbox: Inbox,
    terminated: Arc<AtomicBool>,
    writes: mpsc::UnboundedSender<Write>,
    timer: Option<Timestamp>,
    wall: WallClock,
    hooks: BTreeMap<(ContainerId, Hook), AbortHandle>,
    checking: BTreeSet<ContainerId>,
    /// The sandbox in use, with its configuration.
    sandbox: Option<Arc<PodSandboxConfig>>,
    sandbox_attempt: u32,
    /// Of a static pod: the status reported last.
    reported: Option<Box<core::PodStatus>>,
    origin: Origin,
    /// Of a pod that is forgotten. The task ends when they are removed: a static pod's successor uses the same
    /// directory.
    logs_to_remove: Option<PathBuf>,
    done: bool,
}

async fn run(
    context: Arc<WorkerContext>,
    pod: Arc<core::Pod>,
    found: Option<RunningPod>,
    (rejected, origin): (bool, Origin),
    (inbox, terminated): (Inbox, Arc<AtomicBool>),
    mut messages: mpsc::UnboundedReceiver<Msg>,
    cancel: CancellationToken,
) {
    let node = Node {
        ips: context.config.node_ips.clone(),
        resume: context.config.termination_resume,
        endpoint_barrier: SignedDuration::try_from(context.config.endpoint_barrier)
            .unwrap_or(SignedDuration::ZERO),
        longest_restart_wait: context.config.configuration.max_container_restart_period,
    };
    let (writes, to_write) = mpsc::unbounded_channel();
    let writer = crate::task::spawn(status::run(
        context.api.clone(),
        context.mirrors.clone(),
        pod.clone(),
        origin,
        to_write,
        inbox.clone(),
    ));
    let mut worker = PodWorker {
        machine: Pod::new(pod, node),
        wall: WallClock::new(context.clock.now()),
        context,
        inbox,
        terminated,
        writes,
        timer: None,
        hooks: BTreeMap::new(),
        checking: BTreeSet::new(),
        sandbox: None,
        sandbox_attempt: 0,
        reported: None,
        origin,
        logs_to_remove: None,
        done: false,
    };
    worker.note_allocation();
    if let Some((since, sandboxes, containers)) = found {
        worker
            .context
            .managers
            .containers
            .readmit(worker.machine.object())
            .await;
        let first = worker.complete(since, sandboxes, containers, true).await;
        worker.note_resource_health();
        worker.step(first);
    } else if !rejected {
        let (first, early) = allocate(&worker.context.managers, worker.machine.object(), &mut messages).await;
        worker.note_resource_health();
        worker.step(first);
        for message in early {
            // Before all later messages: nothing has been received yet.
            worker.receive(message).await;
        }
    }
    while !worker.done {
        let now = worker.now();
        let wait = worker.timer.map(|at| {
            let left = at.duration_since(now);
            Duration::try_from(left).unwrap_or(Duration::ZERO)
        });
        tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            message = messages.recv() => match message {
                Some(message) => worker.receive(message).await,
                None => break,
            },
            () = sleep(wait.unwrap_or(Duration::MAX)), if wait.is_some() => {
                worker.timer = None;
                worker.step(Event::Timer);
            }
        }
    }
    if let Some(logs) = worker.logs_to_remove.take() {
        let uid = worker.machine.object().metadata.uid.clone().unwrap_or_default();
        let (files, log_dir) = (worker.context.volumes.files(), &worker.context.config.log_dir);
        remove_logs(files, log_dir, &uid, logs).await;
    }
    writer.abort();
    worker.context.runtime.remove_all_of(&worker.inbox);
}

/// Allocates CPUs, memory and devices of a new pod, and returns the state machine's first event. Messages that arrive
/// meanwhile are kept for later; a deletion cancels the wait.
async fn allocate(
    managers: &ResourceManagers,
    pod: &Arc<core::Pod>,
    messages: &mut mpsc::UnboundedReceiver<Msg>,
) -> (Event, Vec<Msg>) {
    let mut early = Vec::new();
    if pod.metadata.deletion_timestamp.is_some() || is_terminal(pod) {
        return (Event::Timer, early);
    }
    let mut allocating = std::pin::pin!(managers.containers.admit(pod));
    loop {
        tokio::select! {
            biased;
            allocated = &mut allocating => {
                let first = match allocated {
                    Ok(()) => Event::Timer,
                    Err(rejection) => Event::Reject(rejection),
                };
                return (first, early);
            }
            message = messages.recv() => {
                let is_end = match &message {
                    Some(Msg::Event(Event::Updated(new))) => new.metadata.deletion_timestamp.is_some(),
                    Some(Msg::Event(Event::Removed | Event::Evict(_))) | None => true,
                    Some(_) => false,
                };
                match message {
                    Some(Msg::Event(event)) if is_end => return (event, early),
                    None => return (Event::Timer, early),
                    Some(message) => early.push(message),
                }
            }
        }
    }
}

impl PodWorker {
    async fn receive(&mut self, message: Msg) {
        match message {
            Msg::Event(event) => self.step(event),
            Msg::CheckExit { id } => self.check_exit(id),
            Msg::Forget => self.forget(),
            Msg::MirrorDeleted => self.write(Write::MirrorDeleted),
            Msg::ExitChecked { id } => drop(self.checking.remove(&id)),
            Msg::Observed {
                since,
                sandboxes,
                containers,
            } => {
                let event = self.complete(since, sandboxes, containers, false).await;
                self.step(event);
            }
        }
    }

    fn step(&mut self, event: Event) {
        if let Event::Updated(object) = &event {
            self.write(Write::Object(object.clone()));
        }
        let now = self.now();
        self.step_at(event, now);
    }

    /// The time of day. If it has jumped, the state machine is informed.
    fn now(&mut self) -> Timestamp {
        let now = self.context.clock.now();
        if let Some(by) = self.wall.jumped(now) {
            debug!(pod = self.machine.object().metadata.name, %by, "the wall clock was set");
            // Each step sets it again.
            self.timer = None;
            self.step_at(Event::ClockJumped { by }, now);
        }
        now
    }

    fn step_at(&mut self, event: Event, now: Timestamp) {
        let pod = &self.machine.object().metadata;
        let step = debug_span!(
            "pod_worker_step",
            namespace = pod.namespace,
            pod = pod.name,
            uid = pod.uid
        );
        let _entered = step.entered();
        let may_allocate = matches!(event, Event::Updated(_) | Event::ResizeAdmitted(_));
        let actions = self.machine.step(event, now);
        if may_allocate {
            self.note_allocation();
        }
        for action in actions {
            debug!(pod = self.machine.object().metadata.name, ?action, "decided");
            self.carry_out(action);
        }
        if self.machine.has_terminated() && !self.terminated.swap(true, Ordering::Relaxed) {
            let uid = &PodUid::of(&self.machine.object().metadata);
            self.context.managers.release(uid);
            self.context.pod_terminated.notify_one();
        }
    }

    /// Other pods' admission counts what is allocated to this pod, not what it requests.
    fn note_allocation(&self) {
        let allocated = self.machine.allocated();
        let uid = PodUid::of(&allocated.metadata);
        if !self.machine.has_terminated() {
            let mut active = self.context.managers.active.lock();
            active.insert(uid.clone(), allocated.clone());
        }
        self.context.admission.note_allocated(uid, allocated);
    }

    /// Reported with the next status.
    fn note_resource_health(&mut self) {
        let health = self.context.managers.health_of(self.machine.object());
        if !health.is_empty() {
            self.machine.note_resource_health(health);
        }
    }

    fn write(&self, write: Write) {
        // The writer ends only with the worker.
        let _ = self.writes.send(write);
    }

    /// Adds what lists lack, for containers that are not known yet. At the start the worker waits for it.
    async fn complete(
        &mut self,
        since: Timestamp,
        mut sandboxes: Vec<Sandbox>,
        mut containers: Vec<Container>,
        first: bool,
    ) -> Event {
        let pod = self.machine.object().clone();
        for sandbox in sandboxes.iter_mut().filter(|s| s.ready && first) {
            self.own(&sandbox.id);
            if let Ok(detail) = self.context.runtime.sandbox(&sandbox.id).await {
                self.context.runtime.note_network_namespace(&sandbox.id, &detail);
                sandbox.ips = detail.sandbox.ips;
            }
            self.sandbox_attempt = sandbox.attempt;
        }
        let mut removed = Vec::new();
        for container in &mut containers {
            let running = matches!(container.state, ContainerState::Running { .. });
            if running && self.machine.is_latest_run(&container.id) {
                continue;
            }
            match self.detail(&container.id, first).await {
                Ok(detail) => {
                    container.state = match self.context.exits.of_detail(&pod, &detail).await {
                        Some(exit) => ContainerState::Exited(exit),
                        None => detail.container.state,
                    };
                }
                Err(error) if error.is_not_found() => removed.push(container.id.clone()),
                // The list shows that it was created and not started.
                Err(_) if container.state == ContainerState::Created => {}
                // Without its detail its exit is unknown: it is treated as running.
                Err(_) => {
                    container.state = ContainerState::Running {
                        started_at: container.created_at,
                    };
                }
            }
        }
        containers.retain(|c| !removed.contains(&c.id));
        if first {
            containers.iter().for_each(|c| self.own(&c.id));
        }
        Event::Observed {
            since,
            sandboxes,
            containers,
        }
    }

    /// The detail of a listed container. A kubelet that has just started asks a runtime that fails again: without its exit, a container
    /// that has exited would be reported as running.
    async fn detail(&self, id: &ContainerId, first: bool) -> Result<ContainerDetail, RuntimeError> {
        let (mut wait, longest) = RETRY;
        loop {
            match self.context.runtime.container(id).await {
                Err(error) if first && !error.is_not_found() && wait < longest => {
                    debug!(container = %id, %error, "cannot read a container yet");
                }
                answer => return answer,
            }
            sleep(wait).await;
            wait *= 2;
        }
    }

    fn own(&self, id: &str) {
        self.context.runtime.set_owner(id, &self.inbox);
    }

    fn check_exit(&mut self, id: ContainerId) {
        if !self.checking.insert(id.clone()) {
            return;
        }
        let (context, inbox, pod) = self.parts();
        crate::task::spawn(async move {
            if let Some(exit) = context.exits.read(&pod, &id).await {
                inbox.event(Event::ContainerExited { id: id.clone(), exit });
            }
            inbox.send(Msg::ExitChecked { id });
        });
    }

    fn parts(&self) -> (Arc<WorkerContext>, Inbox, Arc<core::Pod>) {
        (
            self.context.clone(),
            self.inbox.clone(),
            self.machine.object().clone(),
        )
    }

    fn values(&self) -> DownwardValues {
        DownwardValues {
            pod_ips: self.machine.ips().to_vec(),
            host_ips: self.context.config.node_ips.clone(),
            allocatable: self.context.node.allocatable.clone(),
        }
    }

    /// The sandbox's configuration, the same for all that is made in it.
    fn sandbox_config(&mut self) -> Arc<PodSandboxConfig> {
        if let Some(config) = &self.sandbox {
            return config.clone();
        }
        let text = crate::host_fs::read_to_string(&self.context.config.resolv_conf).unwrap_or_default();
        let node = sandbox::ResolvConf::parse(&text);
        let config = sandbox::config(
            self.machine.object(),
            self.sandbox_attempt,
            &node,
            &self.context.config,
        );
        let config = Arc::new(config);
        self.sandbox = Some(config.clone());
        config
    }

    fn record(
        &self,
        container: Option<(knarr_kubelet::pod::Role, String)>,
        warning: bool,
        reason: &str,
        message: String,
    ) {
        let pod: &core::Pod = self.machine.object();
        let field_path = container.map(|(role, name)| format!("{}{{{name}}}", role.field()));
        let type_ = if warning {
            EventType::Warning
        } else {
            EventType::Normal
        };
        let events = &self.context.events;
        events.of_container(pod, field_path, type_, reason, message);
    }

    /// Nothing is left of the pod: nor are its files.
    fn forget(&mut self) {
        self.done = true;
        let pod = self.machine.object();
        let uid = &PodUid::of(&pod.metadata);
        self.context.announcements.forget(uid);
        self.context.admission.forget(uid);
        self.context.managers.forget(uid);
        self.context.probes.forget(uid);
        if let Some(reported) = self.reported.take() {
            self.context.terminated_static_pods.note(uid, reported);
        }
        let logs = sandbox::log_directory(pod, &self.context.config.log_dir);
        self.logs_to_remove = Some(logs);
    }
}
