//! Plans of a rebalancer for 5 000 nodes and 100 000 pods (SPEC B3): the time of one, and the memory that it needs beyond its
//! snapshot's. No API, no store.

use std::sync::Arc;

use knarr_api::Object;
use knarr_api::k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_rebalance::plan;
use knarr_rebalance::policy::rebalance_policy;
use knarr_rebalance::snapshot::Snapshot;
use knarr_scheduler::Profile;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::core::shared;
use super::node;
use crate::process::{Result, forget_own_peak, memory_mb, own_peak_memory_mb};

const NODES: usize = 5_000;
const WORKLOADS: usize = 1_000;
const ZONES: usize = 3;

/// One plan: how many pods each workload has in each zone, and the policy.
pub struct Workload {
    pub name: &'static str,
    in_zones: [usize; ZONES],
    policy: fn() -> Value,
}

/// What is measured.
pub const WORKLOADS_OF_PLANS: [Workload; 4] = [
    Workload {
        name: "balanced, all strategies",
        in_zones: [34, 33, 33],
        policy: all,
    },
    Workload {
        name: "36/33/31 in zones, 60 moves an hour",
        in_zones: [36, 33, 31],
        policy: spread,
    },
    Workload {
        name: "a zone is back, 60 moves an hour",
        in_zones: [50, 50, 0],
        policy: spread,
    },
    Workload {
        name: "36/33/31 in zones, any number of moves",
        in_zones: [36, 33, 31],
        policy: unlimited,
    },
];

/// What one plan came to.
#[derive(Serialize, Deserialize)]
pub struct Found {
    pub seconds: f64,
    /// The most memory during the plan by that of the snapshot, with the objects in it.
    pub times_snapshot: f64,
    pub moves: usize,
}

fn spread() -> Value {
    json!({"strategies": {"topologySpread": {}}})
}

fn unlimited() -> Value {
    let many = 1_000_000;
    json!({
        "strategies": {"topologySpread": {}},
        "budgets": {"perHour": many, "perNode": many, "perNamespace": many, "perWorkload": many},
    })
}

fn all() -> Value {
    json!({"strategies": {
        "topologySpread": {"constraints": ["DoNotSchedule", "ScheduleAnyway"]}, "nodeTaints": {},
        "podAntiAffinity": {}, "podAffinity": {}, "duplicates": {},
        "nodeAffinity": {"nodeAffinityType": ["requiredDuringSchedulingIgnoredDuringExecution"]},
        "lowNodeUtilization": {"thresholds": {"cpu": 20, "memory": 20}, "targetThresholds": {"cpu": 70, "memory": 70}},
        "podLifeTime": {"maxPodLifeTimeSeconds": 864_000}, "tooManyRestarts": {"podRestartThreshold": 100},
    }})
}

/// All pods are a day old then.
fn now() -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_hours(48)
}

/// As Deployments make them.
fn pod(workload: usize, number: usize, node: usize) -> Value {
    let app = format!("app-{workload:04}");
    let name = format!("{app}-{number:05}");
    let namespace = format!("team-{}", workload % 50);
    let created = now() - SignedDuration::from_hours(24);
    let env: Vec<Value> = (0..8)
        .map(|n| json!({"name": format!("SETTING_{n}"), "value": "some value"}))
        .collect();
    let probe = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10});
    let tolerations = ["not-ready", "unreachable"].map(|taint| {
        json!({"key": format!("node.kubernetes.io/{taint}"), "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    });
    json!({
        "metadata": {
            "name": name, "namespace": namespace, "uid": format!("uid-{name}"), "generation": 1,
            "creationTimestamp": created,
            "labels": {"app": app, "pod-template-hash": "5d4f8c7b9", "team": namespace},
            "annotations": {"prometheus.io/scrape": "true"},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": app, "controller": true},
            ],
        },
        "spec": {
            "nodeName": format!("node-{node}"), "serviceAccountName": "default", "restartPolicy": "Always",
            "schedulerName": "default-scheduler", "terminationGracePeriodSeconds": 30,
            "topologySpreadConstraints": [{
                "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": app}},
            }],
            "containers": [{
                "name": "main", "image": format!("registry.example.com/{app}:v1"), "env": env,
                "resources": {"requests": {"cpu": format!("{}m", 50 + workload % 7 * 10), "memory": "512Mi"}},
                "livenessProbe": probe, "readinessProbe": probe,
            }],
            "tolerations": tolerations,
        },
        "status": {
            "phase": "Running", "startTime": created, "podIP": "10.0.0.1", "hostIP": "10.1.0.1",
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
        },
    })
}

fn objects(in_zones: [usize; ZONES]) -> Result<Vec<Arc<Object>>> {
    let mut objects = Vec::new();
    for n in 0..NODES {
        let mut node = node(n);
        node["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
        objects.push(shared::<Node>(node)?.object().clone());
    }
    for workload in 0..WORKLOADS {
        let mut number = 0;
        for (zone, pods) in in_zones.into_iter().enumerate() {
            for n in 0..pods {
                let turn = (workload * pods + n) % (NODES / ZONES);
                let pod = pod(workload, number, turn * ZONES + zone);
                objects.push(shared::<Pod>(pod)?.object().clone());
                number += 1;
            }
        }
    }
    Ok(objects)
}

/// Makes one plan, in a process of its own: what it needs is measured; `seconds` is a clock.
pub fn run(workload: &Workload, seconds: &dyn Fn() -> f64) -> Result<Found> {
    let process = std::process::id();
    let policy = rebalance_policy::read("bench", "", &(workload.policy)())?;
    let empty = memory_mb(process)?;
    let objects = objects(workload.in_zones)?;
    let snapshot = Snapshot::new(vec![Profile::default()], &objects, now());
    let with_snapshot = memory_mb(process)? - empty;
    forget_own_peak()?;
    let begin = seconds();
    let plan = plan(&snapshot, &policy);
    let seconds = seconds() - begin;
    Ok(Found {
        seconds,
        times_snapshot: (own_peak_memory_mb()? - empty) / with_snapshot,
        moves: plan.moves.len(),
    })
}
