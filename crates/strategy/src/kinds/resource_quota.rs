//! ResourceQuota: limits on the resources and objects of a namespace, for all of its pods or those in a scope.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus};
use k8s_openapi::jiff::Timestamp;
use knarr_api::kinds::pod::resources::is_extended;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::quantity;

use super::checks::{Json, json, json_list, not_negative_quantity, quantity_of};
use super::pod::validate_resource_name;
use crate::table::{self, Cell, Column};
use crate::{Part, Strategy};

/// Objects whose quota is named by the resource alone, without `count/` and group.
const COUNTED: &[&str] = &[
    "pods",
    "services",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];
const COMPUTE: &[&str] = &[
    "cpu",
    "memory",
    "requests.cpu",
    "requests.memory",
    "limits.cpu",
    "limits.memory",
];
const SCOPES: &[&str] = &[
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];
const CONFLICTING_SCOPES: &[[&str; 2]] =
    &[["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]];

/// Whether a resource name without a domain is a standard one.
pub(super) fn is_standard(name: &str) -> bool {
    COUNTED.contains(&name)
        || COMPUTE.contains(&name)
        || matches!(
            name,
            "storage"
                | "requests.storage"
                | "ephemeral-storage"
                | "requests.ephemeral-storage"
                | "limits.ephemeral-storage"
        )
        || name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-")
}

/// Whether a standard resource can be limited by a quota.
fn is_for_quota(name: &str) -> bool {
    is_standard(name) && name != "storage"
}

fn scope_supports(scope: &str, resource: &str) -> bool {
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => matches!(resource, "persistentvolumeclaims" | "requests.storage"),
        _ => resource == "pods" || COMPUTE.contains(&resource),
    }
}

impl Strategy for ResourceQuota {
    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        let status = self.status.get_or_insert_default();
        for amounts in [&mut spec.hard, &mut status.hard, &mut status.used] {
            amounts
                .iter_mut()
                .flatten()
                .for_each(|(_, q)| quantity::canonicalize(q));
        }
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(ResourceQuotaStatus::default());
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        match part {
            Part::Status => self.spec = old.spec.clone(),
            Part::Main | Part::Other(_) => self.status = old.status.clone(),
        }
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let spec = self.spec.clone().unwrap_or_default();
        let path = Path::new("spec");
        for (name, amount) in spec.hard.iter().flatten() {
            amount_of(name, amount, &path.child("hard").key(name), &mut errors);
        }
        scopes(&spec, &mut errors);
        scope_selector(&spec, &mut errors);
        errors
    }

    fn validate_update(&self, old: &Self, part: Part) -> ErrorList {
        let mut errors = ErrorList::new();
        if part == Part::Status {
            let status = self.status.clone().unwrap_or_default();
            for (field, amounts) in [("hard", status.hard), ("used", status.used)] {
                for (name, amount) in amounts.iter().flatten() {
                    let path = Path::new("status").child(field).key(name);
                    amount_of(name, amount, &path, &mut errors);
                }
            }
            return errors;
        }
        errors = self.validate();
        let scopes = |q: &ResourceQuota| q.spec.as_ref().and_then(|s| s.scopes.clone()).unwrap_or_default();
        let set = |q: &ResourceQuota| BTreeSet::from_iter(scopes(q));
        if set(self) != set(old) {
            let path = Path::new("spec").child("scopes");
            errors.invalid(&path, json_list(&scopes(self)), "field is immutable");
        }
        errors
    }

    fn warnings(&self) -> Vec<String> {
        let hard = self.spec.as_ref().and_then(|s| s.hard.as_ref());
        let Some(hard) = hard else {
            return Vec::new();
        };
        let amount = |name: &str| Some((name.to_string(), quantity::Quantity::of(hard.get(name)?).ok()?));
        let warnings = ["cpu", "memory", "storage", "ephemeral-storage"]
            .into_iter()
            .filter_map(|name| {
                let bare = || matches!(name, "cpu" | "memory").then(|| amount(name)).flatten();
                let (request, requested) = amount(&format!("requests.{name}")).or_else(bare)?;
                let (limit, limited) = amount(&format!("limits.{name}"))?;
                (requested > limited).then(|| {
                    let (requested, limited) = (requested.to_wire().0, limited.to_wire().0);
                    format!("ResourceQuota {request} ({requested}) should be less than {limit} ({limited})")
                })
            });
        warnings.collect()
    }

    fn warnings_on_update(&self, _old: &Self) -> Vec<String> {
        Vec::new()
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Request"),
            Column::string("Limit"),
            table::AGE,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let status = self.status.clone().unwrap_or_default();
        let used = status.used.unwrap_or_default();
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        for (name, hard) in status.hard.iter().flatten() {
            let used = used.get(name).map_or("0", |q| q.0.as_str());
            let text = format!("{name}: {used}/{}", hard.0);
            if name.starts_with("limits.") {
                limits.push(text);
            } else {
                requests.push(text);
            }
        }
        vec![
            table::name(&self.metadata),
            requests.join(", ").into(),
            limits.join(", ").into(),
            table::created(&self.metadata, now),
        ]
    }
}

