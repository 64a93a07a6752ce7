//! The claims of a StatefulSet's pods: created before the pod, and kept or owned by the set or the pod, so that they are deleted with
//! it, by `persistentVolumeClaimRetentionPolicy` (KEP-1847).

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Object, Shared};

use super::identity::{self, claim_name};
use crate::action::{Action, Create, Report, reference};
use crate::controller::View;
use crate::owner::controller_reference;

struct Policy {
    delete_with_set: bool,
    delete_when_scaled: bool,
}

fn policy(spec: &StatefulSetSpec) -> Policy {
    let policy = spec.persistent_volume_claim_retention_policy.as_ref();
    let is_delete = |value: Option<&String>| value.is_some_and(|v| v == "Delete");
    Policy {
        delete_with_set: is_delete(policy.and_then(|p| p.when_deleted.as_ref())),
        delete_when_scaled: is_delete(policy.and_then(|p| p.when_scaled.as_ref())),
    }
}

/// What a pod of this ordinal needs before it can be created.
pub enum Claims {
    /// The creates of missing claims; empty if all exist.
    Missing(Vec<Action>),
    /// The name of a claim that is being deleted, or belongs to an earlier pod of the name: the pod waits for its removal.
    InTheWay(String),
}

/// The claims that are missing for this ordinal.
pub fn missing(view: &dyn View, set: &Shared<StatefulSet>, ordinal: i64, pod_uid: Option<&str>) -> Claims {
    let Some(spec) = &set.spec else {
        return Claims::Missing(Vec::new());
    };
    let owner = set.object();
    let pod_name = format!("{}-{ordinal}", owner.name());
    let policy = policy(spec);
    let mut actions = Vec::new();
    for template in spec.volume_claim_templates.iter().flatten() {
        let template_name = template.metadata.name.as_deref().unwrap_or("");
        let name = claim_name(owner.name(), template_name, ordinal);
        if let Some(there) = view.get(&registry::PERSISTENT_VOLUME_CLAIM, owner.namespace(), &name) {
            let refers_to_other = refers_to_other(&there, "v1", "Pod", &pod_name, pod_uid);
            let is_stale = policy.delete_when_scaled && refers_to_other;
            if is_stale || there.metadata().deletion_timestamp.is_some() {
                return Claims::InTheWay(name);
            }
            continue;
        }
        let mut claim = template.clone();
        claim.metadata.name = Some(name.clone());
        claim.metadata.namespace = Some(owner.namespace().to_string());
        let labels = claim.metadata.labels.get_or_insert_default();
        labels.extend(spec.selector.match_labels.clone().unwrap_or_default());
        if policy.delete_with_set {
            let owners = claim.metadata.owner_references.get_or_insert_default();
            owners.push(controller_reference(owner));
        }
        claim.status = None;
        let set_name = owner.name();
        actions.push(Action::Create(Create {
            ignore_already_exists: true,
            report: Some(Report {
                about: reference(owner),
                done: None,
                failed: (
                    "FailedCreate",
                    format!(
                        "Create Claim {name} for Pod {pod_name} in StatefulSet {set_name} failed error: "
                    ),
                ),
            }),
            ..Create::new(claim)
        }));
        actions.push(Action::event(
            &reference(owner),
            "SuccessfulCreate",
            format!("Create Claim {name} Pod {pod_name} in StatefulSet {set_name} success"),
        ));
    }
    Claims::Missing(actions)
}

/// An owner reference of this kind and name to an object that does not exist any more.
fn refers_to_other(claim: &Object, api_version: &str, kind: &str, name: &str, uid: Option<&str>) -> bool {
    let owners = claim.metadata().owner_references.iter().flatten();
    owners
        .filter(|o| o.api_version == api_version && o.kind == kind && o.name == name)
        .any(|o| uid != Some(o.uid.as_str()))
}

/// Sets the owners of this pod's claims by the retention policy. Claims with another controller, or from an earlier set or pod of
/// the name, are not changed.
pub fn retain(view: &dyn View, set: &Shared<StatefulSet>, pod: &Shared<Pod>, ordinal: i64) -> Vec<Action> {
    let Some(spec) = &set.spec else { return Vec::new() };
    let owner = set.object();
    let policy = policy(spec);
    let scaled_down = !identity::is_in_ordinal_range(spec, ordinal);
    let mut desired: Vec<OwnerReference> = Vec::new();
    if policy.delete_when_scaled && scaled_down {
        desired.push(controller_reference(pod.object()));
    } else if policy.delete_with_set {
        desired.push(controller_reference(owner));
    }
    let mut actions = Vec::new();
    for template in spec.volume_claim_templates.iter().flatten() {
        let template_name = template.metadata.name.as_deref().unwrap_or("");
        let name = claim_name(owner.name(), template_name, ordinal);
        let claim = view.get_as::<PersistentVolumeClaim>(owner.namespace(), &name);
        let Some(claim) = claim else { continue };
        if claim.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let (object, pod) = (claim.object(), pod.object());
        let set_version = owner.kind().api_version();
        if refers_to_other(
            object,
            &set_version,
            "StatefulSet",
            owner.name(),
            Some(owner.uid()),
        ) || refers_to_other(object, "v1", "Pod", pod.name(), Some(pod.uid()))
        {
            continue;
        }
        let had = claim.metadata.owner_references.clone().unwrap_or_default();
        let is_ours = |o: &OwnerReference| o.uid == owner.uid() || o.uid == pod.uid();
        let is_foreign = had.iter().any(|o| !is_ours(o) && o.controller == Some(true));
        let mut now: Vec<OwnerReference> = had.iter().filter(|o| !is_ours(o)).cloned().collect();
        if is_foreign && (policy.delete_with_set || policy.delete_when_scaled) {
            actions.push(Action::warning(
                &reference(owner),
                "ConflictingController",
                format!(
                    "PersistentVolumeClaim {name} has a conflicting OwnerReference that acts as a manging controller, \
                     the retention policy is ignored for this claim"
                ),
            ));
        } else {
            now.extend(desired.clone());
        }
        if had != now {
            let mut changed = (*claim).clone();
            changed.metadata.owner_references = (!now.is_empty()).then_some(now);
            actions.push(Action::update(changed));
        } else if is_foreign {
            // No owner reference changes: the event was recorded before.
            actions.pop_if(|a| matches!(a, Action::Event { .. }));
        }
    }
    actions
}
