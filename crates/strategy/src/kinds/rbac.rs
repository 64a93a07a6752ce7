//! What the four kinds of RBAC share: rules, role references, subjects.

use k8s_openapi::api::rbac::v1::{PolicyRule, RoleRef, Subject};
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;

use super::checks::{Json, dns_subdomain, json, text};
use crate::table::{Cell, Column};

pub const GROUP: &str = "rbac.authorization.k8s.io";

pub fn validate_rules(rules: Option<&[PolicyRule]>, namespaced: bool) -> ErrorList {
    let mut errors = ErrorList::new();
    let given = |list: &Option<Vec<String>>| list.as_ref().is_some_and(|l| !l.is_empty());
    for (i, rule) in rules.unwrap_or_default().iter().enumerate() {
        let path = Path::new("rules").index(i);
        if rule.verbs.is_empty() {
            errors.required(&path.child("verbs"), "verbs must contain at least one value");
        }
        if given(&rule.non_resource_urls) {
            let at = path.child("nonResourceURLs");
            let urls = || json(&rule.non_resource_urls);
            if namespaced {
                errors.invalid(&at, urls(), "namespaced rules cannot apply to non-resource URLs");
            }
            if given(&rule.api_groups) || given(&rule.resources) || given(&rule.resource_names) {
                errors.invalid(
                    &at,
                    urls(),
                    "rules cannot apply to both regular resources and non-resource URLs",
                );
            }
            continue;
        }
        if !given(&rule.api_groups) {
            errors.required(
                &path.child("apiGroups"),
                "resource rules must supply at least one api group",
            );
        }
        if !given(&rule.resources) {
            errors.required(
                &path.child("resources"),
                "resource rules must supply at least one resource",
            );
        }
    }
    errors
}

/// Defaults of a binding.
pub fn set_defaults(role: &mut RoleRef, subjects: &mut Option<Vec<Subject>>) {
    if text(&role.api_group).is_empty() {
        role.api_group = Some(GROUP.into());
    }
    for subject in subjects.iter_mut().flatten() {
        if text(&subject.api_group).is_empty() && matches!(subject.kind.as_str(), "User" | "Group") {
            subject.api_group = Some(GROUP.into());
        }
    }
}

/// Validates a binding. `kinds` are the kinds of roles that a binding of this scope may refer to.
pub fn validate_binding(
    role: &RoleRef,
    subjects: Option<&[Subject]>,
    namespaced: bool,
    kinds: &[&str],
) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("roleRef");
    if text(&role.api_group) != GROUP {
        errors.not_supported_in_order(&path.child("apiGroup"), text(&role.api_group), &[GROUP]);
    }
    if !kinds.contains(&role.kind.as_str()) {
        errors.not_supported_in_order(&path.child("kind"), &role.kind, kinds);
    }
    super::ingress::path_segment_name(&mut errors, &path.child("name"), &role.name);
    for (i, subject) in subjects.unwrap_or_default().iter().enumerate() {
        check_subject(subject, namespaced, &Path::new("subjects").index(i), &mut errors);
    }
    errors
}

fn check_subject(subject: &Subject, namespaced: bool, path: &Path, errors: &mut ErrorList) {
    if subject.name.is_empty() {
        errors.required(&path.child("name"), "");
    }
    let group = text(&subject.api_group);
    match subject.kind.as_str() {
        "ServiceAccount" => {
            if !subject.name.is_empty() {
                dns_subdomain(errors, &path.child("name"), &subject.name);
            }
            if !group.is_empty() {
                errors.not_supported_in_order(&path.child("apiGroup"), group, &[""]);
            }
            if !namespaced && text(&subject.namespace).is_empty() {
                errors.required(&path.child("namespace"), "");
            }
        }
        "User" | "Group" => {
            if group != GROUP {
                errors.not_supported_in_order(&path.child("apiGroup"), group, &[GROUP]);
            }
        }
        other => {
            errors.not_supported_in_order(&path.child("kind"), other, &["ServiceAccount", "User", "Group"])
        }
    }
}

/// Checks that `roleRef` did not change: a binding to another role must be a new binding.
pub fn validate_role_ref_update(new: &RoleRef, old: &RoleRef, errors: &mut ErrorList) {
    if new != old {
        let shown = format!(
            r#"{{"APIGroup":{},"Kind":{},"Name":{}}}"#,
            json(text(&new.api_group)).0,
            json(&new.kind).0,
            json(&new.name).0
        );
        errors.invalid(&Path::new("roleRef"), Json(shown), "cannot change roleRef");
    }
}

/// Names of these kinds must only be valid path segments.
pub fn validate_name(name: &str) -> Vec<String> {
    names::path_segment(name)
}

pub const BINDING_COLUMNS: &[Column] = &[
    crate::table::NAME,
    Column::string("Role"),
    crate::table::AGE,
    Column::string("Users").wide(),
    Column::string("Groups").wide(),
    Column::string("ServiceAccounts").wide(),
];

/// The cells for the role and for the names of users, groups and service accounts.
pub fn binding_cells(role: &RoleRef, subjects: Option<&[Subject]>) -> [Cell; 4] {
    let of = |kind: &str| -> String {
        let subjects = subjects.unwrap_or_default().iter().filter(|s| s.kind == kind);
        let names: Vec<String> = subjects
            .map(|s| match (kind, &s.namespace) {
                ("ServiceAccount", Some(namespace)) if !namespace.is_empty() => {
                    format!("{namespace}/{}", s.name)
                }
                _ => s.name.clone(),
            })
            .collect();
        names.join(", ")
    };
    [
        format!("{}/{}", role.kind, role.name).into(),
        of("User").into(),
        of("Group").into(),
        of("ServiceAccount").into(),
    ]
}
