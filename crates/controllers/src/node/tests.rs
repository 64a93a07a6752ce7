//! A node's way from well to lost and back.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::registry::Registered;
use serde_json::{Value, json};

use super::eviction::TaintEviction;
use super::health::NodeHealth;
use super::taints::NodeTaints;
use super::*;
use crate::action::Action;
use crate::sweep::Sweep;
use crate::world::{World, at, lines, updated};

const KEY: (&str, &str) = ("", "n");

fn from<T: Registered>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn node(ready: &str) -> Node {
    from(json!({
        "metadata": {"name": "n"},
        "status": {"conditions": [
            {"type": "Ready", "status": ready}, {"type": "MemoryPressure", "status": "False"},
        ]},
    }))
}

fn lease(second: i64) -> Lease {
    let mut lease: Lease =
        from(json!({"metadata": {"namespace": "kube-node-lease", "name": "n"}, "spec": {}}));
    lease.spec.get_or_insert_default().renew_time = Some(
        k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(at(second)),
    );
    lease
}

fn pod(name: &str, tolerations: Value) -> Pod {
    from(json!({
        "metadata": {"namespace": "a", "name": name},
        "spec": {"nodeName": "n", "containers": [], "tolerations": tolerations},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }))
}

fn sweep(health: &mut NodeHealth, world: &mut World, second: i64) -> Vec<String> {
    let actions: Vec<Action> = health.sweep(world, at(second)).into_iter().flatten().collect();
    world.take_updates(&actions);
    lines(&actions)
}

/// `key:effect` of each taint.
fn taints(world: &mut World, second: i64) -> Vec<String> {
    let actions = world.run(&NodeTaints, KEY, at(second));
    world.take_updates(&actions);
    let view: &dyn crate::View = world;
    let node = view.get_as::<Node>("", "n").unwrap();
    let taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
    taints
        .map(|t| format!("{}:{}", t.key.trim_start_matches("node.kubernetes.io/"), t.effect))
        .collect()
}

#[test]
fn s4_a_node_is_unknown_after_forty_seconds_without_a_sign_whatever_its_clock_says() {
    let mut world = World::default();
    world.put(node("True"));
    // Its clock is an hour behind.
    world.put(lease(-3600));
    let mut health = NodeHealth::default();
    assert_eq!(sweep(&mut health, &mut world, 0), [""; 0]);
    world.put(lease(-3590));
    assert_eq!(sweep(&mut health, &mut world, 10), [""; 0]);
    assert_eq!(sweep(&mut health, &mut world, 50), [""; 0]);
    assert_eq!(
        sweep(&mut health, &mut world, 51),
        [
            "update nodes/status n",
            "event NodeNotReady: Node n status is now: NodeNotReady"
        ]
    );
    let view: &dyn crate::View = &world;
    let lost = view.get_as::<Node>("", "n").unwrap();
    let of = |type_| {
        let c = condition(&lost, type_).unwrap();
        (c.status.clone(), c.reason.clone().unwrap())
    };
    assert_eq!(of("Ready"), ("Unknown".into(), "NodeStatusUnknown".into()));
    assert_eq!(
        of("MemoryPressure"),
        ("Unknown".into(), "NodeStatusUnknown".into())
    );
    assert_eq!(
        of("DiskPressure"),
        ("Unknown".into(), "NodeStatusNeverUpdated".into())
    );
    assert_eq!(sweep(&mut health, &mut world, 56), [""; 0], "said once");
}

#[test]
fn s4_conditions_become_taints_and_go_with_them() {
    let mut world = World::default();
    let mut new: Node = from(json!({"metadata": {"name": "n"}}));
    new.spec = from::<Node>(json!({"metadata": {}, "spec": {"taints": [
        {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}, {"key": "mine", "effect": "NoExecute"},
    ]}}))
    .spec;
    world.put(new.clone());
    assert_eq!(taints(&mut world, 0), ["not-ready:NoSchedule", "mine:NoExecute"]);
    let mut with = |status: &str, world: &mut World| {
        new.status = node(status).status;
        let view: &dyn crate::View = world;
        new.spec = view.get_as::<Node>("", "n").unwrap().spec.clone();
        world.put(new.clone());
    };
    with("False", &mut world);
    assert_eq!(
        taints(&mut world, 1),
        ["not-ready:NoSchedule", "mine:NoExecute", "not-ready:NoExecute"]
    );
    with("True", &mut world);
    assert_eq!(taints(&mut world, 2), ["mine:NoExecute"]);
    with("Unknown", &mut world);
    assert_eq!(
        taints(&mut world, 3),
        [
            "mine:NoExecute",
            "unreachable:NoSchedule",
            "unreachable:NoExecute"
        ]
    );
    assert_eq!(lines(&world.run(&NodeTaints, KEY, at(4))), [""; 0]);
}

#[test]
fn s4_pods_of_an_unreachable_node_lose_their_readiness() {
    let mut world = World::default();
    world.put(node("Unknown"));
    world.put(pod("p", json!([])));
    let actions = world.run(&NodeTaints, KEY, at(0));
    assert_eq!(lines(&actions), ["update nodes n", "update pods/status a/p"]);
    let lost = updated::<Pod>(&actions, "status").unwrap();
    assert!(!crate::pod::is_ready(&lost));
}

#[test]
fn s4_pods_are_asked_to_end_after_the_time_they_tolerate() {
    let key = UNREACHABLE;
    let for_seconds =
        |n: i64| json!([{"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": n}]);
    let mut world = World::default();
    world.put(node("Unknown"));
    taints(&mut world, 0);
    world.put(pod("default", for_seconds(300)));
    world.put(pod("ever", json!([{"operator": "Exists"}])));
    assert_eq!(
        lines(&world.run(&TaintEviction, KEY, at(10))),
        ["requeue after 290s"]
    );
    world.put(pod("never", json!([])));
    let now = world.run(&TaintEviction, KEY, at(10));
    assert_eq!(
        lines(&now),
        [
            "event TaintManagerEviction: Marking for deletion Pod a/never",
            "update pods/status a/never",
            "delete pods a/never",
            "requeue after 290s"
        ]
    );
    let Action::Delete(delete) = &now[2] else {
        panic!("a delete")
    };
    assert_eq!(delete.uid, "uid-never");
    world.remove(&knarr_api::registry::POD, "a", "never");
    assert_eq!(lines(&world.run(&TaintEviction, KEY, at(300))).len(), 3);
}
