//! Update of an object (PUT and PATCH), as a loop of read, change, conditional write.

use std::sync::Arc;

use knarr_api::field::{self, Errors};
use knarr_api::strategy::Part;
use knarr_api::{AnyObject, Error, Kind, Object, convert, meta, registry};
use knarr_client::{Preconditions, Term};

use super::create::{check_namespace, dedup_owners, handled};
use super::{Ctx, MODIFIED, Target, WRITE_ATTEMPTS, managed_fields, stamps};
use crate::admission::{Attributes, Operation, extension};
use crate::cache::Written;
use crate::keys::upstream_key;
use crate::server::Server;

/// What an update makes of the object there is (as the kind that is served shows it).
pub(crate) type Step<'a> = dyn FnMut(&mut Ctx, &Arc<Object>) -> Result<Box<dyn AnyObject>, Error> + Send + 'a;

/// What became of an update.
pub(crate) struct Updated {
    pub object: Arc<Object>,
    pub created: bool,
}

impl Server {
    /// PUT: replaces the object by `object`; creates it where the kind allows that.
    pub(crate) async fn put(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        mut object: Box<dyn AnyObject>,
    ) -> Result<Updated, Error> {
        check_name(target, &*object)?;
        check_namespace(target, &mut *object)?;
        let may_create = target.subresource.is_empty() && target.kind.ops.create_on_update();
        if may_create && self.stored(ctx, target).await?.is_none() {
            if object
                .metadata()
                .resource_version
                .as_deref()
                .is_some_and(|v| !v.is_empty() && v != "0")
            {
                return Err(Error::not_found(target.about()));
            }
            check_uid(ctx, target, &*object, "")?;
            self.authorize_create(ctx, target)?;
            let object = self.create(ctx, target, object).await?;
            return Ok(Updated {
                object,
                created: true,
            });
        }
        let object = self
            .update(ctx, target, &Preconditions::default(), &mut |ctx, old| {
                check_uid(ctx, target, &*object, old.uid())?;
                check_names_version(target, &*object)?;
                Ok(object.clone_box())
            })
            .await?;
        Ok(Updated {
            object,
            created: false,
        })
    }

    /// Changes the object by `step`, again and again until nobody else came in between. A resourceVersion in what
    /// `step` returns, or in `preconditions`, makes it one attempt.
    pub(crate) async fn update(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        preconditions: &Preconditions,
        step: &mut Step<'_>,
    ) -> Result<Arc<Object>, Error> {
        for _ in 0..WRITE_ATTEMPTS {
            let stored = self.stored(ctx, target).await?;
            let stored = stored.ok_or_else(|| Error::not_found(target.about()))?;
            check_preconditions(target.kind, preconditions, &stored)?;
            let shown = self.converter.object(&stored, target.kind).await?;
            let new = step(ctx, &shown)?;
            if let Written::Done(object) = self.update_once(ctx, target, &stored, new).await? {
                return self.converter.object(&object, target.kind).await;
            }
        }
        Err(Error::conflict(target.about(), MODIFIED))
    }

