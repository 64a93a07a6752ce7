//! The roles and bindings that every cluster has (Kubernetes' bootstrap policy), read from `default_roles.txt`.
//!
//! At every start what is missing is put back, as kube-apiserver does it: missing rules, subjects, labels and
//! aggregation selectors are added, a binding to another role is made anew, what somebody added stays. An object whose
//! annotation `rbac.authorization.kubernetes.io/autoupdate` says `false` is left alone.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use k8s_openapi::api::rbac::v1::{
    AggregationRule, ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use knarr_api::{AnyObject, Kind, k8s_openapi, registry};

use super::rules;

const TEXT: &str = include_str!("default_roles.txt");
const GROUP: &str = "rbac.authorization.k8s.io";
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 5] = ["create", "delete", "deletecollection", "patch", "update"];

/// One of them, as it should be.
pub struct Default {
    pub kind: &'static Kind,
    pub object: Box<dyn AnyObject>,
}

/// What is to be done about an object that is there.
pub enum Repair {
    Nothing,
    Update(Box<dyn AnyObject>),
    /// Of a binding: what it binds to cannot be changed.
    Replace,
}

/// The rules of role `system:node`, by which the Node authorizer judges what it does not look at more closely.
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

/// All of them.
pub fn objects() -> Vec<Default> {
    let mut blocks: Vec<Vec<&str>> = Vec::new();
    for line in TEXT.lines().filter(|l| !l.starts_with('#')) {
        match (line.starts_with(' '), blocks.last_mut()) {
            (true, Some(block)) => block.push(line.trim()),
            _ => blocks.push(vec![line]),
        }
    }
    blocks.iter().filter_map(|block| object(block)).collect()
}

