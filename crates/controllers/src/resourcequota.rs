//! ResourceQuota: `status.hard` follows the spec, `status.used` is recalculated.
//!
//! Admission charges quotas for created objects; here usage is recalculated when objects are deleted, finish or change otherwise,
//! and periodically. [`knarr_api::quota`] counts the objects.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use knarr_api::kinds::pod::resources::{Amounts, amounts};
use knarr_api::quota::{self, Evaluator};
use knarr_api::registry::{DEVICE_CLASS, RESOURCE_QUOTA};
use knarr_api::{Kind, ObjectKey, k8s_openapi};

use crate::action::Action;
use crate::controller::{Context, Controller, ObjectChange, View};

/// How often usage is recalculated (kube-controller-manager: `--resource-quota-sync-period`).
const RESYNC: Duration = Duration::from_secs(5 * 60);

/// When a quota is requeued that limits a resource that is not served: a CustomResourceDefinition for it may follow.
const UNKNOWN: Duration = Duration::from_secs(10);

/// See the module.
pub struct ResourceQuotas;

impl Controller for ResourceQuotas {
    fn name(&self) -> &'static str {
        "resourcequota-controller"
    }

    fn account(&self) -> &'static str {
        "resourcequota-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        quota::built_in().chain([&DEVICE_CLASS]).collect()
    }

    fn watches_custom_kinds(&self) -> bool {
        true
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        let mut keys = Vec::new();
        if let (Some(key), Some(new)) = (changed.key_of(&RESOURCE_QUOTA), changed.new)
            && changed.old.is_none_or(|old| limits_changed(old.get(), new.get()))
        {
            keys.push(key);
        }
        let Some(object) = changed.object() else {
            return keys;
        };
        // Admission has charged for created objects.
        if changed.old.is_none() {
            return keys;
        }
        let quotas = view.list_as::<ResourceQuota>(object.namespace());
        if quotas.is_empty() {
            return keys;
        }
        let Some(evaluator) = Evaluator::of(changed.kind) else {
            return keys;
        };
        let reduces_usage = match (changed.old, changed.new) {
            (Some(old), Some(new)) => {
                old.uid() != new.uid() || evaluator.reduces_usage(old.typed(), new.typed())
            }
            _ => true,
        };
        if reduces_usage {
            let counted =
                |quota: &ResourceQuota| quota::hard(quota).keys().any(|name| evaluator.counts(name));
            let all = quotas.iter().filter(|quota| counted(quota));
            keys.extend(all.map(|quota| ObjectKey::of(quota.object())));
        }
        keys
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let key = context.key;
        let Some(quota) = context.view.get_as::<ResourceQuota>(&key.namespace, &key.name) else {
            return Vec::new();
        };
        if context.failure.is_some() {
            return Vec::new();
        }
        let hard = quota::hard(&quota);
        let status = quota.status.clone().unwrap_or_default();
        let before = amounts(status.used.as_ref());
        let list = |kind: &Kind| match kind.namespaced() {
            true => context.view.list(kind, &key.namespace),
            false => context.view.list(kind, ""),
        };
        let custom = context.view.custom_kinds();
        let kinds = quota::built_in().chain(&custom);
        let counted = quota::used(&quota, kinds, list, context.now);
        let unknown = |name: &String| name.starts_with("count/") && !counted.contains_key(name);
        let wait = if hard.keys().any(unknown) { UNKNOWN } else { RESYNC };
        let resync = Action::RequeueAfter(wait);
        // Usage of resources that are not served is not changed.
        let kept = before.iter().filter(|(name, _)| hard.contains_key(*name));
        let mut used: Amounts = kept.map(|(name, amount)| (name.clone(), *amount)).collect();
        used.extend(counted);
        let current = status.hard.is_some() && status.used.is_some();
        if current && amounts(status.hard.as_ref()) == hard && before == used {
            return vec![resync];
        }
        let mut updated = (*quota).clone();
        let status = updated.status.get_or_insert_default();
        status.hard = Some(wire(hard));
        status.used = Some(wire(used));
        vec![Action::update_status(updated), resync]
    }
}

fn wire(amounts: Amounts) -> BTreeMap<String, Wire> {
    amounts
        .into_iter()
        .map(|(name, amount)| (name, amount.to_wire()))
        .collect()
}

