//! PodTopologyLabels: a pod learns by its labels in which zone and region its node is.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::{k8s_openapi, registry};

use crate::server::Server;

const LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

/// A pod that comes with its node.
pub(super) fn admit(server: &Server, pod: &mut Pod) {
    let Some(node) = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) else {
        return;
    };
    let labels = of_node(server, node);
    if !labels.is_empty() {
        pod.metadata.labels.get_or_insert_default().extend(labels);
    }
}

/// What is to be said of pods on this node; nothing if it is not known.
pub(crate) fn of_node(server: &Server, node: &str) -> BTreeMap<String, String> {
    let found = server
        .cache
        .get(&registry::NODE, "", node)
        .filter(|_| !node.is_empty());
    let labels = found.as_ref().and_then(|node| node.metadata().labels.as_ref());
    let taken = labels
        .into_iter()
        .flatten()
        .filter(|(key, _)| LABELS.contains(&key.as_str()));
    taken.map(|(key, value)| (key.clone(), value.clone())).collect()
}
