//! Who has a volume that only one may have (SPEC S7).
//!
//! Storage without a lock of its own gets one here: a VolumeAttachment whose name is the volume's, not the node's, so
//! that there can be one only. Whoever creates it has attached the volume (the API's own compare-and-swap); the node
//! uses the volume only while the record is there and says its name, and says so itself by a finalizer, put on by
//! compare-and-swap too, and never on a record that is being deleted.
//!
//! A volume is detached when no pod on its node needs it any more, by deleting the record; it goes when the node has
//! taken its finalizer off. **No timer ever takes it off instead.** This controller does so only where nothing of the
//! node can use the volume any more: its Node object was deleted, or it carries the out-of-service taint (SPEC S5, S6).
//! And only after the pods' objects have gone.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{AttachedVolume, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::k8s_openapi;
use knarr_api::kinds::persistent_volume::{
    ATTACHED_POD, ATTACHER, Exclusive, IN_USE, exclusive, unique_name,
};
use knarr_api::registry;
use knarr_api::{Kind, Object, ObjectKey, Shared};

use crate::action::{Action, Create, Delete, Fact, reference};
use crate::controller::{Changed, Context, Controller, View};
use crate::persistentvolume::{claim_ref, volume_name};
use crate::podgc::is_out_of_service;
use crate::{pod, protection};
use knarr_api::finalizer;

/// See the module. Its keys are volumes.
pub struct AttachDetach;

/// The volume an attachment is of.
pub(crate) fn volume_of(attachment: &VolumeAttachment) -> &str {
    let source = &attachment.spec.source;
    source.persistent_volume_name.as_deref().unwrap_or("")
}

fn is_ours(attachment: &VolumeAttachment) -> bool {
    attachment.spec.attacher == ATTACHER
}

impl Controller for AttachDetach {
    fn name(&self) -> &'static str {
        "attachdetach-controller"
    }

    fn account(&self) -> &'static str {
        "attachdetach-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![
            &registry::PERSISTENT_VOLUME,
            &registry::PERSISTENT_VOLUME_CLAIM,
            &registry::VOLUME_ATTACHMENT,
            &registry::POD,
            &registry::NODE,
        ]
    }

    fn keys(&self, view: &dyn View, changed: Changed<'_>) -> Vec<ObjectKey> {
        let key = |name: &str| (!name.is_empty()).then(|| ObjectKey::new("", name));
        if let Some(key) = changed.key_of(&registry::PERSISTENT_VOLUME) {
            return vec![key];
        }
        let Some(object) = changed.object() else {
            return Vec::new();
        };
        if let Some(attachment) = object.get::<VolumeAttachment>() {
            return key(volume_of(attachment)).into_iter().collect();
        }
        if let Some(claim) = object.get::<PersistentVolumeClaim>() {
            return key(volume_name(claim)).into_iter().collect();
        }
        if changed.kind == &registry::NODE {
            let lost = |o: Option<&Object>| {
                let node = o.and_then(|o| o.get::<Node>());
                node.is_none_or(is_out_of_service)
            };
            if lost(changed.old) == lost(changed.new) {
                return Vec::new();
            }
            let attached = view.list_as::<VolumeAttachment>("");
            let here = attached.iter().filter(|a| a.spec.node_name == object.name());
            return here.filter_map(|a| key(volume_of(a))).collect();
        }
        let Some(pod) = object.get::<Pod>().filter(|p| !pod::node_name(p).is_empty()) else {
            return Vec::new();
        };
        protection::claims(pod)
            .filter_map(|name| {
                let claim = view.get_as::<PersistentVolumeClaim>(object.namespace(), &name)?;
                key(volume_name(&claim))
            })
            .collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let (view, name) = (context.view, &context.key.name);
        let volume = view.get_as::<PersistentVolume>("", name);
        let wanted = volume.as_ref().and_then(|v| exclusive(v));
        let attachment = match &wanted {
            Some(wanted) => view.get_as::<VolumeAttachment>("", &wanted.attachment),
            // A volume that has gone, or whose modes have changed: what is left of before.
            None => {
                let all = view.list_as::<VolumeAttachment>("");
                all.into_iter().find(|a| is_ours(a) && volume_of(a) == name)
            }
        };
        let users = match (&volume, &wanted) {
            (Some(volume), Some(_)) => users(view, volume),
            _ => Vec::new(),
        };
        let mut actions = match (attachment, volume, wanted) {
            (Some(attachment), _, wanted) => held(view, &attachment, wanted.as_ref(), &users),
            (None, Some(volume), Some(wanted)) => attach(&volume, &wanted, &users),
            (None, ..) => Vec::new(),
        };
        if context.failure.is_some() {
            // Somebody was faster, or the API says otherwise than the cache: look again when it shows.
            actions.clear();
        }
        actions
    }
}

