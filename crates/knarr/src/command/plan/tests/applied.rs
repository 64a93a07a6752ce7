//! A plan that was carried out leaves nothing to move: dump, plan, the dump after the moves, plan again.

use std::cell::Cell;

use knarr_rebalance::plan::Plan;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use serde_json::{Value, json};

use super::Run;

/// All strategies on rules, and budgets that limit nothing: evictions of the last hour are in no dump.
const POLICY: &str = "
apiVersion: placement.knarr.io/v1alpha1
kind: ClusterRebalancePolicy
metadata: {name: all}
spec:
  budgets: {perHour: 100000, perNode: 100000, perWorkload: 100000}
  strategies:
    topologySpread: {constraints: [DoNotSchedule, ScheduleAnyway]}
    nodeTaints: {}
    podAntiAffinity: {}
    nodeAffinity: {nodeAffinityType: [requiredDuringSchedulingIgnoredDuringExecution]}
    duplicates: {}
    lowNodeUtilization: {thresholds: {cpu: 20}, targetThresholds: {cpu: 60}}
";

/// The zone of each node, and whether it is tainted.
type Machines = Vec<(u8, bool)>;
/// The rule of each workload, and the node of each of its pods.
type Workloads = Vec<(u8, Vec<u8>)>;

fn clusters() -> impl Strategy<Value = (Machines, Workloads)> {
    let machines = prop::collection::vec((0..3_u8, prop::bool::weighted(0.2)), 2..6);
    let workload = (0..4_u8, prop::collection::vec(0..6_u8, 1..8));
    (machines, prop::collection::vec(workload, 1..4))
}

fn dump(machines: &[(u8, bool)], workloads: &[(u8, Vec<u8>)]) -> Vec<Value> {
    let mut items = Vec::new();
    for (n, (zone, is_tainted)) in machines.iter().enumerate() {
        let name = format!("n{n}");
        let labels = json!({"kubernetes.io/hostname": name, "zone": format!("z{zone}")});
        let taints = if *is_tainted {
            json!([{"key": "t", "effect": "NoSchedule"}])
        } else {
            json!([])
        };
        items.push(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name, "labels": labels},
            "spec": {"taints": taints}, "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "20"}},
        }));
    }
    for (w, (rule, on)) in workloads.iter().enumerate() {
        let app = format!("a{w}");
        let selector = json!({"matchLabels": {"app": app}});
        let constraint = |when: &str| json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": when, "labelSelector": selector}]);
        let mut spec = match rule {
            0 => json!({"topologySpreadConstraints": constraint("DoNotSchedule")}),
            1 => json!({"topologySpreadConstraints": constraint("ScheduleAnyway")}),
            2 => json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                [{"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}]}}}),
            _ => json!({"nodeSelector": {"zone": "z1"}}),
        };
        for (p, node) in on.iter().enumerate() {
            let requests = json!({"cpu": "400m", "memory": "64Mi"});
            spec["containers"] = json!([{"name": "c", "image": "i:1", "resources": {"requests": requests}}]);
            spec["nodeName"] = format!("n{}", usize::from(*node) % machines.len()).into();
            let name = format!("{app}-{p}");
            items.push(json!({
                "apiVersion": "v1", "kind": "Pod", "spec": spec, "status": {"phase": "Running"},
                "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": app}, "ownerReferences":
                    [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": app, "controller": true}]},
            }));
        }
    }
    items
}

/// The dump after the moves: each pod's replacement has another name and UID.
fn apply(items: &mut [Value], plan: &Plan) {
    for (n, step) in plan.moves.iter().enumerate() {
        let is = |item: &&mut Value| {
            let metadata = &item["metadata"];
            metadata["uid"] == step.pod.uid.as_str()
                || metadata["annotations"]["replaces"] == step.pod.uid.as_str()
        };
        let pod = items.iter_mut().find(is).unwrap();
        assert_eq!(pod["spec"]["nodeName"], step.from.as_str());
        pod["spec"]["nodeName"] = step.to.clone().unwrap().into();
        let name = format!("{}-{n}", step.workload.name);
        pod["metadata"]["annotations"] = json!({"replaces": step.pod.uid});
        pod["metadata"]["uid"] = format!("new-{n}").into();
        pod["metadata"]["name"] = format!("new-{name}").into();
    }
}

#[test]
fn b3_a_plan_of_the_dump_after_a_plan_is_empty() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let plan = |items: &[Value]| {
        let run = Run::default().objects(items).policy(POLICY);
        let mut plans = runtime.block_on(run.plans());
        plans.plans.remove(0).plan
    };
    let config = ProptestConfig {
        cases: 64,
        rng_seed: RngSeed::Fixed(3),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let moves = Cell::new(0);
    TestRunner::new(config)
        .run(&clusters(), |(machines, workloads)| {
            let mut items = dump(&machines, &workloads);
            let first = plan(&items);
            apply(&mut items, &first);
            let second = plan(&items);
            prop_assert!(second.moves.is_empty(), "first:\n{first}\nsecond:\n{second}");
            moves.set(moves.get() + first.moves.len());
            Ok(())
        })
        .unwrap();
    assert!(moves.get() > 32, "{} moves", moves.get());
}
