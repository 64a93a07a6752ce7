//! Scale: how it is decoded, and made from the parts of an object that it shows.

use k8s_openapi::api::autoscaling::v1::{Scale, ScaleSpec, ScaleStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api_type::ApiType;

impl ApiType for Scale {}

/// The scale of the object with this metadata: the desired and current replicas, and their selector.
pub(crate) fn new_scale(
    meta: &ObjectMeta,
    desired: Option<i32>,
    current: Option<i32>,
    selector: &str,
) -> Scale {
    Scale {
        metadata: ObjectMeta {
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
            creation_timestamp: meta.creation_timestamp.clone(),
            ..ObjectMeta::default()
        },
        spec: Some(ScaleSpec {
            // Go omits a zero.
            replicas: desired.filter(|n| *n != 0),
        }),
        status: Some(ScaleStatus {
            replicas: current.unwrap_or(0),
            selector: Some(selector.to_string()).filter(|s| !s.is_empty()),
        }),
    }
}
