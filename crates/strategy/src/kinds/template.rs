//! The rules for pod template and selector that Deployment, ReplicaSet, StatefulSet, DaemonSet and
//! ReplicationController share. Those for the pod itself are in [`super::pod`].

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::labels::{Selector, has_no_requirement};
use knarr_apimachinery::meta;

use super::checks::{Json, json, json_selector, label_selector, text};
use super::pod::{drop_disabled_fields, pod_template_warnings, set_pod_spec_defaults, validate_pod_template};
use super::warnings::{name_warning, scale_down_warning, scale_down_warning_on_update};
use crate::table::{self, Cell};

/// Sets the defaults of a template, which always has metadata and a pod spec, and drops fields of disabled features. v1.36 drops
/// those later; no stored template can have them, so the result is the same.
pub fn set_defaults(template: &mut PodTemplateSpec) {
    template.metadata.get_or_insert_default();
    let spec = template.spec.get_or_insert_default();
    set_pod_spec_defaults(spec);
    drop_disabled_fields(spec);
}

/// Warnings about the pods of a workload whose template is at `spec.template`.
pub fn warnings(template: &PodTemplateSpec) -> Vec<String> {
    warnings_at(template, &Path::new("spec").child("template"))
}

/// Warnings about a workload whose pods are named after it and may be scaled down by a policy: Deployment, ReplicaSet and
/// ReplicationController.
pub fn workload_warnings(metadata: &ObjectMeta, template: Option<&PodTemplateSpec>) -> Vec<String> {
    let name = name_warning(text(&metadata.name));
    let scale_down = scale_down_warning(metadata);
    let all = name.into_iter().chain(scale_down);
    all.chain(template.map(warnings).unwrap_or_default()).collect()
}

/// The same on an update. The template is only checked if the generation changed: an update of the metadata alone does not repeat its warnings.
pub fn workload_warnings_on_update(
    metadata: &ObjectMeta,
    old: &ObjectMeta,
    template: Option<&PodTemplateSpec>,
) -> Vec<String> {
    let scale_down = scale_down_warning_on_update(metadata, old);
    let of_template = match metadata.generation == old.generation {
        true => Vec::new(),
        false => template.map(warnings).unwrap_or_default(),
    };
    scale_down.into_iter().chain(of_template).collect()
}

pub fn warnings_at(template: &PodTemplateSpec, path: &Path) -> Vec<String> {
    pod_template_warnings(template, path)
}

/// Validates the pod template.
pub fn validate(template: &PodTemplateSpec, path: &Path) -> ErrorList {
    validate_pod_template(template, path)
}

/// Validates a selector and a template for pods that are always restarted. `kind` is the name in the error for an empty selector.
pub fn validate_selected(
    selector: &LabelSelector,
    template: Option<&PodTemplateSpec>,
    kind: &str,
    errors: &mut ErrorList,
) {
    let spec = Path::new("spec");
    let selector_path = spec.child("selector");
    // Decoding distinguishes an absent selector from `{}`. v1.36 does not require a DaemonSet's selector, and
    // reports that it does not match.
    let absent = selector.match_labels.is_none() && selector.match_expressions.is_none();
    let is_required = kind != "daemonset";
    if has_no_requirement(selector) {
        if absent && is_required {
            errors.required(&selector_path, "");
        } else if !absent {
            errors.invalid(
                &selector_path,
                Json(json_selector(selector)),
                format!("empty selector is invalid for {kind}"),
            );
        }
    }
    let mut errs = ErrorList::new();
    label_selector(&mut errs, &selector_path, selector);
    let valid = errs.is_empty();
    errors.extend(errs);
    let path = spec.child("template");
    let Some(template) = template else {
        return errors.required(&path, "");
    };
    let labels = labels(template);
    if !valid && is_required {
        let detail = match kind {
            "statefulset" => "",
            _ => "invalid label selector",
        };
        errors.invalid(&selector_path, Json(json_selector(selector)), detail);
    }
    // An absent selector selects nothing, an empty one everything.
    if valid && (absent || !matches(selector, &labels)) {
        does_not_match(template, &path, errors);
    }
    if valid || !is_required {
        errors.extend(validate_pod_template(template, &path));
    }
    if valid && kind == "statefulset" {
        // The same error a second time, at another path.
        let metadata = template.metadata.clone().unwrap_or_default();
        errors.extend(meta::labels(metadata.labels.as_ref(), &path.child("labels")));
        let at = path.child("annotations");
        errors.extend(meta::annotations(metadata.annotations.as_ref(), &at));
    }
    if valid || !is_required || kind == "statefulset" {
        always_restarted(template, &path, errors);
    }
}

