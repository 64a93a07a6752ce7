//! Validation of node affinity, pod affinity and pod anti-affinity.

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm,
    WeightedPodAffinityTerm,
};

use super::{all_invalid, scheduling};
use crate::field::{ErrorList, Path};
use crate::{meta, names};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(super) fn validate(affinity: &Affinity, path: &Path, errors: &mut ErrorList) {
    if let Some(node) = &affinity.node_affinity {
        node_affinity(node, &path.child("nodeAffinity"), errors);
    }
    if let Some(pods) = &affinity.pod_affinity {
        pod_terms(
            pods.required_during_scheduling_ignored_during_execution
                .as_deref(),
            pods.preferred_during_scheduling_ignored_during_execution
                .as_deref(),
            &path.child("podAffinity"),
            errors,
        );
    }
    if let Some(pods) = &affinity.pod_anti_affinity {
        pod_terms(
            pods.required_during_scheduling_ignored_during_execution
                .as_deref(),
            pods.preferred_during_scheduling_ignored_during_execution
                .as_deref(),
            &path.child("podAntiAffinity"),
            errors,
        );
    }
}

/// Validates node affinity of a pod, or `addedAffinity` of a scheduler's configuration.
pub fn validate_node_affinity(affinity: &NodeAffinity, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    node_affinity(affinity, path, &mut errors);
    errors
}

fn node_affinity(affinity: &NodeAffinity, path: &Path, errors: &mut ErrorList) {
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
pub(in crate::kinds) fn node_selector(selector: &NodeSelector, path: &Path, errors: &mut ErrorList) {
    let at = path.child("nodeSelectorTerms");
    if selector.node_selector_terms.is_empty() {
        return errors.required(&at, "must have at least one node selector term");
    }
    for (i, term) in selector.node_selector_terms.iter().enumerate() {
        node_term(term, true, &at.index(i), errors);
    }
}

fn weight(weight: i32, path: &Path, errors: &mut ErrorList) {
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
            all_invalid(errors, &at.index(i), value, names::label_value(value));
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
            all_invalid(errors, &at, value, names::dns1123_subdomain(value));
        }
    } else {
        errors.invalid(
            &path.child("key"),
            &requirement.key,
            "not a valid field selector key",
        );
    }
}

fn pod_terms(
    required: Option<&[PodAffinityTerm]>,
    preferred: Option<&[WeightedPodAffinityTerm]>,
    path: &Path,
    errors: &mut ErrorList,
) {
    for (i, term) in required.into_iter().flatten().enumerate() {
        pod_term(term, &path.child(REQUIRED).index(i), errors);
    }
    for (i, term) in preferred.into_iter().flatten().enumerate() {
        let at = path.child(PREFERRED).index(i);
        weight(term.weight, &at, errors);
        pod_term(&term.pod_affinity_term, &at.child("podAffinityTerm"), errors);
    }
}

fn pod_term(term: &PodAffinityTerm, path: &Path, errors: &mut ErrorList) {
    for (field, selector) in [
        ("labelSelector", &term.label_selector),
        ("namespaceSelector", &term.namespace_selector),
    ] {
        errors.extend(meta::label_selector(selector.as_ref(), &path.child(field)));
    }
    for namespace in term.namespaces.iter().flatten() {
        let messages = names::dns1123_label(namespace);
        all_invalid(errors, &path.child("namespace"), namespace, messages);
    }
    scheduling::match_label_keys(
        term.match_label_keys.as_deref().unwrap_or_default(),
        term.mismatch_label_keys.as_deref().unwrap_or_default(),
        term.label_selector.as_ref(),
        path,
        errors,
    );
    let at = path.child("topologyKey");
    if term.topology_key.is_empty() {
        errors.required(&at, "can not be empty");
    }
    errors.extend(meta::label_name(&term.topology_key, &at));
}
