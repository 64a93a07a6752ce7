//! A set, its pods and its claims over several syncs: the actions are applied to the test's objects, which change only by them.

use serde_json::{Value, json};

mod condemned;
mod enqueue;
mod retention;
mod revisions;
mod status;

use super::*;
use crate::world::{World, at, lines, updated};

const KEY: (&str, &str) = ("a", "db");

fn set(spec: Value) -> StatefulSet {
    let mut value = json!({
        "metadata": {"namespace": "a", "name": "db", "generation": 1},
        "spec": {
            "replicas": 3, "serviceName": "svc", "selector": {"matchLabels": {"app": "db"}},
            "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "c", "image": "one"}]}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
        },
    });
    for (key, of) in spec.as_object().unwrap() {
        value["spec"][key] = of.clone();
    }
    serde_json::from_value(value).unwrap()
}

/// Edits the current set, as a user does.
fn edit(world: &mut World, change: impl FnOnce(&mut StatefulSetSpec)) {
    let view: &dyn View = world;
    let mut set = (*view.get_as::<StatefulSet>("a", "db").unwrap()).clone();
    change(set.spec.as_mut().unwrap());
    set.metadata.generation = set.metadata.generation.map(|g| g + 1);
    world.put(set);
}

fn pod(world: &World, name: &str) -> Option<Pod> {
    let view: &dyn View = world;
    view.get_as::<Pod>("a", name).map(|p| (*p).clone())
}

fn set_pod(world: &mut World, name: &str, phase: &str, ready: bool, deleting: bool) {
    let mut pod = pod(world, name).unwrap();
    pod.status = serde_json::from_value(json!({"phase": phase, "conditions": [
        {"type": "Ready", "status": if ready {"True"} else {"False"}, "lastTransitionTime": "1970-01-12T13:46:40Z"},
    ]}))
    .unwrap();
    pod.metadata.deletion_timestamp =
        deleting.then(|| k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(9)));
    world.put(pod);
}

/// One sync; the actions are applied, deletions of pods only set the deletionTimestamp.
fn sync(world: &mut World, second: i64) -> Vec<String> {
    let actions = world.run(&StatefulSets, KEY, at(second));
    world.take(&actions);
    lines(&actions)
        .into_iter()
        .filter(|l| l.contains(" pods ") || l.contains("claims"))
        .collect()
}

/// Makes all pods run and be ready, and removes terminating ones.
fn settle(world: &mut World) {
    for n in 0..6 {
        let name = format!("db-{n}");
        match pod(world, &name) {
            Some(p) if pod::is_deleting(&p) => world.remove(&registry::POD, "a", &name),
            Some(_) => set_pod(world, &name, "Running", true, false),
            None => {}
        }
    }
}

#[test]
fn pods_are_created_one_by_one_and_deleted_in_the_reverse_order() {
    let mut world = World::default();
    world.put(set(json!({})));
    assert_eq!(sync(&mut world, 0), ["create pods a/db-0"]);
    assert_eq!(sync(&mut world, 1), [""; 0], "it waits until db-0 is ready");
    set_pod(&mut world, "db-0", "Running", false, false);
    assert_eq!(sync(&mut world, 1), [""; 0]);
    settle(&mut world);
    assert_eq!(sync(&mut world, 2), ["create pods a/db-1"]);
    settle(&mut world);
    assert_eq!(sync(&mut world, 3), ["create pods a/db-2"]);
    settle(&mut world);
    assert_eq!(sync(&mut world, 4), [""; 0]);
    edit(&mut world, |s| s.replicas = Some(1));
    assert_eq!(sync(&mut world, 5), ["delete pods a/db-2"]);
    assert_eq!(sync(&mut world, 6), [""; 0], "one at a time");
    settle(&mut world);
    assert_eq!(sync(&mut world, 7), ["delete pods a/db-1"]);
}

