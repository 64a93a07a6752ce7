//! Which pods are deleted when a workload is scaled down: those that its controller deletes, by the same code
//! ([`knarr_api::scale_down`]; SPEC B2, B3).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::kinds::pod::is_active;
use knarr_api::scale_down::{BURST_REPLICAS, Policy, ScaleDown, Topology};
use knarr_api::{Object, Shared, k8s_openapi};

use super::{PodMessage, Snapshot, controller, full_name};
use crate::pod_info::node_name;

/// A workload.
#[derive(Clone, Copy)]
pub(super) struct Workload<'a> {
    pub kind: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
}

/// The workloads whose annotation is the scale-down policy: by kind, namespace and name.
pub(super) type Policies = BTreeMap<(String, String, String), Policy>;

/// Notes the policy of a workload's annotation, if it has one that is known.
pub(super) fn add_policy(policies: &mut Policies, object: &Object) {
    let kind = object.kind().kind();
    if matches!(kind, "Deployment" | "ReplicaSet" | "ReplicationController")
        && let Some(Ok(policy)) = Policy::annotated(object.metadata())
    {
        let (namespace, name) = (object.namespace().to_string(), object.name().to_string());
        policies.insert((kind.to_string(), namespace, name), policy);
    }
}

impl Snapshot {
    /// The pods that count as replicas of the workload.
    pub(super) fn active_pods(&self, of: Workload<'_>) -> Vec<Shared<Pod>> {
        let pods = self.pods.values().filter(|pod| is_active(pod));
        let mut pods: Vec<Shared<Pod>> = pods
            .filter(|pod| self.belongs(pod, of.kind, of.namespace, of.name))
            .cloned()
            .collect();
        // As in the controllers' caches: the order decides between pods that are equal in everything else.
        pods.sort_by(|a, b| a.object().name().cmp(b.object().name()));
        pods
    }

    /// Deletes pods until there are `replicas`, as often as the controller would sync.
    pub(super) fn scale_down(&mut self, of: Workload<'_>, replicas: usize) {
        loop {
            let pods = self.active_pods(of);
            let number = pods.len().saturating_sub(replicas).min(BURST_REPLICAS);
            if number == 0 {
                return;
            }
            for pod in self.first_deleted(of, &pods, number) {
                let node = node_name(&pod);
                let words = if node.is_empty() {
                    "it is deleted by the scale-down".to_string()
                } else {
                    format!("it is deleted by the scale-down; it was on {node}")
                };
                self.result.gone.push(PodMessage {
                    pod: full_name(pod.object()),
                    words,
                });
                self.remove(&pod);
            }
        }
    }

    /// The pods that the controller of the workload deletes in one sync.
    fn first_deleted(&self, of: Workload<'_>, pods: &[Shared<Pod>], number: usize) -> Vec<Shared<Pod>> {
        if of.kind == "StatefulSet" {
            let mut by_ordinal = pods.to_vec();
            by_ordinal.sort_by_key(|pod| Reverse(ordinal(pod)));
            by_ordinal.truncate(number);
            return by_ordinal;
        }
        let scale_down = ScaleDown {
            pods,
            number,
            related_by_node: self.related_by_node(of),
            now: self.taken,
        };
        let policy = self.policy(of, pods);
        let by_spread = policy == Policy::Spread && scale_down.depends_on_spread();
        let topology = by_spread.then(|| Topology {
            nodes: self.nodes.values().cloned().collect(),
            pods: self.pods_in(of.namespace),
        });
        scale_down
            .choose(topology.as_ref())
            .into_iter()
            .cloned()
            .collect()
    }

    fn pods_in(&self, namespace: &str) -> Vec<Shared<Pod>> {
        let pods = self
            .pods
            .values()
            .filter(|pod| pod.object().namespace() == namespace);
        pods.cloned().collect()
    }

    /// The active pods on each node, of this workload and of the ReplicaSets with the same controller. Jobs compare no nodes.
    fn related_by_node(&self, of: Workload<'_>) -> BTreeMap<String, usize> {
        let mut related_by_node = BTreeMap::new();
        if of.kind == "Job" {
            return related_by_node;
        }
        let owner = self.owners.get(&(of.namespace.to_string(), of.name.to_string()));
        let related = match owner.filter(|_| of.kind == "ReplicaSet") {
            Some(owner) => self.active_pods(Workload {
                kind: &owner.kind,
                namespace: of.namespace,
                name: &owner.name,
            }),
            None => self.active_pods(of),
        };
        for pod in related {
            *related_by_node.entry(node_name(&pod).to_string()).or_default() += 1;
        }
        related_by_node
    }

    /// The policy that decides on these pods. For a Deployment it is that of its ReplicaSet. Several ReplicaSets have pods only during a
    /// rollout: then the pods of all are chosen from together, by the policy of the Deployment.
    fn policy(&self, of: Workload<'_>, pods: &[Shared<Pod>]) -> Policy {
        if of.kind == "Job" {
            return Policy::Default;
        }
        let owners = pods
            .iter()
            .filter_map(|p| controller(p.metadata.owner_references.as_ref()));
        let mut owners = owners.map(|o| (o.kind.as_str(), o.name.as_str()));
        let (kind, name) = match owners.next() {
            Some(owner) if owners.all(|other| other == owner) => owner,
            Some(_) | None => (of.kind, of.name),
        };
        let key = (kind.to_string(), of.namespace.to_string(), name.to_string());
        self.policies.get(&key).copied().unwrap_or(self.scale_down_policy)
    }
}

/// The ordinal of a StatefulSet's pod.
fn ordinal(pod: &Shared<Pod>) -> Option<u64> {
    let name = pod.object().name();
    name.rsplit_once('-').and_then(|(_, n)| n.parse().ok())
}
