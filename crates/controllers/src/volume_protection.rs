//! What stores data outlives what uses it: a claim the pods that mount it, a volume its claim, a volume attributes
//! class the claims and volumes that name it.
//!
//! All three carry a finalizer from admission on. These controllers add it where it is missing, and take it off an
//! object that is being deleted as soon as nothing uses it any more.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::k8s_openapi;
use knarr_api::registry::{self, Registered};
use knarr_api::{Kind, ObjectKey};

use crate::action::Action;
use crate::controller::{Changed, Context, Controller, View};

/// Keeps claims; its keys are theirs.
pub struct PvcProtection;
/// Keeps volumes; its keys are theirs.
pub struct PvProtection;
/// Keeps volume attributes classes; its keys are theirs.
pub struct VacProtection;

/// What is to be done with an object that carries `finalizer` while it is in use.
fn protect<T: Registered + Clone>(
    context: &Context<'_>,
    finalizer: &str,
    in_use: impl FnOnce(&T) -> bool,
) -> Vec<Action> {
    let key = context.key;
    let Some(object) = context.view.get_as::<T>(&key.namespace, &key.name) else {
        return Vec::new();
    };
    let meta: &ObjectMeta = object.metadata();
    let carries = meta.finalizers.iter().flatten().any(|f| f == finalizer);
    let deleted = meta.deletion_timestamp.is_some();
    let mut new = (*object).clone();
    let finalizers = new.metadata_mut().finalizers.get_or_insert_default();
    if deleted && carries && !in_use(&object) {
        finalizers.retain(|f| f != finalizer);
    } else if !deleted && !carries {
        finalizers.push(finalizer.into());
    } else {
        return Vec::new();
    }
    vec![Action::update(new)]
}

/// The claims that a pod mounts, by name; those of its ephemeral volumes are made for it and named after it.
fn claims_of(pod: &Pod) -> Vec<String> {
    let name = pod.metadata.name.as_deref().unwrap_or("");
    let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_deref());
    let claim = |v: &k8s_openapi::api::core::v1::Volume| {
        let ephemeral = v.ephemeral.as_ref().map(|_| format!("{name}-{}", v.name));
        let claimed = v.persistent_volume_claim.as_ref();
        claimed.map(|c| c.claim_name.clone()).or(ephemeral)
    };
    volumes.unwrap_or_default().iter().filter_map(claim).collect()
}

impl Controller for PvcProtection {
    fn name(&self) -> &'static str {
        "persistentvolumeclaim-protection-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::PERSISTENT_VOLUME_CLAIM, &registry::POD]
    }

    fn keys(&self, _view: &dyn View, changed: Changed<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::PERSISTENT_VOLUME_CLAIM) {
            return vec![key];
        }
        let pods = changed
            .states()
            .filter_map(|o| Some((o.namespace(), o.get::<Pod>()?)));
        pods.flat_map(|(namespace, pod)| {
            let claims = claims_of(pod).into_iter();
            claims.map(move |claim| ObjectKey::new(namespace, &claim))
        })
        .collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        protect::<PersistentVolumeClaim>(context, "kubernetes.io/pvc-protection", |_| {
            // A pod that has no node yet does not count: no kubelet starts it with a claim that is being deleted.
            let pods = context.view.list_as::<Pod>(&context.key.namespace);
            pods.iter().any(|pod| {
                !crate::pod::node_name(pod).is_empty() && claims_of(pod).contains(&context.key.name)
            })
        })
    }
}

impl Controller for PvProtection {
    fn name(&self) -> &'static str {
        "persistentvolume-protection-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::PERSISTENT_VOLUME]
    }

    fn keys(&self, _view: &dyn View, changed: Changed<'_>) -> Vec<ObjectKey> {
        changed.key_of(&registry::PERSISTENT_VOLUME).into_iter().collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        protect::<PersistentVolume>(context, "kubernetes.io/pv-protection", |volume| {
            let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
            phase == Some("Bound")
        })
    }
}

impl Controller for VacProtection {
    fn name(&self) -> &'static str {
        "volumeattributesclass-protection-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![
            &registry::VOLUME_ATTRIBUTES_CLASS,
            &registry::PERSISTENT_VOLUME_CLAIM,
            &registry::PERSISTENT_VOLUME,
        ]
    }

    fn keys(&self, _view: &dyn View, changed: Changed<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::VOLUME_ATTRIBUTES_CLASS) {
            return vec![key];
        }
        let classes = changed.states().flat_map(|o| {
            let mut named = Vec::new();
            if let Some(claim) = o.get::<PersistentVolumeClaim>() {
                named = classes_of_claim(claim);
            } else if let Some(volume) = o.get::<PersistentVolume>() {
                named = class_of_volume(volume).into_iter().collect();
            }
            named
        });
        classes.map(|class| ObjectKey::new("", &class)).collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        protect::<VolumeAttributesClass>(context, "kubernetes.io/vac-protection", |_| {
            let name = &context.key.name;
            let claims = context.view.list_as::<PersistentVolumeClaim>("");
            let volumes = context.view.list_as::<PersistentVolume>("");
            claims.iter().any(|claim| classes_of_claim(claim).contains(name))
                || volumes
                    .iter()
                    .any(|volume| class_of_volume(volume).as_ref() == Some(name))
        })
    }
}

