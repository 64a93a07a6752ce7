//! The rules on knarr's own placement (B3, B5, B6).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod, PodCondition};
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_client::{DeleteOptions, Preconditions};
use serde_json::json;

use super::{broken, disrupted, life, pod, written};
use crate::world::{Observation, World};

#[test]
fn b3_a_move_at_rest_is_seen_unless_a_budget_held_it_back() {
    for (resting, is_held, expect) in [(true, false, true), (true, true, false), (false, false, false)] {
        let mut world = World {
            resting,
            ..World::default()
        };
        world.placement.is_held = is_held;
        let seen = Observation::MoveAsked { name: "placed/a" };
        let found = broken(&seen, &world).contains(&"B3");
        assert_eq!(found, expect, "resting: {resting}, held: {is_held}");
    }
}

#[test]
fn b3_a_skew_that_a_move_would_lessen_is_seen_at_rest_unless_something_holds_the_move_back() {
    let at = |minute: i64| Timestamp::from_second(60 * minute).unwrap();
    let node = |zone: &str, taints: serde_json::Value| -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": zone}},
            "spec": {"taints": taints},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap()
    };
    let taint = json!([{"key": "k", "effect": "NoSchedule"}]);
    // pods of n1 and n2 in z1 and of n3 in z2, whether the policy has nothing to do, minutes since the last write, n3's taints -> seen
    for (pods, idle, quiet, taints, expect) in [
        ([2, 1, 0], true, 6, json!([]), true),
        ([1, 1, 1], true, 6, json!([]), false),
        ([2, 1, 0], false, 6, json!([]), false),
        ([2, 1, 0], true, 4, json!([]), false),
        ([2, 1, 0], true, 6, taint, false),
        // A second pod on n3 would be more than an even distribution over the nodes.
        ([2, 2, 2], true, 6, json!([]), false),
        ([3, 2, 2], true, 6, json!([]), true),
        ([2, 1, 1], true, 6, json!([]), true),
    ] {
        let mut world = World {
            now: at(100),
            resting: true,
            ..World::default()
        };
        let zones = [
            ("n1", "z1", json!([])),
            ("n2", "z1", json!([])),
            ("n3", "z2", taints),
        ];
        for ((name, zone, taints), pods) in zones.into_iter().zip(pods) {
            world.nodes.insert(name.into(), node(zone, taints));
            for number in 0..pods {
                let mut pod = pod("Running", name, None);
                pod.metadata.namespace = Some("placed".into());
                pod.metadata.labels = Some(BTreeMap::from([("app".into(), "spread".into())]));
                let ready = json!([{"type": "Ready", "status": "True"}]);
                pod.status.get_or_insert_default().conditions = serde_json::from_value(ready).unwrap();
                world.pods.insert(format!("{name}-{number}"), life(pod));
            }
        }
        world.placement.has_nothing_to_move = idle;
        world.placement.changed = at(100 - quiet);
        let found = broken(&Observation::Tick, &world).contains(&"B3");
        assert_eq!(found, expect, "{pods:?} {idle} {quiet}");
    }
}

#[test]
fn b3_what_was_held_back_may_be_moved_at_rest_until_the_policy_has_nothing_to_do() {
    let mut placement = crate::placement::Placement::default();
    let mut report = |reason: &str, held: serde_json::Value| {
        let policy = json!({"status": {
            "heldWorkloads": held,
            "conditions": [{"type": "Progressing", "status": "False", "reason": reason}],
        }});
        let path = "placement.knarr.io/rebalancepolicies/placed/even";
        placement.take_in(path, Some(policy.to_string().as_bytes()), Timestamp::UNIX_EPOCH);
        (placement.is_held, placement.has_nothing_to_move)
    };
    assert_eq!(report("BudgetExhausted", json!([])), (true, false));
    assert_eq!(report("Evicting", json!([])), (true, false));
    assert_eq!(report("NothingToDo", json!(["w"])), (true, true));
    assert_eq!(report("NothingToDo", json!([])), (false, true));
    assert_eq!(report("Evicting", json!([])), (false, false));
}

#[test]
fn b5_a_recorded_preemption_that_is_neither_finished_nor_undone_is_seen() {
    let at = |minute: i64| Timestamp::from_second(60 * minute).unwrap();
    // minutes since the record, minutes without faults, the pod's node, at rest -> whether that is seen
    for (recorded, well, node, resting, expect) in [
        (21, Some(21), "", false, true),
        (21, Some(19), "", false, false),
        (19, Some(21), "", false, false),
        (21, None, "", false, false),
        (21, Some(21), "n1", false, false),
        (1, None, "", true, true),
    ] {
        let mut landlord = pod("Pending", node, None);
        landlord.metadata.namespace = Some("placed".into());
        landlord.metadata.labels = Some(BTreeMap::from([("app".into(), "landlord".into())]));
        landlord.status.get_or_insert_default().nominated_node_name = Some("n1".into());
        let mut world = World {
            now: at(100),
            resting,
            ..World::default()
        };
        world.pods.insert("u".into(), life(landlord));
        world.placement.nominated.insert("u".into(), at(100 - recorded));
        let well_since = well.map(|minutes: i64| at(100 - minutes));
        world.well_since.insert("control-a".into(), well_since);
        let found = broken(&Observation::Tick, &world).contains(&"B5");
        assert_eq!(found, expect, "{recorded} {well:?} {node:?} {resting}");
    }
}

