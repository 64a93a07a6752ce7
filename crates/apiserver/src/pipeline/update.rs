//! Updates of an object (PUT and PATCH), as a loop of read, change, conditional write.

use std::sync::Arc;

use knarr_api::{AnyObject, Object};
use knarr_apimachinery::Error;
use knarr_client::Preconditions;
use knarr_strategy::KindStrategy;

use super::Pipeline;
use super::metadata::{check_name, check_namespace};
use super::preconditions::{check_preconditions, check_uid, check_unconditional_update, is_conditional};
use super::write::Write;
use crate::cache::{MODIFIED, WRITE_ATTEMPTS, Written};
use crate::request::{Ctx, Target};

/// Computes the new object from the current one (in the version that is served).
pub(crate) type UpdateFn<'a> =
    dyn FnMut(&mut Ctx, &Arc<Object>) -> Result<Box<dyn AnyObject>, Error> + Send + 'a;

/// The object of a PUT, for each attempt to write it.
enum Sent {
    /// For one attempt.
    Once(Option<Box<dyn AnyObject>>),
    Repeatedly(Box<dyn AnyObject>),
}

impl Sent {
    fn take(&mut self) -> Result<Box<dyn AnyObject>, Error> {
        match self {
            Sent::Once(object) => object
                .take()
                .ok_or_else(|| Error::internal("a conditional update was attempted twice")),
            Sent::Repeatedly(object) => Ok(object.clone_box()),
        }
    }
}

/// The result of an update.
pub(crate) struct Updated {
    pub object: Arc<Object>,
    pub created: bool,
}

impl Pipeline {
    /// PUT: replaces the object by `object`; creates it if the kind allows that.
    pub(crate) async fn put(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        mut object: Box<dyn AnyObject>,
    ) -> Result<Updated, Error> {
        check_name(target, &*object)?;
        check_namespace(target, &mut *object)?;
        let may_create = target.subresource.is_empty() && target.kind.strategy().create_on_update();
        if may_create && self.stored(ctx, target).await?.is_none() {
            if object
                .metadata()
                .resource_version
                .as_deref()
                .is_some_and(|v| !v.is_empty() && v != "0")
            {
                return Err(Error::not_found(target.resource_ref()));
            }
            check_uid(ctx, target, &*object, "")?;
            self.authorize_create(ctx, target)?;
            let object = self.create(ctx, target, object).await?;
            return Ok(Updated {
                object,
                created: true,
            });
        }
        // With a resourceVersion there is one attempt, which needs no copy.
        let mut object = match is_conditional(&*object) {
            true => Sent::Once(Some(object)),
            false => Sent::Repeatedly(object),
        };
        let object = self
            .update(ctx, target, &Preconditions::default(), &mut |ctx, old| {
                let object = object.take()?;
                check_uid(ctx, target, &*object, old.uid())?;
                check_unconditional_update(target, &*object)?;
                Ok(object)
            })
            .await?;
        Ok(Updated {
            object,
            created: false,
        })
    }

    /// Updates the object by `change`, again until no other write came in between. With a resourceVersion in the result of
    /// `change`, or in `preconditions`, it is one attempt.
    pub(crate) async fn update(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        preconditions: &Preconditions,
        change: &mut UpdateFn<'_>,
    ) -> Result<Arc<Object>, Error> {
        for _ in 0..WRITE_ATTEMPTS {
            let stored = self.stored(ctx, target).await?;
            let stored = stored.ok_or_else(|| Error::not_found(target.resource_ref()))?;
            check_preconditions(target.kind, preconditions, &stored)?;
            let shown = self.converter.object(&stored, target.kind).await?;
            let new = change(ctx, &shown)?;
            if let Written::Done(object) = self.update_once(ctx, target, &stored, new).await? {
                return self.converter.object(&object, target.kind).await;
            }
        }
        Err(Error::conflict(target.resource_ref(), MODIFIED))
    }

    /// One attempt. `Conflict`: the object was written in between, and the client sent no resourceVersion.
    pub(super) async fn update_once(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        old: &Arc<Object>,
        new: Box<dyn AnyObject>,
    ) -> Result<Written<Arc<Object>>, Error> {
        let conditional = is_conditional(&*new);
        let write = self.complete(ctx, Write::update(target, old, new)?).await?;
        match self.store(ctx, write).await? {
            Written::Done(updated) => Ok(Written::Done(updated.object)),
            // As in kube-apiserver: 404 if the write that came in between deleted the object.
            Written::Conflict if conditional => {
                match self.cache.get(target.kind, target.namespace, target.name) {
                    Some(_) => Err(Error::conflict(target.resource_ref(), MODIFIED)),
                    None => Err(Error::not_found(target.resource_ref())),
                }
            }
            Written::Conflict => Ok(Written::Conflict),
        }
    }
}
