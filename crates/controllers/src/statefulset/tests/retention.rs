//! Claims: for which of them a pod waits, which are created again, and which get other owners.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use super::*;

const CLAIM: &str = "data-db-0";

/// A set of one pod with a claim, which runs.
fn running(deleted: &str, scaled: &str) -> World {
    let mut world = World::default();
    world.put(set(json!({
        "replicas": 1, "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": deleted, "whenScaled": scaled},
    })));
    sync(&mut world, 0);
    settle(&mut world);
    sync(&mut world, 1);
    world
}

fn owner(kind: &str, name: &str, uid: &str, controller: bool) -> Value {
    let version = if kind == "StatefulSet" { "apps/v1" } else { "v1" };
    json!({"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": controller})
}

fn put_claim(world: &mut World, owners: &Value) {
    let claim = json!({"metadata": {"namespace": "a", "name": CLAIM, "ownerReferences": owners}});
    world.put::<PersistentVolumeClaim>(serde_json::from_value(claim).unwrap());
}

#[test]
fn s7_a_pod_waits_only_for_the_claim_of_an_earlier_pod_of_its_name_that_is_deleted_with_it() {
    // whenScaled, the claim's owner -> whether its pod is created
    for (scaled, kind, name, created) in [
        ("Delete", "Pod", "db-0", false),
        ("Retain", "Pod", "db-0", true),
        ("Delete", "Pod", "db-1", true),
        ("Delete", "ConfigMap", "db-0", true),
    ] {
        let mut world = running("Retain", scaled);
        world.remove(&registry::POD, "a", "db-0");
        put_claim(&mut world, &json!([owner(kind, name, "earlier", false)]));
        let actions = world.run(&StatefulSets, KEY, at(2));
        let lines = lines(&actions);
        let is = lines.contains(&"create pods a/db-0".to_string());
        assert_eq!(is, created, "{scaled} {kind} {name}");
        let event = "event FailedCreate: Create Pod db-0 in StatefulSet db failed error: pvc data-db-0 is being deleted";
        assert_eq!(lines.contains(&event.to_string()), !created, "{lines:?}");
    }
}

#[test]
fn a_claim_that_was_deleted_is_created_again_for_a_pending_pod_only() {
    for (phase, lines) in [
        ("Pending", vec!["create persistentvolumeclaims a/data-db-0"]),
        ("Running", vec![]),
    ] {
        let mut world = running("Retain", "Retain");
        set_pod(&mut world, "db-0", phase, phase == "Running", false);
        world.remove(&registry::PERSISTENT_VOLUME_CLAIM, "a", CLAIM);
        assert_eq!(sync(&mut world, 2), lines, "{phase}");
    }
}

#[test]
fn a_claims_owners_follow_the_policy_unless_another_set_pod_or_controller_has_it() {
    let set = || owner("StatefulSet", "db", "uid-db", true);
    let config_map = |controller| owner("ConfigMap", "c", "uid-c", controller);
    let earlier_set = || owner("StatefulSet", "db", "earlier", false);
    let earlier_pod = || owner("Pod", "db-0", "earlier", false);
    // whenDeleted, whenScaled, owners -> owners afterwards, whether there is an event
    let table = [
        ("Delete", "Retain", json!([]), json!([set()]), false),
        (
            "Delete",
            "Retain",
            json!([config_map(false)]),
            json!([config_map(false), set()]),
            false,
        ),
        (
            "Retain",
            "Delete",
            json!([owner("Pod", "db-0", "uid-db-0", true)]),
            json!([]),
            false,
        ),
        ("Retain", "Retain", json!([set()]), json!([]), false),
        (
            "Delete",
            "Retain",
            json!([earlier_set()]),
            json!([earlier_set()]),
            false,
        ),
        (
            "Delete",
            "Retain",
            json!([earlier_pod()]),
            json!([earlier_pod()]),
            false,
        ),
        (
            "Delete",
            "Retain",
            json!([config_map(true)]),
            json!([config_map(true)]),
            false,
        ),
        (
            "Delete",
            "Retain",
            json!([config_map(true), set()]),
            json!([config_map(true)]),
            true,
        ),
    ];
    for (deleted, scaled, had, has, event) in table {
        let mut world = running(deleted, scaled);
        put_claim(&mut world, &had);
        let actions = world.run(&StatefulSets, KEY, at(2));
        world.take(&actions);
        let view: &dyn View = &world;
        let claim = view.get_as::<PersistentVolumeClaim>("a", CLAIM).unwrap();
        let owners: Vec<String> = claim
            .metadata
            .owner_references
            .iter()
            .flatten()
            .map(|o| o.uid.clone())
            .collect();
        let uids: Vec<String> = has
            .as_array()
            .unwrap()
            .iter()
            .map(|o| o["uid"].as_str().unwrap().to_string())
            .collect();
        assert_eq!(owners, uids, "{deleted} {scaled} {had}");
        let has_event = lines(&actions)
            .iter()
            .any(|l| l.starts_with("event ConflictingController"));
        assert_eq!(has_event, event, "{deleted} {scaled} {had}");
    }
}

#[test]
fn a_claims_volume_replaces_the_templates_volume_of_its_name_and_no_other() {
    let mut world = World::default();
    let mut with_volumes = set(json!({
        "replicas": 1, "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
    }));
    let spec = with_volumes
        .spec
        .as_mut()
        .unwrap()
        .template
        .spec
        .as_mut()
        .unwrap();
    spec.volumes =
        serde_json::from_value(json!([{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]))
            .unwrap();
    world.put(with_volumes);
    sync(&mut world, 0);
    let volumes = pod(&world, "db-0").unwrap().spec.unwrap().volumes.unwrap();
    let found: Vec<(&str, bool)> = volumes
        .iter()
        .map(|v| (v.name.as_str(), v.persistent_volume_claim.is_some()))
        .collect();
    assert_eq!(found, [("data", true), ("tmp", false)]);
}

#[test]
fn a_pod_without_the_labels_of_its_ordinal_gets_them() {
    let mut world = running("Retain", "Retain");
    let mut bare = pod(&world, "db-0").unwrap();
    bare.metadata
        .labels
        .as_mut()
        .unwrap()
        .remove("statefulset.kubernetes.io/pod-name");
    world.put(bare);
    assert_eq!(sync(&mut world, 2), ["update pods a/db-0"]);
    assert_eq!(sync(&mut world, 3), [""; 0]);
}
