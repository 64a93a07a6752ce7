//! The scheduler on small clusters: objects are written as JSON, results as names and messages.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::Object;
use knarr_api::registry::Registered;
use serde_json::{Value, json};

use super::*;

mod filters;
mod queue;
mod spread_documents;

pub(super) fn shared<T: Registered>(value: Value) -> Shared<T> {
    let typed: T = serde_json::from_value(value).unwrap();
    Shared::new(Arc::new(Object::from_typed(T::kind_of(), Box::new(typed)))).unwrap()
}

/// 4 CPUs, 8 GiB, 10 pods; `with` is merged into it.
fn node(name: &str, with: Value) -> Shared<Node> {
    let mut node = json!({
        "metadata": {"name": name, "uid": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
    });
    overlay(&mut node, with);
    shared(node)
}

fn pod(name: &str, spec: Value) -> Shared<Pod> {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [{"name": "c"}]},
    });
    overlay(&mut pod, json!({ "spec": spec }));
    shared(pod)
}

fn asking(name: &str, cpu: &str, memory: &str) -> Shared<Pod> {
    let requests = json!({"requests": {"cpu": cpu, "memory": memory}});
    pod(
        name,
        json!({"containers": [{"name": "c", "resources": requests}]}),
    )
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

fn at(second: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
}

fn cluster(nodes: &[Shared<Node>]) -> Scheduler {
    let mut scheduler = Scheduler::default();
    for node in nodes {
        scheduler.node_changed(node.object().name(), Some(node.clone()), at(0));
    }
    scheduler
}

/// The result of the next attempt: `pod -> node` or `pod: message`.
fn step(scheduler: &mut Scheduler, second: i64) -> String {
    match scheduler.schedule_one(at(second)) {
        None => "nothing".into(),
        Some(Action::Bind { pod, node, .. }) => {
            scheduler.bound(&pod);
            format!("{} -> {node}", pod.object().name())
        }
        Some(Action::Report { pod, message, .. }) => {
            // The message of preemption has its own test.
            let message = message.split(" no new claims").next().unwrap();
            format!("{}: {message}", pod.object().name())
        }
        Some(Action::Preempt {
            pod, node, victims, ..
        }) => {
            let victims: Vec<&str> = victims.iter().map(|v| v.object().name()).collect();
            format!(
                "{} preempts {} on {node}",
                pod.object().name(),
                victims.join(", ")
            )
        }
    }
}

fn place(nodes: &[Shared<Node>], pod: Shared<Pod>) -> String {
    let mut scheduler = cluster(nodes);
    scheduler.pod_changed(None, Some(&pod), at(0));
    step(&mut scheduler, 0)
}

#[test]
fn requests_that_saturate_the_sums_are_released_with_the_pod() {
    let mut scheduler = cluster(&[node("n", json!({}))]);
    let huge = |name: &str| {
        let requests = json!({"requests": {"cpu": "9223372036854775", "memory": "7Ei"}});
        let container = json!({"name": "c", "resources": requests});
        pod(name, json!({"nodeName": "n", "containers": [container]}))
    };
    for name in ["a", "b"] {
        scheduler.pod_changed(None, Some(&huge(name)), at(0));
    }
    scheduler.pod_changed(None, Some(&asking("p", "1", "1Gi")), at(0));
    let rejected = step(&mut scheduler, 0);
    assert_eq!(
        rejected,
        "p: 0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory."
    );
    for name in ["a", "b"] {
        scheduler.pod_changed(Some(&huge(name)), None, at(2));
    }
    assert_eq!(step(&mut scheduler, 20), "p -> n");
}

#[test]
fn the_emptier_the_untainted_and_the_preferred_node_is_the_better_one() {
    let mut full = cluster(&[node("a", json!({})), node("b", json!({}))]);
    let mut there = serde_json::to_value(&*asking("x", "2", "4Gi")).unwrap();
    there["spec"]["nodeName"] = "a".into();
    full.pod_changed(None, Some(&shared(there)), at(0));
    full.pod_changed(None, Some(&asking("p", "1", "1Gi")), at(0));
    assert_eq!(step(&mut full, 0), "p -> b");

    let taints = json!([{"key": "k", "effect": "PreferNoSchedule"}]);
    let nodes = [
        node("a", json!({"spec": {"taints": taints}})),
        node("b", json!({})),
    ];
    assert_eq!(place(&nodes, pod("p", json!({}))), "p -> b");

    let preferred = json!([{
        "weight": 5,
        "preference": {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}]},
    }]);
    let affinity = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}});
    let nodes = [node("a", json!({})), node("b", json!({})), node("c", json!({}))];
    assert_eq!(place(&nodes, pod("p", json!({ "affinity": affinity }))), "p -> b");
}

#[test]
fn scores_are_kube_schedulers() {
    // Computed by hand from the formulas of v1.36. 4 CPUs, 8 GiB; the pod asks for 1 CPU and 4 GiB.
    let mut scheduler = cluster(&[node("n", json!({}))]);
    let pod = scheduler.info(&asking("p", "1", "4Gi"));
    // Fit: (75 + 50) / 2 = 62. Balanced: before 100, after (1 - |0.25 - 0.5| / 2) * 100 = 87, so 50 + (50 + 87 - 100)
    // / 2 = 68. Taints: 3 * 100.
    assert_eq!(scheduler.explain(&pod).totals["n"], 62 + 68 + 300);
    // Without requests: 100 m and 200 MiB are assumed, and balance is left out: (97 + 97) / 2.
    let nothing = scheduler.info(&self::pod("q", json!({})));
    assert_eq!(scheduler.explain(&nothing).totals["n"], 97 + 300);
    assert!(matches!(
        scheduler.schedule(&nothing),
        Decision::Node { feasible: 1, .. }
    ));
}

#[test]
fn the_choice_among_equally_good_nodes_rotates() {
    let nodes = ["a", "b", "c"].map(|n| node(n, json!({"status": {"allocatable": {"pods": "100"}}})));
    let mut scheduler = cluster(&nodes);
    let mut seen = BTreeSet::new();
    for n in 0..3 {
        scheduler.pod_changed(None, Some(&pod(&format!("p{n}"), json!({}))), at(0));
        seen.insert(step(&mut scheduler, 0).split_once(" -> ").unwrap().1.to_string());
    }
    assert_eq!(seen.len(), 3);
}

#[test]
fn resources_are_assumed_while_a_pod_is_bound_and_freed_when_that_fails() {
    let mut scheduler = cluster(&[node("n", json!({}))]);
    scheduler.pod_changed(None, Some(&asking("a", "3", "1Mi")), at(0));
    scheduler.pod_changed(None, Some(&asking("b", "3", "1Mi")), at(0));
    let Some(Action::Bind { pod: a, .. }) = scheduler.schedule_one(at(0)) else {
        panic!("a fits")
    };
    assert!(step(&mut scheduler, 0).starts_with("b: 0/1"));
    scheduler.binding_failed(&a, at(2));
    assert_eq!(step(&mut scheduler, 2), "b -> n");
    assert!(
        step(&mut scheduler, 4).starts_with("a: 0/1"),
        "a came back and finds b there"
    );
}
