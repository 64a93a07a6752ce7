//! Preconditions of writes: UID and resourceVersion, from options or from the object that the client sent.

use knarr_api::{AnyObject, Kind, Object};
use knarr_apimachinery::Error;
use knarr_apimachinery::field::{self, ErrorList};
use knarr_client::Preconditions;
use knarr_strategy::KindStrategy;

use crate::cache::MODIFIED;
use crate::keys::upstream_key;
use crate::request::{Ctx, Target};

/// Checks preconditions that are given as options.
pub(crate) fn check_preconditions(
    kind: &Kind,
    expected: &Preconditions,
    found: &Object,
) -> Result<(), Error> {
    let about = kind.kind_ref(found.name());
    if let Some(uid) = &expected.uid
        && uid != found.uid()
    {
        return Err(Error::conflict(
            about,
            &format!(
                "the UID in the precondition ({uid}) does not match the UID in record ({}). \
The object might have been deleted and then recreated",
                found.uid()
            ),
        ));
    }
    if let Some(version) = &expected.resource_version
        && *version != found.revision().to_string()
    {
        return Err(Error::conflict(
            about,
            &format!(
                "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). \
The object might have been modified",
                found.revision()
            ),
        ));
    }
    Ok(())
}

/// The uid of a replacing object is a precondition; `found` is the existing object's uid, or empty.
pub(super) fn check_uid(
    ctx: &Ctx,
    target: &Target<'_>,
    new: &dyn AnyObject,
    found: &str,
) -> Result<(), Error> {
    let uid = match new.metadata().uid.as_deref() {
        Some(uid) if !uid.is_empty() && uid != found => uid,
        _ => return Ok(()),
    };
    let key = upstream_key(target.kind, target.namespace, target.name);
    // A dry run fails before the storage prefix is added (`DryRunnableStorage`).
    let key = match ctx.dry_run {
        true => key.trim_start_matches("/registry"),
        false => &key,
    };
    Err(Error::conflict(
        target.resource_ref(),
        &format!(
            "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: \
             Precondition failed: UID in precondition: {uid}, UID in object meta: {found}"
        ),
    ))
}

/// The resourceVersion that the client sent, if it sent one.
fn given_version(object: &dyn AnyObject) -> Option<&str> {
    let given = object.metadata().resource_version.as_deref();
    given.filter(|v| !matches!(*v, "" | "0"))
}

/// Whether the write is conditional on a resourceVersion that the client sent.
pub(super) fn is_conditional(object: &dyn AnyObject) -> bool {
    given_version(object).is_some()
}

/// Requires a resourceVersion for kinds without unconditional update (`AllowUnconditionalUpdate`).
pub(super) fn check_unconditional_update(target: &Target<'_>, new: &dyn AnyObject) -> Result<(), Error> {
    if is_conditional(new) || target.kind.strategy().unconditional_update() {
        return Ok(());
    }
    let mut errors = ErrorList::new();
    errors.push(field::FieldError {
        cause: field::Cause::Invalid,
        field: "metadata.resourceVersion".into(),
        value: Some("0".into()),
        detail: "must be specified for an update".into(),
    });
    // Kubernetes names the resource here, and not the kind.
    Err(Error::invalid(target.resource_ref(), &errors))
}

/// The resourceVersion that the client sent must be the stored object's.
pub(super) fn check_version(target: &Target<'_>, new: &dyn AnyObject, old: &Object) -> Result<(), Error> {
    let Some(text) = given_version(new) else {
        return Ok(());
    };
    let version: u64 = text.parse().map_err(|_| {
        Error::new(
            500,
            "",
            format!("strconv.ParseUint: parsing {text:?}: invalid syntax"),
        )
    })?;
    match version == old.revision() {
        true => Ok(()),
        false => Err(Error::conflict(target.resource_ref(), MODIFIED)),
    }
}