    pub(super) async fn update_once(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        old: &Arc<Object>,
        mut new: Box<dyn AnyObject>,
    ) -> Result<Written<Arc<Object>>, Error> {
        let part = target.part()?;
        check_name(target, &*new)?;
        check_namespace(target, &mut *new)?;
        dedup_owners(ctx, new.metadata_mut());
        let conditional = check_version(target, &*new, old)?;
        let served = target.kind;
        let kind = old.kind();
        meta::drop_empty(new.metadata_mut());
        served.ops.set_defaults(&mut *new)?;
        stamps::default_times(&mut *new, ctx.now);
        let shown = convert::object(old, served)?;
        self.track(ctx, target, Some(&shown), &mut *new).await?;
        let mut new = handled(served, kind, new)?;
        carry_over(&mut *new, old);
        new.metadata_mut().resource_version = old.metadata().resource_version.clone();
        let attributes = Attributes {
            target,
            operation: Operation::Update,
            old: Some(old),
        };
        self.admit(ctx, &attributes, &mut *new)?;
        let update = extension::Operation::Update;
        new = self.mutate(ctx, target, update, new, Some(old)).await?;
        kind.ops.prepare_for_update(&mut *new, old.typed(), part)?;
        stamps::stamp(&mut *new, old.typed(), part, ctx.now);
        let reserved = self
            .allocations
            .for_update(kind, old, &mut *new, part, &self.cache)?;
        let rules = match *served == registry::EVENTS_EVENT {
            true => served,
            false => kind,
        };
        let mut mistakes = meta::validate_update(rules, part, new.metadata(), old.metadata());
        if rules != kind {
            let sent = convert::typed(kind, served, new.clone_box())?;
            let was = convert::object(old, served)?;
            mistakes.extend(served.ops.validate_update(&*sent, was.typed(), part)?);
        } else {
            mistakes.extend(kind.ops.validate_update(&*new, old.typed(), part)?);
        }
        mistakes.extend(self.authorize_admin_access(target, Some(old), &*new));
        mistakes.extend(self.authorize_claim_status(ctx, target, old, &*new));
        mistakes.extend(self.authorize_params(ctx, Some(old), &*new));
        self.restrict_node_write(ctx, target, Some(old), &*new)?;
        self.restrict_network_agent(ctx, target, old.name())?;
        self.check_escalation(ctx, target, Some(old), &*new)?;
        if !mistakes.is_empty() {
            return Err(Error::invalid(served.about_kind(target.name), &mistakes));
        }
        if part == Part::Main {
            for warning in kind.ops.warnings_on_update(&*new, old.typed())? {
                ctx.warn(warning);
            }
        }
        let write = extension::Write {
            operation: extension::Operation::Update,
            object: Some(&*new),
            old: Some(old),
        };
        self.judge(ctx, target, &write).await?;
        let charged = self.validate(ctx, &attributes, &*new).await?;
        if self.ends_with_update(kind, &*new, old) {
            let term = ctx.term.as_ref();
            if !ctx.dry_run && matches!(self.cache.delete(old, term).await?, Written::Conflict) {
                return Ok(Written::Conflict);
            }
            return Ok(Written::Done(Arc::new(Object::from_typed(kind, new))));
        }
        if ctx.dry_run {
            return Ok(Written::Done(Arc::new(Object::from_typed(kind, new))));
        }
        if self.changes_nothing(old, &mut *new) && !self.cache.is_stale(old) {
            return Ok(Written::Done(old.clone()));
        }
        let written = self
            .write_converted(kind, new, old.revision(), ctx.term.as_ref())
            .await;
        drop(reserved);
        match self.settle(charged, written).await? {
            // As kube-apiserver: 404 if the write that was faster is the object's deletion.
            Written::Conflict if conditional => {
                match self.cache.get(target.kind, target.namespace, target.name) {
                    Some(_) => Err(Error::conflict(target.about(), MODIFIED)),
                    None => Err(Error::not_found(target.about())),
                }
            }
            other => Ok(other),
        }
    }

    /// Whether the object would be as it was, but for the times at which its managers wrote.
    fn changes_nothing(&self, old: &Object, new: &mut dyn AnyObject) -> bool {
        // What is stored in an older version is written again in the storage version: that is how it is migrated.
        if !self.is_in_storage_version(old) {
            return false;
        }
        let was = old.typed();
        if !managed_fields::same_but_for_times(was, new) {
            return false;
        }
        let managed = new.metadata_mut().managed_fields.take();
        new.metadata_mut()
            .managed_fields
            .clone_from(&was.metadata().managed_fields);
        let same = old.is_of(&Object::encode_for_store(new));
        new.metadata_mut().managed_fields = managed;
        same
    }

    fn is_in_storage_version(&self, object: &Object) -> bool {
        let kind = object.kind();
        if !kind.is_converted_by_webhook() {
            return true;
        }
        let stored = self.cache.get(kind, object.namespace(), object.name());
        stored.is_some_and(|stored| stored.kind().version() == kind.stored().version())
    }

