//! NodeAffinity: nodeSelector and node affinity, what is required and what is preferred.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use knarr_api::k8s_openapi;

use super::{Plugin, Refusal, normalize};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;

/// See the module.
pub struct NodeAffinity;

/// Whether one of its terms matches; no term matches nothing.
pub fn matches(selector: &NodeSelector, node: &NodeInfo) -> bool {
    selector
        .node_selector_terms
        .iter()
        .any(|term| matches_term(term, node))
}

/// A term without any requirement matches nothing.
pub fn matches_term(term: &NodeSelectorTerm, node: &NodeInfo) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let empty = BTreeMap::new();
    let labels = node.labels().unwrap_or(&empty);
    let field = |key: &str| (key == "metadata.name").then_some(node.name.as_str());
    expressions
        .iter()
        .all(|r| matches_requirement(r, labels.get(&r.key).map(String::as_str)))
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

/// Whether a node meets what the pod requires of its labels and name.
pub fn meets_required(pod: &PodInfo, node: &NodeInfo) -> bool {
    let spec = pod.pod.spec.as_ref();
    let wanted = spec.and_then(|s| s.node_selector.as_ref());
    let has = |key: &String, value: &String| node.labels().and_then(|l| l.get(key)) == Some(value);
    wanted.is_none_or(|wanted| wanted.iter().all(|(k, v)| has(k, v)))
        && pod
            .required_node_affinity()
            .is_none_or(|selector| matches(selector, node))
}

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }

    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Refusal> {
        if meets_required(pod, node) {
            return Ok(());
        }
        Err(Refusal::of_node(
            "node(s) didn't match Pod's node affinity/selector",
        ))
    }

    fn weight(&self) -> i64 {
        2
    }

    fn scores(&self, pod: &PodInfo) -> bool {
        !preferred(pod).is_empty()
    }

    fn score(&self, pod: &PodInfo, node: &NodeInfo) -> i64 {
        let terms = preferred(pod)
            .iter()
            .filter(|term| matches_term(&term.preference, node));
        terms.map(|term| i64::from(term.weight)).sum()
    }

    fn normalize(&self, scores: &mut [i64]) {
        normalize(scores, false);
    }
}

fn preferred(pod: &PodInfo) -> &[k8s_openapi::api::core::v1::PreferredSchedulingTerm] {
    let affinity = pod.pod.spec.as_ref().and_then(|s| s.affinity.as_ref());
    let affinity = affinity.and_then(|a| a.node_affinity.as_ref());
    affinity
        .and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_deref())
        .unwrap_or_default()
}
