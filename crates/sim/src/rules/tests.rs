//! What no sabotage at the seams can bring about (the API server itself would refuse it) is shown to the rules.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use serde_json::json;

use super::ALL;
use crate::world::{Life, Process, Seen, World};

fn broken(seen: &Seen<'_>, world: &World) -> Vec<&'static str> {
    let failed = ALL.iter().filter(|(_, check)| check(seen, world).is_err());
    failed.map(|(rule, _)| *rule).collect()
}

fn pod(phase: &str, node: &str, deadline: Option<(&str, i64)>) -> Pod {
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "default", "uid": "u"},
        "spec": {"nodeName": node, "containers": [{"name": "c"}], "initContainers": [{"name": "i"}]},
        "status": {"phase": phase},
    }))
    .unwrap();
    if let Some((at, grace)) = deadline {
        pod.metadata.deletion_timestamp = serde_json::from_value(json!(at)).unwrap();
        pod.metadata.deletion_grace_period_seconds = Some(grace);
    }
    pod
}

fn life(pod: Pod) -> Life {
    Life {
        pod: Arc::new(pod),
        first_seen: Timestamp::UNIX_EPOCH,
        bound_at: None,
        deleted_at: None,
        removed_at: None,
        released: false,
        given_up: false,
        vouched: false,
        asked_to_go: false,
        announced: None,
        completed: BTreeSet::new(),
        isolated_by: BTreeSet::new(),
    }
}

/// The pod as it is once the API server or the scheduler has said why it has to go.
fn disrupted(mut pod: Pod, reason: &str) -> Pod {
    let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": reason});
    let status = pod.status.get_or_insert_default();
    let conditions = status.conditions.get_or_insert_default();
    conditions.push(serde_json::from_value(condition).unwrap());
    pod
}

fn written<'a>(before: &'a Pod, after: &'a Pod) -> Seen<'a> {
    Seen::PodWritten {
        uid: "u",
        before: Some(before),
        after,
    }
}

#[test]
fn l1_l2_t1_what_goes_backwards_is_seen() {
    let early = Some(("2026-01-01T00:00:10Z", 10));
    let late = Some(("2026-01-01T00:00:20Z", 20));
    for (before, after, expect) in [
        (pod("Running", "n1", None), pod("Running", "n1", None), vec![]),
        (pod("Pending", "", None), pod("Pending", "n1", None), vec![]),
        (pod("Running", "n1", None), pod("Pending", "n1", None), vec!["L1"]),
        (pod("Failed", "n1", None), pod("Running", "n1", None), vec!["L1"]),
        (
            pod("Succeeded", "n1", None),
            pod("Failed", "n1", None),
            vec!["L1"],
        ),
        (pod("Running", "n1", None), pod("Running", "n2", None), vec!["L2"]),
        (pod("Running", "n1", late), pod("Running", "n1", early), vec![]),
        (
            pod("Running", "n1", early),
            pod("Running", "n1", late),
            vec!["T1"],
        ),
        (
            pod("Running", "n1", early),
            pod("Running", "n1", None),
            vec!["T1"],
        ),
    ] {
        let seen = Seen::PodWritten {
            uid: "u",
            before: Some(&before),
            after: &after,
        };
        assert_eq!(broken(&seen, &World::default()), expect, "{before:?} → {after:?}");
    }
    let last = pod("Running", "n1", None);
    let seen = Seen::PodRemoved {
        uid: "u",
        last: &last,
    };
    assert_eq!(broken(&seen, &World::default()), ["T1"], "unmarked");
}

#[test]
fn s3_what_starts_out_of_turn_is_seen() {
    let process = |node: &str, container: &str| Process {
        node: node.into(),
        id: "1".into(),
        uid: "u".into(),
        namespace: "default".into(),
        name: "a".into(),
        container: container.into(),
        sandbox: "s".into(),
        homeless: false,
        asked: None,
    };
    for (started, done, removed, expect) in [
        (process("n1", "i"), false, false, vec![]),
        (process("n1", "c"), true, false, vec![]),
        (process("n1", "c"), false, false, vec!["S3"]),
        (process("n2", "i"), false, false, vec!["S3"]),
        (process("n1", "c"), true, true, vec!["S3"]),
    ] {
        let completed = done.then(|| ("i".to_string(), process("n1", "i").sandbox));
        let life = Life {
            removed_at: removed.then_some(Timestamp::UNIX_EPOCH),
            completed: completed.into_iter().collect(),
            ..life(pod("Pending", "n1", None))
        };
        let mut world = World::default();
        world.pods.insert("u".into(), life);
        assert_eq!(broken(&Seen::Started(&started), &world), expect, "{started:?}");
    }
    let nobodys = process("n1", "c");
    assert_eq!(broken(&Seen::Started(&nobodys), &World::default()), ["S3"]);
}

