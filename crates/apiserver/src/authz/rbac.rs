//! The RBAC authorizer: roles and bindings from the cache.

use std::fmt::{self, Display, Formatter};

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use knarr_api::{Kind, k8s_openapi, registry};
use knarr_apimachinery::Error;
use knarr_apimachinery::error::ResourceRef;

use super::cluster_bindings::ClusterBindings;
use super::{Attributes, Decision};
use crate::cache::Cache;
use crate::user::User;

/// The sources of roles and bindings.
#[derive(Clone, Copy)]
pub(super) struct RuleResolver<'a> {
    pub cache: &'a Cache,
    pub cluster: &'a ClusterBindings,
}

pub(super) fn allows(resolver: RuleResolver<'_>, user: &User, request: &Attributes<'_>) -> bool {
    let mut allowed = false;
    visit_rules_for(resolver, user, request.namespace, &mut |_, rules| {
        allowed = rules
            .iter()
            .flat_map(|r| r.iter())
            .any(|r| rule_covers(r, request));
        !allowed
    });
    allowed
}

/// Like [`allows`], with the binding that allows the request, or the roles that do not exist.
pub(super) fn explain(resolver: RuleResolver<'_>, user: &User, request: &Attributes<'_>) -> Decision {
    let mut decision = Decision::default();
    let mut missing: Vec<String> = Vec::new();
    visit_rules_for(resolver, user, request.namespace, &mut |source, rules| {
        match rules {
            Some(rules) if rules.iter().any(|r| rule_covers(r, request)) => {
                decision = Decision {
                    allowed: true,
                    reason: format!("RBAC: allowed by {source}"),
                };
            }
            Some(_) => {}
            None => {
                let role = source.role;
                // In the singular, as in the errors of kube-apiserver's listers.
                let kind = role_kind(role);
                let error = Error::not_found(ResourceRef {
                    group: kind.group(),
                    resource: kind.singular(),
                    name: &role.name,
                });
                if !missing.iter().any(|m| m == error.message()) {
                    missing.push(error.message().to_string());
                }
            }
        }
        !decision.allowed
    });
    if !decision.allowed && !missing.is_empty() {
        decision.reason = match missing.as_slice() {
            [one] => format!("RBAC: {one}"),
            many => format!("RBAC: [{}]", many.join(", ")),
        };
    }
    decision
}

/// All rules of this user in this namespace; only those of ClusterRoleBindings if `namespace` is empty.
pub(super) fn rules_for(resolver: RuleResolver<'_>, user: &User, namespace: &str) -> Vec<PolicyRule> {
    let mut all = Vec::new();
    visit_rules_for(resolver, user, namespace, &mut |_, rules| {
        all.extend(rules.unwrap_or_default().iter().cloned());
        true
    });
    all
}

/// A binding with the subject that matches the user.
struct BindingSource<'a> {
    /// The namespace of a RoleBinding; `None` for a ClusterRoleBinding.
    namespace: Option<&'a str>,
    name: &'a str,
    role: &'a RoleRef,
    subject: &'a Subject,
}

impl Display for BindingSource<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.namespace {
            None => write!(f, "ClusterRoleBinding {:?}", self.name)?,
            Some(namespace) => write!(f, "RoleBinding {:?}", format!("{}/{namespace}", self.name))?,
        }
        write!(
            f,
            " of {} {:?} to {} ",
            self.role.kind, self.role.name, self.subject.kind
        )?;
        let own = self.subject.namespace.as_deref().filter(|n| !n.is_empty());
        match (self.subject.kind.as_str(), own.or(self.namespace)) {
            ("ServiceAccount", Some(namespace)) => {
                write!(f, "{:?}", format!("{}/{namespace}", self.subject.name))
            }
            _ => write!(f, "{:?}", self.subject.name),
        }
    }
}

