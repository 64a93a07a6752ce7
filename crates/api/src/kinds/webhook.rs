//! What validating and mutating webhooks have in common: how they are reached, when they are called.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, RuleWithOperations, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::admission_policy::check_conditions;
use super::checks::{dns_subdomain, each, json, label_selector, port_number, text};
use crate::field::{Errors, Path};
use crate::names;

pub(super) const REVIEW_VERSIONS: &[&str] = &["v1", "v1beta1"];
const HTTPS_PORT: i32 = 443;
const TIMEOUT_SECONDS: i32 = 10;
const FORM: &str = "; desired format: https://host[/path]";

/// The fields of a webhook that both kinds have.
pub struct Hook<'a> {
    pub name: &'a str,
    pub client: &'a WebhookClientConfig,
    pub rules: &'a Option<Vec<RuleWithOperations>>,
    pub failure_policy: &'a Option<String>,
    pub match_policy: &'a Option<String>,
    pub side_effects: &'a str,
    pub timeout_seconds: Option<i32>,
    pub conditions: &'a Option<Vec<MatchCondition>>,
    pub selectors: [(&'static str, &'a Option<LabelSelector>); 2],
    pub review_versions: &'a [String],
}

/// Makes a [`Hook`] of either kind's webhook.
macro_rules! hook {
    ($hook:expr) => {
        $crate::kinds::webhook::Hook {
            name: &$hook.name,
            client: &$hook.client_config,
            rules: &$hook.rules,
            failure_policy: &$hook.failure_policy,
            match_policy: &$hook.match_policy,
            side_effects: &$hook.side_effects,
            timeout_seconds: $hook.timeout_seconds,
            conditions: &$hook.match_conditions,
            selectors: [
                ("namespaceSelector", &$hook.namespace_selector),
                ("objectSelector", &$hook.object_selector),
            ],
            review_versions: &$hook.admission_review_versions,
        }
    };
}
pub(crate) use hook;

/// Defaults that both kinds' webhooks have.
macro_rules! hook_defaults {
    ($hook:expr) => {
        $hook.failure_policy.get_or_insert_with(|| "Fail".into());
        $hook.match_policy.get_or_insert_with(|| "Equivalent".into());
        $hook.namespace_selector.get_or_insert_default();
        $hook.object_selector.get_or_insert_default();
        $crate::kinds::webhook::set_defaults(
            &mut $hook.timeout_seconds,
            &mut $hook.rules,
            &mut $hook.client_config,
        );
    };
}
pub(crate) use hook_defaults;

pub fn set_defaults(
    timeout_seconds: &mut Option<i32>,
    rules: &mut Option<Vec<RuleWithOperations>>,
    client: &mut WebhookClientConfig,
) {
    timeout_seconds.get_or_insert(TIMEOUT_SECONDS);
    for rule in rules.iter_mut().flatten() {
        rule.scope.get_or_insert_with(|| "*".into());
    }
    // As Go leaves out bytes of none.
    client.ca_bundle.take_if(|bundle| bundle.0.is_empty());
    if let Some(service) = &mut client.service {
        service.port.get_or_insert(HTTPS_PORT);
    }
}

/// Defaults of what an admission policy matches.
pub fn set_match_defaults(resources: &mut MatchResources) {
    resources.match_policy.get_or_insert_with(|| "Equivalent".into());
    resources.namespace_selector.get_or_insert_default();
    resources.object_selector.get_or_insert_default();
    for rules in [
        &mut resources.resource_rules,
        &mut resources.exclude_resource_rules,
    ] {
        for rule in rules.iter_mut().flatten() {
            rule.scope.get_or_insert_with(|| "*".into());
        }
    }
}

/// All webhooks of one configuration; names must differ.
pub fn validate<'a>(hooks: impl Iterator<Item = Hook<'a>>) -> Errors {
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    for (i, hook) in hooks.enumerate() {
        let path = Path::new("webhooks").index(i);
        check_hook(&hook, &path, &mut errors);
        if !hook.name.is_empty() && !seen.insert(hook.name.to_string()) {
            errors.duplicate(&path.child("name"), hook.name);
        }
    }
    errors
}

fn check_hook(hook: &Hook<'_>, path: &Path, errors: &mut Errors) {
    fully_qualified(hook.name, &path.child("name"), errors);
    for (i, rule) in hook.rules.iter().flatten().enumerate() {
        check_rule(rule, &path.child("rules").index(i), errors);
    }
    let mut one_of = |field: &str, value: &str, supported: &[&str]| {
        if !supported.contains(&value) {
            errors.not_supported_in_order(&path.child(field), value, supported);
        }
    };
    if let Some(policy) = hook.failure_policy {
        one_of("failurePolicy", policy, &["Fail", "Ignore"]);
    }
    if let Some(policy) = hook.match_policy {
        one_of("matchPolicy", policy, &["Equivalent", "Exact"]);
    }
    if hook.side_effects.is_empty() {
        errors.required(
            &path.child("sideEffects"),
            "must specify one of None, NoneOnDryRun",
        );
    } else {
        one_of("sideEffects", hook.side_effects, &["None", "NoneOnDryRun"]);
    }
    if let Some(seconds) = hook.timeout_seconds
        && !(1..=30).contains(&seconds)
    {
        errors.invalid(
            &path.child("timeoutSeconds"),
            seconds,
            "the timeout value must be between 1 and 30 seconds",
        );
    }
    for (field, selector) in hook.selectors {
        if let Some(selector) = selector {
            label_selector(errors, &path.child(field), selector);
        }
    }
    check_client(hook.client, &path.child("clientConfig"), errors);
    check_conditions(hook.conditions, false, path, errors);
    review_versions(
        hook.review_versions,
        &path.child("admissionReviewVersions"),
        errors,
    );
}

