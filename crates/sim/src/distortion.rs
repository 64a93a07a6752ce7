//! How mutants ([`Mutation`]) change objects between a component and the API, and between the API servers and their
//! store.

use std::sync::Arc;

use bytes::Bytes;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::kinds::pod::surge_first::EVICTION_REQUESTED;
use knarr_api::kinds::pod::{PREEMPTION_BUDGETS, is_terminal};
use knarr_api::scale_down::SCALE_DOWN;
use knarr_api::{AnyObject, k8s_openapi, registry};
use knarr_apimachinery::quantity::Quantity;
use knarr_client::{Kind, Object, Result};
use knarr_store::{Op, Txn};
use serde_json::Value;

use crate::mutation::Mutation;
use crate::observer::Observer;
use crate::placement;
use crate::stored::{self, QUOTAS, key_of};
use crate::upgrade::{STARTED_BY, started_by};
use crate::world::{World, node_of, owner, phase_of};

/// How far a deletion is put off.
const PUT_OFF: SignedDuration = SignedDuration::from_mins(10);
/// How much older the request of an eviction is recorded.
const BACKDATED: SignedDuration = SignedDuration::from_mins(11);
/// The priority of a pod that is taken for another.
const VERY_IMPORTANT: i32 = 1_000_000;
const NOT_IMPORTANT: i32 = -1_000_000;

/// Whether a component with this mutation does not see the pod.
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

/// The pod as a component with this mutation reads it.
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

/// An EndpointSlice as a network agent with this mutation reads it.
pub(crate) fn read_slice(mutation: Option<Mutation>, slice: Arc<Object>) -> Arc<Object> {
    let Some(mut typed) = slice.get::<EndpointSlice>().cloned() else {
        return slice;
    };
    let endpoints = typed.endpoints.get_or_insert_default();
    let terminates = |endpoint: &Endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions.and_then(|conditions| conditions.terminating) == Some(true)
    };
    match mutation {
        Some(Mutation::OfferTerminating) => {
            for endpoint in endpoints.iter_mut().filter(|endpoint| terminates(endpoint)) {
                let conditions = endpoint.conditions.get_or_insert_default();
                (conditions.ready, conditions.terminating) = (conditions.serving, Some(false));
            }
        }
        Some(Mutation::ForgetFallback) => endpoints.retain(|endpoint| !terminates(endpoint)),
        _ => return slice,
    }
    let revision = slice.revision().to_string();
    typed.metadata.resource_version = Some(revision);
    Arc::new(Object::from_typed(&registry::ENDPOINT_SLICE, Box::new(typed)))
}

/// What a component with this mutation writes.
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

/// The object of a component's write, if the mutation makes up an answer from it.
pub(crate) fn requested(mutation: Option<Mutation>, object: &dyn AnyObject) -> Option<Box<dyn AnyObject>> {
    (mutation == Some(Mutation::TakeUnansweredForDone)).then(|| object.clone_box())
}

/// The answer of API servers with this mutation to a write.
pub(crate) fn answer(
    mutation: Option<Mutation>,
    observer: &Observer,
    kind: &Kind,
    requested: Option<Box<dyn AnyObject>>,
    answer: Result<Arc<Object>>,
) -> Result<Arc<Object>> {
    let at_newest = |mut object: Box<dyn AnyObject>| {
        let newest = observer.world(|world| world.commits.newest());
        object.metadata_mut().resource_version = Some(newest.to_string());
        Ok(Arc::new(Object::from_typed(kind, object)))
    };
    match (mutation, answer, requested) {
        (Some(Mutation::TakeUnansweredForDone), Err(error), Some(requested)) if error.code() >= 500 => {
            at_newest(requested)
        }
        (Some(Mutation::AnswerAtNewest), Ok(object), _) if kind == &registry::POD => {
            match object.get::<Pod>().cloned() {
                Some(pod) => at_newest(Box::new(pod)),
                None => Ok(object),
            }
        }
        (_, answer, _) => answer,
    }
}

/// The status of a pod as a kubelet with this mutation reports it.
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
            Some(Mutation::ReviveFinished) => is_terminal(&life.pod),
            _ => phase_of(&life.pod) == "Running",
        })
    });
    if applies && let Some(status) = &mut pod.status {
        status.phase = Some(phase.into());
    }
}

