//! What a change would do to the pods of a cluster (SPEC B2): which are scheduled again and where, which would be
//! preempted, which would be unschedulable. The deciding code runs on a snapshot of its own until nothing changes any
//! more; nothing is written. A scale-down deletes the pods that the workload's controller would delete.
//!
//! A pod that is removed and has a controller is created again as its controller would create it; one without is not.
//! Volumes that are to be provisioned exist at once. Not simulated: how long pods take to terminate.

mod changes;
mod scale_down;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, PodTemplateSpec, ReplicationController, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;
use knarr_api::kinds::pod::is_terminal;
use knarr_api::kinds::template::deep_copy;
use knarr_api::registry::Registered;
use knarr_api::scale_down::Policy;
use knarr_api::{Object, Shared, k8s_openapi};
use knarr_apimachinery::ids::{NodeName, PodUid};
use serde::Serialize;

use crate::Scheduler;
use crate::pod_info::node_name;
use crate::scheduler::Action;
use crate::topology_domains;
use crate::why::{Why, why};

/// The most scheduling attempts of one simulation; one that needs more is reported as an error.
const STEPS: usize = 2_000_000;

/// The change to simulate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The node is cordoned and its pods are evicted, those of DaemonSets excepted.
    Drain { node: NodeName },
    /// All nodes of the zone are gone for good.
    LoseZone { zone: String },
    /// A workload is scaled to this many pods. `kind` is the owner of the pods or the owner of that (a Deployment).
    Scale {
        kind: String,
        namespace: String,
        name: String,
        replicas: usize,
    },
    /// The pod is created again with this PriorityClass.
    Priority {
        namespace: String,
        pod: String,
        class: String,
    },
    /// Pods are evicted, by UID: those of a wave together, the next wave when the replacements of the wave before are
    /// scheduled. A UID that is named again means the pod's replacement.
    Evict { waves: Vec<Vec<PodUid>> },
}

/// Why a change cannot be simulated.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    #[error("{0} not found")]
    NotFound(String),
    #[error("{0} not found, and no pod of it")]
    NoWorkload(String),
    #[error("the simulation does not converge: pods are still scheduled or preempted after {STEPS} attempts")]
    Unsettled,
}

/// A pod that is scheduled.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Placement {
    /// `namespace/name`; for a pod that replaces another one, the name of that one.
    pub pod: String,
    /// The node of the pod (or of the one that it replaces) before.
    pub from: Option<NodeName>,
    pub to: NodeName,
}

/// A pod that is preempted by another of higher priority.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Victim {
    pub pod: String,
    pub node: NodeName,
    /// The preemptor.
    pub by: String,
}

/// A pod and a message about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PodMessage {
    pub pod: String,
    pub words: String,
}

/// The result. All lists are sorted by pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WhatIf {
    pub placements: Vec<Placement>,
    pub victims: Vec<Victim>,
    /// Unschedulable at the end, and not before.
    pub pending: Vec<PodMessage>,
    /// Removed, and not created again.
    pub gone: Vec<PodMessage>,
    /// Not evicted by a drain.
    pub blocked: Vec<PodMessage>,
}

/// A cluster in which changes are simulated.
pub struct Snapshot {
    scheduler: Scheduler,
    /// By uid.
    pods: BTreeMap<PodUid, Shared<Pod>>,
    nodes: BTreeMap<NodeName, Shared<Node>>,
    /// The owner of a ReplicaSet: by namespace and name.
    owners: BTreeMap<(String, String), OwnerReference>,
    /// The pod templates of workloads: by kind, namespace and name.
    templates: BTreeMap<(String, String, String), PodTemplateSpec>,
    classes: BTreeMap<String, Shared<PriorityClass>>,
    /// The name and node of what a pod replaces, by UID.
    replaces: BTreeMap<PodUid, (String, Option<NodeName>)>,
    made: u64,
    /// When the objects were read.
    taken: Timestamp,
    now: Timestamp,
    /// The cluster's scale-down policy, and those of annotations.
    scale_down_policy: Policy,
    policies: scale_down::Policies,
    result: WhatIf,
    waiting: BTreeMap<PodUid, String>,
}

/// The pod template of the object, if it is a workload.
fn template(object: &Object) -> Option<PodTemplateSpec> {
    let template = if let Some(of) = object.get::<Deployment>() {
        &of.spec.as_ref()?.template
    } else if let Some(of) = object.get::<StatefulSet>() {
        &of.spec.as_ref()?.template
    } else if let Some(of) = object.get::<ReplicaSet>() {
        of.spec.as_ref()?.template.as_ref()?
    } else {
        let of = object.get::<ReplicationController>()?;
        of.spec.as_ref()?.template.as_ref()?
    };
    Some(deep_copy(template))
}

fn full_name(object: &Object) -> String {
    format!("{}/{}", object.namespace(), object.name())
}

fn controller(references: Option<&Vec<OwnerReference>>) -> Option<&OwnerReference> {
    references
        .into_iter()
        .flatten()
        .find(|o| o.controller == Some(true))
}

