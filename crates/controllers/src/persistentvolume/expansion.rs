//! Reports on a claim that requests more storage that an external resizer has to expand its volume.
//!
//! Volumes are expanded by their CSI driver's external-resizer and, on the nodes, by kubelets; kube-controller-manager v1.36
//! (persistentvolume-expander-controller) expands none itself since the in-tree plugins were removed.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey};
use knarr_apimachinery::quantity::Quantity;

use crate::action::{Action, reference};
use crate::controller::{Context, Controller, ObjectChange, View};

/// See the module. Its keys are claims.
pub struct VolumeExpansion;

impl Controller for VolumeExpansion {
    /// The source of the events.
    fn name(&self) -> &'static str {
        "volume_expand"
    }

    fn account(&self) -> &'static str {
        "expand-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::PERSISTENT_VOLUME_CLAIM, &registry::PERSISTENT_VOLUME]
    }

    fn keys(&self, _view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        let of = |object: Option<&knarr_api::Object>| object.and_then(|o| requested(o.get()?));
        let key = changed.key_of(&registry::PERSISTENT_VOLUME_CLAIM);
        let has_grown = matches!((of(changed.old), of(changed.new)), (Some(old), Some(new)) if new > old);
        key.filter(|_| has_grown).into_iter().collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let (view, key) = (context.view, context.key);
        let claim = view.get_as::<PersistentVolumeClaim>(&key.namespace, &key.name);
        let Some(claim) = claim.filter(|_| context.failure.is_none()) else {
            return Vec::new();
        };
        let status = claim.status.as_ref();
        if status.and_then(|s| s.phase.as_deref()) != Some("Bound") {
            return Vec::new();
        }
        let capacity = status
            .and_then(|s| s.capacity.as_ref())
            .and_then(|c| c.get("storage"));
        let capacity = capacity.and_then(|size| Quantity::of(size).ok());
        if requested(&claim) <= capacity {
            return Vec::new();
        }
        let volume = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref());
        let volume = volume.and_then(|name| view.get_as::<PersistentVolume>("", name));
        let holder = volume.as_ref().and_then(|v| v.spec.as_ref()?.claim_ref.as_ref());
        if holder.and_then(|r| r.uid.as_deref()) != Some(claim.object().uid()) {
            return Vec::new();
        }
        let message = "waiting for an external controller to expand this PVC";
        vec![Action::event(
            &reference(claim.object()),
            "ExternalExpanding",
            message,
        )]
    }
}

fn requested(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let resources = claim.spec.as_ref()?.resources.as_ref()?;
    Quantity::of(resources.requests.as_ref()?.get("storage")?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::world::{World, at, lines};

    fn claim(requested: &str, capacity: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"namespace": "d", "name": "c", "uid": "u"},
            "spec": {"volumeName": "v", "resources": {"requests": {"storage": requested}}},
            "status": {"phase": "Bound", "capacity": {"storage": capacity}},
        }))
        .unwrap()
    }

    #[test]
    fn a_claim_that_requests_more_waits_for_its_resizer() {
        let mut world = World::default();
        let volume = json!({"metadata": {"name": "v"}, "spec": {"claimRef": {"uid": "u"}}});
        world.put(serde_json::from_value::<PersistentVolume>(volume).unwrap());
        let small = world.put(claim("1Gi", "1Gi"));
        let run = |world: &World| lines(&world.run(&VolumeExpansion, ("d", "c"), at(0)));
        assert_eq!(run(&world), [""; 0]);
        let grown = world.put(claim("2Gi", "1Gi"));
        let events = run(&world);
        assert_eq!(events.len(), 1, "{events:?}");
        assert!(events[0].contains("ExternalExpanding"), "{events:?}");
        let kind = &registry::PERSISTENT_VOLUME_CLAIM;
        let keys = |old, new| {
            VolumeExpansion
                .keys(&world, ObjectChange { kind, old, new })
                .len()
        };
        assert_eq!(keys(Some(&small), Some(&grown)), 1);
        assert_eq!(keys(None, Some(&grown)), 0);
        assert_eq!(keys(Some(&grown), Some(&small)), 0);
        world.put(claim("2Gi", "2Gi"));
        assert_eq!(run(&world), [""; 0]);
    }
}