/// The pods that use a volume through the claim it is bound to: on a node, and not ended.
pub(crate) fn users(view: &dyn View, volume: &PersistentVolume) -> Vec<Shared<Pod>> {
    let Some(to) = claim_ref(volume) else {
        return Vec::new();
    };
    let (namespace, name) = (to.namespace.as_deref(), to.name.as_deref());
    let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
    let claim = view.get_as::<PersistentVolumeClaim>(namespace, name);
    if claim.is_none_or(|c| Some(c.object().uid()) != to.uid.as_deref()) {
        return Vec::new();
    }
    let mut users = view.list_as::<Pod>(namespace);
    users.retain(|pod| protection::uses(pod, name) && !pod::is_finished(pod));
    users.sort_by_key(|pod| {
        let created = pod.metadata.creation_timestamp.clone();
        (created, pod.object().name().to_string())
    });
    users
}

/// Nobody has it: the oldest of those that want it gets it.
fn attach(volume: &Shared<PersistentVolume>, wanted: &Exclusive, users: &[Shared<Pod>]) -> Vec<Action> {
    let next = users.iter().find(|pod| !pod::is_deleting(pod));
    let Some(next) = next.filter(|_| volume.metadata.deletion_timestamp.is_none()) else {
        return Vec::new();
    };
    let annotations = wanted
        .one_pod
        .then(|| BTreeMap::from([(ATTACHED_POD.to_string(), next.object().uid().to_string())]));
    let attachment = VolumeAttachment {
        metadata: ObjectMeta {
            name: Some(wanted.attachment.clone()),
            annotations,
            ..ObjectMeta::default()
        },
        spec: VolumeAttachmentSpec {
            attacher: ATTACHER.into(),
            node_name: pod::node_name(next).into(),
            source: VolumeAttachmentSource {
                persistent_volume_name: Some(volume.object().name().into()),
                ..VolumeAttachmentSource::default()
            },
        },
        status: None,
    };
    vec![Action::Create(Create::new(attachment))]
}

fn held(
    view: &dyn View,
    attachment: &Shared<VolumeAttachment>,
    wanted: Option<&Exclusive>,
    users: &[Shared<Pod>],
) -> Vec<Action> {
    let node = attachment.spec.node_name.as_str();
    let of_pod = attachment
        .metadata
        .annotations
        .as_ref()
        .and_then(|a| a.get(ATTACHED_POD));
    let one_pod = wanted.is_some_and(|w| w.one_pod);
    let is_holder = |pod: &Shared<Pod>| {
        pod::node_name(pod) == node && (!one_pod || of_pod.is_some_and(|uid| uid == pod.object().uid()))
    };
    let (holders, waiting): (Vec<_>, Vec<_>) = users.iter().partition(|pod| is_holder(pod));
    let mut actions = Vec::new();
    if attachment.metadata.deletion_timestamp.is_some() {
        if holders.is_empty() {
            actions.extend(broken(view, attachment));
        }
    } else if holders.is_empty() {
        actions.push(Action::Delete(Delete::of(attachment.object())));
    } else if attachment.status.as_ref().is_none_or(|s| !s.attached) {
        let mut changed = (**attachment).clone();
        changed.status.get_or_insert_default().attached = true;
        actions.push(Action::update_status(changed));
    }
    let names: Vec<&str> = holders.iter().map(|pod| pod.object().name()).collect();
    let by = match names.as_slice() {
        [] => "Volume is already exclusively attached to one node and can't be attached to another".into(),
        names => format!("Volume is already used by pod(s) {}", names.join(", ")),
    };
    for pod in waiting.into_iter().filter(|pod| !pod::is_deleting(pod)) {
        let message = format!("Multi-Attach error for volume {:?} {by}", volume_of(attachment));
        actions.push(Action::warning(
            &reference(pod.object()),
            "FailedAttachVolume",
            message,
        ));
    }
    actions
}

