//! Nodes that become lost and ready again.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use knarr_api::registry::Registered;
use knarr_apimachinery::time::seconds;
use serde_json::{Value, json};

use super::eviction::{TaintEviction, has_taints, tolerates, with_disruption_target};
use super::health::{Lifecycle, NodeHealth};
use super::taints::NodeTaints;
use super::*;
use crate::action::{Action, LiveCheck};
use crate::sweep::Sweep;
use crate::world::{World, at, failure, lines, object, updated};

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

fn ready_node(name: &str) -> Node {
    let mut node = node("True");
    node.metadata.name = Some(name.into());
    node
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
fn s4_a_node_is_unknown_after_forty_seconds_without_renewal_whatever_its_clock_shows() {
    let mut world = World::default();
    world.put(node("True"));
    // Its clock is an hour behind.
    world.put(lease(-3600));
    let mut health = NodeHealth::new(Lifecycle::default());
    assert_eq!(
        sweep(&mut health, &mut world, 0),
        ["event RegisteredNode: Node n event: Registered Node n in Controller"]
    );
    world.put(lease(-3590));
    assert_eq!(sweep(&mut health, &mut world, 10), [""; 0]);
    assert_eq!(sweep(&mut health, &mut world, 50), [""; 0]);
    let actions: Vec<Action> = health.sweep(&world, at(51)).into_iter().flatten().collect();
    world.take_updates(&actions);
    assert_eq!(
        lines(&actions),
        [
            "require leases kube-node-lease/n not renewed",
            "update nodes/status n",
            "event NodeNotReady: Node n status is now: NodeNotReady"
        ]
    );
    // The cache of Leases may be old: its last renewal has to be the last one at the API.
    let Action::Require(LiveCheck::NotRenewed { renewed, .. }) = &actions[0] else {
        panic!("the Lease is read first")
    };
    assert_eq!(*renewed, lease(-3590).spec.unwrap().renew_time);
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
    assert_eq!(sweep(&mut health, &mut world, 56), [""; 0], "recorded once");
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
    assert_eq!(taints(&mut world, 1), ["not-ready:NoSchedule", "mine:NoExecute"]);
    // The NoExecute taint, once added, changes with the condition, and is removed with it.
    let evicting = ["not-ready:NoSchedule", "mine:NoExecute", "not-ready:NoExecute"];
    let mut health = NodeHealth::new(Lifecycle::default());
    world.put(ready_node("other"));
    sweep(&mut health, &mut world, 2);
    assert_eq!(taints(&mut world, 2), evicting);
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
    with("True", &mut world);
    assert_eq!(taints(&mut world, 5), ["mine:NoExecute"]);
}

#[test]
fn s4_pods_of_an_unreachable_node_lose_their_readiness() {
    let mut world = World::default();
    world.put(node("Unknown"));
    world.put(pod("p", json!([])));
    let actions = world.run(&NodeTaints, KEY, at(0));
    assert_eq!(
        lines(&actions),
        [
            "update nodes n",
            "event NodeNotReady: Node is not ready",
            "update pods/status a/p"
        ]
    );
    world.take_updates(&actions);
    let view: &dyn crate::View = &world;
    assert!(!crate::pod::is_ready(&view.get_as::<Pod>("a", "p").unwrap()));
    // Its kubelet has restored it: the node reports again, which the cache may not have yet.
    world.put(pod("p", json!([])));
    assert_eq!(
        lines(&world.run(&NodeTaints, KEY, at(1))),
        [
            "require node n unreachable",
            "event NodeNotReady: Node is not ready",
            "update pods/status a/p"
        ]
    );
}

#[test]
fn s4_pods_are_deleted_after_their_toleration_seconds() {
    let key = UNREACHABLE;
    let for_seconds =
        |n: i64| json!([{"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": n}]);
    let mut world = World::default();
    world.put(node("Unknown"));
    world.put(ready_node("other"));
    taints(&mut world, 0);
    sweep(&mut NodeHealth::new(Lifecycle::default()), &mut world, 0);
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
            "require node n tainted",
            "event TaintManagerEviction: Marking for deletion Pod a/never",
            "update pods/status a/never",
            "delete pods a/never",
            "requeue after 290s"
        ]
    );
    let Action::Delete(delete) = &now[3] else {
        panic!("a delete")
    };
    assert_eq!(delete.uid, "uid-never");
    let status = updated::<Pod>(&now, "status").unwrap().status.unwrap();
    assert_eq!(
        (status.reason.as_deref(), status.message.as_deref()),
        (
            Some("NodeLost"),
            Some("Node n which was running pod never is unresponsive")
        )
    );
    world.remove(&knarr_api::registry::POD, "a", "never");
    assert_eq!(lines(&world.run(&TaintEviction, KEY, at(300))).len(), 4);
}

