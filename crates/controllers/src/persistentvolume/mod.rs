//! Which volume is whose: claims get volumes, volumes whose claim has gone are given back.
//!
//! [`claims`] looks for a volume for each claim ([`matching`]) or asks a provisioner for one, [`volumes`] keeps each
//! volume's phase and does what its reclaim policy says. Both follow kube-controller-manager's persistentvolume
//! controller: the volume is bound first, with its resourceVersion as precondition, so that of two claims that want the
//! same one gets it. [`local`] makes volumes of nodes' own directories.

pub mod claims;
pub mod expansion;
pub mod local;
pub mod matching;
pub mod volumes;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::k8s_openapi;

/// As it stands in events.
const NAME: &str = "persistentvolume-controller";

/// On a claim: it has once been bound.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// On both: the other was chosen by the controller and not by a user.
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// On a volume: who made it.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// On a claim that waited for its first consumer: where the scheduler wants it.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// On a claim: who is to make its volume; the second is the older name.
const PROVISIONER: [&str; 2] = [
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
];
/// The older place of a class's name.
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const STORAGE: &str = "storage";

fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Sets it, and says whether that changed anything.
fn annotate(meta: &mut ObjectMeta, key: &str, value: &str) -> bool {
    let before = meta
        .annotations
        .get_or_insert_default()
        .insert(key.into(), value.into());
    before.as_deref() != Some(value)
}

/// Takes it away. Without any annotation there is no map of them, as it is read back.
fn remove_annotation(meta: &mut ObjectMeta, key: &str) {
    let mut others = meta.annotations.take().unwrap_or_default();
    others.remove(key);
    meta.annotations = (!others.is_empty()).then_some(others);
}

/// The class a claim asks for; empty is none.
pub fn class_of_claim(claim: &PersistentVolumeClaim) -> &str {
    let spec = claim.spec.as_ref();
    annotation(&claim.metadata, CLASS)
        .or_else(|| spec.and_then(|s| s.storage_class_name.as_deref()))
        .unwrap_or("")
}

/// The class a volume is of; empty is none.
pub fn class_of_volume(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    annotation(&volume.metadata, CLASS)
        .or_else(|| spec.and_then(|s| s.storage_class_name.as_deref()))
        .unwrap_or("")
}

/// The volume a claim names; empty is none.
pub fn volume_name(claim: &PersistentVolumeClaim) -> &str {
    let spec = claim.spec.as_ref();
    spec.and_then(|s| s.volume_name.as_deref()).unwrap_or("")
}

/// The claim that a volume is for.
pub fn claim_ref(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

/// Whether a reference is to this claim: by name, and by uid if it says one.
fn refers_to(reference: &ObjectReference, claim: &PersistentVolumeClaim) -> bool {
    let uid = reference.uid.as_deref().unwrap_or("");
    reference.name == claim.metadata.name
        && reference.namespace == claim.metadata.namespace
        && (uid.is_empty() || Some(uid) == claim.metadata.uid.as_deref())
}

/// Whether the claim is for this volume, bound to it or reserved for it.
fn is_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    claim_ref(volume).is_some_and(|r| refers_to(r, claim))
}

fn volume_phase(volume: &PersistentVolume) -> &str {
    let status = volume.status.as_ref();
    status.and_then(|s| s.phase.as_deref()).unwrap_or("")
}

#[cfg(test)]
mod tests;
