//! The roles and bindings that every cluster has (Kubernetes' bootstrap policy), read from `default_roles.txt`.
//!
//! They are reconciled at every start, as in kube-apiserver: missing rules, subjects, labels and aggregation selectors are
//! added, a binding to another role is recreated, and additions of users stay. An object with the annotation
//! `rbac.authorization.kubernetes.io/autoupdate: "false"` is not changed.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use k8s_openapi::api::rbac::v1::{
    AggregationRule, ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use knarr_api::registry::Registered;
use knarr_api::{AnyObject, Kind, k8s_openapi, registry};

use super::rules;

const TEXT: &str = include_str!("default_roles.txt");
const GROUP: &str = "rbac.authorization.k8s.io";
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 5] = ["create", "delete", "deletecollection", "patch", "update"];

/// A default role or binding.
pub struct DefaultObject {
    pub kind: &'static Kind,
    pub object: Box<dyn AnyObject>,
}

/// How an existing object is reconciled.
pub enum Reconciliation {
    Nothing,
    Update(Box<dyn AnyObject>),
    /// Delete and create: the roleRef of a binding is immutable.
    Recreate,
}

/// The rules of the role `system:node`, which the Node authorizer applies to all other resources.
pub(super) fn node_rules() -> &'static [PolicyRule] {
    static RULES: OnceLock<Vec<PolicyRule>> = OnceLock::new();
    RULES.get_or_init(|| {
        let all = objects();
        let role = all.iter().find_map(|d| {
            let role = d.object.as_any().downcast_ref::<ClusterRole>()?;
            (role.metadata.name.as_deref() == Some("system:node")).then(|| role.rules.clone())
        });
        role.flatten().unwrap_or_default()
    })
}

/// All default roles and bindings.
pub fn objects() -> Vec<DefaultObject> {
    let mut blocks: Vec<Vec<&str>> = Vec::new();
    for line in TEXT.lines().filter(|l| !l.starts_with('#')) {
        match (line.starts_with(' '), blocks.last_mut()) {
            (true, Some(block)) => block.push(line.trim()),
            _ => blocks.push(vec![line]),
        }
    }
    blocks.iter().filter_map(|block| object(block)).collect()
}

fn object(block: &[&str]) -> Option<DefaultObject> {
    let (head, body) = block.split_first()?;
    let mut words = head.split(' ');
    let (kind, name) = (words.next()?, words.next()?);
    let mut meta = meta(name);
    let mut of: Vec<&str> = Vec::new();
    let rest: Vec<&str> = words.collect();
    for word in &rest {
        if let Some(label) = word.strip_prefix('+') {
            let label = (format!("{GROUP}/{label}"), "true".to_string());
            meta.labels.get_or_insert_default().extend([label]);
        } else if let Some(label) = word.strip_prefix('<') {
            of.push(label);
        }
    }
    let rules = || body.iter().map(|line| rule(line)).collect::<Option<Vec<_>>>();
    match kind {
        "ClusterRole" => {
            let selectors = of.iter().map(|label| LabelSelector {
                match_labels: Some([(format!("{GROUP}/{label}"), "true".to_string())].into()),
                ..LabelSelector::default()
            });
            let aggregation_rule = (!of.is_empty()).then(|| AggregationRule {
                cluster_role_selectors: Some(selectors.collect()),
            });
            Some(DefaultObject {
                kind: &registry::CLUSTER_ROLE,
                object: ClusterRole {
                    metadata: meta,
                    // The aggregation controller sets the rules of aggregated roles.
                    rules: Some(rules()?).filter(|r| !r.is_empty()),
                    aggregation_rule,
                }
                .into_object(),
            })
        }
        "Role" => Some(DefaultObject {
            kind: &registry::ROLE,
            object: Role {
                metadata: meta,
                rules: Some(rules()?),
            }
            .into_object(),
        }),
        "ClusterRoleBinding" => {
            let (role_ref, subjects) = binding(&rest)?;
            Some(DefaultObject {
                kind: &registry::CLUSTER_ROLE_BINDING,
                object: ClusterRoleBinding {
                    metadata: meta,
                    role_ref,
                    subjects,
                }
                .into_object(),
            })
        }
        "RoleBinding" => {
            let (role_ref, subjects) = binding(&rest)?;
            Some(DefaultObject {
                kind: &registry::ROLE_BINDING,
                object: RoleBinding {
                    metadata: meta,
                    role_ref,
                    subjects,
                }
                .into_object(),
            })
        }
        _ => None,
    }
}

fn meta(name: &str) -> ObjectMeta {
    let (namespace, name) = match name.split_once('/') {
        Some((namespace, name)) => (Some(namespace.to_string()), name),
        None => (None, name),
    };
    ObjectMeta {
        namespace,
        name: Some(name.to_string()),
        labels: Some(
            [(
                "kubernetes.io/bootstrapping".to_string(),
                "rbac-defaults".to_string(),
            )]
            .into(),
        ),
        annotations: Some([(AUTOUPDATE.to_string(), "true".to_string())].into()),
        ..ObjectMeta::default()
    }
}

