//! What the container runtime is seen to hold, in the few words that decisions need.
//!
//! These are observations: nothing here can make anything happen. Ids are the runtime's own.

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;

use crate::self_fencing::Ending;

/// Whose a sandbox or a container is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodRef {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

/// A pod sandbox: the namespaces and the address that a pod's containers share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sandbox {
    pub id: String,
    pub pod: PodRef,
    /// Counts up with each new sandbox of one pod.
    pub attempt: u32,
    /// Its processes are there and its network is set up.
    pub ready: bool,
    pub created_at: Timestamp,
    /// Empty for pods in the host's network, and for sandboxes that are not ready.
    pub ips: Vec<String>,
}

/// A container as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    pub id: String,
    pub sandbox_id: String,
    pub pod: PodRef,
    pub name: String,
    /// The restart count it was made with.
    pub attempt: u32,
    /// What identifies the definition it was made from.
    pub hash: String,
    /// How its node ends it when it is cut off ([`crate::self_fencing`]), as was known when it was made; `None`: it does
    /// not.
    pub self_fenced: Option<Ending>,
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

/// How a container ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    pub code: i32,
    /// `Completed`, `Error`, `OOMKilled`, `StartError`, … as the runtime says.
    pub reason: String,
    /// What the termination message path or the log held, or the runtime's own words.
    pub message: String,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
}
