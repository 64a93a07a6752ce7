//! Which template a pod is created from during an update.

use super::*;

fn image(world: &World, name: &str) -> String {
    let containers = pod(world, name).unwrap().spec.unwrap().containers;
    containers[0].image.clone().unwrap()
}

/// A set of three pods of image `one`, which is to have image `two`.
fn updating(spec: Value) -> World {
    let mut world = World::default();
    let mut spec = spec;
    spec["podManagementPolicy"] = "Parallel".into();
    world.put(set(spec));
    sync(&mut world, 0);
    settle(&mut world);
    sync(&mut world, 1);
    edit(&mut world, |s| {
        s.template.spec.as_mut().unwrap().containers[0].image = Some("two".into());
    });
    world
}

#[test]
fn a_lost_pod_is_created_again_from_its_revision_unless_its_ordinal_is_updated_already() {
    // The strategy, the first ordinal -> the images of pods that were lost at once.
    for (strategy, start, images) in [
        (json!({"type": "OnDelete"}), 0, ["two", "two", "two"]),
        (
            json!({"type": "OnDelete", "rollingUpdate": {"partition": 1}}),
            3,
            ["one", "two", "two"],
        ),
        (
            json!({"rollingUpdate": {"partition": 2}}),
            3,
            ["one", "one", "two"],
        ),
        // Without a partition as many as the status counts of the current revision.
        (json!({"type": "RollingUpdate"}), 0, ["one", "one", "one"]),
    ] {
        let mut world = updating(json!({"updateStrategy": strategy, "ordinals": {"start": start}}));
        let names: Vec<String> = (start..start + 3).map(|n| format!("db-{n}")).collect();
        for name in &names {
            world.remove(&registry::POD, "a", name);
        }
        sync(&mut world, 2);
        let found: Vec<String> = names.iter().map(|name| image(&world, name)).collect();
        assert_eq!(found, images, "{strategy}");
    }
}

#[test]
fn with_max_unavailable_a_pod_that_is_updated_is_not_deleted_again() {
    let mut world = updating(json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": 2}}}));
    assert_eq!(sync(&mut world, 2), ["delete pods a/db-2", "delete pods a/db-1"]);
    settle(&mut world);
    assert_eq!(sync(&mut world, 3), ["create pods a/db-1", "create pods a/db-2"]);
    settle(&mut world);
    assert_eq!(sync(&mut world, 4), ["delete pods a/db-0"]);
}

#[test]
fn a_set_that_is_deleted_and_one_whose_write_was_rejected_create_and_delete_nothing() {
    let mut world = updating(json!({"replicas": 1, "revisionHistoryLimit": 10}));
    for n in 0..3 {
        edit(&mut world, |s| {
            s.template.spec.as_mut().unwrap().containers[0].image = Some(format!("v{n}"));
        });
        for second in 2..6 {
            sync(&mut world, second);
            settle(&mut world);
        }
    }
    edit(&mut world, |s| s.revision_history_limit = Some(0));
    world.remove(&registry::POD, "a", "db-0");
    let rejected = crate::world::failure(&registry::POD);
    let changes = |actions: &[Action]| -> Vec<String> {
        let lines = lines(actions).into_iter();
        lines
            .filter(|l| l.starts_with("create") || l.starts_with("delete"))
            .collect()
    };
    let plain = changes(&world.run(&StatefulSets, KEY, at(9)));
    assert!(plain.contains(&"create pods a/db-0".to_string()), "{plain:?}");
    assert!(
        plain.iter().any(|l| l.starts_with("delete controllerrevisions")),
        "{plain:?}"
    );
    let after = world.run_after(&StatefulSets, KEY, at(9), Some(&rejected));
    assert_eq!(changes(&after), [""; 0]);
    let view: &dyn View = &world;
    let mut deleted = (*view.get_as::<StatefulSet>("a", "db").unwrap()).clone();
    deleted.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(9)));
    world.put(deleted);
    assert_eq!(changes(&world.run(&StatefulSets, KEY, at(9))), [""; 0]);
}
