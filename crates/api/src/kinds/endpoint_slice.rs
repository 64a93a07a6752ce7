//! EndpointSlice: the endpoints that are pods.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;

/// Whether the slice lists the pod, by its uid, as an endpoint that is ready. An unset condition counts as ready.
pub fn has_ready(slice: &EndpointSlice, pod: &Pod) -> bool {
    slice.endpoints.iter().flatten().any(|endpoint| {
        let about = endpoint.target_ref.as_ref();
        let ready = endpoint.conditions.as_ref().and_then(|c| c.ready);
        about.is_some_and(|r| r.uid.is_some() && r.uid == pod.metadata.uid) && ready != Some(false)
    })
}
