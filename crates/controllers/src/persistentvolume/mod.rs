//! Binding of claims and volumes, provisioning of local volumes, and reclaiming of volumes whose claim was deleted.
//!
//! [`claims`] finds a volume for each claim ([`matching`]) or requests one from a provisioner; [`volumes`] sets each volume's phase and
//! applies its reclaim policy. Both follow kube-controller-manager's persistentvolume controller: the volume is bound first, with
//! its resourceVersion as precondition, so that of two claims only one gets it. [`local`] provisions volumes in directories of nodes.

pub mod claims;
pub mod expansion;
pub mod local;
pub mod matching;
pub mod volumes;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::k8s_openapi;
use knarr_api::well_known::BETA_STORAGE_CLASS;

/// The controller's name in events.
const NAME: &str = "persistentvolume-controller";

/// Annotation of a volume: its provisioner.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Annotations of a claim: the requested provisioner; the second is the older name.
const PROVISIONER: [&str; 2] = [
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
];
const STORAGE: &str = "storage";

fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Sets an annotation; whether that changed anything.
fn annotate(meta: &mut ObjectMeta, key: &str, value: &str) -> bool {
    let before = meta
        .annotations
        .get_or_insert_default()
        .insert(key.into(), value.into());
    before.as_deref() != Some(value)
}

/// Removes an annotation. Without any annotation left the map is `None`, as when the object is read.
fn remove_annotation(meta: &mut ObjectMeta, key: &str) {
    let mut others = meta.annotations.take().unwrap_or_default();
    others.remove(key);
    meta.annotations = (!others.is_empty()).then_some(others);
}

/// The class that a claim requests; `""` for none.
pub fn class_of_claim(claim: &PersistentVolumeClaim) -> &str {
    let spec = claim.spec.as_ref();
    annotation(&claim.metadata, BETA_STORAGE_CLASS)
        .or_else(|| spec.and_then(|s| s.storage_class_name.as_deref()))
        .unwrap_or("")
}

/// The class of a volume; `""` for none.
pub fn class_of_volume(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    annotation(&volume.metadata, BETA_STORAGE_CLASS)
        .or_else(|| spec.and_then(|s| s.storage_class_name.as_deref()))
        .unwrap_or("")
}

/// The volume that a claim names; `""` for none.
pub fn volume_name(claim: &PersistentVolumeClaim) -> &str {
    let spec = claim.spec.as_ref();
    spec.and_then(|s| s.volume_name.as_deref()).unwrap_or("")
}

/// The claimRef of a volume.
pub fn claim_ref(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

/// Whether a reference is to this claim: by name, and by uid if it has one.
fn refers_to(reference: &ObjectReference, claim: &PersistentVolumeClaim) -> bool {
    let uid = reference.uid.as_deref().unwrap_or("");
    reference.name == claim.metadata.name
        && reference.namespace == claim.metadata.namespace
        && (uid.is_empty() || Some(uid) == claim.metadata.uid.as_deref())
}

/// Whether the volume is bound to this claim or reserved for it.
fn is_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    claim_ref(volume).is_some_and(|r| refers_to(r, claim))
}

fn volume_phase(volume: &PersistentVolume) -> &str {
    let status = volume.status.as_ref();
    status.and_then(|s| s.phase.as_deref()).unwrap_or("")
}

#[cfg(test)]
mod tests;
