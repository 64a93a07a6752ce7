//! Sets taints by a node's conditions, for the scheduler and [`super::eviction`]; and marks the pods of an unreachable node as
//! not ready, all at once.
//!
//! NoExecute taints are added by [`super::health`], at a limited rate; here they are only removed, or changed with the condition.
//!
//! The cache of nodes may be older than that of pods: a node is read live before its pods are marked, unless it has just been written.
//! A node that reports again would otherwise lose the readiness of its pods each time that its kubelet restores it.

use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::well_known::{NOT_READY, UNSCHEDULABLE};
use knarr_api::{Kind, ObjectKey, Shared};
use knarr_apimachinery::time::seconds;

use super::{NO_EXECUTE, UNREACHABLE, condition};
use crate::action::{Action, LiveCheck, reference};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::pod;

const NO_SCHEDULE: &str = "NoSchedule";

/// Condition, status, and the taint for it.
const BY_CONDITION: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    (
        "NetworkUnavailable",
        "True",
        "node.kubernetes.io/network-unavailable",
    ),
];

/// See the module. Its keys are nodes.
pub struct NodeTaints;

impl Controller for NodeTaints {
    fn name(&self) -> &'static str {
        "node-controller"
    }

    fn account(&self) -> &'static str {
        "node-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::NODE, &registry::POD]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::NODE) {
            return vec![key];
        }
        // A ready pod matters only on a node that is not ready.
        let pod: Option<&Pod> = changed.new.and_then(|n| n.get());
        let Some(pod) = pod.filter(|p| pod::is_ready(p)) else {
            return Vec::new();
        };
        let node = view.get_as::<Node>("", pod::node_name(pod));
        let lost = node.filter(|n| is_unreachable(n));
        lost.map(|n| ObjectKey::of(n.object())).into_iter().collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let Some(node) = context.view.get_as::<Node>("", &context.key.name) else {
            return Vec::new();
        };
        if node.metadata.deletion_timestamp.is_some() || context.failure.is_some() {
            return Vec::new();
        }
        let mut actions = Vec::new();
        let had = node
            .spec
            .as_ref()
            .and_then(|s| s.taints.clone())
            .unwrap_or_default();
        let taints = with_conditions(&node, had.clone(), context.now);
        if taints != had {
            let mut changed = (*node).clone();
            changed.spec.get_or_insert_default().taints = (!taints.is_empty()).then_some(taints);
            actions.push(Action::update(changed));
        }
        if is_unreachable(&node) {
            let pods = context.view.pods_on(&context.key.name);
            let ready: Vec<Shared<Pod>> = pods
                .into_iter()
                .filter_map(|o| Shared::new(o).ok())
                .filter(|pod: &Shared<Pod>| pod::is_ready(pod))
                .collect();
            if !ready.is_empty() && actions.is_empty() {
                actions.push(Action::Require(LiveCheck::Unreachable {
                    node: context.key.name.as_str().into(),
                }));
            }
            for pod in &ready {
                let about = reference(pod.object());
                actions.push(Action::warning(&about, "NodeNotReady", "Node is not ready"));
            }
            if !ready.is_empty() {
                let lost = ready.iter().map(|pod| not_ready(pod, context.now));
                actions.push(Action::update_many(lost, "status"));
            }
        }
        actions
    }
}

/// Whether the node's Ready condition is Unknown.
pub fn is_unreachable(node: &Node) -> bool {
    condition(node, "Ready").is_some_and(|c| c.status == "Unknown")
}

fn not_ready(pod: &Shared<Pod>, now: Timestamp) -> Pod {
    let mut changed = (**pod).clone();
    let conditions = changed
        .status
        .iter_mut()
        .flat_map(|s| s.conditions.iter_mut().flatten());
    for condition in conditions.filter(|c| c.type_ == "Ready") {
        condition.status = "False".into();
        condition.last_transition_time = Some(seconds(now));
    }
    changed
}

/// The desired taints of a node: those of its conditions, and all others that it has.
fn with_conditions(node: &Node, had: Vec<Taint>, now: Timestamp) -> Vec<Taint> {
    let mut desired: Vec<(&str, &str)> = Vec::new();
    for (type_, bad, key) in BY_CONDITION {
        // A node that has not reported its status was tainted when it was created, and keeps the taint.
        if condition(node, type_).is_some_and(|c| c.status == bad) {
            desired.push((key, NO_SCHEDULE));
        }
    }
    if node.spec.as_ref().and_then(|s| s.unschedulable) == Some(true) {
        desired.push((UNSCHEDULABLE, NO_SCHEDULE));
    }
    let evicts = |t: &Taint| t.effect == NO_EXECUTE && [NOT_READY, UNREACHABLE].contains(&&*t.key);
    if had.iter().any(evicts) {
        let lost = desired
            .iter()
            .find(|(key, _)| [NOT_READY, UNREACHABLE].contains(key));
        let lost = lost.map(|(key, _)| (*key, NO_EXECUTE));
        desired.extend(lost);
    }

    let never_reported = condition(node, "Ready").is_none();
    let is_ours = |taint: &Taint| {
        let key = taint.key.as_str();
        match taint.effect.as_str() {
            NO_SCHEDULE => {
                key == UNSCHEDULABLE
                    || (BY_CONDITION.iter().any(|(_, _, of)| *of == key)
                        && !(never_reported && key == NOT_READY))
            }
            NO_EXECUTE => [NOT_READY, UNREACHABLE].contains(&key),
            _ => false,
        }
    };
    let is_desired = |taint: &Taint| desired.contains(&(taint.key.as_str(), taint.effect.as_str()));
    let mut taints: Vec<Taint> = had.into_iter().filter(|t| !is_ours(t) || is_desired(t)).collect();
    for (key, effect) in desired {
        if !taints.iter().any(|t| t.key == key && t.effect == effect) {
            taints.push(Taint {
                key: key.into(),
                effect: effect.into(),
                value: None,
                time_added: Some(seconds(now)),
            });
        }
    }
    taints
}