impl Snapshot {
    /// From a scheduler with an empty snapshot, and the objects of a cluster (from a dump or a live cluster); kinds
    /// that do not matter are skipped.
    pub fn new(scheduler: Scheduler, objects: &[Arc<Object>], now: Timestamp) -> Self {
        let mut snapshot = Snapshot {
            scheduler,
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            owners: BTreeMap::new(),
            templates: BTreeMap::new(),
            classes: BTreeMap::new(),
            replaces: BTreeMap::new(),
            made: 0,
            taken: now,
            now,
            scale_down_policy: Policy::Default,
            policies: BTreeMap::new(),
            result: WhatIf::default(),
            waiting: BTreeMap::new(),
        };
        // All that plugins read comes before the pods, whose verdicts depend on it.
        for object in objects {
            snapshot.add_related_object(object);
        }
        for object in objects {
            if let Ok(pod) = Shared::<Pod>::new(object.clone()) {
                snapshot.add(pod);
            }
        }
        snapshot
    }

    /// With the scale-down policy that the cluster's controllers have (`--scale-down-policy`).
    pub fn with_scale_down_policy(mut self, policy: Policy) -> Self {
        self.scale_down_policy = policy;
        self
    }

    fn add_related_object(&mut self, object: &Arc<Object>) {
        scale_down::add_policy(&mut self.policies, object);
        let (namespace, name) = (object.namespace(), object.name());
        let key = (namespace.to_string(), name.to_string());
        if let Some(template) = template(object) {
            let (namespace, name) = key.clone();
            self.templates
                .insert((object.kind().kind().to_string(), namespace, name), template);
        }
        if topology_domains::is_kind(object.kind()) {
            self.scheduler
                .topology_domains_changed(name, Some(object), self.now);
        } else if let Ok(node) = Shared::<Node>::new(object.clone()) {
            self.scheduler.node_changed(name, Some(node.clone()), self.now);
            self.nodes.insert(name.into(), node);
        } else if let Ok(class) = Shared::<PriorityClass>::new(object.clone()) {
            self.classes.insert(name.to_string(), class);
        } else if let Some(set) = object.get::<ReplicaSet>() {
            if let Some(owner) = controller(set.metadata.owner_references.as_ref()) {
                self.owners.insert(key, owner.clone());
            }
            self.scheduler
                .cluster_mut()
                .set_replica_set(namespace, name, Some(set));
        } else {
            if let Some(change) = crate::volumes::Change::of(None, Some(object)) {
                self.scheduler.storage_changed(&change, self.now);
                return;
            }
            if let Some(change) = crate::dynamic_resources::claims::Change::of(None, Some(object)) {
                self.scheduler.devices_changed(&change, self.now);
                return;
            }
            let cluster = self.scheduler.cluster_mut();
            if let Some(of) = object.get::<Namespace>() {
                cluster.set_namespace(name, Some(of));
            } else if let Some(of) = object.get::<Service>() {
                cluster.set_service(namespace, name, Some(of));
            } else if let Some(of) = object.get::<StatefulSet>() {
                cluster.set_stateful_set(namespace, name, Some(of));
            } else if let Some(of) = object.get::<ReplicationController>() {
                cluster.set_replication_controller(namespace, name, Some(of));
            } else if let Some(of) = object.get::<PodDisruptionBudget>() {
                cluster.set_budget(namespace, name, Some(of));
            }
        }
    }

    /// Why a pod of the cluster is on its node, or unschedulable, at present.
    pub fn why(mut self, namespace: &str, name: &str) -> Result<Why, Error> {
        let pod = self.find(namespace, name)?;
        Ok(why(&mut self.scheduler, &pod))
    }

    fn find(&self, namespace: &str, name: &str) -> Result<Shared<Pod>, Error> {
        let is = |pod: &&Shared<Pod>| pod.object().namespace() == namespace && pod.object().name() == name;
        let found = self.pods.values().find(is).cloned();
        found.ok_or_else(|| Error::NotFound(format!("pod {namespace}/{name}")))
    }

    /// Simulates a change.
    pub fn what_if(mut self, change: &Change) -> Result<WhatIf, Error> {
        // What would happen without the change is not a result of it.
        self.settle()?;
        self.result = WhatIf::default();
        let waited: Vec<PodUid> = self.waiting.keys().cloned().collect();
        match change {
            Change::Drain { node } => self.drain(node)?,
            Change::LoseZone { zone } => self.lose_zone(zone)?,
            Change::Scale {
                kind,
                namespace,
                name,
                replicas,
            } => self.scale(kind, namespace, name, *replicas)?,
            Change::Priority {
                namespace,
                pod,
                class,
            } => self.set_priority(namespace, pod, class)?,
            Change::Evict { waves } => self.evict(waves)?,
        }
        self.settle()?;
        let pending = self.waiting.iter().filter(|(uid, _)| !waited.contains(uid));
        let pending: Vec<PodMessage> = pending
            .filter_map(|(uid, words)| {
                Some(PodMessage {
                    pod: self.origin(self.pods.get(uid)?).0,
                    words: words.clone(),
                })
            })
            .collect();
        let mut result = self.result;
        result.pending = pending;
        result.placements.sort();
        result.victims.sort();
        result.pending.sort();
        result.gone.sort();
        result.blocked.sort();
        Ok(result)
    }

