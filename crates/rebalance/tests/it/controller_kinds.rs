//! The kinds of policies: definitions that an API server accepts, and schemas that agree with the reader.

#![allow(clippy::unwrap_used)]

use knarr_api::custom::CustomObject;
use knarr_api::{Kind, registry};
use knarr_rebalance::controller::kinds::{RebalancePolicy, definitions, kinds};
use knarr_rebalance::policy::rebalance_policy;
use knarr_strategy::KindStrategy;
use serde_json::{Value, json};

/// The spec as it is stored, and the errors of the schema.
fn decode(kind: &Kind, spec: &Value) -> (Value, Vec<String>) {
    let json = json!({"metadata": {"name": "p", "namespace": if kind.namespaced() { "a" } else { "" }}, "spec": spec});
    let object = kind.ops.decode(json.to_string().as_bytes()).unwrap().object;
    let errors = kind.strategy().validate(&*object).unwrap();
    let custom = object.as_any().downcast_ref::<CustomObject>().unwrap();
    let errors = errors.into_iter().map(|error| error.field).collect();
    (custom.fields["spec"].clone(), errors)
}

/// Every field of a policy without a namespace, `namespaces` of its strategies excepted.
fn full() -> Value {
    let selector = json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "In", "values": ["d"]}]});
    json!({
        "dryRun": false,
        "nodeSelector": selector,
        "gracePeriodSeconds": 60,
        "budgets": {"perHour": 60, "perNode": 10, "perNamespace": 20, "perWorkload": 10, "atOncePerWorkload": 2},
        "strategies": {
            "topologySpread": {"constraints": ["DoNotSchedule", "ScheduleAnyway"], "labelSelector": selector},
            "nodeTaints": {"includePreferNoSchedule": true, "includedTaints": ["a=b"], "labelSelector": selector},
            "podAntiAffinity": {"labelSelector": selector},
            "podAffinity": {"labelSelector": selector},
            "nodeAffinity": {"labelSelector": selector, "nodeAffinityType": [
                "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"]},
            "duplicates": {"excludeOwnerKinds": ["ReplicaSet"]},
            "lowNodeUtilization": {
                "thresholds": {"cpu": 20.5}, "targetThresholds": {"cpu": 50}, "useDeviationThresholds": false,
                "numberOfNodes": 2, "metricsUtilization": {"source": "KubernetesMetrics"},
            },
            "highNodeUtilization": {
                "thresholds": {"memory": 20}, "numberOfNodes": 1, "evictionModes": ["OnlyThresholdingResources"],
            },
            "podLifeTime": {
                "maxPodLifeTimeSeconds": 86400, "states": ["Pending"], "exitCodes": [1], "ownerKinds": {"include": ["Job"]},
                "conditions": [{"type": "Ready", "status": "False", "reason": "r", "minTimeSinceLastTransitionSeconds": 5}],
                "includingInitContainers": true, "includingEphemeralContainers": true, "labelSelector": selector,
            },
            "tooManyRestarts": {"podRestartThreshold": 100, "includingInitContainers": true, "states": ["Running"],
                "labelSelector": selector},
            "failedPods": {"minPodLifetimeSeconds": 3600, "reasons": ["OutOfcpu"], "exitCodes": [1],
                "includingInitContainers": true, "excludeOwnerKinds": ["Job"], "labelSelector": selector},
        },
        "protections": {
            "labelSelector": selector, "namespaceSelector": selector, "destinationSelector": selector,
            "priorityThreshold": {"value": 10000}, "minReplicas": 2, "minPodAge": "1m30s",
            "preferNoEvictionIsMandatory": true, "localStorage": false, "systemCritical": true,
            "persistentVolumeClaims": true, "storageClasses": ["local"], "withoutDisruptionBudget": true,
        },
    })
}

#[test]
fn b3_an_api_server_accepts_both_definitions() {
    for mut crd in definitions() {
        // As for any new one.
        let stored = crd.spec.versions.iter().filter(|v| v.storage);
        let stored = stored.map(|v| v.name.clone()).collect();
        crd.status.get_or_insert_default().stored_versions = Some(stored);
        let kind = &registry::CUSTOM_RESOURCE_DEFINITION;
        let errors = kind.strategy().validate(&crd).unwrap();
        assert!(errors.is_empty(), "{errors}");
    }
    let [cluster, namespaced] = kinds();
    let names = [cluster, namespaced].map(|kind| (kind.kind(), kind.namespaced()));
    assert_eq!(
        names,
        [("ClusterRebalancePolicy", false), ("RebalancePolicy", true)]
    );
}

/// The paths of all fields without a description.
fn undescribed(schema: &Value, path: &str, found: &mut Vec<String>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        if field["description"].as_str().is_none_or(str::is_empty) {
            found.push(path.clone());
        }
        undescribed(field, &path, found);
    }
    if schema["items"].is_object() {
        undescribed(&schema["items"], &format!("{path}[]"), found);
    }
}

#[test]
fn b3_every_field_has_a_description_for_kubectl_explain() {
    for crd in definitions() {
        let schema = crd.spec.versions[0].schema.as_ref().unwrap();
        let schema = serde_json::to_value(schema.open_api_v3_schema.as_ref().unwrap()).unwrap();
        let mut found = Vec::new();
        undescribed(&schema, "", &mut found);
        assert_eq!(found, [""; 0]);
    }
}