#[test]
fn b6_a_surge_first_eviction_without_a_record_or_a_ready_replacement_is_seen() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let opted_in = |uid: &str, conditions: serde_json::Value| -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": uid, "namespace": "placed", "uid": uid, "labels": {"app": "spread"},
                "annotations": {"knarr.io/eviction": "SurgeFirst"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true}],
            },
            "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
            "status": {"phase": "Running", "conditions": conditions},
        }))
        .unwrap()
    };
    let ready = json!({"type": "Ready", "status": "True"});
    let record = json!({"type": "knarr.io/EvictionRequested", "status": "True"});
    // whether the request is recorded, seconds since then, whether another pod is Ready, seconds since its request -> whether that is seen
    for (is_recorded, ago, is_replaced, other_ago, expect) in [
        (false, 0, true, None, true),
        (true, 30, false, None, true),
        (true, 30, true, None, false),
        (true, 30, true, Some(200), true),
        (true, 30, true, Some(700), false),
        (true, 600, false, None, false),
    ] {
        let conditions = if is_recorded {
            json!([ready, record])
        } else {
            json!([ready])
        };
        let before = opted_in("u", conditions);
        let after = disrupted(before.clone(), "EvictionByEvictionAPI");
        let mut world = World {
            now: at(1_000),
            ..World::default()
        };
        world.pods.insert("u".into(), life(after.clone()));
        if is_replaced {
            world.pods.insert("v".into(), life(opted_in("v", json!([ready]))));
        }
        if let Some(ago) = other_ago {
            world.placement.recorded.insert("v".into(), at(1_000 - ago));
        }
        let wanted = crate::placement::Replicas {
            count: 1,
            since: at(0),
        };
        world.placement.sets.insert("r".into(), wanted);
        world.placement.recorded.insert("u".into(), at(1_000 - ago));
        let found = broken(&written(&before, &after), &world).contains(&"B6");
        assert_eq!(found, expect, "{is_recorded} {ago} {is_replaced} {other_ago:?}");
    }
}

/// Seed 981000049: a pod that was being deleted was removed with its lost node. Seed 1108000079: a node was cordoned.
#[test]
fn b3_a_scale_down_from_an_emptier_zone_is_seen_and_the_removal_of_a_terminating_pod_is_none() {
    let at = |second: i64| Timestamp::from_second(second).unwrap();
    // The zones of Ready pods, whether the first of them is terminating, whether the node of z1 is cordoned, whether the
    // deletion of the first pod breaks the rule.
    for (zones, is_terminating, is_cordoned, expect) in [
        (vec!["z2", "z1"], false, false, false),
        (vec!["z2", "z1", "z1"], false, false, true),
        (vec!["z2", "z1", "z1"], true, false, false),
        (vec!["z2", "z1", "z1"], false, true, false),
        (vec!["z1", "z1", "z2"], false, false, false),
    ] {
        let mut world = World {
            now: at(100),
            ..World::default()
        };
        world.placement.scales_down_by_spread = true;
        world.placement.changed = at(0);
        for zone in ["z1", "z2"] {
            let mut node = json!({
                "metadata": {"name": zone, "labels": {"topology.kubernetes.io/zone": zone}},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            });
            if is_cordoned && zone == "z1" {
                node["spec"]["taints"] =
                    json!([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]);
            }
            let node = serde_json::from_value(node).unwrap();
            world.nodes.insert(zone.to_string(), node);
        }
        for (i, zone) in zones.iter().enumerate() {
            let mut spread = pod("Running", zone, None);
            spread.metadata.namespace = Some("placed".into());
            spread.metadata.labels = Some(BTreeMap::from([("app".into(), "spread".into())]));
            spread.status.get_or_insert_default().conditions = Some(vec![PodCondition {
                type_: "Ready".into(),
                status: "True".into(),
                ..PodCondition::default()
            }]);
            let mut of = life(spread);
            of.deletion_requested = i == 0;
            of.deleted_at = (i == 0 && is_terminating).then(|| at(90));
            world.pods.insert(format!("u{i}"), of);
        }
        let options = DeleteOptions {
            preconditions: Preconditions {
                uid: Some("u0".into()),
                ..Preconditions::default()
            },
            ..DeleteOptions::default()
        };
        let asked = Observation::DeleteAsked {
            by: "control-a",
            name: "p",
            options: &options,
        };
        assert_eq!(
            broken(&asked, &world).contains(&"B3"),
            expect,
            "{zones:?} {is_terminating} {is_cordoned}"
        );
    }
}

/// Seed 1110000047: a move that a budget of the hour had held back was carried out at rest, and its pod was replaced first.
#[test]
fn b6_a_surplus_pod_is_seen_at_rest_unless_it_replaces_one_that_is_moved() {
    let at = |second: i64| Timestamp::from_second(second).unwrap();
    // Pods, when a move was last requested, whether the rule is broken.
    for (pods, requested, expect) in [
        (1, None, false),
        (2, None, true),
        (2, Some(at(990)), false),
        (2, Some(at(900)), true),
    ] {
        let mut world = World {
            now: at(1_000),
            resting: true,
            ..World::default()
        };
        world.placement.last_requested = requested;
        let set = json!({"metadata": {"uid": "set"}, "spec": {"replicas": 1}}).to_string();
        let path = "apps/replicasets/placed/spread-1";
        world.placement.take_in(path, Some(set.as_bytes()), at(0));
        for number in 0..pods {
            let mut spread = pod("Running", "n1", None);
            spread.metadata.namespace = Some("placed".into());
            spread.metadata.labels = Some(BTreeMap::from([("app".into(), "spread".into())]));
            spread.metadata.owner_references = serde_json::from_value(json!([
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "spread-1", "uid": "set", "controller": true},
            ]))
            .unwrap();
            world.pods.insert(format!("u{number}"), life(spread));
        }
        let found = broken(&Observation::Tick, &world).contains(&"B6");
        assert_eq!(found, expect, "{pods} {requested:?}");
    }
}
