//! One pod's life on its node: a state machine that takes events and the time and answers with actions.
//!
//! An event only changes what is known; what is done follows from all that is known ([`Pod::step`] runs the
//! whole decision after each event). At most one attempt of each operation is under way; none is forgotten:
//! every action that has an answer is answered by exactly one event, also when it failed.
//!
//! Promises: a container never runs twice at a time (SPEC S1); nothing starts once the pod is ending; the
//! object is deleted only after processes, sandbox and volumes are gone (T5).

mod allocation;
mod barrier;
pub(crate) mod clock_jump;
mod container;
mod end;
mod ends;
mod observed;
mod resize;
mod restart_all;
mod sandbox;
mod start;
mod status;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

pub use container::{Container, Role, Run, RunState, Work, definition_hash, find_spec};
pub use end::{Ending, Why};
pub use ends::{ANNOTATION as ENDS_ANNOTATION, End, Ends, Moment};
pub use status::merge;

/// The reason of a resize that the node will never admit; others are deferred (`PodReasonInfeasible`).
pub const INFEASIBLE: &str = "Infeasible";

use sandbox::{Old, Sandbox};

use crate::admission::Rejection;
use crate::probe;
use crate::runtime::{self, Exit};

/// Waits between attempts to set volumes up: 0.5 s, doubled up to about two minutes.
const VOLUME_RETRY: (SignedDuration, SignedDuration) =
    (SignedDuration::from_millis(500), SignedDuration::from_secs(122));
/// Before a volume is asked for again that somebody else has to provide.
const OTHERS_TURN: SignedDuration = SignedDuration::from_secs(12);

/// What the decision is told.
#[derive(Clone, Debug)]
pub enum Event {
    /// The object as the API has it now.
    Updated(Arc<core::Pod>),
    /// The object is gone from the API.
    Removed,
    /// The wall clock was set, this much forward.
    ClockJumped {
        by: SignedDuration,
    },
    /// What the runtime was seen to hold of this pod, in a look that began at `since`.
    Observed {
        since: Timestamp,
        sandboxes: Vec<runtime::Sandbox>,
        containers: Vec<runtime::Container>,
    },
    VolumesReady,
    VolumesFailed {
        /// Of the event: `FailedMount` or `FailedMapVolume`.
        reason: &'static str,
        message: String,
        /// It takes somebody else to make it good: trying at once is of no use.
        others_turn: bool,
    },
    VolumesGone,
    SandboxCreated {
        id: String,
        ips: Vec<String>,
    },
    SandboxFailed {
        message: String,
    },
    /// Which devices the containers have, by name, and whether they are healthy.
    ResourceHealth(BTreeMap<String, Vec<core::ResourceStatus>>),
    /// No sandbox was made, for the pod's claims are not prepared.
    ClaimsFailed {
        message: String,
    },
    /// Its processes are gone and its network is freed.
    SandboxStopped {
        id: String,
    },
    SandboxRemoved {
        id: String,
    },
    ImageInspected {
        container: String,
        present: Result<bool, String>,
    },
    ImagePulled {
        container: String,
        result: Result<Pulled, String>,
    },
    ContainerCreated {
        container: String,
        id: String,
    },
    ContainerCreateFailed {
        container: String,
        /// `CreateContainerConfigError`, `CreateContainerError`.
        reason: &'static str,
        message: String,
    },
    ContainerStarted {
        container: String,
        id: String,
        at: Timestamp,
        image: String,
        image_id: String,
    },
    ContainerStartFailed {
        container: String,
        id: String,
        message: String,
    },
    ContainerExited {
        id: String,
        exit: Exit,
    },
    ContainerRemoved {
        id: String,
    },
    /// Ending it failed; it may still run.
    StopFailed {
        id: String,
        message: String,
    },
    HookDone {
        id: String,
        hook: Hook,
        result: Result<(), String>,
    },
    Probed {
        id: String,
        kind: probe::Kind,
        answer: probe::Answer,
    },
    /// The pod must go (eviction, node shutdown), and not by the API's word.
    Evict(Eviction),
    /// The node does not take the pod: it ends as failed, and nothing of it runs.
    Reject(Rejection),
    /// No proxy sends the pod anything new.
    EndpointsDropped,
    /// Whether there is room for what the pod now asks for.
    ResizeAdmitted(Result<(), Rejection>),
    /// These containers have what they are allocated; if there is no error, so has the pod.
    Resized {
        done: Vec<String>,
        result: Result<(), String>,
    },
    /// The final deletion was refused or could not be sent.
    FinalDeleteFailed,
    /// Time has passed.
    Timer,
}

