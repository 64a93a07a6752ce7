//! Budgets of selectors, controllers and bare pods, and what eviction has counted.

use serde_json::{Value, json};

use super::*;
use crate::world::{World, at, lines, object, updated};

fn world(spec: Value, ready: usize, unready: usize, owner: Option<&str>) -> World {
    let mut world = World::default();
    let mut budget_spec = spec;
    budget_spec["selector"] = json!({"matchLabels": {"app": "x"}});
    let budget: PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": {"namespace": "a", "name": "b", "generation": 2}, "spec": budget_spec,
    }))
    .unwrap();
    world.put(budget);
    let set: ReplicaSet = serde_json::from_value(json!({
        "metadata": {"namespace": "a", "name": "s"}, "spec": {"replicas": 10, "selector": {}},
    }))
    .unwrap();
    world.put(set);
    for n in 0..ready + unready {
        let is = if n < ready { "True" } else { "False" };
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "a", "name": format!("p{n}"), "labels": {"app": "x"}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": is}]},
        }))
        .unwrap();
        pod.metadata.owner_references = owner.map(|kind| {
            let api_version = if kind == "Job" { "batch/v1" } else { "apps/v1" };
            vec![OwnerReference {
                api_version: api_version.into(),
                kind: kind.into(),
                name: "s".into(),
                uid: "uid-s".into(),
                controller: Some(true),
                ..OwnerReference::default()
            }]
        });
        world.put(pod);
    }
    world
}

fn sync(world: &World, second: i64) -> (PodDisruptionBudgetStatus, Vec<String>) {
    let actions = world.run(&Disruptions, ("a", "b"), at(second));
    let status = updated::<PodDisruptionBudget>(&actions, "status")
        .unwrap()
        .status
        .unwrap();
    (status, lines(&actions))
}

#[test]
fn a_budget_allows_disruption_of_healthy_pods_beyond_the_desired_number() {
    let set = Some("ReplicaSet");
    // spec, ready, not ready, owner -> healthy, desired, expected, allowed
    let table = [
        (json!({"minAvailable": 2}), 3, 0, None, (3, 2, 3, 1)),
        (json!({"minAvailable": 2}), 1, 2, None, (1, 2, 3, 0)),
        (json!({"minAvailable": 0}), 0, 0, None, (0, 0, 0, 0)),
        (json!({"minAvailable": "55%"}), 9, 0, set, (9, 6, 10, 3)),
        (json!({"maxUnavailable": 1}), 10, 0, set, (10, 9, 10, 1)),
        (json!({"maxUnavailable": "25%"}), 10, 0, set, (10, 7, 10, 3)),
        (json!({"maxUnavailable": 1}), 2, 0, None, (2, 0, 0, 0)),
    ];
    for (spec, ready, unready, owner, expected) in table {
        let (status, _) = sync(&world(spec.clone(), ready, unready, owner), 0);
        let is = (
            status.current_healthy.unwrap(),
            status.desired_healthy.unwrap(),
            status.expected_pods.unwrap(),
            status.disruptions_allowed.unwrap(),
        );
        assert_eq!(is, expected, "{spec} {ready} {unready} {owner:?}");
        let condition = &status.conditions.unwrap()[0];
        let (is, reason) = if expected.3 > 0 {
            ("True", "SufficientPods")
        } else {
            ("False", "InsufficientPods")
        };
        assert_eq!(
            (condition.status.as_str(), condition.reason.as_str()),
            (is, reason)
        );
        assert_eq!(status.observed_generation, Some(2));
    }
}

#[test]
fn an_evicted_pod_does_not_count_as_healthy_for_two_minutes() {
    let mut world = world(json!({"minAvailable": 1}), 2, 0, None);
    let view: &dyn View = &world;
    let mut budget = (*view.get_as::<PodDisruptionBudget>("a", "b").unwrap()).clone();
    budget.status.get_or_insert_default().disrupted_pods = Some([("p0".to_string(), Time(at(0)))].into());
    world.put(budget);
    let (status, lines) = sync(&world, 20);
    assert_eq!(
        (status.current_healthy, status.disruptions_allowed),
        (Some(1), Some(0))
    );
    assert!(lines.contains(&"requeue after 100s".to_string()), "{lines:?}");
    for seconds in [120, 121] {
        let (status, lines) = sync(&world, seconds);
        assert_eq!((status.current_healthy, status.disrupted_pods), (Some(2), None));
        assert!(lines[0].starts_with("event NotDeleted: "), "{lines:?}");
        let requeues = lines.iter().filter(|line| line.starts_with("requeue")).count();
        assert_eq!(requeues, 0, "{lines:?}");
    }
}

