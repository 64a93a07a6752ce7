//! The objects in the store, decoded without the fields that no rule needs: managedFields are half of most objects,
//! and the observer reads every one that is written.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus, Pod, PodSpec, PodStatus};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use knarr_api::k8s_openapi;
use knarr_api::propagation::Propagation;
use knarr_client::Term;
use knarr_store::Op;
use serde::Deserialize;
use serde_json::Value;

/// How the keys of ResourceQuotas begin.
pub(crate) const QUOTAS: &[u8] = b"/registry/core/resourcequotas/";

pub(crate) fn key_of(op: &Op) -> &[u8] {
    match op {
        Op::Put { key, .. } | Op::Delete { key } => key,
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    /// Users set the at-most-one annotation there.
    annotations: Option<BTreeMap<String, String>>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    owner_references: Option<Vec<OwnerReference>>,
}

impl From<Meta> for ObjectMeta {
    fn from(meta: Meta) -> Self {
        ObjectMeta {
            name: meta.name,
            namespace: meta.namespace,
            uid: meta.uid,
            labels: meta.labels,
            annotations: meta.annotations,
            deletion_timestamp: meta.deletion_timestamp,
            deletion_grace_period_seconds: meta.deletion_grace_period_seconds,
            owner_references: meta.owner_references,
            ..ObjectMeta::default()
        }
    }
}

#[derive(Deserialize)]
struct Stored<S, T> {
    metadata: Meta,
    spec: Option<S>,
    status: Option<T>,
}

/// A pod, with the metadata for its identity, its owners and its deletion.
pub(crate) fn pod(json: &[u8]) -> Option<Pod> {
    let stored: Stored<PodSpec, PodStatus> = serde_json::from_slice(json).ok()?;
    Some(Pod {
        metadata: stored.metadata.into(),
        spec: stored.spec,
        status: stored.status,
    })
}

/// A node, with as little metadata, and the conditions of its status.
pub(crate) fn node(json: &[u8]) -> Option<Node> {
    #[derive(Deserialize)]
    struct Status {
        conditions: Option<Vec<NodeCondition>>,
    }
    let stored: Stored<NodeSpec, Status> = serde_json::from_slice(json).ok()?;
    let status = |status: Status| NodeStatus {
        conditions: status.conditions,
        ..NodeStatus::default()
    };
    Some(Node {
        metadata: stored.metadata.into(),
        spec: stored.spec,
        status: stored.status.map(status),
    })
}

/// The term of a leader's lease.
pub(crate) fn term(json: &[u8]) -> Option<Term> {
    #[derive(Deserialize)]
    struct Identity {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Spec {
        holder_identity: Option<String>,
        lease_transitions: Option<i32>,
    }
    #[derive(Deserialize)]
    struct Lease {
        metadata: Identity,
        spec: Option<Spec>,
    }
    let Lease { metadata, spec } = serde_json::from_slice(json).ok()?;
    let spec = spec.unwrap_or_default();
    Some(Term {
        namespace: metadata.namespace.unwrap_or_default(),
        name: metadata.name.unwrap_or_default(),
        uid: metadata.uid.unwrap_or_default(),
        holder: spec.holder_identity.unwrap_or_default(),
        transitions: spec.lease_transitions.unwrap_or_default(),
    })
}

/// The progress of a workload, by its own status.
pub(crate) fn describe_workload(json: &[u8]) -> String {
    #[derive(Default, Deserialize)]
    struct Spec {
        #[serde(default)]
        replicas: Value,
    }
    #[derive(Deserialize)]
    struct Workload {
        #[serde(default)]
        spec: Spec,
        #[serde(default)]
        status: Value,
    }
    let Ok(Workload { spec, mut status }) = serde_json::from_slice(json) else {
        return String::new();
    };
    if let Some(status) = status.as_object_mut() {
        status.remove("conditions");
    }
    format!(", wants {}, has {status}", spec.replicas)
}

/// The reason and message of an event.
pub(crate) fn describe_event(json: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Event {
        #[serde(default)]
        reason: String,
        #[serde(default)]
        message: String,
    }
    match serde_json::from_slice(json) {
        Ok(Event { reason, message }) => format!(", {reason}: {message}"),
        Err(_) => String::new(),
    }
}

/// The ready and not ready pods of an EndpointSlice.
pub(crate) fn describe_slice(slice: &EndpointSlice) -> String {
    let (ready, other): (Vec<_>, Vec<_>) = slice.endpoints.iter().flatten().partition(|endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions.and_then(|c| c.ready) != Some(false)
    });
    let names = |endpoints: Vec<&Endpoint>| {
        let names = endpoints.into_iter().map(|endpoint| {
            let target = endpoint.target_ref.as_ref();
            target.and_then(|t| t.name.as_deref()).unwrap_or("?")
        });
        names.collect::<Vec<_>>().join(" ")
    };
    format!(", ready: [{}], not ready: [{}]", names(ready), names(other))
}

/// The progress of the kernels of all nodes.
pub(crate) fn describe_propagation(json: &[u8]) -> String {
    let map = serde_json::from_slice(json).ok();
    match map.as_ref().and_then(Propagation::of) {
        Some(all) => format!(
            ", {} nodes have {}, the slowest is {}",
            all.nodes, all.revision, all.slowest
        ),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::Lease;
    use serde_json::json;

    use super::*;

    /// The rules see the same pod, node and term as with everything that is written of them.
    #[test]
    fn what_is_read_of_an_object_is_as_it_is_written() {
        let meta = json!({
            "name": "a", "namespace": "b", "uid": "u", "labels": {"l": "v"}, "deletionGracePeriodSeconds": 3,
            "deletionTimestamp": "2026-01-01T00:00:10Z",
            "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "o", "uid": "w", "controller": true}],
        });
        let text = |spec: Value, status: Value| {
            json!({"metadata": meta, "spec": spec, "status": status}).to_string()
        };
        let pod_text = text(
            json!({"nodeName": "n", "containers": [{"name": "c"}]}),
            json!({"phase": "Running"}),
        );
        let whole: Pod = serde_json::from_str(&pod_text).unwrap();
        assert_eq!(pod(pod_text.as_bytes()), Some(whole));
        let node_text = text(
            json!({"taints": [{"key": "k", "effect": "NoExecute"}]}),
            json!({"conditions": [{"type": "Ready", "status": "True"}]}),
        );
        let whole: Node = serde_json::from_str(&node_text).unwrap();
        assert_eq!(node(node_text.as_bytes()), Some(whole));
        let lease_text = json!({"metadata": meta, "spec": {"holderIdentity": "h", "leaseTransitions": 2}});
        let whole: Lease = serde_json::from_value(lease_text.clone()).unwrap();
        assert_eq!(term(lease_text.to_string().as_bytes()), Some(Term::of(&whole)));
        let managed = json!({"metadata": {"name": "a", "managedFields": [{"manager": "m"}]}});
        let managed = pod(managed.to_string().as_bytes()).unwrap();
        assert_eq!(
            (managed.metadata.name.as_deref(), managed.metadata.managed_fields),
            (Some("a"), None)
        );
        assert_eq!(
            describe_workload(br#"{"spec":{"replicas":2},"status":{"conditions":[],"replicas":1}}"#),
            r#", wants 2, has {"replicas":1}"#
        );
        assert_eq!(describe_workload(b"{}"), ", wants null, has null");
        let event = br#"{"reason":"Started","message":"Container started","count":2}"#;
        assert_eq!(describe_event(event), ", Started: Container started");
        let slice = br#"{"metadata":{},"addressType":"IPv4","endpoints":[
            {"addresses":["10.0.0.1"],"targetRef":{"name":"a"}},
            {"addresses":["10.0.0.2"],"targetRef":{"name":"b"},"conditions":{"ready":false}},
            {"addresses":["10.0.0.3"],"targetRef":{"name":"c"},"conditions":{"ready":true}}]}"#;
        let slice: EndpointSlice = serde_json::from_slice(slice).unwrap();
        assert_eq!(describe_slice(&slice), ", ready: [a c], not ready: [b]");
        let map = br#"{"metadata":{},"data":{"revision":"7","nodes":"3","slowest":"n2"}}"#;
        assert_eq!(describe_propagation(map), ", 3 nodes have 7, the slowest is n2");
    }
}