/// Takes the node's word off a record where the node has none any more.
pub(crate) fn broken(view: &dyn View, attachment: &Shared<VolumeAttachment>) -> Vec<Action> {
    let name = attachment.spec.node_name.as_str();
    if !finalizer::is_held(&attachment.metadata, IN_USE) {
        return Vec::new();
    }
    let sure = match view.get_as::<Node>("", name) {
        None => Fact::Absent {
            kind: registry::NODE.clone(),
            key: ObjectKey::new("", name),
        },
        Some(node) if is_out_of_service(&node) => Fact::OutOfService { node: name.into() },
        // It may use the volume, as far as anybody knows: wait for its word, for ever if need be.
        Some(_) => return Vec::new(),
    };
    let mut changed = (**attachment).clone();
    finalizer::release(&mut changed.metadata, IN_USE);
    vec![Action::Require(sure), Action::update(changed)]
}

/// Shows in each node's status what is attached to it. Its keys are nodes.
pub struct VolumesAttached;

impl Controller for VolumesAttached {
    fn name(&self) -> &'static str {
        "attachdetach-controller"
    }

    fn account(&self) -> &'static str {
        "attachdetach-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::VOLUME_ATTACHMENT, &registry::NODE]
    }

    fn keys(&self, _view: &dyn View, changed: Changed<'_>) -> Vec<ObjectKey> {
        let attachment = changed.object().and_then(|o| o.get::<VolumeAttachment>());
        let node = attachment.map(|a| ObjectKey::new("", &a.spec.node_name));
        node.into_iter().collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let Some(node) = context.view.get_as::<Node>("", &context.key.name) else {
            return Vec::new();
        };
        let all = context.view.list_as::<VolumeAttachment>("");
        let mut attached: Vec<AttachedVolume> = all
            .iter()
            .filter(|a| is_ours(a) && a.spec.node_name == context.key.name)
            .filter(|a| a.status.as_ref().is_some_and(|s| s.attached))
            .map(|a| AttachedVolume {
                name: unique_name(volume_of(a)),
                device_path: String::new(),
            })
            .collect();
        attached.sort_by(|a, b| a.name.cmp(&b.name));
        let mut changed = (*node).clone();
        let status = changed.status.get_or_insert_default();
        let others = status.volumes_attached.take().unwrap_or_default();
        let others = others.into_iter().filter(|v| !v.name.starts_with(ATTACHER));
        let attached: Vec<AttachedVolume> = others.chain(attached).collect();
        status.volumes_attached = (!attached.is_empty()).then_some(attached);
        if changed == *node || context.failure.is_some() {
            return Vec::new();
        }
        vec![Action::update_status(changed)]
    }
}

#[cfg(test)]
mod tests {
    use knarr_api::registry::Registered;
    use serde_json::{Value, json};

    use super::*;
    use crate::world::{World, at, lines, object};
    use knarr_api::kinds::node::OUT_OF_SERVICE;

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

    /// What the node does when it begins to use the volume, and when it has ended.
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
        assert_eq!(step(&mut world), [""; 0], "nobody wants it (1 to 3)");
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
            "the node has not let go: {waits:?}"
        );
        node_uses(&mut world, false);
        assert_eq!(step(&mut world), ["create volumeattachments knarr-uid-v"], "14");
        assert_eq!(the_attachment(&world).unwrap().spec.node_name, "n2");
    }

    #[test]
    fn s7_only_evidence_takes_a_volume_from_a_node_that_does_not_answer_never_a_timer() {
        let out = "node.kubernetes.io/out-of-service";
        // How the node is, whether the pod's object is still there -> what must hold for the volume to be taken.
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
    fn s7_a_volume_for_one_pod_is_the_one_pods_even_on_the_same_node() {
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
        // On one node, several pods share what is for one node.
        let mut shared = self::world("ReadWriteOnce");
        shared.put(pod("one", "n1", ""));
        shared.put(pod("two", "n1", ""));
        step(&mut shared);
        assert_eq!(step(&mut shared), ["update volumeattachments/status knarr-uid-v"]);
    }

    #[test]
    fn volumes_that_several_may_have_or_that_never_leave_their_node_need_no_record() {
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
            assert_eq!(exclusive(&from(volume)).is_some(), needs, "{over}");
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
    fn s7_what_is_left_of_a_deleted_volume_is_its_own_record_and_no_other() {
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
    fn a_node_is_reconciled_for_the_records_of_its_volumes() {
        let world = World::default();
        let record = object::<VolumeAttachment>(json!({"metadata": {"name": "c"}, "spec": {
            "attacher": ATTACHER, "nodeName": "n1", "source": {"persistentVolumeName": "v"}}}));
        assert_eq!(world.keys(&VolumesAttached, Some(&record), None), ["n1"]);
        let node = World::default().put(node("n1", "True", ""));
        assert_eq!(world.keys(&VolumesAttached, None, Some(&node)), [""; 0]);
    }
}
