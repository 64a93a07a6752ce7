//! Spread that lasts (SPEC B3, D2, D5): the documents' examples after pods were removed or nodes came, and cases with the
//! sizes of the descheduler's own tests of RemovePodsViolatingTopologySpreadConstraint.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use crate::world::{self, World, check_is_fixpoint, moves, policy, reasons, spread, strategy};

/// One node in each zone `z0`, `z1`, …, with so many pods of `foo` that have the constraint.
fn zones(sizes: &[usize], max_skew: i32) -> World {
    let mut world = World::default();
    let spec = json!({"spec": {"topologySpreadConstraints": [spread("zone", max_skew, "foo")]}});
    for (n, size) in sizes.iter().enumerate() {
        let name = format!("n{n}");
        let labels = json!({"zone": format!("z{n}")});
        let allocatable = json!({"pods": "200", "cpu": "64", "memory": "256Gi"});
        world.node(
            &name,
            json!({"metadata": {"labels": labels}, "status": {"allocatable": allocatable}}),
        );
        world.pods(*size, "foo", &name, &spec);
    }
    world
}

#[test]
fn b3_sizes_are_evened_out_with_the_fewest_moves() {
    // Before, maxSkew, after, moves: the sizes and counts of the descheduler's tests.
    for (before, max_skew, after, count) in [
        (&[2, 1][..], 1, &[2, 1][..], 0),
        (&[3, 1], 1, &[2, 2], 1),
        (&[5, 2], 1, &[4, 3], 1),
        (&[4, 0], 1, &[2, 2], 2),
        (&[2, 6], 2, &[3, 5], 1),
        (&[0, 1, 3, 5], 1, &[2, 2, 3, 2], 3),
        (&[8, 7, 0], 1, &[5, 5, 5], 5),
        (&[5, 5, 5], 1, &[5, 5, 5], 0),
        (&[0, 1, 100], 1, &[33, 34, 34], 66),
    ] {
        let world = zones(before, max_skew);
        let (plan, result) = check_is_fixpoint(&world, &strategy("topologySpread", json!({})));
        let mut sizes = result.sizes("foo");
        let mut expected = after.to_vec();
        sizes.sort_unstable();
        expected.sort_unstable();
        let skew = sizes.last().unwrap() - sizes.first().unwrap();
        assert!(
            skew <= usize::try_from(max_skew).unwrap(),
            "{before:?}: {sizes:?}"
        );
        assert_eq!((plan.moves.len(), sizes), (count, expected), "{before:?}\n{plan}");
    }
}

#[test]
fn b3_both_fullest_domains_are_lessened_though_the_skew_stays() {
    // A measure by the largest skew would find no first move.
    let (_, result) = check_is_fixpoint(&zones(&[5, 5, 0, 0], 1), &strategy("topologySpread", json!({})));
    let sizes = result.sizes("foo");
    assert!(
        sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1,
        "{sizes:?}"
    );
}

#[test]
fn d5_a_scale_down_that_left_2_0_is_evened_out() {
    // "There's no guarantee that the constraints remain satisfied when Pods are removed."
    let mut world = World::of(&["node1 zoneA", "node2 zoneA", "node3 zoneB", "node4 zoneB"]);
    let spec = json!({"spec": {"topologySpreadConstraints": [spread("zone", 1, "foo")]}});
    world.pods(1, "foo", "node1", &spec);
    world.pods(1, "foo", "node2", &spec);
    let (plan, result) = check_is_fixpoint(&world, &strategy("topologySpread", json!({})));
    assert_eq!(plan.moves.len(), 1);
    assert_eq!(result.sizes("foo"), [1, 1]);
    let step = &plan.moves[0];
    assert_eq!((step.changes[0].before, step.changes[0].after), (1, 0));
}

#[test]
fn d5_two_constraints_are_restored_together() {
    // Zones and nodes: the only good node for the surplus pod is node4.
    let mut world = World::of(&["node1 zoneA", "node2 zoneA", "node3 zoneB", "node4 zoneB"]);
    let both = json!([
        spread("zone", 1, "foo"),
        spread("kubernetes.io/hostname", 1, "foo")
    ]);
    let spec = json!({"spec": {"topologySpreadConstraints": both}});
    world.pods(2, "foo", "node1", &spec);
    world.pods(1, "foo", "node2", &spec);
    world.pods(1, "foo", "node3", &spec);
    let (plan, _) = check_is_fixpoint(&world, &strategy("topologySpread", json!({})));
    assert_eq!(moves(&plan), ["node1 -> node4"]);
}

