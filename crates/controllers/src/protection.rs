//! Storage object in use protection: a deleted claim is kept until no scheduled pod uses it, a deleted volume while it is bound.
//!
//! A finalizer keeps both, which admission adds (StorageObjectInUseProtection) and these two controllers remove.
//! That no pod uses a claim is checked by a live read before the finalizer is removed: the cache may lag.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use knarr_api::k8s_openapi;
use knarr_api::registry::{self, Registered};
use knarr_api::well_known::{CLAIM_PROTECTION, VOLUME_PROTECTION};
use knarr_api::{Kind, ObjectKey, Shared};
use knarr_apimachinery::finalizer;

use crate::action::{Action, LiveCheck};
use crate::controller::{Context, Controller, ObjectChange, View};

/// Whether a scheduled pod uses this claim of its namespace. A kubelet starts no pod whose claim is being deleted, so pods
/// that are not scheduled do not count.
pub fn uses(pod: &Pod, claim: &str) -> bool {
    let scheduled = !crate::pod::node_name(pod).is_empty();
    scheduled && claims(pod).any(|name| name == claim)
}

/// The claims of a pod's volumes; those of generic ephemeral volumes are named after pod and volume.
pub(crate) fn claims(pod: &Pod) -> impl Iterator<Item = String> {
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    volumes.filter_map(|v| match (&v.persistent_volume_claim, &v.ephemeral) {
        (Some(source), _) => Some(source.claim_name.clone()),
        (None, Some(_)) => Some(format!(
            "{}-{}",
            pod.metadata.name.as_deref().unwrap_or(""),
            v.name
        )),
        (None, None) => None,
    })
}

/// Syncs a protection finalizer: added while the object is not being deleted, removed once it is being deleted and `free`
/// returns the checks that have to hold before (`None`: it is in use).
pub(crate) fn sync_finalizer<T: Registered>(
    object: &Shared<T>,
    finalizer: &str,
    free: impl FnOnce() -> Option<Vec<Action>>,
) -> Vec<Action> {
    let mut changed = (**object).clone();
    let meta = changed.metadata_mut();
    let deleting = meta.deletion_timestamp.is_some();
    let mut actions = match (deleting, finalizer::contains(meta, finalizer)) {
        (true, true) => {
            let Some(sure) = free() else {
                return Vec::new();
            };
            finalizer::remove(meta, finalizer);
            sure
        }
        (false, false) => {
            finalizer::add(meta, finalizer);
            Vec::new()
        }
        _ => return Vec::new(),
    };
    actions.push(Action::update(changed));
    actions
}

/// See the module. Its keys are claims.
pub struct ClaimProtection;

impl Controller for ClaimProtection {
    fn name(&self) -> &'static str {
        "persistentvolumeclaim-protection-controller"
    }

    fn account(&self) -> &'static str {
        "pvc-protection-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::PERSISTENT_VOLUME_CLAIM, &registry::POD]
    }

    fn keys(&self, _view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::PERSISTENT_VOLUME_CLAIM) {
            return vec![key];
        }
        // Only a deleted pod stops using its claims.
        let deleted = changed.old.filter(|_| changed.new.is_none());
        let pod = deleted.and_then(|object| object.get::<Pod>());
        pod.into_iter()
            .flat_map(|pod| {
                let namespace = pod.metadata.namespace.clone().unwrap_or_default();
                claims(pod).map(move |name| ObjectKey::new(&namespace, &name))
            })
            .collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let (namespace, name) = (&context.key.namespace, &context.key.name);
        let Some(claim) = context.view.get_as::<PersistentVolumeClaim>(namespace, name) else {
            return Vec::new();
        };
        sync_finalizer(&claim, CLAIM_PROTECTION, || {
            let pods = context.view.list_as::<Pod>(namespace);
            let used = pods.iter().any(|pod| uses(pod, name));
            let unused = LiveCheck::ClaimUnused {
                claim: context.key.clone(),
            };
            (!used).then(|| vec![Action::Require(unused)])
        })
    }
}

/// See the module. Its keys are volumes.
pub struct VolumeProtection;

impl Controller for VolumeProtection {
    fn name(&self) -> &'static str {
        "persistentvolume-protection-controller"
    }

    fn account(&self) -> &'static str {
        "pv-protection-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::PERSISTENT_VOLUME]
    }

    fn keys(&self, _view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        changed.key_of(&registry::PERSISTENT_VOLUME).into_iter().collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let Some(volume) = context.view.get_as::<PersistentVolume>("", &context.key.name) else {
            return Vec::new();
        };
        let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
        sync_finalizer(&volume, VOLUME_PROTECTION, || {
            (phase != Some("Bound")).then(Vec::new)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::world::{World, at, lines};

    fn claim(deleting: bool, finalizers: &[&str]) -> PersistentVolumeClaim {
        let mut value = json!({"metadata": {"namespace": "a", "name": "c", "finalizers": finalizers}});
        if deleting {
            value["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        serde_json::from_value(value).unwrap()
    }

    fn pod(node: &str, volume: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"namespace": "a", "name": "p"},
            "spec": {"containers": [], "nodeName": node, "volumes": [volume]},
        }))
        .unwrap()
    }

    #[test]
    fn a_claim_stays_while_a_scheduled_pod_names_it() {
        let own = json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}});
        let other = json!({"name": "v", "persistentVolumeClaim": {"claimName": "d"}});
        /// Deleting, finalizers, the pod -> what is done.
        type Row<'a> = (bool, &'a [&'a str], Option<Pod>, &'a [&'a str]);
        let table: &[Row<'_>] = &[
            (false, &[], None, &["update persistentvolumeclaims a/c"]),
            (false, &[CLAIM_PROTECTION], None, &[]),
            (true, &[CLAIM_PROTECTION], Some(pod("n", own.clone())), &[]),
            (
                true,
                &[CLAIM_PROTECTION],
                Some(pod("", own)),
                &["require a/c unused", "update persistentvolumeclaims a/c"],
            ),
            (
                true,
                &[CLAIM_PROTECTION],
                Some(pod("n", other)),
                &["require a/c unused", "update persistentvolumeclaims a/c"],
            ),
            (true, &["else"], None, &[]),
        ];
        for (deleting, finalizers, pod, done) in table {
            let mut world = World::default();
            world.put(claim(*deleting, finalizers));
            if let Some(pod) = pod {
                world.put(pod.clone());
            }
            let actions = world.run(&ClaimProtection, ("a", "c"), at(0));
            assert_eq!(lines(&actions), *done, "{deleting} {finalizers:?} {pod:?}");
        }
    }

    #[test]
    fn an_ephemeral_volumes_claim_is_named_after_pod_and_volume() {
        let pod = pod("n", json!({"name": "v", "ephemeral": {}}));
        assert!(uses(&pod, "p-v") && !uses(&pod, "v"));
    }

    #[test]
    fn a_volume_stays_while_it_is_bound() {
        for (phase, done) in [("Bound", 0), ("Available", 1), ("Released", 1)] {
            let mut world = World::default();
            let volume: PersistentVolume = serde_json::from_value(json!({
                "metadata": {"name": "v", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [VOLUME_PROTECTION]},
                "status": {"phase": phase},
            }))
            .unwrap();
            world.put(volume);
            assert_eq!(
                world.run(&VolumeProtection, ("", "v"), at(0)).len(),
                done,
                "{phase}"
            );
        }
    }
}
