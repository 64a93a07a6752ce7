//! What mistakes ([`Mutation`]) make of objects on their way between a component and the API, and between the API servers and
//! their store.

use std::sync::Arc;

use bytes::Bytes;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::{AnyObject, k8s_openapi, registry};
use knarr_client::{Kind, Object};
use knarr_store::{Op, Txn};
use serde_json::Value;

use crate::mutation::Mutation;
use crate::observer::Observer;
use crate::stored;
use crate::world::{is_finished, node_of, owner, phase_of};

/// By so much a deletion is put off.
const PUT_OFF: SignedDuration = SignedDuration::from_mins(10);
/// What a pod's priority is that is taken for another.
const VERY_IMPORTANT: i32 = 1_000_000;
const NOT_IMPORTANT: i32 = -1_000_000;

/// Whether a component that makes this mistake does not see the pod.
pub(crate) fn hides(mutation: Option<Mutation>, is_kubelet: bool, object: &Object) -> bool {
    let Some(typed) = object.get::<Pod>().filter(|_| !is_kubelet) else {
        return false;
    };
    let of_daemon_set = || owner(typed, "DaemonSet").is_some();
    match mutation {
        Some(Mutation::IgnoreTerminating) => typed.metadata.deletion_timestamp.is_some(),
        Some(Mutation::ForgetRunningDaemons) => of_daemon_set() && phase_of(typed) == "Running",
        Some(Mutation::ForgetDaemonsOfANode) => of_daemon_set() && node_of(typed) == "n1",
        _ => false,
    }
}

/// The pod as a component reads it that makes this mistake.
pub(crate) fn read(mutation: Option<Mutation>, is_kubelet: bool, pod: Arc<Object>) -> Arc<Object> {
    let change: fn(&mut Pod) = match mutation {
        Some(Mutation::ForgetInit) if is_kubelet => |pod| {
            if let Some(spec) = &mut pod.spec {
                spec.init_containers = None;
            }
        },
        Some(Mutation::PreemptForEquals) if !is_kubelet => |pod| {
            if node_of(pod).is_empty()
                && let Some(spec) = &mut pod.spec
            {
                spec.priority = Some(VERY_IMPORTANT);
            }
        },
        Some(Mutation::BelittleBound) if !is_kubelet => |pod| {
            if !node_of(pod).is_empty()
                && let Some(spec) = &mut pod.spec
            {
                spec.priority = Some(NOT_IMPORTANT);
            }
        },
        _ => return pod,
    };
    match pod.get::<Pod>().cloned() {
        Some(mut typed) => {
            change(&mut typed);
            Arc::new(Object::from_typed(&registry::POD, Box::new(typed)))
        }
        None => pod,
    }
}

/// What a component writes that makes this mistake.
pub(crate) fn update(mutation: Option<Mutation>, kind: &Kind, object: &mut dyn AnyObject) {
    if kind != &registry::POD_DISRUPTION_BUDGET {
        return;
    }
    let budget = object.as_any_mut().downcast_mut::<PodDisruptionBudget>();
    let Some(status) = budget.and_then(|budget| budget.status.as_mut()) else {
        return;
    };
    let allowed = match mutation {
        Some(Mutation::AllowOneMore) => status.disruptions_allowed.unwrap_or_default() + 1,
        Some(Mutation::CountUnready) => {
            let expected = status.expected_pods.unwrap_or_default();
            (expected - status.desired_healthy.unwrap_or_default()).max(0)
        }
        _ => return,
    };
    status.disruptions_allowed = Some(allowed);
}

/// The status of a pod as a kubelet that makes this mistake reports it.
pub(crate) fn report(mutation: Option<Mutation>, observer: &Observer, object: &mut dyn AnyObject) {
    let phase = match mutation {
        Some(Mutation::ReportPendingAgain) => "Pending",
        Some(Mutation::ReviveFinished) => "Running",
        _ => return,
    };
    let Some(pod) = object.as_any_mut().downcast_mut::<Pod>() else {
        return;
    };
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let applies = observer.world(|world| {
        world.pods.get(uid).is_some_and(|life| match mutation {
            Some(Mutation::ReviveFinished) => is_finished(&life.pod),
            _ => phase_of(&life.pod) == "Running",
        })
    });
    if applies && let Some(status) = &mut pod.status {
        status.phase = Some(phase.into());
    }
}

/// A transaction as API servers ask for it that make this mistake.
pub(crate) fn transaction(mutation: Option<Mutation>, observer: &Observer, mut txn: Txn) -> Txn {
    for op in &mut txn.ops {
        let Op::Put { key, value } = op else { continue };
        let changed = match mutation {
            Some(_) if is_pod(key) => changed_pod(mutation, observer, value),
            _ => None,
        };
        if let Some(changed) = changed {
            *value = changed;
        }
    }
    txn
}

fn is_pod(key: &[u8]) -> bool {
    key.starts_with(b"/registry/core/pods/")
}

fn remove(object: &mut Value, of: &str, field: &str) {
    if let Some(of) = object.get_mut(of).and_then(Value::as_object_mut) {
        of.remove(field);
    }
}

/// Its encoding after the change.
fn changed(json: &Bytes, change: impl FnOnce(&mut Value)) -> Option<Bytes> {
    let mut object: Value = serde_json::from_slice(json).ok()?;
    change(&mut object);
    serde_json::to_vec(&object).ok().map(Bytes::from)
}

fn changed_pod(mutation: Option<Mutation>, observer: &Observer, json: &Bytes) -> Option<Bytes> {
    let pod = stored::pod(json)?;
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let was_deleted = || observer.world(|w| w.pods.get(uid).is_some_and(|life| life.deleted_at.is_some()));
    let was_bound = || observer.world(|w| w.pods.get(uid).is_some_and(|life| life.bound_at.is_some()));
    match mutation {
        Some(Mutation::MoveBound) if was_bound() && phase_of(&pod) == "Running" => moved(&pod, json),
        Some(Mutation::BindAgain) if was_bound() && phase_of(&pod) == "Pending" => moved(&pod, json),
        Some(Mutation::TakeDeletionBack) if was_deleted() => changed(json, |object| {
            remove(object, "metadata", "deletionTimestamp");
            remove(object, "metadata", "deletionGracePeriodSeconds");
        }),
        Some(Mutation::PutDeletionOff) if was_deleted() => {
            let put_off = pod
                .metadata
                .deletion_timestamp
                .and_then(|at| at.0.checked_add(PUT_OFF).ok())?;
            changed(json, |object| {
                object["metadata"]["deletionTimestamp"] = put_off.to_string().into()
            })
        }
        _ => None,
    }
}

/// On another node.
fn moved(pod: &Pod, json: &Bytes) -> Option<Bytes> {
    let other = if node_of(pod) == "n1" { "n2" } else { "n1" };
    changed(json, |object| object["spec"]["nodeName"] = other.into())
}
