//! Deletion (SPEC T1): of one object, or of all that are selected.

use knarr_api::deletion::Propagation;
use knarr_apimachinery::Error;
use knarr_apimachinery::field::{self, ErrorList};

use super::Pipeline;
use super::commit::Committed;
use super::read::{ListQuery, ListResult, invalid_options};
use super::write::{DeleteRequest, Write};
use crate::cache::{MODIFIED, WRITE_ATTEMPTS, Written};
use crate::request::{Ctx, Target};

impl Pipeline {
    /// Deletes an object, or marks it as being deleted: see [`knarr_strategy::Strategy::plan_deletion`].
    pub(crate) async fn delete(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        request: &DeleteRequest,
    ) -> Result<Committed, Error> {
        if request.orphan_dependents.is_some() && request.options.propagation.is_some() {
            let mut errors = ErrorList::new();
            let policy = request.options.propagation.map_or("", policy_name);
            errors.invalid(
                &field::Path::new("propagationPolicy"),
                policy,
                "orphanDependents and deletionPropagation cannot be both set",
            );
            return Err(invalid_options("DeleteOptions", &errors));
        }
        for _ in 0..WRITE_ATTEMPTS {
            let stored = self.stored(ctx, target).await?;
            let stored = stored.ok_or_else(|| Error::not_found(target.resource_ref()))?;
            let write = Write::delete(target, &stored, request);
            if let Written::Done(mut deleted) = self.store(ctx, write).await? {
                deleted.object = self.converter.object(&deleted.object, target.kind).await?;
                return Ok(deleted);
            }
        }
        Err(Error::conflict(target.resource_ref(), MODIFIED))
    }

    /// Deletes all selected objects; returns the list as it was before.
    pub(crate) async fn delete_collection(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        query: &ListQuery,
        request: &DeleteRequest,
    ) -> Result<ListResult, Error> {
        let listed = self.list(target.kind, target.namespace, query).await?;
        for item in &listed.items {
            let one = Target::main(target.kind, item.namespace(), item.name());
            match self.delete(ctx, &one, request).await {
                Err(e) if !e.is_not_found() => return Err(e),
                _ => {}
            }
        }
        Ok(listed)
    }
}

fn policy_name(policy: Propagation) -> &'static str {
    match policy {
        Propagation::Orphan => "Orphan",
        Propagation::Background => "Background",
        Propagation::Foreground => "Foreground",
    }
}