/// Why a node ends a pod by itself (SPEC T8, T9).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Eviction {
    /// `status.reason`
    pub reason: String,
    pub message: String,
    /// At most so much, whatever the pod's own grace; none: the pod's own.
    pub grace_seconds: Option<i64>,
    /// What the pod is told of as the target of a disruption, if it is one.
    pub disruption: Option<String>,
}

/// What a pull brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pulled {
    pub image_id: String,
    pub took: SignedDuration,
    /// `took`, and the wait for its turn.
    pub with_waiting: SignedDuration,
    pub size_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    PostStart,
    PreStop,
}

/// What is to be done. Each is done once; those with an answer are answered by one event.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// → `VolumesReady` or `VolumesFailed`.
    SetUpVolumes,
    /// → `VolumesGone` (the doer tries until it is so).
    TearDownVolumes,
    /// → `SandboxCreated` or `SandboxFailed`.
    CreateSandbox { attempt: u32 },
    /// → `SandboxStopped` (the doer tries until it is so).
    StopSandbox { id: String },
    /// → `SandboxRemoved` (the doer tries until it is so).
    RemoveSandbox { id: String },
    /// → `ImageInspected`.
    InspectImage { container: String, image: String },
    /// → `ImagePulled`.
    PullImage { container: String, image: String },
    /// → `ContainerCreated` or `ContainerCreateFailed`.
    CreateContainer {
        container: String,
        sandbox: String,
        attempt: u32,
    },
    /// → `ContainerStarted` or `ContainerStartFailed`.
    StartContainer { container: String, id: String },
    /// → `ContainerExited` or `StopFailed`. A later one with less grace overtakes.
    StopContainer { id: String, grace_seconds: i64 },
    /// → `ResizeAdmitted`: is there room on the node for what the pod asks for now?
    AdmitResize,
    /// → `Resized`: the pod's group, and these containers (name and id), are given what is allocated.
    Resize { containers: Vec<(String, String)> },
    /// → `ContainerRemoved` (the doer tries until it is so).
    RemoveContainer { id: String },
    /// → `HookDone`. It has no limit of its own: whoever waits for it says when it is over.
    RunHook {
        container: String,
        id: String,
        hook: Hook,
    },
    /// There is nothing left that the hook could be about.
    CancelHook { id: String, hook: Hook },
    /// → `Probed`.
    Probe {
        container: String,
        id: String,
        kind: probe::Kind,
    },
    /// → `EndpointsDropped`, when the pod's address is in no endpoint that proxies send new connections to, if that is
    /// so within the barrier's time.
    AwaitEndpoints,
    /// What the pod's memory of ends is now; it goes with the next status.
    WriteEnds(String),
    /// The status as it is now; only the newest counts.
    WriteStatus(Box<core::PodStatus>),
    /// After the last status is written: delete with grace 0 and this pod's uid. → `FinalDeleteFailed` if it was not.
    FinalDelete,
    /// An event for the user. `container` is none for those of the pod.
    Record {
        container: Option<(Role, String)>,
        warning: bool,
        reason: Cow<'static, str>,
        message: String,
    },
    /// `Timer` is wanted then. Only the newest counts.
    SetTimer(Timestamp),
    /// Nothing is left of the pod here, and it is gone from the API.
    Forget,
}

/// What is known of the node the pod is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub ips: Vec<String>,
    pub resume: TerminationResume,
    /// Before a container that crashes is started again.
    pub longest_restart_wait: SignedDuration,
    /// How long TERM waits for proxies at the most; zero: not at all.
    pub endpoint_barrier: SignedDuration,
}

impl Default for Node {
    fn default() -> Self {
        Node {
            ips: Vec::new(),
            resume: TerminationResume::Full,
            longest_restart_wait: crate::backoff::MAX,
            endpoint_barrier: SignedDuration::ZERO,
        }
    }
}

/// What a pod is left with that was already ending when this kubelet began to know it (T4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TerminationResume {
    /// Its whole grace again, hooks included: no process gets less than it was promised.
    #[default]
    Full,
    /// What is left until the deadline first set, and no second hook.
    Deadline,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Volumes {
    Wanted { not_before: Option<Timestamp> },
    SettingUp,
    Ready,
    TearingDown,
    Gone,
}

