//! Phases of volumes, and their reclaim policy when their claim was deleted.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::well_known::BOUND_BY_CONTROLLER;
use knarr_api::{Kind, Object, ObjectKey, Shared};

use super::{NAME, PROVISIONED_BY, annotation, claim_ref, local, matching, volume_name, volume_phase};
use crate::action::{Action, Delete, LiveCheck, reference};
use crate::controller::{Context, Controller, ObjectChange, View};

/// See the module. Its keys are volumes.
pub struct VolumePhases;

impl Controller for VolumePhases {
    fn name(&self) -> &'static str {
        NAME
    }

    fn queue(&self) -> &'static str {
        "volumes"
    }

    fn account(&self) -> &'static str {
        "persistent-volume-binder"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::PERSISTENT_VOLUME, &registry::PERSISTENT_VOLUME_CLAIM]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::PERSISTENT_VOLUME) {
            return vec![key];
        }
        let mut keys: Vec<ObjectKey> = changed
            .states()
            .filter_map(|o| o.get::<PersistentVolumeClaim>())
            .map(volume_name)
            .filter(|name| !name.is_empty())
            .map(|name| ObjectKey::new("", name))
            .collect();
        // A claim that is deleted, or is bound to another volume, releases the volume that was reserved for it.
        let named = |o: Option<&Object>| {
            let claim = o.and_then(|o| o.get::<PersistentVolumeClaim>());
            claim.map(|c| volume_name(c).to_string())
        };
        let settled = changed.new.is_some() && named(changed.old) == named(changed.new);
        if let Some(claim) = changed.object().filter(|_| !settled) {
            let key = ObjectKey::of(claim);
            let volumes = view.list_as::<PersistentVolume>("");
            let reserved = volumes.iter().filter(|v| {
                claim_ref(v).is_some_and(|r| {
                    r.namespace.as_deref() == Some(&*key.namespace) && r.name.as_deref() == Some(&*key.name)
                })
            });
            keys.extend(reserved.map(|v| ObjectKey::of(v.object())));
        }
        keys.sort();
        keys.dedup();
        keys
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let Some(volume) = context.view.get_as::<PersistentVolume>("", &context.key.name) else {
            return Vec::new();
        };
        if context.failure.is_some() {
            return Vec::new();
        }
        let Some(to) = claim_ref(&volume) else {
            return phase(&volume, "Available").into_iter().collect();
        };
        let uid = to.uid.as_deref().unwrap_or("");
        if uid.is_empty() {
            // Reserved by name; the claim's sync completes the binding.
            return phase(&volume, "Available").into_iter().collect();
        }
        let (namespace, name) = (to.namespace.as_deref(), to.name.as_deref());
        let key = ObjectKey::new(namespace.unwrap_or_default(), name.unwrap_or_default());
        let claim = context
            .view
            .get_as::<PersistentVolumeClaim>(&key.namespace, &key.name)
            .filter(|c| c.object().uid() == uid);
        let Some(claim) = claim else {
            // The cache may lag: a volume that a claim still has must not be released.
            let claim_absent = Action::Require(LiveCheck::AbsentUid {
                kind: registry::PERSISTENT_VOLUME_CLAIM.clone(),
                key,
                uid: uid.into(),
            });
            return reclaim(&volume, claim_absent);
        };
        match volume_name(&claim) {
            "" if matching::modes_differ(&volume, &claim) => mode_mismatch(&volume, &claim),
            "" => Vec::new(),
            name if name == volume.object().name() => phase(&volume, "Bound").into_iter().collect(),
            _ => bound_to_other(&volume, &claim),
        }
    }
}

fn phase(volume: &PersistentVolume, phase: &str) -> Option<Action> {
    if volume_phase(volume) == phase {
        return None;
    }
    let mut changed = volume.clone();
    let status = changed.status.get_or_insert_default();
    status.phase = Some(phase.into());
    status.message = None;
    Some(Action::update_status(changed))
}

