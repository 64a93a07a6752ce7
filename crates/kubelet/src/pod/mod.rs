//! The state machine of one pod on its node (upstream: `podWorkers` and `syncPod`): it takes events and the time and
//! returns actions.
//!
//! An event only changes the known state; the actions follow from the whole state ([`Pod::step`] decides everything
//! again after each event). At most one attempt of each operation is in flight, and none is forgotten: every action
//! that has a result is followed by exactly one event, also if it failed.
//!
//! Guarantees: a container never runs twice at a time (SPEC S1); nothing starts once the pod is terminating; the
//! object is deleted only after processes, sandbox and volumes are removed (T5).

mod action;
mod allocated;
mod allocation;
mod back_off;
mod barrier;
pub(crate) mod clock_jump;
mod condition;
mod container;
mod create;
mod event;
mod eviction;
mod exit;
mod object;
mod observed;
mod output;
mod phase;
mod probing;
mod removals;
mod resize;
mod restart_all;
mod restart_policy;
mod sandbox;
mod self_fencing;
mod start;
mod status;
mod stop;
mod termination;
mod termination_history;
#[cfg(test)]
mod tests;
mod volumes;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

pub use action::{Action, Hook};
pub use container::{Role, definition_hash, find_spec};
pub use event::{ActionError, CreateFailure, Event, Pulled};
pub use eviction::Eviction;
pub use phase::PodPhase;
pub(crate) use status::is_terminal;
pub use status::merge;
pub use termination_history::{
    ANNOTATION as TERMINATION_HISTORY_ANNOTATION, Termination, TerminationHistory, TimelineEntry,
};

use allocation::Allocation;
use barrier::Barrier;
use container::{Container, Operation};
use create::StartFailure;
use eviction::EvictionState;
use object::PodObject;
use output::Output;
use removals::Removals;
use resize::Resize;
use restart_all::RestartAll;
use sandbox::Sandboxes;
use status::StatusReport;
use termination::PodTermination;
use termination_history::RecordedHistory;
use volumes::Volumes;

use knarr_apimachinery::ids::ContainerId;

/// The reason of a resize that the node will never admit; others are deferred (`PodReasonInfeasible`).
pub const INFEASIBLE: &str = "Infeasible";

/// The properties of the node that a pod's state machine depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub ips: Vec<String>,
    pub resume: TerminationResume,
    /// The longest back-off before a crashed container is restarted (`crashLoopBackOff.maxContainerRestartPeriod`).
    pub longest_restart_wait: SignedDuration,
    /// How long TERM waits for the endpoint barrier at most; zero: it does not wait.
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

/// The grace period of a pod that was already terminating when this kubelet started (T4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TerminationResume {
    /// The full grace period again, with hooks: no process gets less time than its pod specifies.
    #[default]
    Full,
    /// The time left until the deletionTimestamp; hooks do not run a second time.
    Deadline,
}

/// The state machine of one pod, identified by its UID. Each part of its state is a machine that owns its fields; here
/// and in the `impl Pod` of their modules is what concerns more than one of them.
#[derive(Clone, Debug)]
pub struct Pod {
    object: PodObject,
    node: Node,
    volumes: Volumes,
    sandboxes: Sandboxes,
    removals: Removals,
    /// The containers of the spec: init, app and ephemeral ones.
    containers: Vec<Container>,
    /// The start of the probe workers' ticks, common to all containers of the pod.
    probing_since: Option<Timestamp>,
    restart_all: RestartAll,
    /// `Some` once the pod's termination has begun.
    termination: Option<PodTermination>,
    eviction: EvictionState,
    /// The endpoint barrier, which TERM waits for.
    barrier: Barrier,
    resize: Resize,
    /// The pod-level resources (`spec.resources`, KEP 2837).
    pod_level: Allocation,
    /// The health of devices, by container name.
    resource_health: BTreeMap<String, Vec<core::ResourceStatus>>,
    history: RecordedHistory,
    status: StatusReport,
    out: Output,
}

