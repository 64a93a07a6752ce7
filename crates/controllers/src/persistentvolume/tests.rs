//! Binding, provisioning and reclaiming.

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use knarr_api::k8s_openapi;
use knarr_api::registry::{self, Registered};
use knarr_api::well_known::{BIND_COMPLETED, BOUND_BY_CONTROLLER, SELECTED_NODE};
use serde_json::{Value, json};

use super::claims::ClaimBinder;
use super::local::{LocalProvisioner, LocalVolumeCleanup, default_class};
use super::volumes::VolumePhases;
use crate::controller::View;
use crate::world::{World, at, lines};

fn from<T: Registered>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn merged(mut base: Value, over: Value) -> Value {
    fn merge(base: &mut Value, over: Value) {
        match (base, over) {
            (Value::Object(base), Value::Object(over)) => {
                for (key, value) in over {
                    merge(base.entry(key).or_insert(Value::Null), value);
                }
            }
            (base, over) => *base = over,
        }
    }
    merge(&mut base, over);
    base
}

fn claim(over: Value) -> PersistentVolumeClaim {
    from(merged(
        json!({
            "metadata": {"namespace": "a", "name": "c"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "slow",
                "resources": {"requests": {"storage": "5Gi"}},
            },
            "status": {"phase": "Pending"},
        }),
        over,
    ))
}

fn volume(name: &str, over: Value) -> PersistentVolume {
    from(merged(
        json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "slow", "capacity": {"storage": "5Gi"},
                "persistentVolumeReclaimPolicy": "Retain",
            },
            "status": {"phase": "Available"},
        }),
        over,
    ))
}

fn class(mode: &str) -> StorageClass {
    from(json!({
        "metadata": {"name": "slow"}, "provisioner": "example.com/disks", "volumeBindingMode": mode,
        "reclaimPolicy": "Delete",
    }))
}

/// Runs the controllers for the claim and all volumes until there are no more actions; the actions.
fn settle(world: &mut World) -> Vec<String> {
    let mut done = Vec::new();
    for _ in 0..10 {
        let mut actions = world.run(&ClaimBinder, ("a", "c"), at(0));
        actions.retain(|a| !lines(std::slice::from_ref(a))[0].starts_with("event"));
        world.take(&actions);
        let mut now = lines(&actions);
        let volumes = (world as &dyn View).list(&registry::PERSISTENT_VOLUME, "");
        for volume in volumes {
            let actions = world.run(&VolumePhases, ("", volume.name()), at(0));
            world.take(&actions);
            now.extend(lines(&actions));
        }
        if now.is_empty() {
            return done;
        }
        done.extend(now);
    }
    panic!("it does not settle: {done:?}");
}

fn the_claim(world: &World) -> PersistentVolumeClaim {
    let view: &dyn View = world;
    (*view.get_as::<PersistentVolumeClaim>("a", "c").unwrap()).clone()
}

fn the_volume(world: &World, name: &str) -> PersistentVolume {
    let view: &dyn View = world;
    (*view.get_as::<PersistentVolume>("", name).unwrap()).clone()
}

/// The volume that the claim is bound to in the end.
fn bound_volume(world: &World) -> String {
    super::volume_name(&the_claim(world)).to_string()
}

