//! What the user left out of a PodSpec, as v1.36 fills it in.

use k8s_openapi::api::core::v1::PodSpec;

/// Fills in a PodSpec, wherever it stands (a Pod or a template). What only a Pod gets is not done here.
pub fn set_pod_spec_defaults(_spec: &mut PodSpec) {}