/// One pod of this node, by uid.
#[derive(Clone, Debug)]
pub struct Pod {
    object: Arc<core::Pod>,
    node: Node,
    volumes: Volumes,
    volume_wait: SignedDuration,
    sandbox: Sandbox,
    sandbox_made_at: Option<Timestamp>,
    /// When the ticks of its probes began.
    probing_since: Option<Timestamp>,
    /// Sandboxes made so far.
    sandbox_attempts: u32,
    old_sandboxes: BTreeMap<String, Old>,
    /// Being removed.
    removing: Vec<String>,
    /// All containers are being restarted, and that was told.
    restarting_all: bool,
    containers: Vec<Container>,
    ending: Option<Ending>,
    /// It was ending already when this kubelet began to know it.
    met_ending: bool,
    /// The node did not take it: what is told of it was told with that.
    rejected: bool,
    /// The object is gone from the API.
    removed: bool,
    start_time: Option<Timestamp>,
    /// How far the clock has jumped since the start time was told.
    start_time_off: SignedDuration,
    /// The sandbox's address waits for other news to be told with.
    address_waits: bool,
    resize: resize::Resize,
    whole: allocation::Whole,
    /// And since when.
    eviction: Option<(Eviction, Timestamp)>,
    /// It was told that its eviction takes too long.
    told_overrun: bool,
    barrier: barrier::Barrier,
    /// Of devices, by container.
    resource_health: BTreeMap<String, Vec<core::ResourceStatus>>,
    ends: Ends,
    told_ends: Ends,
    /// As last told.
    status: core::PodStatus,
    timer: Option<Timestamp>,
    out: Vec<Action>,
}

impl Pod {
    /// A pod that this node has to do with. What already runs of it comes with the first [`Event::Observed`];
    /// without one, nothing is assumed to run.
    pub fn new(object: Arc<core::Pod>, node: Node) -> Self {
        let status = object.status.clone().unwrap_or_default();
        let object_ends = object.metadata.deletion_timestamp.is_some();
        let ends = Ends::of(object.metadata.annotations.as_ref());
        let mut pod = Pod {
            start_time: status.start_time.as_ref().map(|t| t.0),
            start_time_off: SignedDuration::ZERO,
            whole: allocation::Whole::recall(&object),
            object,
            node,
            volumes: Volumes::Wanted { not_before: None },
            volume_wait: VOLUME_RETRY.0,
            sandbox: Sandbox::Wanted { not_before: None },
            sandbox_made_at: None,
            probing_since: None,
            sandbox_attempts: 0,
            old_sandboxes: BTreeMap::new(),
            removing: Vec::new(),
            restarting_all: false,
            containers: Vec::new(),
            ending: None,
            met_ending: object_ends,
            // A node that comes back still does not take it.
            rejected: status.phase.as_deref() == Some("Failed") && status.container_statuses.is_none(),
            removed: false,
            address_waits: false,
            resize: resize::Resize::default(),
            eviction: None,
            told_overrun: false,
            barrier: barrier::Barrier::Open,
            resource_health: BTreeMap::new(),
            told_ends: ends.clone(),
            ends,
            status,
            timer: None,
            out: Vec::new(),
        };
        pod.update_containers();
        pod
    }

    /// Before the first step.
    pub fn note_resource_health(&mut self, health: BTreeMap<String, Vec<core::ResourceStatus>>) {
        self.resource_health = health;
    }

    pub fn object(&self) -> &Arc<core::Pod> {
        &self.object
    }

    /// The status as last told.
    pub fn status(&self) -> &core::PodStatus {
        &self.status
    }

    /// The addresses of its sandbox, or of the node for pods in the host's network.
    pub fn ips(&self) -> &[String] {
        match &self.sandbox {
            _ if self.host_network() => &self.node.ips,
            Sandbox::Ready { ips, .. } => ips,
            _ => &[],
        }
    }

    pub fn containers(&self) -> &[Container] {
        &self.containers
    }

    pub fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Nothing of it runs, and its sandbox and volumes are gone.
    pub fn has_ended(&self) -> bool {
        self.ending.as_ref().is_some_and(|e| e.freed)
    }

