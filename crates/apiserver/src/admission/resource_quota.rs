//! ResourceQuota: an object is charged to the quotas of its namespace before it is written, and denied where it would
//! exceed them. How charges are written: `quota_ledger.rs`.
//!
//! The quota controller's caches may lag behind: a count that misses an object which was charged a moment ago would lower
//! `status.used` too far. So a status update that lowers `used` is compared with what this server counts, pending charges
//! included, and rejected as a conflict if it is too low; the controller then counts again.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ResourceQuota;
use knarr_api::kinds::pod::resources::amounts;
use knarr_api::quota::{self, Change, Devices, Evaluator, QuotaError};
use knarr_api::{AnyObject, Object, k8s_openapi, registry};
use knarr_apimachinery::Error;

use super::quota_ledger::{ChargeError, QuotaAccessor, QuotaCharges};
use super::{Admission, Attributes, Operation};
use crate::cache::MODIFIED;
use crate::cache::change::Filter;
use crate::request::Ctx;

impl Admission {
    /// ResourceQuota: charges the object that is about to be written to the quotas of its namespace.
    pub(crate) async fn charge_quotas<'a>(
        &'a self,
        ctx: &Ctx,
        quotas: &dyn QuotaAccessor,
        attributes: &Attributes<'_>,
        object: Option<&dyn AnyObject>,
    ) -> Result<QuotaCharges<'a>, Error> {
        let target = attributes.target;
        let ledger = &self.quota_ledger;
        let mut charged = ledger.no_charges(target.namespace);
        let evaluator = Evaluator::of(target.kind).filter(|evaluator| {
            !target.namespace.is_empty()
                && evaluator.may_change(target.subresource, attributes.operation == Operation::Create)
        });
        let (Some(evaluator), Some(object)) = (evaluator, object) else {
            return Ok(charged);
        };
        let kind = &registry::RESOURCE_QUOTA;
        let found = match self.cache.of(kind)? {
            none if none.count() == 0 => Vec::new(),
            some => some.list(&Filter::everything(kind, target.namespace)),
        };
        if found.is_empty() {
            return Ok(charged);
        }
        let all: Vec<&ResourceQuota> = found.iter().filter_map(|o| o.get()).collect();
        let devices = match evaluator {
            Evaluator::ResourceClaims => Devices::new(|kind| self.in_namespace(kind, target.namespace)),
            _ => Devices::default(),
        };
        let change = Change {
            evaluator: &evaluator,
            subresource: target.subresource,
            old: attributes.old.map(|old| old.typed()),
            new: object,
            now: ctx.now,
            devices: &devices,
        };
        let denied = |why: QuotaError| attributes.forbidden(object.metadata(), &why.to_string());
        let charges = quota::check(&all, &change).map_err(denied)?;
        if ctx.dry_run || charges.is_empty() {
            return Ok(charged);
        }
        for charge in charges {
            charged.add_pending(&charge);
            if let Err(error) = ledger.charge(quotas, target.namespace, charge).await {
                charged.remove_last();
                charged.revert(quotas).await;
                return Err(match error {
                    ChargeError::Exceeded(why) => denied(why),
                    ChargeError::Failed(error) => error,
                });
            }
        }
        Ok(charged)
    }

    fn in_namespace(&self, kind: &knarr_api::Kind, namespace: &str) -> Vec<Arc<Object>> {
        let namespace = if kind.namespaced() { namespace } else { "" };
        // A kind without a cache has no objects.
        let held = self.cache.of(kind).ok();
        held.map_or_else(Vec::new, |held| held.list(&Filter::everything(kind, namespace)))
    }
}

/// Rejects a status update that counts less than exists: it was counted from an outdated cache.
pub(super) fn validate_status_count(
    admission: &Admission,
    ctx: &Ctx,
    attributes: &Attributes<'_>,
    object: &dyn AnyObject,
) -> Result<(), Error> {
    let target = attributes.target;
    let Some(new) = object.as_any().downcast_ref::<ResourceQuota>() else {
        return Ok(());
    };
    let old = attributes.old.and_then(|old| old.get::<ResourceQuota>());
    let (Operation::Update, "status", Some(old)) = (attributes.operation, target.subresource, old) else {
        return Ok(());
    };
    let used = |quota: &ResourceQuota| amounts(quota.status.as_ref().and_then(|s| s.used.as_ref()));
    let (was, is) = (used(old), used(new));
    // This server's own reverts are exact.
    let own = ctx.user.name == SERVER_USER;
    let lowered = |name: &String| {
        was.get(name)
            .is_some_and(|was| is.get(name).is_none_or(|is| is < was))
    };
    if own || !is.keys().any(lowered) {
        return Ok(());
    }
    let served = admission.cache.served();
    let mut counted = quota::used(
        new,
        served.all(),
        |kind| admission.in_namespace(kind, target.namespace),
        ctx.now,
    );
    let key = (target.namespace.to_string(), target.name.to_string());
    for (name, amount) in admission.quota_ledger.pending(&key) {
        *counted.entry(name).or_default() += amount;
    }
    let too_low = |name: &String| {
        counted
            .get(name)
            .is_some_and(|counted| is.get(name).is_none_or(|is| is < counted))
    };
    match is.keys().any(|name| lowered(name) && too_low(name)) {
        true => Err(Error::conflict(target.resource_ref(), MODIFIED)),
        false => Ok(()),
    }
}

/// The user as which this server writes quotas.
const SERVER_USER: &str = "system:apiserver";
