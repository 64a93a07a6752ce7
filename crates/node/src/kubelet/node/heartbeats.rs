//! Whether a node's status says anything new, besides the time of its heartbeats.

use k8s_openapi::api::core::v1::{NodeCondition, NodeStatus};
use knarr_api::k8s_openapi;

/// Whether the two differ in nothing but `lastHeartbeatTime`. Nothing is copied: a kubelet asks at every sync of its node's status.
/// Every field is named, so that one that Kubernetes adds is not left out.
pub(super) fn same_but_for_heartbeats(a: &NodeStatus, b: &NodeStatus) -> bool {
    let NodeStatus {
        addresses,
        allocatable,
        capacity,
        conditions,
        config,
        daemon_endpoints,
        declared_features,
        features,
        images,
        node_info,
        phase,
        runtime_handlers,
        volumes_attached,
        volumes_in_use,
    } = a;
    let same_conditions = match (conditions, &b.conditions) {
        (Some(a), Some(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_condition(a, b)),
        (None, None) => true,
        _ => false,
    };
    same_conditions
        && *addresses == b.addresses
        && *allocatable == b.allocatable
        && *capacity == b.capacity
        && *config == b.config
        && *daemon_endpoints == b.daemon_endpoints
        && *declared_features == b.declared_features
        && *features == b.features
        && *images == b.images
        && *node_info == b.node_info
        && *phase == b.phase
        && *runtime_handlers == b.runtime_handlers
        && *volumes_attached == b.volumes_attached
        && *volumes_in_use == b.volumes_in_use
}

fn same_condition(a: &NodeCondition, b: &NodeCondition) -> bool {
    let NodeCondition {
        last_heartbeat_time: _,
        last_transition_time,
        message,
        reason,
        status,
        type_,
    } = a;
    *type_ == b.type_
        && *status == b.status
        && *reason == b.reason
        && *message == b.message
        && *last_transition_time == b.last_transition_time
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_status_is_the_same_if_only_heartbeats_differ() {
        let status = || {
            json!({
                "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
                "allocatable": {"cpu": "1"}, "capacity": {"cpu": "1"},
                "conditions": [{"type": "Ready", "status": "True", "reason": "r", "message": "m",
                    "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "images": [{"names": ["i"]}],
            })
        };
        for (pointer, value, is_same) in [
            (
                "/conditions/0/lastHeartbeatTime",
                json!("2026-01-01T00:00:10Z"),
                true,
            ),
            ("/conditions/0/lastHeartbeatTime", Value::Null, true),
            (
                "/conditions/0/lastTransitionTime",
                json!("2026-01-01T00:00:10Z"),
                false,
            ),
            ("/conditions/0/status", json!("False"), false),
            ("/conditions/0/reason", json!("other"), false),
            ("/conditions/0/message", json!("other"), false),
            ("/conditions", json!([]), false),
            ("/conditions", Value::Null, false),
            ("/addresses/0/address", json!("192.0.2.2"), false),
            ("/allocatable/cpu", json!("2"), false),
            ("/capacity/cpu", json!("2"), false),
            ("/images", json!([]), false),
        ] {
            let before: NodeStatus = serde_json::from_value(status()).unwrap();
            let mut after = status();
            *after.pointer_mut(pointer).unwrap() = value.clone();
            let after: NodeStatus = serde_json::from_value(after).unwrap();
            assert_eq!(
                same_but_for_heartbeats(&before, &after),
                is_same,
                "{pointer} {value}"
            );
        }
    }
}
