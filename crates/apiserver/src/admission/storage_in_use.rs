//! StorageObjectInUseProtection: claims, volumes and volume attributes classes are created with the finalizer that keeps
//! them while they are in use.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use knarr_api::well_known::{ATTRIBUTES_CLASS_PROTECTION, CLAIM_PROTECTION, VOLUME_PROTECTION};
use knarr_api::{AnyObject, k8s_openapi};

pub(super) fn mutate(object: &mut dyn AnyObject) {
    let finalizer = if object.as_any().is::<PersistentVolumeClaim>() {
        CLAIM_PROTECTION
    } else if object.as_any().is::<PersistentVolume>() {
        VOLUME_PROTECTION
    } else if object.as_any().is::<VolumeAttributesClass>() {
        ATTRIBUTES_CLASS_PROTECTION
    } else {
        return;
    };
    let finalizers = object.metadata_mut().finalizers.get_or_insert_default();
    if !finalizers.iter().any(|f| f == finalizer) {
        finalizers.push(finalizer.into());
    }
}

#[cfg(test)]
mod tests {
    use knarr_api::k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    #[test]
    fn only_storage_objects_get_the_finalizer_and_only_once() {
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.finalizers = Some(vec!["a.example/b".into()]);
        mutate(&mut claim);
        mutate(&mut claim);
        let expected = ["a.example/b", "kubernetes.io/pvc-protection"];
        assert_eq!(claim.metadata.finalizers.unwrap(), expected);
        let mut map = ConfigMap::default();
        mutate(&mut map);
        assert_eq!(map.metadata.finalizers, None);
    }
}
