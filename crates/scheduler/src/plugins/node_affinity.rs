//! NodeAffinity: nodeSelector and node affinity, required and preferred.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorTerm, PreferredSchedulingTerm};
use knarr_api::k8s_openapi;
use knarr_api::kinds::node_selector::{self, Selected};
use knarr_apimachinery::ids::NodeName;

use super::UnschedulableStatus;
use crate::node_info::NodeInfo;
use crate::pod_info::PodClass;
use crate::profile::Profile;

pub const NAME: &str = "NodeAffinity";
/// Node names that exclude each other.
pub const CONFLICT: &str = "pod affinity terms conflict";

fn selected(node: &NodeInfo) -> Selected<'_> {
    Selected {
        name: &node.name,
        labels: node.labels(),
    }
}

/// Whether one of its terms matches; no terms match nothing.
pub fn matches(selector: &NodeSelector, node: &NodeInfo) -> bool {
    node_selector::matches(selector, selected(node))
}

/// A term without requirements matches nothing.
pub fn matches_term(term: &NodeSelectorTerm, node: &NodeInfo) -> bool {
    node_selector::matches_term(term, selected(node))
}

/// Whether a node matches the pod's nodeSelector and required node affinity.
pub fn meets_required(pod: &PodClass, node: &NodeInfo) -> bool {
    let spec = pod.spec();
    spec.is_none_or(|spec| node_selector::meets_required(spec, selected(node)))
}

/// The nodes that the names in matchFields leave: `None` is all of them.
pub fn named_nodes(pod: &PodClass) -> Option<BTreeSet<NodeName>> {
    let selector = pod.required_node_affinity()?;
    let mut all: Option<BTreeSet<NodeName>> = None;
    for term in &selector.node_selector_terms {
        let mut named: Option<BTreeSet<NodeName>> = None;
        let fields = term.match_fields.iter().flatten();
        for field in fields.filter(|r| r.key == "metadata.name" && r.operator == "In") {
            let values: BTreeSet<NodeName> = field.values.iter().flatten().map(NodeName::from).collect();
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