#[test]
fn a_pod_has_the_name_labels_and_host_name_of_its_ordinal() {
    let mut world = World::default();
    world.put(set(
        json!({"ordinals": {"start": 4}, "podManagementPolicy": "Parallel", "replicas": 2}),
    ));
    assert_eq!(sync(&mut world, 0), ["create pods a/db-4", "create pods a/db-5"]);
    let pod = pod(&world, "db-4").unwrap();
    let labels = pod.metadata.labels.clone().unwrap();
    assert_eq!(labels["statefulset.kubernetes.io/pod-name"], "db-4");
    assert_eq!(labels["apps.kubernetes.io/pod-index"], "4");
    let view: &dyn View = &world;
    let set = view.get_as::<StatefulSet>("a", "db").unwrap();
    assert_eq!(
        Some(&labels["controller-revision-hash"]),
        set.status.as_ref().unwrap().update_revision.as_ref()
    );
    let spec = pod.spec.unwrap();
    assert_eq!(spec.hostname.as_deref(), Some("db-4"));
    assert_eq!(spec.subdomain.as_deref(), Some("svc"));
    assert_eq!(pod.metadata.generate_name, None);
}

#[test]
fn s1_a_finished_or_lost_pod_is_not_replaced_before_its_object_is_removed() {
    for policy in ["OrderedReady", "Parallel"] {
        let mut world = World::default();
        world.put(set(json!({"podManagementPolicy": policy, "replicas": 1})));
        sync(&mut world, 0);
        for (phase, ready) in [
            ("Running", true),
            ("Running", false),
            ("Unknown", false),
            ("Pending", false),
        ] {
            set_pod(&mut world, "db-0", phase, ready, true);
            assert_eq!(sync(&mut world, 1), [""; 0], "{policy} {phase}");
        }
        set_pod(&mut world, "db-0", "Failed", false, true);
        assert_eq!(sync(&mut world, 2), [""; 0]);
        world.remove(&registry::POD, "a", "db-0");
        assert_eq!(sync(&mut world, 3), ["create pods a/db-0"]);
    }
}

#[test]
fn s2_every_delete_carries_the_uid_it_was_decided_on() {
    let mut world = World::default();
    world.put(set(json!({"replicas": 1})));
    sync(&mut world, 0);
    set_pod(&mut world, "db-0", "Failed", false, false);
    let actions = world.run(&StatefulSets, KEY, at(1));
    let deletes: Vec<_> = actions
        .iter()
        .filter_map(|a| match a {
            Action::Delete(d) => Some((d.key.name.as_str(), d.uid.as_str())),
            _ => None,
        })
        .collect();
    assert_eq!(deletes, [("db-0", "uid-db-0")]);
}

