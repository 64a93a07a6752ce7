//! Volumes are attached to the nodes of their pods, and stay attached to a node that does not report.

use knarr_api::kinds::node::OUT_OF_SERVICE;
use knarr_api::registry::Registered;
use serde_json::{Value, json};

use super::*;
use crate::world::{World, at, lines, object};

fn from<T: Registered>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn world(mode: &str) -> World {
    let mut world = World::default();
    world.put::<PersistentVolume>(from(json!({
        "metadata": {"name": "v"},
        "spec": {"accessModes": [mode], "nfs": {"server": "s", "path": "/"},
            "claimRef": {"namespace": "a", "name": "c", "uid": "uid-c"}},
    })));
    world.put::<PersistentVolumeClaim>(from(json!({
        "metadata": {"namespace": "a", "name": "c"}, "spec": {"volumeName": "v"},
    })));
    for name in ["n1", "n2"] {
        world.put(node(name, "True", ""));
    }
    world
}

fn node(name: &str, ready: &str, taint: &str) -> Node {
    from(json!({
        "metadata": {"name": name},
        "spec": {"taints": [{"key": taint, "effect": "NoExecute"}]},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }))
}

fn pod(name: &str, node: &str, over: &str) -> Pod {
    let mut pod = json!({
        "metadata": {"namespace": "a", "name": name},
        "spec": {"nodeName": node, "containers": [],
            "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]},
        "status": {"phase": "Running"},
    });
    match over {
        "deleting" => pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into(),
        "finished" => pod["status"]["phase"] = "Succeeded".into(),
        _ => {}
    }
    from(pod)
}

fn step(world: &mut World) -> Vec<String> {
    let actions = world.run(&AttachDetach, ("", "v"), at(0));
    world.take(&actions);
    lines(&actions)
}

fn the_attachment(world: &World) -> Option<Shared<VolumeAttachment>> {
    let view: &dyn View = world;
    view.get_as("", "knarr-uid-v")
}

/// What the node does when it begins to use the volume, and when it stops.
fn node_uses(world: &mut World, uses: bool) {
    let mut attachment = (*the_attachment(world).unwrap()).clone();
    attachment.metadata.finalizers = uses.then(|| vec![IN_USE.into()]);
    if !uses && attachment.metadata.deletion_timestamp.is_some() {
        world.remove(&registry::VOLUME_ATTACHMENT, "", "knarr-uid-v");
    } else {
        world.put(attachment);
    }
}

#[test]
fn s7_the_documents_fourteen_steps() {
    let mut world = world("ReadWriteOnce");
    assert_eq!(step(&mut world), [""; 0], "no pod needs it (1 to 3)");
    world.put(pod("one", "n1", ""));
    assert_eq!(
        step(&mut world),
        ["create volumeattachments knarr-uid-v"],
        "4 to 6"
    );
    assert_eq!(step(&mut world), ["update volumeattachments/status knarr-uid-v"]);
    assert_eq!(the_attachment(&world).unwrap().spec.node_name, "n1");
    node_uses(&mut world, true);
    assert_eq!(step(&mut world), [""; 0], "7");
    world.put(pod("one", "n1", "deleting"));
    world.put(pod("two", "n2", ""));
    assert_eq!(
        step(&mut world),
        [
            "event FailedAttachVolume: Multi-Attach error for volume \"v\" Volume is already used by pod(s) one"
        ],
        "8 to 11: the old one still runs"
    );
    world.remove(&registry::POD, "a", "one");
    assert_eq!(
        step(&mut world)[0],
        "delete volumeattachments knarr-uid-v",
        "12 and 13"
    );
    let waits = step(&mut world);
    assert!(
        waits.len() == 1 && waits[0].contains("already exclusively attached to one node"),
        "the node still uses it: {waits:?}"
    );
    node_uses(&mut world, false);
    assert_eq!(step(&mut world), ["create volumeattachments knarr-uid-v"], "14");
    assert_eq!(the_attachment(&world).unwrap().spec.node_name, "n2");
}

#[test]
fn s7_only_evidence_detaches_a_volume_from_a_lost_node_never_a_timer() {
    let out = "node.kubernetes.io/out-of-service";
    // The node's state, whether the pod's object still exists -> what is required before the volume is detached.
    for (ready, taint, there, sure) in [
        (Some("True"), "", false, None),
        (Some("Unknown"), "node.kubernetes.io/unreachable", false, None),
        (Some("Unknown"), out, true, None),
        (Some("True"), out, false, None),
        (
            Some("Unknown"),
            out,
            false,
            Some("require node n1 out of service"),
        ),
        (None, "", true, None),
        (None, "", false, Some("require no nodes n1")),
    ] {
        let mut world = world("ReadWriteOnce");
        world.put(pod("one", "n1", ""));
        step(&mut world);
        step(&mut world);
        node_uses(&mut world, true);
        match ready {
            Some(ready) => drop(world.put(node("n1", ready, taint))),
            None => world.remove(&registry::NODE, "", "n1"),
        }
        if there {
            world.put(pod("one", "n1", "deleting"));
        } else {
            // By force.
            world.remove(&registry::POD, "a", "one");
            assert_eq!(step(&mut world), ["delete volumeattachments knarr-uid-v"]);
        }
        let far = world.run(&AttachDetach, ("", "v"), at(1_000_000));
        let expected: Vec<String> = sure
            .iter()
            .flat_map(|s| [s.to_string(), "update volumeattachments knarr-uid-v".into()])
            .collect();
        assert_eq!(lines(&far), expected, "{ready:?} {taint} {there}");
    }
}

#[test]
fn s7_a_read_write_once_pod_volume_is_for_one_pod_even_on_the_same_node() {
    let mut world = world("ReadWriteOncePod");
    world.put(pod("one", "n1", ""));
    step(&mut world);
    world.put(pod("two", "n1", ""));
    let second = step(&mut world);
    assert!(
        second.iter().any(|l| l.contains("Multi-Attach error")),
        "{second:?}"
    );
    world.put(pod("one", "n1", "finished"));
    assert_eq!(step(&mut world)[0], "delete volumeattachments knarr-uid-v");
    step(&mut world);
    let of = the_attachment(&world)
        .unwrap()
        .metadata
        .annotations
        .clone()
        .unwrap();
    assert_eq!(of[ATTACHED_POD], "uid-two");
    // On one node, several pods share a ReadWriteOnce volume.
    let mut shared = self::world("ReadWriteOnce");
    shared.put(pod("one", "n1", ""));
    shared.put(pod("two", "n1", ""));
    step(&mut shared);
    assert_eq!(step(&mut shared), ["update volumeattachments/status knarr-uid-v"]);
}

#[test]
fn volumes_of_several_nodes_and_local_volumes_need_no_attachment() {
    for (over, needs) in [
        (json!({}), true),
        (json!({"spec": {"accessModes": ["ReadWriteMany"]}}), false),
        (
            json!({"spec": {"accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}}),
            false,
        ),
        (
            json!({"spec": {"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "h"}}}),
            false,
        ),
        (
            json!({"metadata": {"labels": {"knarr.io/node": "n"}}, "spec": {"accessModes": ["ReadWriteOnce"]}}),
            false,
        ),
        (
            json!({"metadata": {"labels": {"knarr.io/node": "n"}}, "spec": {"accessModes": ["ReadWriteOncePod"]}}),
            true,
        ),
    ] {
        let mut volume =
            json!({"metadata": {"name": "v", "uid": "u"}, "spec": {"accessModes": ["ReadWriteOnce"]}});
        for part in ["metadata", "spec"] {
            for (key, value) in over[part].as_object().into_iter().flatten() {
                volume[part][key] = value.clone();
            }
        }
        assert_eq!(exclusive_attachment(&from(volume)).is_some(), needs, "{over}");
    }
}

#[test]
fn a_nodes_status_shows_what_is_attached_to_it() {
    let mut world = world("ReadWriteOnce");
    world.put(pod("one", "n1", ""));
    step(&mut world);
    step(&mut world);
    let actions = world.run(&VolumesAttached, ("", "n1"), at(0));
    world.take(&actions);
    let view: &dyn View = &world;
    let status = view.get_as::<Node>("", "n1").unwrap().status.clone().unwrap();
    assert_eq!(status.volumes_attached.unwrap()[0].name, "exclusive.knarr.io/v");
    assert_eq!(lines(&world.run(&VolumesAttached, ("", "n1"), at(0))), [""; 0]);
    assert_eq!(lines(&world.run(&VolumesAttached, ("", "n2"), at(0))), [""; 0]);
}

#[test]
fn s7_a_volume_is_reconciled_for_its_claim_its_record_its_users_and_the_loss_of_its_node() {
    let mut world = world("ReadWriteOnce");
    let record = |volume: Option<&str>| {
        object::<VolumeAttachment>(json!({"metadata": {"name": "knarr-uid-v"}, "spec": {
            "attacher": ATTACHER, "nodeName": "n1", "source": {"persistentVolumeName": volume}}}))
    };
    world.put((*record(Some("v")).get::<VolumeAttachment>().unwrap()).clone());
    let volume = object::<PersistentVolume>(json!({"metadata": {"name": "v"}}));
    let claim = |volume: Option<&str>| {
        object::<PersistentVolumeClaim>(
            json!({"metadata": {"namespace": "a", "name": "c"}, "spec": {"volumeName": volume}}),
        )
    };
    let user = |node: &str| World::default().put(pod("p", node, ""));
    for (changed, keys) in [
        (volume, vec!["v"]),
        (record(Some("v")), vec!["v"]),
        (record(None), vec![]),
        (claim(Some("v")), vec!["v"]),
        (claim(None), vec![]),
        (user("n1"), vec!["v"]),
        (user(""), vec![]),
    ] {
        let name = changed.kind().plural();
        assert_eq!(world.keys(&AttachDetach, None, Some(&changed)), keys, "{name}");
    }
    let is = |name: &str, state: &str| {
        let node = match state {
            "ready" => node(name, "True", ""),
            "lost" => node(name, "Unknown", ""),
            "out" => node(name, "Unknown", OUT_OF_SERVICE),
            _ => return None,
        };
        Some(World::default().put(node))
    };
    for (name, old, new, keys) in [
        ("n1", "ready", "lost", vec![]),
        ("n1", "lost", "out", vec!["v"]),
        ("n1", "out", "lost", vec!["v"]),
        ("n1", "ready", "deleted", vec!["v"]),
        ("n1", "out", "deleted", vec![]),
        ("n2", "ready", "deleted", vec![]),
    ] {
        let found = world.keys(&AttachDetach, is(name, old).as_ref(), is(name, new).as_ref());
        assert_eq!(found, keys, "{name} {old} {new}");
    }
}

#[test]
fn s7_only_its_own_attachment_is_deleted_after_a_volume_was_deleted() {
    let mut world = World::default();
    for (name, attacher, volume) in [
        ("a", "csi.example.com", "v"),
        ("b", ATTACHER, "other"),
        ("c", ATTACHER, "v"),
    ] {
        world.put::<VolumeAttachment>(from(json!({"metadata": {"name": name}, "spec": {
            "attacher": attacher, "nodeName": "n1", "source": {"persistentVolumeName": volume}}})));
    }
    assert_eq!(step(&mut world), ["delete volumeattachments c"]);
}

#[test]
fn a_node_is_reconciled_for_the_attachments_of_its_volumes() {
    let world = World::default();
    let record = object::<VolumeAttachment>(json!({"metadata": {"name": "c"}, "spec": {
        "attacher": ATTACHER, "nodeName": "n1", "source": {"persistentVolumeName": "v"}}}));
    assert_eq!(world.keys(&VolumesAttached, Some(&record), None), ["n1"]);
    let node = World::default().put(node("n1", "True", ""));
    assert_eq!(world.keys(&VolumesAttached, None, Some(&node)), [""; 0]);
}
