//! Node affinity and node selectors of pods, volumes and the scheduler's configuration: their validation.

use k8s_openapi::api::core::v1::{NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::meta;
use knarr_apimachinery::names;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Validates node affinity of a pod, or `addedAffinity` of a scheduler's configuration.
pub fn validate_node_affinity(affinity: &NodeAffinity, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    node_affinity(affinity, path, &mut errors);
    errors
}

pub fn node_affinity(affinity: &NodeAffinity, path: &Path, errors: &mut ErrorList) {
    if let Some(required) = &affinity.required_during_scheduling_ignored_during_execution {
        let at = path.child(REQUIRED).child("nodeSelectorTerms");
        if required.node_selector_terms.is_empty() {
            errors.required(&at, "must have at least one node selector term");
        }
        for (i, term) in required.node_selector_terms.iter().enumerate() {
            node_term(term, true, &at.index(i), errors);
        }
    }
    let preferred = affinity
        .preferred_during_scheduling_ignored_during_execution
        .iter()
        .flatten();
    for (i, term) in preferred.enumerate() {
        let at = path.child(PREFERRED).index(i);
        weight(term.weight, &at, errors);
        // A preferred term that no label can match is accepted.
        node_term(&term.preference, false, &at.child("preference"), errors);
    }
}

/// Checks a NodeSelector, whose terms are ORed.
pub fn node_selector(selector: &NodeSelector, path: &Path, errors: &mut ErrorList) {
    let at = path.child("nodeSelectorTerms");
    if selector.node_selector_terms.is_empty() {
        return errors.required(&at, "must have at least one node selector term");
    }
    for (i, term) in selector.node_selector_terms.iter().enumerate() {
        node_term(term, true, &at.index(i), errors);
    }
}

/// Validates the weight of a preferred term.
pub fn weight(weight: i32, path: &Path, errors: &mut ErrorList) {
    if !(1..=100).contains(&weight) {
        errors.invalid(&path.child("weight"), weight, "must be in the range 1-100");
    }
}

fn node_term(term: &NodeSelectorTerm, check_values: bool, path: &Path, errors: &mut ErrorList) {
    for (i, requirement) in term.match_expressions.iter().flatten().enumerate() {
        let at = path.child("matchExpressions").index(i);
        node_requirement(requirement, check_values, &at, errors);
    }
    for (i, requirement) in term.match_fields.iter().flatten().enumerate() {
        node_field(requirement, &path.child("matchFields").index(i), errors);
    }
}

fn node_requirement(
    requirement: &NodeSelectorRequirement,
    check_values: bool,
    path: &Path,
    errors: &mut ErrorList,
) {
    let values = requirement.values.as_deref().unwrap_or_default();
    let at = path.child("values");
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.is_empty() => {
            errors.required(&at, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors.forbidden(
                &at,
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            );
        }
        "Gt" | "Lt" if values.len() != 1 => {
            errors.required(
                &at,
                "must be specified single value when `operator` is 'Lt' or 'Gt'",
            );
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
    }
    errors.extend(meta::label_name(&requirement.key, &path.child("key")));
    if check_values {
        for (i, value) in values.iter().enumerate() {
            errors.all_invalid(&at.index(i), value, names::label_value(value));
        }
    }
}

/// Checks a `matchFields` requirement: the only supported field is `metadata.name`.
fn node_field(requirement: &NodeSelectorRequirement, path: &Path, errors: &mut ErrorList) {
    let values = requirement.values.as_deref().unwrap_or_default();
    match requirement.operator.as_str() {
        "In" | "NotIn" => {
            if values.len() != 1 {
                errors.required(
                    &path.child("values"),
                    "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
                );
            }
        }
        other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
    }
    if requirement.key == "metadata.name" {
        for (i, value) in values.iter().enumerate() {
            let at = path.child("values").index(i);
            errors.all_invalid(&at, value, names::dns1123_subdomain(value));
        }
    } else {
        errors.invalid(
            &path.child("key"),
            &requirement.key,
            "not a valid field selector key",
        );
    }
}