#[test]
fn a_rolling_update_proceeds_from_the_highest_ordinal_to_the_partition() {
    let mut world = World::default();
    world.put(set(json!({"podManagementPolicy": "Parallel"})));
    sync(&mut world, 0);
    settle(&mut world);
    sync(&mut world, 1);
    let revision = |world: &World, name: &str| identity::revision(&pod(world, name).unwrap()).to_string();
    let first = revision(&world, "db-0");
    edit(&mut world, |s| {
        let spec = s.template.spec.as_mut().unwrap();
        spec.containers[0].image = Some("two".into());
        s.update_strategy = serde_json::from_value(json!({"rollingUpdate": {"partition": 1}})).unwrap();
    });
    assert_eq!(sync(&mut world, 2), ["delete pods a/db-2"]);
    assert_eq!(sync(&mut world, 3), [""; 0], "it waits for db-2");
    settle(&mut world);
    assert_eq!(sync(&mut world, 4), ["create pods a/db-2"]);
    let second = revision(&world, "db-2");
    assert_ne!(first, second);
    assert_eq!(sync(&mut world, 5), [""; 0]);
    settle(&mut world);
    assert_eq!(sync(&mut world, 6), ["delete pods a/db-1"]);
    settle(&mut world);
    assert_eq!(sync(&mut world, 7), ["create pods a/db-1"]);
    settle(&mut world);
    assert_eq!(sync(&mut world, 8), [""; 0], "db-0 is below the partition");
    // A deleted pod below the partition is created again from the current revision.
    world.remove(&registry::POD, "a", "db-0");
    assert_eq!(sync(&mut world, 9), ["create pods a/db-0"]);
    assert_eq!(revision(&world, "db-0"), first);
    assert_eq!(
        pod(&world, "db-0").unwrap().spec.unwrap().containers[0]
            .image
            .as_deref(),
        Some("one")
    );
    // A rollback uses the old revision again, with a new number.
    settle(&mut world);
    edit(&mut world, |s| {
        s.template.spec.as_mut().unwrap().containers[0].image = Some("one".into());
        s.update_strategy = None;
    });
    assert_eq!(sync(&mut world, 10), ["delete pods a/db-2"]);
    let view: &dyn View = &world;
    let revisions = view.list_as::<k8s_openapi::api::apps::v1::ControllerRevision>("a");
    let mut numbers: Vec<(i64, bool)> = revisions
        .iter()
        .map(|r| (r.revision, r.object().name() == first))
        .collect();
    numbers.sort();
    assert_eq!(numbers, [(2, false), (3, true)]);
}

#[test]
fn max_unavailable_lets_several_be_updated_at_once_and_on_delete_none() {
    let table = [
        (json!({"type": "OnDelete"}), vec![]),
        (
            json!({"rollingUpdate": {"maxUnavailable": 2}}),
            vec!["delete pods a/db-2", "delete pods a/db-1"],
        ),
        (
            json!({"rollingUpdate": {"maxUnavailable": "1%"}}),
            vec!["delete pods a/db-2"],
        ),
        (
            json!({"rollingUpdate": {"maxUnavailable": 3, "partition": 2}}),
            vec!["delete pods a/db-2"],
        ),
    ];
    for (strategy, expected) in table {
        let mut world = World::default();
        world.put(set(
            json!({"podManagementPolicy": "Parallel", "updateStrategy": strategy}),
        ));
        sync(&mut world, 0);
        settle(&mut world);
        edit(&mut world, |s| {
            s.template.spec.as_mut().unwrap().containers[0].image = Some("two".into())
        });
        assert_eq!(sync(&mut world, 2), expected, "{strategy}");
    }
}

#[test]
fn min_ready_seconds_delays_the_next_pod() {
    let mut world = World::default();
    world.put(set(json!({"minReadySeconds": 10})));
    sync(&mut world, 0);
    set_pod(&mut world, "db-0", "Running", true, false);
    let actions = world.run(&StatefulSets, KEY, at(4));
    assert!(
        lines(&actions).contains(&"requeue after 6s".to_string()),
        "{:?}",
        lines(&actions)
    );
    let status = updated::<StatefulSet>(&actions, "status")
        .unwrap()
        .status
        .unwrap();
    assert_eq!(
        (status.ready_replicas, status.available_replicas),
        (Some(1), Some(0))
    );
    assert_eq!(sync(&mut world, 10), ["create pods a/db-1"]);
}

