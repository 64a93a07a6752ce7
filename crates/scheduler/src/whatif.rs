//! What a change would do to the pods of a cluster (SPEC B2): which are placed anew and where, which would have to go,
//! which find no node. The deciding code runs on a picture of its own until nothing moves; nothing is written.
//!
//! A pod that goes and has a controller comes back as its controller would make it; one without does not come back.
//! Volumes that are to be made are there at once. What the picture leaves out: how long pods take to end.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, PodTemplateSpec, ReplicationController, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;
use knarr_api::registry::Registered;
use knarr_api::{Object, Shared, k8s_openapi};
use serde::Serialize;

use crate::Scheduler;
use crate::pod_info::{is_finished, node_name};
use crate::scheduler::Step;
use crate::why::{Why, why};

/// No picture takes more steps to settle; one that would is a fault, and is reported as one.
const STEPS: usize = 2_000_000;
/// Zones are told by this label.
const ZONE: &str = "topology.kubernetes.io/zone";
const MIRROR: &str = "kubernetes.io/config.mirror";

/// What is to be imagined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The node is cordoned and its pods are evicted, those of DaemonSets excepted.
    Drain { node: String },
    /// All nodes of the zone are gone for good.
    LoseZone { zone: String },
    /// A workload has so many pods. `kind` as in owner references: what controls the pods themselves, or what controls
    /// that (a Deployment).
    Scale {
        kind: String,
        namespace: String,
        name: String,
        replicas: usize,
    },
    /// The pod is made anew with this class.
    Priority {
        namespace: String,
        pod: String,
        class: String,
    },
}

/// Why a change cannot be imagined.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    #[error("there is no {0}")]
    NotFound(String),
    #[error("there is no {0}, nor a pod of it")]
    NoWorkload(String),
    #[error("the picture does not settle: after {STEPS} decisions pods still move")]
    Unsettled,
}

/// A pod that gets a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Placement {
    /// `namespace/name`; of a pod that comes in the place of another, that one's.
    pub pod: String,
    /// Where it (or what it replaces) was.
    pub from: Option<String>,
    pub to: String,
}

/// A pod that has to go for another of higher priority.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Victim {
    pub pod: String,
    pub node: String,
    /// For whom.
    pub by: String,
}

/// A pod and what is said about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Said {
    pub pod: String,
    pub words: String,
}

/// What comes of it. All sorted by pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WhatIf {
    pub placements: Vec<Placement>,
    pub victims: Vec<Victim>,
    /// That wait for a node at the end, and did not before.
    pub pending: Vec<Said>,
    /// That go and do not come back.
    pub gone: Vec<Said>,
    /// That a drain cannot evict.
    pub blocked: Vec<Said>,
}

/// A cluster to imagine things in.
pub struct Picture {
    scheduler: Scheduler,
    /// By uid.
    pods: BTreeMap<String, Shared<Pod>>,
    nodes: BTreeMap<String, Shared<Node>>,
    /// What controls a ReplicaSet: by namespace and name.
    owners: BTreeMap<(String, String), OwnerReference>,
    /// What workloads make their pods after: by kind, namespace and name.
    templates: BTreeMap<(String, String, String), PodTemplateSpec>,
    classes: BTreeMap<String, Shared<PriorityClass>>,
    /// The name and node of what a pod came for, by uid.
    replaces: BTreeMap<String, (String, Option<String>)>,
    made: u64,
    now: Timestamp,
    said: WhatIf,
    waiting: BTreeMap<String, String>,
}