#[test]
fn a_claim_gets_the_smallest_volume_that_matches() {
    // The volume `v` next to a larger one that always matches, and whether `v` is bound.
    for (over, taken) in [
        (json!({}), true),
        (json!({"spec": {"capacity": {"storage": "4Gi"}}}), false),
        (json!({"spec": {"capacity": {"storage": "20Gi"}}}), false),
        (json!({"spec": {"storageClassName": "fast"}}), false),
        (json!({"spec": {"storageClassName": null}}), false),
        (json!({"spec": {"accessModes": ["ReadOnlyMany"]}}), false),
        (
            json!({"spec": {"accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}}),
            false,
        ),
        (json!({"spec": {"volumeMode": "Block"}}), false),
        (json!({"spec": {"volumeAttributesClassName": "gold"}}), false),
        (json!({"status": {"phase": "Released"}}), false),
        (
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            false,
        ),
        (
            json!({"spec": {"claimRef": {"namespace": "a", "name": "other"}}}),
            false,
        ),
        // Reserved for the claim: size and modes have to match, all else is the user's choice.
        (
            json!({"spec": {"claimRef": {"namespace": "a", "name": "c"}, "capacity": {"storage": "50Gi"}, "storageClassName": "fast"}}),
            true,
        ),
    ] {
        let mut world = World::default();
        world.put(claim(json!({})));
        world.put(volume("v", over.clone()));
        world.put(volume("wide", json!({"spec": {"capacity": {"storage": "10Gi"}}})));
        settle(&mut world);
        assert_eq!(bound_volume(&world) == "v", taken, "{over}");
    }
}

#[test]
fn a_selector_chooses_by_labels() {
    let mut world = World::default();
    world.put(claim(
        json!({"spec": {"selector": {"matchLabels": {"disk": "ssd"}}}}),
    ));
    world.put(volume("any", json!({})));
    world.put(volume(
        "ssd",
        json!({"metadata": {"labels": {"disk": "ssd"}}, "spec": {"capacity": {"storage": "9Gi"}}}),
    ));
    settle(&mut world);
    assert_eq!(bound_volume(&world), "ssd");
}

#[test]
fn binding_writes_the_volume_then_the_claim_then_their_phases() {
    let mut world = World::default();
    world.put(claim(json!({})));
    world.put(volume("v", json!({})));
    assert_eq!(
        settle(&mut world),
        [
            "update persistentvolumes v",
            "update persistentvolumeclaims a/c",
            "update persistentvolumes/status v",
            "update persistentvolumeclaims/status a/c",
        ]
    );
    let (claim, volume) = (the_claim(&world), the_volume(&world, "v"));
    let status = claim.status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Bound"));
    assert_eq!(status.access_modes, Some(vec!["ReadWriteOnce".to_string()]));
    assert_eq!(status.capacity.unwrap()["storage"].0, "5Gi");
    assert_eq!(super::volume_phase(&volume), "Bound");
    let to = super::claim_ref(&volume).unwrap();
    assert_eq!(
        (to.kind.as_deref(), to.uid.as_deref()),
        (Some("PersistentVolumeClaim"), Some("uid-c"))
    );
    for meta in [&claim.metadata, &volume.metadata] {
        assert_eq!(super::annotation(meta, BOUND_BY_CONTROLLER), Some("yes"));
    }
    assert_eq!(super::annotation(&claim.metadata, BIND_COMPLETED), Some("yes"));
}

#[test]
fn a_claim_that_names_its_volume_gets_it_or_an_event_with_the_reason() {
    let named = || claim(json!({"spec": {"volumeName": "v"}}));
    let other = json!({"spec": {"claimRef": {"namespace": "a", "name": "x", "uid": "u"}}});
    for (over, expected) in [
        (json!({}), ""),
        (
            json!({"spec": {"claimRef": {"namespace": "a", "name": "c"}, "capacity": {"storage": "1Gi"}}}),
            "",
        ),
        (
            json!({"spec": {"capacity": {"storage": "1Gi"}}}),
            "event VolumeMismatch: Cannot bind to requested volume \"v\": requested PV is too small",
        ),
        (
            json!({"spec": {"storageClassName": "x"}}),
            "event VolumeMismatch: Cannot bind to requested volume \"v\": storageClassName does not match",
        ),
        (
            other,
            "event FailedBinding: volume \"v\" already bound to a different claim.",
        ),
    ] {
        let mut world = World::default();
        world.put(named());
        world.put(volume("v", over));
        let actions = lines(&world.run(&ClaimBinder, ("a", "c"), at(0)));
        let event = actions.iter().find(|l| l.starts_with("event")).cloned();
        assert_eq!(event.unwrap_or_default(), expected);
        settle(&mut world);
        let phase = the_claim(&world).status.unwrap().phase.unwrap();
        assert_eq!(phase, if expected.is_empty() { "Bound" } else { "Pending" });
    }
    // A volume that a user selected is not annotated as the controller's choice.
    let mut world = World::default();
    world.put(named());
    world.put(volume(
        "v",
        json!({"spec": {"claimRef": {"namespace": "a", "name": "c"}}}),
    ));
    settle(&mut world);
    for meta in [the_claim(&world).metadata, the_volume(&world, "v").metadata] {
        assert_eq!(super::annotation(&meta, BOUND_BY_CONTROLLER), None);
    }
}

#[test]
fn a_claim_without_a_volume_has_an_event_with_what_it_waits_for() {
    let run = |class: Option<StorageClass>, over: Value, pods: &[&str]| {
        let mut world = World::default();
        class.map(|c| world.put(c));
        world.put(claim(over));
        for name in pods {
            world.put::<Pod>(from(json!({
                "metadata": {"namespace": "a", "name": name},
                "spec": {"containers": [], "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]},
            })));
        }
        lines(&world.run(&ClaimBinder, ("a", "c"), at(0)))
    };
    let none = json!({"spec": {"storageClassName": null}});
    assert_eq!(
        run(None, none, &[]),
        ["event FailedBinding: no persistent volumes available for this claim and no storage class is set"]
    );
    assert_eq!(
        run(None, json!({}), &[]),
        ["event ProvisioningFailed: storageclass.storage.k8s.io \"slow\" not found"]
    );
    let waits = || Some(class("WaitForFirstConsumer"));
    assert_eq!(
        run(waits(), json!({}), &[]),
        ["event WaitForFirstConsumer: waiting for first consumer to be created before binding"]
    );
    assert_eq!(
        run(waits(), json!({}), &["p"]),
        ["event WaitForPodScheduled: waiting for pod p to be scheduled"]
    );
    assert_eq!(
        run(waits(), json!({}), &["p", "q"]),
        ["event WaitForPodScheduled: waiting for pods p,q to be scheduled"]
    );
    let selected = json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n"}}});
    for actions in [
        run(waits(), selected, &[]),
        run(Some(class("Immediate")), json!({}), &[]),
    ] {
        assert_eq!(actions[0], "update persistentvolumeclaims a/c");
        assert!(actions[1].starts_with("event ExternalProvisioning: Waiting for a volume to be created either by the external provisioner 'example.com/disks' or manually"));
    }
    let mut by_hand = class("Immediate");
    by_hand.provisioner = "kubernetes.io/no-provisioner".into();
    assert_eq!(
        run(Some(by_hand), json!({}), &[]),
        ["event ProvisioningFailed: no volume plugin matched name: kubernetes.io/no-provisioner"]
    );
}

#[test]
fn a_matching_volume_is_bound_by_the_scheduler_with_wait_for_first_consumer() {
    let mut world = World::default();
    world.put(class("WaitForFirstConsumer"));
    world.put(claim(json!({})));
    world.put(volume("v", json!({})));
    assert_eq!(settle(&mut world), [""; 0]);
    // The volume that the scheduler selected has a claimRef with the claim's uid.
    world.put(volume(
        "v",
        json!({"spec": {"claimRef": {"namespace": "a", "name": "c", "uid": "uid-c"}}}),
    ));
    settle(&mut world);
    assert_eq!(bound_volume(&world), "v");
}

#[test]
fn a_claim_without_a_class_gets_the_default_one_the_newest_of_several() {
    let mut world = World::default();
    world.put(claim(json!({"spec": {"storageClassName": null}})));
    for (name, created, marked) in [("old", 1, "true"), ("new", 5, "true"), ("none", 9, "false")] {
        let mut class = class("Immediate");
        class.metadata.name = Some(name.into());
        class.metadata.creation_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(created)));
        super::annotate(
            &mut class.metadata,
            "storageclass.kubernetes.io/is-default-class",
            marked,
        );
        world.put(class);
    }
    world.take(&world.run(&ClaimBinder, ("a", "c"), at(0)));
    assert_eq!(super::class_of_claim(&the_claim(&world)), "new");
    // A claim with an empty class gets no default.
    world.put(claim(json!({"spec": {"storageClassName": ""}})));
    let lines = lines(&world.run(&ClaimBinder, ("a", "c"), at(0)));
    assert!(lines[0].starts_with("event FailedBinding"), "{lines:?}");
}

#[test]
fn a_bound_claim_whose_volume_is_deleted_is_lost() {
    let bound = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}});
    let mut world = World::default();
    world.put(claim(bound.clone()));
    let actions = lines(&world.run(&ClaimBinder, ("a", "c"), at(0)));
    assert_eq!(
        actions,
        [
            "require no persistentvolumes v",
            "update persistentvolumeclaims/status a/c",
            "event ClaimLost: Bound claim has lost its PersistentVolume. Data on the volume is lost!"
        ]
    );
    world.put(volume(
        "v",
        json!({"spec": {"claimRef": {"namespace": "a", "name": "x", "uid": "u"}}}),
    ));
    let actions = lines(&world.run(&ClaimBinder, ("a", "c"), at(0)));
    assert!(actions[1].starts_with("event ClaimMisbound"), "{actions:?}");
}

