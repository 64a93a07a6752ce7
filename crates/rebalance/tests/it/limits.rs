//! What bounds a plan for many pods: simulations in vain, and what it lists. What is left out is counted.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use knarr_api::k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_rebalance::controller::kinds::RebalancePolicy;
use knarr_rebalance::controller::{Input, PLANS_MAX, Policies, step};
use knarr_rebalance::limits::Limits;
use knarr_rebalance::plan::Plan;
use knarr_rebalance::plan_within;
use knarr_rebalance::policy::Policy;
use knarr_rebalance::snapshot::{Snapshot, Usage};
use knarr_scheduler::Profile;
use serde_json::json;

use crate::world::{World, moves, now, policy, strategy};

/// Pods that may run on their tainted nodes only.
const PINNED: usize = 6;

/// Tainted nodes, each with a pod: all but one are pinned to their node, and that one would fit the node without a taint.
fn pinned() -> World {
    let mut world = World::of(&["free"]);
    let tainted = json!({"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}});
    for n in 0..PINNED {
        let (app, node) = (format!("pinned-{n}"), format!("n{n}"));
        world.node(&node, tainted.clone());
        let to_node = json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": node}}});
        world.pods(1, &app, &node, &to_node);
    }
    world.node("n9", tainted);
    world.pods(1, "movable", "n9", &json!({}));
    world
}

/// The plan at so many hours after the epoch.
fn plan_at(world: &World, policy: &Policy, limits: &Limits, hours: i64) -> Plan {
    let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(hours);
    let snapshot = Snapshot::new(vec![Profile::default()], &world.objects(), now);
    plan_within(&snapshot, policy, limits)
}

#[test]
fn b3_simulations_in_vain_are_bounded_and_the_pods_that_were_not_simulated_are_counted() {
    let world = pinned();
    let policy = strategy("nodeTaints", json!({}));
    let plan = world.plan(&policy);
    assert_eq!(moves(&plan), ["n9 -> free"]);
    assert_eq!(plan.reasons(), BTreeMap::from([("NoNodeFits", PINNED)]));
    assert_eq!(plan.not_simulated(), 0);
    let limits = Limits {
        failed_simulations: 2,
        ..Limits::DEFAULT
    };
    let mut found = 0;
    // Seven cells of one rule: four runs of two at most, one of which begins each turn.
    for hours in 0..16 {
        let plan = plan_at(&world, &policy, &limits, hours);
        let expected = PINNED + 1 - plan.moves.len();
        assert_eq!(plan.pods_that_stay(), expected, "{plan}");
        assert_eq!(plan.not_simulated(), expected - 2, "{plan}");
        found += plan.moves.len();
    }
    assert!(found > 0, "the pod that can be moved has its turn");
}

#[test]
fn b3_pods_and_rules_that_a_plan_does_not_list_are_counted() {
    let mut world = pinned();
    world.pods.retain(|name, _| name.starts_with("pinned"));
    let policy =
        policy(json!({"strategies": {"nodeTaints": {}, "podLifeTime": {"maxPodLifeTimeSeconds": 60}}}));
    let whole = world.plan(&policy);
    assert_eq!(
        (whole.not_moved.len(), whole.violations.len()),
        (PINNED, 2),
        "{whole}"
    );
    assert!(whole.not_listed.is_empty() && whole.violations_not_listed == 0);
    let limits = Limits {
        not_moved: 2,
        violations: 1,
        ..Limits::DEFAULT
    };
    let plan = plan_within(&world.snapshot_of(&world.objects()), &policy, &limits);
    assert_eq!(
        (plan.not_moved.len(), plan.pods_that_stay()),
        (2, PINNED),
        "{plan}"
    );
    assert_eq!(plan.reasons(), whole.reasons());
    assert_eq!((plan.violations.len(), plan.violations_not_listed), (1, 1));
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["notListed"], json!(plan.not_listed));
    assert_eq!(json["violationsNotListed"], 1);
    let text = plan.to_string();
    assert!(text.contains("4 more pods stay: "), "{text}");
    assert!(text.contains("1 more rules are violated"), "{text}");
}

#[test]
fn b3_more_policies_than_a_step_plans_for_take_turns() {
    let policies: Vec<RebalancePolicy> = (0..PLANS_MAX + 4)
        .map(|n| {
            let json = json!({
                "metadata": {"name": "p", "namespace": format!("team-{n}"), "uid": format!("p-{n}"), "generation": 1},
                "spec": {"dryRun": true, "strategies": {"nodeTaints": {}}},
            });
            serde_json::from_value(json).unwrap()
        })
        .collect();
    let objects = pinned().objects();
    let mut planned = BTreeSet::new();
    for turn in 0..2 {
        let step = step(Input {
            policies: Policies::read(policies.clone()),
            profiles: &[Profile::default()],
            objects: &objects,
            usage: &Usage::default(),
            now: now(),
            turn,
        });
        let has_plan = |policy: &&RebalancePolicy| {
            let mut conditions = policy.status.conditions.iter();
            conditions.any(|c| c.type_ == "Progressing")
        };
        let with_plan: Vec<&RebalancePolicy> = step.updates.iter().filter(has_plan).collect();
        assert_eq!(with_plan.len(), PLANS_MAX);
        planned.extend(with_plan.iter().map(|policy| policy.namespace().to_string()));
    }
    assert_eq!(planned.len(), policies.len(), "each has its turn");
}
