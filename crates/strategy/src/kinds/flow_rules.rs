//! The rules for parts of FlowSchema and PriorityLevelConfiguration: subjects and resources of a rule, queuing, and the
//! conditions of a status.

use k8s_openapi::api::flowcontrol::v1::{
    LimitResponse, LimitedPriorityLevelConfiguration, NonResourcePolicyRule, PolicyRulesWithSubjects,
    QueuingConfiguration, ResourcePolicyRule, Subject,
};
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;

use super::checks::{dns_label, dns_subdomain, json, text};

const VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "proxy",
    "update",
    "watch",
];
const QUEUES_MAX: i32 = 10_000_000;
/// Number of bits of a flow's hash that shuffle sharding can use to choose queues.
const HASH_BITS: f64 = 60.0;

pub(super) fn rule(rule: &PolicyRulesWithSubjects, path: &Path, errors: &mut ErrorList) {
    let at = path.child("subjects");
    if rule.subjects.is_empty() {
        errors.required(&at, "subjects must contain at least one value");
    }
    for (i, of) in rule.subjects.iter().enumerate() {
        subject(of, &at.index(i), errors);
    }
    let resources = rule.resource_rules.as_deref().unwrap_or_default();
    let others = rule.non_resource_rules.as_deref().unwrap_or_default();
    if resources.is_empty() && others.is_empty() {
        errors.required(
            path,
            "at least one of resourceRules and nonResourceRules has to be non-empty",
        );
    }
    for (i, of) in resources.iter().enumerate() {
        resource_rule(of, &path.child("resourceRules").index(i), errors);
    }
    for (i, of) in others.iter().enumerate() {
        non_resource_rule(of, &path.child("nonResourceRules").index(i), errors);
    }
}

fn subject(subject: &Subject, path: &Path, errors: &mut ErrorList) {
    const KINDS: &[&str] = &["Group", "ServiceAccount", "User"];
    let kind = subject.kind.as_str();
    if !KINDS.contains(&kind) {
        return errors.not_supported_in_order(&path.child("kind"), kind, KINDS);
    }
    let given = [
        (
            "ServiceAccount",
            "serviceAccount",
            subject.service_account.is_some(),
        ),
        ("User", "user", subject.user.is_some()),
        ("Group", "group", subject.group.is_some()),
    ];
    for (of, field, is) in given {
        let at = path.child(field);
        if of == kind && !is {
            errors.required(&at, format!("{field} is required when subject kind is '{of}'"));
        } else if of != kind && is {
            errors.forbidden(
                &at,
                format!("{field} is forbidden when subject kind is not '{of}'"),
            );
        }
    }
    match kind {
        "ServiceAccount" => {
            let Some(account) = &subject.service_account else {
                return;
            };
            let path = path.child("serviceAccount");
            match account.name.as_str() {
                "" => errors.required(&path.child("name"), ""),
                "*" => {}
                name => dns_subdomain(errors, &path.child("name"), name),
            }
            match account.namespace.as_str() {
                "" => errors.required(
                    &path.child("namespace"),
                    "must specify namespace for service account",
                ),
                namespace => dns_label(errors, &path.child("namespace"), namespace),
            }
        }
        "User" => {
            if subject.user.as_ref().is_some_and(|u| u.name.is_empty()) {
                errors.required(&path.child("user").child("name"), "");
            }
        }
        _ => {
            if subject.group.as_ref().is_some_and(|g| g.name.is_empty()) {
                errors.required(&path.child("group").child("name"), "");
            }
        }
    }
}

fn has_all(list: &[String]) -> bool {
    list.iter().any(|item| item == "*")
}

fn verbs(verbs: &[String], path: &Path, errors: &mut ErrorList) {
    let at = path.child("verbs");
    if verbs.is_empty() {
        errors.required(&at, "verbs must contain at least one value");
    } else if has_all(verbs) {
        if verbs.len() > 1 {
            errors.invalid(
                &at,
                json(verbs),
                "if '*' is present, must not specify other verbs",
            );
        }
    } else if !verbs.iter().all(|verb| VERBS.contains(&verb.as_str())) {
        errors.not_supported_in_order(&at, json(verbs), VERBS);
    }
}

fn non_resource_rule(rule: &NonResourcePolicyRule, path: &Path, errors: &mut ErrorList) {
    verbs(&rule.verbs, path, errors);
    let urls = &rule.non_resource_urls;
    let at = path.child("nonResourceURLs");
    if urls.is_empty() {
        errors.required(&at, "nonResourceURLs must contain at least one value");
    } else if has_all(urls) {
        if urls.len() > 1 {
            let detail = "if '*' is present, must not specify other non-resource URLs";
            errors.invalid(&at, json(urls), detail);
        }
    } else {
        for (i, url) in urls.iter().enumerate() {
            if let Some(detail) = url_error(url) {
                errors.invalid(&at.index(i), url, detail);
            }
        }
    }
}

fn url_error(url: &str) -> Option<&'static str> {
    let stars = url.matches('*').count();
    if url.is_empty() {
        Some("must not be empty")
    } else if url == "/" {
        None
    } else if !url.starts_with('/') {
        Some("must start with slash")
    } else if url.contains(' ') {
        Some("must not contain white-space")
    } else if url.contains("//") {
        Some("must not contain double slash")
    } else if stars > 1 || (stars == 1 && !url.ends_with("/*")) {
        Some("wildcard can only do suffix matching")
    } else {
        None
    }
}

