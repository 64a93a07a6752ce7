//! What ResourceQuotas count: for every kind how much an object uses, and which quotas it falls under.
//!
//! Admission charges with these rules and the controller counts with them, so that the two always agree. Amounts are
//! named as quotas name them: `requests.cpu`, `services.nodeports`, `count/deployments.apps`.

mod check;
mod claims;
mod pods;
mod resource_claims;
mod services;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, Pod, ResourceQuota, ResourceQuotaSpec, ScopedResourceSelectorRequirement, Service,
};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::jiff::Timestamp;

use crate::kinds::pod::resources::{Amounts, amounts};
use crate::quantity::{Notation, Quantity};
use crate::registry;
use crate::selector::label::{Operator, Requirement};
use crate::{AnyObject, Kind};

pub use check::{Change, Charge, check};

/// Kinds that have a bare name beside `count/…`.
const ALIASES: [&str; 4] = [
    "configmaps",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
];

/// How the objects of one kind are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evaluator {
    Pods,
    Services,
    PersistentVolumeClaims,
    ResourceClaims,
    /// By their number only, under these names.
    Count(Vec<String>),
}

/// `count/pods`, `count/deployments.apps`.
pub fn count_name(kind: &Kind) -> String {
    format!("count/{}", kind.qualified())
}

fn one() -> Quantity {
    whole(1)
}

fn whole(number: usize) -> Quantity {
    Quantity::from_value(i64::try_from(number).unwrap_or(i64::MAX), Notation::DecimalSi)
}

impl Evaluator {
    /// `None`: no quota counts this kind.
    pub fn of(kind: &Kind) -> Option<Self> {
        if !kind.namespaced() || !kind.is_stored() || kind.plural == "events" {
            return None;
        }
        Some(match (kind.group, kind.plural) {
            ("", "pods") => Evaluator::Pods,
            ("", "services") => Evaluator::Services,
            ("", "persistentvolumeclaims") => Evaluator::PersistentVolumeClaims,
            ("resource.k8s.io", "resourceclaims") => Evaluator::ResourceClaims,
            ("", plural) if ALIASES.contains(&plural) => {
                Evaluator::Count(vec![count_name(kind), plural.to_string()])
            }
            _ => Evaluator::Count(vec![count_name(kind)]),
        })
    }

    /// Whether this is one of the amounts that its objects use.
    pub fn counts(&self, name: &str) -> bool {
        match self {
            Evaluator::Pods => pods::counts(name),
            Evaluator::Services => services::NAMES.contains(&name),
            Evaluator::PersistentVolumeClaims => claims::counts(name),
            Evaluator::ResourceClaims => resource_claims::counts(name),
            Evaluator::Count(names) => names.iter().any(|n| n == name),
        }
    }

    /// What the object uses.
    pub fn usage(&self, object: &dyn AnyObject, now: Timestamp) -> Amounts {
        let any = object.as_any();
        let used = match self {
            Evaluator::Pods => any.downcast_ref::<Pod>().map(|p| pods::usage(p, now)),
            Evaluator::Services => any.downcast_ref::<Service>().map(services::usage),
            Evaluator::PersistentVolumeClaims => {
                any.downcast_ref::<PersistentVolumeClaim>().map(claims::usage)
            }
            Evaluator::ResourceClaims => any.downcast_ref::<ResourceClaim>().map(resource_claims::usage),
            Evaluator::Count(names) => Some(names.iter().map(|n| (n.clone(), one())).collect()),
        };
        used.unwrap_or_default()
    }

    /// Whether the object is of every scope that the quota is for.
    fn in_scopes(&self, spec: &ResourceQuotaSpec, object: &dyn AnyObject) -> bool {
        let any = object.as_any();
        scopes(spec).iter().all(|scope| match self {
            Evaluator::Pods => any.downcast_ref::<Pod>().is_some_and(|p| pods::is_of(p, scope)),
            Evaluator::PersistentVolumeClaims => any
                .downcast_ref::<PersistentVolumeClaim>()
                .is_some_and(|c| claims::is_of(c, scope)),
            _ => false,
        })
    }

    /// Whether writing this can change what is used. `old`: nothing at a creation.
    fn concerns(&self, subresource: &str, old: Option<&dyn AnyObject>, new: &dyn AnyObject) -> bool {
        match (self, subresource, old) {
            (_, "", None) => true,
            (Evaluator::Pods, "", Some(old)) => pods::has_deadline(old) != pods::has_deadline(new),
            (Evaluator::Pods, "resize", Some(_)) => true,
            (Evaluator::PersistentVolumeClaims, "" | "status", Some(_)) => true,
            (Evaluator::Services | Evaluator::ResourceClaims, "", Some(_)) => true,
            _ => false,
        }
    }

