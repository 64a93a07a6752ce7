//! Attaches volumes of CSI drivers: creates and deletes the VolumeAttachments that a driver's external-attacher acts on.
//!
//! There is one for each node, while a pod there needs the volume. The kubelet puts its finalizer on an attachment before it uses the
//! volume, and while that is set the attachment is not deleted: **no timer ever does so** (SPEC S7). As in
//! [`attachdetach`](crate::attachdetach), the finalizer is removed only for a node that was deleted or is out of service.
//! A volume of a single node is attached to another one only when the first attachment has been removed, which a live read confirms: the
//! cache of attachments may be older than that of pods, and a driver may not notice that the volume is published to another node.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use k8s_openapi::api::storage::v1::{
    CSIDriver, VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::k8s_openapi;
use knarr_api::kinds::persistent_volume::{ATTACHER, IN_USE, csi_attachment};
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey, Shared};
use knarr_apimachinery::finalizer;

use crate::action::{Action, Create, Delete, LiveCheck, reference};
use crate::attachdetach::{AttachDetach, force_detach, users, volume_of};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::pod;

const FAILED: &str = "FailedAttachVolume";

/// Hexadecimal digits of a SHA-256.
const SHA256_DIGITS: usize = 64;

/// See the module. Its keys are volumes.
pub struct CsiAttach;

impl Controller for CsiAttach {
    fn name(&self) -> &'static str {
        "attachdetach-controller"
    }

    fn queue(&self) -> &'static str {
        "attachdetach_csi"
    }

    fn account(&self) -> &'static str {
        "attachdetach-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        let mut all = AttachDetach.watches();
        all.push(&registry::CSI_DRIVER);
        all
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if changed.kind != &registry::CSI_DRIVER {
            return AttachDetach.keys(view, changed);
        }
        let driver = changed.object().map(|o| o.name()).unwrap_or_default();
        let volumes = view.list_as::<PersistentVolume>("");
        let of_driver = volumes
            .iter()
            .filter(|v| driver_of(v).is_some_and(|(d, _)| d == driver));
        of_driver.map(|v| ObjectKey::of(v.object())).collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        if context.failure.is_some() {
            // Another client was faster, or the cache is behind: the change that follows enqueues the key again.
            return Vec::new();
        }
        let (view, name) = (context.view, &context.key.name);
        let volume = view.get_as::<PersistentVolume>("", name);
        let mut attachments = view.list_as::<VolumeAttachment>("");
        attachments.retain(|a| a.spec.attacher != ATTACHER && volume_of(a) == name && is_generated(a));
        let driver = volume.as_ref().and_then(|v| driver_of(v));
        let users = match (&volume, &driver) {
            (Some(volume), Some(_)) => users(view, volume),
            _ => Vec::new(),
        };
        let mut actions = Vec::new();
        for attachment in &attachments {
            actions.extend(sync_attachment(view, name, attachment, &users));
        }
        if let (Some(volume), Some((driver, handle))) = (&volume, driver)
            && is_attached(view, driver)
            && volume.metadata.deletion_timestamp.is_none()
        {
            actions.extend(attach(volume, driver, handle, &attachments, &users));
        }
        actions
    }
}

