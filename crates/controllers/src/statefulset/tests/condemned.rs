//! Pods beyond the desired number, and what OrderedReady waits for.

use super::*;
use crate::action::LiveCheck;

/// Sets the state of a pod at second 20: ready for twenty seconds or for five, not ready, or being deleted.
fn set_state(world: &mut World, name: &str, state: &str) {
    set_pod(world, name, "Running", state != "unready", state == "deleting");
    if state == "fresh" {
        let mut fresh = pod(world, name).unwrap();
        let conditions = fresh.status.as_mut().unwrap().conditions.as_mut().unwrap();
        conditions[0].last_transition_time =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(15)));
        world.put(fresh);
    }
}

/// A set with `minReadySeconds: 10` and three pods, the first of which is available.
fn three_pods(replicas: i32, policy: &str, one: &str, two: &str) -> World {
    let mut world = World::default();
    world.put(set(
        json!({"podManagementPolicy": "Parallel", "minReadySeconds": 10}),
    ));
    sync(&mut world, 0);
    for (name, state) in [("db-0", "available"), ("db-1", one), ("db-2", two)] {
        set_state(&mut world, name, state);
    }
    edit(&mut world, |s| {
        s.replicas = Some(replicas);
        s.pod_management_policy = Some(policy.into());
    });
    world
}

#[test]
fn s3_in_order_a_pod_that_is_not_available_is_deleted_only_if_it_is_the_lowest_of_them() {
    for (one, two, deleted) in [
        ("available", "available", vec!["delete pods a/db-2"]),
        ("available", "fresh", vec!["delete pods a/db-2"]),
        ("available", "unready", vec!["delete pods a/db-2"]),
        ("unready", "available", vec!["delete pods a/db-2"]),
        ("unready", "fresh", vec![]),
        ("unready", "unready", vec![]),
        ("fresh", "fresh", vec![]),
        ("available", "deleting", vec![]),
    ] {
        let mut world = three_pods(1, "OrderedReady", one, two);
        assert_eq!(sync(&mut world, 20), deleted, "{one} {two}");
    }
}

/// The cache has the set as it was before it was scaled up, and the pods and claims as they are.
#[test]
fn s7_a_pod_is_deleted_and_a_claim_changes_its_owner_only_while_the_set_is_the_same() {
    let mut world = World::default();
    world.put(set(json!({
        "podManagementPolicy": "Parallel", "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Delete"},
    })));
    let created = lines(&world.run(&StatefulSets, KEY, at(0)));
    assert!(!created.iter().any(|l| l.starts_with("require")), "{created:?}");
    sync(&mut world, 0);
    settle(&mut world);
    sync(&mut world, 1);
    edit(&mut world, |s| s.replicas = Some(2));
    let actions = world.run(&StatefulSets, KEY, at(2));
    let done = lines(&actions);
    assert!(done.contains(&"delete pods a/db-2".to_string()), "{done:?}");
    assert!(
        done.contains(&"update persistentvolumeclaims a/data-db-2".to_string()),
        "{done:?}"
    );
    let Action::Require(LiveCheck::Generation { uid, generation, .. }) = &actions[0] else {
        panic!("the set is read first: {done:?}")
    };
    assert_eq!((uid.as_str(), *generation), ("uid-db", Some(2)));
}

#[test]
fn in_parallel_all_are_deleted_at_once_and_none_twice() {
    for (one, two, deleted) in [
        (
            "unready",
            "fresh",
            vec!["delete pods a/db-2", "delete pods a/db-1"],
        ),
        ("available", "deleting", vec!["delete pods a/db-1"]),
    ] {
        let mut world = three_pods(1, "Parallel", one, two);
        assert_eq!(sync(&mut world, 20), deleted, "{one} {two}");
    }
}

#[test]
fn s3_the_next_pod_is_created_only_when_the_one_before_is_available_and_stays() {
    for (state, created) in [
        ("available", vec!["create pods a/db-1"]),
        ("fresh", vec![]),
        ("unready", vec![]),
        ("deleting", vec![]),
    ] {
        let mut world = World::default();
        world.put(set(json!({"minReadySeconds": 10})));
        sync(&mut world, 0);
        set_state(&mut world, "db-0", state);
        assert_eq!(sync(&mut world, 20), created, "{state}");
    }
}