/// The class that a claim wants, has, or is on its way to.
fn classes_of_claim(claim: &PersistentVolumeClaim) -> Vec<String> {
    let wanted = claim
        .spec
        .as_ref()
        .and_then(|s| s.volume_attributes_class_name.clone());
    let status = claim.status.as_ref();
    let has = status.and_then(|s| s.current_volume_attributes_class_name.clone());
    let target = status
        .and_then(|s| s.modify_volume_status.as_ref())
        .and_then(|m| m.target_volume_attributes_class_name.clone());
    let named = [wanted, has, target].into_iter().flatten();
    named.filter(|name| !name.is_empty()).collect()
}

fn class_of_volume(volume: &PersistentVolume) -> Option<String> {
    let class = volume.spec.as_ref()?.volume_attributes_class_name.clone();
    class.filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{World, at, lines, updated};
    use serde_json::{Value, json};

    fn of<T: Registered + Clone>(value: Value) -> T {
        let decoded = T::kind_of().ops.decode(value.to_string().as_bytes()).unwrap();
        decoded.object.as_any().downcast_ref::<T>().unwrap().clone()
    }

    fn pod(node: &str) -> Pod {
        of(json!({
            "metadata": {"name": "p", "namespace": "ns"},
            "spec": {
                "nodeName": node, "containers": [],
                "volumes": [
                    {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
                    {"name": "b", "ephemeral": {}},
                ],
            },
        }))
    }

    fn claim(name: &str, deleted: bool, finalizers: &[&str]) -> PersistentVolumeClaim {
        let mut meta = json!({"name": name, "namespace": "ns", "finalizers": finalizers});
        if deleted {
            meta["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        of(json!({"metadata": meta, "spec": {"volumeAttributesClassName": "gold"}}))
    }

    #[test]
    fn a_claim_stays_as_long_as_a_pod_on_a_node_mounts_it() {
        let ours = "kubernetes.io/pvc-protection";
        for (name, deleted, finalizers, node, expected) in [
            ("data", false, vec!["x"], "n", Some(vec!["x", ours])),
            ("data", false, vec![ours], "n", None),
            ("data", true, vec!["x", ours], "n", None),
            ("p-b", true, vec![ours], "n", None),
            ("data", true, vec!["x", ours], "", Some(vec!["x"])),
            ("other", true, vec![ours], "n", Some(vec![])),
            ("data", true, vec!["x"], "n", None),
        ] {
            let mut world = World::default();
            world.put(pod(node));
            world.put(claim(name, deleted, &finalizers));
            let actions = world.run(&PvcProtection, ("ns", name), at(0));
            let new = updated::<PersistentVolumeClaim>(&actions, "");
            let expected = expected.map(|e: Vec<&str>| e.into_iter().map(String::from).collect::<Vec<_>>());
            assert_eq!(
                new.map(|c| c.metadata.finalizers.unwrap_or_default()),
                expected,
                "{name} {deleted} {finalizers:?} {node:?}"
            );
        }
    }

    #[test]
    fn a_volume_stays_while_it_is_bound_and_a_class_while_it_is_named() {
        let meta = |name: &str, finalizer: &str| {
            json!({
                "name": name, "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [finalizer],
            })
        };
        for (phase, expected) in [("Bound", 0), ("Released", 1)] {
            let mut world = World::default();
            let volume =
                json!({"metadata": meta("v", "kubernetes.io/pv-protection"), "status": {"phase": phase}});
            world.put::<PersistentVolume>(of(volume));
            let actions = world.run(&PvProtection, ("", "v"), at(0));
            assert_eq!(actions.len(), expected, "{phase}: {:?}", lines(&actions));
        }
        for (class, expected) in [("gold", 0), ("silver", 1)] {
            let mut world = World::default();
            world.put(claim("data", false, &[]));
            let class_object = json!({
                "metadata": meta(class, "kubernetes.io/vac-protection"), "driverName": "d",
            });
            world.put::<VolumeAttributesClass>(of(class_object));
            let actions = world.run(&VacProtection, ("", class), at(0));
            assert_eq!(actions.len(), expected, "{class}: {:?}", lines(&actions));
        }
    }
}
