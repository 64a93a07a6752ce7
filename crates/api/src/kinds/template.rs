//! Pod templates of workloads: what decoding marks in them, and their plain JSON.
//!
//! The encoders and the decoder here are not generic, so that the code for all types in a template is compiled in this crate only.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use knarr_apimachinery::codec;
use knarr_apimachinery::labels::has_no_requirement;
use serde::de::Error as _;
use serde_json::Value;

/// A copy, as [`Registered::deep_copy`](crate::registry::Registered::deep_copy) for whole objects.
#[inline(never)]
#[must_use]
pub fn deep_copy(template: &PodTemplateSpec) -> PodTemplateSpec {
    template.clone()
}

/// The template as serde writes it: fields in the order of the schema, maps sorted. Equal templates have equal texts.
///
/// # Errors
///
/// Never for a typed template.
#[inline(never)]
pub fn to_string(template: &PodTemplateSpec) -> serde_json::Result<String> {
    codec::to_plain_string(template)
}

/// The same as a tree.
///
/// # Errors
///
/// As [`to_string`].
#[inline(never)]
pub fn to_value(template: &PodTemplateSpec) -> serde_json::Result<Value> {
    codec::to_plain_value(template)
}

/// The template that [`to_value`] wrote.
///
/// # Errors
///
/// If the value is no template.
#[inline(never)]
pub fn from_value(value: Value) -> serde_json::Result<PodTemplateSpec> {
    // As pods are decoded: another decoder would be compiled for all types of a template.
    let json = serde_json::to_vec(&value)?;
    let (template, _) = codec::decode(&json).map_err(serde_json::Error::custom)?;
    Ok(template)
}

/// k8s-openapi decodes an absent `spec.selector` and an empty one to the same value, but they are rejected with different
/// errors. An empty one gets an empty map of labels here. Such an object is always rejected, so no client sees the map.
pub(super) fn distinguish_empty_selector(selector: &mut LabelSelector, json: &[u8]) {
    if has_no_requirement(selector) {
        let document: Value = serde_json::from_slice(json).unwrap_or_default();
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
        let document: Value = serde_json::from_slice(json).unwrap_or_default();
        if document["spec"]["template"]["metadata"]["labels"].is_object() {
            meta.labels.get_or_insert_default();
        }
    }
}