/// Whether an attachment has a name such as [`csi_attachment`] generates. One that a user created is for that user to delete.
fn is_generated(attachment: &VolumeAttachment) -> bool {
    let name = attachment.metadata.name.as_deref().unwrap_or("");
    let digest = name.strip_prefix("csi-").unwrap_or("");
    digest.len() == SHA256_DIGITS && digest.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Whether this is an attachment of the volume to another node that this controller created.
pub fn is_elsewhere(attachment: &VolumeAttachment, volume: &str, node: &str) -> bool {
    let spec = &attachment.spec;
    let is_ours = spec.attacher != ATTACHER && is_generated(attachment);
    is_ours && volume_of(attachment) == volume && spec.node_name != node
}

/// The driver and the handle of a CSI volume.
fn driver_of(volume: &PersistentVolume) -> Option<(&str, &str)> {
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    Some((&csi.driver, &csi.volume_handle))
}

/// Whether the driver needs attachments: it does, unless its CSIDriver says otherwise.
fn is_attached(view: &dyn View, driver: &str) -> bool {
    let driver = view.get_as::<CSIDriver>("", driver);
    driver.is_none_or(|d| d.spec.attach_required != Some(false))
}

/// The deletion of an attachment. The external-attacher detaches as soon as the attachment has a deletionTimestamp, whatever finalizers it
/// has: so the precondition is the resourceVersion at which the node does not use the volume, which the node changes before it does.
fn deletion_when_unused(attachment: &Shared<VolumeAttachment>) -> Delete {
    Delete {
        resource_version: attachment.metadata.resource_version.clone(),
        ..Delete::of(attachment.object())
    }
}

fn sync_attachment(
    view: &dyn View,
    name: &str,
    attachment: &Shared<VolumeAttachment>,
    users: &[Shared<Pod>],
) -> Vec<Action> {
    let node = attachment.spec.node_name.as_str();
    let here: Vec<_> = users.iter().filter(|p| pod::node_name(p) == node).collect();
    let in_use = finalizer::contains(&attachment.metadata, IN_USE);
    if here.is_empty() {
        return match (in_use, attachment.metadata.deletion_timestamp.is_some()) {
            (true, _) => force_detach(view, attachment),
            (false, false) => vec![Action::Delete(deletion_when_unused(attachment))],
            (false, true) => Vec::new(),
        };
    }
    let status = attachment.status.as_ref().filter(|s| !s.attached);
    let error = status.and_then(|s| s.attach_error.as_ref());
    let Some(why) = error.and_then(|e| e.message.as_deref()) else {
        return Vec::new();
    };
    let message = format!("AttachVolume.Attach failed for volume {name:?} : {why}");
    let events = here
        .iter()
        .map(|pod| Action::warning(&reference(pod.object()), FAILED, message.clone()));
    events.collect()
}

fn attach(
    volume: &Shared<PersistentVolume>,
    driver: &str,
    handle: &str,
    attachments: &[Shared<VolumeAttachment>],
    users: &[Shared<Pod>],
) -> Vec<Action> {
    let name = volume.object().name();
    let modes = volume.spec.as_ref().and_then(|s| s.access_modes.as_deref());
    let one_node = modes
        .unwrap_or_default()
        .iter()
        .all(|m| m == "ReadWriteOnce" || m == "ReadWriteOncePod");
    let mut nodes: BTreeSet<&str> = attachments.iter().map(|a| a.spec.node_name.as_str()).collect();
    let mut actions = Vec::new();
    // The oldest first.
    for pod in users.iter().filter(|p| !pod::is_deleting(p)) {
        let node = pod::node_name(pod);
        if nodes.contains(node) {
            continue;
        }
        if one_node && !nodes.is_empty() {
            let message = format!(
                "Multi-Attach error for volume {name:?} Volume is already exclusively attached to one node and can't be attached to another"
            );
            actions.push(Action::warning(&reference(pod.object()), FAILED, message));
            continue;
        }
        nodes.insert(node);
        if one_node {
            actions.push(Action::Require(LiveCheck::NotAttachedElsewhere {
                volume: name.into(),
                node: node.into(),
            }));
        }
        actions.push(Action::Create(Create::new(VolumeAttachment {
            metadata: ObjectMeta {
                name: Some(csi_attachment(handle, driver, &node.into())),
                ..ObjectMeta::default()
            },
            spec: VolumeAttachmentSpec {
                attacher: driver.into(),
                node_name: node.into(),
                source: VolumeAttachmentSource {
                    persistent_volume_name: Some(name.into()),
                    ..VolumeAttachmentSource::default()
                },
            },
            status: None,
        })));
    }
    actions
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
    use knarr_api::registry::Registered;
    use serde_json::{Value, json};

    use super::*;
    use crate::world::{World, at, lines, object};

    fn from<T: Registered>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn world(mode: &str, pods: &[(&str, &str)]) -> World {
        let mut world = World::default();
        world.put::<PersistentVolume>(from(
            json!({"metadata": {"name": "v"}, "spec": {"accessModes": [mode],
            "csi": {"driver": "d", "volumeHandle": "h"},
            "claimRef": {"namespace": "a", "name": "c", "uid": "uid-c"}}}),
        ));
        world.put::<PersistentVolumeClaim>(from(
            json!({"metadata": {"namespace": "a", "name": "c"}, "spec": {"volumeName": "v"}}),
        ));
        for (name, node) in pods {
            world.put::<Pod>(from(
                json!({"metadata": {"namespace": "a", "name": name}, "spec": {"nodeName": node,
                "containers": [], "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]}}),
            ));
        }
        for node in ["n1", "n2"] {
            world.put::<Node>(from(json!({"metadata": {"name": node}})));
        }
        world
    }

    fn attachment(world: &mut World, node: &str, finalizers: &[&str], status: Value) {
        world.put::<VolumeAttachment>(from(json!({
            "metadata": {"name": csi_attachment("h", "d", &node.into()), "finalizers": finalizers},
            "spec": {"attacher": "d", "nodeName": node, "source": {"persistentVolumeName": "v"}},
            "status": status,
        })));
    }

    /// Names attachments after their nodes.
    fn decided(world: &World) -> Vec<String> {
        let key = ObjectKey::new("", "v");
        let actions = CsiAttach.reconcile(&Context {
            view: world,
            key: &key,
            now: at(0),
            failure: None,
        });
        let named = |mut line: String| {
            for node in ["n1", "n2"] {
                line = line.replace(&csi_attachment("h", "d", &node.into()), node);
            }
            line
        };
        lines(&actions).into_iter().map(named).collect()
    }

    #[test]
    fn s7_a_volume_for_one_node_is_attached_to_the_oldest_users_node_only() {
        let two = [("p1", "n1"), ("p2", "n2")];
        let events = decided(&world("ReadWriteOnce", &two));
        assert_eq!(
            events[..2],
            [
                "require v attached to no node but n1",
                "create volumeattachments n1"
            ]
        );
        assert!(events[2].contains("Multi-Attach error"), "{events:?}");
        let both = decided(&world("ReadWriteMany", &two));
        assert_eq!(
            both,
            ["create volumeattachments n1", "create volumeattachments n2"]
        );
    }

    #[test]
    fn s7_an_attachment_of_the_same_volume_to_another_node_keeps_it_from_being_attached() {
        let generated = csi_attachment("h", "d", &"n1".into());
        let generated = generated.as_str();
        for (name, attacher, volume, node, elsewhere) in [
            (generated, "d", "v", "n1", true),
            (generated, "d", "v", "n2", false),
            (generated, "d", "w", "n1", false),
            (generated, ATTACHER, "v", "n1", false),
            // A user's.
            ("va-1", "d", "v", "n1", false),
        ] {
            let attachment: VolumeAttachment = from(json!({"metadata": {"name": name},
                "spec": {"attacher": attacher, "nodeName": node, "source": {"persistentVolumeName": volume}}}));
            let found = is_elsewhere(&attachment, "v", "n2");
            assert_eq!(found, elsewhere, "{name} {attacher} {volume} {node}");
        }
    }

    #[test]
    fn a_driver_that_attaches_nothing_gets_no_attachments() {
        let mut world = world("ReadWriteOnce", &[("p1", "n1")]);
        world.put::<CSIDriver>(from(
            json!({"metadata": {"name": "d"}, "spec": {"attachRequired": false}}),
        ));
        assert_eq!(decided(&world), [""; 0]);
    }

    #[test]
    fn s7_a_volume_is_detached_when_its_node_does_not_use_it_and_not_before() {
        let mut world = world("ReadWriteOnce", &[("p2", "n2")]);
        attachment(
            &mut world,
            "n1",
            &["external-attacher/d", IN_USE],
            json!({"attached": true}),
        );
        let waits = decided(&world);
        assert!(
            waits.len() == 1 && waits[0].contains("Multi-Attach error"),
            "{waits:?}"
        );
        attachment(
            &mut world,
            "n1",
            &["external-attacher/d"],
            json!({"attached": true}),
        );
        let events = decided(&world);
        assert!(events[0].starts_with("delete volumeattachments n1"), "{events:?}");
        assert!(
            events[1].contains("Multi-Attach error"),
            "it still exists: {events:?}"
        );
    }

    #[test]
    fn s7_an_attachment_is_deleted_only_at_the_version_that_says_that_its_node_does_not_use_it() {
        let mut world = world("ReadWriteOnce", &[]);
        attachment(&mut world, "n1", &[], json!({"attached": true}));
        let view: &dyn View = &world;
        let known = view
            .get_as::<VolumeAttachment>("", &csi_attachment("h", "d", &"n1".into()))
            .unwrap();
        let actions = CsiAttach.reconcile(&Context {
            view,
            key: &ObjectKey::new("", "v"),
            now: at(0),
            failure: None,
        });
        let [Action::Delete(delete)] = actions.as_slice() else {
            panic!("expected one deletion: {:?}", lines(&actions));
        };
        assert!(delete.resource_version.is_some());
        assert_eq!(delete.resource_version, known.metadata.resource_version);
    }

    #[test]
    fn s7_only_a_node_that_is_out_of_service_has_its_finalizer_removed() {
        let mut world = world("ReadWriteOnce", &[]);
        attachment(&mut world, "n1", &[IN_USE], json!({"attached": true}));
        assert_eq!(decided(&world), [""; 0]);
        let out = json!({"metadata": {"name": "n1"}, "spec": {"taints": [
            {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]},
            "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
        world.put::<Node>(from(out));
        let events = decided(&world);
        assert!(
            events.len() == 2 && events[1].starts_with("update volumeattachments n1"),
            "{events:?}"
        );
    }

    #[test]
    fn an_attachment_that_a_user_created_is_not_changed() {
        let mut world = world("ReadWriteOnce", &[]);
        attachment(&mut world, "n1", &[], json!({"attached": true}));
        for (name, volume) in [("va-1", "v"), ("csi-1", "v"), ("va-2", "gone")] {
            world.put::<VolumeAttachment>(from(json!({"metadata": {"name": name},
                "spec": {"attacher": "d", "nodeName": "n1", "source": {"persistentVolumeName": volume}}})));
        }
        let found = decided(&world);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("n1") && !found[0].contains("va-"), "{found:?}");
    }

    #[test]
    fn an_error_of_the_attacher_is_reported_to_the_pods_that_wait() {
        let mut world = world("ReadWriteOnce", &[("p1", "n1")]);
        let status = json!({"attached": false, "attachError": {"message": "no such disk"}});
        attachment(&mut world, "n1", &[], status);
        let events = decided(&world);
        assert!(
            events[0].contains("AttachVolume.Attach failed for volume \"v\" : no such disk"),
            "{events:?}"
        );
    }

    #[test]
    fn s7_a_driver_concerns_its_own_volumes_and_all_else_is_as_for_other_volumes() {
        let world = world("ReadWriteOnce", &[]);
        for (driver, keys) in [("d", vec!["v"]), ("other", vec![])] {
            let driver = object::<CSIDriver>(json!({"metadata": {"name": driver}, "spec": {}}));
            assert_eq!(world.keys(&CsiAttach, None, Some(&driver)), keys);
        }
        let volume = object::<PersistentVolume>(json!({"metadata": {"name": "w"}}));
        assert_eq!(world.keys(&CsiAttach, None, Some(&volume)), ["w"]);
    }

    #[test]
    fn s7_the_attachments_of_other_volumes_and_attachers_are_not_changed() {
        let mut world = world("ReadWriteOnce", &[]);
        for (handle, attacher, volume) in [("other", "d", "w"), ("h", ATTACHER, "v")] {
            let name = csi_attachment(handle, "d", &"n1".into());
            world.put::<VolumeAttachment>(from(json!({"metadata": {"name": name},
                "spec": {"attacher": attacher, "nodeName": "n1", "source": {"persistentVolumeName": volume}}})));
        }
        assert_eq!(decided(&world), [""; 0]);
    }

    #[test]
    fn s7_an_attachment_names_its_driver_node_and_volume() {
        let world = world("ReadWriteOnce", &[("p1", "n1")]);
        let actions = world.run(&CsiAttach, ("", "v"), at(0));
        let Some(Action::Create(create)) = actions.last() else {
            panic!("an attachment is created: {:?}", lines(&actions));
        };
        let created = create.object.as_any().downcast_ref::<VolumeAttachment>().unwrap();
        let spec = &created.spec;
        let found = (
            spec.attacher.as_str(),
            spec.node_name.as_str(),
            volume_of(created),
        );
        assert_eq!(found, ("d", "n1", "v"));
    }
}