fn fully_qualified(name: &str, path: &Path, errors: &mut Errors) {
    if name.is_empty() {
        return errors.required(path, "");
    }
    let mistakes = names::dns1123_subdomain(name);
    if !mistakes.is_empty() {
        return each(errors, path, name, mistakes);
    }
    if name.split('.').count() < 3 {
        errors.invalid(
            path,
            name,
            "should be a domain with at least three segments separated by dots",
        );
    }
}

pub(super) fn check_rule(rule: &RuleWithOperations, path: &Path, errors: &mut Errors) {
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
    // Each subresource with the wildcards before it.
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
    // Only the last one without a subresource counts.
    let last = resources.iter().rfind(|r| !r.is_empty() && !r.contains('/'));
    if resources.iter().any(|r| r == "*") && last.is_some_and(|r| r != "*") {
        errors.invalid(
            &at,
            json(resources),
            "if '*' is present, must not specify other resources without subresources",
        );
    }
    const SCOPES: &[&str] = &["*", "Cluster", "Namespaced"];
    if let Some(scope) = &rule.scope
        && !SCOPES.contains(&scope.as_str())
    {
        errors.not_supported_in_order(&path.child("scope"), scope, SCOPES);
    }
}

fn check_client(client: &WebhookClientConfig, path: &Path, errors: &mut Errors) {
    match (&client.url, &client.service) {
        (Some(url), None) => check_url(url, &path.child("url"), errors),
        (None, Some(service)) => {
            let names = (service.name.as_str(), service.namespace.as_str());
            let served = (service.port, text(&service.path));
            check_service(names, served, &path.child("service"), errors);
        }
        _ => errors.required(path, "exactly one of url or service is required"),
    }
}

pub(super) fn check_service(
    (name, namespace): (&str, &str),
    (port, url_path): (Option<i32>, &str),
    path: &Path,
    errors: &mut Errors,
) {
    // `ValidateWebhookService` is given the two the other way round, and names the one that is there.
    for (field, value) in [("namespace", name), ("name", namespace)] {
        if value.is_empty() {
            errors.required(&path.child(field), "");
        }
    }
    let mut mistakes = Errors::new();
    let port = port.unwrap_or(0);
    port_number(&mut mistakes, &path.child("port"), port);
    for mistake in &mistakes.iter().map(|m| m.detail.clone()).collect::<Vec<_>>() {
        errors.invalid(&path.child("port"), port, format!("port is not valid: {mistake}"));
    }
    check_service_path(url_path, &path.child("path"), errors);
}

fn check_service_path(value: &str, path: &Path, errors: &mut Errors) {
    match value {
        "" | "/" => return,
        "//" => return errors.invalid(path, value, "segment[0] may not be empty"),
        _ => {}
    }
    if !value.starts_with('/') {
        errors.invalid(path, value, "must start with a '/'");
    }
    // Whatever the first character is, it is not part of a segment.
    let mut segments = value.chars();
    segments.next();
    let segments = segments.as_str();
    let segments = segments.strip_suffix('/').unwrap_or(segments);
    for (i, segment) in segments.split('/').enumerate() {
        if segment.is_empty() {
            errors.invalid(path, value, format!("segment[{i}] may not be empty"));
            continue;
        }
        let mut mistakes = Errors::new();
        dns_subdomain(&mut mistakes, path, segment);
        for mistake in mistakes {
            errors.invalid(path, value, format!("segment[{i}]: {}", mistake.detail));
        }
    }
}

pub(super) fn check_url(url: &str, path: &Path, errors: &mut Errors) {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    if scheme != "https" {
        errors.invalid(
            path,
            scheme,
            format!("'https' is the only allowed URL scheme{FORM}"),
        );
    }
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = match scheme {
        "" => "",
        _ => rest.split('/').next().unwrap_or(""),
    };
    let (user, host) = authority
        .rsplit_once('@')
        .map_or((None, authority), |(u, h)| (Some(u), h));
    if host.is_empty() {
        errors.invalid(path, host, format!("host must be specified{FORM}"));
    }
    if let Some(user) = user {
        errors.invalid(path, user, "user information is not permitted in the URL");
    }
    if !fragment.is_empty() {
        errors.invalid(path, fragment, "fragments are not permitted in the URL");
    }
    if !query.is_empty() {
        errors.invalid(path, query, "query parameters are not permitted in the URL");
    }
}

fn review_versions(versions: &[String], path: &Path, errors: &mut Errors) {
    if versions.is_empty() {
        let accepted = REVIEW_VERSIONS.join(", ");
        return errors.required(path, format!("must specify one of {accepted}"));
    }
    check_review_versions(versions, true, path, errors);
}

pub(super) fn check_review_versions(
    versions: &[String],
    must_be_known: bool,
    path: &Path,
    errors: &mut Errors,
) {
    for (i, version) in versions.iter().enumerate() {
        if versions[..i].contains(version) {
            errors.invalid(&path.index(i), version, "duplicate version");
            continue;
        }
        each(
            errors,
            &path.index(i),
            version.as_str(),
            names::dns1035_label(version),
        );
    }
    if must_be_known && !versions.iter().any(|v| REVIEW_VERSIONS.contains(&v.as_str())) {
        errors.invalid(
            path,
            json(versions),
            format!("must include at least one of {}", REVIEW_VERSIONS.join(", ")),
        );
    }
}
