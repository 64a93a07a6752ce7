//! The strategies one by one, on clusters like those of the descheduler's own tests.

#![allow(clippy::unwrap_used)]

use knarr_rebalance::plan;
use knarr_rebalance::snapshot::{Snapshot, Usage};
use knarr_scheduler::Profile;
use knarr_scheduler::profile::Strategy;
use knarr_scheduler::resources::Resources;
use serde_json::{Value, json};

use crate::world::{self, World, ago, check_is_fixpoint, moves, now, overlay, policy, reasons, strategy};

fn cpu(amount: &str) -> Value {
    json!({"spec": {"containers": [{"name": "c", "image": "registry/app:1", "resources": {"requests": {"cpu": amount}}}]}})
}

fn set_node(world: &mut World, name: &str, with: Value) {
    let mut node = world.nodes[name].clone();
    overlay(&mut node, &with);
    world.nodes.insert(name.into(), node);
}

fn tainted(effect: &str) -> Value {
    json!({"spec": {"taints": [{"key": "dedicated", "value": "special-user", "effect": effect}]}})
}

#[test]
fn b3_pods_leave_nodes_whose_taints_they_do_not_tolerate() {
    let args = [
        (json!({}), "NoSchedule", 2),
        (json!({"excludedTaints": ["dedicated"]}), "NoSchedule", 0),
        (
            json!({"excludedTaints": ["dedicated=special-user"]}),
            "NoSchedule",
            0,
        ),
        (json!({"excludedTaints": ["dedicated=other"]}), "NoSchedule", 2),
        (json!({"includedTaints": ["dedicated"]}), "NoSchedule", 2),
        (json!({"includedTaints": ["other"]}), "NoSchedule", 0),
        (json!({}), "PreferNoSchedule", 0),
        (json!({"includePreferNoSchedule": true}), "PreferNoSchedule", 2),
    ];
    for (args, effect, count) in args {
        let mut world = World::of(&["n1", "n2"]);
        set_node(&mut world, "n1", tainted(effect));
        world.pods(2, "a", "n1", &json!({}));
        let tolerates = json!({"spec": {"tolerations": [{"key": "dedicated", "operator": "Exists"}]}});
        world.pods(2, "b", "n1", &tolerates);
        let (plan, _) = check_is_fixpoint(&world, &strategy("nodeTaints", args.clone()));
        assert_eq!(plan.moves.len(), count, "{args} {effect}\n{plan}");
        assert!(
            plan.moves
                .iter()
                .all(|step| step.workload.name == "a" && step.rule == "NodeTaints")
        );
    }
}

#[test]
fn b3_pods_with_an_untolerated_taint_stay_where_no_other_node_fits_them() {
    let mut world = World::of(&["n1", "n2"]);
    set_node(&mut world, "n1", tainted("NoSchedule"));
    world.pods(
        1,
        "a",
        "n1",
        &json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": "n1"}}}),
    );
    let (plan, _) = check_is_fixpoint(&world, &strategy("nodeTaints", json!({})));
    assert_eq!(reasons(&plan), ["a-n1-0: NoNodeFits"]);
    let text = plan.not_moved[0].reason.to_string();
    assert_eq!(text, "no other node fits it: NodeAffinity rejects 1");
}

#[test]
fn b3_the_pod_that_most_others_repel_moves() {
    // Three pods that repel the fourth: one move is enough, where the descheduler evicts three.
    let mut world = World::of(&["n1", "n2"]);
    let term =
        json!([{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "p2"}}}]);
    let repels = json!({"spec": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}}});
    for name in ["p1", "p3", "p4"] {
        world.pod(name, name, "n1", &repels);
    }
    world.pod("p2", "p2", "n1", &json!({}));
    let (plan, _) = check_is_fixpoint(&world, &strategy("podAntiAffinity", json!({})));
    assert_eq!(plan.moves.len(), 1, "{plan}");
    assert_eq!(plan.moves[0].pod.name, "p2");
    let change = &plan.moves[0].changes[0];
    assert_eq!((change.before, change.after), (3, 0));
    // If that one is critical, the others move.
    world.pods.get_mut("p2").unwrap()["spec"]["priority"] = 2_000_000_000.into();
    let (plan, _) = check_is_fixpoint(&world, &strategy("podAntiAffinity", json!({})));
    let mut names: Vec<&str> = plan.moves.iter().map(|step| step.pod.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["p1", "p3", "p4"], "{plan}");
}

