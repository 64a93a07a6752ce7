//! Attaches volumes that only one node or pod may use (SPEC S7).
//!
//! Storage without a lock of its own gets one here: a VolumeAttachment that is named after the volume, not the node, so
//! that there can be only one. Its creation attaches the volume (the API server's compare-and-swap). The node uses the volume
//! only while the VolumeAttachment exists and names this node, and marks the use by a finalizer, which it also sets by
//! compare-and-swap, and never on a VolumeAttachment that is being deleted.
//!
//! A volume is detached when no pod on its node needs it any more, by deleting the VolumeAttachment, which is removed once the
//! node has removed its finalizer. **No timer ever removes it instead.** This controller does so only where nothing of the
//! node can use the volume any more: its Node object was deleted, or it has the out-of-service taint (SPEC S5, S6),
//! and only after the pods' objects have been removed.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{AttachedVolume, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::k8s_openapi;
use knarr_api::kinds::persistent_volume::{
    ATTACHED_POD, ATTACHER, ExclusiveAttachment, IN_USE, exclusive_attachment, unique_name,
};
use knarr_api::kinds::pod::is_terminal;
use knarr_api::registry;
use knarr_api::{Kind, Object, ObjectKey, Shared};
use knarr_apimachinery::finalizer;

use crate::action::{Action, Create, Delete, LiveCheck, reference};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::persistentvolume::{claim_ref, volume_name};
use crate::podgc::is_out_of_service;
use crate::{pod, protection};

/// See the module. Its keys are volumes.
pub struct AttachDetach;

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

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
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
        let exclusive = volume.as_ref().and_then(|v| exclusive_attachment(v));
        let attachment = match &exclusive {
            Some(exclusive) => view.get_as::<VolumeAttachment>("", &exclusive.attachment),
            // The volume was deleted, or its access modes have changed: the attachment is from before.
            None => {
                let all = view.list_as::<VolumeAttachment>("");
                all.into_iter().find(|a| is_ours(a) && volume_of(a) == name)
            }
        };
        let users = match (&volume, &exclusive) {
            (Some(volume), Some(_)) => users(view, volume),
            _ => Vec::new(),
        };
        let mut actions = match (attachment, volume, exclusive) {
            (Some(attachment), _, exclusive) => {
                sync_attachment(view, &attachment, exclusive.as_ref(), &users)
            }
            (None, Some(volume), Some(exclusive)) => attach(&volume, &exclusive, &users),
            (None, ..) => Vec::new(),
        };
        if context.failure.is_some() {
            // Another client was faster, or the cache is behind: the change that follows enqueues the key again.
            actions.clear();
        }
        actions
    }
}

/// The pods that use a volume through the claim it is bound to: those that are bound to a node and not finished.
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
    users.retain(|pod| protection::uses(pod, name) && !is_terminal(pod));
    users.sort_by_key(|pod| {
        let created = pod.metadata.creation_timestamp.clone();
        (created, pod.object().name().to_string())
    });
    users
}

/// The volume is not attached: it is attached for the oldest pod that needs it.
fn attach(
    volume: &Shared<PersistentVolume>,
    exclusive: &ExclusiveAttachment,
    users: &[Shared<Pod>],
) -> Vec<Action> {
    let next = users.iter().find(|pod| !pod::is_deleting(pod));
    let Some(next) = next.filter(|_| volume.metadata.deletion_timestamp.is_none()) else {
        return Vec::new();
    };
    let annotations = exclusive
        .one_pod
        .then(|| BTreeMap::from([(ATTACHED_POD.to_string(), next.object().uid().to_string())]));
    let attachment = VolumeAttachment {
        metadata: ObjectMeta {
            name: Some(exclusive.attachment.clone()),
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

fn sync_attachment(
    view: &dyn View,
    attachment: &Shared<VolumeAttachment>,
    exclusive: Option<&ExclusiveAttachment>,
    users: &[Shared<Pod>],
) -> Vec<Action> {
    let node = attachment.spec.node_name.as_str();
    let of_pod = attachment
        .metadata
        .annotations
        .as_ref()
        .and_then(|a| a.get(ATTACHED_POD));
    let one_pod = exclusive.is_some_and(|w| w.one_pod);
    let is_holder = |pod: &Shared<Pod>| {
        pod::node_name(pod) == node && (!one_pod || of_pod.is_some_and(|uid| uid == pod.object().uid()))
    };
    let (holders, waiting): (Vec<_>, Vec<_>) = users.iter().partition(|pod| is_holder(pod));
    let mut actions = Vec::new();
    if attachment.metadata.deletion_timestamp.is_some() {
        if holders.is_empty() {
            actions.extend(force_detach(view, attachment));
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

/// Removes the node's finalizer from an attachment where the node cannot use the volume any more.
pub(crate) fn force_detach(view: &dyn View, attachment: &Shared<VolumeAttachment>) -> Vec<Action> {
    let name = attachment.spec.node_name.as_str();
    if !finalizer::contains(&attachment.metadata, IN_USE) {
        return Vec::new();
    }
    let sure = match view.get_as::<Node>("", name) {
        None => LiveCheck::Absent {
            kind: registry::NODE.clone(),
            key: ObjectKey::new("", name),
        },
        Some(node) if is_out_of_service(&node) => LiveCheck::OutOfService { node: name.into() },
        // The node may still use the volume: wait until it removes its finalizer, for ever if need be.
        Some(_) => return Vec::new(),
    };
    let mut changed = (**attachment).clone();
    finalizer::remove(&mut changed.metadata, IN_USE);
    vec![Action::Require(sure), Action::update(changed)]
}

/// Keeps `volumesAttached` of each node's status. Its keys are nodes.
pub struct VolumesAttached;

impl Controller for VolumesAttached {
    fn name(&self) -> &'static str {
        "attachdetach-controller"
    }

    fn queue(&self) -> &'static str {
        "attachdetach_nodes"
    }

    fn account(&self) -> &'static str {
        "attachdetach-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::VOLUME_ATTACHMENT, &registry::NODE]
    }

    fn keys(&self, _view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
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
mod tests;