#[test]
fn d5_conflicting_constraints_move_nothing() {
    // Five pods on three nodes of two zones: each constraint forbids what the other asks for.
    let mut world = World::of(&["node1 zoneA", "node2 zoneA", "node3 zoneB"]);
    let both = json!([
        spread("zone", 1, "foo"),
        spread("kubernetes.io/hostname", 1, "foo")
    ]);
    let spec = json!({"spec": {"topologySpreadConstraints": both}});
    world.pods(2, "foo", "node1", &spec);
    world.pods(2, "foo", "node2", &spec);
    world.pods(2, "foo", "node3", &spec);
    let (plan, _) = check_is_fixpoint(&world, &strategy("topologySpread", json!({})));
    assert!(plan.moves.is_empty(), "{plan}");
    assert_eq!(reasons(&plan).len(), 4, "the four pods of zoneA\n{plan}");
}

#[test]
fn d5_an_excluded_zone_does_not_count() {
    let mut world = World::of(&[
        "node1 zoneA",
        "node2 zoneA",
        "node3 zoneB",
        "node4 zoneB",
        "node5 zoneC",
    ]);
    let not_c = json!({"key": "zone", "operator": "NotIn", "values": ["zoneC"]});
    let spec = json!({"spec": {
        "topologySpreadConstraints": [spread("zone", 1, "foo")],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [not_c]}],
        }}},
    }});
    world.pods(1, "foo", "node1", &spec);
    world.pods(1, "foo", "node2", &spec);
    world.pods(1, "foo", "node3", &spec);
    let (plan, _) = check_is_fixpoint(&world, &strategy("topologySpread", json!({})));
    assert!(plan.moves.is_empty() && plan.not_moved.is_empty(), "{plan}");
}

#[test]
fn d5_nodes_without_the_key_are_no_domain() {
    let mut world = World::of(&["node1 zoneA", "node2 zoneB", "node5"]);
    let spec = json!({"spec": {"topologySpreadConstraints": [spread("zone", 1, "foo")]}});
    world.pods(3, "foo", "node5", &spec);
    world.pods(1, "foo", "node1", &spec);
    world.pods(1, "foo", "node2", &spec);
    let (plan, _) = check_is_fixpoint(&world, &strategy("topologySpread", json!({})));
    assert!(plan.moves.is_empty(), "{plan}");
}

#[test]
fn b3_pods_that_only_fit_their_zone_stay_and_others_of_the_group_move() {
    // 4 and 0: two pods are bound to zoneA by their node selector, one by affinity to a label that no node has.
    let mut world = World::of(&["n1 zoneA", "n2 zoneB"]);
    let constraint = spread("zone", 1, "foo");
    let only_a =
        json!({"spec": {"topologySpreadConstraints": [constraint], "nodeSelector": {"zone": "zoneA"}}});
    world.pod("a", "foo", "n1", &only_a);
    world.pod("b", "foo", "n1", &only_a);
    let unknown = json!({"key": "foo", "operator": "In", "values": ["bar"]});
    world.pod(
        "c",
        "foo",
        "n1",
        &json!({"spec": {
            "topologySpreadConstraints": [constraint],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [unknown]}],
            }}},
        }}),
    );
    world.pod(
        "d",
        "foo",
        "n1",
        &json!({"spec": {"topologySpreadConstraints": [constraint]}}),
    );
    let (plan, _) = check_is_fixpoint(&world, &strategy("topologySpread", json!({})));
    assert_eq!(plan.moves.len(), 1, "{plan}");
    assert_eq!(plan.moves[0].pod.name, "d");
}

#[test]
fn b3_full_or_tainted_destinations_are_found_before_a_pod_is_moved() {
    let cordoned = json!({"spec": {"unschedulable": true}});
    let tainted = json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
    let full = json!({"status": {"allocatable": {"cpu": "100m"}}});
    for with in [cordoned, tainted, full] {
        let mut world = zones(&[4, 0], 1);
        let mut node = world.nodes["n1"].clone();
        world::overlay(&mut node, &with);
        world.nodes.insert("n1".into(), node);
        let requests = json!({"requests": {"cpu": "1"}});
        for pod in world.pods.values_mut() {
            pod["spec"]["containers"][0]["resources"] = requests.clone();
        }
        let (plan, _) = check_is_fixpoint(&world, &strategy("topologySpread", json!({})));
        assert!(plan.moves.is_empty(), "{with}: {plan}");
        assert_eq!(plan.not_moved.len(), 4, "{with}: {plan}");
        assert!(
            plan.not_moved.iter().all(|p| p.reason.code() == "NoNodeFits"),
            "{with}: {plan}"
        );
    }
}

