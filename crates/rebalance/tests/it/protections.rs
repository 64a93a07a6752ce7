//! Which pods stay whatever they violate, and how many may move: protections, PodDisruptionBudgets, budgets, waves.

#![allow(clippy::unwrap_used)]

use knarr_api::k8s_openapi::jiff::SignedDuration;
use knarr_rebalance::plan::Plan;
use knarr_rebalance::snapshot::{Eviction, Workload};
use serde_json::{Value, json};

use crate::world::{World, ago, check_is_fixpoint, now, overlay, policy, reasons, strategy};

/// One pod, `p`, on a node with a taint that it does not tolerate, and a node that fits it.
fn one(with: Value) -> World {
    let mut world = World::of(&["n1", "n2"]);
    let taint = json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
    overlay(world.nodes.get_mut("n1").unwrap(), &taint);
    world.pod("p", "app", "n1", &with);
    world
}

fn plan_with(world: &World, protections: Value) -> Plan {
    let spec = json!({"strategies": {"nodeTaints": {}}, "protections": protections});
    check_is_fixpoint(world, &policy(spec)).0
}

/// The reason why `p` stays; empty: it moves.
fn stays(world: &World, protections: Value) -> String {
    let plan = plan_with(world, protections);
    match reasons(&plan).as_slice() {
        [] => {
            assert_eq!(plan.moves.len(), 1, "{plan}");
            String::new()
        }
        [reason] => {
            assert!(plan.moves.is_empty(), "{plan}");
            reason.trim_start_matches("p: ").to_string()
        }
        _ => panic!("{plan}"),
    }
}

fn owner(kind: &str) -> Value {
    json!([{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "o", "controller": true}])
}

fn annotated(annotations: Value) -> Value {
    json!({"metadata": {"annotations": annotations}})
}