#[test]
fn a_volume_whose_claim_was_deleted_follows_its_reclaim_policy() {
    let csi = json!({"spec": {"csi": {"driver": "d", "volumeHandle": "h"}}});
    let made = |by: &str| json!({"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": by}}});
    for (policy, over, phase, then) in [
        ("Retain", json!({}), "Released", "kept"),
        ("Delete", json!({}), "Failed", "kept"),
        ("Recycle", json!({}), "Failed", "kept"),
        ("Delete", csi, "Released", "kept"),
        ("Delete", made("example.com/disks"), "Released", "kept"),
        ("Delete", made("knarr.io/local"), "", "deleted"),
        ("Retain", made("knarr.io/local"), "Released", "kept"),
    ] {
        let mut world = World::default();
        let held = json!({"spec": {
            "persistentVolumeReclaimPolicy": policy,
            "claimRef": {"namespace": "a", "name": "gone", "uid": "u"},
        }, "status": {"phase": "Bound"}});
        world.put(volume("v", merged(held, over)));
        let first = lines(&world.run(&VolumePhases, ("", "v"), at(0)));
        assert_eq!(
            first,
            [
                "require persistentvolumeclaims a/gone gone",
                "update persistentvolumes/status v"
            ],
            "the cache may lag"
        );
        for _ in 0..3 {
            world.take(&world.run(&VolumePhases, ("", "v"), at(0)));
        }
        let view: &dyn View = &world;
        let left = view.get_as::<PersistentVolume>("", "v");
        assert_eq!(left.is_none(), then == "deleted", "{policy}");
        if let Some(left) = left {
            assert_eq!(super::volume_phase(&left), phase, "{policy}");
        }
    }
}