    /// Writes a value of `kind`, in the version in which it is stored.
    pub(super) async fn write_converted(
        &self,
        kind: &Kind,
        object: Box<dyn AnyObject>,
        seen: u64,
        term: Option<&Term>,
    ) -> Result<Written<Arc<Object>>, Error> {
        let stored = kind.stored();
        let object = self.converter.typed(kind, &stored, object).await?;
        self.cache.put(&stored, object, seen, term).await
    }

    /// Whether this update takes away the last thing that held an object that is being deleted.
    fn ends_with_update(&self, kind: &Kind, new: &dyn AnyObject, old: &Object) -> bool {
        let meta = new.metadata();
        if meta.deletion_timestamp.is_none() || meta.finalizers.as_ref().is_some_and(|f| !f.is_empty()) {
            return false;
        }
        if *kind == registry::NAMESPACE {
            let held = crate::admission::namespace_finalizers(new);
            // A namespace whose finalizers were empty before waits for another DELETE.
            return held == 0;
        }
        let graceless = meta.deletion_grace_period_seconds.unwrap_or(0) == 0;
        let had = old.metadata().finalizers.as_ref().is_some_and(|f| !f.is_empty());
        graceless && (had || old.metadata().deletion_grace_period_seconds == Some(0))
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

pub(crate) fn check_preconditions(kind: &Kind, wanted: &Preconditions, found: &Object) -> Result<(), Error> {
    let about = kind.about_kind(found.name());
    if let Some(uid) = &wanted.uid
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
    if let Some(version) = &wanted.resource_version
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

/// The uid in an object that replaces another is a precondition; `found` is the uid there is, or empty.
fn check_uid(ctx: &Ctx, target: &Target<'_>, new: &dyn AnyObject, found: &str) -> Result<(), Error> {
    let key = upstream_key(target.kind, target.namespace, target.name);
    // A dry run ends before the storage that puts its prefix in front (`DryRunnableStorage`).
    let key = match ctx.dry_run {
        true => key.trim_start_matches("/registry"),
        false => &key,
    };
    match new.metadata().uid.as_deref() {
        Some(uid) if !uid.is_empty() && uid != found => Err(Error::conflict(
            target.about(),
            &format!(
                "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: \
                 Precondition failed: UID in precondition: {uid}, UID in object meta: {found}"
            ),
        )),
        _ => Ok(()),
    }
}

/// Whoever replaces an object of a kind that Kubernetes updates only knowingly says which version of it he saw.
pub(super) fn check_names_version(target: &Target<'_>, new: &dyn AnyObject) -> Result<(), Error> {
    let named = new.metadata().resource_version.as_deref().unwrap_or("");
    if !matches!(named, "" | "0") || target.kind.ops.unconditional_update() {
        return Ok(());
    }
    let mut mistakes = Errors::new();
    mistakes.push(field::FieldError {
        cause: field::Cause::Invalid,
        field: "metadata.resourceVersion".into(),
        value: Some("0".into()),
        detail: "must be specified for an update".into(),
    });
    // Kubernetes names the resource here, and not the kind.
    Err(Error::invalid(target.about(), &mistakes))
}

/// Whether the write is for the one version it carries, as its client named it, or for whatever it was made of.
fn check_version(target: &Target<'_>, new: &dyn AnyObject, old: &Object) -> Result<bool, Error> {
    let meta = new.metadata();
    match meta.resource_version.as_deref().unwrap_or("") {
        "" | "0" => Ok(false),
        text => {
            let version: u64 = text.parse().map_err(|_| {
                Error::new(
                    500,
                    "",
                    format!("strconv.ParseUint: parsing {text:?}: invalid syntax"),
                )
            })?;
            if version != old.revision() {
                return Err(Error::conflict(target.about(), MODIFIED));
            }
            Ok(true)
        }
    }
}

/// What the system wrote into the metadata stays, whatever the client sent.
fn carry_over(new: &mut dyn AnyObject, old: &Object) {
    let was = old.metadata();
    let meta = new.metadata_mut();
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
    // Checked before; from here on it says what this update is of.
    meta.resource_version.clone_from(&was.resource_version);
    meta.self_link = None;
}