fn object(block: &[&str]) -> Option<Default> {
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
            Some(Default {
                kind: &registry::CLUSTER_ROLE,
                object: Box::new(ClusterRole {
                    metadata: meta,
                    // The aggregation controller fills those that are made of others.
                    rules: Some(rules()?).filter(|r| !r.is_empty()),
                    aggregation_rule,
                }),
            })
        }
        "Role" => Some(Default {
            kind: &registry::ROLE,
            object: Box::new(Role {
                metadata: meta,
                rules: Some(rules()?),
            }),
        }),
        "ClusterRoleBinding" => {
            let (role_ref, subjects) = binding(&rest)?;
            Some(Default {
                kind: &registry::CLUSTER_ROLE_BINDING,
                object: Box::new(ClusterRoleBinding {
                    metadata: meta,
                    role_ref,
                    subjects,
                }),
            })
        }
        "RoleBinding" => {
            let (role_ref, subjects) = binding(&rest)?;
            Some(Default {
                kind: &registry::ROLE_BINDING,
                object: Box::new(RoleBinding {
                    metadata: meta,
                    role_ref,
                    subjects,
                }),
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

/// Brings what is there to what should be there at least.
pub fn repair(wanted: &dyn AnyObject, there: &dyn AnyObject) -> Repair {
    let protected = there
        .metadata()
        .annotations
        .as_ref()
        .and_then(|a| a.get(AUTOUPDATE))
        .is_some_and(|v| v == "false");
    if protected {
        return Repair::Nothing;
    }
    let mut new = there.clone_box();
    let mut changed = add_missing(&mut new.metadata_mut().labels, &wanted.metadata().labels);
    changed |= add_missing(
        &mut new.metadata_mut().annotations,
        &wanted.metadata().annotations,
    );
    let (want, have) = (wanted.as_any(), new.as_any_mut());
    if let (Some(want), Some(have)) = (
        want.downcast_ref::<ClusterRole>(),
        have.downcast_mut::<ClusterRole>(),
    ) {
        changed |= add_rules(&mut have.rules, &want.rules);
        for selector in want
            .aggregation_rule
            .iter()
            .flat_map(|r| r.cluster_role_selectors.iter().flatten())
        {
            let selectors = have
                .aggregation_rule
                .get_or_insert_default()
                .cluster_role_selectors
                .get_or_insert_default();
            if !selectors.contains(selector) {
                selectors.push(selector.clone());
                changed = true;
            }
        }
    } else if let (Some(want), Some(have)) = (want.downcast_ref::<Role>(), have.downcast_mut::<Role>()) {
        changed |= add_rules(&mut have.rules, &want.rules);
    } else if let (Some(want), Some(have)) = (
        want.downcast_ref::<ClusterRoleBinding>(),
        have.downcast_mut::<ClusterRoleBinding>(),
    ) {
        if want.role_ref != have.role_ref {
            return Repair::Replace;
        }
        changed |= add_subjects(&mut have.subjects, &want.subjects);
    } else if let (Some(want), Some(have)) = (
        want.downcast_ref::<RoleBinding>(),
        have.downcast_mut::<RoleBinding>(),
    ) {
        if want.role_ref != have.role_ref {
            return Repair::Replace;
        }
        changed |= add_subjects(&mut have.subjects, &want.subjects);
    }
    if changed {
        Repair::Update(new)
    } else {
        Repair::Nothing
    }
}

fn add_missing(have: &mut Option<BTreeMap<String, String>>, want: &Option<BTreeMap<String, String>>) -> bool {
    let mut changed = false;
    for (key, value) in want.iter().flatten() {
        let have = have.get_or_insert_default();
        if !have.contains_key(key) {
            have.insert(key.clone(), value.clone());
            changed = true;
        }
    }
    changed
}

fn add_rules(have: &mut Option<Vec<PolicyRule>>, want: &Option<Vec<PolicyRule>>) -> bool {
    let missing = rules::missing(
        have.as_deref().unwrap_or_default(),
        want.as_deref().unwrap_or_default(),
    );
    if missing.is_empty() {
        return false;
    }
    have.get_or_insert_default().extend(missing);
    true
}

fn add_subjects(have: &mut Option<Vec<Subject>>, want: &Option<Vec<Subject>>) -> bool {
    let mut changed = false;
    for subject in want.iter().flatten() {
        let have = have.get_or_insert_default();
        if !have.contains(subject) {
            have.push(subject.clone());
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
    fn what_is_missing_is_put_back_and_what_was_added_stays() {
        let wanted = find(&registry::CLUSTER_ROLE, "system:basic-user");
        let mut there = wanted.clone_box();
        let role = there.as_any_mut().downcast_mut::<ClusterRole>().unwrap();
        let rules = role.rules.as_mut().unwrap();
        let taken = rules.remove(0);
        rules.push(PolicyRule {
            api_groups: Some(vec!["mine".into()]),
            resources: Some(vec!["things".into()]),
            verbs: vec!["get".into()],
            ..PolicyRule::default()
        });
        role.metadata.labels = None;
        let Repair::Update(repaired) = repair(&*wanted, &*there) else {
            panic!("nothing was repaired");
        };
        let repaired = repaired.as_any().downcast_ref::<ClusterRole>().unwrap().clone();
        let rules = repaired.rules.as_ref().unwrap();
        assert!(super::rules::missing(rules, std::slice::from_ref(&taken)).is_empty());
        assert!(
            rules
                .iter()
                .any(|r| r.api_groups.as_deref() == Some(&["mine".to_string()]))
        );
        assert_eq!(repaired.metadata.labels, wanted.metadata().labels);
        assert!(matches!(repair(&*wanted, &repaired), Repair::Nothing));

        let mut protected = there.clone_box();
        let annotations = &mut protected.metadata_mut().annotations;
        annotations
            .get_or_insert_default()
            .insert(AUTOUPDATE.into(), "false".into());
        assert!(matches!(repair(&*wanted, &*protected), Repair::Nothing));
    }

    #[test]
    fn a_binding_to_another_role_is_made_anew() {
        let wanted = find(&registry::CLUSTER_ROLE_BINDING, "system:basic-user");
        let mut there = wanted.clone_box();
        let binding = there.as_any_mut().downcast_mut::<ClusterRoleBinding>().unwrap();
        binding.subjects = None;
        assert!(matches!(repair(&*wanted, &*there), Repair::Update(_)));
        let binding = there.as_any_mut().downcast_mut::<ClusterRoleBinding>().unwrap();
        binding.role_ref.name = "cluster-admin".into();
        assert!(matches!(repair(&*wanted, &*there), Repair::Replace));
    }
}
