//! One container of a pod, over all of its runs. Each part of its state is a machine that owns its fields.

mod back_off;
mod probes;
mod restart;
mod role;
mod runs;
mod stop;
mod waiting;

use std::borrow::Cow;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::ContainerId;

use super::allocation::Allocation;
use super::clock_jump::move_by;
use crate::probe::Kind;
use crate::runtime::Exit;

use back_off::ContainerBackOff;
pub(super) use probes::Probes;
use restart::RestartState;
pub use role::Role;
use runs::Runs;
pub(super) use runs::{Run, RunState, container_status_unknown, exit_unknown, terminated};
pub(super) use stop::{ContainerStop, Stage, StopReason};
pub(super) use waiting::{Waiting, WaitingReason};

/// The operation in progress for a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Operation {
    #[default]
    None,
    Inspecting,
    Pulling,
    Creating {
        attempt: u32,
    },
    /// Found created and not started after a restart of the kubelet; it has to be started.
    Created(Starting),
    /// Its start was requested from the runtime.
    Starting(Starting),
    /// The process runs; the container counts as running once the postStart hook is done.
    PostStart {
        run: Run,
    },
    Stopping(ContainerStop),
}

impl Operation {
    /// The container that the operation is about, unless that is the latest run.
    fn id(&self) -> Option<&ContainerId> {
        match self {
            Operation::Created(starting) | Operation::Starting(starting) => Some(&starting.id),
            Operation::PostStart { run } => run.id.as_ref(),
            _ => None,
        }
    }
}

/// The start of a container that the runtime has created.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Starting {
    pub(super) id: ContainerId,
    pub(super) attempt: u32,
    /// The exit of the run, if it was reported before the start.
    pub(super) exit: Option<Exit>,
    /// Until when a request of an earlier kubelet may start it, if it was found created.
    pub(super) in_flight_until: Option<Timestamp>,
}

/// A container of the spec.
#[derive(Clone, Debug)]
pub(super) struct Container {
    pub(super) name: String,
    pub(super) role: Role,
    /// [`definition_hash`] of the spec.
    hash: String,
    pub(super) runs: Runs,
    pub(super) operation: Operation,
    /// Reported as `state.waiting` in place of the latest run's termination, if it will be retried.
    pub(super) waiting: Option<Waiting>,
    pub(super) back_off: ContainerBackOff,
    pub(super) restart: RestartState,
    /// The run that the node stops because it is cut off from the API (SPEC B4).
    pub(super) self_fenced: Option<ContainerId>,
    pub(super) probes: Probes,
    pub(super) resources: Allocation,
}

impl Container {
    pub(super) fn new(name: String, role: Role, hash: String) -> Self {
        Container {
            name,
            role,
            hash,
            runs: Runs::default(),
            operation: Operation::None,
            waiting: None,
            back_off: ContainerBackOff::default(),
            restart: RestartState::default(),
            self_fenced: None,
            probes: Probes::default(),
            resources: Allocation::default(),
        }
    }

    pub(super) fn hash(&self) -> &str {
        &self.hash
    }

    /// The definition changed.
    pub(super) fn redefine(&mut self, hash: String) {
        if self.hash != hash {
            self.hash = hash;
            self.back_off.reset();
        }
    }

    /// Whether this is the id of its latest run, or of the run that is being created.
    pub(super) fn is(&self, id: &ContainerId) -> bool {
        self.run_id() == Some(id) || self.operation.id() == Some(id)
    }

    /// The id of its latest run.
    pub(super) fn run_id(&self) -> Option<&ContainerId> {
        self.runs.latest_id()
    }

    /// When its latest run started, if that is running.
    pub(super) fn running_since(&self) -> Option<Timestamp> {
        self.runs.running_since()
    }

    pub(super) fn is_running(&self) -> bool {
        self.running_since().is_some()
    }

    /// Whether it runs and no operation is in progress.
    pub(super) fn runs_undisturbed(&self) -> bool {
        self.is_running() && self.is_idle()
    }

    /// Whether no operation is in progress.
    pub(super) fn is_idle(&self) -> bool {
        self.operation == Operation::None
    }

    /// The termination of its latest run, if that has exited.
    pub(super) fn exited(&self) -> Option<&core::ContainerStateTerminated> {
        self.runs.exited()
    }

    /// Whether processes of it may run, or are about to be started.
    pub(super) fn has_processes(&self) -> bool {
        let starts = matches!(
            self.operation,
            Operation::Starting { .. } | Operation::PostStart { .. }
        );
        self.is_running() || starts
    }

    /// Whether processes of it may run, or a request to the runtime is in flight after which they may.
    pub(super) fn may_get_processes(&self) -> bool {
        self.has_processes() || matches!(self.operation, Operation::Creating { .. })
    }

    /// Whether it runs, or this node stopped its latest run to restart it.
    pub(super) fn is_stopped_by_node(&self) -> bool {
        self.is_running() || self.restart.is_immediate()
    }

