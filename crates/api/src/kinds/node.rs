//! Node: its selectable fields, readiness and taints.

use k8s_openapi::api::core::v1::Node;

use crate::api_type::ApiType;

/// Taint by which an administrator confirms that the node is shut down and none of its containers run (KEP-2268).
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Whether the node has the taint [`OUT_OF_SERVICE`], with whatever effect.
pub fn has_out_of_service_taint(node: &Node) -> bool {
    let mut taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
    taints.any(|t| t.key == OUT_OF_SERVICE)
}

/// Whether its condition `Ready` is True.
pub fn is_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Whether no pods are scheduled to the node.
pub fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|s| s.unschedulable) == Some(true)
}

impl ApiType for Node {
    const SELECTABLE_FIELDS: &'static [&'static str] = &["spec.unschedulable"];

    fn field(&self, path: &str) -> String {
        match path {
            "spec.unschedulable" => is_cordoned(self).to_string(),
            _ => String::new(),
        }
    }
}