/// What the object, if it is a workload, makes its pods after.
fn template(object: &Object) -> Option<PodTemplateSpec> {
    if let Some(of) = object.get::<Deployment>() {
        return Some(of.spec.as_ref()?.template.clone());
    }
    if let Some(of) = object.get::<StatefulSet>() {
        return Some(of.spec.as_ref()?.template.clone());
    }
    if let Some(of) = object.get::<ReplicaSet>() {
        return of.spec.as_ref()?.template.clone();
    }
    object
        .get::<ReplicationController>()?
        .spec
        .as_ref()?
        .template
        .clone()
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

impl Picture {
    /// From a scheduler that knows of nothing, and the objects of a cluster (of a dump, or of the live one); kinds that
    /// have no bearing are passed over.
    pub fn new(scheduler: Scheduler, objects: &[Arc<Object>], now: Timestamp) -> Self {
        let mut picture = Picture {
            scheduler,
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            owners: BTreeMap::new(),
            templates: BTreeMap::new(),
            classes: BTreeMap::new(),
            replaces: BTreeMap::new(),
            made: 0,
            now,
            said: WhatIf::default(),
            waiting: BTreeMap::new(),
        };
        // All that rules look at comes before the pods, whose places depend on it.
        for object in objects {
            picture.add_surroundings(object);
        }
        for object in objects {
            if let Ok(pod) = Shared::<Pod>::new(object.clone()) {
                picture.add(pod);
            }
        }
        picture
    }

    fn add_surroundings(&mut self, object: &Arc<Object>) {
        let (namespace, name) = (object.namespace(), object.name());
        let key = (namespace.to_string(), name.to_string());
        if let Some(template) = template(object) {
            let (namespace, name) = key.clone();
            self.templates
                .insert((object.kind().kind().to_string(), namespace, name), template);
        }
        if let Ok(node) = Shared::<Node>::new(object.clone()) {
            self.scheduler.node_changed(name, Some(node.clone()), self.now);
            self.nodes.insert(name.to_string(), node);
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

    /// Why a pod of the cluster is where it is, or nowhere, as things stand.
    pub fn why(mut self, namespace: &str, name: &str) -> Result<Why, Error> {
        let pod = self.find(namespace, name)?;
        Ok(why(&mut self.scheduler, &pod))
    }

    fn find(&self, namespace: &str, name: &str) -> Result<Shared<Pod>, Error> {
        let is = |pod: &&Shared<Pod>| pod.object().namespace() == namespace && pod.object().name() == name;
        let found = self.pods.values().find(is).cloned();
        found.ok_or_else(|| Error::NotFound(format!("pod {namespace}/{name}")))
    }

    /// What comes of a change.
    pub fn what_if(mut self, change: &Change) -> Result<WhatIf, Error> {
        // What would happen anyway is not the change's doing.
        self.settle()?;
        self.said = WhatIf::default();
        let waited: Vec<String> = self.waiting.keys().cloned().collect();
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
        }
        self.settle()?;
        let pending = self.waiting.iter().filter(|(uid, _)| !waited.contains(uid));
        let pending: Vec<Said> = pending
            .filter_map(|(uid, words)| {
                Some(Said {
                    pod: self.origin(self.pods.get(uid)?).0,
                    words: words.clone(),
                })
            })
            .collect();
        let mut said = self.said;
        said.pending = pending;
        said.placements.sort();
        said.victims.sort();
        said.pending.sort();
        said.gone.sort();
        said.blocked.sort();
        Ok(said)
    }

    /// The name and node of what the pod stands for.
    fn origin(&self, pod: &Shared<Pod>) -> (String, Option<String>) {
        let replaced = self.replaces.get(pod.object().uid());
        replaced
            .cloned()
            .unwrap_or_else(|| (full_name(pod.object()), None))
    }

    fn add(&mut self, pod: Shared<Pod>) {
        let old = self.pods.insert(pod.object().uid().to_string(), pod.clone());
        self.scheduler.pod_changed(old.as_ref(), Some(&pod), self.now);
    }

    fn remove(&mut self, pod: &Shared<Pod>) {
        self.pods.remove(pod.object().uid());
        self.waiting.remove(pod.object().uid());
        self.scheduler.pod_changed(Some(pod), None, self.now);
    }

    /// A pod like this one, changed and without a node. `None` where it cannot be made.
    fn like(&mut self, pod: &Pod, change: impl FnOnce(&mut Pod)) -> Option<Shared<Pod>> {
        self.made += 1;
        let mut made = pod.clone();
        made.metadata.uid = Some(format!("imagined-{}", self.made));
        made.metadata.deletion_timestamp = None;
        made.metadata.deletion_grace_period_seconds = None;
        made.status = None;
        if let Some(spec) = &mut made.spec {
            spec.node_name = None;
        }
        change(&mut made);
        let object = Object::from_typed(Pod::kind_of(), Box::new(made));
        Shared::new(Arc::new(object)).ok()
    }

    /// Takes a pod away and lets its controller, if it has one, make it again.
    fn replace(&mut self, pod: &Shared<Pod>, why: &str) {
        let (name, _) = self.origin(pod);
        let from = Some(node_name(pod).to_string()).filter(|n| !n.is_empty());
        self.remove(pod);
        let owner = controller(pod.metadata.owner_references.as_ref());
        let comes_back = owner.is_some_and(|o| o.kind != "DaemonSet");
        let made = if comes_back { self.like(pod, |_| {}) } else { None };
        match made {
            Some(made) => {
                self.replaces
                    .insert(made.object().uid().to_string(), (name, from));
                self.add(made);
            }
            None if owner.is_some() => {}
            None => self.said.gone.push(Said {
                pod: name,
                words: format!("{why}; nothing controls it, so it does not come back"),
            }),
        }
    }

    fn on(&self, node: &str) -> Vec<Shared<Pod>> {
        let there = |pod: &&Shared<Pod>| node_name(pod) == node && !is_finished(pod);
        self.pods.values().filter(there).cloned().collect()
    }

    fn drain(&mut self, name: &str) -> Result<(), Error> {
        let Some(node) = self.nodes.get(name) else {
            return Err(Error::NotFound(format!("node {name}")));
        };
        let mut cordoned: Node = (**node).clone();
        cordoned.spec.get_or_insert_default().unschedulable = Some(true);
        let cordoned = Object::from_typed(Node::kind_of(), Box::new(cordoned));
        if let Ok(cordoned) = Shared::new(Arc::new(cordoned)) {
            self.scheduler.node_changed(name, Some(cordoned), self.now);
        }
        for pod in self.on(name) {
            let owner = controller(pod.metadata.owner_references.as_ref());
            let annotations = pod.metadata.annotations.as_ref();
            let stays = owner.is_some_and(|o| o.kind == "DaemonSet")
                || annotations.is_some_and(|a| a.contains_key(MIRROR));
            if stays {
                continue;
            }
            if self.scheduler.cluster().forbids_eviction(&pod) {
                self.said.blocked.push(Said {
                    pod: full_name(pod.object()),
                    words: "its disruption budget allows no eviction".into(),
                });
                continue;
            }
            self.replace(&pod, "it is evicted");
        }
        Ok(())
    }

    fn lose_zone(&mut self, zone: &str) -> Result<(), Error> {
        let in_zone = |node: &&Shared<Node>| {
            let labels = node.metadata.labels.as_ref();
            labels.and_then(|l| l.get(ZONE)).map(String::as_str) == Some(zone)
        };
        let lost = self.nodes.values().filter(in_zone);
        let lost: Vec<String> = lost.map(|n| n.object().name().to_string()).collect();
        if lost.is_empty() {
            return Err(Error::NotFound(format!("node with {ZONE}={zone}")));
        }
        for node in &lost {
            self.scheduler.node_changed(node, None, self.now);
        }
        for node in &lost {
            for pod in self.on(node) {
                self.replace(&pod, "its node is lost");
            }
        }
        Ok(())
    }

    /// Whether the workload controls the pod, itself or through a ReplicaSet.
    fn belongs(&self, pod: &Pod, kind: &str, namespace: &str, name: &str) -> bool {
        let is = |owner: &OwnerReference| owner.kind == kind && owner.name == name;
        let Some(owner) = controller(pod.metadata.owner_references.as_ref()) else {
            return false;
        };
        let above = self.owners.get(&(namespace.to_string(), owner.name.clone()));
        pod.metadata.namespace.as_deref() == Some(namespace)
            && (is(owner) || (owner.kind == "ReplicaSet" && above.is_some_and(is)))
    }

    fn scale(&mut self, kind: &str, namespace: &str, name: &str, replicas: usize) -> Result<(), Error> {
        let mut pods: Vec<Shared<Pod>> = self
            .pods
            .values()
            .filter(|pod| self.belongs(pod, kind, namespace, name))
            .filter(|pod| pod.metadata.deletion_timestamp.is_none() && !is_finished(pod))
            .cloned()
            .collect();
        let example = match pods.last() {
            Some(pod) => (**pod).clone(),
            None => self
                .first_pod(kind, namespace, name)
                .ok_or_else(|| Error::NoWorkload(format!("{kind} {namespace}/{name}")))?,
        };
        sort_for_scale_down(kind, &mut pods);
        for pod in pods.iter().take(pods.len().saturating_sub(replicas)) {
            let node = node_name(pod);
            let words = if node.is_empty() {
                "it is one too many".to_string()
            } else {
                format!("it is one too many; it leaves {node}")
            };
            self.said.gone.push(Said {
                pod: full_name(pod.object()),
                words,
            });
            self.remove(pod);
        }
        for i in pods.len()..replicas {
            let is_stateful = kind == "StatefulSet";
            let named = if is_stateful {
                format!("{name}-{i}")
            } else {
                format!("{name}-imagined-{i}")
            };
            let shown = if is_stateful {
                format!("{namespace}/{named}")
            } else {
                format!("{namespace}/{name} (new {})", i + 1 - pods.len())
            };
            let made = self.like(&example, |pod| {
                pod.metadata.name = Some(named.clone());
            });
            if let Some(made) = made {
                self.replaces
                    .insert(made.object().uid().to_string(), (shown, None));
                self.add(made);
            }
        }
        Ok(())
    }

    /// A pod as a workload without pods would make its first.
    fn first_pod(&self, kind: &str, namespace: &str, name: &str) -> Option<Pod> {
        let is = |(k, ns, n): &&(String, String, String)| k == kind && ns == namespace && n == name;
        let (_, template) = self.templates.iter().find(|(key, _)| is(key))?;
        let mut pod = Pod {
            metadata: template.metadata.clone().unwrap_or_default(),
            spec: template.spec.clone(),
            status: None,
        };
        pod.metadata.namespace = Some(namespace.to_string());
        // A Deployment's pods are a ReplicaSet's.
        let below = self
            .owners
            .iter()
            .find(|((ns, _), owner)| ns == namespace && owner.kind == kind && owner.name == name);
        let (kind, name) = below.map_or((kind, name), |((_, set), _)| ("ReplicaSet", set));
        pod.metadata.owner_references = Some(vec![OwnerReference {
            api_version: "apps/v1".into(),
            kind: kind.to_string(),
            name: name.to_string(),
            controller: Some(true),
            ..OwnerReference::default()
        }]);
        let spec = pod.spec.get_or_insert_default();
        let class = match &spec.priority_class_name {
            Some(class) => self.classes.get(class),
            None => self.classes.values().find(|c| c.global_default == Some(true)),
        };
        if let Some(class) = class {
            spec.priority = class.value;
            spec.preemption_policy = class.preemption_policy.clone();
        }
        Some(pod)
    }

    fn set_priority(&mut self, namespace: &str, name: &str, class: &str) -> Result<(), Error> {
        let Some(of) = self.classes.get(class).cloned() else {
            return Err(Error::NotFound(format!("priority class {class}")));
        };
        let pod = self.find(namespace, name)?;
        let from = Some(node_name(&pod).to_string()).filter(|n| !n.is_empty());
        let made = self.like(&pod, |pod| {
            let spec = pod.spec.get_or_insert_default();
            spec.priority_class_name = Some(class.to_string());
            spec.priority = of.value;
            spec.preemption_policy = of.preemption_policy.clone();
        });
        self.remove(&pod);
        if let Some(made) = made {
            let origin = (full_name(pod.object()), from);
            self.replaces.insert(made.object().uid().to_string(), origin);
            self.add(made);
        }
        Ok(())
    }

    /// Decides until nothing moves any more.
    fn settle(&mut self) -> Result<(), Error> {
        for _ in 0..STEPS {
            match self.scheduler.step(self.now) {
                Some(step) => self.carry_out(step),
                None => match self.scheduler.next_due() {
                    Some(due) => self.now = self.now.max(due),
                    None => return Ok(()),
                },
            }
        }
        Err(Error::Unsettled)
    }

    fn carry_out(&mut self, step: Step) {
        match step {
            Step::Bind { pod, node, .. } => {
                self.waiting.remove(pod.object().uid());
                let (name, from) = self.origin(&pod);
                self.said.placements.push(Placement {
                    pod: name,
                    from,
                    to: node.clone(),
                });
                let mut bound: Pod = (*pod).clone();
                bound.spec.get_or_insert_default().node_name = Some(node);
                let bound = Object::from_typed(Pod::kind_of(), Box::new(bound));
                self.scheduler.bound(&pod);
                if let Ok(bound) = Shared::new(Arc::new(bound)) {
                    self.add(bound);
                }
            }
            Step::Report { pod, message, .. } => {
                self.waiting.insert(pod.object().uid().to_string(), message);
            }
            Step::Preempt {
                pod,
                node,
                victims,
                message,
                ..
            } => {
                let by = self.origin(&pod).0;
                self.waiting.insert(pod.object().uid().to_string(), message);
                // The room is held for it under its own name, so it has to carry the nomination.
                let mut nominated: Pod = (*pod).clone();
                nominated.status.get_or_insert_default().nominated_node_name = Some(node.clone());
                let nominated = Object::from_typed(Pod::kind_of(), Box::new(nominated));
                if let Ok(nominated) = Shared::new(Arc::new(nominated)) {
                    self.add(nominated);
                }
                self.scheduler.preempted(&pod, false, self.now);
                for victim in victims {
                    self.said.victims.push(Victim {
                        pod: self.origin(&victim).0,
                        node: node.clone(),
                        by: by.clone(),
                    });
                    self.replace(&victim, "it has to go");
                }
            }
        }
    }
}

/// Those that their controller takes first come first: the highest ordinals of a StatefulSet; else pods without a node,
/// then unready ones, then cheap ones, then those that share their node with most others of the set, then the newest.
fn sort_for_scale_down(kind: &str, pods: &mut [Shared<Pod>]) {
    if kind == "StatefulSet" {
        let ordinal = |pod: &Shared<Pod>| {
            let name = pod.object().name();
            name.rsplit_once('-').and_then(|(_, n)| n.parse::<u64>().ok())
        };
        pods.sort_by_key(|pod| std::cmp::Reverse(ordinal(pod)));
        return;
    }
    let mut on: BTreeMap<String, usize> = BTreeMap::new();
    for pod in pods.iter() {
        *on.entry(node_name(pod).to_string()).or_default() += 1;
    }
    pods.sort_by_cached_key(|pod| {
        let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
        let is_ready = conditions
            .into_iter()
            .any(|c| c.type_ == "Ready" && c.status == "True");
        let annotations = pod.metadata.annotations.as_ref();
        let cost = annotations.and_then(|a| a.get("controller.kubernetes.io/pod-deletion-cost"));
        let cost: i32 = cost.and_then(|c| c.parse().ok()).unwrap_or(0);
        let shared = on.get(node_name(pod)).copied().unwrap_or(0);
        let created = pod.metadata.creation_timestamp.as_ref().map(|t| t.0);
        (
            !node_name(pod).is_empty(),
            is_ready,
            cost,
            std::cmp::Reverse(shared),
            std::cmp::Reverse(created),
        )
    });
}

#[cfg(test)]
mod tests;