    /// Whether a start of the container is in progress.
    pub(super) fn is_starting(&self) -> bool {
        matches!(
            self.operation,
            Operation::Inspecting
                | Operation::Pulling
                | Operation::Creating { .. }
                | Operation::Starting { .. }
                | Operation::PostStart { .. }
        )
    }

    /// Cancels a start that has no process yet. What the runtime is requested to do already ends with its own event.
    pub(super) fn cancel_start(&mut self) {
        match std::mem::take(&mut self.operation) {
            Operation::Inspecting | Operation::Pulling => {}
            Operation::Created(starting) => self.runs.add_dead(starting.id),
            operation => self.operation = operation,
        }
    }

    /// From here on the run counts as running, or as exited if it was too short.
    pub(super) fn begin_run(&mut self, run: Run) {
        self.runs.begin(run);
        self.restart = RestartState::default();
        self.back_off.begin_run();
        self.waiting = None;
    }

    pub(super) fn wait(&mut self, reason: WaitingReason, message: impl Into<String>) {
        self.waiting = Some(Waiting::new(reason, message));
    }

    pub(super) fn waits_for(&self, reason: WaitingReason) -> bool {
        self.waiting.as_ref().is_some_and(|w| w.reason() == reason)
    }

    /// `status.containerStatuses[].started`: running, its postStart hook done, and its startup probe (if any) passed.
    pub(super) fn started(&self) -> bool {
        self.is_running() && self.probes.succeeded(Kind::Startup)
    }

    /// `status.containerStatuses[].ready`.
    pub(super) fn ready(&self) -> bool {
        match self.role {
            Role::Init => {
                self.exited().is_some_and(|t| t.exit_code == 0)
                    || self.waits_for(WaitingReason::RestartingAllContainers)
            }
            Role::Ephemeral => false,
            Role::Sidecar | Role::App => self.started() && self.probes.succeeded(Kind::Readiness),
        }
    }

    /// Whether its resources can be changed while it runs.
    pub(super) fn is_resizable(&self) -> bool {
        matches!(self.role, Role::Init | Role::Sidecar | Role::App)
    }

    pub(super) fn clock_jumped(&mut self, by: SignedDuration) {
        self.runs.clock_jumped(by);
        self.back_off.clock_jumped(by);
        self.probes.clock_jumped(by);
        match &mut self.operation {
            Operation::Stopping(stop) => stop.clock_jumped(by),
            Operation::Created(starting) | Operation::Starting(starting) => {
                if let Some(until) = &mut starting.in_flight_until {
                    move_by(until, by);
                }
            }
            _ => {}
        }
    }
}

/// Hash of the fields whose change needs a new container: name and image, as in upstream's `HashContainer`.
pub fn definition_hash(container: &core::Container) -> String {
    let image = container.image.as_deref().unwrap_or("");
    // FNV-1a, 32 bits: short, and the same everywhere.
    let hash = format!("{}\0{image}", container.name)
        .bytes()
        .fold(0x811c_9dc5_u32, |h, b| {
            (h ^ u32::from(b)).wrapping_mul(0x0100_0193)
        });
    format!("{hash:x}")
}

/// An ephemeral container is a container with fewer fields.
pub(super) fn ephemeral_as_container(e: &core::EphemeralContainer) -> core::Container {
    core::Container {
        args: e.args.clone(),
        command: e.command.clone(),
        env: e.env.clone(),
        env_from: e.env_from.clone(),
        image: e.image.clone(),
        image_pull_policy: e.image_pull_policy.clone(),
        name: e.name.clone(),
        resources: e.resources.clone(),
        security_context: e.security_context.clone(),
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        termination_message_path: e.termination_message_path.clone(),
        termination_message_policy: e.termination_message_policy.clone(),
        tty: e.tty,
        volume_devices: e.volume_devices.clone(),
        volume_mounts: e.volume_mounts.clone(),
        working_dir: e.working_dir.clone(),
        ..core::Container::default()
    }
}

/// The container of this name, whichever list it is in.
pub fn find_spec<'a>(spec: &'a core::PodSpec, name: &str) -> Option<Cow<'a, core::Container>> {
    let listed = spec.init_containers.iter().flatten().chain(&spec.containers);
    listed
        .into_iter()
        .find(|c| c.name == name)
        .map(Cow::Borrowed)
        .or_else(|| {
            let ephemeral = spec.ephemeral_containers.iter().flatten();
            ephemeral
                .into_iter()
                .find(|c| c.name == name)
                .map(|c| Cow::Owned(ephemeral_as_container(c)))
        })
}

/// The container's status in the API.
pub(super) fn status_of<'a>(
    status: &'a core::PodStatus,
    container: &Container,
) -> Option<&'a core::ContainerStatus> {
    let list = match container.role {
        Role::Init | Role::Sidecar => &status.init_container_statuses,
        Role::App => &status.container_statuses,
        Role::Ephemeral => &status.ephemeral_container_statuses,
    };
    list.iter().flatten().find(|s| s.name == container.name)
}