#[test]
fn a_claim_of_the_same_name_does_not_get_the_data_of_the_one_before() {
    let mut world = World::default();
    world.put(claim(json!({})));
    world.put(volume(
        "v",
        json!({"spec": {"claimRef": {"namespace": "a", "name": "c", "uid": "before"}}, "status": {"phase": "Bound"}}),
    ));
    world.put(class("WaitForFirstConsumer"));
    settle(&mut world);
    assert_eq!(bound_volume(&world), "");
    assert_eq!(super::volume_phase(&the_volume(&world, "v")), "Released");
}

#[test]
fn a_volume_that_was_selected_for_a_claim_with_another_volume_is_available_again() {
    let mut world = World::default();
    world.put(claim(json!({
        "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": "other"},
    })));
    let to = json!({"namespace": "a", "name": "c", "uid": "uid-c"});
    world.put(volume("other", json!({"spec": {"claimRef": to}})));
    world.put(volume(
        "v",
        json!({"metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}}, "spec": {"claimRef": to}}),
    ));
    settle(&mut world);
    let v = the_volume(&world, "v");
    assert_eq!(
        (super::claim_ref(&v), super::volume_phase(&v)),
        (None, "Available")
    );
}

fn local_world(over: Value) -> World {
    let mut world = World::default();
    world.put(default_class());
    world.put::<Node>(from(json!({"metadata": {
        "name": "n", "labels": {"kubernetes.io/hostname": "host-n"},
        "annotations": {"knarr.io/local-volumes": "/data/volumes"},
    }})));
    world.put::<Node>(from(json!({"metadata": {"name": "bare"}})));
    let base = json!({
        "metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n"}},
        "spec": {"storageClassName": "local"},
    });
    world.put(claim(merged(base, over)));
    world
}

