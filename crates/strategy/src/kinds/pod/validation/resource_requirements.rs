//! Requests and limits of containers and pods, and claims on devices.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::kinds::pod::resources::{
    Amounts, RequirementKind, aggregate_containers, amounts, is_extended, is_hugepages, is_native,
    is_overcommit_allowed, is_supported_pod_level_resource,
};
use knarr_api::well_known::MIRROR_ANNOTATION;
use knarr_apimachinery::field::{Cause, ErrorList, FieldError, Path};
use knarr_apimachinery::names;
use knarr_apimachinery::quantity::Quantity;

use super::{EMPTY_PATH, text};
use crate::kinds::pod::internal;

/// Standard resource names without a domain, in addition to huge pages.
const STANDARD: [&str; 20] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
];
/// The standard resources whose quantity must be an integer.
const COUNTED: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

/// Validates a resource name: qualified, and a standard one if it has no domain.
pub fn validate_resource_name(name: &str, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    errors.all_invalid(path, name, names::qualified_name(name));
    let known = STANDARD.contains(&name) || is_hugepages(name) || name.starts_with("requests.hugepages-");
    if errors.is_empty() && !name.contains('/') && !known {
        errors.invalid(path, name, "must be a standard resource type or fully qualified");
    }
    errors
}

/// `ValidateContainerResourceName`: checks that containers can request a resource of this name.
pub(crate) fn container_resource_name(name: &str, path: &Path, errors: &mut ErrorList) {
    errors.extend(validate_resource_name(name, path));
    if !name.contains('/') {
        if !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !is_hugepages(name) {
            errors.invalid(path, name, "must be a standard resource for containers");
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.invalid(path, name, "doesn't follow extended resource name standard");
    }
}

fn pod_resource_name(name: &str, path: &Path, errors: &mut ErrorList) {
    let errs = validate_resource_name(name, path);
    if errs.is_empty() && !is_supported_pod_level_resource(name) {
        errors.not_supported(path, name, &["cpu", "hugepages-", "memory"]);
    }
    errors.extend(errs);
}

/// Validates a quantity of a resource: not negative, and an integer if the resource is counted in objects.
pub fn validate_resource_quantity(name: &str, amount: &Wire, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    quantity(name, amount, path, &mut errors);
    errors
}

pub(super) fn quantity(name: &str, wire: &Wire, path: &Path, errors: &mut ErrorList) {
    let amount = match Quantity::of(wire) {
        Ok(amount) => amount,
        Err(detail) => return errors.invalid(path, &wire.0, detail),
    };
    if amount.is_negative() {
        errors.invalid(path, &wire.0, "must be greater than or equal to 0");
    }
    if (COUNTED.contains(&name) || is_extended(name)) && amount.milli_value() % 1000 != 0 {
        errors.invalid(path, &wire.0, "must be an integer");
    }
}

/// Checks that a quantity of huge pages is a multiple of the page size.
fn whole_hugepages(name: &str, wire: &Wire, path: &Path, errors: &mut ErrorList) {
    let Some(page) = name.strip_prefix("hugepages-") else {
        return;
    };
    let valid = match (Quantity::parse(page), Quantity::of(wire)) {
        (Ok(page), Ok(amount)) => {
            page > Quantity::default()
                && page.milli_value() % 1000 == 0
                && amount.value() % page.value().max(1) == 0
        }
        _ => false,
    };
    if !valid {
        errors.invalid(
            path,
            &wire.0,
            format!("{} is not positive integer multiple of {name}", wire.0),
        );
    }
}

pub(in crate::kinds) fn container(
    resources: &ResourceRequirements,
    claims: &BTreeSet<&str>,
    path: &Path,
    errors: &mut ErrorList,
) {
    requirements(resources, container_resource_name, claims, path, errors);
}

pub(super) fn overhead(spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    if let Some(overhead) = &spec.overhead {
        let resources = ResourceRequirements {
            limits: Some(overhead.clone()),
            ..ResourceRequirements::default()
        };
        container(&resources, &BTreeSet::new(), path, errors);
    }
}

fn requirements(
    resources: &ResourceRequirements,
    check_name: fn(&str, &Path, &mut ErrorList),
    claims: &BTreeSet<&str>,
    path: &Path,
    errors: &mut ErrorList,
) {
    let empty = BTreeMap::new();
    let limits = resources.limits.as_ref().unwrap_or(&empty);
    let requests = resources.requests.as_ref().unwrap_or(&empty);
    let (limits_at, requests_at) = (path.child("limits"), path.child("requests"));
    for (list, at) in [(limits, &limits_at), (requests, &requests_at)] {
        for (name, amount) in list {
            let at = at.key(name);
            check_name(name, &at, errors);
            quantity(name, amount, &at, errors);
            whole_hugepages(name, amount, &at, errors);
        }
    }
    let exact_limits = amounts(resources.limits.as_ref());
    for (name, amount) in amounts(resources.requests.as_ref()) {
        let shown = requests.get(&name).map_or("", |q| q.0.as_str());
        match exact_limits.get(&name) {
            Some(limit) => {
                let limit_shown = limits.get(&name).map_or("", |q| q.0.as_str());
                if amount != *limit && !is_overcommit_allowed(&name) {
                    errors.invalid(
                        &requests_at,
                        shown,
                        format!("must be equal to {name} limit of {limit_shown}"),
                    );
                } else if amount > *limit {
                    errors.invalid(
                        &requests_at,
                        shown,
                        format!("must be less than or equal to {name} limit of {limit_shown}"),
                    );
                }
            }
            None if !is_overcommit_allowed(&name) => {
                errors.required(&limits_at, "Limit must be set for non overcommitable resources");
            }
            None => {}
        }
    }
    let all = || limits.keys().chain(requests.keys());
    if all().any(|name| is_hugepages(name)) && !all().any(|name| matches!(name.as_str(), "cpu" | "memory")) {
        errors.forbidden(path, "HugePages require cpu or memory");
    }
    claim_references(resources, claims, &path.child("claims"), errors);
}

/// Checks the claims of a container: each must be a claim of its pod and is listed once.
fn claim_references(
    resources: &ResourceRequirements,
    claims: &BTreeSet<&str>,
    path: &Path,
    errors: &mut ErrorList,
) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for (i, claim) in resources.claims.iter().flatten().enumerate() {
        let (at, name) = (path.index(i), claim.name.as_str());
        if name.is_empty() {
            errors.required(&at, "");
            continue;
        }
        let request = text(&claim.request);
        if seen.contains(name) {
            errors.duplicate(&at, name);
        } else if request.is_empty() {
            let part = format!("{name}/");
            for _ in seen.iter().filter(|key| key.starts_with(&part)) {
                errors.duplicate(&at, name);
            }
            seen.insert(name.to_string());
        } else {
            errors.all_invalid(&at.child("request"), request, names::dns1123_label(request));
            let key = format!("{name}/{request}");
            if seen.contains(&key) {
                errors.duplicate(&at, &key);
            }
            seen.insert(key);
        }
        if !claims.contains(name) {
            let known: Vec<&str> = claims.iter().copied().collect();
            let known = if known.is_empty() {
                " which is empty".to_string()
            } else {
                format!(": {}", known.join(", "))
            };
            errors.not_found_because(
                &at,
                name,
                format!("must be one of the names in pod.spec.resourceClaims{known}"),
            );
        }
    }
}

