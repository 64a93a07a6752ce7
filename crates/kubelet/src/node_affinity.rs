//! Whether a node matches a pod's nodeSelector and required node affinity.

use k8s_openapi::api::core::v1::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod};
use knarr_api::k8s_openapi;

pub(crate) fn matches_affinity(pod: &Pod, node: &Node) -> bool {
    let Some(spec) = &pod.spec else { return true };
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let selected = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value));
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    selected && required.is_none_or(|selector| any_term(selector, node))
}

fn any_term(selector: &NodeSelector, node: &Node) -> bool {
    selector.node_selector_terms.iter().any(|t| term(t, node))
}

fn term(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    // An empty term matches no node.
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let label = |key: &str| node.metadata.labels.as_ref()?.get(key).cloned();
    let field = |key: &str| match key {
        "metadata.name" => node.metadata.name.clone(),
        _ => None,
    };
    expressions.iter().all(|e| requirement(e, label(&e.key)))
        && fields.iter().all(|e| requirement(e, field(&e.key)))
}

fn requirement(requirement: &NodeSelectorRequirement, value: Option<String>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = |value: &String| values.contains(value);
    let than = || {
        let number: i64 = value.as_ref()?.parse().ok()?;
        let bound: i64 = values.first()?.parse().ok()?;
        Some(number.cmp(&bound))
    };
    match requirement.operator.as_str() {
        "In" => value.as_ref().is_some_and(listed),
        "NotIn" => !value.as_ref().is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => than() == Some(std::cmp::Ordering::Greater),
        "Lt" => than() == Some(std::cmp::Ordering::Less),
        _ => false,
    }
}
