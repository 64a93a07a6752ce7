//! The stages of a write in which its kind's rules apply: preparation, allocation, validation, and warnings.

use knarr_api::convert;
use knarr_apimachinery::Error;
use knarr_apimachinery::field::ErrorList;
use knarr_strategy::KindStrategy;
use knarr_strategy::Part;
use knarr_strategy::metadata;

use super::preconditions::check_preconditions;
use super::write::{Change, Write};
use super::{Pipeline, stamps};
use crate::allocation::Reserved;
use crate::authz::{authorize_admin_access, authorize_claim_status, authorize_params, check_escalation};
use crate::request::Ctx;
use crate::seams;

impl Pipeline {
    /// Drops what the client may not set, and sets what the server does.
    pub(super) fn prepare(&self, ctx: &Ctx, write: &mut Write<'_>) -> Result<(), Error> {
        let (strategy, object) = (write.kind.strategy(), &mut *write.object);
        match write.change {
            Change::Create => {
                strategy.prepare_for_create(object)?;
                let meta = object.metadata_mut();
                if strategy.generates_name() && meta.name.as_deref().unwrap_or("").is_empty() {
                    meta.name = Some(seams::uid(&*self.entropy));
                }
                stamps::record_requester(ctx, object);
            }
            Change::Update(old, part) => {
                strategy.prepare_for_update(object, old.typed(), part)?;
                stamps::stamp(object, old.typed(), part, ctx.now);
            }
            Change::Delete(..) => {}
        }
        Ok(())
    }

    /// Allocates cluster IPs and node ports. They are reserved until the write is in the cache.
    pub(super) fn allocate(&self, write: &mut Write<'_>) -> Result<Reserved, Error> {
        let (kind, object) = (&write.kind, &mut *write.object);
        match write.change {
            Change::Create => self.allocations.for_create(kind, object, &self.cache),
            Change::Update(old, part) => self.allocations.for_update(kind, old, object, part, &self.cache),
            Change::Delete(..) => self.allocations.for_delete(kind, &self.cache),
        }
    }

    /// All errors of the object: by its kind's rules, and of fields that the user may not set. They are reported after stages that deny the request.
    pub(super) fn validate(&self, ctx: &Ctx, write: &Write<'_>) -> Result<ErrorList, Error> {
        let (target, object) = (write.target, &*write.object);
        let (kind, served) = (&write.kind, target.kind);
        let rules = match served.strategy().validated_as_sent() {
            true => served,
            false => kind,
        };
        let (cache, authorizer) = (&*self.cache, &*self.authorizer);
        let mut errors = ErrorList::new();
        match write.change {
            Change::Create => {
                let checks_metadata = rules.strategy().checks_metadata();
                if checks_metadata {
                    errors.extend(metadata::validate(rules, object.metadata()));
                }
                if rules == kind {
                    errors.extend(kind.strategy().validate(object)?);
                } else {
                    let shown = convert::typed(kind, rules, object.clone_box())?;
                    errors.extend(rules.strategy().validate(&*shown)?);
                }
                if errors.is_empty() {
                    errors.extend(match checks_metadata {
                        true => metadata::validate_common_names(rules, object.metadata()),
                        false => metadata::validate_common(rules, object.metadata()),
                    });
                }
                errors.extend(authorize_admin_access(cache, target, None, object));
                errors.extend(authorize_params(cache, authorizer, ctx, None, object));
            }
            Change::Update(old, part) => {
                errors.extend(metadata::validate_update(
                    rules,
                    part,
                    object.metadata(),
                    old.metadata(),
                ));
                if rules == kind {
                    errors.extend(kind.strategy().validate_update(object, old.typed(), part)?);
                } else {
                    let sent = convert::typed(kind, rules, object.clone_box())?;
                    let was = convert::object(old, rules)?;
                    errors.extend(rules.strategy().validate_update(&*sent, was.typed(), part)?);
                }
                errors.extend(authorize_admin_access(cache, target, Some(old), object));
                errors.extend(authorize_claim_status(authorizer, ctx, target, old, object));
                errors.extend(authorize_params(cache, authorizer, ctx, Some(old), object));
            }
            Change::Delete(..) => {}
        }
        Ok(errors)
    }

    /// No user grants permissions that the user does not have.
    pub(super) fn prevent_escalation(&self, ctx: &Ctx, write: &Write<'_>) -> Result<(), Error> {
        let old = match write.change {
            Change::Create => None,
            Change::Update(old, _) => Some(&**old),
            Change::Delete(..) => return Ok(()),
        };
        check_escalation(
            &self.cache,
            &*self.authorizer,
            ctx,
            write.target,
            old,
            &*write.object,
        )
    }
}

/// Rejects an invalid object with all its errors, and a deletion whose preconditions do not hold. Adds the warnings about what is valid.
pub(super) fn reject_invalid(ctx: &mut Ctx, write: &Write<'_>, errors: ErrorList) -> Result<(), Error> {
    let (strategy, object, served) = (write.kind.strategy(), &*write.object, write.target.kind);
    if matches!(write.change, Change::Create) {
        for warning in strategy.early_warnings(object)? {
            ctx.warn(warning);
        }
    }
    if !errors.is_empty() {
        return Err(Error::invalid(served.kind_ref(write.name()), &errors));
    }
    let warnings = match write.change {
        Change::Create => strategy.warnings(object)?,
        Change::Update(old, Part::Main) => strategy.warnings_on_update(object, old.typed())?,
        Change::Update(..) => Vec::new(),
        Change::Delete(old, request) => {
            check_preconditions(served, &request.options.preconditions, old)?;
            Vec::new()
        }
    };
    warnings.into_iter().for_each(|warning| ctx.warn(warning));
    Ok(())
}
