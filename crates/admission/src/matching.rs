//! Which requests a policy, a binding or a webhook is about: rules, scopes, selectors, and other versions of a kind.

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, NamedRuleWithOperations, RuleWithOperations,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use knarr_api::kind::Kind;
use knarr_api::registry;
use knarr_apimachinery::labels::{Selector, SelectorError};
use serde_json::Value;

use super::Attributes;

/// A namespace's labels; `None` where there is no such namespace.
pub type NamespaceLabels<'a> = dyn Fn(&str) -> Option<BTreeMap<String, String>> + 'a;

/// Why the match criteria of a policy, a binding or a webhook cannot be applied to a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatchError {
    #[error(transparent)]
    Selector(#[from] SelectorError),
    #[error("namespaces \"{0}\" not found")]
    NamespaceNotFound(String),
}

/// The match criteria of a policy, a binding or a webhook. See the module.
#[derive(Default)]
pub struct Criteria<'a> {
    pub namespace_selector: Option<&'a LabelSelector>,
    pub object_selector: Option<&'a LabelSelector>,
    /// Whether requests to other versions of a kind that a rule names match, too.
    pub equivalent: bool,
    /// Empty: every resource.
    pub rules: Vec<Rule<'a>>,
    pub exclude: Vec<Rule<'a>>,
}

/// One rule.
pub struct Rule<'a> {
    groups: &'a [String],
    versions: &'a [String],
    operations: &'a [String],
    resources: &'a [String],
    scope: &'a str,
    names: &'a [String],
}

fn all(texts: &Option<Vec<String>>) -> &[String] {
    texts.as_deref().unwrap_or_default()
}

impl<'a> From<&'a RuleWithOperations> for Rule<'a> {
    fn from(rule: &'a RuleWithOperations) -> Self {
        Rule {
            groups: all(&rule.api_groups),
            versions: all(&rule.api_versions),
            operations: all(&rule.operations),
            resources: all(&rule.resources),
            scope: rule.scope.as_deref().unwrap_or("*"),
            names: &[],
        }
    }
}

impl<'a> From<&'a NamedRuleWithOperations> for Rule<'a> {
    fn from(rule: &'a NamedRuleWithOperations) -> Self {
        Rule {
            groups: all(&rule.api_groups),
            versions: all(&rule.api_versions),
            operations: all(&rule.operations),
            resources: all(&rule.resources),
            scope: rule.scope.as_deref().unwrap_or("*"),
            names: all(&rule.resource_names),
        }
    }
}

impl<'a> From<&'a MatchResources> for Criteria<'a> {
    fn from(resources: &'a MatchResources) -> Self {
        let rules = |rules: &'a Option<Vec<NamedRuleWithOperations>>| -> Vec<Rule<'a>> {
            rules.iter().flatten().map(Rule::from).collect()
        };
        Criteria {
            namespace_selector: resources.namespace_selector.as_ref(),
            object_selector: resources.object_selector.as_ref(),
            equivalent: resources.match_policy.as_deref() == Some("Equivalent"),
            rules: rules(&resources.resource_rules),
            exclude: rules(&resources.exclude_resource_rules),
        }
    }
}

impl Rule<'_> {
    fn matches(&self, request: &Attributes, kind: &Kind) -> bool {
        let one_of = |items: &[String], value: &str| items.iter().any(|i| i == "*" || i == value);
        let clustered = *kind == registry::NAMESPACE || request.namespace.is_empty();
        let in_scope = match self.scope {
            "Namespaced" => !clustered,
            "Cluster" => clustered,
            _ => true,
        };
        in_scope
            && one_of(self.operations, request.operation)
            && one_of(self.groups, kind.group())
            && one_of(self.versions, kind.version())
            && self.resources.iter().any(|resource| {
                let (resource, sub) = resource.split_once('/').unwrap_or((resource, ""));
                (resource == "*" || resource == kind.plural()) && (sub == "*" || sub == request.subresource)
            })
            && (self.names.is_empty() || self.names.contains(&request.name))
    }
}

/// The other versions of a kind.
pub fn equivalents(kind: &Kind) -> Vec<Kind> {
    let others: Vec<Kind> = match kind.ops.custom() {
        Some(_) => kind.served_versions(),
        None => {
            let stored = kind.stored();
            let same = |k: &&Kind| k.stored() == stored;
            registry::ALL.iter().copied().filter(same).cloned().collect()
        }
    };
    others.into_iter().filter(|k| k != kind).collect()
}

/// The kind by which one of the rules matches.
fn matched(rules: &[Rule<'_>], equivalent: bool, request: &Attributes) -> Option<Kind> {
    if rules.iter().any(|rule| rule.matches(request, &request.kind)) {
        return Some(request.kind.clone());
    }
    if !equivalent {
        return None;
    }
    let others = equivalents(&request.kind);
    rules
        .iter()
        .find_map(|rule| others.iter().find(|kind| rule.matches(request, kind)).cloned())
}

fn selector(selector: Option<&LabelSelector>) -> Result<Option<Selector>, SelectorError> {
    let selector = selector.map(Selector::from_label_selector).transpose()?;
    Ok(selector.filter(|s| !s.is_everything()))
}

fn labels(object: &Value) -> BTreeMap<String, String> {
    let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
    let texts = labels.into_iter().flatten();
    texts
        .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_string())))
        .collect()
}