/// The cache of nodes is old: the node was lost, is Ready again, and has a new pod.
#[test]
fn s4_pods_are_deleted_only_if_the_node_has_the_same_taints_at_the_api() {
    let with = |taints: Value| from::<Node>(json!({"metadata": {"name": "n"}, "spec": {"taints": taints}}));
    let unreachable =
        |effect: &str, n: i64| json!({"key": UNREACHABLE, "effect": effect, "timeAdded": seconds(at(n))});
    let other = json!({"key": "other", "effect": "NoExecute"});
    let mut world = World::default();
    world.put(with(json!([unreachable("NoExecute", 0)])));
    world.put(pod("new", json!([])));
    let actions = world.run(&TaintEviction, KEY, at(600));
    let Some(Action::Require(LiveCheck::Tainted { node, taints })) = actions.first() else {
        panic!("the node is read first: {:?}", lines(&actions))
    };
    assert_eq!(node.as_str(), "n");
    for (live, holds) in [
        (json!([unreachable("NoExecute", 0)]), true),
        (json!([other, unreachable("NoExecute", 0)]), true),
        (json!([]), false),
        (json!([other]), false),
        (json!([unreachable("NoExecute", 500)]), false),
        (json!([unreachable("NoSchedule", 0)]), false),
    ] {
        assert_eq!(has_taints(&with(live.clone()), taints), holds, "{live}");
    }
}

#[test]
fn s4_the_only_node_is_not_tainted_when_lost_and_one_of_many_is_in_its_turn() {
    let mut world = World::default();
    let mut health = NodeHealth::new(Lifecycle::default());
    for name in ["a", "b", "c"] {
        world.put(ready_node(name));
    }
    assert_eq!(sweep(&mut health, &mut world, 0).len(), 3);
    // All stop reporting at once.
    let all = sweep(&mut health, &mut world, 41);
    assert_eq!(
        all.iter()
            .filter(|l| l.starts_with("update nodes/status"))
            .count(),
        3
    );
    assert_eq!(sweep(&mut health, &mut world, 46), [""; 0]);
    assert_eq!(
        sweep(&mut health, &mut world, 900),
        [""; 0],
        "no node of the zone is ready"
    );
    // One is ready again: the others are lost, and are tainted one by one.
    let mut back = ready_node("c");
    for condition in back
        .status
        .iter_mut()
        .flat_map(|s| s.conditions.iter_mut().flatten())
    {
        condition.last_heartbeat_time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(905)));
    }
    world.put(back);
    let first = |line: &[&str]| {
        line.iter()
            .map(|l| format!("update nodes {l}"))
            .collect::<Vec<_>>()
    };
    assert_eq!(sweep(&mut health, &mut world, 905), first(&["a"]));
    assert_eq!(sweep(&mut health, &mut world, 910), first(&[]));
    assert_eq!(sweep(&mut health, &mut world, 915), first(&["b"]));
}

#[test]
fn s4_a_rejected_write_evicts_and_taints_nothing_further() {
    let mut world = World::default();
    world.put(node("Unknown"));
    let rejected = failure(&knarr_api::registry::POD);
    assert_eq!(
        lines(&world.run_after(&NodeTaints, KEY, at(0), Some(&rejected))),
        [""; 0]
    );
    let mut tainted = node("Unknown");
    tainted.spec = from::<Node>(json!({"metadata": {}, "spec": {"taints": [
        {"key": UNREACHABLE, "effect": "NoExecute"},
    ]}}))
    .spec;
    world.put(tainted);
    world.put(pod("p", json!([])));
    assert_eq!(lines(&world.run(&TaintEviction, KEY, at(0))).len(), 4);
    assert_eq!(
        lines(&world.run_after(&TaintEviction, KEY, at(0), Some(&rejected))),
        [""; 0]
    );
}

#[test]
fn s4_a_node_that_is_deleted_gets_no_taint() {
    let mut world = World::default();
    let mut deleted = node("Unknown");
    deleted.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
    world.put(deleted);
    world.put(ready_node("other"));
    assert_eq!(lines(&world.run(&NodeTaints, KEY, at(0))), [""; 0]);
    let lines = sweep(&mut NodeHealth::new(Lifecycle::default()), &mut world, 0);
    assert!(
        lines.iter().all(|l| l.starts_with("event RegisteredNode")),
        "{lines:?}"
    );
}