impl Pod {
    /// A pod that is assigned to this node. Containers that already run are reported by the first [`Event::Observed`];
    /// until then none is assumed to run.
    pub fn new(object: Arc<core::Pod>, node: Node) -> Self {
        let history = TerminationHistory::parse(object.metadata.annotations.as_ref());
        let mut pod = Pod {
            volumes: Volumes::default(),
            sandboxes: Sandboxes::default(),
            removals: Removals::default(),
            containers: Vec::new(),
            probing_since: None,
            restart_all: RestartAll::default(),
            termination: None,
            eviction: EvictionState::default(),
            barrier: Barrier::default(),
            resize: Resize::default(),
            pod_level: Allocation::of_pod(&object),
            resource_health: BTreeMap::new(),
            history: RecordedHistory::new(history),
            status: StatusReport::recall(object.status.as_ref()),
            out: Output::default(),
            object: PodObject::new(object),
            node,
        };
        pod.update_containers();
        pod
    }

    /// Sets the health of devices before the first step.
    pub fn note_resource_health(&mut self, health: BTreeMap<String, Vec<core::ResourceStatus>>) {
        self.resource_health = health;
    }

    pub fn object(&self) -> &Arc<core::Pod> {
        self.object.get()
    }

    /// The status as last reported.
    pub fn status(&self) -> &core::PodStatus {
        self.status.last()
    }

    /// The addresses of its sandbox, or of the node for pods in the host's network.
    pub fn ips(&self) -> &[String] {
        match self.object.host_network() {
            true => &self.node.ips,
            false => self.sandboxes.ips(),
        }
    }

    /// Whether this is the id of a container's latest run.
    pub fn is_latest_run(&self, id: &ContainerId) -> bool {
        self.containers.iter().any(|c| c.run_id() == Some(id))
    }

    /// Whether the pod's termination has begun; nothing of it starts any more.
    pub fn is_terminating(&self) -> bool {
        self.termination.is_some()
    }

    /// All containers have exited, and sandbox and volumes are removed.
    pub fn has_terminated(&self) -> bool {
        self.termination
            .as_ref()
            .is_some_and(PodTermination::has_terminated)
    }

    /// Applies an event and decides. The actions may be carried out in any order: each [`Action::RemoveContainer`] and
    /// [`Action::StopSandbox`] is safe as soon as it is returned.
    pub fn step(&mut self, event: Event, now: Timestamp) -> Vec<Action> {
        if self.triggers_sync(&event) {
            self.show_back_offs(now);
        }
        self.apply_event(event, now);
        self.mark_lost_containers();
        self.decide(now);
        self.out.take()
    }