#[test]
fn a_budget_that_cannot_be_computed_allows_nothing() {
    let (status, lines) = sync(&world(json!({"maxUnavailable": 1}), 3, 0, Some("Job")), 0);
    assert_eq!(status.disruptions_allowed, Some(0));
    assert_eq!(status.conditions.unwrap()[0].reason, "SyncFailed");
    assert_eq!(
        lines[0],
        "event CalculateExpectedPodCountFailed: Failed to calculate the number of expected pods: jobs.batch does not \
         implement the scale subresource"
    );
}

fn with_scale(api_version: &str, kind: &str, owner_uid: &str) -> World {
    let mut world = world(json!({"maxUnavailable": 0}), 1, 0, None);
    let view: &dyn View = &world;
    let mut pod = (*view.get_as::<Pod>("a", "p0").unwrap()).clone();
    pod.metadata.owner_references = serde_json::from_value(json!([
        {"apiVersion": api_version, "kind": kind, "name": "s", "uid": owner_uid, "controller": true},
    ]))
    .unwrap();
    world.put(pod);
    world
}

fn put<T: knarr_api::registry::Registered>(world: &mut World, value: Value) {
    world.put::<T>(serde_json::from_value(value).unwrap());
}

#[test]
fn the_expected_pods_are_the_scale_of_their_controller() {
    let meta = json!({"namespace": "a", "name": "s"});
    let of_deployment = |uid: &str| {
        let owners = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": uid, "controller": true}]);
        json!({"metadata": {"namespace": "a", "name": "s", "ownerReferences": owners},
            "spec": {"replicas": 10, "selector": {}}})
    };
    // The pod's controller, its uid, the ReplicaSet's owner -> expected pods; `None` is what cannot be calculated.
    for (api_version, kind, uid, deployment, pods) in [
        ("apps/v1", "ReplicaSet", "uid-s", None, Some(10)),
        ("apps/v1", "ReplicaSet", "another", None, None),
        ("apps/v1", "ReplicaSet", "uid-s", Some("uid-d"), Some(7)),
        ("apps/v1", "ReplicaSet", "uid-s", Some("another"), None),
        ("apps/v1", "StatefulSet", "uid-s", None, Some(4)),
        ("apps/v1", "StatefulSet", "another", None, None),
        ("v1", "ReplicationController", "uid-s", None, Some(6)),
        ("v1", "ReplicationController", "another", None, None),
        ("apps/v1", "DaemonSet", "uid-s", None, None),
        ("example.com/v1", "Widget", "uid-s", None, None),
    ] {
        let mut world = with_scale(api_version, kind, uid);
        put::<StatefulSet>(
            &mut world,
            json!({"metadata": meta, "spec": {"replicas": 4, "selector": {}, "template": {}}}),
        );
        put::<ReplicationController>(&mut world, json!({"metadata": meta, "spec": {"replicas": 6}}));
        put::<Deployment>(
            &mut world,
            json!({"metadata": {"namespace": "a", "name": "d"}, "spec": {"replicas": 7, "selector": {}, "template": {}}}),
        );
        if let Some(uid) = deployment {
            put::<ReplicaSet>(&mut world, of_deployment(uid));
        }
        let (status, lines) = sync(&world, 0);
        assert_eq!(status.expected_pods, pods, "{kind} {uid} {deployment:?}");
        if kind == "DaemonSet" {
            assert!(
                lines[0].ends_with("daemonsets.apps does not implement the scale subresource"),
                "{lines:?}"
            );
        }
    }
}