#[test]
fn b7_term_before_the_kernel_of_a_node_that_is_heard_has_dropped_the_address_is_seen() {
    let process = Process {
        node: "n1".into(),
        id: "c1".into(),
        uid: "u".into(),
        namespace: "default".into(),
        name: "a".into(),
        container: "c".into(),
        sandbox: "s1".into(),
        homeless: false,
        asked: None,
    };
    let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
    for (ready, offers, well_since, expect) in [
        ("True", true, 0, vec!["B7"]),
        // It is not Ready, and forwards what its kernel has.
        ("False", true, 0, vec!["B7"]),
        ("False", false, 0, vec![]),
        // Taken for lost, or back for a moment only.
        ("Unknown", true, 0, vec![]),
        ("False", true, 590, vec![]),
    ] {
        let mut pod = pod("Running", "n1", Some(("2026-01-01T00:10:30Z", 30)));
        pod.status =
            serde_json::from_value(json!({"phase": "Running", "podIPs": [{"ip": "10.1.0.1"}]})).unwrap();
        let life = Life {
            deleted_at: Some(now),
            ..life(pod)
        };
        let mut world = World {
            now,
            ..World::default()
        };
        world.pods.insert("u".into(), life);
        let began: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        world.well_since.insert("node/n1".into(), Some(began));
        let since = began + SignedDuration::from_secs(well_since);
        world.well_since.insert("node/n2".into(), Some(since));
        let node = json!({
            "metadata": {"name": "n2"}, "status": {"conditions": [{"type": "Ready", "status": ready}]},
        });
        world
            .nodes
            .insert("n2".into(), serde_json::from_value(node).unwrap());
        let addresses = offers.then(|| "10.1.0.1".parse().unwrap());
        world.kernels.insert("n2".into(), addresses.into_iter().collect());
        let seen = Seen::Asked(&process);
        assert_eq!(broken(&seen, &world), expect, "{ready} {offers} {well_since}");
    }
}

#[test]
fn p4_preemption_for_nothing_more_important_that_may_preempt_is_seen() {
    let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
    let long_ago: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let of_priority = |priority: i32, policy: &str| {
        let mut pod = pod("Pending", "", None);
        let spec = pod.spec.as_mut().unwrap();
        spec.priority = Some(priority);
        spec.preemption_policy = Some(policy.into());
        pod
    };
    let victim = of_priority(5, "PreemptLowerPriority");
    let preempted = disrupted(victim.clone(), "PreemptionByScheduler");
    for (priority, policy, bound_at, removed_at, expect) in [
        (6, "PreemptLowerPriority", None, None, vec![]),
        (6, "PreemptLowerPriority", Some(now), None, vec![]),
        (5, "PreemptLowerPriority", None, None, vec!["P4"]),
        (6, "Never", None, None, vec!["P4"]),
        (6, "PreemptLowerPriority", Some(long_ago), None, vec!["P4"]),
        (6, "PreemptLowerPriority", None, Some(long_ago), vec!["P4"]),
    ] {
        let mut world = World {
            now,
            ..World::default()
        };
        let other = Life {
            bound_at,
            removed_at,
            ..life(of_priority(priority, policy))
        };
        world.pods.insert("other".into(), other);
        world.pods.insert("u".into(), life(victim.clone()));
        let found = broken(&written(&victim, &preempted), &world);
        assert_eq!(found, expect, "{priority} {policy} {bound_at:?} {removed_at:?}");
        // It is judged once, when it happens.
        assert!(broken(&written(&preempted, &preempted), &world).is_empty());
    }
}

fn budget(allowed: i32, healthy: i32, counted: &[&str]) -> PodDisruptionBudget {
    let counted: BTreeMap<&str, &str> = counted.iter().map(|n| (*n, "2026-01-01T00:00:00Z")).collect();
    serde_json::from_value(json!({
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}},
        "status": {
            "disruptionsAllowed": allowed, "currentHealthy": healthy, "desiredHealthy": 1, "expectedPods": 3,
            "disruptedPods": counted,
        },
    }))
    .unwrap()
}

#[test]
fn p5_evictions_that_no_budget_counted_are_seen() {
    let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
    let ready_since = |at: &str, app: &str| {
        let mut pod = pod("Running", "n1", None);
        pod.metadata.labels = Some(BTreeMap::from([("app".into(), app.into())]));
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": at});
        let status = pod.status.as_mut().unwrap();
        status.conditions = Some(vec![serde_json::from_value(ready).unwrap()]);
        pod
    };
    let (long, lately) = ("2026-01-01T00:00:00Z", "2026-01-01T00:09:50Z");
    for (ready, app, budget, known_since, expect) in [
        (long, "a", budget(0, 2, &["a"]), long, vec![]),
        (long, "a", budget(0, 2, &[]), long, vec!["P5"]),
        (long, "other", budget(0, 2, &[]), long, vec![]),
        // Whoever evicted it may not have seen that it is ready, or that there is a budget.
        (lately, "a", budget(0, 2, &[]), long, vec![]),
        (long, "a", budget(0, 2, &[]), lately, vec![]),
    ] {
        let mut world = World {
            now,
            ..World::default()
        };
        let known_since: Timestamp = known_since.parse().unwrap();
        world.budgets.insert("default/b".into(), (budget, known_since));
        let before = ready_since(ready, app);
        let after = disrupted(before.clone(), "EvictionByEvictionAPI");
        assert_eq!(
            broken(&written(&before, &after), &world),
            expect,
            "{ready} {app} {known_since}"
        );
    }
}

#[test]
fn p5_budgets_that_allow_more_than_is_left_are_seen() {
    for (before, after, expect) in [
        (None, budget(2, 3, &[]), vec![]),
        (None, budget(0, 0, &[]), vec![]),
        (None, budget(3, 3, &[]), vec!["P5"]),
        (None, budget(1, 0, &[]), vec!["P5"]),
        (None, budget(-1, 3, &[]), vec!["P5"]),
        (Some(budget(2, 3, &[])), budget(1, 3, &["a"]), vec![]),
        (Some(budget(2, 3, &[])), budget(2, 3, &["a"]), vec!["P5"]),
        (Some(budget(2, 3, &[])), budget(1, 3, &["a", "b"]), vec!["P5"]),
        (Some(budget(1, 3, &["a"])), budget(2, 3, &["a"]), vec![]),
    ] {
        let seen = Seen::BudgetWritten {
            before: before.as_ref(),
            after: &after,
        };
        assert_eq!(broken(&seen, &World::default()), expect, "{before:?} {after:?}");
    }
}
