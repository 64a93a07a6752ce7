//! What each [`Change`](super::Change) does to the snapshot, before anything is scheduled again. How a workload is scaled down is in
//! `scale_down.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use knarr_api::kinds::pod::{HARD, PREEMPTION_BUDGETS, has_hard_budgets, is_mirror, is_terminal};
use knarr_api::kinds::template::deep_copy;
use knarr_api::registry::Registered;
use knarr_api::well_known::ZONE;
use knarr_api::{Object, Shared, k8s_openapi};
use knarr_apimachinery::ids::{NodeName, PodUid};

use super::scale_down::Workload;
use super::{Error, PodMessage, Snapshot, controller, full_name};
use crate::pod_info::node_name;

impl Snapshot {
    pub(super) fn drain(&mut self, name: &NodeName) -> Result<(), Error> {
        let Some(node) = self.nodes.get(name) else {
            return Err(Error::NotFound(format!("node {name}")));
        };
        let mut cordoned: Node = node.deep_copy();
        cordoned.spec.get_or_insert_default().unschedulable = Some(true);
        let cordoned = Object::from_typed(Node::kind_of(), cordoned.into_object());
        if let Ok(cordoned) = Shared::new(Arc::new(cordoned)) {
            self.scheduler.node_changed(name, Some(cordoned), self.now);
        }
        for pod in self.on(name) {
            let owner = controller(pod.metadata.owner_references.as_ref());
            let stays = owner.is_some_and(|o| o.kind == "DaemonSet") || is_mirror(&pod);
            if stays {
                continue;
            }
            if self.scheduler.cluster().forbids_eviction(&pod) {
                self.result.blocked.push(PodMessage {
                    pod: full_name(pod.object()),
                    words: "its disruption budget allows no eviction".into(),
                });
                continue;
            }
            self.replace(&pod, "it is evicted");
        }
        Ok(())
    }

    pub(super) fn lose_zone(&mut self, zone: &str) -> Result<(), Error> {
        let in_zone = |node: &&Shared<Node>| {
            let labels = node.metadata.labels.as_ref();
            labels.and_then(|l| l.get(ZONE)).map(String::as_str) == Some(zone)
        };
        let lost = self.nodes.values().filter(in_zone);
        let lost: Vec<NodeName> = lost.map(|n| n.object().name().into()).collect();
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

    /// A pod that is not there any more is passed over: it was preempted, or the eviction would not find it.
    pub(super) fn evict(&mut self, waves: &[Vec<PodUid>]) -> Result<(), Error> {
        let mut replacements: BTreeMap<&str, PodUid> = BTreeMap::new();
        for wave in waves {
            for uid in wave {
                let present = replacements.get(uid.as_str()).unwrap_or(uid);
                let Some(pod) = self.pods.get(present).cloned() else {
                    continue;
                };
                if is_terminal(&pod) {
                    self.remove(&pod);
                    self.result.gone.push(PodMessage {
                        pod: full_name(pod.object()),
                        words: "it has finished; it is deleted".into(),
                    });
                } else if let Some(replacement) = self.replace(&pod, "it is evicted") {
                    replacements.insert(uid, replacement);
                }
            }
            self.settle()?;
        }
        Ok(())
    }

    /// Whether the workload owns the pod, itself or through a ReplicaSet.
    pub(super) fn belongs(&self, pod: &Pod, kind: &str, namespace: &str, name: &str) -> bool {
        let is = |owner: &OwnerReference| owner.kind == kind && owner.name == name;
        let Some(owner) = controller(pod.metadata.owner_references.as_ref()) else {
            return false;
        };
        let above = self.owners.get(&(namespace.to_string(), owner.name.clone()));
        pod.metadata.namespace.as_deref() == Some(namespace)
            && (is(owner) || (owner.kind == "ReplicaSet" && above.is_some_and(is)))
    }

    pub(super) fn scale(
        &mut self,
        kind: &str,
        namespace: &str,
        name: &str,
        replicas: usize,
    ) -> Result<(), Error> {
        let workload = Workload {
            kind,
            namespace,
            name,
        };
        let pods = self.active_pods(workload);
        let example = match pods.last() {
            Some(pod) => pod.deep_copy(),
            None => self
                .first_pod(kind, namespace, name)
                .ok_or_else(|| Error::NoWorkload(format!("{kind} {namespace}/{name}")))?,
        };
        self.scale_down(workload, replicas);
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
                self.replaces.insert(made.object().uid().into(), (shown, None));
                self.add(made);
            }
        }
        Ok(())
    }

    /// The first pod of a workload without pods.
    fn first_pod(&self, kind: &str, namespace: &str, name: &str) -> Option<Pod> {
        let is = |(k, ns, n): &&(String, String, String)| k == kind && ns == namespace && n == name;
        let (_, template) = self.templates.iter().find(|(key, _)| is(key))?;
        let template = deep_copy(template);
        let mut pod = Pod {
            metadata: template.metadata.unwrap_or_default(),
            spec: template.spec,
            status: None,
        };
        pod.metadata.namespace = Some(namespace.to_string());
        // A Deployment owns its pods through a ReplicaSet.
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
            set_budgets(&mut pod, class);
        }
        Some(pod)
    }

    pub(super) fn set_priority(&mut self, namespace: &str, name: &str, class: &str) -> Result<(), Error> {
        let Some(of) = self.classes.get(class).cloned() else {
            return Err(Error::NotFound(format!("priority class {class}")));
        };
        let pod = self.find(namespace, name)?;
        let from = Some(node_name(&pod))
            .filter(|n| !n.is_empty())
            .map(NodeName::from);
        let made = self.like(&pod, |pod| {
            let spec = pod.spec.get_or_insert_default();
            spec.priority_class_name = Some(class.to_string());
            spec.priority = of.value;
            spec.preemption_policy = of.preemption_policy.clone();
            set_budgets(pod, &of);
        });
        self.remove(&pod);
        if let Some(made) = made {
            let origin = (full_name(pod.object()), from);
            self.replaces.insert(made.object().uid().into(), origin);
            self.add(made);
        }
        Ok(())
    }
}

/// As admission does for a new pod of the class.
fn set_budgets(pod: &mut Pod, class: &PriorityClass) {
    if has_hard_budgets(class.metadata.annotations.as_ref()) {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(PREEMPTION_BUDGETS.into(), HARD.into());
    } else if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.remove(PREEMPTION_BUDGETS);
    }
}
