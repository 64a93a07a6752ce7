//! RBAC: roles and bindings out of the cache.

use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use knarr_api::{k8s_openapi, registry};

use super::Attributes;
use crate::cache::Cache;
use crate::user::User;

pub(super) fn allows(cache: &Cache, user: &User, request: &Attributes<'_>) -> bool {
    let covers = |rules: &[PolicyRule]| rules.iter().any(|r| rule_covers(r, request));
    let mut allowed = false;
    if let Ok(bindings) = cache.of(&registry::CLUSTER_ROLE_BINDING) {
        bindings.scan("", "", |object| {
            if let Some(b) = object.get::<ClusterRoleBinding>()
                && is_bound(b.subjects.as_deref(), user, "")
            {
                allowed = with_rules(cache, "", &b.role_ref, covers);
            }
            !allowed
        });
    }
    if allowed || request.namespace.is_empty() || request.resource.is_empty() {
        return allowed;
    }
    if let Ok(bindings) = cache.of(&registry::ROLE_BINDING) {
        bindings.scan(request.namespace, "", |object| {
            if let Some(b) = object.get::<RoleBinding>()
                && is_bound(b.subjects.as_deref(), user, request.namespace)
            {
                allowed = with_rules(cache, request.namespace, &b.role_ref, covers);
            }
            !allowed
        });
    }
    allowed
}

fn with_rules(
    cache: &Cache,
    namespace: &str,
    role: &RoleRef,
    covers: impl Fn(&[PolicyRule]) -> bool,
) -> bool {
    if role.kind == "Role" {
        cache.get(&registry::ROLE, namespace, &role.name).and_then(|o| {
            o.get::<Role>()
                .map(|r| covers(r.rules.as_deref().unwrap_or_default()))
        })
    } else {
        cache.get(&registry::CLUSTER_ROLE, "", &role.name).and_then(|o| {
            o.get::<ClusterRole>()
                .map(|r| covers(r.rules.as_deref().unwrap_or_default()))
        })
    }
    .unwrap_or(false)
}

fn is_bound(subjects: Option<&[Subject]>, user: &User, binding_namespace: &str) -> bool {
    subjects
        .unwrap_or_default()
        .iter()
        .any(|s| match s.kind.as_str() {
            "User" => s.name == user.name,
            "Group" => user.is_in(&s.name),
            "ServiceAccount" => {
                let namespace = s
                    .namespace
                    .as_deref()
                    .filter(|n| !n.is_empty())
                    .unwrap_or(binding_namespace);
                user.name
                    .strip_prefix("system:serviceaccount:")
                    .and_then(|rest| rest.split_once(':'))
                    == Some((namespace, s.name.as_str()))
            }
            _ => false,
        })
}

fn rule_covers(rule: &PolicyRule, request: &Attributes<'_>) -> bool {
    let has = |list: &Option<Vec<String>>, value: &str| list.iter().flatten().any(|v| v == "*" || v == value);
    if !rule.verbs.iter().any(|v| v == "*" || v == request.verb) {
        return false;
    }
    if request.resource.is_empty() {
        return rule.non_resource_urls.iter().flatten().any(|url| {
            url == request.path
                || url
                    .strip_suffix('*')
                    .is_some_and(|prefix| request.path.starts_with(prefix))
        });
    }
    let resource = request.qualified_resource();
    has(&rule.api_groups, request.group)
        && rule.resources.iter().flatten().any(|r| {
            r == "*"
                || *r == resource
                || r.strip_prefix("*/")
                    .is_some_and(|sub| !sub.is_empty() && sub == request.subresource)
        })
        && rule
            .resource_names
            .as_ref()
            .is_none_or(|names| names.is_empty() || names.iter().any(|n| n == request.name))
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
        let list = |v: &[&str]| Some(v.iter().map(ToString::to_string).collect());
        PolicyRule {
            api_groups: list(groups),
            resources: list(resources),
            resource_names: list(names),
            non_resource_urls: list(urls),
            verbs: verbs.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn a_rule_covers_what_it_names() {
        let read_pods = rule(&[""], &["pods", "*/scale"], &[], &[], &["get"]);
        let one = rule(&["apps"], &["deployments"], &["web"], &[], &["*"]);
        let health = rule(&[], &[], &[], &["/healthz", "/api/*"], &["get"]);
        let ask = |verb, group, resource, subresource, name, path| Attributes {
            verb,
            group,
            resource,
            subresource,
            namespace: "a",
            name,
            path,
            field_selector: "",
        };
        let table = [
            (&read_pods, ask("get", "", "pods", "", "p", ""), true),
            (&read_pods, ask("get", "", "pods", "log", "p", ""), false),
            (
                &read_pods,
                ask("get", "", "replicationcontrollers", "scale", "p", ""),
                true,
            ),
            (&read_pods, ask("list", "", "pods", "", "", ""), false),
            (&read_pods, ask("get", "apps", "pods", "", "p", ""), false),
            (&one, ask("delete", "apps", "deployments", "", "web", ""), true),
            (&one, ask("delete", "apps", "deployments", "", "db", ""), false),
            (&health, ask("get", "", "", "", "", "/healthz"), true),
            (&health, ask("get", "", "", "", "", "/api/v1"), true),
            (&health, ask("get", "", "", "", "", "/metrics"), false),
        ];
        for (rule, request, expected) in table {
            assert_eq!(rule_covers(rule, &request), expected, "{request:?}");
        }
    }

    #[test]
    fn service_accounts_are_bound_by_namespace_and_name() {
        let subject = |namespace: Option<&str>| Subject {
            kind: "ServiceAccount".into(),
            name: "sa".into(),
            namespace: namespace.map(Into::into),
            api_group: None,
        };
        let user = User::service_account("a", "sa", "");
        assert!(is_bound(Some(&[subject(Some("a"))]), &user, ""));
        assert!(is_bound(Some(&[subject(None)]), &user, "a"));
        assert!(!is_bound(Some(&[subject(Some("b"))]), &user, "a"));
    }
}
