//! The audit policy (`audit.k8s.io/v1`): which requests are recorded, and how much of them.

use serde::Deserialize;

use crate::request::RequestInfo;
use crate::user::User;

/// How much of a request is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Level {
    #[default]
    None,
    Metadata,
    Request,
    RequestResponse,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Level::None => "None",
            Level::Metadata => "Metadata",
            Level::Request => "Request",
            Level::RequestResponse => "RequestResponse",
        }
    }
}

/// When an event is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Stage {
    RequestReceived,
    ResponseStarted,
    ResponseComplete,
    Panic,
}

impl Stage {
    pub fn name(self) -> &'static str {
        match self {
            Stage::RequestReceived => "RequestReceived",
            Stage::ResponseStarted => "ResponseStarted",
            Stage::ResponseComplete => "ResponseComplete",
            Stage::Panic => "Panic",
        }
    }
}

/// An audit policy file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Policy {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    #[allow(dead_code, reason = "allowed, and of no meaning here")]
    metadata: serde_json::Value,
    #[serde(default)]
    rules: Vec<Rule>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    #[serde(default)]
    omit_managed_fields: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    level: Level,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<Resources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    #[serde(default)]
    omit_managed_fields: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Resources {
    #[serde(default)]
    group: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
}

/// What is recorded of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    pub level: Level,
    pub omit_stages: Vec<Stage>,
    pub omit_managed_fields: bool,
}

impl Policy {
    /// Parses a policy. All errors are returned at once, each with its field path.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        let policy: Policy = serde_saphyr::from_str(text).map_err(|e| vec![e.to_string()])?;
        let mut errors = Vec::new();
        if (policy.api_version.as_str(), policy.kind.as_str()) != ("audit.k8s.io/v1", "Policy") {
            errors.push(format!(
                "{}, Kind={}: expected audit.k8s.io/v1, Kind=Policy",
                policy.api_version, policy.kind
            ));
        }
        if policy.rules.is_empty() {
            errors.push("rules: Required value: a policy without rules writes nothing".into());
        }
        for (i, rule) in policy.rules.iter().enumerate() {
            if !rule.non_resource_urls.is_empty()
                && (!rule.resources.is_empty() || !rule.namespaces.is_empty())
            {
                errors.push(format!(
                    "rules[{i}].nonResourceURLs: Invalid value: rules cannot apply to both regular resources and non-resource URLs"
                ));
            }
            for (j, url) in rule.non_resource_urls.iter().enumerate() {
                let star = url.find('*');
                if *url != "*" && (!url.starts_with('/') || star.is_some_and(|at| at + 1 != url.len())) {
                    errors.push(format!(
                        "rules[{i}].nonResourceURLs[{j}]: Invalid value: {url:?}: expected a path that begins with '/', with '*' at most at its end"
                    ));
                }
            }
            for (j, resources) in rule.resources.iter().enumerate() {
                if !resources.resource_names.is_empty() && resources.resources.is_empty() {
                    errors.push(format!(
                        "rules[{i}].resources[{j}].resourceNames: Invalid value: using resourceNames requires at least one resource"
                    ));
                }
            }
        }
        if errors.is_empty() {
            Ok(policy)
        } else {
            Err(errors)
        }
    }

    /// The decision of the first rule that matches the request; level None if no rule does.
    pub fn decide(&self, user: &User, info: &RequestInfo) -> Decision {
        let Some(rule) = self.rules.iter().find(|r| r.matches(user, info)) else {
            return Decision::default();
        };
        Decision {
            level: rule.level,
            omit_stages: [&self.omit_stages[..], &rule.omit_stages[..]].concat(),
            omit_managed_fields: rule.omit_managed_fields.unwrap_or(self.omit_managed_fields),
        }
    }
}

impl Rule {
    fn matches(&self, user: &User, info: &RequestInfo) -> bool {
        let who = (self.users.is_empty() || self.users.contains(&user.name))
            && (self.user_groups.is_empty() || self.user_groups.iter().any(|g| user.is_in(g)));
        let verb = self.verbs.is_empty() || self.verbs.iter().any(|v| v == info.verb);
        if !who || !verb {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return info.is_resource && self.matches_resource(info);
        }
        if !self.non_resource_urls.is_empty() {
            return !info.is_resource
                && self
                    .non_resource_urls
                    .iter()
                    .any(|url| match url.strip_suffix('*') {
                        Some(prefix) => info.path.starts_with(prefix),
                        None => info.path == *url,
                    });
        }
        true
    }

