//! Comparison of PolicyRules for escalation checks (pkg/registry/rbac/validation), and the messages for missing rules.

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::PolicyRule;
use knarr_api::k8s_openapi;

const ALL: &str = "*";

fn list(values: &Option<Vec<String>>) -> &[String] {
    values.as_deref().unwrap_or_default()
}

fn one(value: &str) -> Option<Vec<String>> {
    Some(vec![value.to_string()])
}

/// The rules of cluster administrators.
pub(super) fn all_rules() -> [PolicyRule; 2] {
    let all = || Some(vec!["*".to_string()]);
    [
        PolicyRule {
            api_groups: all(),
            resources: all(),
            verbs: vec!["*".into()],
            ..PolicyRule::default()
        },
        PolicyRule {
            non_resource_urls: all(),
            verbs: vec!["*".into()],
            ..PolicyRule::default()
        },
    ]
}

/// Splits a rule into rules with one verb on one resource or path each (BreakdownRule).
pub(super) fn breakdown_rule(rule: &PolicyRule) -> Vec<PolicyRule> {
    let mut parts = Vec::new();
    for group in list(&rule.api_groups) {
        for resource in list(&rule.resources) {
            for verb in &rule.verbs {
                let part = |names| PolicyRule {
                    api_groups: one(group),
                    resources: one(resource),
                    verbs: vec![verb.clone()],
                    resource_names: names,
                    ..PolicyRule::default()
                };
                match list(&rule.resource_names) {
                    [] => parts.push(part(None)),
                    names => parts.extend(names.iter().map(|n| part(one(n)))),
                }
            }
        }
    }
    for url in list(&rule.non_resource_urls) {
        for verb in &rule.verbs {
            parts.push(PolicyRule {
                non_resource_urls: one(url),
                verbs: vec![verb.clone()],
                ..PolicyRule::default()
            });
        }
    }
    parts
}

/// The rules of `requested`, broken down, that no rule of `owned` covers (Covers).
pub(super) fn uncovered(owned: &[PolicyRule], requested: &[PolicyRule]) -> Vec<PolicyRule> {
    requested
        .iter()
        .flat_map(breakdown_rule)
        .filter(|part| !owned.iter().any(|rule| covers(rule, part)))
        .collect()
}

/// Whether `owner` allows everything that the broken-down rule `part` allows (ruleCovers).
pub(super) fn covers(owner: &PolicyRule, part: &PolicyRule) -> bool {
    let all = |set: &[String], requested: &[String]| {
        set.iter().any(|s| s == ALL) || requested.iter().all(|w| set.contains(w))
    };
    let resources = list(&owner.resources);
    let resource = |requested: &String| {
        resources.contains(requested)
            || requested
                .split_once('/')
                .is_some_and(|(_, sub)| resources.contains(&format!("*/{sub}")))
    };
    let url = |requested: &String| {
        list(&owner.non_resource_urls).iter().any(|own| {
            own == requested || (own.ends_with(ALL) && requested.starts_with(own.trim_end_matches(ALL)))
        })
    };
    let names = list(&owner.resource_names);
    let named = match list(&part.resource_names) {
        [] => names.is_empty(),
        requested => names.is_empty() || requested.iter().all(|w| names.contains(w)),
    };
    all(&owner.verbs, &part.verbs)
        && all(list(&owner.api_groups), list(&part.api_groups))
        && (resources.iter().any(|r| r == ALL) || list(&part.resources).iter().all(resource))
        && list(&part.non_resource_urls).iter().all(url)
        && named
}

/// Joins the rules of one resource into one with all verbs, for messages (CompactRules).
pub(super) fn compact_rules(rules: Vec<PolicyRule>) -> Vec<PolicyRule> {
    let mut out: Vec<PolicyRule> = Vec::new();
    for rule in rules {
        let simple = |r: &PolicyRule| {
            list(&r.api_groups).len() == 1
                && list(&r.resources).len() == 1
                && list(&r.resource_names).len() <= 1
                && list(&r.non_resource_urls).is_empty()
        };
        let same = |other: &PolicyRule| {
            simple(other)
                && other.api_groups == rule.api_groups
                && other.resources == rule.resources
                && other.resource_names == rule.resource_names
        };
        match out.iter_mut().find(|other| simple(&rule) && same(other)) {
            Some(other) => other.verbs.extend(rule.verbs),
            None => out.push(rule),
        }
    }
    out
}

