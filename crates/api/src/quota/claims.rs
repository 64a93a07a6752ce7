//! PersistentVolumeClaims: their number and storage, in all and of each storage class.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, ScopedResourceSelectorRequirement};
use knarr_apimachinery::quantity::Quantity;

use super::{one, selects};
use crate::kinds::pod::resources::{Amounts, amounts};
use crate::well_known::BETA_STORAGE_CLASS;

const COUNT: &str = "count/persistentvolumeclaims";
const CLAIMS: &str = "persistentvolumeclaims";
const STORAGE: &str = "requests.storage";
/// The infix between the name of a storage class and one of the names above.
const OF_CLASS: &str = ".storageclass.storage.k8s.io/";

pub(super) fn counts(name: &str) -> bool {
    let of_class = |of: &str| name.strip_suffix(of).is_some_and(|rest| rest.ends_with(OF_CLASS));
    [COUNT, CLAIMS, STORAGE].contains(&name) || of_class(CLAIMS) || of_class(STORAGE)
}

pub(super) fn usage(claim: &PersistentVolumeClaim) -> Amounts {
    let mut used = Amounts::from([(COUNT.into(), one()), (CLAIMS.into(), one())]);
    let class = class(claim).filter(|c| !c.is_empty());
    if let Some(class) = class {
        used.insert(format!("{class}{OF_CLASS}{CLAIMS}"), one());
    }
    if let Some(storage) = storage(claim) {
        used.insert(STORAGE.into(), storage);
        if let Some(class) = class {
            used.insert(format!("{class}{OF_CLASS}{STORAGE}"), storage);
        }
    }
    used
}

/// The storage class that a claim names, in its spec or as it was named before.
pub fn class(claim: &PersistentVolumeClaim) -> Option<&str> {
    let annotated = claim
        .metadata
        .annotations
        .as_ref()
        .and_then(|a| a.get(BETA_STORAGE_CLASS));
    let named = claim.spec.as_ref().and_then(|s| s.storage_class_name.as_ref());
    annotated.or(named).map(String::as_str)
}

/// The requested storage, or the allocated one where that is more (a cancelled expansion); in integral bytes.
fn storage(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref();
    let requested = *amounts(requests).get("storage")?;
    let allocated = claim.status.as_ref().and_then(|s| s.allocated_resources.as_ref());
    let allocated = amounts(allocated).get("storage").copied();
    let most = allocated
        .filter(|allocated| *allocated > requested)
        .unwrap_or(requested);
    Some(match Quantity::from_value(most.value(), most.notation()) {
        rounded if rounded == most => most,
        rounded => rounded,
    })
}

pub(super) fn matches_scope(
    claim: &PersistentVolumeClaim,
    scope: &ScopedResourceSelectorRequirement,
) -> bool {
    if scope.scope_name != "VolumeAttributesClass" {
        return false;
    }
    let names = attributes_classes(claim);
    match scope.operator.as_str() {
        "Exists" => !names.is_empty(),
        _ if names.is_empty() => selects(scope, None),
        _ => names.iter().any(|name| selects(scope, Some(name))),
    }
}

/// The classes that a claim has, had, or is to have.
fn attributes_classes(claim: &PersistentVolumeClaim) -> BTreeSet<&str> {
    let status = claim.status.as_ref();
    let named = [
        claim
            .spec
            .as_ref()
            .and_then(|s| s.volume_attributes_class_name.as_deref()),
        status.and_then(|s| s.current_volume_attributes_class_name.as_deref()),
        status.and_then(|s| {
            s.modify_volume_status
                .as_ref()?
                .target_volume_attributes_class_name
                .as_deref()
        }),
    ];
    named
        .into_iter()
        .flatten()
        .filter(|name| !name.is_empty())
        .collect()
}

/// Whether a claim now uses other storage, or other quotas apply to it.
pub(super) fn reduces_usage(was: &PersistentVolumeClaim, is: &PersistentVolumeClaim) -> bool {
    usage(was) != usage(is) || attributes_classes(was) != attributes_classes(is)
}