    fn matches_resource(&self, info: &RequestInfo) -> bool {
        if !self.namespaces.is_empty() && !self.namespaces.contains(&info.namespace) {
            return false;
        }
        let resource = info.qualified_resource();
        let named = |pattern: &String| {
            pattern == "*"
                || *pattern == resource
                || pattern
                    .strip_prefix("*/")
                    .is_some_and(|sub| sub == info.subresource)
                || pattern.strip_suffix("/*").is_some_and(|of| of == info.resource)
        };
        self.resources.is_empty()
            || self.resources.iter().any(|r| {
                r.group == info.group
                    && (r.resources.is_empty() || r.resources.iter().any(named))
                    && (r.resource_names.is_empty() || r.resource_names.contains(&info.name))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: [system:kube-proxy]
- level: None
  nonResourceURLs: ['/healthz*', /version]
- level: Metadata
  resources:
  - {group: '', resources: [secrets, 'serviceaccounts/*'], resourceNames: []}
- level: Request
  verbs: [patch]
  namespaces: [prod]
  omitManagedFields: true
- level: RequestResponse
  resources: [{group: apps}]
  omitStages: [ResponseStarted]
- level: Metadata
  userGroups: [ops]
";

    #[test]
    fn the_first_rule_that_fits_decides() {
        let policy = Policy::parse(POLICY).unwrap();
        let level = |user: &str, groups: &[&str], method: &str, path: &str| {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let info = RequestInfo::parse(&method, path, false);
            policy
                .decide(&User::new(user, groups.iter().copied()), &info)
                .level
        };
        for (user, groups, method, path, expected) in [
            (
                "system:kube-proxy",
                &[][..],
                "GET",
                "/api/v1/secrets",
                Level::None,
            ),
            ("ann", &[], "GET", "/healthz/ping", Level::None),
            ("ann", &[], "GET", "/api/v1/secrets", Level::Metadata),
            (
                "ann",
                &[],
                "POST",
                "/api/v1/namespaces/a/serviceaccounts/b/token",
                Level::Metadata,
            ),
            (
                "ann",
                &[],
                "GET",
                "/api/v1/namespaces/a/serviceaccounts/b",
                Level::Metadata,
            ),
            (
                "ann",
                &[],
                "PATCH",
                "/api/v1/namespaces/prod/pods/p",
                Level::Request,
            ),
            ("ann", &[], "PATCH", "/api/v1/namespaces/test/pods/p", Level::None),
            (
                "ann",
                &[],
                "GET",
                "/apis/apps/v1/deployments",
                Level::RequestResponse,
            ),
            ("ann", &["ops"], "GET", "/api/v1/nodes", Level::Metadata),
            ("ann", &["ops"], "GET", "/metrics", Level::Metadata),
            ("ann", &[], "GET", "/api/v1/nodes", Level::None),
        ] {
            assert_eq!(
                level(user, groups, method, path),
                expected,
                "{user} {method} {path}"
            );
        }
        let info = RequestInfo::parse(&Method::GET, "/apis/apps/v1/deployments", false);
        let stages = policy.decide(&User::new("ann", [""; 0]), &info).omit_stages;
        assert_eq!(stages, [Stage::RequestReceived, Stage::ResponseStarted]);
    }

    #[test]
    fn every_error_is_reported() {
        let errors = Policy::parse(
            "apiVersion: v1\nkind: Policy\nrules:\n- level: Metadata\n  nonResourceURLs: ['a', '/b*c']\n  namespaces: [x]\n",
        )
        .unwrap_err();
        assert_eq!(errors.len(), 4, "{errors:?}");
        assert!(
            Policy::parse("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Everything}]").is_err()
        );
        assert!(Policy::parse("apiVersion: audit.k8s.io/v1\nkind: Policy\nrule: []").is_err());
    }
}
