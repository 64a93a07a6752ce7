//! Whether the replacements of moved pods are Ready, from the pods that are there: the next wave waits for them.
//!
//! A workload has recovered when it has as many pods, and as many Ready ones, as before the wave (or as its owner wants
//! now, if those are fewer), and none of its new pods is unready. Nothing else is evicted while it has not: a replacement
//! that fails or stays Pending ends the policy's moves, so that an error cannot end all pods one after the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::kinds::pod::surge_first::WINDOW;
use knarr_api::kinds::pod::{is_ready, is_terminal};
use knarr_api::{Object, k8s_openapi};
use knarr_apimachinery::ids::PodUid;
use knarr_apimachinery::time::seconds;

use super::kinds::RecentMove;
use crate::workload::{Owners, Workload};

/// How long a replacement may take until it is Ready, once the evicted pod has terminated.
const REPLACEMENT_TIMEOUT: SignedDuration = SignedDuration::from_mins(10);
/// A pod that is not terminating so long after its eviction was recorded was not evicted: the controller was stopped in between.
const EVICTION_TIMEOUT: SignedDuration = SignedDuration::from_mins(1);

/// How long before the end of its window the surge-first eviction of a pod is no longer requested: at its end the API server would evict
/// the pod without a replacement, also if the servers' clocks differ.
const SURGE_MARGIN: SignedDuration = SignedDuration::from_mins(1);
/// How long it is requested.
const SURGE_TIMEOUT: SignedDuration = SignedDuration::from_secs(WINDOW.as_secs() - SURGE_MARGIN.as_secs());

/// What is known of a pod.
#[derive(Clone, Copy, Debug)]
struct PodState {
    created: Option<Timestamp>,
    /// When its grace period ends, if it is terminating.
    deleted: Option<Timestamp>,
    is_ready: bool,
    is_terminal: bool,
    has_failed: bool,
}

impl PodState {
    fn of(pod: &Pod) -> Self {
        PodState {
            created: pod.metadata.creation_timestamp.as_ref().map(|t| t.0),
            deleted: pod.metadata.deletion_timestamp.as_ref().map(|t| t.0),
            is_ready: is_ready(pod),
            is_terminal: is_terminal(pod),
            has_failed: pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Failed"),
        }
    }

    /// Whether it counts as a replica.
    fn is_active(&self) -> bool {
        self.deleted.is_none() && !self.is_terminal
    }
}

/// How many pods the owner of a workload wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Desired {
    Pods(usize),
    /// The owner was deleted.
    None,
    /// An owner of another kind, such as a Job.
    Unknown,
}

/// The pods of all workloads.
#[derive(Debug, Default)]
pub(super) struct Workloads {
    pods: BTreeMap<Workload, Vec<PodState>>,
    by_uid: BTreeMap<PodUid, PodState>,
    desired: BTreeMap<Workload, usize>,
}

/// How far a move is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Replaced,
    Waiting,
    /// The pod was not evicted.
    NotEvicted,
    /// No further pod is to be evicted, and why.
    Failed(String),
}

impl Workloads {
    pub fn of(objects: &[Arc<Object>]) -> Self {
        let mut all = Workloads::default();
        let mut owners = Owners::default();
        let count = |replicas: Option<i32>| usize::try_from(replicas.unwrap_or(1)).unwrap_or(0);
        for object in objects {
            let (namespace, name) = (object.namespace(), object.name());
            let mut want = |kind: &str, name: &str, pods: usize| {
                let workload = Workload {
                    namespace: namespace.to_string(),
                    kind: kind.to_string(),
                    name: name.to_string(),
                };
                *all.desired.entry(workload).or_default() += pods;
            };
            if let Some(of) = object.get::<ReplicaSet>() {
                let replicas = count(of.spec.as_ref().and_then(|s| s.replicas));
                match owners.add(namespace, name, of) {
                    Some(owner) => want(&owner.kind, &owner.name, replicas),
                    None => want("ReplicaSet", name, replicas),
                }
            } else if let Some(of) = object.get::<StatefulSet>() {
                let replicas = count(of.spec.as_ref().and_then(|s| s.replicas));
                want("StatefulSet", name, replicas);
            } else if let Some(of) = object.get::<ReplicationController>() {
                let replicas = count(of.spec.as_ref().and_then(|s| s.replicas));
                want("ReplicationController", name, replicas);
            }
        }
        for object in objects {
            let Some(pod) = object.get::<Pod>() else { continue };
            let state = PodState::of(pod);
            all.by_uid.insert(object.uid().into(), state);
            if let Some(workload) = owners.workload(pod) {
                all.pods.entry(workload).or_default().push(state);
            }
        }
        all
    }