/// Validates `spec.resourceClaims` and returns the names.
pub(super) fn pod_claims<'a>(
    spec: &'a PodSpec,
    meta: Option<&ObjectMeta>,
    path: &Path,
    errors: &mut ErrorList,
) -> BTreeSet<&'a str> {
    let is_static = meta
        .and_then(|m| m.annotations.as_ref())
        .is_some_and(|a| a.contains_key(MIRROR_ANNOTATION));
    let mut seen = BTreeSet::new();
    for (i, claim) in spec.resource_claims.iter().flatten().enumerate() {
        let at = path.index(i);
        if is_static {
            errors.forbidden(
                &Path::new(EMPTY_PATH),
                "static pods do not support resource claims",
            );
            continue;
        }
        let name = claim.name.as_str();
        if name.is_empty() {
            errors.required(&at.child("name"), "");
        } else if seen.contains(name) {
            errors.duplicate(&at.child("name"), name);
        } else {
            errors.all_invalid(&at.child("name"), name, names::dns1123_label(name));
            seen.insert(name);
        }
        let sources = [
            ("resourceClaimName", &claim.resource_claim_name),
            ("resourceClaimTemplateName", &claim.resource_claim_template_name),
        ];
        let detail = match sources.iter().filter(|(_, name)| name.is_some()).count() {
            0 => "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            1 => "",
            _ => "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
        };
        if !detail.is_empty() {
            errors.push(FieldError {
                cause: Cause::Invalid,
                field: at.to_string(),
                value: Some(internal::json("PodResourceClaim", claim)),
                detail: detail.into(),
            });
        }
        for (field, name) in sources {
            if let Some(name) = name {
                errors.all_invalid(&at.child(field), name, names::dns1123_subdomain(name));
            }
        }
    }
    spec.resource_claims
        .iter()
        .flatten()
        .map(|c| c.name.as_str())
        .filter(|name| !name.is_empty())
        .collect()
}

/// Validates pod-level resources: valid by themselves, and not less than the aggregate of the containers.
pub(super) fn pod_level(spec: &PodSpec, claims: &BTreeSet<&str>, path: &Path, errors: &mut ErrorList) {
    let Some(resources) = &spec.resources else {
        return;
    };
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return errors.forbidden(path, "may not be set for a windows pod");
    }
    if resources.claims.is_some() {
        errors.forbidden(
            &path.child("claims"),
            "claims may not be set for Resources at pod-level",
        );
    }
    requirements(resources, pod_resource_name, claims, path, errors);
    let (requests, limits) = (
        amounts(resources.requests.as_ref()),
        amounts(resources.limits.as_ref()),
    );
    let below = |own: &Amounts, name: &str, sum: Quantity| own.get(name).copied().filter(|own| *own < sum);
    for (name, sum) in aggregate_containers(spec, RequirementKind::Requests) {
        if let Some(own) = below(&requests, &name, sum) {
            errors.invalid(
                &path.child("requests").key(&name),
                own.to_string(),
                format!("must be greater than or equal to aggregate container requests of {sum}"),
            );
        }
    }
    for (name, sum) in aggregate_containers(spec, RequirementKind::Limits)
        .into_iter()
        .filter(|(name, _)| is_hugepages(name))
    {
        if let Some(own) = below(&limits, &name, sum) {
            errors.invalid(
                &path.child("limits").key(&name),
                own.to_string(),
                format!("must be greater than or equal to aggregate container limits of {sum}"),
            );
        }
    }
    for (i, container) in spec.containers.iter().enumerate() {
        let own = container.resources.as_ref().and_then(|r| r.limits.as_ref());
        for (name, limit) in amounts(own) {
            if let Some(of_pod) = below(&limits, &name, limit) {
                errors.invalid(
                    &path.child("containers").index(i).key(&name).child("limits"),
                    limit.to_string(),
                    format!("must be less than or equal to pod limits of {of_pod}"),
                );
            }
        }
    }
}
