//! Reports about small clusters.

mod connections;
mod nodes;
mod services;

use std::sync::Arc;

use knarr_api::{Object, registry};
use knarr_network::proxy;
use serde_json::{Value, json};

use super::objects::{NetworkObjects, Settings};

const DNS: &str = "10.96.0.10";

/// The objects, in a cluster with pods in 10.244.0.0/16 and fd01::/48, and Services in 10.96.0.0/16 and fd96::/112.
pub(super) fn cluster(objects: impl IntoIterator<Item = Value>) -> NetworkObjects {
    let objects = objects.into_iter().map(|object| {
        let text = |field: &str| object[field].as_str().unwrap().to_string();
        let kind = registry::by_kind(&text("apiVersion"), &text("kind")).unwrap();
        let decoded = kind.ops.decode(object.to_string().as_bytes()).unwrap();
        assert_eq!(decoded.strict_errors.len(), 0, "{object}");
        Arc::new(Object::from_typed(kind, decoded.object))
    });
    let settings = Settings {
        proxy: proxy::Config {
            cluster_cidrs: ["10.244.0.0/16", "fd01::/48"]
                .map(|cidr| cidr.parse().unwrap())
                .into(),
            service_cidrs: ["10.96.0.0/16", "fd96::/112"]
                .map(|cidr| cidr.parse().unwrap())
                .into(),
            dns_addresses: vec![DNS.parse().unwrap()],
            ..proxy::Config::default()
        },
        dns_addresses: vec![DNS.parse().unwrap()],
        cluster_domain: "cluster.local".into(),
        enforces_policies: true,
    };
    NetworkObjects::new(objects.collect(), settings)
}

/// Node `n<number>` at 192.0.2.<number>, with the pods 10.244.<number>.0/24, in zone `z<number>`.
pub(super) fn node(number: u8) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": format!("n{number}"), "labels": {"topology.kubernetes.io/zone": format!("z{number}")}},
        "spec": {"podCIDRs": [format!("10.244.{number}.0/24")]},
        "status": {
            "addresses": [{"type": "InternalIP", "address": format!("192.0.2.{number}")},
                          {"type": "Hostname", "address": format!("n{number}")}],
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "NetworkUnavailable", "status": "False"}],
        },
    })
}

pub(super) fn namespace(name: &str, labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

/// Pod `<app>-<last>` of the namespace `shop` on node `n<node>` at 10.244.<node>.<last>, Running and ready.
pub(super) fn pod(app: &str, node: u8, last: u8) -> Value {
    let address = format!("10.244.{node}.{last}");
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": format!("{app}-{last}"), "labels": {"app": app}},
        "spec": {"nodeName": format!("n{node}"), "containers": [{
            "name": "c", "image": "i", "ports": [{"name": "http", "containerPort": 8080}],
        }]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
                   "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

pub(super) fn service(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": name}, "spec": spec})
}

/// A slice of the Service with a port `http` 8080.
pub(super) fn slice(service: &str, family: &str, endpoints: Value) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"namespace": "shop", "name": format!("{service}-{family}").to_lowercase(),
                     "labels": {"kubernetes.io/service-name": service}},
        "addressType": family, "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}], "endpoints": endpoints,
    })
}

/// The endpoint of a pod of [`pod`].
pub(super) fn endpoint(app: &str, node: u8, last: u8, conditions: Value) -> Value {
    json!({
        "addresses": [format!("10.244.{node}.{last}")], "nodeName": format!("n{node}"), "zone": format!("z{node}"),
        "conditions": conditions, "targetRef": {"kind": "Pod", "name": format!("{app}-{last}")},
    })
}

/// The object with `value` in the field.
pub(super) fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    object.pointer_mut(parent).unwrap()[field] = value;
    object
}
