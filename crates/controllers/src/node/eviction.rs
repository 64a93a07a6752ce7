//! Taint eviction (NoExecute): pods that do not tolerate a taint are deleted, with their grace period, at once or after
//! tolerationSeconds. For the taints of lost nodes these are 300, which the admission plugin DefaultTolerationSeconds of the API server writes into
//! each pod that does not tolerate these taints by itself; the time counts from the taint, not from the last heartbeat.
//!
//! The cache of nodes may be older than that of pods, and have taints that were removed before a pod was bound: before pods are deleted
//! the taints are read live.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, PodCondition, Taint, Toleration};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::DISRUPTION_TARGET;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey, Shared};
use knarr_apimachinery::time::seconds;

use super::{NO_EXECUTE, UNREACHABLE};
use crate::action::{Action, Delete, LiveCheck, reference};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::pod;

/// See the module. Its keys are nodes.
pub struct TaintEviction;

impl Controller for TaintEviction {
    fn name(&self) -> &'static str {
        "taint-eviction-controller"
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
        let pod: Option<&Pod> = changed.new.and_then(|n| n.get());
        let node = pod.and_then(|p| view.get_as::<Node>("", pod::node_name(p)));
        let tainted = node.filter(|n| no_execute(n).next().is_some());
        tainted.map(|n| ObjectKey::of(n.object())).into_iter().collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let Some(node) = context.view.get_as::<Node>("", &context.key.name) else {
            return Vec::new();
        };
        let taints: Vec<&Taint> = no_execute(&node).collect();
        if taints.is_empty() || context.failure.is_some() {
            return Vec::new();
        }
        let mut actions = Vec::new();
        let mut next: Option<Duration> = None;
        for object in context.view.pods_on(&context.key.name) {
            let Ok(pod) = Shared::<Pod>::new(object) else {
                continue;
            };
            if !pod::is_active(&pod) {
                continue;
            }
            let Some(rest) = time_left(&pod, &taints, context.now) else {
                continue;
            };
            if !rest.is_zero() {
                next = Some(next.map_or(rest, |n| n.min(rest)));
                continue;
            }
            let key = ObjectKey::of(pod.object());
            let message = format!("Marking for deletion Pod {key}");
            actions.push(Action::event(
                &reference(pod.object()),
                "TaintManagerEviction",
                message,
            ));
            let mut evicted = with_disruption_target(
                &pod,
                "DeletionByTaintManager",
                "Taint manager: deleting due to NoExecute taint",
                context.now,
            );
            if taints.iter().any(|t| t.key == UNREACHABLE) {
                set_node_lost(&mut evicted, &context.key.name);
            }
            actions.push(Action::update_status(evicted));
            actions.push(Action::Delete(Delete::of(pod.object())));
        }
        if !actions.is_empty() {
            let tainted = Action::Require(LiveCheck::Tainted {
                node: context.key.name.as_str().into(),
                taints: taints.into_iter().cloned().collect(),
            });
            actions.insert(0, tainted);
        }
        actions.extend(next.map(Action::RequeueAfter));
        actions
    }
}

fn no_execute(node: &Node) -> impl Iterator<Item = &Taint> {
    let taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
    taints.filter(|t| t.effect == NO_EXECUTE)
}

/// Whether the node has all of these NoExecute taints, with the times at which they were added: one that was removed and added again
/// is another one.
pub fn has_taints(node: &Node, taints: &[Taint]) -> bool {
    taints
        .iter()
        .all(|taint| no_execute(node).any(|has| has == taint))
}

/// How long a pod may stay under these taints: `None` for ever, zero no longer.
fn time_left(pod: &Pod, taints: &[&Taint], now: Timestamp) -> Option<Duration> {
    let tolerations: Vec<&Toleration> = pod
        .spec
        .iter()
        .flat_map(|s| s.tolerations.iter().flatten())
        .collect();
    let mut left: Option<Duration> = None;
    for taint in taints {
        let mut seconds: Option<i64> = None;
        let mut tolerated = false;
        for toleration in tolerations.iter().filter(|t| tolerates(t, taint)) {
            tolerated = true;
            if let Some(limit) = toleration.toleration_seconds {
                seconds = Some(seconds.map_or(limit, |s: i64| s.min(limit)));
            }
        }
        if !tolerated {
            return Some(Duration::ZERO);
        }
        let Some(seconds) = seconds else { continue };
        let since = taint.time_added.as_ref().map_or(now, |t| t.0);
        let rest = SignedDuration::from_secs(seconds.max(0)) - now.duration_since(since);
        let rest = Duration::try_from(rest).unwrap_or_default();
        left = Some(left.map_or(rest, |l| l.min(rest)));
    }
    left
}

pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or("");
    let key = toleration.key.as_deref().unwrap_or("");
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or("") {
        "Exists" => true,
        "" | "Equal" => {
            key == taint.key
                && toleration.value.as_deref().unwrap_or("") == taint.value.as_deref().unwrap_or("")
        }
        _ => false,
    }
}

/// Sets the pod's reason to NodeLost: `kubectl get pods` shows it as Unknown until its node is Ready again or deleted.
fn set_node_lost(pod: &mut Pod, node: &str) {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let status = pod.status.get_or_insert_default();
    status.reason = Some("NodeLost".into());
    status.message = Some(format!(
        "Node {node} which was running pod {name} is unresponsive"
    ));
}

/// The pod with the condition DisruptionTarget (KEP-3329): it is deleted because of a disruption.
pub fn with_disruption_target(pod: &Pod, reason: &str, message: &str, now: Timestamp) -> Pod {
    let mut changed = pod.clone();
    let conditions = changed
        .status
        .get_or_insert_default()
        .conditions
        .get_or_insert_default();
    let old = conditions
        .iter()
        .find(|c| c.type_ == DISRUPTION_TARGET && c.status == "True");
    let since = old
        .and_then(|c| c.last_transition_time.clone())
        .unwrap_or(seconds(now));
    conditions.retain(|c| c.type_ != DISRUPTION_TARGET);
    conditions.push(PodCondition {
        type_: DISRUPTION_TARGET.into(),
        status: "True".into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_transition_time: Some(since),
        observed_generation: pod.metadata.generation,
        last_probe_time: None,
    });
    changed
}
