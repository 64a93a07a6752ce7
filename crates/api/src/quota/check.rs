//! Checks a change against a namespace's quotas, and computes what it is charged.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::quantity::Quantity;

use super::{Devices, Evaluator, pods};
use crate::AnyObject;
use crate::kinds::pod::resources::{Amounts, amounts};

/// An object that is about to be written.
#[derive(Clone, Copy)]
pub struct Change<'a> {
    pub evaluator: &'a Evaluator,
    pub subresource: &'a str,
    /// As it is stored; `None` for a creation.
    pub old: Option<&'a dyn AnyObject>,
    pub new: &'a dyn AnyObject,
    pub now: Timestamp,
    /// The devices of the object's namespace, where it is a ResourceClaim.
    pub devices: &'a Devices,
}

/// Why a change is denied, with Kubernetes' messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    #[error("exceeded quota: {quota}, requested: {requested}, used: {used}, limited: {limited}")]
    Exceeded {
        quota: String,
        requested: String,
        used: String,
        limited: String,
    },
    #[error("quota usage is negative for resource(s): {0}")]
    NegativeUsage(String),
    #[error("failed quota: {quota}: must specify {missing}")]
    Unspecified { quota: String, missing: String },
    #[error("status unknown for quota: {quota}, resources: {resources}")]
    UnknownStatus { quota: String, resources: String },
}

/// The usage that a change adds to one quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    pub quota: String,
    pub uid: String,
    pub amounts: Amounts,
    /// Reported by a component: the usage exists already and cannot be denied.
    pub reported: bool,
}

impl Charge {
    /// Why the charge exceeds the quota.
    pub fn exceeds(&self, quota: &ResourceQuota) -> Option<QuotaError> {
        let hard = amounts(Some(limits(quota)));
        let used = amounts(quota.status.as_ref().and_then(|s| s.used.as_ref()));
        let sum = |name: &str, more: &Quantity| used.get(name).copied().unwrap_or_default() + *more;
        let exceeded: Vec<&String> = self
            .amounts
            .iter()
            .filter(|(name, more)| hard.get(*name).is_some_and(|limit| sum(name, more) > *limit))
            .map(|(name, _)| name)
            .collect();
        if exceeded.is_empty() || self.reported {
            return None;
        }
        let shown = |of: &Amounts| {
            let all = exceeded.iter().filter_map(|name| Some((name, of.get(*name)?)));
            let all: Vec<String> = all
                .map(|(name, amount)| format!("{name}={}", amount.to_wire().0))
                .collect();
            all.join(",")
        };
        Some(QuotaError::Exceeded {
            quota: name(quota).to_string(),
            requested: shown(&self.amounts),
            used: shown(&used),
            limited: shown(&hard),
        })
    }

    /// Adds the charge to the used amounts.
    pub fn add_to(&self, quota: &mut ResourceQuota) {
        self.change(quota, |used, amount| used + amount);
    }

    /// Subtracts the charge from the used amounts, as far as it is still counted.
    pub fn subtract_from(&self, quota: &mut ResourceQuota) {
        self.change(quota, |used, amount| match used - amount {
            left if left.is_negative() => Quantity::default(),
            left => left,
        });
    }

    fn change(&self, quota: &mut ResourceQuota, by: impl Fn(Quantity, Quantity) -> Quantity) {
        let used = quota.status.get_or_insert_default().used.get_or_insert_default();
        for (name, amount) in &self.amounts {
            let before = used
                .get(name)
                .and_then(|w| Quantity::of(w).ok())
                .unwrap_or_default();
            used.insert(name.clone(), by(before, *amount).to_wire());
        }
    }
}

/// The charges of the change to the namespace's quotas.
pub fn check(quotas: &[&ResourceQuota], change: &Change<'_>) -> Result<Vec<Charge>, QuotaError> {
    let Change {
        evaluator, old, new, ..
    } = *change;
    if !evaluator.concerns(change.subresource, old, new) {
        return Ok(Vec::new());
    }
    let mut covering = Vec::new();
    for quota in quotas {
        if covers(quota, evaluator, new) {
            check_quota(quota, change)?;
            covering.push(*quota);
        }
    }
    if covering.is_empty() {
        return Ok(Vec::new());
    }
    let usage = evaluator.usage(new, change.now, change.devices);
    let negative: Vec<&str> = usage
        .iter()
        .filter(|(_, amount)| amount.is_negative())
        .map(|(name, _)| name.as_str())
        .collect();
    if !negative.is_empty() {
        return Err(QuotaError::NegativeUsage(negative.join(",")));
    }
    let before = old.map(|old| evaluator.usage(old, change.now, change.devices));
    let mut charges = Vec::new();
    for quota in covering {
        let mut more = usage.clone();
        if let (Some(old), Some(before)) = (old, &before)
            && covers(quota, evaluator, old)
        {
            for (name, amount) in before {
                if let Some(more) = more.get_mut(name) {
                    *more -= *amount;
                }
            }
        }
        // Usage that shrinks is released by the quota controller when it counts.
        more.retain(|_, amount| !amount.is_zero() && !amount.is_negative());
        more.retain(|name, _| limits(quota).contains_key(name));
        if more.is_empty() {
            continue;
        }
        let charge = Charge {
            quota: name(quota).to_string(),
            uid: quota.metadata.uid.clone().unwrap_or_default(),
            amounts: more,
            reported: change.subresource == "status",
        };
        match charge.exceeds(quota) {
            Some(why) => return Err(why),
            None => charges.push(charge),
        }
    }
    Ok(charges)
}

fn limits(quota: &ResourceQuota) -> &BTreeMap<String, Wire> {
    static NONE: BTreeMap<String, Wire> = BTreeMap::new();
    quota
        .status
        .as_ref()
        .and_then(|s| s.hard.as_ref())
        .unwrap_or(&NONE)
}

fn name(quota: &ResourceQuota) -> &str {
    quota.metadata.name.as_deref().unwrap_or("")
}

fn covers(quota: &ResourceQuota, evaluator: &Evaluator, object: &dyn AnyObject) -> bool {
    let spec = quota.spec.clone().unwrap_or_default();
    limits(quota).keys().any(|name| evaluator.counts(name)) && evaluator.in_scopes(&spec, object)
}

/// Checks that the object sets the fields that the quota limits, and that the quota's status has its usage.
fn check_quota(quota: &ResourceQuota, change: &Change<'_>) -> Result<(), QuotaError> {
    let counted = || {
        limits(quota)
            .keys()
            .map(String::as_str)
            .filter(|name| change.evaluator.counts(name))
    };
    if let Some(pod) = change.new.as_any().downcast_ref::<Pod>()
        && let Some(missing) = pods::missing(pod, counted())
    {
        return Err(QuotaError::Unspecified {
            quota: name(quota).to_string(),
            missing,
        });
    }
    let used = quota.status.as_ref().and_then(|s| s.used.as_ref());
    let is_known = |name: &str| used.is_some_and(|used| used.contains_key(name));
    if counted().all(is_known) {
        return Ok(());
    }
    let all: Vec<&str> = counted().collect();
    Err(QuotaError::UnknownStatus {
        quota: name(quota).to_string(),
        resources: all.join(","),
    })
}
