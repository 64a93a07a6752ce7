//! PodTopologyLabels: a pod gets the zone and region labels of its node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::{k8s_openapi, registry};

use super::Admission;

const LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

/// For a pod that is created with `spec.nodeName`; other pods get the labels with their Binding.
pub(super) fn mutate(admission: &Admission, pod: &mut Pod) {
    let Some(node) = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) else {
        return;
    };
    let labels = topology_labels(admission, node);
    if !labels.is_empty() {
        pod.metadata.labels.get_or_insert_default().extend(labels);
    }
}

/// The node's topology labels; empty if the node is not known.
pub(crate) fn topology_labels(admission: &Admission, node: &str) -> BTreeMap<String, String> {
    let found = admission
        .cache
        .get(&registry::NODE, "", node)
        .filter(|_| !node.is_empty());
    let labels = found.as_ref().and_then(|node| node.metadata().labels.as_ref());
    let topology = labels
        .into_iter()
        .flatten()
        .filter(|(key, _)| LABELS.contains(&key.as_str()));
    topology
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}
