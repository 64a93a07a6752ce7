//! Evicts pods whose devices have a NoExecute taint that their claims do not tolerate, or no longer (KEP-5055).

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{
    DeviceRequestAllocationResult, DeviceTaint, DeviceToleration, ResourceClaim, ResourceSlice,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey, k8s_openapi};

use super::reserved_for;
use crate::action::{Action, Delete, reference};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::node::eviction::with_disruption_target;
use crate::pod;

const NO_EXECUTE: &str = "NoExecute";

/// See the module. Its keys are claims.
pub struct DeviceTaintEviction;

fn results(claim: &ResourceClaim) -> &[DeviceRequestAllocationResult] {
    let allocation = claim.status.as_ref().and_then(|s| s.allocation.as_ref());
    let devices = allocation.and_then(|a| a.devices.as_ref());
    devices.and_then(|d| d.results.as_deref()).unwrap_or_default()
}

fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    let value = toleration.value.as_deref().unwrap_or_default();
    if toleration.effect.as_deref() != Some(NO_EXECUTE) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "Exists" => true,
        "" | "Equal" => value == taint.value.as_deref().unwrap_or_default(),
        _ => false,
    }
}

/// When the slice was last written: a taint without timeAdded was added then at the latest.
fn last_written(slice: &ResourceSlice) -> Option<Timestamp> {
    let writes = slice.metadata.managed_fields.iter().flatten();
    let writes = writes.filter_map(|m| m.time.as_ref()).map(|t| t.0);
    let created = slice.metadata.creation_timestamp.as_ref().map(|t| t.0);
    writes.chain(created).max()
}

/// How long a device may still be used under a taint: `None` for ever, zero no longer.
fn time_left(
    tolerations: &[DeviceToleration],
    taint: &DeviceTaint,
    written: Option<Timestamp>,
    now: Timestamp,
) -> Option<Duration> {
    let mut least: Option<i64> = None;
    for toleration in tolerations.iter().filter(|t| tolerates(t, taint)) {
        let seconds = toleration.toleration_seconds?.max(0);
        least = Some(least.map_or(seconds, |l| l.min(seconds)));
    }
    let Some(seconds) = least else {
        return Some(Duration::ZERO);
    };
    let added = taint.time_added.as_ref().map(|t| t.0);
    let since = added.or(written).unwrap_or(now);
    let rest = SignedDuration::from_secs(seconds) - now.duration_since(since);
    Some(Duration::try_from(rest).unwrap_or_default())
}

/// The same for all devices of a claim. Only slices of the newest generation of a pool count.
fn claim_time_left(view: &dyn View, claim: &ResourceClaim, now: Timestamp) -> Option<Duration> {
    let slices = view.list_as::<ResourceSlice>("");
    let mut left: Option<Duration> = None;
    for result in results(claim) {
        let of_pool = || {
            let all = slices.iter();
            all.filter(|s| s.spec.driver == result.driver && s.spec.pool.name == result.pool)
        };
        let newest = of_pool().map(|s| s.spec.pool.generation).max();
        let newest = of_pool().filter(|s| Some(s.spec.pool.generation) == newest);
        let taints = newest.flat_map(|s| {
            let devices = s.spec.devices.iter().flatten();
            let devices = devices.filter(|d| d.name == result.device);
            let taints = devices.flat_map(|d| d.taints.iter().flatten());
            taints
                .filter(|t| t.effect == NO_EXECUTE)
                .map(|t| (t, last_written(s)))
        });
        let tolerations = result.tolerations.as_deref().unwrap_or_default();
        for rest in taints.filter_map(|(taint, written)| time_left(tolerations, taint, written, now)) {
            left = Some(left.map_or(rest, |l| l.min(rest)));
        }
    }
    left
}

