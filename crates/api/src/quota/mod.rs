//! The evaluators of ResourceQuotas: for every kind how much an object uses, and which quotas apply to it.
//!
//! Admission charges with these rules and the controller counts with them, so that the two always agree. Amounts are
//! named as quotas name them: `requests.cpu`, `services.nodeports`, `count/deployments.apps`.

mod check;
mod claims;
mod devices;
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
use knarr_apimachinery::labels::{Operator, Requirement};
use knarr_apimachinery::quantity::{Notation, Quantity};

use crate::kinds::pod::resources::{Amounts, amounts};
use crate::registry;
use crate::{AnyObject, Kind};

pub use check::{Change, Charge, QuotaError, check};
pub use claims::class as storage_class;
pub use devices::Devices;

/// Kinds that have a bare name in addition to `count/…`.
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
    /// By their number only.
    Count(Kind),
}

/// `count/pods`, `count/deployments.apps`.
pub fn count_name(kind: &Kind) -> String {
    format!("count/{}", kind.qualified())
}

/// Whether this is a kind's [`count_name`].
fn is_count_of(kind: &Kind, name: &str) -> bool {
    let rest = name
        .strip_prefix("count/")
        .and_then(|n| n.strip_prefix(kind.plural()));
    match (rest, kind.group()) {
        (Some(rest), "") => rest.is_empty(),
        (Some(rest), group) => rest.strip_prefix('.') == Some(group),
        (None, _) => false,
    }
}

/// The bare name under which a kind is counted, too.
fn alias(kind: &Kind) -> Option<&'static str> {
    ALIASES
        .iter()
        .find(|alias| kind.group().is_empty() && kind.plural() == **alias)
        .copied()
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
        if !kind.namespaced() || !kind.is_stored() || kind.plural() == "events" {
            return None;
        }
        Some(match (kind.group(), kind.plural()) {
            ("", "pods") => Evaluator::Pods,
            ("", "services") => Evaluator::Services,
            ("", "persistentvolumeclaims") => Evaluator::PersistentVolumeClaims,
            ("resource.k8s.io", "resourceclaims") => Evaluator::ResourceClaims,
            _ => Evaluator::Count(kind.clone()),
        })
    }

    /// Whether this is a resource that its objects use.
    pub fn counts(&self, name: &str) -> bool {
        match self {
            Evaluator::Pods => pods::counts(name),
            Evaluator::Services => services::NAMES.contains(&name),
            Evaluator::PersistentVolumeClaims => claims::counts(name),
            Evaluator::ResourceClaims => resource_claims::counts(name),
            Evaluator::Count(kind) => is_count_of(kind, name) || alias(kind) == Some(name),
        }
    }

    /// The usage of the object. `devices` matter for ResourceClaims only.
    pub fn usage(&self, object: &dyn AnyObject, now: Timestamp, devices: &Devices) -> Amounts {
        let any = object.as_any();
        let used = match self {
            Evaluator::Pods => any.downcast_ref::<Pod>().map(|p| pods::usage(p, now)),
            Evaluator::Services => any.downcast_ref::<Service>().map(services::usage),
            Evaluator::PersistentVolumeClaims => {
                any.downcast_ref::<PersistentVolumeClaim>().map(claims::usage)
            }
            Evaluator::ResourceClaims => any
                .downcast_ref::<ResourceClaim>()
                .map(|claim| resource_claims::usage(claim, now, devices)),
            Evaluator::Count(kind) => {
                let names = alias(kind)
                    .map(str::to_string)
                    .into_iter()
                    .chain([count_name(kind)]);
                Some(names.map(|name| (name, one())).collect())
            }
        };
        used.unwrap_or_default()
    }

    /// Whether the object is of every scope that the quota is for.
    fn in_scopes(&self, spec: &ResourceQuotaSpec, object: &dyn AnyObject) -> bool {
        let any = object.as_any();
        scopes(spec).iter().all(|scope| match self {
            Evaluator::Pods => any
                .downcast_ref::<Pod>()
                .is_some_and(|p| pods::matches_scope(p, scope)),
            Evaluator::PersistentVolumeClaims => any
                .downcast_ref::<PersistentVolumeClaim>()
                .is_some_and(|c| claims::matches_scope(c, scope)),
            _ => false,
        })
    }

    /// Whether a create, or a write of this subresource, can change the usage.
    pub fn may_change(&self, subresource: &str, creates: bool) -> bool {
        match self {
            _ if creates => subresource.is_empty(),
            Evaluator::Pods => matches!(subresource, "" | "resize"),
            Evaluator::PersistentVolumeClaims => matches!(subresource, "" | "status"),
            Evaluator::Services | Evaluator::ResourceClaims => subresource.is_empty(),
            Evaluator::Count(_) => false,
        }
    }

    /// Whether this write can change the usage. `old`: `None` for a creation.
    fn concerns(&self, subresource: &str, old: Option<&dyn AnyObject>, new: &dyn AnyObject) -> bool {
        self.may_change(subresource, old.is_none())
            && match (self, subresource, old) {
                // Other mutable fields of a pod's spec do not count.
                (Evaluator::Pods, "", Some(old)) => pods::has_deadline(old) != pods::has_deadline(new),
                _ => true,
            }
    }

    /// Whether this change can reduce usage, so that the quota controller has to count again.
    pub fn reduces_usage(&self, old: &dyn AnyObject, new: &dyn AnyObject) -> bool {
        let (was, is) = (old.as_any(), new.as_any());
        match self {
            Evaluator::Pods => match (was.downcast_ref(), is.downcast_ref()) {
                (Some(was), Some(is)) => pods::reduces_usage(was, is),
                _ => false,
            },
            Evaluator::Services => match (was.downcast_ref(), is.downcast_ref()) {
                (Some(was), Some(is)) => services::usage(was) != services::usage(is),
                _ => false,
            },
            Evaluator::PersistentVolumeClaims => match (was.downcast_ref(), is.downcast_ref()) {
                (Some(was), Some(is)) => claims::reduces_usage(was, is),
                _ => false,
            },
            _ => false,
        }
    }
}

/// All scopes of a quota, as selectors.
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

/// Whether the selector matches a name (`None`: the object has none). An invalid selector matches nothing.
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

/// The usage of a namespace for the limits of a quota. `objects` are those of the namespace, of each kind that counts for
/// it, and all DeviceClasses; a limit that no kind counts for is left out.
pub fn used<'k>(
    quota: &ResourceQuota,
    kinds: impl IntoIterator<Item = &'k Kind>,
    mut objects: impl FnMut(&Kind) -> Vec<std::sync::Arc<crate::Object>>,
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
        if counted.is_empty() || !seen.insert((kind.group(), kind.plural())) {
            continue;
        }
        for name in &counted {
            used.entry((*name).clone()).or_default();
        }
        let devices = match evaluator {
            Evaluator::ResourceClaims => Devices::new(&mut objects),
            _ => Devices::default(),
        };
        for object in objects(kind) {
            let object = object.typed();
            if evaluator.in_scopes(&spec, object) {
                let own = evaluator.usage(object, now, &devices);
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

/// Every built-in kind that a quota can count.
pub fn built_in<'k>() -> impl Iterator<Item = &'k Kind> {
    registry::ALL
        .iter()
        .copied()
        .filter(|kind| Evaluator::of(kind).is_some())
}
