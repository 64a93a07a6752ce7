//! How the lists and maps of v1.36's types merge: list types, patch strategies and merge keys.
//!
//! They are published (`x-kubernetes-list-*`, `x-kubernetes-map-type`, `x-kubernetes-patch-*`), and part of a type's [descriptor](crate::descriptors).
//! Strategic merge patch and server-side apply use them, OpenAPI documents publish them. A field without a rule is a granular map or an atomic list.

use crate::descriptors;

/// The list type (`x-kubernetes-list-type`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum List {
    /// Replaced whole.
    Atomic,
    /// Of different scalars.
    Set,
    /// Of objects that differ in these fields.
    Map(Vec<&'static str>),
}

/// The map type (`x-kubernetes-map-type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    Atomic,
    Granular,
}

/// The patch strategy of a field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Maps are merged, lists replaced.
    #[default]
    Default,
    Merge,
    Replace,
}

/// The rule of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub field: &'static str,
    pub list: Option<List>,
    pub map: Option<Map>,
    pub strategy: Strategy,
    /// Of a merged list of objects; empty for scalars.
    pub merge_key: &'static str,
    /// Whether patches have the directive `$retainKeys` (unions).
    pub retain_keys: bool,
}

impl Rule {
    /// That of a field about which nothing is published.
    pub fn of(field: &'static str) -> Self {
        Rule {
            field,
            list: None,
            map: None,
            strategy: Strategy::Default,
            merge_key: "",
            retain_keys: false,
        }
    }

    /// `x-kubernetes-patch-strategy`, empty where there is none.
    pub fn patch_strategy(&self) -> &'static str {
        match (self.strategy, self.retain_keys) {
            (Strategy::Default, false) => "",
            (Strategy::Default, true) => "retainKeys",
            (Strategy::Merge, false) => "merge",
            (Strategy::Merge, true) => "merge,retainKeys",
            (Strategy::Replace, _) => "replace",
        }
    }
}

/// The rule of a type's field, if there is one.
pub fn of_field(name: &str, field: &str) -> Option<&'static Rule> {
    descriptors::published(name)?.field(field)?.rule.as_ref()
}

/// Whether values of a type are set as a whole (`x-kubernetes-map-type: atomic`).
pub fn is_atomic(name: &str) -> bool {
    descriptors::published(name).is_some_and(|of| of.is_atomic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_found_by_type_and_field() {
        let rule = of_field("io.k8s.api.core.v1.Container", "ports").expect("a rule");
        assert_eq!(
            (rule.strategy, rule.merge_key),
            (Strategy::Merge, "containerPort")
        );
        assert_eq!(rule.list, Some(List::Map(vec!["containerPort", "protocol"])));
        assert_eq!(of_field("io.k8s.api.core.v1.Container", "name"), None);
        assert_eq!(of_field("Container", "ports"), None);
        let strategy = of_field("io.k8s.api.apps.v1.DeploymentSpec", "strategy").map(Rule::patch_strategy);
        assert_eq!(strategy, Some("retainKeys"));
        assert!(is_atomic("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"));
        assert!(!is_atomic("io.k8s.api.core.v1.Pod"));
    }
}
