//! The nodes of each domain: how many are Ready, since when none is, and what the nodes of each group have in common.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::jiff::Timestamp;
use knarr_api::well_known::HOSTNAME;
use knarr_api::{Shared, k8s_openapi};

use super::kinds::{LABELS_MAX, NodeTemplate, Spec, TAINTS_MAX};
use crate::node::condition;

/// Prefixes of taints that come and go with a node's state: the next node does not have them.
const TRANSIENT_TAINTS: [&str; 5] = [
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "karpenter.sh/",
];

/// The nodes of one domain.
#[derive(Debug)]
pub(super) struct Observed {
    pub(super) nodes: usize,
    pub(super) ready_nodes: usize,
    /// When the last of its nodes ceased to be Ready, of those that are not Ready.
    pub(super) last_ready: Timestamp,
    /// By name; empty without `spec.nodeGroupLabel`.
    pub(super) groups: BTreeMap<String, NodeTemplate>,
}

/// All domains that have nodes.
pub(super) fn observe<'a>(
    spec: &Spec,
    nodes: &'a [Shared<Node>],
    now: Timestamp,
) -> BTreeMap<&'a str, Observed> {
    let mut domains: BTreeMap<&str, Observed> = BTreeMap::new();
    for node in nodes {
        let node: &Node = node;
        let Some(name) = label(node, &spec.topology_key) else {
            continue;
        };
        let domain = domains.entry(name).or_insert_with(|| Observed {
            nodes: 0,
            ready_nodes: 0,
            last_ready: Timestamp::MIN,
            groups: BTreeMap::new(),
        });
        domain.nodes += 1;
        match not_ready_since(node, now) {
            None => domain.ready_nodes += 1,
            Some(since) => domain.last_ready = domain.last_ready.max(since),
        }
        let group = Some(&spec.node_group_label).filter(|l| !l.is_empty());
        let Some(group) = group.and_then(|l| label(node, l)).filter(|g| !g.is_empty()) else {
            continue;
        };
        match domain.groups.get_mut(group) {
            Some(template) => narrow(template, node),
            None => {
                domain.groups.insert(group.into(), template(spec, group, node));
            }
        }
    }
    for template in domains.values_mut().flat_map(|d| d.groups.values_mut()) {
        template.labels = std::mem::take(&mut template.labels)
            .into_iter()
            .take(LABELS_MAX)
            .collect();
        template.taints.truncate(TAINTS_MAX);
    }
    domains
}

fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Since when the node is not Ready; `None` if it is. A node that has never reported is not Ready since it was created.
fn not_ready_since(node: &Node, now: Timestamp) -> Option<Timestamp> {
    let ready = condition(node, "Ready");
    if ready.is_some_and(|c| c.status == "True") {
        return None;
    }
    let transition = ready.and_then(|c| c.last_transition_time.as_ref());
    let since = transition.or(node.metadata.creation_timestamp.as_ref());
    Some(since.map_or(now, |t| t.0))
}

fn taints(node: &Node) -> impl Iterator<Item = Taint> {
    let all = node.spec.as_ref().and_then(|s| s.taints.as_deref());
    let lasting = all.unwrap_or_default().iter().filter(|taint| {
        !TRANSIENT_TAINTS
            .iter()
            .any(|prefix| taint.key.starts_with(prefix))
    });
    lasting.map(|taint| Taint {
        time_added: None,
        ..taint.clone()
    })
}

/// What the first node of a group has.
fn template(spec: &Spec, group: &str, node: &Node) -> NodeTemplate {
    let mut labels = node.metadata.labels.clone().unwrap_or_default();
    labels.remove(HOSTNAME);
    labels.remove(&spec.topology_key);
    NodeTemplate {
        node_group: group.into(),
        labels,
        taints: taints(node).collect(),
        ..NodeTemplate::default()
    }
}

/// Leaves what this node has, too.
fn narrow(template: &mut NodeTemplate, node: &Node) {
    template
        .labels
        .retain(|key, value| label(node, key) == Some(value.as_str()));
    let has: Vec<Taint> = taints(node).collect();
    template.taints.retain(|taint| has.contains(taint));
}