    /// Takes an event and decides. The actions are to be carried out in any order, but each
    /// [`Action::RemoveContainer`] and [`Action::StopSandbox`] is safe as soon as it is given.
    pub fn step(&mut self, event: Event, now: Timestamp) -> Vec<Action> {
        self.timer = None;
        if self.is_news(&event) {
            self.show_back_offs(now);
        }
        self.take(event, now);
        self.take_losses();
        self.decide(now);
        if let Some(at) = self.timer {
            self.out.push(Action::SetTimer(at));
        }
        std::mem::take(&mut self.out)
    }

    /// Whether an event makes the whole pod be looked at anew: what is in back-off is then shown as such.
    fn is_news(&self, event: &Event) -> bool {
        // What this kubelet itself has written is no news to it.
        let others = |annotations: &Option<BTreeMap<String, String>>| -> BTreeMap<String, String> {
            let mut others = annotations.clone().unwrap_or_default();
            others.remove(ENDS_ANNOTATION);
            others
        };
        match event {
            Event::Updated(new) => {
                let (old, new) = (&self.object.metadata, &new.metadata);
                if new.deletion_timestamp.is_some() {
                    return false;
                }
                old.generation != new.generation
                    || old.labels != new.labels
                    || others(&old.annotations) != others(&new.annotations)
            }
            Event::ContainerExited { .. } | Event::ContainerStarted { .. } | Event::Evict(_) => true,
            _ => false,
        }
    }

    fn decide(&mut self, now: Timestamp) {
        if self.ending.is_none() {
            self.look_for_the_end(now);
        }
        self.empty_sandboxes(now);
        if self.ending.is_some() {
            self.end(now);
        } else {
            self.advance_stops(now);
            self.start(now);
            self.resize(now);
            // A container that cannot start may have been the last one.
            self.look_for_the_end(now);
            if self.ending.is_some() {
                self.end(now);
            }
        }
        self.probe(now);
        self.prune();
    }

    fn spec(&self) -> &core::PodSpec {
        static EMPTY: std::sync::LazyLock<core::PodSpec> = std::sync::LazyLock::new(core::PodSpec::default);
        self.object.spec.as_ref().unwrap_or(&EMPTY)
    }

    fn uid(&self) -> &str {
        self.object.metadata.uid.as_deref().unwrap_or("")
    }

    /// `name_namespace(uid)`, as messages call a pod.
    fn full_name(&self) -> String {
        let meta = &self.object.metadata;
        format!(
            "{}_{}({})",
            meta.name.as_deref().unwrap_or(""),
            meta.namespace.as_deref().unwrap_or(""),
            self.uid()
        )
    }

    fn host_network(&self) -> bool {
        self.spec().host_network == Some(true)
    }

    fn restart_policy(&self) -> &str {
        self.spec().restart_policy.as_deref().unwrap_or("Always")
    }

    fn wake_at(&mut self, at: Timestamp) {
        self.timer = Some(self.timer.map_or(at, |t| t.min(at)));
    }

    fn record(
        &mut self,
        index: Option<usize>,
        warning: bool,
        reason: impl Into<Cow<'static, str>>,
        message: String,
    ) {
        let container = index.map(|i| (self.containers[i].role, self.containers[i].name.clone()));
        self.out.push(Action::Record {
            container,
            warning,
            reason: reason.into(),
            message,
        });
    }

    fn by_name(&self, name: &str) -> Option<usize> {
        self.containers.iter().position(|c| c.name == name)
    }

    /// The container whose newest run, or the run being made, is this.
    fn by_id(&self, id: &str) -> Option<usize> {
        self.containers.iter().position(|c| c.is(id))
    }