/// `verbs groups: resources [= names]` or `verbs paths`.
fn rule(line: &str) -> Option<PolicyRule> {
    let (verbs, rest) = line.split_once(' ')?;
    let verbs: Vec<&str> = match verbs {
        "read" => READ.to_vec(),
        "write" => WRITE.to_vec(),
        "read+write" => {
            let mut all = [&READ[..], &WRITE[..]].concat();
            all.sort_unstable();
            all
        }
        named => named.split(',').collect(),
    };
    let verbs = verbs.into_iter().map(str::to_string).collect();
    let words = |text: &str| Some(text.split_whitespace().map(str::to_string).collect::<Vec<_>>());
    let Some((groups, resources)) = rest.split_once(": ") else {
        return Some(PolicyRule {
            non_resource_urls: words(rest),
            verbs,
            ..PolicyRule::default()
        });
    };
    let (resources, names) = match resources.split_once(" = ") {
        Some((resources, names)) => (resources, words(names)),
        None => (resources, None),
    };
    let group = |g: &str| if g == "core" { String::new() } else { g.to_string() };
    Some(PolicyRule {
        api_groups: Some(groups.split(',').map(group).collect()),
        resources: words(resources),
        resource_names: names,
        verbs,
        ..PolicyRule::default()
    })
}

/// `-> <kind> <name>: <subjects>`.
fn binding(words: &[&str]) -> Option<(RoleRef, Option<Vec<Subject>>)> {
    let [_, kind, name, subjects @ ..] = words else {
        return None;
    };
    let subjects: Option<Vec<Subject>> = subjects
        .iter()
        .map(|word| {
            let (kind, name) = word.split_once('=')?;
            let (kind, group) = match kind {
                "user" => ("User", Some(GROUP.to_string())),
                "group" => ("Group", Some(GROUP.to_string())),
                "account" => ("ServiceAccount", None),
                _ => return None,
            };
            let (namespace, name) = match name.split_once('/') {
                Some((namespace, name)) if kind == "ServiceAccount" => (Some(namespace.to_string()), name),
                _ => (None, name),
            };
            Some(Subject {
                kind: kind.to_string(),
                name: name.to_string(),
                namespace,
                api_group: group,
            })
        })
        .collect();
    let role_ref = RoleRef {
        api_group: Some(GROUP.to_string()),
        kind: (*kind).to_string(),
        name: name.trim_end_matches(':').to_string(),
    };
    Some((role_ref, subjects.filter(|s| !s.is_empty())))
}

/// Reconciles an existing object with what it should at least contain.
pub fn reconcile(desired: &dyn AnyObject, existing: &dyn AnyObject) -> Reconciliation {
    let protected = existing
        .metadata()
        .annotations
        .as_ref()
        .and_then(|a| a.get(AUTOUPDATE))
        .is_some_and(|v| v == "false");
    if protected {
        return Reconciliation::Nothing;
    }
    let mut new = existing.clone_box();
    let mut changed = add_missing(&mut new.metadata_mut().labels, &desired.metadata().labels);
    changed |= add_missing(
        &mut new.metadata_mut().annotations,
        &desired.metadata().annotations,
    );
    let (expected, actual) = (desired.as_any(), new.as_any_mut());
    if let (Some(expected), Some(actual)) = (
        expected.downcast_ref::<ClusterRole>(),
        actual.downcast_mut::<ClusterRole>(),
    ) {
        changed |= add_rules(&mut actual.rules, &expected.rules);
        for selector in expected
            .aggregation_rule
            .iter()
            .flat_map(|r| r.cluster_role_selectors.iter().flatten())
        {
            let selectors = actual
                .aggregation_rule
                .get_or_insert_default()
                .cluster_role_selectors
                .get_or_insert_default();
            if !selectors.contains(selector) {
                selectors.push(selector.clone());
                changed = true;
            }
        }
    } else if let (Some(expected), Some(actual)) =
        (expected.downcast_ref::<Role>(), actual.downcast_mut::<Role>())
    {
        changed |= add_rules(&mut actual.rules, &expected.rules);
    } else if let (Some(expected), Some(actual)) = (
        expected.downcast_ref::<ClusterRoleBinding>(),
        actual.downcast_mut::<ClusterRoleBinding>(),
    ) {
        if expected.role_ref != actual.role_ref {
            return Reconciliation::Recreate;
        }
        changed |= add_subjects(&mut actual.subjects, &expected.subjects);
    } else if let (Some(expected), Some(actual)) = (
        expected.downcast_ref::<RoleBinding>(),
        actual.downcast_mut::<RoleBinding>(),
    ) {
        if expected.role_ref != actual.role_ref {
            return Reconciliation::Recreate;
        }
        changed |= add_subjects(&mut actual.subjects, &expected.subjects);
    }
    if changed {
        Reconciliation::Update(new)
    } else {
        Reconciliation::Nothing
    }
}

