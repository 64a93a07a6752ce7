//! Which volume matches a claim.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec};
use knarr_api::k8s_openapi;
use knarr_apimachinery::labels::{Selector, SelectorError};
use knarr_apimachinery::quantity::Quantity;

use super::{STORAGE, class_of_claim, class_of_volume, is_for, volume_phase};

/// Why a volume does not match the claim that names it, as in the event.
pub fn mismatch(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<String> {
    let name = volume.metadata.name.as_deref().unwrap_or("");
    if volume.metadata.deletion_timestamp.is_some() {
        return Some(format!("the volume is marked for deletion {name:?}"));
    }
    let why = if capacity(volume).value() < requested(claim).value() {
        "requested PV is too small"
    } else if class_of_volume(volume) != class_of_claim(claim) {
        "storageClassName does not match"
    } else if attributes_class(volume) != requested_attributes_class(claim) {
        "volumeAttributesClassName does not match"
    } else if modes_differ(volume, claim) {
        "incompatible volumeMode"
    } else if !requested_modes(claim).is_subset(&access_modes(volume)) {
        "incompatible accessMode"
    } else {
        return None;
    };
    Some(why.into())
}

/// A claim's label selector that is invalid; shown in an event.
#[derive(Debug, thiserror::Error)]
#[error("the claim's selector does not parse: {0}")]
pub struct InvalidSelector(#[source] SelectorError);

/// The volume for a claim that names none: the one that is reserved for it, else (unless the scheduler selects it) of those that
/// match and have the fewest access modes the smallest.
pub fn best<'a, V>(
    claim: &PersistentVolumeClaim,
    volumes: &'a [V],
    delayed: bool,
) -> Result<Option<&'a V>, InvalidSelector>
where
    V: std::ops::Deref<Target = PersistentVolume>,
{
    let spec = claim.spec.as_ref();
    let selector = spec
        .and_then(|s| s.selector.as_ref())
        .map(Selector::from_label_selector)
        .transpose()
        .map_err(InvalidSelector)?;
    let required = requested_modes(claim);
    let matches = |volume: &&&'a V| {
        volume.metadata.deletion_timestamp.is_none()
            && capacity(volume) >= requested(claim)
            && !modes_differ(volume, claim)
            && attributes_class(volume) == requested_attributes_class(claim)
            && required.is_subset(&access_modes(volume))
    };
    let candidates: Vec<&V> = volumes.iter().filter(|v| matches(&v)).collect();
    if let Some(reserved) = candidates.iter().find(|v| is_for(v, claim)) {
        return Ok(Some(reserved));
    }
    if delayed {
        return Ok(None);
    }
    let free = candidates.into_iter().filter(|v| {
        super::claim_ref(v).is_none()
            && volume_phase(v) == "Available"
            && class_of_volume(v) == class_of_claim(claim)
            && selector
                .as_ref()
                .is_none_or(|s| s.matches(v.metadata.labels.as_ref()))
    });
    Ok(free.min_by(|a, b| {
        let key = |v: &V| access_modes(v).len();
        let by_modes = key(a).cmp(&key(b));
        by_modes.then_with(|| capacity(a).cmp(&capacity(b)))
    }))
}

pub fn capacity(volume: &PersistentVolume) -> Quantity {
    let capacity = volume.spec.as_ref().and_then(|s| s.capacity.as_ref());
    quantity(capacity.and_then(|c| c.get(STORAGE)))
}

pub fn requested(claim: &PersistentVolumeClaim) -> Quantity {
    let resources = claim.spec.as_ref().and_then(|s| s.resources.as_ref());
    let requests = resources.and_then(|r| r.requests.as_ref());
    quantity(requests.and_then(|r| r.get(STORAGE)))
}

fn quantity(wire: Option<&k8s_openapi::apimachinery::pkg::api::resource::Quantity>) -> Quantity {
    wire.and_then(|q| Quantity::of(q).ok()).unwrap_or_default()
}

/// Whether their volumeModes differ.
pub fn modes_differ(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let mode = |m: Option<&String>| m.map_or("Filesystem", String::as_str).to_string();
    let required = claim.spec.as_ref().and_then(|s| s.volume_mode.as_ref());
    let has = volume.spec.as_ref().and_then(|s| s.volume_mode.as_ref());
    mode(required) != mode(has)
}

fn set(modes: Option<&Vec<String>>) -> BTreeSet<&str> {
    modes.into_iter().flatten().map(String::as_str).collect()
}

fn access_modes(volume: &PersistentVolume) -> BTreeSet<&str> {
    set(volume.spec.as_ref().and_then(|s| s.access_modes.as_ref()))
}

fn requested_modes(claim: &PersistentVolumeClaim) -> BTreeSet<&str> {
    let spec: Option<&PersistentVolumeClaimSpec> = claim.spec.as_ref();
    set(spec.and_then(|s| s.access_modes.as_ref()))
}

fn attributes_class(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    spec.and_then(|s| s.volume_attributes_class_name.as_deref())
        .unwrap_or("")
}

fn requested_attributes_class(claim: &PersistentVolumeClaim) -> &str {
    let spec = claim.spec.as_ref();
    spec.and_then(|s| s.volume_attributes_class_name.as_deref())
        .unwrap_or("")
}
