//! The first stages of a write: the object's name, namespace and system metadata, its defaults, and the version in which it is handled.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_api::{AnyObject, Kind, Object, convert, k8s_openapi};
use knarr_apimachinery::Error;
use knarr_apimachinery::meta;
use knarr_apimachinery::time::seconds;
use knarr_strategy::KindStrategy;

use super::write::{BINDING, Change, Write};
use super::{preconditions, stamps};
use crate::request::{Ctx, Target};
use crate::seams::{self, Entropy};

/// Checks the name and namespace that the client sent. A new object gets its system metadata (`rest.FillObjectMetaSystemFields`).
pub(super) fn begin(ctx: &mut Ctx, write: &mut Write<'_>, entropy: &dyn Entropy) -> Result<(), Error> {
    match write.change {
        Change::Create => {
            let meta = write.object.metadata_mut();
            meta.self_link = None;
            meta.deletion_timestamp = None;
            meta.deletion_grace_period_seconds = None;
            meta.creation_timestamp = Some(seconds(ctx.now));
            meta.uid = Some(seams::uid(entropy));
            meta::drop_empty(meta);
            dedup_owners(ctx, meta);
        }
        Change::Update(old, _) => {
            check_name(write.target, &*write.object)?;
            check_namespace(write.target, &mut *write.object)?;
            dedup_owners(ctx, write.object.metadata_mut());
            preconditions::check_version(write.target, &*write.object, old)?;
            meta::drop_empty(write.object.metadata_mut());
        }
        Change::Delete(..) => {}
    }
    Ok(())
}

pub(super) fn set_defaults(ctx: &Ctx, write: &mut Write<'_>) -> Result<(), Error> {
    // A binding sets nothing that has a default, and the stored pod has its defaults.
    if write.target.subresource == BINDING {
        return Ok(());
    }
    write.target.kind.strategy().set_defaults(&mut *write.object)?;
    stamps::default_times(&mut *write.object, ctx.now);
    Ok(())
}

/// Converts the object to the version in which it is handled. An update keeps the metadata that the system sets.
pub(super) fn convert(mut write: Write<'_>) -> Result<Write<'_>, Error> {
    write.object = to_handled_version(write.target.kind, &write.kind, write.object)?;
    if let Change::Update(old, _) = write.change {
        keep_system_metadata(write.object.metadata_mut(), old);
    }
    Ok(write)
}

/// The schemas of a custom kind's versions may have different defaults: a stored object has those of the version in which it is stored.
fn to_handled_version(
    served: &Kind,
    handled: &Kind,
    object: Box<dyn AnyObject>,
) -> Result<Box<dyn AnyObject>, Error> {
    let mut object = convert::typed(served, handled, object)?;
    if served != handled
        && let Some(custom) = handled.ops.custom()
    {
        custom.set_defaults_of_version(&mut *object)?;
    }
    Ok(object)
}

/// Keeps the metadata that the system sets, whatever the client sent.
fn keep_system_metadata(meta: &mut ObjectMeta, old: &Object) {
    let was = old.metadata();
    if meta.uid.as_deref().unwrap_or("").is_empty() {
        meta.uid.clone_from(&was.uid);
    }
    if was.creation_timestamp.is_some() {
        meta.creation_timestamp.clone_from(&was.creation_timestamp);
    }
    if was.deletion_timestamp.is_some() {
        meta.deletion_timestamp.clone_from(&was.deletion_timestamp);
    }
    if meta.deletion_grace_period_seconds.is_none() {
        meta.deletion_grace_period_seconds = was.deletion_grace_period_seconds;
    }
    meta.generation = was.generation;
    // Checked before; from here on it is the resourceVersion that this update replaces.
    meta.resource_version.clone_from(&was.resource_version);
    meta.self_link = None;
}

/// Removes duplicate owner references, with a warning (`dedupOwnerReferencesAndAddWarning`).
fn dedup_owners(ctx: &mut Ctx, meta: &mut ObjectMeta) {
    let Some(owners) = &mut meta.owner_references else {
        return;
    };
    let mut kept: Vec<OwnerReference> = Vec::with_capacity(owners.len());
    let mut twice: Vec<String> = Vec::new();
    for owner in owners.drain(..) {
        if !kept.contains(&owner) {
            kept.push(owner);
        } else if !twice.contains(&owner.uid) {
            twice.push(owner.uid);
        }
    }
    *owners = kept;
    if !twice.is_empty() {
        ctx.warn(format!(
            ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may \
             reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
            twice.join(", ")
        ));
    }
}

pub(super) fn check_name(target: &Target<'_>, object: &dyn AnyObject) -> Result<(), Error> {
    match object.metadata().name.as_deref().unwrap_or("") {
        "" => Err(Error::bad_request(format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            target.name
        ))),
        name if name == target.name => Ok(()),
        name => Err(Error::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            target.name
        ))),
    }
}

fn other_namespace() -> Error {
    Error::bad_request(
        "the namespace of the provided object does not match the namespace sent on the request",
    )
}

/// The namespaces of body and URL must be the same; one that the body leaves out is set from the URL.
pub(crate) fn check_namespace(target: &Target<'_>, object: &mut dyn AnyObject) -> Result<(), Error> {
    let meta = object.metadata_mut();
    if target.kind.namespaced() {
        match meta.namespace.as_deref().unwrap_or("") {
            "" => meta.namespace = Some(target.namespace.to_string()),
            same if same == target.namespace => {}
            _ => return Err(other_namespace()),
        }
    } else {
        // As in `EnsureObjectNamespaceMatchesRequestNamespace`: an object of a cluster-scoped kind loses its namespace.
        meta.namespace = None;
    }
    if meta.namespace.as_deref() == Some("") {
        meta.namespace = None;
    }
    Ok(())
}

/// The same for an object that is not stored.
pub(super) fn check_namespace_of_request(target: &Target<'_>, namespace: Option<&str>) -> Result<(), Error> {
    match namespace {
        Some(other) if !other.is_empty() && other != target.namespace => Err(other_namespace()),
        _ => Ok(()),
    }
}
