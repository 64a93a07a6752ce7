//! ClusterRole aggregation: a ClusterRole with an aggregationRule gets the rules of all ClusterRoles that its selectors select.

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey, Shared};
use knarr_apimachinery::labels::Selector;

use crate::action::Action;
use crate::controller::{Context, Controller, ObjectChange, View};

/// See the module. Its keys are the aggregated ClusterRoles.
pub struct ClusterRoleAggregation;

impl Controller for ClusterRoleAggregation {
    fn name(&self) -> &'static str {
        "clusterrole-aggregation-controller"
    }

    fn account(&self) -> &'static str {
        "clusterrole-aggregation-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::CLUSTER_ROLE]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        let concerned = |role: &ClusterRole| {
            role.aggregation_rule.is_some()
                && (changed
                    .object()
                    .is_some_and(|o| Some(o.name()) == role.metadata.name.as_deref())
                    || changed
                        .states()
                        .any(|o| selects(role, o.metadata().labels.as_ref())))
        };
        view.list_as::<ClusterRole>("")
            .iter()
            .filter(|role| concerned(role))
            .map(|role| ObjectKey::new("", role.metadata.name.clone().unwrap_or_default()))
            .collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let name = &context.key.name;
        let Some(role) = context.view.get_as::<ClusterRole>("", name) else {
            return Vec::new();
        };
        if role.aggregation_rule.is_none() || context.failure.is_some() {
            return Vec::new();
        }
        let rules = gathered(&role, &context.view.list_as::<ClusterRole>(""));
        if role.rules.as_deref().unwrap_or_default() == rules {
            return Vec::new();
        }
        let mut new = (*role).clone();
        new.rules = Some(rules);
        vec![Action::update(new)]
    }
}

type Labels = std::collections::BTreeMap<String, String>;

fn selectors(role: &ClusterRole) -> impl Iterator<Item = Selector> {
    let rule = role.aggregation_rule.iter();
    rule.flat_map(|r| r.cluster_role_selectors.iter().flatten())
        // Validation rejects selectors that do not parse.
        .filter_map(|s| Selector::from_label_selector(s).ok())
}

fn selects(role: &ClusterRole, labels: Option<&Labels>) -> bool {
    selectors(role).any(|s| s.matches(labels))
}

/// The aggregated rules: selector by selector, role by role in the order of names, each rule once.
fn gathered(role: &ClusterRole, all: &[Shared<ClusterRole>]) -> Vec<PolicyRule> {
    let mut rules: Vec<PolicyRule> = Vec::new();
    for selector in selectors(role) {
        let others = all
            .iter()
            .filter(|o| o.metadata.name != role.metadata.name)
            .filter(|o| selector.matches(o.metadata.labels.as_ref()));
        for rule in others.flat_map(|o| o.rules.iter().flatten()) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{World, at, lines, updated};
    use serde_json::json;

    fn role(name: &str, labels: &[&str], verbs: &[&str], of: &[&str]) -> ClusterRole {
        let labels: serde_json::Map<_, _> = labels.iter().map(|l| ((*l).into(), json!("true"))).collect();
        let selectors: Vec<_> = of.iter().map(|l| json!({"matchLabels": {*l: "true"}})).collect();
        let rules: Vec<_> = verbs
            .iter()
            .map(|v| json!({"apiGroups": [""], "resources": ["pods"], "verbs": [v]}))
            .collect();
        let mut role = json!({"metadata": {"name": name, "labels": labels}, "rules": rules});
        if !selectors.is_empty() {
            role["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
        }
        serde_json::from_value(role).unwrap()
    }

    fn verbs(role: &ClusterRole) -> Vec<String> {
        role.rules
            .iter()
            .flatten()
            .flat_map(|r| r.verbs.clone())
            .collect()
    }

    #[test]
    fn a_role_has_the_rules_of_those_it_selects() {
        let mut world = World::default();
        world.put(role("edit", &["to-admin"], &[], &["to-edit"]));
        world.put(role("admin", &[], &["stale"], &["to-admin"]));
        world.put(role("b", &["to-edit"], &["update", "get"], &[]));
        world.put(role("a", &["to-edit", "to-admin"], &["get", "list"], &[]));
        world.put(role("other", &[], &["delete"], &[]));
        let run = |world: &World, name| world.run(&ClusterRoleAggregation, ("", name), at(0));
        let edited = run(&world, "edit");
        assert_eq!(verbs(&updated(&edited, "").unwrap()), ["get", "list", "update"]);
        world.take(&edited);
        // An aggregated role can be selected by another one.
        let admin = run(&world, "admin");
        assert_eq!(verbs(&updated(&admin, "").unwrap()), ["get", "list", "update"]);
        world.take(&admin);
        for name in ["edit", "admin", "b", "gone"] {
            assert!(lines(&run(&world, name)).is_empty(), "{name}");
        }
    }

    #[test]
    fn a_change_concerns_the_roles_that_select_or_selected_it() {
        let mut world = World::default();
        world.put(role("admin", &[], &[], &["to-admin"]));
        world.put(role("edit", &[], &[], &["to-edit"]));
        let old = world.put(role("a", &["to-edit"], &["get"], &[]));
        let new = world.put(role("a", &["to-admin"], &["get"], &[]));
        let changed = ObjectChange {
            kind: &registry::CLUSTER_ROLE,
            old: Some(&old),
            new: Some(&new),
        };
        let keys = ClusterRoleAggregation.keys(&world, changed);
        assert_eq!(keys, [ObjectKey::new("", "admin"), ObjectKey::new("", "edit")]);
    }
}