fn mode_mismatch(volume: &Shared<PersistentVolume>, claim: &Shared<PersistentVolumeClaim>) -> Vec<Action> {
    const REASON: &str = "VolumeMismatch";
    let (v, c) = (volume.object(), claim.object());
    vec![
        Action::warning(
            &reference(v),
            REASON,
            format!(
                "Cannot bind PersistentVolume to requested PersistentVolumeClaim {:?} due to incompatible volumeMode.",
                c.name()
            ),
        ),
        Action::warning(
            &reference(c),
            REASON,
            format!(
                "Cannot bind PersistentVolume {:?} to requested PersistentVolumeClaim due to incompatible volumeMode.",
                v.name()
            ),
        ),
    ]
}

/// The claim is bound to another volume: a volume that was provisioned for it is deleted, a selected one is available again.
fn bound_to_other(volume: &Shared<PersistentVolume>, claim: &Shared<PersistentVolumeClaim>) -> Vec<Action> {
    let made = annotation(&volume.metadata, PROVISIONED_BY).is_some();
    if made && policy(volume) == "Delete" {
        let alive = Action::Require(LiveCheck::Exists {
            kind: registry::PERSISTENT_VOLUME_CLAIM.clone(),
            key: ObjectKey::of(claim.object()),
            uid: claim.object().uid().into(),
        });
        return reclaim(volume, alive);
    }
    let mut changed = (**volume).clone();
    let chosen = annotation(&volume.metadata, BOUND_BY_CONTROLLER).is_some();
    let spec = changed.spec.get_or_insert_default();
    if chosen {
        spec.claim_ref = None;
        super::remove_annotation(&mut changed.metadata, BOUND_BY_CONTROLLER);
    } else if let Some(to) = &mut spec.claim_ref {
        to.uid = None;
    }
    vec![Action::update(changed)]
}

fn policy(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    spec.and_then(|s| s.persistent_volume_reclaim_policy.as_deref())
        .unwrap_or("Retain")
}

/// The claim was deleted: after `live_check` the reclaim policy is applied.
fn reclaim(volume: &Shared<PersistentVolume>, live_check: Action) -> Vec<Action> {
    let is_released = ["Released", "Failed"].contains(&volume_phase(volume));
    if !is_released {
        let update = phase(volume, "Released");
        return std::iter::once(live_check).chain(update).collect();
    }
    let failed = |reason: &'static str, message: String| {
        let mut changed = (**volume).clone();
        let status = changed.status.get_or_insert_default();
        if status.phase.as_deref() == Some("Failed") {
            return Vec::new();
        }
        status.phase = Some("Failed".into());
        status.message = Some(message.clone());
        let about = reference(volume.object());
        vec![
            Action::update_status(changed),
            Action::warning(&about, reason, message),
        ]
    };
    match policy(volume) {
        "Retain" => Vec::new(),
        "Recycle" => failed(
            "VolumeFailedRecycle",
            "No recycler plugin found for the volume!".into(),
        ),
        "Delete" => match annotation(&volume.metadata, PROVISIONED_BY) {
            Some(local::PROVISIONER) if volume.metadata.deletion_timestamp.is_none() => {
                // Its data is deleted with the object: a finalizer keeps it until its node has cleaned up.
                vec![live_check, Action::Delete(Delete::of(volume.object()))]
            }
            // An external provisioner deletes it.
            Some(by) if !by.starts_with("kubernetes.io/") => Vec::new(),
            _ if volume.spec.as_ref().is_some_and(|s| s.csi.is_some()) => Vec::new(),
            _ => failed(
                "VolumeFailedDelete",
                format!(
                    "error getting deleter volume plugin for volume {:?}: no deletable volume plugin matched",
                    volume.object().name()
                ),
            ),
        },
        _ => failed(
            "VolumeUnknownReclaimPolicy",
            "Volume has unrecognized PersistentVolumeReclaimPolicy".into(),
        ),
    }
}