#[test]
fn the_status_reports_the_progress_of_an_update() {
    let mut world = World::default();
    world.put(set(json!({"podManagementPolicy": "Parallel", "replicas": 2})));
    sync(&mut world, 0);
    settle(&mut world);
    sync(&mut world, 1);
    let status = |world: &World| {
        let view: &dyn View = world;
        view.get_as::<StatefulSet>("a", "db")
            .unwrap()
            .status
            .clone()
            .unwrap()
    };
    let before = status(&world);
    assert_eq!(before.current_revision, before.update_revision);
    assert_eq!(
        (before.replicas, before.current_replicas, before.updated_replicas),
        (2, Some(2), Some(2))
    );
    edit(&mut world, |s| {
        s.template.spec.as_mut().unwrap().containers[0].image = Some("two".into())
    });
    sync(&mut world, 2);
    let during = status(&world);
    assert_eq!(during.current_revision, before.current_revision);
    assert_ne!(during.update_revision, before.update_revision);
    assert_eq!(
        (during.observed_generation, during.updated_replicas),
        (Some(2), None)
    );
    for second in 3..9 {
        settle(&mut world);
        sync(&mut world, second);
    }
    let after = status(&world);
    assert_eq!(after.current_revision, during.update_revision);
    assert_eq!(
        (after.current_replicas, after.updated_replicas),
        (Some(2), Some(2))
    );
}

#[test]
fn claims_are_created_before_the_pod_and_owned_by_the_retention_policy() {
    let claims = json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]);
    // whenDeleted, whenScaled -> owners of a desired pod's claim, owners of a condemned pod's claim
    let table = [
        ("Retain", "Retain", vec![], vec![]),
        ("Delete", "Retain", vec!["db"], vec!["db"]),
        ("Retain", "Delete", vec![], vec!["db-1"]),
        ("Delete", "Delete", vec!["db"], vec!["db-1"]),
    ];
    for (deleted, scaled, expected, condemned) in table {
        let mut world = World::default();
        world.put(set(json!({
            "replicas": 2, "podManagementPolicy": "Parallel", "volumeClaimTemplates": claims,
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": deleted, "whenScaled": scaled},
        })));
        assert_eq!(
            sync(&mut world, 0),
            [
                "create persistentvolumeclaims a/data-db-0",
                "create pods a/db-0",
                "create persistentvolumeclaims a/data-db-1",
                "create pods a/db-1"
            ]
        );
        settle(&mut world);
        sync(&mut world, 1);
        edit(&mut world, |s| s.replicas = Some(1));
        sync(&mut world, 2);
        let owners = |name: &str| -> Vec<String> {
            let view: &dyn View = &world;
            let claim = view.get(&registry::PERSISTENT_VOLUME_CLAIM, "a", name).unwrap();
            let owners = claim.metadata().owner_references.iter().flatten();
            owners.map(|o| o.name.clone()).collect()
        };
        assert_eq!(owners("data-db-0"), expected, "{deleted} {scaled}");
        assert_eq!(owners("data-db-1"), condemned, "{deleted} {scaled}");
        let volumes = pod(&world, "db-0").unwrap().spec.unwrap().volumes.unwrap();
        assert_eq!(
            volumes[0].persistent_volume_claim.as_ref().unwrap().claim_name,
            "data-db-0"
        );
        if scaled == "Delete" {
            // The old pod's claim is not yet collected: its successor waits.
            world.remove(&registry::POD, "a", "db-1");
            edit(&mut world, |s| s.replicas = Some(2));
            assert_eq!(sync(&mut world, 3), [""; 0]);
            world.remove(&registry::PERSISTENT_VOLUME_CLAIM, "a", "data-db-1");
            assert_eq!(sync(&mut world, 4).len(), 2);
        }
    }
}

#[test]
fn history_keeps_what_is_live_and_the_limit() {
    let mut world = World::default();
    world.put(set(json!({"replicas": 1, "revisionHistoryLimit": 1})));
    for n in 0..5 {
        edit(&mut world, |s| {
            s.template.spec.as_mut().unwrap().containers[0].image = Some(format!("v{n}"));
        });
        for second in 0..4 {
            sync(&mut world, second);
            settle(&mut world);
        }
    }
    let view: &dyn View = &world;
    let revisions = view.list_as::<k8s_openapi::api::apps::v1::ControllerRevision>("a");
    let mut numbers: Vec<i64> = revisions.iter().map(|r| r.revision).collect();
    numbers.sort();
    assert_eq!(numbers, [4, 5]);
}
