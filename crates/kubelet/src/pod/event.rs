//! The input of a pod's state machine.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::{ContainerId, SandboxId};

use super::{Eviction, Hook};
use crate::admission::Rejection;
use crate::probe;
use crate::runtime::{self, Exit};

/// The input of the state machine: a change of the object, a result of an action, or the time.
#[derive(Clone, Debug)]
pub enum Event {
    /// The object was changed in the API.
    Updated(Arc<core::Pod>),
    /// The object was deleted from the API.
    Removed,
    /// The wall clock was set, this much forward.
    ClockJumped {
        by: SignedDuration,
    },
    /// The sandboxes and containers of this pod that the runtime listed (PLEG's relist), in a list call that began at `since`.
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
        /// Another component or the user has to act first (a claim that is not bound, say): an immediate retry is useless.
        is_external: bool,
    },
    VolumesTornDown,
    SandboxCreated {
        id: SandboxId,
        ips: Vec<String>,
    },
    SandboxFailed {
        message: String,
    },
    /// The devices of each container, by its name, and their health (KEP 4680).
    ResourceHealth(BTreeMap<String, Vec<core::ResourceStatus>>),
    /// The sandbox was not created because the pod's ResourceClaims could not be prepared.
    ClaimsFailed {
        message: String,
    },
    /// All its processes have exited and its network is released.
    SandboxStopped {
        id: SandboxId,
    },
    SandboxRemoved {
        id: SandboxId,
    },
    ImageInspected {
        container: String,
        present: Result<bool, ActionError>,
    },
    ImagePulled {
        container: String,
        result: Result<Pulled, ActionError>,
    },
    ContainerCreated {
        container: String,
        id: ContainerId,
    },
    ContainerCreateFailed {
        container: String,
        reason: CreateFailure,
        message: String,
    },
    ContainerStarted {
        container: String,
        id: ContainerId,
        at: Timestamp,
        image: String,
        image_id: String,
    },
    ContainerStartFailed {
        container: String,
        id: ContainerId,
        message: String,
        /// The runtime still has it as created: a request of an earlier kubelet may start it.
        still_created: bool,
    },
    ContainerExited {
        id: ContainerId,
        exit: Exit,
    },
    /// The node stops this container by itself: it is cut off from the API, and the pod must not run twice (SPEC B4).
    SelfFenced {
        id: ContainerId,
    },
    ContainerRemoved {
        id: ContainerId,
    },
    /// `StopContainer` failed; the container may still run.
    StopFailed {
        id: ContainerId,
        message: String,
    },
    HookDone {
        id: ContainerId,
        hook: Hook,
        result: Result<(), ActionError>,
    },
    Probed {
        id: ContainerId,
        kind: probe::Kind,
        result: probe::ProbeResult,
    },
    /// The node terminates the pod (eviction, node shutdown, preemption); the object was not deleted in the API.
    Evict(Eviction),
    /// Admission rejected the pod: its phase becomes Failed and nothing of it runs.
    Reject(Rejection),
    /// No proxy sends new connections to the pod.
    EndpointsDropped {
        /// A Service offered it before: proxies have sent connections to it.
        was_endpoint: bool,
    },
    /// The accept queues of the listening TCP sockets in the pod's network namespace.
    AcceptQueuesRead {
        /// A connection waits in one of them; `false`, too, if they could not be read.
        has_connections: bool,
    },
    /// Whether the node admits the pod's resize.
    ResizeAdmitted(Result<(), Rejection>),
    /// The containers in `done` run with their allocated resources; without an error the pod's cgroup has its resources too.
    Resized {
        done: Vec<ContainerId>,
        result: Result<(), ActionError>,
    },
    /// The API rejected the final deletion, or the request could not be sent.
    FinalDeleteFailed,
    /// Time has passed.
    Timer,
}

/// What of a container's creation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateFailure {
    /// Its configuration (`CreateContainerConfigError`).
    Configuration,
    /// Its creation in the runtime (`CreateContainerError`).
    Creation,
}

/// Why an action failed, as the pod's events and status show it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ActionError(String);

impl ActionError {
    pub fn new(why: impl fmt::Display) -> Self {
        ActionError(why.to_string())
    }
}

/// The result of an image pull.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pulled {
    pub image_id: String,
    pub took: SignedDuration,
    /// `took`, and the time that the pull waited in the queue.
    pub with_waiting: SignedDuration,
    pub size_bytes: u64,
}