fn add_missing(
    actual: &mut Option<BTreeMap<String, String>>,
    expected: &Option<BTreeMap<String, String>>,
) -> bool {
    let mut changed = false;
    for (key, value) in expected.iter().flatten() {
        let actual = actual.get_or_insert_default();
        if !actual.contains_key(key) {
            actual.insert(key.clone(), value.clone());
            changed = true;
        }
    }
    changed
}

fn add_rules(actual: &mut Option<Vec<PolicyRule>>, expected: &Option<Vec<PolicyRule>>) -> bool {
    let missing = rules::uncovered(
        actual.as_deref().unwrap_or_default(),
        expected.as_deref().unwrap_or_default(),
    );
    if missing.is_empty() {
        return false;
    }
    actual.get_or_insert_default().extend(missing);
    true
}

fn add_subjects(actual: &mut Option<Vec<Subject>>, expected: &Option<Vec<Subject>>) -> bool {
    let mut changed = false;
    for subject in expected.iter().flatten() {
        let actual = actual.get_or_insert_default();
        if !actual.contains(subject) {
            actual.push(subject.clone());
            changed = true;
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(kind: &Kind, name: &str) -> Box<dyn AnyObject> {
        let all = objects();
        let found = all
            .into_iter()
            .find(|d| d.kind == kind && d.object.metadata().name.as_deref() == Some(name));
        found.unwrap().object
    }

    #[test]
    fn every_block_of_the_list_is_read_and_every_binding_names_a_role() {
        let blocks = TEXT.lines().filter(|l| !l.starts_with([' ', '#'])).count();
        let all = objects();
        assert_eq!(all.len(), blocks);
        for made in &all {
            if let Some(role) = made.object.as_any().downcast_ref::<ClusterRole>() {
                let lines = role.rules.as_ref().map_or(0, Vec::len);
                assert!(lines > 0 || role.aggregation_rule.is_some(), "{role:?}");
            }
            if let Some(b) = made.object.as_any().downcast_ref::<ClusterRoleBinding>() {
                find(&registry::CLUSTER_ROLE, &b.role_ref.name);
            }
        }
        assert!(node_rules().iter().any(|r| r.verbs == ["create"]));
    }

    #[test]
    fn missing_rules_are_restored_and_added_rules_stay() {
        let desired = find(&registry::CLUSTER_ROLE, "system:basic-user");
        let mut existing = desired.clone_box();
        let role = existing.as_any_mut().downcast_mut::<ClusterRole>().unwrap();
        let rules = role.rules.as_mut().unwrap();
        let taken = rules.remove(0);
        rules.push(PolicyRule {
            api_groups: Some(vec!["mine".into()]),
            resources: Some(vec!["things".into()]),
            verbs: vec!["get".into()],
            ..PolicyRule::default()
        });
        role.metadata.labels = None;
        let Reconciliation::Update(repaired) = reconcile(&*desired, &*existing) else {
            panic!("nothing was repaired");
        };
        let repaired = repaired.as_any().downcast_ref::<ClusterRole>().unwrap().clone();
        let rules = repaired.rules.as_ref().unwrap();
        assert!(super::rules::uncovered(rules, std::slice::from_ref(&taken)).is_empty());
        assert!(
            rules
                .iter()
                .any(|r| r.api_groups.as_deref() == Some(&["mine".to_string()]))
        );
        assert_eq!(repaired.metadata.labels, desired.metadata().labels);
        assert!(matches!(reconcile(&*desired, &repaired), Reconciliation::Nothing));

        let mut protected = existing.clone_box();
        let annotations = &mut protected.metadata_mut().annotations;
        annotations
            .get_or_insert_default()
            .insert(AUTOUPDATE.into(), "false".into());
        assert!(matches!(
            reconcile(&*desired, &*protected),
            Reconciliation::Nothing
        ));
    }

    #[test]
    fn a_binding_to_another_role_is_recreated() {
        let desired = find(&registry::CLUSTER_ROLE_BINDING, "system:basic-user");
        let mut existing = desired.clone_box();
        let binding = existing
            .as_any_mut()
            .downcast_mut::<ClusterRoleBinding>()
            .unwrap();
        binding.subjects = None;
        assert!(matches!(
            reconcile(&*desired, &*existing),
            Reconciliation::Update(_)
        ));
        let binding = existing
            .as_any_mut()
            .downcast_mut::<ClusterRoleBinding>()
            .unwrap();
        binding.role_ref.name = "cluster-admin".into();
        assert!(matches!(
            reconcile(&*desired, &*existing),
            Reconciliation::Recreate
        ));
    }
}