/// Whether `status.hard` differs from the spec. Other changes of the status are made by admission or this controller.
fn limits_changed(old: Option<&ResourceQuota>, new: Option<&ResourceQuota>) -> bool {
    let (Some(old), Some(new)) = (old, new) else {
        return true;
    };
    old.metadata.uid != new.metadata.uid || old.spec != new.spec
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
    use knarr_api::Object;
    use knarr_api::registry::{POD, SECRET};
    use serde_json::{Value, json};

    use super::*;
    use crate::world::{World, at, lines, updated};

    fn pod(name: &str, phase: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "500m"}}}]},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    fn quota(name: &str, hard: Value, status: Value) -> ResourceQuota {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns"}, "spec": {"hard": hard}, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn the_status_has_the_limits_and_the_usage() {
        let mut world = World::default();
        world.put(pod("a", "Running"));
        world.put(pod("b", "Succeeded"));
        let mut other = pod("c", "Running");
        other.metadata.namespace = Some("elsewhere".into());
        world.put(other);
        let hard =
            json!({"pods": "5", "requests.cpu": "2", "count/pods": "9", "count/widgets.example.com": "3"});
        let status = json!({"hard": {"pods": "1"}, "used": {"pods": "7", "secrets": "1", "count/widgets.example.com": "2"}});
        world.put(quota("q", hard.clone(), status));
        let actions = world.run(&ResourceQuotas, ("ns", "q"), at(0));
        assert_eq!(
            lines(&actions),
            ["update resourcequotas/status ns/q", "requeue after 10s"]
        );
        let written: ResourceQuota = updated(&actions, "status").unwrap();
        let expected = json!({"hard": hard, "used": {
            "pods": "1", "requests.cpu": "500m", "count/pods": "2", "count/widgets.example.com": "2",
        }});
        assert_eq!(serde_json::to_value(written.status).unwrap(), expected);
        world.take_updates(&actions);
        let again = world.run(&ResourceQuotas, ("ns", "q"), at(1));
        assert_eq!(lines(&again), ["requeue after 10s"]);
        assert!(world.run(&ResourceQuotas, ("ns", "gone"), at(1)).is_empty());
    }

    #[test]
    fn deleted_and_finished_objects_lead_to_recalculation() {
        let mut world = World::default();
        world.put(quota("pods", json!({"pods": "1"}), json!({})));
        world.put(quota("secrets", json!({"secrets": "1"}), json!({})));
        let running = world.put(pod("a", "Running"));
        let done = world.put(pod("a", "Succeeded"));
        let secret: Secret =
            serde_json::from_value(json!({"metadata": {"name": "s", "namespace": "ns"}})).unwrap();
        let secret = world.put(secret);
        let map: ConfigMap =
            serde_json::from_value(json!({"metadata": {"name": "m", "namespace": "ns"}})).unwrap();
        let map = world.put(map);
        let keys = |kind: &Kind, old: Option<&Object>, new: Option<&Object>| -> Vec<String> {
            let changed = ObjectChange { kind, old, new };
            ResourceQuotas
                .keys(&world, changed)
                .iter()
                .map(|key| key.name.clone())
                .collect()
        };
        assert_eq!(keys(&POD, None, Some(&running)), [] as [&str; 0]);
        assert_eq!(keys(&POD, Some(&running), Some(&running)), [] as [&str; 0]);
        assert_eq!(keys(&POD, Some(&running), Some(&done)), ["pods"]);
        assert_eq!(keys(&POD, Some(&running), None), ["pods"]);
        assert_eq!(keys(&SECRET, Some(&secret), None), ["secrets"]);
        assert_eq!(keys(map.kind(), Some(&map), None), [] as [&str; 0]);
    }

    #[test]
    fn a_quota_is_enqueued_when_its_limits_change_and_not_for_every_charge() {
        let mut world = World::default();
        let first = world.put(quota("q", json!({"pods": "1"}), json!({"used": {"pods": "0"}})));
        let charged = world.put(quota("q", json!({"pods": "1"}), json!({"used": {"pods": "1"}})));
        let raised = world.put(quota("q", json!({"pods": "2"}), json!({"used": {"pods": "1"}})));
        let keys = |old: Option<&Object>, new: Option<&Object>| {
            let kind = &RESOURCE_QUOTA;
            ResourceQuotas.keys(&world, ObjectChange { kind, old, new }).len()
        };
        assert_eq!(keys(None, Some(&first)), 1);
        assert_eq!(keys(Some(&first), Some(&charged)), 0);
        assert_eq!(keys(Some(&charged), Some(&raised)), 1);
    }
}
