//! Volumes: what a node may change in claims, volumes and attachments that are its own.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use knarr_api::kinds::persistent_volume::{IN_USE, USED_BY};
use knarr_api::{AnyObject, Object, k8s_openapi};

use crate::admission::{Denial, deny};

/// The object without the finalizer and the annotation that the node's kubelet may write.
fn without_finalizer_and_annotation(
    object: &dyn AnyObject,
    finalizer: &str,
    annotation: &str,
) -> Box<dyn AnyObject> {
    let mut bare = object.clone_box();
    let meta = bare.metadata_mut();
    meta.resource_version = None;
    meta.managed_fields = None;
    if let Some(finalizers) = &mut meta.finalizers {
        finalizers.retain(|f| f != finalizer);
    }
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove(annotation);
    }
    meta.finalizers = meta.finalizers.take().filter(|f| !f.is_empty());
    meta.annotations = meta.annotations.take().filter(|a| !a.is_empty());
    bare
}

fn equal(was: &mut dyn AnyObject, is: &mut dyn AnyObject) -> bool {
    Object::encode_for_store(was) == Object::encode_for_store(is)
}

/// On a PersistentVolume of its own directories, a node may only remove its finalizer.
pub(super) fn validate_volume_release(
    old: &dyn AnyObject,
    new: &dyn AnyObject,
    finalizer: &str,
) -> Result<(), Denial> {
    let has_finalizer = |o: &dyn AnyObject| o.metadata().finalizers.iter().flatten().any(|f| f == finalizer);
    let (mut was, mut is) = (
        without_finalizer_and_annotation(old, finalizer, ""),
        without_finalizer_and_annotation(new, finalizer, ""),
    );
    if equal(&mut *was, &mut *is) && (has_finalizer(old) || !has_finalizer(new)) {
        return Ok(());
    }
    deny(format!(
        "may only remove the finalizer {finalizer:?} of PersistentVolumes of this node's directories"
    ))
}

/// On a VolumeAttachment to it, a node may only record whether it uses the volume.
pub(super) fn validate_attachment_use(old: &dyn AnyObject, new: &dyn AnyObject) -> Result<(), Denial> {
    let (mut was, mut is) = (
        without_finalizer_and_annotation(old, IN_USE, USED_BY),
        without_finalizer_and_annotation(new, IN_USE, USED_BY),
    );
    match equal(&mut *was, &mut *is) {
        true => Ok(()),
        false => deny(format!(
            "may only change the finalizer {IN_USE:?} and the annotation {USED_BY:?} of VolumeAttachments to this node"
        )),
    }
}

/// Whether two claims differ at most in the status fields that a node may report.
pub(super) fn equal_but_reported_status(old: &PersistentVolumeClaim, new: &PersistentVolumeClaim) -> bool {
    let bare = |claim: &PersistentVolumeClaim| {
        let mut claim = claim.clone();
        claim.metadata.resource_version = None;
        claim.metadata.managed_fields = None;
        if let Some(status) = &mut claim.status {
            status.capacity = None;
            status.conditions = None;
            status.allocated_resources = None;
            status.allocated_resource_statuses = None;
        }
        claim.status = claim.status.filter(|s| *s != Default::default());
        claim
    };
    bare(old) == bare(new)
}
