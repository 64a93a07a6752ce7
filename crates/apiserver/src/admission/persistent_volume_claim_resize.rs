//! PersistentVolumeClaimResize: a claim can grow when it is bound and its storage class says that volumes can.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use knarr_api::kinds::pod::resources::amounts;
use knarr_api::quantity::Quantity;
use knarr_api::quota::storage_class;
use knarr_api::{AnyObject, Error, k8s_openapi, registry};

use super::Attributes;
use crate::server::Server;

pub(super) fn validate(
    server: &Server,
    attributes: &Attributes<'_>,
    object: &dyn AnyObject,
) -> Result<(), Error> {
    let Some(claim) = object.as_any().downcast_ref::<PersistentVolumeClaim>() else {
        return Ok(());
    };
    let Some(old) = attributes.old.and_then(|old| old.get::<PersistentVolumeClaim>()) else {
        return Ok(());
    };
    if asked(claim) <= asked(old) {
        return Ok(());
    }
    let refused = |why: &str| Err(attributes.forbidden(&claim.metadata, why));
    if old.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Bound") {
        return refused("Only bound persistent volume claims can be expanded");
    }
    let class = storage_class(claim).filter(|class| !class.is_empty() && storage_class(old) == Some(*class));
    let found = class.and_then(|class| server.cache.get(&registry::STORAGE_CLASS, "", class));
    let expands = found
        .and_then(|class| class.get::<StorageClass>()?.allow_volume_expansion)
        .unwrap_or(false);
    if expands {
        return Ok(());
    }
    refused(
        "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
    )
}

fn asked(claim: &PersistentVolumeClaim) -> Quantity {
    let resources = claim.spec.as_ref().and_then(|s| s.resources.as_ref());
    let requests = amounts(resources.and_then(|r| r.requests.as_ref()));
    requests.get("storage").copied().unwrap_or_default()
}