    /// Whether there may be room again after this change that nobody was charged for.
    pub fn frees(&self, old: &dyn AnyObject, new: &dyn AnyObject) -> bool {
        let (was, is) = (old.as_any(), new.as_any());
        match self {
            Evaluator::Pods => match (was.downcast_ref(), is.downcast_ref()) {
                (Some(was), Some(is)) => pods::frees(was, is),
                _ => false,
            },
            Evaluator::Services => match (was.downcast_ref(), is.downcast_ref()) {
                (Some(was), Some(is)) => services::usage(was) != services::usage(is),
                _ => false,
            },
            Evaluator::PersistentVolumeClaims => match (was.downcast_ref(), is.downcast_ref()) {
                (Some(was), Some(is)) => claims::frees(was, is),
                _ => false,
            },
            _ => false,
        }
    }
}

/// All that a quota is for, as selectors.
fn scopes(spec: &ResourceQuotaSpec) -> Vec<ScopedResourceSelectorRequirement> {
    let named = spec
        .scopes
        .iter()
        .flatten()
        .map(|scope| ScopedResourceSelectorRequirement {
            scope_name: scope.clone(),
            operator: "Exists".into(),
            values: None,
        });
    let selected = spec
        .scope_selector
        .iter()
        .flat_map(|s| s.match_expressions.iter().flatten());
    named.chain(selected.cloned()).collect()
}

/// Whether a name (none: the object has none) is what the selector asks for. One that cannot be read selects nothing.
fn selects(scope: &ScopedResourceSelectorRequirement, name: Option<&str>) -> bool {
    let operator = match scope.operator.as_str() {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        _ => return false,
    };
    Requirement::new(
        &scope.scope_name,
        operator,
        scope.values.clone().unwrap_or_default(),
    )
    .is_ok_and(|requirement| requirement.admits(name))
}

/// The limits of a quota.
pub fn hard(quota: &ResourceQuota) -> Amounts {
    amounts(quota.spec.as_ref().and_then(|s| s.hard.as_ref()))
}

/// What a namespace uses of the limits of a quota. `objects` are those of the namespace, of each kind that counts for
/// it; a limit that no kind counts for is left out.
pub fn used<'a>(
    quota: &ResourceQuota,
    kinds: impl IntoIterator<Item = &'static Kind>,
    mut objects: impl FnMut(&'static Kind) -> Vec<std::sync::Arc<crate::Object>> + 'a,
    now: Timestamp,
) -> Amounts {
    let spec = quota.spec.clone().unwrap_or_default();
    let names: BTreeSet<String> = spec.hard.iter().flatten().map(|(name, _)| name.clone()).collect();
    let mut used = Amounts::new();
    let mut seen = BTreeSet::new();
    for kind in kinds {
        let Some(evaluator) = Evaluator::of(kind) else {
            continue;
        };
        let counted: Vec<&String> = names.iter().filter(|n| evaluator.counts(n)).collect();
        // Several versions of a kind show the same objects.
        if counted.is_empty() || !seen.insert((kind.group, kind.plural)) {
            continue;
        }
        for name in &counted {
            used.entry((*name).clone()).or_default();
        }
        for object in objects(kind) {
            let object = object.typed();
            if evaluator.in_scopes(&spec, object) {
                let own = evaluator.usage(object, now);
                for name in &counted {
                    if let Some(amount) = own.get(*name) {
                        *used.entry((*name).clone()).or_default() += *amount;
                    }
                }
            }
        }
    }
    used
}

/// The kinds whose objects count for a limit of this quota.
pub fn kinds_of<'a>(
    quota: &'a ResourceQuota,
    served: impl IntoIterator<Item = &'static Kind> + 'a,
) -> impl Iterator<Item = &'static Kind> + 'a {
    let names: Vec<String> = hard(quota).into_keys().collect();
    served
        .into_iter()
        .filter(move |kind| Evaluator::of(kind).is_some_and(|e| names.iter().any(|n| e.counts(n))))
}

/// Every built-in kind that a quota can count.
pub fn built_in() -> impl Iterator<Item = &'static Kind> {
    registry::ALL
        .iter()
        .copied()
        .filter(|kind| Evaluator::of(kind).is_some())
}
