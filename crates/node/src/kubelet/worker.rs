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
use knarr_api::{AnyObject, k8s_openapi};
use knarr_client::Clock;
use knarr_client::events::{EventType, reference_to};
use knarr_kubelet::admission::Rejection;
use knarr_kubelet::pod::{Event, Hook, Node, Pod};
use knarr_kubelet::runtime::{Container, ContainerState, Sandbox};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::downward::DownwardValues;
use super::remove::remove_logs;
use super::status::Write;
use super::wall_clock::WallClock;
use super::{RunningPod, Shared, exit, pod_kind, resource_health, sandbox, status};

/// Between attempts at what cannot be given up.
pub(super) const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

pub(crate) enum Msg {
    Event(Event),
    /// This container, or the sandbox, may have exited.
    CheckExit {
        id: String,
    },
    Observed {
        since: Timestamp,
        sandboxes: Vec<Sandbox>,
        containers: Vec<Container>,
    },
    /// The status of a static pod that has terminated need not be reported any more.
    Forget,
    /// A static pod's mirror was deleted or is being deleted.
    MirrorGone,
    /// The check of this id has finished.
    ExitChecked {
        id: String,
    },
}

/// Where a pod is defined.
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
        found: Option<RunningPod>,
        admitted: Result<(), Rejection>,
        origin: Origin,
        cancel: CancellationToken,
    ) -> Self {
        let (inbox, messages) = mpsc::unbounded_channel();
        let rejected = admitted.is_err();
        if let Err(rejection) = admitted {
            // All later messages come after it.
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

    /// Whether only the pod's status remains to be reported.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }
}

struct PodWorker {
    shared: Arc<Shared>,
    machine: Pod,
    inbox: mpsc::UnboundedSender<Msg>,
    ended: Arc<AtomicBool>,
    writes: mpsc::UnboundedSender<Write>,
    timer: Option<Timestamp>,
    wall: WallClock,
    hooks: BTreeMap<(String, Hook), AbortHandle>,
    checking: BTreeSet<String>,
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
    shared: Arc<Shared>,
    pod: Arc<core::Pod>,
    found: Option<RunningPod>,
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
    let mut worker = PodWorker {
        machine: Pod::new(pod, node),
        wall: WallClock::new(shared.clock.now()),
        shared,
        inbox,
        ended,
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
        worker.shared.containers.readmit(worker.machine.object()).await;
        let first = worker.complete(since, sandboxes, containers, true).await;
        worker.note_resource_health();
        worker.step(first);
    } else if !rejected {
        let (first, early) = allocate(&worker.shared, worker.machine.object(), &mut messages).await;
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
        remove_logs(&worker.shared, &uid, logs).await;
    }
    writer.abort();
    let mut owners = worker.shared.owners.lock();
    owners.retain(|_, owner| !owner.same_channel(&worker.inbox));
}

/// Allocates CPUs, memory and devices of a new pod, and returns the state machine's first event. Messages that arrive
/// meanwhile are kept for later; a deletion cancels the wait.
async fn allocate(
    shared: &Arc<Shared>,
    pod: &Arc<core::Pod>,
    messages: &mut mpsc::UnboundedReceiver<Msg>,
) -> (Event, Vec<Msg>) {
    let mut early = Vec::new();
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    let is_terminal = matches!(phase, Some("Succeeded" | "Failed"));
    if pod.metadata.deletion_timestamp.is_some() || is_terminal {
        return (Event::Timer, early);
    }
    let mut allocating = std::pin::pin!(shared.containers.admit(pod));
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
            Msg::MirrorGone => self.write(Write::MirrorGone),
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
        let now = self.shared.clock.now();
        if let Some(by) = self.wall.jumped(now) {
            debug!(pod = self.machine.object().metadata.name, %by, "the wall clock was set");
            // Each step sets it again.
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
            let uid = self.machine.object().metadata.uid.as_deref().unwrap_or("");
            self.shared.active.lock().remove(uid);
            self.shared.containers.release(uid);
            self.shared.pod_ended.notify_one();
        }
    }

    /// Other pods' admission counts what is allocated to this pod, not what it requests.
    fn note_allocation(&self) {
        let allocated = self.machine.allocated();
        let uid = allocated.metadata.uid.clone().unwrap_or_default();
        if !self.machine.has_ended() {
            self.shared.active.lock().insert(uid.clone(), allocated.clone());
        }
        self.shared.granted.lock().insert(uid, allocated);
    }

    /// Reported with the next status.
    fn note_resource_health(&mut self) {
        let health = resource_health::of_pod(&self.shared, self.machine.object());
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
                    container.state = match exit::of_detail(&self.shared, &pod, &detail).await {
                        Some(exit) => ContainerState::Exited(exit),
                        None => detail.container.state,
                    };
                }
                Err(error) if error.is_not_found() => gone.push(container.id.clone()),
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

    fn check_exit(&mut self, id: String) {
        if !self.checking.insert(id.clone()) {
            return;
        }
        let (shared, inbox, pod) = self.parts();
        tokio::spawn(async move {
            if let Some(exit) = exit::read_exit(&shared, &pod, &id).await {
                send_event(&inbox, Event::ContainerExited { id: id.clone(), exit });
            }
            let _ = inbox.send(Msg::ExitChecked { id });
        });
    }

    fn parts(&self) -> (Arc<Shared>, mpsc::UnboundedSender<Msg>, Arc<core::Pod>) {
        (
            self.shared.clone(),
            self.inbox.clone(),
            self.machine.object().clone(),
        )
    }

    fn values(&self) -> DownwardValues {
        DownwardValues {
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
        let text = crate::host_fs::read_to_string(&self.shared.config.resolv_conf).unwrap_or_default();
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
        self.shared.announced.forget(uid);
        self.shared.granted.lock().remove(uid);
        self.shared.active.lock().remove(uid);
        self.shared.containers.release(uid);
        self.shared.dra.forget(uid);
        self.shared
            .probes
            .forget(pod.metadata.uid.as_deref().unwrap_or(""));
        if let Some(reported) = self.reported.take() {
            let now = self.shared.steady.now();
            self.shared.ended_statics.lock().note(uid, reported, now);
        }
        let logs = sandbox::log_directory(pod, &self.shared.config.log_dir);
        self.logs_to_remove = Some(logs);
    }
}

fn send_event(inbox: &mpsc::UnboundedSender<Msg>, event: Event) {
    // A worker that has stopped was not waiting for this.
    let _ = inbox.send(Msg::Event(event));
}

/// Tries until it is so.
pub(super) async fn retry_until_done<T, E, F>(what: &str, mut attempt: impl FnMut() -> F) -> T
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
