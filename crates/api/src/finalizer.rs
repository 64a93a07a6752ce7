//! Finalizers: who must agree before an object goes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Whether `finalizer` keeps the object.
pub fn is_held(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().flatten().any(|f| f == finalizer)
}

/// Keeps the object.
pub fn hold(meta: &mut ObjectMeta, finalizer: &str) {
    if !is_held(meta, finalizer) {
        meta.finalizers.get_or_insert_default().push(finalizer.into());
    }
}

/// Lets the object go, as far as this finalizer is concerned. Without any it has no list, as it is read back.
pub fn release(meta: &mut ObjectMeta, finalizer: &str) {
    let mut others = meta.finalizers.take().unwrap_or_default();
    others.retain(|f| f != finalizer);
    meta.finalizers = (!others.is_empty()).then_some(others);
}
