//! StorageObjectInUseProtection: claims and volumes begin with the finalizer that holds them while they are in use.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use knarr_api::{AnyObject, k8s_openapi};

const CLAIM: &str = "kubernetes.io/pvc-protection";
const VOLUME: &str = "kubernetes.io/pv-protection";

pub(super) fn admit(object: &mut dyn AnyObject) {
    let finalizer = if object.as_any().is::<PersistentVolumeClaim>() {
        CLAIM
    } else if object.as_any().is::<PersistentVolume>() {
        VOLUME
    } else {
        return;
    };
    let finalizers = object.metadata_mut().finalizers.get_or_insert_default();
    if !finalizers.iter().any(|f| f == finalizer) {
        finalizers.push(finalizer.into());
    }
}