/// A transaction as API servers with this mutation request it.
pub(crate) fn transaction(mutation: Option<Mutation>, observer: &Observer, mut txn: Txn) -> Txn {
    for op in &mut txn.ops {
        let Op::Put { key, value } = op else { continue };
        let changed = match mutation {
            Some(_) if is_pod(key) => changed_pod(mutation, observer, value),
            Some(_) if key.starts_with(QUOTAS) => changed_quota(mutation, observer, key, value),
            Some(mutation) => changed_placement(mutation, key, value),
            _ => None,
        };
        if let Some(changed) = changed {
            *value = changed;
        }
    }
    match mutation {
        Some(Mutation::DeleteDefinitionAtOnce) => delete_definitions(&mut txn),
        Some(Mutation::ReviveObjects) => revive_object(observer, &mut txn),
        _ => {}
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
        Some(Mutation::DropAnnouncements) if started_by(&pod).is_some() => changed(json, |object| {
            remove(&mut object["metadata"], "annotations", STARTED_BY)
        }),
        Some(Mutation::SoftenClass) => changed(json, |object| {
            remove(&mut object["metadata"], "annotations", PREEMPTION_BUDGETS)
        }),
        Some(Mutation::EvictUnrecorded) if placement::is_of(&pod, placement::LANDLORD) => {
            changed(json, |object| remove(object, "status", "nominatedNodeName"))
        }
        Some(Mutation::BackdateRequest) if placement::is_recorded(&pod) => {
            let (recorded, now) =
                observer.world(|world| (world.placement.recorded.get(uid).copied(), world.now));
            let earlier = recorded.unwrap_or(now).checked_sub(BACKDATED).ok()?;
            changed(json, |object| backdate(object, &earlier.to_string()))
        }
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

/// Sets when its eviction was requested.
fn backdate(pod: &mut Value, at: &str) {
    let conditions = pod["status"]["conditions"].as_array_mut();
    for condition in conditions.into_iter().flatten() {
        if condition["type"] == EVICTION_REQUESTED {
            condition["lastTransitionTime"] = at.into();
        }
    }
}

/// An object of knarr's own placement, or one that it is about.
fn changed_placement(mutation: Mutation, key: &[u8], json: &Bytes) -> Option<Bytes> {
    let is_under = |prefixes: &[&str]| prefixes.iter().any(|prefix| key.starts_with(prefix.as_bytes()));
    match mutation {
        Mutation::ForgetMoves if is_under(&["/registry/placement.knarr.io/rebalancepolicies/"]) => {
            changed(json, |object| remove(object, "status", "recentMoves"))
        }
        Mutation::ScatterDown
            if is_under(&[
                "/registry/apps/deployments/placed/",
                "/registry/apps/replicasets/placed/",
            ]) =>
        {
            changed(json, |object| {
                remove(&mut object["metadata"], "annotations", SCALE_DOWN)
            })
        }
        Mutation::ForgetDeclared if is_under(&["/registry/placement.knarr.io/topologydomains/"]) => {
            changed(json, |object| {
                if let Some(domains) = object["status"]["domains"].as_array_mut() {
                    domains.retain(|domain| domain["state"] != "Absent");
                }
            })
        }
        _ => None,
    }
}

/// Moves the pod to another node.
fn moved(pod: &Pod, json: &Bytes) -> Option<Bytes> {
    let other = if node_of(pod) == "n1" { "n2" } else { "n1" };
    changed(json, |object| object["spec"]["nodeName"] = other.into())
}

/// A quota as an API server with this mutation stores it.
fn changed_quota(mutation: Option<Mutation>, observer: &Observer, key: &[u8], json: &Bytes) -> Option<Bytes> {
    let quota: ResourceQuota = serde_json::from_slice(json).ok()?;
    let name = String::from_utf8_lossy(key).rsplit('/').next()?.to_string();
    let mut status = quota.status?;
    let (hard, mut used) = (status.hard.take().unwrap_or_default(), status.used.take()?);
    let milli = |raw: &ApiQuantity| Quantity::of(raw).map_or(0, |quantity| quantity.milli_value());
    let before = observer.world(|world| {
        let quota = world.metering.quotas.get(&name);
        quota.map(|quota| quota.used.clone()).unwrap_or_default()
    });
    let mut is_changed = false;
    for (name, is) in &mut used {
        let (was, now) = (before.get(name).copied().unwrap_or_default(), milli(is));
        let stored = match mutation {
            Some(Mutation::ForgetCharges) if now > was => was,
            Some(Mutation::GrantOneMore) if now > was && hard.get(name).map(milli) == Some(now) => {
                now - 1_000
            }
            _ => continue,
        };
        *is = ApiQuantity(format!("{}m", stored.max(0)));
        is_changed = true;
    }
    is_changed
        .then(|| changed(json, |object| object["status"]["used"] = serde_json::json!(used)))
        .flatten()
}

fn is_definition(op: &Op) -> bool {
    key_of(op).starts_with(b"/registry/apiextensions.k8s.io/customresourcedefinitions/")
}

/// A definition that is marked for deletion is deleted at once.
fn delete_definitions(txn: &mut Txn) {
    for op in txn.ops.iter_mut().filter(|op| is_definition(op)) {
        if let Op::Put { key, value } = op
            && let Ok(object) = serde_json::from_slice::<Value>(value)
            && object["metadata"].get("deletionTimestamp").is_some()
        {
            *op = Op::Delete { key: key.clone() };
        }
    }
}

/// The custom resource that was deleted last is stored again together with a new definition.
fn revive_object(observer: &Observer, txn: &mut Txn) {
    let creates = |world: &World| {
        let known = &world.definitions;
        let is_known = |key: &str| known.definitions.keys().any(|plural| key.contains(plural));
        let new = txn.ops.iter().filter(|op| is_definition(op));
        let mut new = new.filter(|op| matches!(op, Op::Put { .. }));
        new.any(|op| !is_known(&String::from_utf8_lossy(key_of(op))))
            .then(|| known.removed.clone())
            .flatten()
    };
    if let Some((path, value)) = observer.world(creates) {
        txn.ops.push(Op::Put {
            key: format!("/registry/{path}").into(),
            value: value.into(),
        });
    }
}