#[test]
fn b3_anti_affinity_of_the_same_pods_keeps_one_in_each_domain() {
    let mut world = World::of(&["n1 a", "n2 a", "n3 b"]);
    let term = json!([{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}}]);
    let repels = json!({"spec": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}}});
    world.pods(1, "a", "n1", &repels);
    world.pods(1, "a", "n2", &repels);
    let (plan, _) = check_is_fixpoint(&world, &strategy("podAntiAffinity", json!({})));
    assert_eq!(plan.moves.len(), 1, "{plan}");
    assert_eq!(plan.moves[0].to.as_deref(), Some("n3"));
    // A third pod has no zone of its own.
    world.pods(1, "a", "n3", &repels);
    let (plan, _) = check_is_fixpoint(&world, &strategy("podAntiAffinity", json!({})));
    assert_eq!(reasons(&plan), ["a-n1-0: NoBetterNode", "a-n2-0: NoBetterNode"]);
    assert!(plan.moves.is_empty());
}

#[test]
fn b3_pods_come_to_those_that_they_need() {
    let mut world = World::of(&["n1 a", "n2 b"]);
    let term = json!([{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "cache"}}}]);
    let needs = json!({"spec": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}}});
    world.pods(2, "web", "n1", &needs);
    world.pods(1, "cache", "n2", &json!({}));
    let (plan, _) = check_is_fixpoint(&world, &strategy("podAffinity", json!({})));
    assert_eq!(moves(&plan), ["n1 -> n2", "n1 -> n2"], "{plan}");
}

#[test]
fn b3_pods_leave_nodes_that_their_affinity_does_not_match_any_more() {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let mut world = World::of(&["n1 a", "n2 b"]);
    world.pods(1, "a", "n1", &json!({"spec": {"nodeSelector": {"zone": "b"}}}));
    world.pods(1, "b", "n1", &json!({"spec": {"nodeSelector": {"zone": "a"}}}));
    world.pods(1, "c", "n1", &json!({"spec": {"nodeSelector": {"zone": "c"}}}));
    let policy = strategy("nodeAffinity", json!({"nodeAffinityType": [required]}));
    let (plan, _) = check_is_fixpoint(&world, &policy);
    assert_eq!(moves(&plan), ["n1 -> n2"]);
    assert_eq!(reasons(&plan), ["c-n1-0: NoNodeFits"]);
}

#[test]
fn b3_pods_go_where_more_of_their_preferences_hold_if_the_scheduler_agrees() {
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let mut world = World::of(&["n1 a", "n2 b"]);
    let term = json!([{"weight": 10, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}}]);
    world.pods(
        1,
        "a",
        "n1",
        &json!({"spec": {"affinity": {"nodeAffinity": {preferred: term}}}}),
    );
    let policy = strategy("nodeAffinity", json!({"nodeAffinityType": [preferred]}));
    let (plan, _) = check_is_fixpoint(&world, &policy);
    assert_eq!(moves(&plan), ["n1 -> n2"]);
    assert_eq!(
        (plan.moves[0].changes[0].before, plan.moves[0].changes[0].after),
        (10, 0)
    );
    // No node matches: nothing is violated.
    let mut world = World::of(&["n1 a", "n2 c"]);
    world.pods(
        1,
        "a",
        "n1",
        &json!({"spec": {"affinity": {"nodeAffinity": {preferred: term}}}}),
    );
    let (plan, _) = check_is_fixpoint(&world, &policy);
    assert!(plan.moves.is_empty() && plan.not_moved.is_empty(), "{plan}");
}

