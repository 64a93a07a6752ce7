//! The output of a pod's state machine.

use std::borrow::Cow;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::{ContainerId, SandboxId};

use super::Role;
use crate::probe;

/// The output of the state machine. Each action is carried out once; `→` names the event that reports its result.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// → `VolumesReady` or `VolumesFailed`.
    SetUpVolumes,
    /// → `VolumesTornDown` (the worker retries until it succeeds).
    TearDownVolumes,
    /// → `SandboxCreated` or `SandboxFailed`.
    CreateSandbox { attempt: u32 },
    /// → `SandboxStopped` (the worker retries until it succeeds).
    StopSandbox { id: SandboxId },
    /// → `SandboxRemoved` (the worker retries until it succeeds).
    RemoveSandbox { id: SandboxId },
    /// → `ImageInspected`.
    InspectImage { container: String, image: String },
    /// → `ImagePulled`.
    PullImage { container: String, image: String },
    /// → `ContainerCreated` or `ContainerCreateFailed`.
    CreateContainer {
        container: String,
        sandbox: SandboxId,
        attempt: u32,
    },
    /// → `ContainerStarted` or `ContainerStartFailed`.
    StartContainer { container: String, id: ContainerId },
    /// → `ContainerExited` or `StopFailed`. A later one with a shorter grace period replaces it.
    StopContainer { id: ContainerId, grace_seconds: i64 },
    /// → `ResizeAdmitted`: does the node have room for the resources that the pod requests now?
    AdmitResize,
    /// → `Resized`: the allocated resources are applied to the pod's cgroup and to these containers (name and id).
    Resize { containers: Vec<(String, ContainerId)> },
    /// → `ContainerRemoved` (the worker retries until it succeeds).
    RemoveContainer { id: ContainerId },
    /// → `HookDone`. The hook has no timeout of its own: the state machine cancels it when the grace period is over.
    RunHook {
        container: String,
        id: ContainerId,
        hook: Hook,
    },
    /// The container has exited: the hook is cancelled.
    CancelHook { id: ContainerId, hook: Hook },
    /// → `Probed`.
    Probe {
        container: String,
        id: ContainerId,
        kind: probe::Kind,
    },
    /// → `EndpointsDropped`, as soon as no endpoint that proxies send new connections to has the pod's address; there is no
    /// event if that does not happen within the barrier's time.
    AwaitEndpoints,
    /// → `AcceptQueuesRead`: do connections wait to be accepted in this sandbox's network namespace?
    ReadAcceptQueues { sandbox: SandboxId },
    /// The pod's termination history changed; it is written together with the next status.
    WriteTerminationHistory(String),
    /// The status changed; a newer one replaces those that are not written yet.
    WriteStatus(Box<core::PodStatus>),
    /// Once the last status is written: delete the object with grace period 0 and this pod's UID as a precondition.
    /// → `FinalDeleteFailed` if it was not deleted.
    FinalDelete,
    /// Record an event. `container` is `None` for events about the pod.
    Record {
        container: Option<(Role, String)>,
        warning: bool,
        reason: Cow<'static, str>,
        message: String,
    },
    /// Send `Timer` at this time. A newer one replaces it.
    SetTimer(Timestamp),
    /// The pod is deleted from the API and nothing of it is left on the node: its worker ends.
    Forget,
}

/// A lifecycle hook of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    PostStart,
    PreStop,
}