    /// Whether upstream's kubelet would call `syncPod` for this event; containers in back-off are then reported as such.
    fn triggers_sync(&self, event: &Event) -> bool {
        // This kubelet's own write of its annotation triggers no sync.
        let others = |annotations: &Option<BTreeMap<String, String>>| -> BTreeMap<String, String> {
            let mut others = annotations.clone().unwrap_or_default();
            others.remove(TERMINATION_HISTORY_ANNOTATION);
            others
        };
        match event {
            Event::Updated(new) => {
                let (old, new) = (self.object.metadata(), &new.metadata);
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
        if self.termination.is_none() {
            self.check_termination(now);
        }
        self.drain_sandboxes(now);
        if self.termination.is_some() {
            self.terminate(now);
        } else {
            self.advance_stops(now);
            self.start(now);
            self.resize(now);
            // The last container may have failed to start.
            self.check_termination(now);
            if self.termination.is_some() {
                self.terminate(now);
            }
        }
        self.probe(now);
        self.prune();
    }

    fn record(
        &mut self,
        index: Option<usize>,
        warning: bool,
        reason: impl Into<Cow<'static, str>>,
        message: String,
    ) {
        let container = index.map(|i| &self.containers[i]);
        self.out.record(container, warning, reason, message);
    }

    fn by_name(&self, name: &str) -> Option<usize> {
        self.containers.iter().position(|c| c.name == name)
    }

    /// The container whose latest run, or the run that is being created, has this id.
    fn by_id(&self, id: &ContainerId) -> Option<usize> {
        self.containers.iter().position(|c| c.is(id))
    }

    fn apply_event(&mut self, event: Event, now: Timestamp) {
        match event {
            Event::Updated(object) => {
                self.object.update(object);
                self.update_containers();
                if self.termination.is_some() {
                    self.shrink_grace(now);
                } else {
                    // The status includes the result of a resize.
                    self.resize(now);
                    if self.status_changed(now) {
                        self.report_status(now);
                    }
                }
            }
            Event::Removed => {
                self.object.set_removed();
                if self.termination.is_some() {
                    self.shrink_grace(now);
                }
            }
            Event::ClockJumped { by } => self.clock_jumped(by),
            Event::Observed {
                since,
                sandboxes,
                containers,
            } => self.observe(since, sandboxes, containers, now),
            Event::VolumesReady => self.volumes.ready(),
            Event::VolumesFailed {
                reason,
                message,
                is_external,
            } => {
                if self.volumes.failed(is_external, now) && self.termination.is_none() {
                    self.record(None, true, reason, message);
                }
            }
            Event::VolumesTornDown => {
                self.volumes.torn_down();
                self.add_to_timeline(now, "VolumesFreed", None, None);
            }
            Event::EndpointsDropped { was_endpoint } => self.endpoints_dropped(was_endpoint, now),
            Event::AcceptQueuesRead { has_connections } => self.accept_queues_read(has_connections, now),
            Event::SandboxCreated { id, ips } => self.sandbox_created(id, ips, now),
            Event::SandboxFailed { message } => {
                let message = format!("Failed to create pod sandbox: {message}");
                self.sandbox_failed("FailedCreatePodSandBox", message, now);
            }
            Event::ResourceHealth(health) => {
                let triggers_sync = self.resource_health != health;
                self.resource_health = health;
                // Before any container runs, it is reported with the next status.
                if triggers_sync && self.containers.iter().any(|c| c.runs.latest().is_some()) {
                    self.report_status(now);
                }
            }
            Event::ClaimsFailed { message } => {
                let message = format!("Failed to prepare dynamic resources: {message}");
                self.sandbox_failed("FailedPrepareDynamicResources", message, now);
            }
            Event::SandboxStopped { id } => self.sandbox_stopped(id, now),
            Event::SandboxRemoved { id } => {
                self.sandboxes.removed(&id);
                self.removals.sandbox_removed(&id);
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
                still_created,
            } => self.start_failed(
                &container,
                StartFailure {
                    id,
                    message,
                    still_created,
                },
                now,
            ),
            Event::ContainerExited { id, exit } => self.container_exited(&id, exit, now),
            Event::SelfFenced { id } => self.stopped_by_self_fencing(&id),
            Event::ContainerRemoved { id } => self.removals.container_removed(&id),
            Event::StopFailed { id, .. } => self.stop_failed(&id, now),
            Event::HookDone { id, hook, result } => match hook {
                Hook::PostStart => self.post_start_done(&id, result, now),
                Hook::PreStop => self.pre_stop_done(&id, result, now),
            },
            Event::Probed { id, kind, result } => self.probed(&id, kind, result, now),
            Event::Evict(eviction) => {
                self.eviction.request(eviction, now);
                if self.termination.is_some() {
                    self.shrink_grace(now);
                }
            }
            Event::ResizeAdmitted(admitted) => self.resize_admitted(admitted, now),
            Event::Resized { done, result } => self.resized(&done, result, now),
            Event::Reject(rejection) => self.reject(rejection, now),
            Event::FinalDeleteFailed => {
                if let Some(termination) = &mut self.termination {
                    termination.final_delete_failed(now);
                }
            }
            Event::Timer => {}
        }
    }
}
