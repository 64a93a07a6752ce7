//! Finalizers: they keep an object until each of them is removed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Whether the object has `finalizer`.
pub fn contains(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().flatten().any(|f| f == finalizer)
}

/// Adds `finalizer`, if the object does not have it.
pub fn add(meta: &mut ObjectMeta, finalizer: &str) {
    if !contains(meta, finalizer) {
        meta.finalizers.get_or_insert_default().push(finalizer.into());
    }
}

/// Removes `finalizer`. With none left the field is absent, as in an object read from the API.
pub fn remove(meta: &mut ObjectMeta, finalizer: &str) {
    let mut others = meta.finalizers.take().unwrap_or_default();
    others.retain(|f| f != finalizer);
    meta.finalizers = (!others.is_empty()).then_some(others);
}
