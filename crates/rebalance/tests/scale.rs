//! Plans of 5 000 nodes and 100 000 pods: the time, and the memory beyond the snapshot's.
//! `cargo test --release -p knarr-rebalance --test scale -- --ignored --nocapture --test-threads 1`

#![allow(clippy::unwrap_used)]

mod world;

use std::sync::Arc;

use knarr_api::Object;
use knarr_api::k8s_openapi::api::core::v1::{Node, Pod};
use knarr_rebalance::plan;
use knarr_rebalance::policy::Policy;
use knarr_rebalance::snapshot::Snapshot;
use knarr_scheduler::Profile;
use serde_json::{Value, json};
use world::{now, policy, shared, spread};

const NODES: usize = 5_000;
const WORKLOADS: usize = 1_000;
const ZONES: usize = 3;

/// Megabytes of this process, now and at most.
fn memory() -> (usize, usize) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        let words = line.and_then(|line| line.split_whitespace().nth(1));
        words.and_then(|kib| kib.parse::<usize>().ok()).unwrap_or(0) / 1024
    };
    (field("VmRSS:"), field("VmHWM:"))
}

fn nodes() -> Vec<Arc<Object>> {
    let node = |n: usize| {
        let name = format!("node-{n:05}");
        let labels =
            json!({"kubernetes.io/hostname": name, "zone": format!("zone-{}", n % ZONES), "pool": "general"});
        let node = json!({
            "metadata": {"name": name, "uid": name, "labels": labels},
            "status": {
                "allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        shared::<Node>(&node).object().clone()
    };
    (0..NODES).map(node).collect()
}

/// A pod as Deployments make them.
fn pod(workload: usize, number: usize, node: usize, constraints: &Value, milli_cpu: usize) -> Arc<Object> {
    let app = format!("app-{workload:04}");
    let name = format!("{app}-{number:05}");
    let namespace = format!("team-{}", workload % 50);
    let env: Vec<Value> = (0..8)
        .map(|n| json!({"name": format!("SETTING_{n}"), "value": "some value"}))
        .collect();
    let probe = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10});
    let pod = json!({
        "metadata": {
            "name": name, "namespace": namespace, "uid": format!("uid-{name}"), "generation": 1,
            "creationTimestamp": world::ago(86_400),
            "labels": {"app": app, "pod-template-hash": "5d4f8c7b9", "team": namespace},
            "annotations": {"prometheus.io/scrape": "true"},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": app, "controller": true},
            ],
        },
        "spec": {
            "nodeName": format!("node-{node:05}"), "serviceAccountName": "default", "restartPolicy": "Always",
            "schedulerName": "default-scheduler", "terminationGracePeriodSeconds": 30,
            "topologySpreadConstraints": constraints,
            "containers": [{
                "name": "main", "image": format!("registry.example.com/{app}:v1"), "env": env,
                "resources": {"requests": {"cpu": format!("{milli_cpu}m"), "memory": "512Mi"}},
                "livenessProbe": probe, "readinessProbe": probe,
            }],
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            ],
        },
        "status": {
            "phase": "Running", "startTime": world::ago(86_400), "podIP": "10.0.0.1", "hostIP": "10.1.0.1",
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
        },
    });
    shared::<Pod>(&pod).object().clone()
}

/// The workloads with so many pods in each zone, over the zones' nodes in turn.
fn objects(sizes: [usize; ZONES], max_skew: i32, hard: bool) -> Vec<Arc<Object>> {
    let mut objects = nodes();
    for workload in 0..WORKLOADS {
        let mut constraint = spread("zone", max_skew, &format!("app-{workload:04}"));
        if !hard {
            constraint["whenUnsatisfiable"] = "ScheduleAnyway".into();
        }
        let constraints = json!([constraint]);
        let mut number = 0;
        for (zone, size) in sizes.iter().enumerate() {
            for n in 0..*size {
                let turn = (workload * size + n) % (NODES / ZONES);
                objects.push(pod(
                    workload,
                    number,
                    turn * ZONES + zone,
                    &constraints,
                    100 + workload % 7 * 50,
                ));
                number += 1;
            }
        }
    }
    objects
}