#[test]
fn b3_duplicates_are_distributed_over_the_nodes() {
    let mut world = World::of(&["n1", "n2", "n3"]);
    world.pods(3, "a", "n1", &json!({}));
    let (plan, result) = check_is_fixpoint(&world, &strategy("duplicates", json!({})));
    assert_eq!(plan.moves.len(), 2, "{plan}");
    let nodes: std::collections::BTreeSet<&str> = result
        .pods
        .values()
        .map(|p| p["spec"]["nodeName"].as_str().unwrap())
        .collect();
    assert_eq!(nodes.len(), 3);
    let excluded = strategy("duplicates", json!({"excludeOwnerKinds": ["ReplicaSet"]}));
    assert!(world.plan(&excluded).moves.is_empty());
    // Other images, or only one node to choose from.
    for (n, pod) in world.pods.values_mut().enumerate() {
        pod["spec"]["containers"][0]["image"] = format!("i:{n}").into();
    }
    assert!(world.plan(&strategy("duplicates", json!({}))).moves.is_empty());
    let mut world = World::of(&["n1", "n2"]);
    set_node(&mut world, "n2", tainted("NoSchedule"));
    world.pods(3, "a", "n1", &json!({}));
    let (plan, _) = check_is_fixpoint(&world, &strategy("duplicates", json!({})));
    assert!(plan.moves.is_empty() && plan.not_moved.is_empty(), "{plan}");
}

/// The descheduler's "without priorities": n1 is at 80 % of its CPU with 8 of 9 pods, n2 at 10 %, n3 is cordoned.
fn unbalanced() -> World {
    let mut world = World::of(&["n1", "n2", "n3"]);
    set_node(
        &mut world,
        "n1",
        json!({"status": {"allocatable": {"pods": "9"}}}),
    );
    set_node(
        &mut world,
        "n2",
        json!({"status": {"allocatable": {"pods": "10"}}}),
    );
    set_node(&mut world, "n3", json!({"spec": {"unschedulable": true}}));
    for n in 1..=5 {
        world.pod(&format!("p{n}"), &format!("a{n}"), "n1", &cpu("400m"));
    }
    let mut daemon = cpu("400m");
    daemon["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": true}]);
    world.pod("p6", "d", "n1", &daemon);
    let mut mirror = cpu("400m");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    world.pod("p7", "m", "n1", &mirror);
    let mut critical = cpu("400m");
    critical["spec"]["priority"] = 2_000_000_000.into();
    world.pod("p8", "k", "n1", &critical);
    world.pod("p9", "a9", "n2", &cpu("400m"));
    world
}

fn low() -> Value {
    json!({"thresholds": {"cpu": 30, "pods": 30}, "targetThresholds": {"cpu": 50, "pods": 50}})
}

#[test]
fn b3_pods_leave_overutilized_nodes_until_the_scheduler_would_send_one_back() {
    // The descheduler evicts a fourth pod; the scheduler then finds both nodes equally good, and may choose n1 again.
    let (plan, _) = check_is_fixpoint(&unbalanced(), &strategy("lowNodeUtilization", low()));
    assert_eq!(moves(&plan), ["n1 -> n2", "n1 -> n2", "n1 -> n2"], "{plan}");
    let reasons = reasons(&plan);
    let of = |name: &str| {
        reasons
            .iter()
            .find(|r| r.starts_with(name))
            .unwrap()
            .split(": ")
            .nth(1)
            .unwrap()
            .to_string()
    };
    assert_eq!(
        (of("p6"), of("p7"), of("p8")),
        ("DaemonSetPod".into(), "MirrorPod".into(), "SystemCritical".into())
    );
}

#[test]
fn b3_utilization_waits_for_enough_underutilized_nodes() {
    let mut args = low();
    args["numberOfNodes"] = 1.into();
    let (plan, _) = check_is_fixpoint(&unbalanced(), &strategy("lowNodeUtilization", args));
    assert!(plan.moves.is_empty());
    let waiting = plan.not_moved.iter().find(|p| p.pod.name == "p1").unwrap();
    assert_eq!(
        waiting.reason.to_string(),
        "1 nodes are underutilized, fewer than 2"
    );
    // Excluded namespaces count on the node, and stay.
    let mut args = low();
    args["evictableNamespaces"] = json!({"exclude": ["default"]});
    let (plan, _) = check_is_fixpoint(&unbalanced(), &strategy("lowNodeUtilization", args));
    assert!(plan.moves.is_empty() && plan.not_moved.is_empty(), "{plan}");
}

