//! The rules of webhooks and admission policies: which operations on which resources they apply to.

use k8s_openapi::api::admissionregistration::v1::RuleWithOperations;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::json;
use crate::facts;

pub(super) fn check_rule(rule: &RuleWithOperations, path: &Path, errors: &mut ErrorList) {
    const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
    let lists = [
        ("operations", &rule.operations, "operations"),
        ("apiGroups", &rule.api_groups, "API groups"),
        ("apiVersions", &rule.api_versions, "API versions"),
    ];
    for (field, values, what) in lists {
        let values = values.as_deref().unwrap_or(&[]);
        let at = path.child(field);
        if values.is_empty() {
            errors.required(&at, "");
        }
        if values.len() > 1 && values.iter().any(|v| v == "*") {
            errors.invalid(
                &at,
                json(values),
                format!("if '*' is present, must not specify other {what}"),
            );
        }
        for (i, value) in values.iter().enumerate() {
            if field == "operations" && !OPERATIONS.contains(&value.as_str()) {
                errors.not_supported_in_order(&at.index(i), value, OPERATIONS);
            }
            if field == "apiVersions" && value.is_empty() {
                errors.required(&at.index(i), "");
            }
        }
    }
    let resources = rule.resources.as_deref().unwrap_or(&[]);
    let at = path.child("resources");
    if resources.is_empty() {
        errors.required(&at, "");
    }
    // Each subresource is compared with the wildcards before it.
    for (i, resource) in resources.iter().enumerate() {
        if resource.is_empty() {
            errors.required(&at.index(i), "");
        }
        let Some((of, subresource)) = resource.split_once('/') else {
            continue;
        };
        for wildcard in [format!("{of}/*"), format!("*/{subresource}")] {
            if resources[..i].contains(&wildcard) {
                errors.invalid(
                    &at.index(i),
                    resource,
                    format!("if '{wildcard}' is present, must not specify {resource}"),
                );
            }
        }
    }
    if resources.len() > 1 && resources.iter().any(|r| r == "*/*") {
        errors.invalid(
            &at,
            json(resources),
            "if '*/*' is present, must not specify other resources",
        );
    }
    // Only the last resource without a subresource is checked.
    let last = resources.iter().rfind(|r| !r.is_empty() && !r.contains('/'));
    if resources.iter().any(|r| r == "*") && last.is_some_and(|r| r != "*") {
        errors.invalid(
            &at,
            json(resources),
            "if '*' is present, must not specify other resources without subresources",
        );
    }
    facts::check(errors, path, rule, &["scope"]);
}