#[test]
fn pods_that_a_budget_does_not_select_do_not_count() {
    let mut world = world(json!({"minAvailable": 1}), 2, 0, None);
    put::<Pod>(
        &mut world,
        json!({"metadata": {"namespace": "a", "name": "other", "labels": {"app": "y"}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}),
    );
    let (status, _) = sync(&world, 0);
    assert_eq!((status.expected_pods, status.current_healthy), (Some(2), Some(2)));
}

#[test]
fn pods_without_a_controller_are_reported_with_the_selector() {
    let (_, lines) = sync(&world(json!({"maxUnavailable": 1}), 1, 0, None), 0);
    let begin = "event UnmanagedPods: Pods selected by this PodDisruptionBudget \
        (selector: &LabelSelector{MatchLabels:map[string]string{app:x,},";
    assert!(lines[0].starts_with(begin), "{lines:?}");
}

#[test]
fn a_conditions_time_changes_with_its_status_only_and_others_conditions_stay() {
    let mut world = world(json!({"minAvailable": 1}), 2, 0, None);
    let view: &dyn View = &world;
    let mut budget = (*view.get_as::<PodDisruptionBudget>("a", "b").unwrap()).clone();
    let time = |second| serde_json::to_value(Time(at(second))).unwrap();
    budget.status = serde_json::from_value(json!({"conditions": [
        {"type": "Audited", "status": "True", "reason": "ByHand", "message": "", "lastTransitionTime": time(0)},
    ]}))
    .unwrap();
    world.put(budget);
    let mut step = |ready: &[bool], second: i64| -> Vec<(String, String, i64)> {
        for (n, ready) in ready.iter().enumerate() {
            let is = if *ready { "True" } else { "False" };
            put::<Pod>(
                &mut world,
                json!({"metadata": {"namespace": "a", "name": format!("p{n}"), "labels": {"app": "x"}},
                    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": is}]}}),
            );
        }
        let (status, _) = sync(&world, second);
        let actions = world.run(&Disruptions, ("a", "b"), at(second));
        world.take_updates(&actions);
        let conditions = status.conditions.unwrap().into_iter();
        let second = |c: &Condition| c.last_transition_time.0.duration_since(at(0)).as_secs();
        conditions
            .map(|c| (c.type_.clone(), c.status.clone(), second(&c)))
            .collect()
    };
    let audited = ("Audited".to_string(), "True".to_string(), 0);
    let allowed = |is: &str, second| ("DisruptionAllowed".to_string(), is.to_string(), second);
    assert_eq!(step(&[true, true], 5), [audited.clone(), allowed("True", 5)]);
    assert_eq!(
        step(&[true, true, true], 10),
        [audited.clone(), allowed("True", 5)]
    );
    assert_eq!(step(&[true, false, false], 20), [audited, allowed("False", 20)]);
}

#[test]
fn a_budget_is_reconciled_for_its_pods_and_for_controllers_whose_spec_changes() {
    let world = world(json!({"minAvailable": 1}), 0, 0, None);
    let pod = |app: &str| {
        object::<Pod>(json!({"metadata": {"namespace": "a", "name": "p", "labels": {"app": app}}}))
    };
    let set = |uid: &str, generation: i64| {
        let meta = json!({"namespace": "a", "name": "s", "uid": uid, "generation": generation});
        object::<ReplicaSet>(json!({"metadata": meta, "spec": {"selector": {}}}))
    };
    let budget = object::<PodDisruptionBudget>(json!({"metadata": {"namespace": "a", "name": "new"}}));
    for (what, old, new, keys) in [
        ("the budget", None, Some(budget), vec!["a/new"]),
        ("a pod of it", None, Some(pod("x")), vec!["a/b"]),
        (
            "a pod that was of it",
            Some(pod("x")),
            Some(pod("y")),
            vec!["a/b"],
        ),
        ("another pod", None, Some(pod("y")), vec![]),
        ("a new set", None, Some(set("u", 1)), vec!["a/b"]),
        ("a deleted set", Some(set("u", 1)), None, vec!["a/b"]),
        ("a scaled set", Some(set("u", 1)), Some(set("u", 2)), vec!["a/b"]),
        (
            "another set of the name",
            Some(set("u", 1)),
            Some(set("v", 1)),
            vec!["a/b"],
        ),
        ("a set's status", Some(set("u", 1)), Some(set("u", 1)), vec![]),
    ] {
        assert_eq!(
            world.keys(&Disruptions, old.as_ref(), new.as_ref()),
            keys,
            "{what}"
        );
    }
}
