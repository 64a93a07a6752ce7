//! StorageObjectInUseProtection: volumes, claims and volume attributes classes carry a finalizer from the start, so
//! that they outlive what uses them. The controllers of the same name take it off.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use knarr_api::{AnyObject, k8s_openapi};

pub(super) fn admit(object: &mut dyn AnyObject) {
    let any = object.as_any();
    let finalizer = if any.is::<PersistentVolumeClaim>() {
        "kubernetes.io/pvc-protection"
    } else if any.is::<PersistentVolume>() {
        "kubernetes.io/pv-protection"
    } else if any.is::<VolumeAttributesClass>() {
        "kubernetes.io/vac-protection"
    } else {
        return;
    };
    let finalizers = object.metadata_mut().finalizers.get_or_insert_default();
    if finalizers.iter().all(|f| f != finalizer) {
        finalizers.push(finalizer.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_api::k8s_openapi::api::core::v1::ConfigMap;

    #[test]
    fn only_what_stores_is_protected_and_only_once() {
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.finalizers = Some(vec!["a.example/b".into()]);
        admit(&mut claim);
        admit(&mut claim);
        let expected = ["a.example/b", "kubernetes.io/pvc-protection"];
        assert_eq!(claim.metadata.finalizers.unwrap(), expected);
        let mut map = ConfigMap::default();
        admit(&mut map);
        assert_eq!(map.metadata.finalizers, None);
    }
}
