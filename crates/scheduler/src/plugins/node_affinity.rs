//! NodeAffinity: nodeSelector and node affinity, required and preferred.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PreferredSchedulingTerm,
};
use knarr_api::k8s_openapi;

use super::UnschedulableStatus;
use crate::node_info::NodeInfo;
use crate::pod_info::PodClass;
use crate::profile::Profile;

pub const NAME: &str = "NodeAffinity";
/// Node names that exclude each other.
pub const CONFLICT: &str = "pod affinity terms conflict";

/// Whether one of its terms matches; no terms match nothing.
pub fn matches(selector: &NodeSelector, node: &NodeInfo) -> bool {
    selector
        .node_selector_terms
        .iter()
        .any(|term| matches_term(term, node))
}

/// A term without requirements matches nothing.
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

/// Whether a node matches the pod's nodeSelector and required node affinity.
pub fn meets_required(pod: &PodClass, node: &NodeInfo) -> bool {
    let spec = pod.spec();
    let wanted = spec.and_then(|s| s.node_selector.as_ref());
    let has = |key: &String, value: &String| node.labels().and_then(|l| l.get(key)) == Some(value);
    wanted.is_none_or(|wanted| wanted.iter().all(|(k, v)| has(k, v)))
        && pod
            .required_node_affinity()
            .is_none_or(|selector| matches(selector, node))
}

/// The nodes that the names in matchFields leave: `None` is all of them.
pub fn named_nodes(pod: &PodClass) -> Option<BTreeSet<String>> {
    let selector = pod.required_node_affinity()?;
    let mut all: Option<BTreeSet<String>> = None;
    for term in &selector.node_selector_terms {
        let mut named: Option<BTreeSet<String>> = None;
        let fields = term.match_fields.iter().flatten();
        for field in fields.filter(|r| r.key == "metadata.name" && r.operator == "In") {
            let values: BTreeSet<String> = field.values.iter().flatten().cloned().collect();
            named = Some(match named {
                None => values,
                Some(named) => named.intersection(&values).cloned().collect(),
            });
        }
        // A term without names may match any node.
        all.get_or_insert_default().extend(named?);
    }
    all
}

pub fn filter(profile: &Profile, pod: &PodClass, node: &NodeInfo) -> Result<(), UnschedulableStatus> {
    if let Some(added) = &profile.node_affinity.required
        && !matches(added, node)
    {
        return Err(UnschedulableStatus::unresolvable(
            NAME,
            "node(s) didn't match scheduler-enforced node affinity",
        ));
    }
    if meets_required(pod, node) {
        return Ok(());
    }
    Err(UnschedulableStatus::unresolvable(
        NAME,
        "node(s) didn't match Pod's node affinity/selector",
    ))
}

/// Whether the plugin scores this pod.
pub fn scores(profile: &Profile, pod: &PodClass) -> bool {
    !preferred(pod).is_empty() || !profile.node_affinity.preferred.is_empty()
}

/// The sum of the weights of the preferred terms that match the node.
pub fn score(profile: &Profile, pod: &PodClass, node: &NodeInfo) -> i64 {
    let terms = preferred(pod).iter().chain(&profile.node_affinity.preferred);
    let met = terms.filter(|term| term.weight != 0 && matches_term(&term.preference, node));
    met.map(|term| i64::from(term.weight)).sum()
}

fn preferred(pod: &PodClass) -> &[PreferredSchedulingTerm] {
    pod.node_affinity()
        .and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_deref())
        .unwrap_or_default()
}