impl Controller for DeviceTaintEviction {
    fn name(&self) -> &'static str {
        "device-taint-eviction"
    }

    fn account(&self) -> &'static str {
        "device-taint-eviction-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![
            &registry::RESOURCE_CLAIM,
            &registry::RESOURCE_SLICE,
            &registry::POD,
        ]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::RESOURCE_CLAIM) {
            return changed.new.map(|_| key).into_iter().collect();
        }
        if let Some(pod) = changed.new.and_then(|o| o.get::<Pod>()) {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            return super::claims_of(pod)
                .map(|name| ObjectKey::new(namespace, name))
                .collect();
        }
        let Some(slice) = changed.new.and_then(|o| o.get::<ResourceSlice>()) else {
            return Vec::new();
        };
        let claims = view.list_as::<ResourceClaim>("");
        let of_pool = |claim: &ResourceClaim| {
            let mut results = results(claim).iter();
            results.any(|r| r.driver == slice.spec.driver && r.pool == slice.spec.pool.name)
        };
        let claims = claims.iter().filter(|claim| of_pool(claim));
        claims.map(|claim| ObjectKey::of(claim.object())).collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let (key, view) = (context.key, context.view);
        let claim = view.get_as::<ResourceClaim>(&key.namespace, &key.name);
        let Some(claim) = claim.filter(|_| context.failure.is_none()) else {
            return Vec::new();
        };
        let users = reserved_for(&claim).iter().filter(|user| user.resource == "pods");
        let pods = users.filter_map(|user| {
            let pod = view.get_as::<Pod>(&key.namespace, &user.name)?;
            let runs = pod::is_active(&pod) && !pod::node_name(&pod).is_empty();
            (pod.object().uid() == user.uid && runs).then_some(pod)
        });
        let mut pods = pods.peekable();
        if pods.peek().is_none() {
            return Vec::new();
        }
        match claim_time_left(view, &claim, context.now) {
            None => Vec::new(),
            Some(rest) if !rest.is_zero() => vec![Action::RequeueAfter(rest)],
            Some(_) => pods
                .flat_map(|pod| {
                    let evicted = with_disruption_target(
                        &pod,
                        "DeletionByDeviceTaintManager",
                        "Device Taint manager: deleting due to NoExecute taint",
                        context.now,
                    );
                    let about = reference(pod.object());
                    [
                        Action::event(&about, "DeviceTaintManagerEviction", "Marking for deletion"),
                        Action::update_status(evicted),
                        Action::Delete(Delete::of(pod.object())),
                    ]
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::world::{World, at, lines};

    #[test]
    fn pods_are_evicted_when_a_device_has_a_taint_that_is_not_tolerated() {
        let evicted = vec![
            "event DeviceTaintManagerEviction: Marking for deletion",
            "update pods/status a/p",
            "delete pods a/p",
        ];
        let forever = json!([{"operator": "Exists", "effect": "NoExecute"}]);
        let ten = json!([{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10}]);
        let all_effects = json!([{"operator": "Exists"}]);
        for (effect, tolerations, second, expect) in [
            ("NoExecute", json!([]), 0, evicted.clone()),
            ("NoSchedule", json!([]), 0, vec![]),
            ("NoExecute", forever, 100, vec![]),
            ("NoExecute", ten.clone(), 4, vec!["requeue after 6s"]),
            ("NoExecute", ten, 10, evicted.clone()),
            // Only tolerations of that effect count here.
            ("NoExecute", all_effects, 0, evicted.clone()),
        ] {
            let mut world = World::default();
            let added = serde_json::to_value(at(0)).unwrap();
            let taint = json!({"key": "k", "effect": effect, "timeAdded": added});
            let pool = json!({"name": "n", "generation": 1, "resourceSliceCount": 1});
            let slice = json!({"driver": "d", "nodeName": "n", "pool": pool,
                "devices": [{"name": "x", "taints": [taint]}]});
            put::<ResourceSlice>(&mut world, json!({"metadata": {"name": "s"}, "spec": slice}));
            let result = json!({"request": "r", "driver": "d", "pool": "n", "device": "x",
                "tolerations": tolerations});
            let users = json!([{"resource": "pods", "name": "p", "uid": "uid-p"}]);
            let status = json!({"allocation": {"devices": {"results": [result]}}, "reservedFor": users});
            let meta = |name: &str| json!({"namespace": "a", "name": name});
            put::<ResourceClaim>(
                &mut world,
                json!({"metadata": meta("c"), "spec": {}, "status": status}),
            );
            put::<Pod>(
                &mut world,
                json!({"metadata": meta("p"), "spec": {"containers": [], "nodeName": "n"}}),
            );
            let actions = world.run(&DeviceTaintEviction, ("a", "c"), at(second));
            assert_eq!(lines(&actions), expect, "{effect} {tolerations} {second}");
        }
    }

    fn put<T: knarr_api::registry::Registered>(world: &mut World, object: Value) {
        world.put::<T>(serde_json::from_value(object).unwrap());
    }
}