#[test]
fn s4_taints_of_others_stay_whatever_their_effect() {
    let mut world = World::default();
    let mut tainted = node("True");
    tainted.spec = from::<Node>(json!({"metadata": {}, "spec": {"taints": [
        {"key": "mine", "effect": "NoSchedule"}, {"key": "mine", "effect": "PreferNoSchedule"},
        {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"},
    ]}}))
    .spec;
    world.put(tainted);
    assert_eq!(
        taints(&mut world, 0),
        ["mine:NoSchedule", "mine:PreferNoSchedule"]
    );
}

#[test]
fn s4_only_pods_of_lost_nodes_enqueue_keys_of_the_taint_controllers() {
    let mut world = World::default();
    let the_node = world.put(node("Unknown"));
    for controller in [&NodeTaints as &dyn crate::Controller, &TaintEviction] {
        assert_eq!(world.keys(controller, None, Some(&the_node)), ["n"]);
    }
    let evicting = json!([{"key": UNREACHABLE, "effect": "NoExecute"}]);
    let mild = json!([{"key": UNREACHABLE, "effect": "NoSchedule"}]);
    // Ready, the taints of the node, the pod's readiness -> keys of: NodeTaints, TaintEviction.
    for (ready, taints, pod_ready, wakes) in [
        ("Unknown", &mild, "True", (true, false)),
        ("Unknown", &evicting, "False", (false, true)),
        ("True", &evicting, "True", (false, true)),
        ("True", &mild, "True", (false, false)),
    ] {
        let mut node = node(ready);
        node.spec = from::<Node>(json!({"metadata": {}, "spec": {"taints": taints}})).spec;
        world.put(node);
        let pod = object::<Pod>(json!({
            "metadata": {"namespace": "a", "name": "p"}, "spec": {"nodeName": "n", "containers": []},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": pod_ready}]},
        }));
        let woken = |controller: &dyn crate::Controller| !world.keys(controller, None, Some(&pod)).is_empty();
        assert_eq!(
            (woken(&NodeTaints), woken(&TaintEviction)),
            wakes,
            "{ready} {taints} {pod_ready}"
        );
        assert_eq!(world.keys(&TaintEviction, Some(&pod), None), [""; 0]);
    }
}

#[test]
fn s4_a_toleration_is_of_key_value_and_effect() {
    let taint: Taint =
        serde_json::from_value(json!({"key": "k", "value": "v", "effect": "NoExecute"})).unwrap();
    for (toleration, tolerated) in [
        (json!({"key": "k", "value": "v"}), true),
        (json!({"key": "k", "value": "v", "operator": "Equal"}), true),
        (json!({"key": "k", "value": "w"}), false),
        (json!({"key": "j", "value": "v"}), false),
        (json!({"value": "v"}), false),
        (json!({"key": "k"}), false),
        (json!({"key": "k", "operator": "Exists"}), true),
        (json!({"key": "j", "operator": "Exists"}), false),
        (json!({"operator": "Exists"}), true),
        (json!({"operator": "Exists", "effect": "NoExecute"}), true),
        (json!({"operator": "Exists", "effect": "NoSchedule"}), false),
        (json!({"key": "k", "value": "v", "operator": "Gt"}), false),
    ] {
        let parsed: Toleration = serde_json::from_value(toleration.clone()).unwrap();
        assert_eq!(tolerates(&parsed, &taint), tolerated, "{toleration}");
    }
}

#[test]
fn l6_a_pod_is_a_disruption_target_once_and_since_it_became_one() {
    let time = |second| json!(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(second)));
    for (had, since) in [("True", 0), ("False", 9)] {
        let mut pod = pod("p", json!([]));
        pod.status = serde_json::from_value(json!({"conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": time(5)},
            {"type": "DisruptionTarget", "status": had, "lastTransitionTime": time(0)},
        ]}))
        .unwrap();
        let conditions = with_disruption_target(&pod, "Why", "because", at(9))
            .status
            .unwrap()
            .conditions
            .unwrap();
        let found: Vec<_> = conditions
            .iter()
            .map(|c| (c.type_.as_str(), c.status.as_str(), json!(c.last_transition_time)))
            .collect();
        let target = ("DisruptionTarget", "True", time(since));
        assert_eq!(found, [("Ready", "True", time(5)), target], "{had}");
    }
}

#[test]
fn s4_a_sweep_comes_sooner_while_a_lost_node_waits_for_its_taint() {
    let mut world = World::default();
    let mut health = NodeHealth::new(Lifecycle::default());
    for name in ["a", "b"] {
        world.put(ready_node(name));
    }
    let usual = health.period();
    assert!(!usual.is_zero());
    for name in ["lost", "lost-too"] {
        let mut lost = node("Unknown");
        lost.metadata.name = Some(name.into());
        world.put(lost);
    }
    sweep(&mut health, &mut world, 0);
    sweep(&mut health, &mut world, 1);
    assert!(health.period() < usual, "the second waits for its turn");
    let mut alone = World::default();
    alone.put(node("Unknown"));
    let mut health = NodeHealth::new(Lifecycle::default());
    sweep(&mut health, &mut alone, 0);
    assert_eq!(health.period(), usual, "nothing is evicted when all are lost");
}

#[test]
fn l13_a_nodes_events_name_it_and_its_uid() {
    let mut world = World::default();
    world.put(node("True"));
    let mut health = NodeHealth::new(Lifecycle::default());
    for list in health.sweep(&world, at(0)) {
        for action in list {
            let Action::Event { about, .. } = action else {
                continue;
            };
            let found = (about.kind.as_deref(), about.name.as_deref(), about.uid.as_deref());
            assert_eq!(found, (Some("Node"), Some("n"), Some("uid-n")));
            return;
        }
    }
    panic!("a new node is announced");
}
