//! PersistentVolumeClaimResize: a claim can be expanded only when it is bound and its storage class allows volume expansion.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use knarr_api::kinds::pod::resources::amounts;
use knarr_api::quota::storage_class;
use knarr_api::{AnyObject, k8s_openapi, registry};
use knarr_apimachinery::Error;
use knarr_apimachinery::quantity::Quantity;

use super::{Admission, Attributes};

pub(super) fn validate(
    admission: &Admission,
    attributes: &Attributes<'_>,
    object: &dyn AnyObject,
) -> Result<(), Error> {
    let Some(claim) = object.as_any().downcast_ref::<PersistentVolumeClaim>() else {
        return Ok(());
    };
    let Some(old) = attributes.old.and_then(|old| old.get::<PersistentVolumeClaim>()) else {
        return Ok(());
    };
    if requested_storage(claim) <= requested_storage(old) {
        return Ok(());
    }
    let denied = |why: &str| Err(attributes.forbidden(&claim.metadata, why));
    if old.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Bound") {
        return denied("Only bound persistent volume claims can be expanded");
    }
    let class = storage_class(claim).filter(|class| !class.is_empty() && storage_class(old) == Some(*class));
    let found = class.and_then(|class| admission.cache.get(&registry::STORAGE_CLASS, "", class));
    let expands = found
        .and_then(|class| class.get::<StorageClass>()?.allow_volume_expansion)
        .unwrap_or(false);
    if expands {
        return Ok(());
    }
    denied(
        "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
    )
}

fn requested_storage(claim: &PersistentVolumeClaim) -> Quantity {
    let resources = claim.spec.as_ref().and_then(|s| s.resources.as_ref());
    let requests = amounts(resources.and_then(|r| r.requests.as_ref()));
    requests.get("storage").copied().unwrap_or_default()
}