/// One line per rule, sorted and without duplicates.
pub(super) fn describe_rules(rules: &[PolicyRule]) -> String {
    let lines: BTreeSet<String> = rules.iter().map(line).collect();
    lines.into_iter().collect::<Vec<_>>().join("\n")
}

/// A rule as kube-apiserver prints it in error messages (CompactString).
fn line(rule: &PolicyRule) -> String {
    let parts: Vec<String> = [
        ("APIGroups", list(&rule.api_groups)),
        ("Resources", list(&rule.resources)),
        ("NonResourceURLs", list(&rule.non_resource_urls)),
        ("ResourceNames", list(&rule.resource_names)),
        ("Verbs", &rule.verbs),
    ]
    .iter()
    .filter(|(_, values)| !values.is_empty())
    .map(|(name, values)| format!("{name}:{}", quoted(values)))
    .collect();
    format!("{{{}}}", parts.join(", "))
}

/// A list as Go prints it with `%q`.
pub(super) fn quoted(values: &[String]) -> String {
    let all: Vec<String> = values.iter().map(|v| format!("{v:?}")).collect();
    format!("[{}]", all.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(
        groups: &[&str],
        resources: &[&str],
        names: &[&str],
        urls: &[&str],
        verbs: &[&str],
    ) -> PolicyRule {
        let some = |v: &[&str]| (!v.is_empty()).then(|| v.iter().map(ToString::to_string).collect());
        PolicyRule {
            api_groups: some(groups),
            resources: some(resources),
            resource_names: some(names),
            non_resource_urls: some(urls),
            verbs: verbs.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn rules_that_no_owned_rule_covers_are_uncovered() {
        let own = [
            rule(&[""], &["pods", "*/scale"], &[], &[], &["get", "list"]),
            rule(&["apps"], &["*"], &[], &[], &["*"]),
            rule(&[""], &["secrets"], &["a"], &[], &["get"]),
            rule(&[], &[], &[], &["/healthz/*"], &["get"]),
        ];
        for (requested, expected) in [
            (rule(&[""], &["pods"], &[], &[], &["get", "list"]), ""),
            (rule(&[""], &["pods"], &["x"], &[], &["get"]), ""),
            (
                rule(&[""], &["replicationcontrollers/scale"], &[], &[], &["get"]),
                "",
            ),
            (rule(&["apps"], &["x", "y/z"], &[], &[], &["escalate"]), ""),
            (rule(&[""], &["secrets"], &["a"], &[], &["get"]), ""),
            (rule(&[], &[], &[], &["/healthz/ping"], &["get"]), ""),
            (
                rule(&[""], &["secrets"], &[], &[], &["get"]),
                r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}"#,
            ),
            (
                rule(&[""], &["secrets"], &["a", "b"], &[], &["get"]),
                r#"{APIGroups:[""], Resources:["secrets"], ResourceNames:["b"], Verbs:["get"]}"#,
            ),
            (
                rule(&["", "apps"], &["pods"], &[], &[], &["get", "delete", "create"]),
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["delete" "create"]}"#,
            ),
            (
                rule(&["*"], &["*"], &[], &[], &["*"]),
                r#"{APIGroups:["*"], Resources:["*"], Verbs:["*"]}"#,
            ),
            (
                rule(&[], &[], &[], &["/metrics"], &["get"]),
                r#"{NonResourceURLs:["/metrics"], Verbs:["get"]}"#,
            ),
        ] {
            let found = describe_rules(&compact_rules(uncovered(&own, std::slice::from_ref(&requested))));
            assert_eq!(found, expected, "{requested:?}");
        }
    }
}
