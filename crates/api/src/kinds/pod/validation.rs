//! Mistakes in a PodSpec.

use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::field::{Errors, Path};

/// Mistakes in a template at `path` (`spec.template`): labels, annotations and spec.
pub fn validate_pod_template(_template: &PodTemplateSpec, _path: &Path) -> Errors {
    Errors::new()
}

/// Mistakes in a PodSpec at `path`. `meta` is the pod's own metadata, absent for a template.
pub fn validate_pod_spec(_spec: &PodSpec, _meta: Option<&ObjectMeta>, _path: &Path) -> Errors {
    Errors::new()
}