#[test]
fn b3_thresholds_may_be_distances_from_the_average() {
    // 80 %, 10 %, 0 %: the average is 30 %. Ten more is the target, ten less is underutilized.
    let mut world = unbalanced();
    set_node(&mut world, "n3", json!({"spec": {"unschedulable": false}}));
    let args = json!({
        "thresholds": {"cpu": 10}, "targetThresholds": {"cpu": 10}, "useDeviationThresholds": true,
    });
    let (plan, _) = check_is_fixpoint(&world, &strategy("lowNodeUtilization", args));
    assert_eq!(plan.moves.len(), 4, "{plan}");
    assert!(plan.moves.iter().all(|step| step.from == "n1"));
}

#[test]
fn b3_measured_usage_moves_with_the_pods() {
    let mut world = World::of(&["n1", "n2"]);
    world.pods(4, "a", "n1", &json!({}));
    let milli = |milli_cpu| Resources {
        milli_cpu,
        ..Resources::default()
    };
    let pods = world
        .pods
        .keys()
        .map(|name| (("default".to_string(), name.clone()), milli(900)));
    world.usage = Usage {
        pods: pods.collect(),
        nodes: [("n1".into(), milli(3600)), ("n2".into(), milli(100))].into(),
    };
    let args = json!({
        "thresholds": {"cpu": 30}, "targetThresholds": {"cpu": 60},
        "metricsUtilization": {"source": "KubernetesMetrics"},
    });
    let policy = strategy("lowNodeUtilization", args);
    let plan = world.plan(&policy);
    // 3600, 2700, 1800 of 4000; requests say nothing.
    assert_eq!(moves(&plan), ["n1 -> n2", "n1 -> n2"], "{plan}");
    // A pod without metrics is not moved for them.
    world.usage.pods.clear();
    let plan = world.plan(&policy);
    assert!(plan.moves.is_empty());
    assert!(
        plan.not_moved.iter().all(|p| p.reason.code() == "NoMetrics"),
        "{plan}"
    );
}

#[test]
fn b3_underutilized_nodes_are_emptied_if_the_scheduler_packs() {
    let mut world = World::of(&["n1", "n2", "n3"]);
    world.pods(1, "a", "n1", &cpu("400m"));
    world.pods(3, "b", "n2", &cpu("800m"));
    let policy = strategy("highNodeUtilization", json!({"thresholds": {"cpu": 30}}));
    let mut packing = Profile::default();
    packing.fit.strategy = Strategy::MostAllocated;
    let packed = plan(&Snapshot::new(vec![packing], &world.objects(), now()), &policy);
    assert_eq!(moves(&packed), ["n1 -> n2"], "{packed}");
    // A scheduler that spreads would choose an empty node: that is no gain.
    let (plan, _) = check_is_fixpoint(&world, &policy);
    assert!(plan.moves.is_empty(), "{plan}");
    assert_eq!(plan.not_moved[0].pod.name, "a-n1-0");
    // Pods without a request of a resource of the thresholds.
    let mut only = World::of(&["n1", "n2", "n3"]);
    only.pods(1, "a", "n1", &json!({}));
    only.pods(3, "b", "n2", &cpu("800m"));
    let args = json!({"thresholds": {"cpu": 30}, "evictionModes": ["OnlyThresholdingResources"]});
    let mut packing = Profile::default();
    packing.fit.strategy = Strategy::MostAllocated;
    let found = knarr_rebalance::plan(
        &Snapshot::new(vec![packing], &only.objects(), now()),
        &strategy("highNodeUtilization", args),
    );
    assert!(found.moves.is_empty(), "{found}");
}