#[test]
fn b3_soft_constraints_are_restored_if_the_policy_says_so() {
    let soft = |value: &mut Value| value["whenUnsatisfiable"] = "ScheduleAnyway".into();
    let mut world = World::of(&["n1 zoneA", "n2 zoneB"]);
    let mut constraint = spread("zone", 1, "foo");
    soft(&mut constraint);
    world.pods(
        3,
        "foo",
        "n1",
        &json!({"spec": {"topologySpreadConstraints": [constraint]}}),
    );
    world.pods(
        1,
        "foo",
        "n2",
        &json!({"spec": {"topologySpreadConstraints": [constraint]}}),
    );
    let hard_only = strategy("topologySpread", json!({}));
    assert!(world.plan(&hard_only).moves.is_empty());
    let both = strategy(
        "topologySpread",
        json!({"constraints": ["DoNotSchedule", "ScheduleAnyway"]}),
    );
    let (plan, result) = check_is_fixpoint(&world, &both);
    assert_eq!(plan.moves.len(), 1);
    assert_eq!(result.sizes("foo"), [2, 2]);
}

#[test]
fn b3_a_soft_constraint_that_the_scheduler_would_not_follow_moves_nothing() {
    // Zone B is so full that the scheduler prefers the node that the pods are on. The descheduler would evict without end.
    let mut world = World::of(&["n1 zoneA", "n2 zoneB"]);
    let mut constraint = spread("zone", 1, "foo");
    constraint["whenUnsatisfiable"] = "ScheduleAnyway".into();
    world.pods(
        3,
        "foo",
        "n1",
        &json!({"spec": {"topologySpreadConstraints": [constraint]}}),
    );
    let large = json!({"requests": {"cpu": "3900m", "memory": "7900Mi"}});
    world.pod(
        "large",
        "large",
        "n2",
        &json!({"spec": {"containers": [{"name": "c", "resources": large}]}}),
    );
    world.pods(
        1,
        "foo",
        "n2",
        &json!({"spec": {"topologySpreadConstraints": [constraint]}}),
    );
    let taint = json!({"spec": {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}});
    let mut node = world.nodes["n2"].clone();
    world::overlay(&mut node, &taint);
    world.nodes.insert("n2".into(), node);
    let policy = strategy("topologySpread", json!({"constraints": ["ScheduleAnyway"]}));
    let (plan, _) = check_is_fixpoint(&world, &policy);
    assert!(plan.moves.is_empty(), "{plan}");
    assert!(
        plan.not_moved.iter().all(|p| p.reason.code() == "SameNode"),
        "{plan}"
    );
}

#[test]
fn b3_terminating_pods_do_not_count() {
    let mut world = zones(&[4, 2], 1);
    for name in ["foo-n0-0", "foo-n0-1"] {
        let pod = world.pods.get_mut(name).unwrap();
        pod["metadata"]["deletionTimestamp"] = world::now().to_string().into();
    }
    let (plan, _) = check_is_fixpoint(&world, &strategy("topologySpread", json!({})));
    assert!(plan.moves.is_empty() && plan.not_moved.is_empty(), "{plan}");
}

#[test]
fn b3_match_label_keys_separate_replica_sets() {
    for (hashes, count) in [(["a", "a"], 1), (["a", "b"], 0)] {
        let mut world = World::of(&["n1 zoneA", "n2 zoneB"]);
        let mut constraint = spread("zone", 1, "foo");
        constraint["matchLabelKeys"] = json!(["pod-template-hash"]);
        for (n, hash) in hashes.iter().enumerate() {
            let labels = json!({"pod-template-hash": hash});
            let with = json!({
                "metadata": {"labels": labels}, "spec": {"topologySpreadConstraints": [constraint]},
            });
            world.pod(&format!("p{n}"), "foo", "n1", &with);
        }
        let (plan, _) = check_is_fixpoint(&world, &strategy("topologySpread", json!({})));
        assert_eq!(plan.moves.len(), count, "{hashes:?}: {plan}");
    }
}

#[test]
fn b3_tainted_domains_count_unless_the_constraint_honors_taints() {
    // Sizes 2 and 0; the second zone has a taint that the pods do or do not tolerate.
    for (tolerates, policy, count) in [(true, "Honor", 1), (false, "Honor", 0), (false, "Ignore", 0)] {
        let mut world = World::of(&["n1 zoneA"]);
        let taint = json!({"taints": [{"key": "k", "effect": "NoSchedule"}]});
        world.node(
            "n2",
            json!({"metadata": {"labels": {"zone": "zoneB"}}, "spec": taint}),
        );
        let mut constraint = spread("zone", 1, "foo");
        constraint["nodeTaintsPolicy"] = policy.into();
        let mut with = json!({"spec": {"topologySpreadConstraints": [constraint]}});
        if tolerates {
            with["spec"]["tolerations"] = json!([{"key": "k", "operator": "Exists"}]);
        }
        world.pods(2, "foo", "n1", &with);
        let (plan, _) = check_is_fixpoint(&world, &strategy("topologySpread", json!({})));
        assert_eq!(plan.moves.len(), count, "{tolerates} {policy}: {plan}");
        // With Honor the zone is no domain, so nothing is violated.
        assert_eq!(
            plan.not_moved.is_empty(),
            policy == "Honor",
            "{tolerates} {policy}: {plan}"
        );
    }
}