#[test]
fn b3_the_schemas_have_every_field_that_the_reader_reads() {
    for kind in kinds() {
        let mut spec = full();
        if !kind.namespaced() {
            spec["namespaces"] = json!({"exclude": ["kube-system"]});
        }
        let (stored, errors) = decode(kind, &spec);
        assert_eq!(errors, [""; 0]);
        assert_eq!(stored, spec, "no field is pruned");
        let namespace = if kind.namespaced() { "a" } else { "" };
        let read = rebalance_policy::read("p", namespace, &stored).unwrap();
        assert_eq!(read.profiles[0].strategies.len(), 11);
    }
    let [cluster, _] = kinds();
    let scoped = json!({"strategies": {
        "topologySpread": {"namespaces": {"include": ["a"]}}, "failedPods": {"namespaces": {"exclude": ["a"]}},
        "lowNodeUtilization": {"thresholds": {"cpu": 1}, "targetThresholds": {"cpu": 2}, "evictableNamespaces": {"exclude": ["a"]}},
    }});
    let (stored, errors) = decode(cluster, &scoped);
    assert_eq!((errors.len(), &stored["strategies"]), (0, &scoped["strategies"]));
    rebalance_policy::read("p", "", &stored).unwrap();
}

#[test]
fn b3_a_policy_of_a_namespace_cannot_name_others() {
    let [_, namespaced] = kinds();
    let spec = json!({
        "namespaces": {"include": ["b"]},
        "strategies": {"topologySpread": {"namespaces": {"include": ["b"]}}},
    });
    let (stored, errors) = decode(namespaced, &spec);
    assert_eq!(errors, [""; 0]);
    assert_eq!(
        stored,
        json!({"dryRun": true, "strategies": {"topologySpread": {}}})
    );
}

#[test]
fn b3_the_schema_rejects_what_is_out_of_bounds() {
    let [cluster, _] = kinds();
    for (spec, expected) in [
        (json!({}), "spec.strategies"),
        (json!({"strategies": {}}), "spec.strategies"),
        (
            json!({"strategies": {"duplicates": {}}, "budgets": {"perHour": 301}}),
            "spec.budgets.perHour",
        ),
        (
            json!({"strategies": {"duplicates": {}}, "gracePeriodSeconds": 0}),
            "spec.gracePeriodSeconds",
        ),
        (
            json!({"strategies": {"topologySpread": {"constraints": ["Maybe"]}}}),
            "spec.strategies.topologySpread.constraints[0]",
        ),
        (
            json!({"strategies": {"highNodeUtilization": {"thresholds": {"cpu": 120}}}}),
            "spec.strategies.highNodeUtilization.thresholds.cpu",
        ),
        (
            json!({"strategies": {"nodeTaints": {"includedTaints": ["a"], "excludedTaints": ["b"]}}}),
            "spec.strategies.nodeTaints",
        ),
        (
            json!({"strategies": {"duplicates": {}}, "protections": {"priorityThreshold": {"value": 1, "name": "n"}}}),
            "spec.protections.priorityThreshold",
        ),
        (
            json!({"strategies": {"duplicates": {}}, "namespaces": {"include": ["a"], "exclude": ["b"]}}),
            "spec.namespaces",
        ),
        (
            json!({"strategies": {"duplicates": {}}, "protections": {"minPodAge": "soon"}}),
            "spec.protections.minPodAge",
        ),
    ] {
        let (_, mut errors) = decode(cluster, &spec);
        // That rules were not checked for it, as in Kubernetes.
        errors.retain(|field| field != "<nil>");
        assert_eq!(errors, [expected], "{spec}");
    }
}

#[test]
fn b3_a_policy_is_written_as_it_was_read() {
    for kind in kinds() {
        let json = json!({
            "metadata": {"name": "p", "namespace": if kind.namespaced() { "a" } else { "" }, "generation": 3},
            "spec": {"dryRun": false, "strategies": {"duplicates": {}}},
            "status": {
                "observedGeneration": 3, "moves": 1, "movesLastHour": 1, "podsNotMoved": 0,
                "plannedMoves": [{"namespace": "a", "pod": "p", "from": "n1", "to": "n2", "why": "w"}],
                "recentMoves": [{
                    "time": "2026-01-02T03:04:05Z", "namespace": "a", "pod": "p", "uid": "u", "from": "n1", "to": "n2",
                    "workloadKind": "Deployment", "workloadName": "w", "rule": "Duplicates", "planned": 1, "podsBefore": 3,
                    "readyBefore": 2, "replaced": false,
                }],
                "conditions": [{"type": "Ready", "status": "True", "reason": "Accepted", "message": "m",
                    "lastTransitionTime": "2026-01-02T03:04:05Z", "observedGeneration": 3}],
            },
        });
        let object = kind.ops.decode(json.to_string().as_bytes()).unwrap().object;
        let object = knarr_api::Object::from_typed(kind, object);
        let policy = RebalancePolicy::of(&object).unwrap();
        assert_eq!(policy.kind(), kind);
        let written = knarr_api::Object::from_typed(kind, policy.to_object().unwrap());
        let again = RebalancePolicy::of(&written).unwrap();
        assert_eq!(again, policy);
        assert_eq!(again.status.recent_moves[0].ready_before, 2, "no field is pruned");
        assert_eq!(kind.strategy().validate(written.typed()).unwrap().len(), 0);
    }
}