#[test]
fn b3_old_pods_are_replaced_even_on_the_same_node() {
    let mut world = World::of(&["n1"]);
    world.pod(
        "old",
        "a",
        "n1",
        &json!({"metadata": {"creationTimestamp": ago(700)}}),
    );
    world.pod(
        "young",
        "a",
        "n1",
        &json!({"metadata": {"creationTimestamp": ago(500)}}),
    );
    let policy = strategy("podLifeTime", json!({"maxPodLifeTimeSeconds": 600}));
    let (plan, _) = check_is_fixpoint(&world, &policy);
    assert_eq!(plan.moves.len(), 1, "{plan}");
    assert_eq!(
        (plan.moves[0].pod.name.as_str(), plan.moves[0].rule),
        ("old", "PodLifeTime")
    );
    assert_eq!(moves(&plan), ["n1 -> n1"]);
    // Not if it would not be scheduled again.
    set_node(&mut world, "n1", json!({"spec": {"unschedulable": true}}));
    let (plan, _) = check_is_fixpoint(&world, &policy);
    assert_eq!(reasons(&plan), ["old: NoNodeFits"]);
}

#[test]
fn b3_the_criteria_of_a_life_time_are_all_needed() {
    let status = json!({"status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady", "lastTransitionTime": ago(400)}],
        "containerStatuses": [{
            "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 3,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        }],
    }});
    let cases = [
        (json!({"states": ["CrashLoopBackOff"]}), true),
        (json!({"states": ["ImagePullBackOff"]}), false),
        (
            json!({"states": ["CrashLoopBackOff"], "maxPodLifeTimeSeconds": 600}),
            true,
        ),
        (
            json!({"states": ["CrashLoopBackOff"], "maxPodLifeTimeSeconds": 8000}),
            false,
        ),
        (
            json!({"conditions": [{"type": "Ready", "status": "False", "minTimeSinceLastTransitionSeconds": 300}]}),
            true,
        ),
        (
            json!({"conditions": [{"type": "Ready", "status": "False", "minTimeSinceLastTransitionSeconds": 500}]}),
            false,
        ),
        (
            json!({"conditions": [{"type": "Ready", "status": "True"}]}),
            false,
        ),
        (json!({"exitCodes": [1]}), false),
        (
            json!({"states": ["CrashLoopBackOff"], "ownerKinds": {"include": ["StatefulSet"]}}),
            false,
        ),
        (
            json!({"states": ["CrashLoopBackOff"], "ownerKinds": {"exclude": ["ReplicaSet"]}}),
            false,
        ),
        (
            json!({"states": ["CrashLoopBackOff"], "labelSelector": {"matchLabels": {"app": "other"}}}),
            false,
        ),
        (
            json!({"states": ["CrashLoopBackOff"], "namespaces": {"exclude": ["default"]}}),
            false,
        ),
    ];
    for (args, is_replaced) in cases {
        let mut world = World::of(&["n1"]);
        world.pod("p", "a", "n1", &status);
        let (plan, _) = check_is_fixpoint(&world, &strategy("podLifeTime", args.clone()));
        assert_eq!(plan.moves.len(), usize::from(is_replaced), "{args}\n{plan}");
    }
}

#[test]
fn b3_pods_that_restart_too_often_are_replaced() {
    let statuses = |main: i32, init: i32| {
        json!({"status": {
            "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": main}],
            "initContainerStatuses": [{"name": "i", "image": "", "imageID": "", "ready": true, "restartCount": init}],
        }})
    };
    let cases = [
        (json!({"podRestartThreshold": 10}), 10, 0, true),
        (json!({"podRestartThreshold": 10}), 9, 5, false),
        (
            json!({"podRestartThreshold": 10, "includingInitContainers": true}),
            9,
            5,
            true,
        ),
        (
            json!({"podRestartThreshold": 10, "states": ["CrashLoopBackOff"]}),
            10,
            0,
            false,
        ),
        (
            json!({"podRestartThreshold": 10, "states": ["Running"]}),
            10,
            0,
            true,
        ),
    ];
    for (args, main, init, is_replaced) in cases {
        let mut world = World::of(&["n1", "n2"]);
        world.pod("p", "a", "n1", &statuses(main, init));
        let (plan, _) = check_is_fixpoint(&world, &strategy("tooManyRestarts", args.clone()));
        assert_eq!(plan.moves.len(), usize::from(is_replaced), "{args}\n{plan}");
        assert!(plan.moves.iter().all(|step| step.rule == "TooManyRestarts"));
    }
}

