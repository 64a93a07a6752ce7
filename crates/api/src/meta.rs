//! Rules of `metadata` that hold for every kind (apimachinery `api/validation/objectmeta.go`).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::field::Errors;
use crate::kind::Kind;

/// Mistakes in a new object's metadata (name, namespace, labels, annotations, finalizers, ownerReferences).
pub fn validate(_kind: &Kind, _meta: &ObjectMeta) -> Errors {
    Errors::new()
}

/// Mistakes in an update: what may not change, and what [`validate`] would say.
pub fn validate_update(_kind: &Kind, _meta: &ObjectMeta, _old: &ObjectMeta) -> Errors {
    Errors::new()
}
