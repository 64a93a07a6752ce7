//! Discovery documents, made from the registry: legacy and aggregated (apidiscovery.k8s.io/v2).

use serde_json::Value;

/// `GET /api` (meta/v1 APIVersions).
pub fn api_versions(_server_address: &str) -> Value {
    Value::Null
}

/// `GET /apis` (APIGroupList).
pub fn group_list() -> Value {
    Value::Null
}

/// `GET /apis/{group}` (APIGroup); `None` for an unknown group.
pub fn group(_group: &str) -> Option<Value> {
    None
}

/// `GET /api/v1`, `GET /apis/{group}/{version}` (APIResourceList); `None` for an unknown one.
pub fn resource_list(_group: &str, _version: &str) -> Option<Value> {
    None
}

/// The aggregated document (APIGroupDiscoveryList) for `/api` (`core`) or `/apis`.
pub fn aggregated(_core: bool) -> Value {
    Value::Null
}