fn measure(name: &str, objects: &[Arc<Object>], policy: &Policy, empty: usize) {
    // No other clock: this is no part of the crate.
    #[expect(clippy::disallowed_methods, reason = "a measurement")]
    let clock = std::time::Instant::now;
    let start = clock();
    let snapshot = Snapshot::new(vec![Profile::default()], objects, now());
    let built = start.elapsed();
    let (with_snapshot, _) = memory();
    // The peak from here on.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let start = clock();
    let plan = plan(&snapshot, policy);
    let planned = start.elapsed();
    let (_, peak) = memory();
    let left: u64 = plan.violations.iter().map(|total| total.after).sum();
    let before: u64 = plan.violations.iter().map(|total| total.before).sum();
    println!(
        "{name}: snapshot {:.2} s, plan {:.3} s; {} moves in {} waves, {} not moved, violation {before} -> {left}; memory {} -> {} MB ({:.2}x)",
        built.as_secs_f64(),
        planned.as_secs_f64(),
        plan.moves.len(),
        plan.waves(),
        plan.not_moved.len(),
        with_snapshot - empty,
        peak - empty,
        (peak - empty) as f64 / (with_snapshot - empty) as f64,
    );
    let mut reasons = std::collections::BTreeMap::new();
    for pod in &plan.not_moved {
        *reasons.entry(pod.reason.code()).or_insert(0) += 1;
    }
    println!("    {reasons:?}");
}

#[test]
#[ignore = "a measurement, in release only"]
fn b3_plans_of_5000_nodes_and_100000_pods() {
    let (empty, _) = memory();
    let usual = |strategies: Value| {
        let mut policy = policy(json!({ "strategies": strategies }));
        policy.budgets = knarr_rebalance::policy::rebalance_policy::DEFAULT_BUDGETS;
        policy
    };
    let unlimited = |strategies: Value| policy(json!({ "strategies": strategies }));
    let hard = json!({"topologySpread": {}});
    let soft = json!({"topologySpread": {"constraints": ["DoNotSchedule", "ScheduleAnyway"]}});
    let all = json!({
        "topologySpread": {"constraints": ["DoNotSchedule", "ScheduleAnyway"]}, "nodeTaints": {},
        "podAntiAffinity": {}, "podAffinity": {}, "duplicates": {},
        "nodeAffinity": {"nodeAffinityType": ["requiredDuringSchedulingIgnoredDuringExecution"]},
        "lowNodeUtilization": {"thresholds": {"cpu": 20, "memory": 20}, "targetThresholds": {"cpu": 70, "memory": 70}},
        "podLifeTime": {"maxPodLifeTimeSeconds": 864000}, "tooManyRestarts": {"podRestartThreshold": 100},
    });
    {
        let objects = objects([34, 33, 33], 1, true);
        measure("balanced, spread", &objects, &usual(hard.clone()), empty);
        measure("balanced, all strategies", &objects, &usual(all.clone()), empty);
    }
    {
        let objects = objects([36, 33, 31], 1, true);
        measure(
            "36/33/31, 60 moves an hour",
            &objects,
            &usual(hard.clone()),
            empty,
        );
        measure("36/33/31, unlimited", &objects, &unlimited(hard.clone()), empty);
    }
    {
        let objects = objects([50, 50, 0], 1, true);
        measure(
            "a zone is back, 60 moves an hour",
            &objects,
            &usual(hard.clone()),
            empty,
        );
        measure(
            "a zone is back, unlimited",
            &objects,
            &unlimited(hard.clone()),
            empty,
        );
        measure(
            "a zone is back, all, 60 an hour",
            &objects,
            &usual(all.clone()),
            empty,
        );
    }
    {
        let mut objects = objects([50, 50, 0], 1, true);
        for n in 0..NODES / ZONES {
            objects.push(pod(WORKLOADS + n, 0, n * ZONES + 2, &json!([]), 15_950));
        }
        measure("the third zone is full", &objects, &usual(hard.clone()), empty);
    }
    {
        let objects = objects([36, 33, 31], 1, false);
        measure("36/33/31 soft, 60 an hour", &objects, &usual(soft.clone()), empty);
        measure(
            "36/33/31 soft, unlimited",
            &objects,
            &unlimited(soft.clone()),
            empty,
        );
    }
}
