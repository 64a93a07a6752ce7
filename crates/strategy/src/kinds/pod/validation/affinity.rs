//! Validation of node affinity, pod affinity and pod anti-affinity.

use k8s_openapi::api::core::v1::{Affinity, PodAffinityTerm, WeightedPodAffinityTerm};
use knarr_api::kinds::node_affinity::{node_affinity, weight};
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::meta;
use knarr_apimachinery::names;

use super::scheduling;

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
        errors.all_invalid(&path.child("namespace"), namespace, messages);
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