    /// The name and node of what the pod replaces.
    fn origin(&self, pod: &Shared<Pod>) -> (String, Option<NodeName>) {
        let replaced = self.replaces.get(pod.object().uid());
        replaced
            .cloned()
            .unwrap_or_else(|| (full_name(pod.object()), None))
    }

    fn add(&mut self, pod: Shared<Pod>) {
        let old = self.pods.insert(pod.object().uid().into(), pod.clone());
        self.scheduler.pod_changed(old.as_ref(), Some(&pod), self.now);
    }

    fn remove(&mut self, pod: &Shared<Pod>) {
        self.pods.remove(pod.object().uid());
        self.waiting.remove(pod.object().uid());
        self.scheduler.pod_changed(Some(pod), None, self.now);
    }

    /// A copy of the pod, changed and without a node. `None` if the copy is not valid.
    fn like(&mut self, pod: &Pod, change: impl FnOnce(&mut Pod)) -> Option<Shared<Pod>> {
        self.made += 1;
        let mut made = pod.deep_copy();
        made.metadata.uid = Some(format!("imagined-{}", self.made));
        made.metadata.deletion_timestamp = None;
        made.metadata.deletion_grace_period_seconds = None;
        made.status = None;
        if let Some(spec) = &mut made.spec {
            spec.node_name = None;
        }
        change(&mut made);
        let object = Object::from_typed(Pod::kind_of(), made.into_object());
        Shared::new(Arc::new(object)).ok()
    }

    /// Removes a pod and lets its controller, if it has one, create it again. Returns the new pod's UID.
    fn replace(&mut self, pod: &Shared<Pod>, why: &str) -> Option<PodUid> {
        let (name, _) = self.origin(pod);
        let from = Some(node_name(pod)).filter(|n| !n.is_empty()).map(NodeName::from);
        self.remove(pod);
        let owner = controller(pod.metadata.owner_references.as_ref());
        let comes_back = owner.is_some_and(|o| o.kind != "DaemonSet");
        let made = if comes_back { self.like(pod, |_| {}) } else { None };
        match made {
            Some(made) => {
                let uid = PodUid::from(made.object().uid());
                self.replaces.insert(uid.clone(), (name, from));
                self.add(made);
                Some(uid)
            }
            None if owner.is_some() => None,
            None => {
                self.result.gone.push(PodMessage {
                    pod: name,
                    words: format!("{why}; it has no controller and is not created again"),
                });
                None
            }
        }
    }

    fn on(&self, node: &str) -> Vec<Shared<Pod>> {
        let there = |pod: &&Shared<Pod>| node_name(pod) == node && !is_terminal(pod);
        self.pods.values().filter(there).cloned().collect()
    }

    /// Schedules until nothing changes any more.
    fn settle(&mut self) -> Result<(), Error> {
        for _ in 0..STEPS {
            match self.scheduler.schedule_one(self.now) {
                Some(action) => self.carry_out(action),
                None => match self.scheduler.next_due() {
                    Some(due) => self.now = self.now.max(due),
                    None => return Ok(()),
                },
            }
        }
        Err(Error::Unsettled)
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Bind { pod, node, .. } => {
                self.waiting.remove(pod.object().uid());
                let (name, from) = self.origin(&pod);
                self.result.placements.push(Placement {
                    pod: name,
                    from,
                    to: node.clone(),
                });
                let mut bound: Pod = pod.deep_copy();
                bound.spec.get_or_insert_default().node_name = Some(node.into());
                let bound = Object::from_typed(Pod::kind_of(), bound.into_object());
                self.scheduler.bound(&pod);
                if let Ok(bound) = Shared::new(Arc::new(bound)) {
                    self.add(bound);
                }
            }
            Action::Report { pod, message, .. } => {
                self.waiting.insert(pod.object().uid().into(), message);
            }
            Action::Preempt {
                pod,
                node,
                victims,
                message,
                ..
            } => {
                let by = self.origin(&pod).0;
                self.waiting.insert(pod.object().uid().into(), message);
                // The nomination is kept under the pod's name, so the pod has to carry it in its status.
                let mut nominated: Pod = pod.deep_copy();
                nominated.status.get_or_insert_default().nominated_node_name = Some(String::from(&node));
                let nominated = Object::from_typed(Pod::kind_of(), nominated.into_object());
                if let Ok(nominated) = Shared::new(Arc::new(nominated)) {
                    self.add(nominated);
                }
                self.scheduler.preempted(&pod, false, self.now);
                for victim in victims {
                    // Of a cross-node preemption it is another node.
                    let there = Some(node_name(&victim)).filter(|name| !name.is_empty());
                    self.result.victims.push(Victim {
                        pod: self.origin(&victim).0,
                        node: there.map_or_else(|| node.clone(), NodeName::from),
                        by: by.clone(),
                    });
                    self.replace(&victim, "it is preempted");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
