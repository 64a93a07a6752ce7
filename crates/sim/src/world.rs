//! What is true in the simulated cluster, as nobody in it can see it: the store's pods and nodes and every process
//! on every node, at one moment.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_client::DeleteOptions;
use knarr_node::runtime::fake::End;

/// One container's processes.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub node: String,
    pub id: String,
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub container: String,
    /// When TERM was first sent.
    pub asked: Option<Timestamp>,
}

/// One pod (uid), also after it left the store.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub pod: Pod,
    pub removed: bool,
    /// Somebody has said that this node's word is not waited for: a user's force, or the deletion of its node.
    pub released: bool,
    /// Containers that ended with 0 by themselves.
    pub completed: BTreeSet<String>,
}

impl Life {
    pub fn node(&self) -> &str {
        node_of(&self.pod)
    }
}

#[derive(Default)]
pub(crate) struct World {
    pub now: Timestamp,
    /// By uid.
    pub pods: BTreeMap<String, Life>,
    pub nodes: BTreeMap<String, Node>,
    /// By node and container id.
    pub processes: BTreeMap<(String, String), Process>,
}

impl World {
    pub fn of_pod<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = &'a Process> {
        self.processes.values().filter(move |p| p.uid == uid)
    }

    pub fn is_released(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|life| life.released)
    }
}

/// What the rules are shown, after the world has taken it in.
pub(crate) enum Seen<'a> {
    PodWritten {
        uid: &'a str,
        before: Option<&'a Pod>,
        after: &'a Pod,
    },
    PodRemoved {
        uid: &'a str,
        last: &'a Pod,
    },
    Started(&'a Process),
    Ended(&'a Process, End),
    /// A component asks the API to delete a pod.
    DeleteAsked {
        by: &'a str,
        name: &'a str,
        options: &'a DeleteOptions,
    },
}

pub(crate) fn node_of(pod: &Pod) -> &str {
    let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref());
    node.unwrap_or_default()
}

pub(crate) fn phase_of(pod: &Pod) -> &str {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    phase.unwrap_or_default()
}

pub(crate) fn is_finished(pod: &Pod) -> bool {
    matches!(phase_of(pod), "Succeeded" | "Failed")
}
