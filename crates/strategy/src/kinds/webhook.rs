//! What validating and mutating webhooks have in common: client configuration, rules, match conditions.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, RuleWithOperations, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;

use super::admission_policy::check_conditions;
use super::admission_rule::check_rule;
use super::checks::{dns_subdomain, json, label_selector, port_number, text};

pub(super) const REVIEW_VERSIONS: &[&str] = &["v1", "v1beta1"];
const HTTPS_PORT: i32 = 443;
const TIMEOUT_SECONDS: i32 = 10;
const FORM: &str = "; desired format: https://host[/path]";

/// The fields that validating and mutating webhooks share.
pub struct Webhook<'a> {
    pub name: &'a str,
    pub client: &'a WebhookClientConfig,
    pub rules: &'a Option<Vec<RuleWithOperations>>,
    pub failure_policy: &'a Option<String>,
    pub match_policy: &'a Option<String>,
    pub side_effects: &'a str,
    pub timeout_seconds: Option<i32>,
    pub conditions: Option<&'a [MatchCondition]>,
    pub selectors: [(&'static str, &'a Option<LabelSelector>); 2],
    pub review_versions: &'a [String],
}

/// Makes a [`Webhook`] of a validating or mutating webhook.
macro_rules! hook {
    ($hook:expr) => {
        $crate::kinds::webhook::Webhook {
            name: &$hook.name,
            client: &$hook.client_config,
            rules: &$hook.rules,
            failure_policy: &$hook.failure_policy,
            match_policy: &$hook.match_policy,
            side_effects: &$hook.side_effects,
            timeout_seconds: $hook.timeout_seconds,
            conditions: $hook.match_conditions.as_deref(),
            selectors: [
                ("namespaceSelector", &$hook.namespace_selector),
                ("objectSelector", &$hook.object_selector),
            ],
            review_versions: &$hook.admission_review_versions,
        }
    };
}
pub(crate) use hook;

/// Sets the defaults that validating and mutating webhooks share.
macro_rules! webhook_defaults {
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
pub(crate) use webhook_defaults;

pub fn set_defaults(
    timeout_seconds: &mut Option<i32>,
    rules: &mut Option<Vec<RuleWithOperations>>,
    client: &mut WebhookClientConfig,
) {
    timeout_seconds.get_or_insert(TIMEOUT_SECONDS);
    for rule in rules.iter_mut().flatten() {
        rule.scope.get_or_insert_with(|| "*".into());
    }
    // Go's `omitempty` leaves out empty bytes.
    client.ca_bundle.take_if(|bundle| bundle.0.is_empty());
    if let Some(service) = &mut client.service {
        service.port.get_or_insert(HTTPS_PORT);
    }
}

/// Sets the defaults of the match resources of an admission policy.
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

/// Validates all webhooks of one configuration; names must be unique.
pub fn validate<'a>(hooks: impl Iterator<Item = Webhook<'a>>) -> ErrorList {
    let mut errors = ErrorList::new();
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

fn check_hook(hook: &Webhook<'_>, path: &Path, errors: &mut ErrorList) {
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

fn fully_qualified(name: &str, path: &Path, errors: &mut ErrorList) {
    if name.is_empty() {
        return errors.required(path, "");
    }
    let messages = names::dns1123_subdomain(name);
    if !messages.is_empty() {
        return errors.all_invalid(path, name, messages);
    }
    if name.split('.').count() < 3 {
        errors.invalid(
            path,
            name,
            "should be a domain with at least three segments separated by dots",
        );
    }
}

fn check_client(client: &WebhookClientConfig, path: &Path, errors: &mut ErrorList) {
    match (&client.url, &client.service) {
        (Some(url), None) => check_url(url, &path.child("url"), errors),
        (None, Some(service)) => {
            let service = ServiceTarget {
                name: &service.name,
                namespace: &service.namespace,
                port: service.port,
                path: text(&service.path),
            };
            check_service(&service, &path.child("service"), errors);
        }
        _ => errors.required(path, "exactly one of url or service is required"),
    }
}

/// The service of a webhook, as webhooks and the conversion of a CustomResourceDefinition refer to it.
pub(super) struct ServiceTarget<'a> {
    pub name: &'a str,
    pub namespace: &'a str,
    pub port: Option<i32>,
    /// The path of the URL.
    pub path: &'a str,
}

pub(super) fn check_service(service: &ServiceTarget<'_>, path: &Path, errors: &mut ErrorList) {
    // `ValidateWebhookService` gets the two in reverse order, so a missing one is reported under the other's name.
    for (field, value) in [("namespace", service.name), ("name", service.namespace)] {
        if value.is_empty() {
            errors.required(&path.child(field), "");
        }
    }
    let mut errs = ErrorList::new();
    let port = service.port.unwrap_or(0);
    port_number(&mut errs, &path.child("port"), port);
    for detail in &errs.iter().map(|e| e.detail.clone()).collect::<Vec<_>>() {
        errors.invalid(&path.child("port"), port, format!("port is not valid: {detail}"));
    }
    check_service_path(service.path, &path.child("path"), errors);
}

fn check_service_path(value: &str, path: &Path, errors: &mut ErrorList) {
    match value {
        "" | "/" => return,
        "//" => return errors.invalid(path, value, "segment[0] may not be empty"),
        _ => {}
    }
    if !value.starts_with('/') {
        errors.invalid(path, value, "must start with a '/'");
    }
    // The first character is never part of a segment.
    let mut segments = value.chars();
    segments.next();
    let segments = segments.as_str();
    let segments = segments.strip_suffix('/').unwrap_or(segments);
    for (i, segment) in segments.split('/').enumerate() {
        if segment.is_empty() {
            errors.invalid(path, value, format!("segment[{i}] may not be empty"));
            continue;
        }
        let mut errs = ErrorList::new();
        dns_subdomain(&mut errs, path, segment);
        for error in errs {
            errors.invalid(path, value, format!("segment[{i}]: {}", error.detail));
        }
    }
}

pub(super) fn check_url(url: &str, path: &Path, errors: &mut ErrorList) {
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

fn review_versions(versions: &[String], path: &Path, errors: &mut ErrorList) {
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
    errors: &mut ErrorList,
) {
    for (i, version) in versions.iter().enumerate() {
        if versions[..i].contains(version) {
            errors.invalid(&path.index(i), version, "duplicate version");
            continue;
        }
        errors.all_invalid(&path.index(i), version.as_str(), names::dns1035_label(version));
    }
    if must_be_known && !versions.iter().any(|v| REVIEW_VERSIONS.contains(&v.as_str())) {
        errors.invalid(
            path,
            json(versions),
            format!("must include at least one of {}", REVIEW_VERSIONS.join(", ")),
        );
    }
}