#[test]
fn b3_pods_that_no_policy_moves() {
    let deleted =
        json!({"metadata": {"deletionTimestamp": now().to_string(), "deletionGracePeriodSeconds": 30}});
    for (with, expected) in [
        (json!({"metadata": {"ownerReferences": null}}), "NoController"),
        (
            json!({"metadata": {"ownerReferences": owner("DaemonSet")}}),
            "DaemonSetPod",
        ),
        (
            json!({"metadata": {"ownerReferences": owner("Node")}}),
            "StaticPod",
        ),
        (
            annotated(json!({"kubernetes.io/config.mirror": "x"})),
            "MirrorPod",
        ),
        (
            annotated(json!({"kubernetes.io/config.source": "file"})),
            "StaticPod",
        ),
        (annotated(json!({"kubernetes.io/config.source": "api"})), ""),
        (annotated(json!({"knarr.io/rebalance": "false"})), "OptedOut"),
        (json!({"spec": {"schedulerName": "other"}}), "OtherScheduler"),
        (
            json!({"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "g"}]}}),
            "ResourceClaims",
        ),
        (
            json!({"metadata": {"ownerReferences": owner("StatefulSet")}}),
            "AtMostOne",
        ),
        (annotated(json!({"knarr.io/at-most-one": "true"})), "AtMostOne"),
    ] {
        assert_eq!(stays(&one(with.clone()), json!({})), expected, "{with}");
    }
    // A terminating pod violates nothing any more.
    let plan = plan_with(&one(deleted), json!({}));
    assert!(plan.moves.is_empty() && plan.not_moved.is_empty(), "{plan}");
}

#[test]
fn s1_consent_lets_at_most_one_pods_move_and_nothing_lets_daemons_move() {
    for annotation in ["knarr.io/rebalance", "descheduler.alpha.kubernetes.io/evict"] {
        let consent = json!({annotation: "true"});
        for (kind, expected) in [("StatefulSet", ""), ("DaemonSet", "DaemonSetPod")] {
            let with = json!({"metadata": {"ownerReferences": owner(kind), "annotations": consent}});
            assert_eq!(stays(&one(with), json!({})), expected, "{annotation} {kind}");
        }
        let critical = json!({"metadata": {"annotations": consent}, "spec": {"priority": 2_000_000_000}});
        assert_eq!(stays(&one(critical), json!({})), "", "{annotation}");
    }
}

#[test]
fn s1_pods_with_a_volume_for_one_node_need_consent() {
    for (mode, expected) in [
        ("ReadWriteOnce", "AtMostOne"),
        ("ReadWriteOncePod", "AtMostOne"),
        ("ReadWriteMany", ""),
    ] {
        let volume =
            json!({"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}});
        let mut world = one(volume);
        world.claim("c", "", mode);
        let found = stays(&world, json!({}));
        // The scheduler does not know the volume, so the pod that may move has nowhere to go.
        let expected = if expected.is_empty() {
            "NoNodeFits"
        } else {
            expected
        };
        assert!(
            found == expected || (expected == "NoNodeFits" && found == "Unschedulable"),
            "{mode}: {found}"
        );
    }
}

#[test]
fn b3_the_annotation_of_a_namespace_counts_where_the_pod_has_none() {
    let opted = |metadata: Value, with: Value| {
        let mut world = one(with);
        world.namespace("default", metadata);
        stays(&world, json!({}))
    };
    let no = json!({"annotations": {"knarr.io/rebalance": "false"}});
    assert_eq!(opted(no.clone(), json!({})), "OptedOut");
    assert_eq!(opted(no, annotated(json!({"knarr.io/rebalance": "true"}))), "");
    let yes = json!({"annotations": {"knarr.io/rebalance": "true"}});
    assert_eq!(
        opted(yes, annotated(json!({"knarr.io/rebalance": "false"}))),
        "OptedOut"
    );
}

#[test]
fn b3_a_policy_protects_pods() {
    let prefers = annotated(json!({"descheduler.alpha.kubernetes.io/prefer-no-eviction": ""}));
    let local = json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}});
    let priority = |priority: i32| json!({"spec": {"priority": priority}});
    let started = |seconds: i64| json!({"status": {"startTime": ago(seconds)}});
    for (with, protections, expected) in [
        (prefers.clone(), json!({}), ""),
        (
            prefers,
            json!({"preferNoEvictionIsMandatory": true}),
            "PreferNoEviction",
        ),
        (local.clone(), json!({}), "LocalStorage"),
        (local, json!({"localStorage": false}), ""),
        (priority(2_000_000_000), json!({}), "SystemCritical"),
        (priority(2_000_000_000), json!({"systemCritical": false}), ""),
        (
            priority(10),
            json!({"priorityThreshold": {"value": 10}}),
            "PriorityThreshold",
        ),
        (priority(9), json!({"priorityThreshold": {"value": 10}}), ""),
        (
            priority(9),
            json!({"priorityThreshold": {"name": "high"}}),
            "UnknownPriorityClass",
        ),
        (started(100), json!({"minPodAge": "2m"}), "MinPodAge"),
        (started(200), json!({"minPodAge": "2m"}), ""),
        (json!({}), json!({"minReplicas": 2}), "MinReplicas"),
        (json!({}), json!({"minReplicas": 1}), ""),
        (
            json!({}),
            json!({"withoutDisruptionBudget": true}),
            "NoDisruptionBudget",
        ),
        (
            json!({}),
            json!({"destinationSelector": {"matchLabels": {"kubernetes.io/hostname": "n2"}}}),
            "",
        ),
        (
            json!({}),
            json!({"destinationSelector": {"matchLabels": {"kubernetes.io/hostname": "n1"}}}),
            "NodeNotSelected",
        ),
    ] {
        let found = stays(&one(with.clone()), protections.clone());
        assert_eq!(found, expected, "{with} {protections}");
    }
    // A class that exists.
    let mut world = one(priority(9));
    world.priority_class("high", 9);
    assert_eq!(
        stays(&world, json!({"priorityThreshold": {"name": "high"}})),
        "PriorityThreshold"
    );
    // Pods that the policy does not select are not its business.
    let plan = plan_with(
        &one(json!({})),
        json!({"labelSelector": {"matchLabels": {"app": "other"}}}),
    );
    assert!(plan.moves.is_empty() && plan.not_moved.is_empty());
}

#[test]
fn b3_claims_of_protected_storage_classes_keep_their_pods() {
    let volume = json!({"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}});
    let mut world = one(volume);
    world.claim("c", "fast", "ReadWriteMany");
    assert_eq!(
        stays(&world, json!({"persistentVolumeClaims": true})),
        "PersistentVolumeClaim"
    );
    assert_eq!(
        stays(&world, json!({"storageClasses": ["fast"]})),
        "PersistentVolumeClaim"
    );
    assert_ne!(
        stays(&world, json!({"storageClasses": ["slow"]})),
        "PersistentVolumeClaim"
    );
}

#[test]
fn b3_pods_of_nodes_that_are_not_ready_are_left_to_the_node_lifecycle() {
    let mut world = one(json!({}));
    let unknown = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    overlay(world.nodes.get_mut("n1").unwrap(), &unknown);
    assert_eq!(stays(&world, json!({})), "NodeNotReady");
}

#[test]
fn b3_a_node_selector_limits_where_pods_are_moved_away_from() {
    let world = one(json!({}));
    for (node, count) in [("n1", 1), ("n2", 0)] {
        let selector = json!({"matchLabels": {"kubernetes.io/hostname": node}});
        let policy = policy(json!({"strategies": {"nodeTaints": {}}, "nodeSelector": selector}));
        let (plan, _) = check_is_fixpoint(&world, &policy);
        assert_eq!(plan.moves.len(), count, "{node}: {plan}");
        assert!(plan.not_moved.is_empty(), "{plan}");
    }
}

/// So many pods that must leave n1.
fn several(count: usize) -> World {
    let mut world = one(json!({}));
    world.pods.clear();
    world.pods(count, "app", "n1", &json!({}));
    world
}

#[test]
fn b3_a_disruption_budget_of_zero_forbids_moves_and_others_make_waves() {
    for (allowed, at_once, expected) in [
        (0, 9, vec![]),
        (1, 9, vec![1, 2, 3, 4, 5]),
        (2, 9, vec![1, 1, 2, 2, 3]),
        (9, 9, vec![1, 1, 1, 1, 1]),
        (9, 2, vec![1, 1, 2, 2, 3]),
        (2, 1, vec![1, 2, 3, 4, 5]),
    ] {
        let mut world = several(5);
        world.disruption_budget("pdb", "app", allowed);
        let spec = json!({"strategies": {"nodeTaints": {}}, "budgets": {"atOncePerWorkload": at_once}});
        let (plan, _) = check_is_fixpoint(&world, &policy(spec));
        let waves: Vec<u32> = plan.moves.iter().map(|step| step.wave).collect();
        assert_eq!(waves, expected, "{allowed} {at_once}\n{plan}");
        assert_eq!(plan.waves(), expected.last().copied().unwrap_or(0));
        if allowed == 0 {
            let text = plan.not_moved[0].reason.to_string();
            assert_eq!(
                (plan.not_moved.len(), text.as_str()),
                (5, "the PodDisruptionBudget pdb allows no disruption")
            );
        }
    }
}

#[test]
fn b3_two_disruption_budgets_of_one_pod_forbid_its_eviction_as_the_api_does() {
    let mut world = one(json!({}));
    world.disruption_budget("a", "app", 1);
    world.disruption_budget("b", "app", 1);
    assert_eq!(stays(&world, json!({})), "SeveralDisruptionBudgets");
}

#[test]
fn b3_budgets_per_hour_count_earlier_moves() {
    let of = |seconds: i64, node: &str| Eviction {
        at: now() - SignedDuration::from_secs(seconds),
        node: node.into(),
        workload: Workload {
            namespace: "default".into(),
            kind: "ReplicaSet".into(),
            name: "app".into(),
        },
    };
    for (budgets, evictions, count, code) in [
        (json!({"perHour": 3}), vec![], 3, "Policy"),
        (
            json!({"perHour": 3}),
            vec![of(60, "n9"), of(3599, "n9"), of(3600, "n9")],
            1,
            "Policy",
        ),
        (json!({"perHour": 0}), vec![], 0, "Policy"),
        (json!({"perNode": 2}), vec![of(60, "n1"), of(60, "n9")], 1, "Node"),
        (json!({"perNamespace": 4}), vec![of(60, "n9")], 3, "Namespace"),
        (json!({"perWorkload": 2}), vec![of(60, "n9")], 1, "Workload"),
    ] {
        let mut world = several(5);
        world.evictions = evictions;
        let spec = json!({"strategies": {"nodeTaints": {}}, "budgets": budgets});
        let (plan, _) = check_is_fixpoint(&world, &policy(spec));
        assert_eq!(plan.moves.len(), count, "{budgets}\n{plan}");
        assert_eq!(plan.not_moved.len(), 5 - count);
        let reason = serde_json::to_value(&plan.not_moved[0]).unwrap();
        assert_eq!(reason["reason"]["of"], code, "{plan}");
    }
}

#[test]
fn b3_pods_that_prefer_not_to_be_evicted_are_the_last() {
    let mut world = several(3);
    for name in ["app-n1-0", "app-n1-2"] {
        let annotation = annotated(json!({"descheduler.alpha.kubernetes.io/prefer-no-eviction": ""}));
        overlay(world.pods.get_mut(name).unwrap(), &annotation);
    }
    let spec = json!({"strategies": {"nodeTaints": {}}, "budgets": {"perHour": 1}});
    let (plan, _) = check_is_fixpoint(&world, &policy(spec));
    assert_eq!(plan.moves[0].pod.name, "app-n1-1");
}

#[test]
fn b3_pods_of_low_priority_and_young_ones_move_first() {
    let mut world = one(json!({}));
    world.pods.clear();
    world.pod("high", "high", "n1", &json!({"spec": {"priority": 5}}));
    world.pod(
        "low-old",
        "low",
        "n1",
        &json!({"spec": {"priority": 1}, "metadata": {"creationTimestamp": ago(900)}}),
    );
    world.pod(
        "low-young",
        "low",
        "n1",
        &json!({"spec": {"priority": 1}, "metadata": {"creationTimestamp": ago(90)}}),
    );
    let (plan, _) = check_is_fixpoint(&world, &strategy("nodeTaints", json!({})));
    let names: Vec<&str> = plan.moves.iter().map(|step| step.pod.name.as_str()).collect();
    assert_eq!(names, ["low-young", "low-old", "high"]);
}
