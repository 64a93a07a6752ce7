//! The sandboxes and containers that the container runtime lists, with the fields that decisions need.
//!
//! Observations only, without operations. Ids are the runtime's.

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::{ContainerId, PodUid, SandboxId};

use crate::self_fencing::TerminationMode;

/// The pod of a sandbox or a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodRef {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
}

/// A pod sandbox: the namespaces and the address that a pod's containers share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sandbox {
    pub id: SandboxId,
    pub pod: PodRef,
    /// Incremented with each new sandbox of a pod.
    pub attempt: u32,
    /// Its processes run and its network is set up (`SANDBOX_READY`).
    pub ready: bool,
    pub created_at: Timestamp,
    /// Empty for pods in the host's network, and for sandboxes that are not ready.
    pub ips: Vec<String>,
}

/// A container as the runtime lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    pub id: ContainerId,
    pub sandbox_id: SandboxId,
    pub pod: PodRef,
    pub name: String,
    /// The restart count that it was created with.
    pub attempt: u32,
    /// The hash of the definition that it was created from.
    pub hash: String,
    /// How its node terminates it when it fences itself ([`crate::self_fencing`]), by its annotation; `None`: not at all.
    pub self_fenced: Option<TerminationMode>,
    pub state: ContainerState,
    pub created_at: Timestamp,
    pub image: String,
    pub image_id: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerState {
    Created,
    Running { started_at: Timestamp },
    Exited(Exit),
    Unknown,
}

/// How a container exited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    pub code: i32,
    /// `Completed`, `Error`, `OOMKilled`, `StartError`, … as the runtime says.
    pub reason: String,
    /// The termination message, from its file or the log, or the runtime's message.
    pub message: String,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
}