    fn take(&mut self, event: Event, now: Timestamp) {
        match event {
            Event::Updated(object) => {
                self.object = object;
                self.update_containers();
                if self.ending.is_some() {
                    self.shrink_grace(now);
                } else {
                    // What a resize comes to is part of the news.
                    self.resize(now);
                    if self.has_news(now) {
                        self.tell(now);
                    }
                }
            }
            Event::Removed => {
                self.removed = true;
                if self.ending.is_some() {
                    self.shrink_grace(now);
                }
            }
            Event::ClockJumped { by } => self.clock_jumped(by),
            Event::Observed {
                since,
                sandboxes,
                containers,
            } => self.observe(since, sandboxes, containers, now),
            Event::VolumesReady => {
                if self.volumes == Volumes::SettingUp {
                    self.volumes = Volumes::Ready;
                }
            }
            Event::VolumesFailed {
                reason,
                message,
                others_turn,
            } => self.volumes_failed(reason, message, others_turn, now),
            Event::VolumesGone => {
                self.volumes = Volumes::Gone;
                self.moment(now, "VolumesFreed", None, None);
            }
            Event::EndpointsDropped => self.endpoints_dropped(now),
            Event::SandboxCreated { id, ips } => {
                if self.sandbox == Sandbox::Creating {
                    self.sandbox = Sandbox::Ready { id, ips };
                    self.sandbox_made_at = Some(now);
                    if self.ending.is_none() {
                        self.tell_sandbox_ready(now);
                    }
                } else {
                    self.old_sandboxes.insert(id, Old::Emptying);
                }
            }
            Event::SandboxFailed { message } => {
                if self.ending.is_none() {
                    self.record(
                        None,
                        true,
                        "FailedCreatePodSandBox",
                        format!("Failed to create pod sandbox: {message}"),
                    );
                }
                self.want_sandbox_again(now);
            }
            Event::ResourceHealth(health) => {
                let is_news = self.resource_health != health;
                self.resource_health = health;
                // Before anything runs it is shown with what comes next.
                if is_news && self.containers.iter().any(|c| c.run.is_some()) {
                    self.tell(now);
                }
            }
            Event::ClaimsFailed { message } => {
                if self.ending.is_none() {
                    let message = format!("Failed to prepare dynamic resources: {message}");
                    self.record(None, true, "FailedPrepareDynamicResources", message);
                }
                self.want_sandbox_again(now);
            }
            Event::SandboxStopped { id } => self.sandbox_stopped(id, now),
            Event::SandboxRemoved { id } => {
                self.old_sandboxes.remove(&id);
                self.removing.retain(|r| *r != id);
            }
            Event::ImageInspected { container, present } => self.image_inspected(&container, present, now),
            Event::ImagePulled { container, result } => self.image_pulled(&container, result, now),
            Event::ContainerCreated { container, id } => self.container_created(&container, id),
            Event::ContainerCreateFailed {
                container,
                reason,
                message,
            } => self.create_failed(&container, reason, message, now),
            Event::ContainerStarted {
                container,
                id,
                at,
                image,
                image_id,
            } => self.container_started(&container, id, at, (image, image_id), now),
            Event::ContainerStartFailed {
                container,
                id,
                message,
            } => self.start_failed(&container, id, message, now),
            Event::ContainerExited { id, exit } => self.container_exited(&id, exit, now),
            Event::ContainerRemoved { id } => self.removing.retain(|r| *r != id),
            Event::StopFailed { id, .. } => self.stop_failed(&id, now),
            Event::HookDone { id, hook, result } => match hook {
                Hook::PostStart => self.post_start_done(&id, result, now),
                Hook::PreStop => self.pre_stop_done(&id, result, now),
            },
            Event::Probed { id, kind, answer } => self.probed(&id, kind, answer, now),
            Event::Evict(eviction) => {
                self.eviction.get_or_insert((eviction, now));
                if self.ending.is_some() {
                    self.shrink_grace(now);
                }
            }
            Event::ResizeAdmitted(answer) => self.resize_admitted(answer, now),
            Event::Resized { done, result } => self.resized(&done, result, now),
            Event::Reject(rejection) => self.reject(rejection, now),
            Event::FinalDeleteFailed => self.final_delete_failed(now),
            Event::Timer => {}
        }
    }

    fn want_sandbox_again(&mut self, now: Timestamp) {
        if self.sandbox == Sandbox::Creating {
            self.sandbox = Sandbox::Wanted {
                not_before: Some(now + sandbox::RETRY),
            };
        }
    }

    fn volumes_failed(&mut self, reason: &'static str, message: String, others_turn: bool, now: Timestamp) {
        if self.volumes != Volumes::SettingUp {
            return;
        }
        if self.ending.is_none() {
            self.record(None, true, reason, message);
        }
        let wait = self.volume_wait.max(if others_turn {
            OTHERS_TURN
        } else {
            SignedDuration::ZERO
        });
        self.volumes = Volumes::Wanted {
            not_before: Some(now + wait),
        };
        self.volume_wait = (self.volume_wait * 2).min(VOLUME_RETRY.1);
    }
}