#[test]
fn b3_failed_pods_are_deleted() {
    let failed = json!({
        "metadata": {"creationTimestamp": ago(100)},
        "status": {"phase": "Failed", "reason": "OutOfcpu", "containerStatuses": [{
            "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 2, "reason": "Error"}},
        }]},
    });
    let cases = [
        (json!({}), true),
        (json!({"reasons": ["OutOfcpu"]}), true),
        (json!({"reasons": ["Error"]}), true),
        (json!({"reasons": ["OOMKilled"]}), false),
        (json!({"exitCodes": [2]}), true),
        (json!({"exitCodes": [1]}), false),
        (json!({"minPodLifetimeSeconds": 200}), false),
        (json!({"minPodLifetimeSeconds": 50}), true),
        (json!({"excludeOwnerKinds": ["ReplicaSet"]}), false),
    ];
    for (args, is_deleted) in cases {
        let mut world = World::of(&["n1"]);
        world.pod("p", "a", "n1", &failed);
        world.pod("running", "a", "n1", &json!({}));
        let (plan, after) = check_is_fixpoint(&world, &strategy("failedPods", args.clone()));
        assert_eq!(plan.moves.len(), usize::from(is_deleted), "{args}\n{plan}");
        assert_eq!(after.pods.contains_key("p"), !is_deleted);
        assert!(plan.moves.iter().all(|step| step.to.is_none()));
    }
    let mut world = World::of(&["n1"]);
    world.pod("bare", "a", "n1", &failed);
    world.pods.get_mut("bare").unwrap()["metadata"]["ownerReferences"] = Value::Null;
    let (plan, _) = check_is_fixpoint(&world, &strategy("failedPods", json!({})));
    assert_eq!(reasons(&plan), ["bare: NoController"]);
}

#[test]
fn b3_a_plan_is_shown_as_tables_and_as_json() {
    let mut world = World::of(&["n1 a", "n2 b"]);
    let constraint = json!({"spec": {"topologySpreadConstraints": [world::spread("zone", 1, "web")]}});
    world.pods(4, "web", "n1", &constraint);
    for name in ["web-n1-2", "web-n1-3"] {
        let annotations = json!({"metadata": {"annotations": {"knarr.io/rebalance": "false"}}});
        overlay(world.pods.get_mut(name).unwrap(), &annotations);
    }
    let budgets = json!({"strategies": {"topologySpread": {}}, "budgets": {"perHour": 1}});
    let plan = world.plan(&policy(budgets));
    let rule = "spread of app=web in default over zone (maxSkew 1, DoNotSchedule)";
    let pad = |text: &str| format!("{text:<width$}", width = rule.len());
    assert_eq!(
        plan.to_string(),
        format!(
            "\
WAVE   POD                FROM   TO   RULE             GAIN
1      default/web-n1-0   n1     n2   TopologySpread   {rule} 3 -> 1

NOT MOVED          NODE   REASON     MESSAGE
default/web-n1-1   n1     Budget     1 of the 1 moves of an hour are used for policy test
default/web-n1-2   n1     OptedOut   an annotation of the pod or its namespace forbids it
default/web-n1-3   n1     OptedOut   an annotation of the pod or its namespace forbids it

{}   BEFORE   AFTER
{rule}   3        1
",
            pad("VIOLATED")
        )
    );
    let json = serde_json::to_value(&plan).unwrap();
    let step = &json["moves"][0];
    assert_eq!(
        (&step["from"], &step["to"], &step["wave"]),
        (&"n1".into(), &"n2".into(), &1.into())
    );
    assert_eq!(step["pod"]["uid"], "uid-web-n1-0");
    assert_eq!(step["changes"][0]["constraint"]["type"], "TopologySpread");
    assert_eq!(step["changes"][0]["constraint"]["topologyKey"], "zone");
    let reason = &json["notMoved"][0]["reason"];
    assert_eq!(
        (&reason["code"], &reason["limit"], &reason["of"]),
        (&"Budget".into(), &1.into(), &"Policy".into())
    );
    assert!(reason["message"].as_str().unwrap().contains("of an hour"));
}
