//! Claims of generic ephemeral volumes: created from the template in the pod, named after pod and volume, and owned by the
//! pod, so that they are deleted with it.
//!
//! A claim of that name that is not owned by the pod is neither changed nor used (scheduler and kubelet check it as well); an
//! event on the pod reports it.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey};

use crate::action::{Action, Create, Report, reference};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::owner::{controller_of, controller_reference};
use crate::{pod, protection};

const FAILED: &str = "FailedBinding";

/// See the module. Its keys are pods.
pub struct EphemeralVolumes;

/// Whether the claim was created for this pod.
pub fn is_for(claim: &PersistentVolumeClaim, pod_uid: &str) -> bool {
    controller_of(&claim.metadata).is_some_and(|owner| owner.uid == pod_uid)
}

impl Controller for EphemeralVolumes {
    fn name(&self) -> &'static str {
        "ephemeral_volume"
    }

    fn account(&self) -> &'static str {
        "ephemeral-volume-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::POD, &registry::PERSISTENT_VOLUME_CLAIM]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        // A pod's volumes never change, and its claims are garbage-collected: only new pods matter.
        if let (None, Some(object)) = (changed.old, changed.new)
            && let Some(pod) = object.get::<Pod>()
        {
            let mut volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
            let any = volumes.any(|v| v.ephemeral.is_some());
            return any.then(|| ObjectKey::of(object)).into_iter().collect();
        }
        // A claim that a user deleted is created again.
        let (Some(claim), None) = (changed.old, changed.new) else {
            return Vec::new();
        };
        if claim.get::<PersistentVolumeClaim>().is_none() {
            return Vec::new();
        }
        let pods = view.list_as::<Pod>(claim.namespace());
        let users = pods.iter().filter(|pod| {
            let mut claims = protection::claims(pod);
            claims.any(|name| name == claim.name())
        });
        users.map(|pod| ObjectKey::of(pod.object())).collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let key = context.key;
        let Some(pod) = context.view.get_as::<Pod>(&key.namespace, &key.name) else {
            return Vec::new();
        };
        // After a failure the key is retried later.
        if pod::is_deleting(&pod) || context.failure.is_some() {
            return Vec::new();
        }
        let mut actions = Vec::new();
        for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
            let Some(template) = volume
                .ephemeral
                .as_ref()
                .and_then(|e| e.volume_claim_template.as_ref())
            else {
                continue;
            };
            let name = format!("{}-{}", key.name, volume.name);
            let about = reference(pod.object());
            let prefix = format!("ephemeral volume {}: ", volume.name);
            match context
                .view
                .get_as::<PersistentVolumeClaim>(&key.namespace, &name)
            {
                Some(claim) if is_for(&claim, pod.object().uid()) => {}
                Some(_) => {
                    let namespace = &key.namespace;
                    let why = format!(
                        "{prefix}PVC {namespace}/{name} was not created for pod {namespace}/{} (pod is not owner)",
                        key.name
                    );
                    actions.push(Action::warning(&about, FAILED, why));
                    return actions;
                }
                None => {
                    let meta = template.metadata.clone().unwrap_or_default();
                    let claim = PersistentVolumeClaim {
                        metadata: ObjectMeta {
                            namespace: Some(key.namespace.clone()),
                            owner_references: Some(vec![controller_reference(pod.object())]),
                            annotations: meta.annotations,
                            labels: meta.labels,
                            name: Some(name.clone()),
                            ..ObjectMeta::default()
                        },
                        spec: Some(template.spec.clone()),
                        status: None,
                    };
                    actions.push(Action::Create(Create {
                        report: Some(Report {
                            about,
                            done: None,
                            failed: (FAILED, format!("{prefix}create PVC {name}: ")),
                        }),
                        ..Create::new(claim)
                    }));
                }
            }
        }
        actions
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::world::{World, at, lines};

    fn pod(over: Value) -> Pod {
        let mut pod = json!({
            "metadata": {"namespace": "a", "name": "p"},
            "spec": {"containers": [], "volumes": [
                {"name": "d", "ephemeral": {"volumeClaimTemplate": {
                    "metadata": {"labels": {"l": "1"}, "annotations": {"n": "2"}},
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
                }}},
                {"name": "e", "emptyDir": {}},
            ]},
        });
        knarr_api::patch::merge::apply(&mut pod, &over);
        serde_json::from_value(pod).unwrap()
    }

    fn claim(owner: &str) -> PersistentVolumeClaim {
        serde_json::from_value(
            json!({"metadata": {"namespace": "a", "name": "p-d", "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": true},
            ]}}),
        )
        .unwrap()
    }

    fn decided(world: &World) -> Vec<String> {
        let key = ObjectKey::new("a", "p");
        let actions = EphemeralVolumes.reconcile(&Context {
            view: world,
            key: &key,
            now: at(0),
            failure: None,
        });
        lines(&actions)
    }

    #[test]
    fn a_pods_ephemeral_claim_is_created_once_and_is_owned_by_the_pod() {
        let mut world = World::default();
        world.put(pod(json!({})));
        assert_eq!(decided(&world), ["create persistentvolumeclaims a/p-d"]);
        let view: &dyn View = &world;
        let uid = view.get_as::<Pod>("a", "p").unwrap().object().uid().to_string();
        let key = ObjectKey::new("a", "p");
        let context = Context {
            view: &world,
            key: &key,
            now: at(0),
            failure: None,
        };
        let [Action::Create(create)] = &EphemeralVolumes.reconcile(&context)[..] else {
            panic!("one claim is to be made");
        };
        let made: &PersistentVolumeClaim = create.object.as_any().downcast_ref().unwrap();
        assert!(is_for(made, &uid));
        assert_eq!(made.metadata.labels.as_ref().unwrap()["l"], "1");
        assert_eq!(made.metadata.annotations.as_ref().unwrap()["n"], "2");
        world.put(claim(&uid));
        assert_eq!(decided(&world), [""; 0]);
    }

    #[test]
    fn a_claim_that_the_pod_does_not_own_is_not_changed_and_is_reported() {
        let mut world = World::default();
        world.put(pod(json!({})));
        world.put(claim("another"));
        let decided = decided(&world);
        assert_eq!(decided.len(), 1);
        assert!(
            decided[0]
                .contains("ephemeral volume d: PVC a/p-d was not created for pod a/p (pod is not owner)"),
            "{decided:?}"
        );
    }

    #[test]
    fn a_terminating_pod_gets_no_claim() {
        let mut world = World::default();
        world.put(pod(
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        ));
        assert_eq!(decided(&world), [""; 0]);
    }

    #[test]
    fn only_new_pods_and_deleted_claims_enqueue_a_pod() {
        let mut world = World::default();
        world.put(pod(json!({})));
        world.put(claim("u"));
        let view: &dyn View = &world;
        let pod = view.get_as::<Pod>("a", "p").unwrap();
        let claim = view.get_as::<PersistentVolumeClaim>("a", "p-d").unwrap();
        let keys = |kind, old: Option<&knarr_api::Object>, new: Option<&knarr_api::Object>| {
            EphemeralVolumes
                .keys(&world, ObjectChange { kind, old, new })
                .len()
        };
        let (pods, claims) = (&registry::POD, &registry::PERSISTENT_VOLUME_CLAIM);
        assert_eq!(keys(pods, None, Some(pod.object())), 1);
        assert_eq!(keys(pods, Some(pod.object()), Some(pod.object())), 0);
        assert_eq!(keys(pods, Some(pod.object()), None), 0);
        assert_eq!(keys(claims, Some(claim.object()), None), 1);
        assert_eq!(keys(claims, None, Some(claim.object())), 0);
    }
}
