//! Pods and nodes with impossible values: rejected with the path of the field, or accepted and scheduled or left
//! pending; in no case do they block the pods behind them.

use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_client::{Kind, TypedApi};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::sleep;

use super::Cluster;

/// The expected outcome.
enum ExpectedOutcome {
    /// Rejected, with this in the message.
    Rejected(&'static str),
    Bound,
    /// No node fits it.
    Waits,
    /// Any of these: only that no other pod is affected is promised.
    Anything,
}

use ExpectedOutcome::{Anything, Bound, Rejected, Waits};

fn pod(name: &str, with: Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    overlay(&mut pod, with);
    pod
}

fn overlay(base: &mut Value, with: Value) {
    match (base, with) {
        (Value::Object(base), Value::Object(with)) => {
            for (key, value) in with {
                overlay(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, with) => *base = with,
    }
}

fn spread(with: Value) -> Value {
    let mut constraint = json!({
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "a"}},
    });
    overlay(&mut constraint, with);
    json!({"spec": {"topologySpreadConstraints": [constraint]}})
}

fn affinity(kind: &str, when: &str, terms: Value) -> Value {
    let when = format!("{when}DuringSchedulingIgnoredDuringExecution");
    json!({"spec": {"affinity": {kind: {when: terms}}}})
}

fn term(with: Value) -> Value {
    let mut term = json!({
        "topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}},
    });
    overlay(&mut term, with);
    term
}

fn node_term(expression: Value) -> Value {
    let terms = json!([{"matchExpressions": [expression]}]);
    affinity("nodeAffinity", "required", json!({"nodeSelectorTerms": terms}))
}

fn requests(list: Value) -> Value {
    let container = json!({"name": "c", "image": "i", "resources": {"requests": list}});
    json!({"spec": {"containers": [container]}})
}

fn pods() -> Vec<(&'static str, Value, ExpectedOutcome)> {
    let selector = |expression: Value| json!({"labelSelector": {"matchExpressions": [expression]}});
    let near = |key: &str, what: &str| {
        let mut near = affinity(
            "podAffinity",
            "required",
            json!([term(json!({"labelSelector": {"matchLabels": {"app": what}}}))]),
        );
        overlay(&mut near, json!({"metadata": {"labels": {"app": key}}}));
        near
    };
    let labels: serde_json::Map<String, Value> =
        (0..10_000).map(|n| (format!("label-{n}"), "x".into())).collect();
    let many_terms: Vec<Value> = (0..1_000)
        .map(|n| json!({"matchExpressions": [{"key": "k", "operator": "In", "values": [n.to_string()]}]}))
        .collect();
    let container =
        |name: &str, list: Value| json!({"name": name, "image": "i", "resources": {"requests": list}});
    vec![
        // Topology spread.
        (
            "skew-0",
            spread(json!({"maxSkew": 0})),
            Rejected("spec.topologySpreadConstraints[0].maxSkew"),
        ),
        (
            "skew-neg",
            spread(json!({"maxSkew": -1})),
            Rejected("spec.topologySpreadConstraints[0].maxSkew"),
        ),
        (
            "skew-huge",
            spread(json!({"maxSkew": i32::MAX, "topologyKey": "kubernetes.io/hostname"})),
            Bound,
        ),
        (
            "domains-0",
            spread(json!({"minDomains": 0})),
            Rejected("spec.topologySpreadConstraints[0].minDomains"),
        ),
        (
            "domains-soft",
            spread(json!({"minDomains": 2, "whenUnsatisfiable": "ScheduleAnyway"})),
            Rejected("spec.topologySpreadConstraints[0].minDomains"),
        ),
        (
            "domains-huge",
            spread(json!({"minDomains": i32::MAX, "topologyKey": "kubernetes.io/hostname"})),
            Anything,
        ),
        (
            "no-key",
            spread(json!({"topologyKey": ""})),
            Rejected("spec.topologySpreadConstraints[0].topologyKey"),
        ),
        (
            "when",
            spread(json!({"whenUnsatisfiable": "Sometimes"})),
            Rejected("spec.topologySpreadConstraints[0].whenUnsatisfiable"),
        ),
        (
            "policy",
            spread(json!({"nodeAffinityPolicy": "Maybe"})),
            Rejected("spec.topologySpreadConstraints[0].nodeAffinityPolicy"),
        ),
        (
            "spread-operator",
            spread(selector(json!({"key": "k", "operator": "Near"}))),
            Rejected("spec.topologySpreadConstraints[0].labelSelector.matchExpressions[0].operator"),
        ),
        (
            "spread-values",
            spread(selector(json!({"key": "k", "operator": "In"}))),
            Rejected("spec.topologySpreadConstraints[0].labelSelector.matchExpressions[0].values"),
        ),
        ("spread-nowhere", spread(json!({})), Waits),
        // Affinity.
        (
            "weight-0",
            affinity(
                "podAntiAffinity",
                "preferred",
                json!([{"weight": 0, "podAffinityTerm": term(json!({}))}]),
            ),
            Rejected("[0].weight"),
        ),
        (
            "weight-101",
            affinity(
                "podAffinity",
                "preferred",
                json!([{"weight": 101, "podAffinityTerm": term(json!({}))}]),
            ),
            Rejected("[0].weight"),
        ),
        (
            "node-weight",
            affinity(
                "nodeAffinity",
                "preferred",
                json!([{"weight": -5, "preference": {"matchExpressions": [{"key": "k", "operator": "Exists"}]}}]),
            ),
            Rejected("[0].weight"),
        ),
        (
            "term-key",
            affinity(
                "podAffinity",
                "required",
                json!([term(json!({"topologyKey": ""}))]),
            ),
            Rejected("requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey"),
        ),
        (
            "term-operator",
            affinity(
                "podAffinity",
                "required",
                json!([term(selector(json!({"key": "k", "operator": "Near"})))]),
            ),
            Rejected(
                "requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector.matchExpressions[0].operator",
            ),
        ),
        (
            "node-operator",
            node_term(json!({"key": "k", "operator": "Near"})),
            Rejected("nodeSelectorTerms[0].matchExpressions[0].operator"),
        ),
        (
            "node-gt-values",
            node_term(json!({"key": "k", "operator": "Gt", "values": ["1", "2"]})),
            Rejected("nodeSelectorTerms[0].matchExpressions[0].values"),
        ),
        (
            "node-gt-word",
            node_term(json!({"key": "kubernetes.io/hostname", "operator": "Gt", "values": ["x"]})),
            Waits,
        ),
        (
            "no-terms",
            affinity("nodeAffinity", "required", json!({"nodeSelectorTerms": []})),
            Rejected("nodeSelectorTerms"),
        ),
        (
            "thousand-terms",
            affinity(
                "nodeAffinity",
                "required",
                json!({"nodeSelectorTerms": many_terms}),
            ),
            Waits,
        ),
        (
            "selector-key",
            json!({"spec": {"nodeSelector": {"a b": "c"}}}),
            Rejected("spec.nodeSelector"),
        ),
        // Cycles.
        ("near-itself", near("self", "self"), Bound),
        ("near-b", near("ring-a", "ring-b"), Waits),
        ("near-a", near("ring-b", "ring-a"), Anything),
        (
            "away-from-itself",
            affinity(
                "podAntiAffinity",
                "required",
                json!([term(
                    json!({"labelSelector": {"matchLabels": {"app": "missing"}}})
                )]),
            ),
            Bound,
        ),
        // Priority.
        (
            "class",
            json!({"spec": {"priorityClassName": "missing"}}),
            Rejected("no PriorityClass with name missing was found"),
        ),
        (
            "priority",
            json!({"spec": {"priority": 7}}),
            Rejected("the integer value of priority (7)"),
        ),
        // Quantities.
        (
            "negative",
            requests(json!({"cpu": "-1"})),
            Rejected("spec.containers[0].resources.requests[cpu]"),
        ),
        (
            "nan",
            requests(json!({"cpu": "NaN"})),
            Rejected("quantities must match"),
        ),
        (
            "infinite",
            requests(json!({"memory": "inf"})),
            Rejected("quantities must match"),
        ),
        ("exponent", requests(json!({"cpu": "1e999"})), Anything),
        ("tiny", requests(json!({"cpu": "1n"})), Anything),
        ("most", requests(json!({"cpu": "9223372036854775807"})), Waits),
        (
            "sums-overflow",
            json!({"spec": {"containers": [
                container("c", json!({"memory": "7Ei", "cpu": "9223372036854775"})),
                container("d", json!({"memory": "7Ei", "cpu": "9223372036854775"})),
            ]}}),
            Waits,
        ),
        (
            "resource-name",
            requests(json!({"a b": "1"})),
            Rejected("spec.containers[0].resources.requests[a b]"),
        ),
        // Others.
        ("labels", json!({"metadata": {"labels": labels}}), Bound),
        (
            "toleration",
            json!({"spec": {"tolerations": [{"key": "k", "operator": "Like"}]}}),
            Rejected("spec.tolerations[0].operator"),
        ),
        (
            "host-port",
            json!({"spec": {"containers": [
            {"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 70000}]}]}}),
            Rejected("spec.containers[0].ports[0].hostPort"),
        ),
        ("scheduler", json!({"spec": {"schedulerName": "missing"}}), Waits),
        (
            "gates",
            json!({"spec": {"schedulingGates": [{"name": "a b"}]}}),
            Rejected("spec.schedulingGates[0]"),
        ),
        (
            "claim",
            json!({"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "missing"}}]}}),
            Waits,
        ),
    ]
}

/// Nodes, with their status.
fn nodes() -> Vec<(&'static str, Value, Value, ExpectedOutcome)> {
    let taints = |taints: Value| json!({"spec": {"taints": taints}});
    vec![
        (
            "effect",
            taints(json!([{"key": "k", "effect": "Now"}])),
            json!({}),
            Rejected("metadata.taints[0].effect"),
        ),
        (
            "twice",
            taints(json!([{"key": "k", "effect": "NoSchedule"}, {"key": "k", "effect": "NoSchedule"}])),
            json!({}),
            Rejected("metadata.taints[1]"),
        ),
        (
            "taint-key",
            taints(json!([{"key": "a b", "effect": "NoSchedule"}])),
            json!({}),
            Rejected("metadata.taints[0].key"),
        ),
        (
            "negative",
            json!({}),
            json!({"cpu": "-4", "memory": "-1Gi", "pods": "-1"}),
            Anything,
        ),
        (
            "huge",
            json!({}),
            json!({"cpu": "9223372036854775807", "memory": "8E", "pods": "9223372036854775807"}),
            Anything,
        ),
        (
            "odd",
            json!({}),
            json!({"cpu": "1n", "memory": "1m", "pods": "0.5", "example.com/x": "-0"}),
            Anything,
        ),
        ("nothing", json!({}), json!({}), Anything),
    ]
}

async fn create(cluster: &Cluster, kind: &Kind, value: &Value) -> Result<(), String> {
    let bytes = serde_json::to_vec(value).unwrap();
    let decoded = kind.ops.decode(&bytes).map_err(|e| e.to_string())?;
    let created = cluster.api.create(kind, decoded.object).await;
    created.map(drop).map_err(|e| e.to_string())
}

async fn node_of(cluster: &Cluster, name: &str) -> Option<String> {
    let pod = cluster.api.get_as::<Pod>("default", name).await.unwrap();
    pod.spec.as_ref().unwrap().node_name.clone()
}

#[tokio::test(start_paused = true)]
async fn d1_p2_p3_bad_input_is_rejected_by_its_field_or_waits_and_blocks_no_other_pod() {
    let cluster = Cluster::start().await;
    cluster.node().await;
    let labels = json!({"metadata": {"labels": {"kubernetes.io/hostname": "n1"}}});
    cluster.patch(&registry::NODE, "n1", "", labels).await;
    let mut wrong: Vec<String> = Vec::new();
    let mut check_outcome =
        |name: &str, created: &Result<(), String>, becomes: &ExpectedOutcome| match (created, becomes) {
            (Err(why), Rejected(field)) if why.contains(field) => {}
            (Err(why), Rejected(field)) => wrong.push(format!("{name}: {why}\n    has no {field}")),
            (Ok(()), Rejected(field)) => wrong.push(format!("{name} is taken; expected: {field}")),
            (Err(why), Bound | Waits) => wrong.push(format!("{name} is rejected: {why}")),
            (_, Anything) | (Ok(()), _) => {}
        };
    for (name, with, allocatable, becomes) in nodes() {
        let mut node = json!({"metadata": {"name": name}});
        overlay(&mut node, with);
        let created = create(&cluster, &registry::NODE, &node).await;
        check_outcome(name, &created, &becomes);
        if created.is_ok() {
            let ready = json!([{"type": "Ready", "status": "True"}]);
            let status = json!({"status": {"allocatable": allocatable, "conditions": ready}});
            let patch = knarr_client::Patch::Strategic(status);
            // Rejected or not: only the outcome matters.
            let _ = cluster
                .api
                .patch(&registry::NODE, "", name, "status", patch)
                .await;
        }
    }
    let mut placed = Vec::new();
    for (name, with, becomes) in pods() {
        let created = create(&cluster, &registry::POD, &pod(name, with)).await;
        check_outcome(name, &created, &becomes);
        if created.is_ok() {
            placed.push((name, becomes));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    create(
        &cluster,
        &registry::POD,
        &pod("normal", requests(json!({"cpu": "100m"}))),
    )
    .await
    .unwrap();
    for _ in 0..30 {
        sleep(Duration::from_secs(1)).await;
        cluster.heartbeat().await;
    }
    assert!(
        node_of(&cluster, "normal").await.is_some(),
        "the normal pod is stuck behind the others"
    );
    for (name, becomes) in placed {
        let node = node_of(&cluster, name).await;
        match becomes {
            Bound if node.is_none() => wrong.push(format!("{name} is not placed")),
            Waits if node.is_some() => wrong.push(format!("{name} is on {node:?}")),
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
