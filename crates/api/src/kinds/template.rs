//! Pod templates of workloads: what decoding marks in them.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use knarr_apimachinery::labels::has_no_requirement;

/// k8s-openapi decodes an absent `spec.selector` and an empty one to the same value, but they are rejected with different
/// errors. An empty one gets an empty map of labels here. Such an object is always rejected, so no client sees the map.
pub(super) fn distinguish_empty_selector(selector: &mut LabelSelector, json: &[u8]) {
    if has_no_requirement(selector) {
        let document: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
        if document["spec"]["selector"].is_object() {
            selector.match_labels.get_or_insert_default();
        }
    }
}

/// The same for the labels of `spec.template`: the error of a selector that does not match shows absent and empty labels
/// differently. Empty labels match no valid selector.
pub(super) fn distinguish_empty_labels(template: &mut PodTemplateSpec, json: &[u8]) {
    let meta = template.metadata.get_or_insert_default();
    if meta.labels.is_none() {
        let document: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
        if document["spec"]["template"]["metadata"]["labels"].is_object() {
            meta.labels.get_or_insert_default();
        }
    }
}