/// [`validate_selected`] for a map selector.
pub fn validate_selected_by_map(
    selector: &BTreeMap<String, String>,
    template: Option<&PodTemplateSpec>,
    errors: &mut ErrorList,
) {
    let path = Path::new("spec").child("template");
    let Some(template) = template else {
        return errors.required(&path, "");
    };
    let labels = labels(template);
    if !selector.iter().all(|(k, v)| labels.get(k) == Some(v)) {
        does_not_match(template, &path, errors);
    }
    errors.extend(validate_pod_template(template, &path));
    always_restarted(template, &path, errors);
}

fn labels(template: &PodTemplateSpec) -> BTreeMap<String, String> {
    let meta = template.metadata.clone().unwrap_or_default();
    meta.labels.unwrap_or_default()
}

pub(super) fn does_not_match(template: &PodTemplateSpec, path: &Path, errors: &mut ErrorList) {
    let labels = template.metadata.as_ref().and_then(|m| m.labels.as_ref());
    let shown = labels.map_or_else(|| Json("null".into()), json);
    errors.invalid(
        &path.child("metadata").child("labels"),
        shown,
        "`selector` does not match template `labels`",
    );
}

fn always_restarted(template: &PodTemplateSpec, path: &Path, errors: &mut ErrorList) {
    let spec = template.spec.clone().unwrap_or_default();
    let policy = text(&spec.restart_policy);
    if policy != "Always" {
        errors.not_supported_in_order(&path.child("spec").child("restartPolicy"), policy, &["Always"]);
    }
}

/// Rejects `activeDeadlineSeconds` in the template of a workload whose pods are always restarted.
pub fn no_deadline(template: Option<&PodTemplateSpec>, kind: &str, errors: &mut ErrorList) {
    let spec = template.and_then(|t| t.spec.as_ref());
    if spec.is_some_and(|s| s.active_deadline_seconds.is_some()) {
        errors.forbidden(
            &Path::new("spec")
                .child("template")
                .child("spec")
                .child("activeDeadlineSeconds"),
            format!("activeDeadlineSeconds in {kind} is not Supported"),
        );
    }
}

/// Whether labels match a selector. An invalid selector matches nothing.
pub fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    Selector::from_label_selector(selector).is_ok_and(|s| s.matches(Some(labels)))
}

/// The cells of [`table::CONTAINERS`] and [`table::IMAGES`].
pub fn cells(template: Option<&PodTemplateSpec>) -> [Cell; 2] {
    let spec = template.and_then(|t| t.spec.as_ref());
    table::containers(spec.map_or(&[], |s| &s.containers))
}

/// The counts of a status, of which none may be negative and most may not exceed the number of replicas.
pub struct ReplicaCounts<'a> {
    pub replicas: i32,
    pub ready: i32,
    pub available: i32,
    /// The name of the ready replicas in the kind's error message.
    pub ready_name: &'static str,
    /// Further counts that may not exceed the replicas: field and count.
    pub others: &'a [(&'static str, i32)],
    /// Further counts that may exceed the replicas: field and count.
    pub free: &'a [(&'static str, i64)],
}

impl ReplicaCounts<'_> {
    pub fn validate(&self, errors: &mut ErrorList) {
        let path = Path::new("status");
        let bounded = [
            ("readyReplicas", self.ready),
            ("availableReplicas", self.available),
        ];
        super::checks::not_negative(errors, &path.child("replicas"), self.replicas);
        for (field, count) in bounded.iter().chain(self.others) {
            super::checks::not_negative(errors, &path.child(field), *count);
        }
        for (field, count) in self.free {
            super::checks::not_negative(errors, &path.child(field), *count);
        }
        for (field, count) in self.others.iter().chain(&bounded) {
            if *count > self.replicas {
                errors.invalid(
                    &path.child(field),
                    *count,
                    "cannot be greater than status.replicas",
                );
            }
        }
        if self.available > self.ready {
            errors.invalid(
                &path.child("availableReplicas"),
                self.available,
                format!("cannot be greater than {}", self.ready_name),
            );
        }
    }
}
