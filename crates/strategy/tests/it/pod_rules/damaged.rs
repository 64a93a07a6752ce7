//! Damaged pods: the result is an object or an error.

use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;
use knarr_apimachinery::codec;
use knarr_strategy::{Part, Strategy};
use proptest::prelude::*;
use proptest::strategy::Strategy as _;
use serde_json::{Value, json};

use super::decoded;

/// Arbitrary small JSON values.
fn any_json() -> impl proptest::strategy::Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-zA-Z0-9/:._é -]{0,12}".prop_map(Value::from),
        Just(json!("Always")),
        Just(json!("1Gi")),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-z]{1,6}", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

/// Replaces the `at`-th value of a document, in depth-first order, by `value`.
fn replace_nth(doc: &mut Value, at: &mut usize, value: &Value) -> bool {
    if *at == 0 {
        *doc = value.clone();
        return true;
    }
    *at -= 1;
    match doc {
        Value::Array(items) => items.iter_mut().any(|item| replace_nth(item, at, value)),
        Value::Object(map) => map.values_mut().any(|item| replace_nth(item, at, value)),
        _ => false,
    }
}

proptest! {
    /// For every input the result is an object or an error, never a panic.
    #[test]
    fn no_damaged_pod_makes_it_panic(at in 1usize..120, value in any_json()) {
        let mut doc = json!({
            "metadata": {"name": "p", "generateName": "p-", "labels": {"a": "b"}, "annotations": {"x": "y"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "n", "uid": "u"}]},
            "spec": {
                "containers": [{"name": "c", "image": "i", "command": ["a"], "ports": [{"containerPort": 80}],
                    "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                    "resources": {"limits": {"cpu": "1", "hugepages-2Mi": "4Mi"}},
                    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                    "livenessProbe": {"httpGet": {"port": "http"}},
                    "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
                    "securityContext": {"runAsUser": 1, "seccompProfile": {"type": "Localhost"}}}],
                "initContainers": [{"name": "i", "image": "i", "restartPolicy": "Always"}],
                "volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "s"}}]}}],
                "resources": {"limits": {"cpu": "2"}},
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
                    [{"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}]}}},
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {"matchLabels": {"a": "b"}}, "matchLabelKeys": ["a"]}],
                "tolerations": [{"key": "k", "operator": "Exists"}],
                "dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["a."]},
                "hostAliases": [{"ip": "1.1.1.1", "hostnames": ["a"]}],
                "overhead": {"cpu": "1"},
            },
            "status": {"podIPs": [{"ip": "1.1.1.1"}], "conditions": [{"type": "Ready", "status": "True"}]},
        });
        let base = decoded(&doc);
        replace_nth(&mut doc, &mut at.clone(), &value);
        if let Ok((mut pod, ..)) = codec::read::<Pod>(doc.to_string().as_bytes()) {
            let mut old = base;
            old.set_defaults();
            pod.set_defaults();
            let mut created = pod.clone();
            created.prepare_for_create();
            let _ = (created.validate(), created.warnings(), created.deletion_grace_seconds(None));
            for part in [Part::Main, Part::Status, Part::Other("resize"), Part::Other("ephemeralcontainers")] {
                let mut updated = pod.clone();
                updated.prepare_for_update(&old, part);
                let _ = updated.validate_update(&old, part);
            }
        }
    }
}
