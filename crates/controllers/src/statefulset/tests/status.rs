//! What the status counts, and when it is written.

use super::*;

fn status(world: &World, second: i64) -> StatefulSetStatus {
    let actions = world.run(&StatefulSets, KEY, at(second));
    updated::<StatefulSet>(&actions, "status")
        .unwrap()
        .status
        .unwrap()
}

#[test]
fn t7_a_pod_that_is_deleted_or_not_ready_is_not_counted_as_either() {
    // Phase, ready, deleting -> readyReplicas, availableReplicas, currentReplicas, replicas
    for (phase, ready, deleting, counted) in [
        ("Running", true, false, (Some(1), Some(1), Some(1), 1)),
        ("Running", false, false, (None, Some(0), Some(1), 1)),
        ("Pending", true, false, (None, Some(0), Some(1), 1)),
        ("Running", true, true, (Some(1), Some(1), None, 1)),
    ] {
        let mut world = World::default();
        world.put(set(json!({"replicas": 2})));
        sync(&mut world, 0);
        set_pod(&mut world, "db-0", phase, ready, deleting);
        let found = status(&world, 1);
        assert_eq!(
            (
                found.ready_replicas,
                found.available_replicas,
                found.current_replicas,
                found.replicas
            ),
            counted,
            "{phase} {ready} {deleting}"
        );
    }
}

#[test]
fn a_pod_that_is_deleted_for_an_update_is_no_longer_of_the_current_revision() {
    for (replicas, current) in [(2, Some(1)), (1, None)] {
        let mut world = World::default();
        world.put(set(
            json!({"podManagementPolicy": "Parallel", "replicas": replicas}),
        ));
        sync(&mut world, 0);
        settle(&mut world);
        sync(&mut world, 1);
        edit(&mut world, |s| {
            s.template.spec.as_mut().unwrap().containers[0].image = Some("two".into());
        });
        assert_eq!(status(&world, 2).current_replicas, current, "{replicas}");
    }
}

#[test]
fn collisions_and_the_conditions_of_others_stay() {
    let mut world = World::default();
    let mut old = set(json!({}));
    old.status = serde_json::from_value(json!({
        "replicas": 0, "collisionCount": 3, "conditions": [{"type": "Audited", "status": "True"}],
    }))
    .unwrap();
    world.put(old.clone());
    let found = status(&world, 0);
    assert_eq!(found.collision_count, Some(3));
    assert_eq!(found.conditions, old.status.unwrap().conditions);
}

#[test]
fn a_set_in_its_desired_state_writes_nothing() {
    let mut world = World::default();
    world.put(set(json!({"replicas": 1})));
    let first = world.run(&StatefulSets, KEY, at(0));
    let event = "event SuccessfulCreate: Create Pod db-0 in StatefulSet db successful".to_string();
    assert!(lines(&first).contains(&event), "{:?}", lines(&first));
    world.take(&first);
    settle(&mut world);
    sync(&mut world, 1);
    assert_eq!(lines(&world.run(&StatefulSets, KEY, at(2))), [""; 0]);
}