fn resource_rule(rule: &ResourcePolicyRule, path: &Path, errors: &mut ErrorList) {
    verbs(&rule.verbs, path, errors);
    for (field, list, required, others) in [
        (
            "apiGroups",
            &rule.api_groups,
            "resource rules must supply at least one api group",
            "if '*' is present, must not specify other api groups",
        ),
        (
            "resources",
            &rule.resources,
            "resource rules must supply at least one resource",
            "if '*' is present, must not specify other resources",
        ),
    ] {
        let at = path.child(field);
        if list.is_empty() {
            errors.required(&at, required);
        } else if list.len() > 1 && has_all(list) {
            errors.invalid(&at, json(list), others);
        }
    }
    let namespaces = rule.namespaces.as_deref().unwrap_or_default();
    let at = path.child("namespaces");
    if namespaces.is_empty() && rule.cluster_scope != Some(true) {
        errors.required(
            &at,
            "resource rules that are not cluster scoped must supply at least one namespace",
        );
    } else if has_all(namespaces) {
        if namespaces.len() > 1 {
            let detail = "if '*' is present, must not specify other namespaces";
            errors.invalid(&at, json(namespaces), detail);
        }
    } else {
        for (i, namespace) in namespaces.iter().enumerate() {
            for message in names::dns1123_label(namespace) {
                let detail = format!("each member of this list must be '*' or a DNS-1123 label; {message}");
                errors.invalid(&at.index(i), namespace, detail);
            }
        }
    }
}

/// Checks the concurrency shares and the lendable percentage of either type of priority level.
pub(super) fn shares(shares: Option<i32>, lendable: Option<i32>, path: &Path, errors: &mut ErrorList) {
    if let Some(shares) = shares.filter(|s| *s < 0) {
        let at = path.child("nominalConcurrencyShares");
        errors.invalid(&at, shares, "must be a non-negative integer");
    }
    if let Some(percent) = lendable.filter(|p| !(0..=100).contains(p)) {
        let at = path.child("lendablePercent");
        errors.invalid(&at, percent, "must be between 0 and 100, inclusive");
    }
}

pub(super) fn limited(limited: &LimitedPriorityLevelConfiguration, path: &Path, errors: &mut ErrorList) {
    shares(
        limited.nominal_concurrency_shares,
        limited.lendable_percent,
        path,
        errors,
    );
    if let Some(percent) = limited.borrowing_limit_percent.filter(|p| *p < 0) {
        let at = path.child("borrowingLimitPercent");
        errors.invalid(&at, percent, "if specified, must be a non-negative integer");
    }
    let none = LimitResponse::default();
    let response = limited.limit_response.as_ref().unwrap_or(&none);
    let path = path.child("limitResponse");
    match (response.type_.as_str(), &response.queuing) {
        ("Reject", Some(_)) => errors.forbidden(
            &path.child("queuing"),
            "must be nil if limited.limitResponse.type is not Limited",
        ),
        ("Reject", None) => {}
        ("Queue", None) => errors.required(
            &path.child("queuing"),
            "must not be empty if limited.limitResponse.type is Limited",
        ),
        ("Queue", Some(of)) => queuing(of, &path.child("queuing"), errors),
        (other, _) => errors.not_supported_in_order(&path.child("type"), other, &["Queue", "Reject"]),
    }
}

fn queuing(queuing: &QueuingConfiguration, path: &Path, errors: &mut ErrorList) {
    const POSITIVE: &str = "must be positive";
    let of = |value: Option<i32>| value.unwrap_or(0);
    let (queues, hand) = (of(queuing.queues), of(queuing.hand_size));
    let limit = of(queuing.queue_length_limit);
    if limit <= 0 {
        errors.invalid(&path.child("queueLengthLimit"), limit, POSITIVE);
    }
    let at = path.child("queues");
    if queues <= 0 {
        errors.invalid(&at, queues, POSITIVE);
    } else if queues > QUEUES_MAX {
        errors.invalid(&at, queues, format!("must not be greater than {QUEUES_MAX}"));
    }
    let at = path.child("handSize");
    let bits = (f64::from(queues).log2() * f64::from(hand)).ceil();
    if hand <= 0 {
        errors.invalid(&at, hand, POSITIVE);
    } else if hand > queues {
        errors.invalid(&at, hand, format!("should not be greater than queues ({queues})"));
    } else if bits > HASH_BITS {
        errors.invalid(
            &at,
            hand,
            format!(
                "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {HASH_BITS}"
            ),
        );
    }
}

/// Checks that each condition of a status has a type and that no type occurs twice.
pub(super) fn conditions<'a>(types: impl Iterator<Item = &'a Option<String>>, errors: &mut ErrorList) {
    let mut seen: Vec<&str> = Vec::new();
    for (i, of) in types.enumerate() {
        let at = Path::new("status").child("conditions").index(i).child("type");
        let of = text(of);
        if seen.contains(&of) {
            errors.duplicate(&at, of);
        }
        if of.is_empty() {
            errors.required(&at, "");
        }
        seen.push(of);
    }
}