    /// Whether there is the pod, and it was not evicted yet.
    pub fn is_live(&self, uid: &str) -> bool {
        let pod = self.by_uid.get(uid);
        pod.is_some_and(|pod| pod.deleted.is_none() && !pod.is_terminal)
    }

    fn of_workload(&self, workload: &Workload) -> &[PodState] {
        self.pods.get(workload).map_or(&[], Vec::as_slice)
    }

    /// The pods that count as replicas, and how many of them are Ready.
    pub fn counts(&self, workload: &Workload) -> (usize, usize) {
        let active = self.of_workload(workload).iter().filter(|p| p.is_active());
        active.fold((0, 0), |(pods, ready), pod| {
            (pods + 1, ready + usize::from(pod.is_ready))
        })
    }

    fn desired(&self, workload: &Workload) -> Desired {
        match self.desired.get(workload) {
            Some(pods) => Desired::Pods(*pods),
            None => match workload.kind.as_str() {
                "Deployment" | "ReplicaSet" | "StatefulSet" | "ReplicationController" => Desired::None,
                _ => Desired::Unknown,
            },
        }
    }

    /// How far the move is; `moved` is how many pods of its workload are waited for.
    pub fn progress(&self, of: &RecentMove, moved: usize, now: Timestamp) -> Progress {
        let victim = self.by_uid.get(of.uid.as_str()).filter(|pod| !pod.is_terminal);
        if victim.is_some_and(|pod| pod.deleted.is_none()) {
            let since = now.duration_since(of.time.0);
            return if of.surging && since > SURGE_TIMEOUT {
                Progress::Failed(format!(
                    "pod {} of {} was not evicted: it is not replaced after {} minutes",
                    of.pod,
                    of.workload(),
                    SURGE_TIMEOUT.as_mins(),
                ))
            } else if !of.surging && since > EVICTION_TIMEOUT {
                Progress::NotEvicted
            } else {
                Progress::Waiting
            };
        }
        let workload = of.workload();
        let pods = self.of_workload(&workload);
        // creationTimestamp has whole seconds.
        let since = seconds(of.time.0).0;
        let fresh = || {
            pods.iter()
                .filter(move |p| p.created.is_some_and(|at| at >= since))
        };
        let unready = fresh().filter(|p| p.is_active() && !p.is_ready).count();
        let (active, ready) = self.counts(&workload);
        let has_recovered = match self.desired(&workload) {
            Desired::None => true,
            Desired::Pods(wanted) => {
                active >= of.pods_before.min(wanted) && ready >= of.ready_before.min(wanted) && unready == 0
            }
            Desired::Unknown => {
                let replaced = fresh().filter(|p| p.is_active() && p.is_ready).count();
                (replaced >= moved && unready == 0) || (active == 0 && victim.is_none())
            }
        };
        if has_recovered {
            return Progress::Replaced;
        }
        if fresh().any(|pod| pod.has_failed) {
            return Progress::Failed(format!("the replacement of pod {} of {workload} failed", of.pod));
        }
        let terminated = victim.and_then(|pod| pod.deleted);
        let begun = terminated.map_or(of.time.0, |at| at.max(of.time.0));
        if now.duration_since(begun) > REPLACEMENT_TIMEOUT {
            return Progress::Failed(format!(
                "the replacement of pod {} of {workload} is not Ready after {} minutes: {ready} of {active} pods are Ready, {} were before",
                of.pod,
                REPLACEMENT_TIMEOUT.as_mins(),
                of.ready_before,
            ));
        }
        Progress::Waiting
    }
}
