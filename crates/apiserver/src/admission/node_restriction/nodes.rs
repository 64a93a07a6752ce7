//! Nodes: a node sets on itself only labels that attract no pods, and no taints or owners.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use knarr_api::k8s_openapi;

use crate::admission::{Denial, deny};

/// Labels that a node may set on itself.
const KUBELET_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
/// Label prefixes that a node may set on itself, subdomains included.
const KUBELET_LABEL_NAMESPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
const NODE_RESTRICTION_NAMESPACE: &str = "node-restriction.kubernetes.io";

pub(super) fn validate_node(old: Option<&Node>, new: &Node, node: &str) -> Result<(), Denial> {
    let spec = |n: &Node| n.spec.clone().unwrap_or_default();
    let config = spec(new).config_source;
    let Some(old) = old else {
        if config.is_some() {
            return deny(format!(
                "node {node:?} is not allowed to create pods with a non-nil configSource"
            ));
        }
        return match forbidden_labels(None, new.metadata.labels.as_ref()) {
            none if none.is_empty() => Ok(()),
            some => deny(format!(
                "node {node:?} is not allowed to set the following labels: {some}"
            )),
        };
    };
    if config.is_some() && config != spec(old).config_source {
        return deny(format!(
            "node {node:?} is not allowed to update configSource to a new non-nil configSource"
        ));
    }
    if spec(old).taints.unwrap_or_default() != spec(new).taints.unwrap_or_default() {
        return deny(format!("node {node:?} is not allowed to modify taints"));
    }
    let owners = |n: &Node| n.metadata.owner_references.clone().unwrap_or_default();
    if owners(old) != owners(new) {
        return deny(format!("node {node:?} is not allowed to modify ownerReferences"));
    }
    match forbidden_labels(old.metadata.labels.as_ref(), new.metadata.labels.as_ref()) {
        none if none.is_empty() => Ok(()),
        some => deny(format!("is not allowed to modify labels: {some}")),
    }
}

type Labels = BTreeMap<String, String>;

/// The labels that differ and that a node may not set, separated by commas.
fn forbidden_labels(old: Option<&Labels>, new: Option<&Labels>) -> String {
    let empty = Labels::new();
    let (old, new) = (old.unwrap_or(&empty), new.unwrap_or(&empty));
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let forbidden: Vec<&str> = keys
        .into_iter()
        .filter(|key| old.get(*key) != new.get(*key) && is_forbidden(key))
        .map(String::as_str)
        .collect();
    forbidden.join(", ")
}

fn is_forbidden(label: &str) -> bool {
    let namespace = label.split_once('/').map_or("", |(n, _)| n);
    let within =
        |of: &str| namespace == of || namespace.strip_suffix(of).is_some_and(|head| head.ends_with('.'));
    if within(NODE_RESTRICTION_NAMESPACE) {
        return true;
    }
    let of_kubernetes = within("kubernetes.io") || within("k8s.io");
    of_kubernetes && !KUBELET_LABELS.contains(&label) && !KUBELET_LABEL_NAMESPACES.iter().any(|n| within(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_sets_only_labels_that_attract_no_pods() {
        for (label, forbidden) in [
            ("mine", false),
            ("example.com/x", false),
            ("kubernetes.io/hostname", false),
            ("node.kubernetes.io/anything", false),
            ("x.kubelet.kubernetes.io/anything", false),
            ("node-role.kubernetes.io/control-plane", true),
            ("kubernetes.io/other", true),
            ("x.k8s.io/other", true),
            ("node-restriction.kubernetes.io/x", true),
            ("a.node-restriction.kubernetes.io/x", true),
            ("notkubernetes.io/x", false),
        ] {
            assert_eq!(is_forbidden(label), forbidden, "{label}");
        }
    }
}
