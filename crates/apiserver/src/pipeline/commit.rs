//! The last stage of a write: one encoding, one transaction on the object's last revision. A dry run ends here.

use std::sync::Arc;

use knarr_api::{AnyObject, Kind, Object};
use knarr_apimachinery::Error;
use knarr_client::Term;
use knarr_strategy::KindStrategy;
use knarr_strategy::{DeletionPlan, DeletionRequest};

use super::write::{Change, DeleteRequest, Write};
use super::{Pipeline, managed_fields};
use crate::cache::{WRITE_ATTEMPTS, Written};
use crate::request::Ctx;

/// What an update does to the stored object.
enum Effect {
    /// Nothing, apart from the times of managed fields.
    None,
    /// It changes the object; with the new object's encoding if it was made to find that out.
    Changed(Option<Vec<u8>>),
}

/// The result of a write.
pub(crate) struct Committed {
    /// The object as it is now, or as it was when it was removed.
    pub object: Arc<Object>,
    /// Whether it is not stored any more.
    pub removed: bool,
}

impl Committed {
    fn stored(object: Arc<Object>) -> Written<Self> {
        Written::Done(Committed {
            object,
            removed: false,
        })
    }

    fn removed(object: Arc<Object>) -> Written<Self> {
        Written::Done(Committed {
            object,
            removed: true,
        })
    }
}

impl Pipeline {
    pub(super) async fn commit(&self, ctx: &Ctx, write: Write<'_>) -> Result<Written<Committed>, Error> {
        match write.change {
            Change::Create => self.commit_create(ctx, write).await,
            Change::Update(old, _) => self.commit_update(ctx, old, write).await,
            Change::Delete(old, request) => self.commit_deletion(ctx, old, request, write).await,
        }
    }

    async fn commit_create(&self, ctx: &Ctx, write: Write<'_>) -> Result<Written<Committed>, Error> {
        let (kind, mut object) = (&write.kind, write.object);
        // Checked last, as in Kubernetes' storage: admission denies an object whatever its resourceVersion.
        let version = object.metadata_mut().resource_version.take();
        let is_version = |v: &String| v.parse::<u64>().is_ok_and(|v| v != 0);
        if version.as_ref().is_some_and(is_version) {
            let error = "resourceVersion should not be set on objects to be created";
            return Err(Error::new(500, "", error));
        }
        let name = object.metadata().name.as_deref().unwrap_or("");
        if self.cache.get(kind, write.target.namespace, name).is_some() {
            return Ok(Written::Conflict);
        }
        if ctx.dry_run {
            // A dry run shows the resourceVersion as it was sent, even one that is not valid.
            object.metadata_mut().resource_version = version;
            return Ok(Committed::stored(Arc::new(Object::from_typed(kind, object))));
        }
        self.put_converted(kind, object, None, 0, ctx.term.as_ref()).await
    }

    async fn commit_update(
        &self,
        ctx: &Ctx,
        old: &Arc<Object>,
        write: Write<'_>,
    ) -> Result<Written<Committed>, Error> {
        let (kind, mut object) = (&write.kind, write.object);
        let term = ctx.term.as_ref();
        if kind.strategy().completes_deletion(&*object, old.typed())? {
            if !ctx.dry_run && matches!(self.cache.delete(old, term).await?, Written::Conflict) {
                return Ok(Written::Conflict);
            }
            return Ok(Committed::removed(Arc::new(Object::from_typed(kind, object))));
        }
        if ctx.dry_run {
            return Ok(Committed::stored(Arc::new(Object::from_typed(kind, object))));
        }
        let encoding = match self.effect(old, &mut *object) {
            Effect::None if !self.cache.is_stale(old) => return Ok(Committed::stored(old.clone())),
            Effect::None => None,
            Effect::Changed(encoding) => encoding,
        };
        self.put_converted(kind, object, encoding, old.revision(), term)
            .await
    }

    /// Deletes an object, or marks it as being deleted, as its kind plans it.
    async fn commit_deletion(
        &self,
        ctx: &Ctx,
        old: &Arc<Object>,
        request: &DeleteRequest,
        write: Write<'_>,
    ) -> Result<Written<Committed>, Error> {
        let (kind, mut marked) = (&write.kind, write.object);
        let term = ctx.term.as_ref();
        let deletion = DeletionRequest {
            now: ctx.now,
            grace_period_seconds: request.options.grace_period_seconds,
            orphan_dependents: request.orphan_dependents,
            propagation: request.options.propagation,
        };
        match kind
            .strategy()
            .plan_deletion(old.typed(), &mut *marked, &deletion)?
        {
            DeletionPlan::Pending => Ok(Committed::stored(old.clone())),
            DeletionPlan::Mark { then_remove } if ctx.dry_run => Ok(Written::Done(Committed {
                object: Arc::new(Object::from_typed(kind, marked)),
                removed: then_remove,
            })),
            DeletionPlan::Remove if ctx.dry_run => Ok(Committed::removed(old.clone())),
            DeletionPlan::Remove => self.remove(old, term).await,
            DeletionPlan::Mark { then_remove: true } if self.cache.store().deletes_in_one_write() => {
                self.mark_and_remove(kind, marked, old, term).await
            }
            DeletionPlan::Mark { then_remove } => {
                let marked = self.put_converted(kind, marked, None, old.revision(), term);
                match marked.await? {
                    Written::Done(marked) if then_remove => self.remove_marked(marked.object, term).await,
                    written => Ok(written),
                }
            }
        }
    }