fn amount_of(
    name: &str,
    amount: &k8s_openapi::apimachinery::pkg::api::resource::Quantity,
    path: &Path,
    errors: &mut ErrorList,
) {
    errors.extend(validate_resource_name(name, path));
    if !name.contains('/') && !is_for_quota(name) {
        errors.invalid(path, name, "must be a standard resource for quota");
    }
    not_negative_quantity(errors, path, amount);
    let counted = COUNTED.contains(&name) || is_extended(name);
    if counted && quantity_of(amount).is_some_and(|q| q.milli_value() % 1000 != 0) {
        errors.invalid(path, json(amount), "must be an integer");
    }
}

fn hard(spec: &ResourceQuotaSpec) -> impl Iterator<Item = &str> {
    spec.hard.iter().flatten().map(|(name, _)| name.as_str())
}

fn scopes(spec: &ResourceQuotaSpec, errors: &mut ErrorList) {
    let path = Path::new("spec").child("scopes");
    let scopes = spec.scopes.as_deref().unwrap_or(&[]);
    for scope in scopes {
        if !SCOPES.contains(&scope.as_str()) {
            errors.invalid(&path, json(scopes), "unsupported scope");
        }
        for resource in hard(spec).filter(|r| is_for_quota(r)) {
            if SCOPES.contains(&scope.as_str()) && !scope_supports(scope, resource) {
                errors.invalid(&path, json(scopes), "unsupported scope applied to resource");
            }
        }
    }
    if conflict(scopes.iter().map(String::as_str)) {
        errors.invalid(&path, json(scopes), "conflicting scopes");
    }
}

fn conflict<'a>(scopes: impl Iterator<Item = &'a str>) -> bool {
    let scopes: BTreeSet<&str> = scopes.collect();
    let has_both = |pair: &[&str; 2]| pair.iter().all(|scope| scopes.contains(scope));
    CONFLICTING_SCOPES.iter().any(has_both)
}

fn scope_selector(spec: &ResourceQuotaSpec, errors: &mut ErrorList) {
    let Some(selector) = &spec.scope_selector else {
        return;
    };
    let path = Path::new("spec").child("scopeSelector").child("matchExpressions");
    let terms = selector.match_expressions.as_deref().unwrap_or(&[]);
    let shown = || {
        let terms: Vec<String> = terms
            .iter()
            .map(|t| {
                format!(
                    r#"{{"ScopeName":{},"Operator":{},"Values":{}}}"#,
                    json(&t.scope_name).0,
                    json(&t.operator).0,
                    json(&t.values).0
                )
            })
            .collect();
        Json(format!(r#"{{"MatchExpressions":[{}]}}"#, terms.join(",")))
    };
    for term in terms {
        let scope = term.scope_name.as_str();
        let values = term.values.as_deref().unwrap_or(&[]);
        let known = SCOPES.contains(&scope);
        if !known {
            errors.invalid(&path.child("scopeName"), scope, "unsupported scope");
        }
        for resource in hard(spec).filter(|r| is_for_quota(r)) {
            if known && !scope_supports(scope, resource) {
                errors.invalid(&path, shown(), "unsupported scope applied to resource");
            }
        }
        if known && !matches!(scope, "PriorityClass" | "VolumeAttributesClass") && term.operator != "Exists" {
            errors.invalid(
                &path.child("operator"),
                &term.operator,
                "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, \
                 ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or \
                 ResourceQuotaScopeCrossNamespacePodAffinity",
            );
        }
        match term.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => errors.required(
                &path.child("values"),
                "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
            ),
            "In" | "NotIn" => {}
            "Exists" | "DoesNotExist" if !values.is_empty() => errors.invalid(
                &path.child("values"),
                json(values),
                "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
            ),
            "Exists" | "DoesNotExist" => {}
            other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
        }
    }
    if conflict(terms.iter().map(|t| t.scope_name.as_str())) {
        errors.invalid(
            &path,
            json_list(spec.scopes.as_deref().unwrap_or(&[])),
            "conflicting scopes",
        );
    }
}
