//! Whether a node matches node selectors and required node affinity.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec};

/// What a node selector matches: a node's name and labels.
#[derive(Clone, Copy, Debug)]
pub struct Selected<'a> {
    pub name: &'a str,
    pub labels: Option<&'a BTreeMap<String, String>>,
}

impl<'a> Selected<'a> {
    pub fn label(&self, key: &str) -> Option<&'a str> {
        self.labels?.get(key).map(String::as_str)
    }
}

/// Whether one of its terms matches; no terms match nothing.
pub fn matches(selector: &NodeSelector, node: Selected<'_>) -> bool {
    let mut terms = selector.node_selector_terms.iter();
    terms.any(|term| matches_term(term, node))
}

/// A term without requirements matches nothing.
pub fn matches_term(term: &NodeSelectorTerm, node: Selected<'_>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let field = |key: &str| (key == "metadata.name").then_some(node.name);
    !(expressions.is_empty() && fields.is_empty())
        && expressions
            .iter()
            .all(|r| matches_requirement(r, node.label(&r.key)))
        && fields.iter().all(|r| matches_requirement(r, field(&r.key)))
}

fn matches_requirement(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let among = || value.is_some_and(|v| values.iter().any(|w| w == v));
    let compare = |with: fn(i64, i64) -> bool| {
        let has = value.and_then(|v| v.parse().ok());
        let bound = values.first().and_then(|v| v.parse().ok());
        matches!((has, bound), (Some(has), Some(bound)) if with(has, bound))
    };
    match requirement.operator.as_str() {
        "In" => among(),
        "NotIn" => !among(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(|has, bound| has > bound),
        "Lt" => compare(|has, bound| has < bound),
        _ => false,
    }
}

/// Whether a node matches the nodeSelector and the required node affinity of a pod.
pub fn meets_required(spec: &PodSpec, node: Selected<'_>) -> bool {
    let mut wanted = spec.node_selector.iter().flatten();
    let required = required_node_affinity(spec);
    wanted.all(|(key, value)| node.label(key) == Some(value))
        && required.is_none_or(|selector| matches(selector, node))
}

/// The required node affinity of a pod.
pub fn required_node_affinity(spec: &PodSpec) -> Option<&NodeSelector> {
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn d1_selectors_and_required_affinity_match_labels_and_names() {
        let requirement = |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        let expressions = |all: Value| json!([{"matchExpressions": all}]);
        let zone =
            |operator: &str, values: &[&str]| expressions(json!([requirement("zone", operator, values)]));
        let labels: BTreeMap<String, String> = [("zone", "a"), ("rack", "7")]
            .map(|(k, v)| (k.to_string(), v.to_string()))
            .into();
        let node = Selected {
            name: "n1",
            labels: Some(&labels),
        };
        // (nodeSelector, nodeSelectorTerms, whether the node matches)
        let table = [
            (json!({}), Value::Null, true),
            (json!({"zone": "a"}), Value::Null, true),
            (json!({"zone": "b"}), Value::Null, false),
            (json!({}), json!([]), false),
            (json!({}), json!([{}]), false),
            (json!({}), zone("In", &["b", "a"]), true),
            (json!({"rack": "8"}), zone("In", &["a"]), false),
            (json!({}), zone("NotIn", &["a"]), false),
            (json!({}), zone("Exists", &[]), true),
            (json!({}), zone("DoesNotExist", &[]), false),
            (
                json!({}),
                expressions(json!([requirement("rack", "Gt", &["6"])])),
                true,
            ),
            (
                json!({}),
                expressions(json!([requirement("rack", "Lt", &["7"])])),
                false,
            ),
            (json!({}), zone("Gt", &["0"]), false),
            (
                json!({}),
                json!([{"matchFields": [requirement("metadata.name", "In", &["n1"])]}]),
                true,
            ),
            (
                json!({}),
                json!([{"matchFields": [requirement("metadata.name", "In", &["n2"])]}]),
                false,
            ),
        ];
        for (selector, terms, expected) in table {
            let mut spec = json!({"containers": [], "nodeSelector": selector});
            if !terms.is_null() {
                let required = json!({"nodeSelectorTerms": terms});
                spec["affinity"] =
                    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}});
            }
            let pod: PodSpec = serde_json::from_value(spec.clone()).unwrap();
            assert_eq!(meets_required(&pod, node), expected, "{spec}");
        }
    }
}