impl Criteria<'_> {
    /// The kind by which the request matches, if it does.
    pub fn matches(
        &self,
        request: &Attributes,
        namespace_labels: &NamespaceLabels<'_>,
    ) -> Result<Option<Kind>, MatchError> {
        if matched(&self.exclude, self.equivalent, request).is_some() {
            return Ok(None);
        }
        let kind = match self.rules.is_empty() {
            true => request.kind.clone(),
            false => match matched(&self.rules, self.equivalent, request) {
                Some(kind) => kind,
                None => return Ok(None),
            },
        };
        if let Some(selector) = selector(self.namespace_selector)? {
            let own = (request.kind == registry::NAMESPACE && request.subresource.is_empty())
                .then(|| request.object.as_ref().map(labels))
                .flatten();
            let fits = match own {
                Some(labels) => selector.matches(Some(&labels)),
                // A cluster-scoped object is not excluded by a namespace selector.
                None if request.namespace.is_empty() => true,
                None => match namespace_labels(&request.namespace) {
                    Some(labels) => selector.matches(Some(&labels)),
                    None => return Err(MatchError::NamespaceNotFound(request.namespace.clone())),
                },
            };
            if !fits {
                return Ok(None);
            }
        }
        if let Some(selector) = selector(self.object_selector)? {
            // Connect options have no metadata: an object selector never matches them, not even one that selects everything.
            let connects = request.operation == "CONNECT";
            let mut objects = [&request.object, &request.old].into_iter().flatten();
            if connects || !objects.any(|object| selector.matches(Some(&labels(object)))) {
                return Ok(None);
            }
        }
        Ok(Some(kind))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(kind: &Kind, subresource: &str) -> Attributes {
        let namespace = if kind.namespaced() { "prod" } else { "" };
        Attributes {
            operation: "CREATE",
            kind: kind.clone(),
            subresource: subresource.into(),
            namespace: namespace.into(),
            name: "n".into(),
            object: Some(json!({"metadata": {"name": "n", "labels": {"app": "web"}}})),
            old: None,
            options: Value::Null,
            user: Value::Null,
            dry_run: false,
        }
    }

    #[test]
    fn requests_match_by_rule_scope_selector_and_version() {
        let rule = |more: Value| {
            let mut rule =
                json!({"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]});
            knarr_api::patch::merge::apply(&mut rule, &more);
            json!({"resourceRules": [rule]})
        };
        let pod = || request(&registry::POD, "");
        for (what, resources, request, matches) in [
            ("everything", rule(json!({})), pod(), Some("v1")),
            ("no rules", json!({}), pod(), Some("v1")),
            (
                "another operation",
                rule(json!({"operations": ["UPDATE"]})),
                pod(),
                None,
            ),
            ("another group", rule(json!({"apiGroups": ["apps"]})), pod(), None),
            (
                "a subresource that no rule names",
                rule(json!({})),
                request(&registry::POD, "status"),
                None,
            ),
            (
                "a part",
                rule(json!({"resources": ["pods/status"]})),
                request(&registry::POD, "status"),
                Some("v1"),
            ),
            (
                "all parts",
                rule(json!({"resources": ["*/*"]})),
                request(&registry::POD, "status"),
                Some("v1"),
            ),
            ("the wrong scope", rule(json!({"scope": "Cluster"})), pod(), None),
            (
                "the right scope",
                rule(json!({"scope": "Cluster"})),
                request(&registry::NODE, ""),
                Some("v1"),
            ),
            ("another name", rule(json!({"resourceNames": ["m"]})), pod(), None),
            (
                "excluded",
                json!({"excludeResourceRules": rule(json!({}))["resourceRules"]}),
                pod(),
                None,
            ),
            (
                "another version, exactly",
                rule(json!({"apiGroups": ["autoscaling"], "apiVersions": ["v1"]})),
                request(&registry::HORIZONTAL_POD_AUTOSCALER, ""),
                None,
            ),
            (
                "the namespace's labels",
                json!({"namespaceSelector": {"matchLabels": {"env": "prod"}}}),
                pod(),
                Some("v1"),
            ),
            (
                "other labels of the namespace",
                json!({"namespaceSelector": {"matchLabels": {"env": "test"}}}),
                pod(),
                None,
            ),
            (
                "in no namespace",
                json!({"namespaceSelector": {"matchLabels": {"env": "test"}}}),
                request(&registry::NODE, ""),
                Some("v1"),
            ),
            (
                "the object's labels",
                json!({"objectSelector": {"matchLabels": {"app": "web"}}}),
                pod(),
                Some("v1"),
            ),
            (
                "other labels of the object",
                json!({"objectSelector": {"matchLabels": {"app": "db"}}}),
                pod(),
                None,
            ),
        ] {
            let resources: MatchResources = serde_json::from_value(resources).unwrap();
            let labels = |_: &str| Some(BTreeMap::from([("env".to_string(), "prod".to_string())]));
            let found = Criteria::from(&resources).matches(&request, &labels).unwrap();
            assert_eq!(found.as_ref().map(|k| k.version()), matches, "{what}");
        }
        let resources = json!({"matchPolicy": "Equivalent", "resourceRules": rule(json!({"apiGroups": ["autoscaling"], "apiVersions": ["v1"]}))["resourceRules"]});
        let resources: MatchResources = serde_json::from_value(resources).unwrap();
        let request = request(&registry::HORIZONTAL_POD_AUTOSCALER, "");
        let found = Criteria::from(&resources).matches(&request, &|_| None).unwrap();
        assert_eq!(
            found.as_ref().map(|k| k.version()),
            Some("v1"),
            "another version of the kind"
        );
    }
}
