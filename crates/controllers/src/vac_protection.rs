//! VolumeAttributesClass protection: a class is kept while claims or volumes name it.
//!
//! A finalizer keeps it, which admission adds (StorageObjectInUseProtection); this controller adds it where it is
//! missing, and removes it from a class that is being deleted when nothing names it any more.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::well_known::ATTRIBUTES_CLASS_PROTECTION;
use knarr_api::{Kind, ObjectKey};

use crate::action::Action;
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::protection::sync_finalizer;

/// See the module. Its keys are classes.
pub struct VacProtection;

impl Controller for VacProtection {
    fn name(&self) -> &'static str {
        "volumeattributesclass-protection-controller"
    }

    fn account(&self) -> &'static str {
        "volumeattributesclass-protection-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![
            &registry::VOLUME_ATTRIBUTES_CLASS,
            &registry::PERSISTENT_VOLUME_CLAIM,
            &registry::PERSISTENT_VOLUME,
        ]
    }

    fn keys(&self, _view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
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
        let name = &context.key.name;
        let Some(class) = context.view.get_as::<VolumeAttributesClass>("", name) else {
            return Vec::new();
        };
        sync_finalizer(&class, ATTRIBUTES_CLASS_PROTECTION, || {
            (!is_named(context.view, name)).then(Vec::new)
        })
    }
}

fn is_named(view: &dyn View, class: &String) -> bool {
    let claims = view.list_as::<PersistentVolumeClaim>("");
    let volumes = view.list_as::<PersistentVolume>("");
    claims.iter().any(|claim| classes_of_claim(claim).contains(class))
        || volumes
            .iter()
            .any(|volume| class_of_volume(volume).as_ref() == Some(class))
}

/// The classes of a claim: the requested, the current and the target one.
fn classes_of_claim(claim: &PersistentVolumeClaim) -> Vec<String> {
    let requested = claim
        .spec
        .as_ref()
        .and_then(|s| s.volume_attributes_class_name.clone());
    let status = claim.status.as_ref();
    let has = status.and_then(|s| s.current_volume_attributes_class_name.clone());
    let target = status
        .and_then(|s| s.modify_volume_status.as_ref())
        .and_then(|m| m.target_volume_attributes_class_name.clone());
    let named = [requested, has, target].into_iter().flatten();
    named.filter(|name| !name.is_empty()).collect()
}

fn class_of_volume(volume: &PersistentVolume) -> Option<String> {
    let class = volume.spec.as_ref()?.volume_attributes_class_name.clone();
    class.filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{World, at, updated};
    use knarr_api::registry::Registered;
    use serde_json::{Value, json};

    fn of<T: Registered + Clone>(value: Value) -> T {
        let decoded = T::kind_of().ops.decode(value.to_string().as_bytes()).unwrap();
        decoded.object.as_any().downcast_ref::<T>().unwrap().clone()
    }

    #[test]
    fn a_class_is_kept_while_a_claim_or_volume_names_it() {
        for (name, deleted, finalizers, expected) in [
            ("gold", true, vec![ATTRIBUTES_CLASS_PROTECTION], None),
            ("iron", true, vec![ATTRIBUTES_CLASS_PROTECTION], None),
            (
                "silver",
                true,
                vec!["a.example/b", ATTRIBUTES_CLASS_PROTECTION],
                Some(vec!["a.example/b"]),
            ),
            ("silver", false, vec![], Some(vec![ATTRIBUTES_CLASS_PROTECTION])),
            ("silver", false, vec![ATTRIBUTES_CLASS_PROTECTION], None),
        ] {
            let mut world = World::default();
            world.put::<PersistentVolumeClaim>(of(json!({
                "metadata": {"name": "c", "namespace": "n"}, "spec": {"volumeAttributesClassName": "gold"},
            })));
            world.put::<PersistentVolume>(of(json!({
                "metadata": {"name": "v"}, "spec": {"volumeAttributesClassName": "iron"},
            })));
            let mut meta = json!({"name": name, "finalizers": finalizers});
            if deleted {
                meta["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            world.put::<VolumeAttributesClass>(of(json!({"metadata": meta, "driverName": "d"})));
            let actions = world.run(&VacProtection, ("", name), at(0));
            let left = updated::<VolumeAttributesClass>(&actions, "").map(|c| c.metadata.finalizers);
            let expected = expected.map(|e| Some(e.into_iter().map(String::from).collect::<Vec<_>>()));
            assert_eq!(left, expected, "{name} {deleted} {finalizers:?}");
        }
    }
}