#[test]
fn d2_fewer_domains_than_min_domains_count_as_empty_ones() {
    // Two domains of three: no move between those that exist makes it better.
    let mut world = zones(&[3, 1], 1);
    for pod in world.pods.values_mut() {
        pod["spec"]["topologySpreadConstraints"][0]["minDomains"] = 3.into();
    }
    let (plan, _) = check_is_fixpoint(&world, &strategy("topologySpread", json!({})));
    assert!(plan.moves.is_empty(), "{plan}");
    // The third zone is back.
    world.node("n2", json!({"metadata": {"labels": {"zone": "z2"}}}));
    let (plan, result) = check_is_fixpoint(&world, &strategy("topologySpread", json!({})));
    assert_eq!(plan.moves.len(), 1);
    assert_eq!(result.sizes("foo"), [2, 1, 1]);
}

#[test]
fn d4_the_cluster_defaults_count_as_soft_constraints() {
    // Nine pods of a ReplicaSet in one zone and none in the other: above the built-in maxSkew of 5 for zones.
    let mut world = World::default();
    for (name, zone) in [
        ("n1", "a"),
        ("n2", "a"),
        ("n3", "a"),
        ("n4", "b"),
        ("n5", "b"),
        ("n6", "b"),
    ] {
        let labels = json!({"topology.kubernetes.io/zone": zone, "zone": zone});
        world.node(name, json!({"metadata": {"labels": labels}}));
    }
    world.replica_set("foo", "web");
    for node in ["n1", "n2", "n3"] {
        world.pods(3, "foo", node, &json!({}));
    }
    let soft = strategy("topologySpread", json!({"constraints": ["ScheduleAnyway"]}));
    let (plan, result) = check_is_fixpoint(&world, &soft);
    assert!(!plan.moves.is_empty());
    let sizes = result.sizes("foo");
    assert!(sizes[0].abs_diff(sizes[1]) <= 5, "{sizes:?}");
    assert_eq!(plan.moves[0].workload.to_string(), "Deployment default/web");
}

#[test]
fn b3_a_move_that_would_harm_another_constraint_is_not_made() {
    // The surplus pods of zone A are what other pods of zone A need near them.
    let mut world = World::of(&["n1 zoneA", "n2 zoneB"]);
    world.pods(
        2,
        "foo",
        "n1",
        &json!({"spec": {"topologySpreadConstraints": [spread("zone", 1, "foo")]}}),
    );
    let term =
        json!([{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "foo", "only": "me"}}}]);
    let needs = json!({"spec": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}}});
    world.pod("needs", "needs", "n1", &needs);
    for name in ["foo-n1-0", "foo-n1-1"] {
        let labels = &mut world.pods.get_mut(name).unwrap()["metadata"]["labels"];
        labels["only"] = if name.ends_with('0') { "me" } else { "not" }.into();
    }
    let both = policy(json!({"strategies": {"topologySpread": {}, "podAffinity": {}}}));
    let (plan, _) = check_is_fixpoint(&world, &both);
    assert_eq!(plan.moves.len(), 1, "{plan}");
    assert_eq!(plan.moves[0].pod.name, "foo-n1-1", "{plan}");
    // With both pods needed nothing moves, and the reason names the other rule.
    world.pods.get_mut("foo-n1-1").unwrap()["metadata"]["labels"]["only"] = "me".into();
    world.pods.remove("foo-n1-0");
    world.pod("other", "foo", "n1", &json!({"metadata": {"labels": {"only": "not"}, "annotations": {"knarr.io/rebalance": "false"}}, "spec": {"topologySpreadConstraints": [spread("zone", 1, "foo")]}}));
    let (plan, _) = check_is_fixpoint(&world, &both);
    assert!(plan.moves.is_empty(), "{plan}");
    assert_eq!(reasons(&plan), ["foo-n1-1: NoBetterNode", "other: OptedOut"]);
    assert_eq!(
        plan.not_moved[0].reason.to_string(),
        "none of the 1 other nodes that fit it is better: on n2, the violation of another rule would grow from 0 to 1: \
         affinity to app=foo,only=me in zone"
    );
}