#[test]
fn a_local_volume_is_provisioned_on_the_selected_node_and_expanded_on_request() {
    let mut world = local_world(json!({}));
    world.take(&world.run(&ClaimBinder, ("a", "c"), at(0)));
    world.take(&world.run(&LocalProvisioner, ("a", "c"), at(0)));
    settle(&mut world);
    assert_eq!(bound_volume(&world), "pvc-uid-c");
    let spec = the_volume(&world, "pvc-uid-c").spec.unwrap();
    assert_eq!(spec.local.unwrap().path, "/data/volumes/pvc-uid-c");
    assert_eq!(spec.persistent_volume_reclaim_policy.as_deref(), Some("Delete"));
    let terms = spec.node_affinity.unwrap().required.unwrap().node_selector_terms;
    let first = &terms[0].match_expressions.as_ref().unwrap()[0];
    assert_eq!(first.values.as_deref(), Some(&["host-n".to_string()][..]));
    assert_eq!(lines(&world.run(&LocalProvisioner, ("a", "c"), at(0))), [""; 0]);

    let mut larger = the_claim(&world);
    let resources = larger.spec.as_mut().unwrap().resources.as_mut().unwrap();
    resources.requests.as_mut().unwrap().get_mut("storage").unwrap().0 = "8Gi".into();
    world.put(larger);
    world.take(&world.run(&LocalProvisioner, ("a", "c"), at(0)));
    settle(&mut world);
    assert_eq!(
        the_claim(&world).status.unwrap().capacity.unwrap()["storage"].0,
        "8Gi"
    );
}

#[test]
fn unsupported_requests_for_local_volumes_are_reported() {
    let node =
        |name: &str| json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": name}}});
    for (over, word) in [
        (
            json!({"spec": {"volumeMode": "Block"}}),
            "volumeMode Block is not supported",
        ),
        (
            json!({"spec": {"accessModes": ["ReadWriteMany"]}}),
            "access mode ReadWriteMany is not supported",
        ),
        (node("bare"), "node \"bare\" has no directory for local volumes"),
        (node("gone"), "node \"gone\" not found"),
    ] {
        let mut world = local_world(over);
        world.take(&world.run(&ClaimBinder, ("a", "c"), at(0)));
        let actions = world.run(&LocalProvisioner, ("a", "c"), at(0));
        let events = lines(&actions);
        assert!(
            events[0].starts_with("event ProvisioningFailed") && events[0].contains(word),
            "{events:?}"
        );
        world.take(&actions);
        let selected = super::annotation(&the_claim(&world).metadata, SELECTED_NODE).is_some();
        assert_eq!(
            selected,
            !word.contains("gone"),
            "another node is selected only if the node was deleted"
        );
    }
}

#[test]
fn a_deleted_local_volume_waits_for_its_node_unless_that_was_deleted() {
    let mut world = local_world(json!({}));
    world.put(volume(
        "v",
        json!({"metadata": {
            "labels": {"knarr.io/node": "n"}, "finalizers": ["knarr.io/local-volume"],
            "deletionTimestamp": "2026-01-01T00:00:00Z",
        }}),
    ));
    assert_eq!(lines(&world.run(&LocalVolumeCleanup, ("", "v"), at(0))), [""; 0]);
    world.remove(&registry::NODE, "", "n");
    assert_eq!(
        lines(&world.run(&LocalVolumeCleanup, ("", "v"), at(0))),
        ["require no nodes n", "update persistentvolumes v"]
    );
}

#[test]
fn a_claim_is_provisioned_on_the_node_of_a_pod_that_was_bound_without_the_scheduler() {
    let mut world = local_world(json!({"metadata": {"annotations": null}}));
    world.put::<Pod>(from(json!({
        "metadata": {"namespace": "a", "name": "p"},
        "spec": {"nodeName": "n", "containers": [],
            "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]},
    })));
    for _ in 0..2 {
        world.take(&world.run(&ClaimBinder, ("a", "c"), at(0)));
    }
    world.take(&world.run(&LocalProvisioner, ("a", "c"), at(0)));
    settle(&mut world);
    assert_eq!(bound_volume(&world), "pvc-uid-c");
}