/// Calls `visitor` with the role of every binding of the user, `None` if the role does not exist, until it returns false
/// (VisitRulesFor).
fn visit_rules_for(
    resolver: RuleResolver<'_>,
    user: &User,
    namespace: &str,
    visitor: &mut dyn FnMut(&BindingSource<'_>, Option<&[PolicyRule]>) -> bool,
) {
    let RuleResolver { cache, cluster } = resolver;
    let mut proceed = true;
    for binding in cluster.current(cache).of(user) {
        let Some(subject) = matching_subject(Some(binding.subjects()), user, "") else {
            continue;
        };
        let source = BindingSource {
            namespace: None,
            name: &binding.name,
            role: &binding.role,
            subject,
        };
        proceed = visit_binding(cache, "", &source, visitor);
        if !proceed {
            break;
        }
    }
    if !proceed || namespace.is_empty() {
        return;
    }
    if let Ok(bindings) = cache.of(&registry::ROLE_BINDING) {
        bindings.scan(namespace, "", |object| {
            if let Some(b) = object.get::<RoleBinding>()
                && let Some(subject) = matching_subject(b.subjects.as_deref(), user, namespace)
            {
                let source = BindingSource {
                    namespace: Some(namespace),
                    name: object.name(),
                    role: &b.role_ref,
                    subject,
                };
                proceed = visit_binding(cache, namespace, &source, visitor);
            }
            proceed
        });
    }
}

fn visit_binding(
    cache: &Cache,
    namespace: &str,
    source: &BindingSource<'_>,
    visitor: &mut dyn FnMut(&BindingSource<'_>, Option<&[PolicyRule]>) -> bool,
) -> bool {
    with_rules(cache, namespace, source.role, |rules| {
        visitor(source, Some(rules))
    })
    .unwrap_or_else(|| visitor(source, None))
}

/// The rules of a role, if it exists.
pub(super) fn role_rules(cache: &Cache, namespace: &str, role: &RoleRef) -> Option<Vec<PolicyRule>> {
    with_rules(cache, namespace, role, <[PolicyRule]>::to_vec)
}

/// Role or ClusterRole.
pub(super) fn role_kind(role: &RoleRef) -> &'static Kind {
    if role.kind == "Role" {
        &registry::ROLE
    } else {
        &registry::CLUSTER_ROLE
    }
}

fn with_rules<T>(
    cache: &Cache,
    namespace: &str,
    role: &RoleRef,
    with: impl FnOnce(&[PolicyRule]) -> T,
) -> Option<T> {
    let kind = role_kind(role);
    let namespace = if kind.namespaced() { namespace } else { "" };
    let object = cache.get(kind, namespace, &role.name)?;
    let rules = match object.get::<Role>() {
        Some(role) => &role.rules,
        None => &object.get::<ClusterRole>()?.rules,
    };
    Some(with(rules.as_deref().unwrap_or_default()))
}

/// The first subject that matches the user (appliesTo).
fn matching_subject<'a>(
    subjects: Option<&'a [Subject]>,
    user: &User,
    binding_namespace: &str,
) -> Option<&'a Subject> {
    subjects
        .unwrap_or_default()
        .iter()
        .find(|s| match s.kind.as_str() {
            "User" => s.name == user.name,
            "Group" => user.is_in(&s.name),
            "ServiceAccount" => {
                let namespace = s
                    .namespace
                    .as_deref()
                    .filter(|n| !n.is_empty())
                    .unwrap_or(binding_namespace);
                user.as_service_account() == Some((namespace, s.name.as_str()))
            }
            _ => false,
        })
}

pub(super) fn rule_covers(rule: &PolicyRule, request: &Attributes<'_>) -> bool {
    let has = |list: &Option<Vec<String>>, value: &str| list.iter().flatten().any(|v| v == "*" || v == value);
    if !rule.verbs.iter().any(|v| v == "*" || v == request.verb) {
        return false;
    }
    if let Some(path) = request.path {
        return rule.non_resource_urls.iter().flatten().any(|url| {
            url == path
                || url
                    .strip_suffix('*')
                    .is_some_and(|prefix| path.starts_with(prefix))
        });
    }
    has(&rule.api_groups, request.group)
        && rule
            .resources
            .iter()
            .flatten()
            .any(|r| resource_covers(r, request))
        && rule
            .resource_names
            .as_ref()
            .is_none_or(|names| names.is_empty() || names.iter().any(|n| n == request.name))
}

/// Whether a rule's resource, such as `pods`, `pods/log`, `*/scale` or `*`, matches the request's.
fn resource_covers(resource: &str, request: &Attributes<'_>) -> bool {
    match resource.split_once('/') {
        None => resource == "*" || (request.subresource.is_empty() && resource == request.resource),
        Some((of, subresource)) => {
            !subresource.is_empty()
                && subresource == request.subresource
                && (of == "*" || of == request.resource)
        }
    }
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
        let ask = |verb, group, resource, subresource, name, path: &'static str| Attributes {
            verb,
            group,
            resource,
            subresource,
            namespace: "a",
            name,
            path: Some(path).filter(|p| !p.is_empty()),
            ..Attributes::default()
        };
        let everything = rule(&["*"], &["*"], &[], &["*"], &["*"]);
        let paths = rule(&[], &[], &[], &["*"], &["*"]);
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
            // A resource request with an empty resource name is still a resource request.
            (&everything, ask("get", "", "", "", "", ""), true),
            (&paths, ask("get", "", "", "", "", ""), false),
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
        assert!(matching_subject(Some(&[subject(Some("a"))]), &user, "").is_some());
        assert!(matching_subject(Some(&[subject(None)]), &user, "a").is_some());
        assert!(matching_subject(Some(&[subject(Some("b"))]), &user, "a").is_none());
    }
}