    /// Writes the marks of an object whose grace period is zero, and deletes it, in one write of the store.
    async fn mark_and_remove(
        &self,
        kind: &Kind,
        marked: Box<dyn AnyObject>,
        old: &Object,
        term: Option<&Term>,
    ) -> Result<Written<Committed>, Error> {
        let stored = kind.stored();
        let marked = self.converter.typed(kind, &stored, marked).await?;
        let written = self.cache.put_and_delete(&stored, marked, old.revision(), term);
        match written.await? {
            Written::Done((marked, Some(revision))) => {
                Ok(Committed::removed(self.cache.deleted_at(&marked, revision)))
            }
            Written::Done((marked, None)) => self.remove_marked(marked, term).await,
            Written::Conflict => Ok(Written::Conflict),
        }
    }

    /// Deletes an object whose grace period is zero. If it is written in between (by a kubelet its last status), the newer
    /// object is deleted; if it is deleted in between, the request has succeeded.
    async fn remove_marked(
        &self,
        mut object: Arc<Object>,
        term: Option<&Term>,
    ) -> Result<Written<Committed>, Error> {
        for _ in 0..WRITE_ATTEMPTS {
            if let Written::Done(done) = self.remove(&object, term).await? {
                return Ok(Written::Done(done));
            }
            match self.cache.get(object.kind(), object.namespace(), object.name()) {
                Some(newer) if newer.uid() == object.uid() => object = newer,
                _ => return Ok(Committed::removed(object)),
            }
        }
        Ok(Written::Conflict)
    }

    async fn remove(&self, object: &Arc<Object>, term: Option<&Term>) -> Result<Written<Committed>, Error> {
        Ok(match self.cache.delete(object, term).await? {
            Written::Done(revision) => Committed::removed(self.cache.deleted_at(object, revision)),
            Written::Conflict => Written::Conflict,
        })
    }

    /// Writes a value of `kind`, in its storage version. `encoding` is the value's, if it is known ([`Object::encode_for_store`]).
    async fn put_converted(
        &self,
        kind: &Kind,
        object: Box<dyn AnyObject>,
        encoding: Option<Vec<u8>>,
        expected_revision: u64,
        term: Option<&Term>,
    ) -> Result<Written<Committed>, Error> {
        let stored = kind.stored();
        let encoding = encoding.filter(|_| stored == *kind);
        let object = self.converter.typed(kind, &stored, object).await?;
        let put = self.cache.put(&stored, object, encoding, expected_revision, term);
        Ok(match put.await? {
            Written::Done(object) => Committed::stored(object),
            Written::Conflict => Written::Conflict,
        })
    }

    /// What the update to `new` does. The new object is encoded once, also if it is then written; a second time only if it might differ in
    /// nothing but the times of its managed fields.
    fn effect(&self, old: &Object, new: &mut dyn AnyObject) -> Effect {
        // An object stored in an older version is written again in the storage version: that is how objects are migrated.
        if !self.is_in_storage_version(old) {
            return Effect::Changed(None);
        }
        let was = old.typed();
        if !managed_fields::same_but_for_times(was, new) {
            return Effect::Changed(None);
        }
        let encoding = Object::encode_for_store(new);
        if was.metadata().managed_fields == new.metadata().managed_fields {
            return match old.has_encoding(&encoding) {
                true => Effect::None,
                false => Effect::Changed(Some(encoding)),
            };
        }
        // All times have the same length.
        let same_length = old.stored_len() == Some(encoding.len());
        if !same_length && managed_fields::have_same_number_of_times(was, new) {
            return Effect::Changed(Some(encoding));
        }
        let managed = new.metadata_mut().managed_fields.take();
        new.metadata_mut()
            .managed_fields
            .clone_from(&was.metadata().managed_fields);
        let same = old.has_encoding(&Object::encode_for_store(new));
        new.metadata_mut().managed_fields = managed;
        match same {
            true => Effect::None,
            false => Effect::Changed(Some(encoding)),
        }
    }

    fn is_in_storage_version(&self, object: &Object) -> bool {
        let kind = object.kind();
        if !kind.is_converted_by_webhook() {
            return true;
        }
        let stored = self.cache.get(kind, object.namespace(), object.name());
        stored.is_some_and(|stored| stored.kind().version() == kind.stored().version())
    }
}
