//! Which autoscalers control the same pods, and selectors in the words of Kubernetes' messages.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use knarr_api::ObjectKey;
use knarr_api::k8s_openapi;
use knarr_api::selector::label::Selector;

/// An autoscaler's key as messages show it: `{name namespace}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(pub ObjectKey);

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{} {}}}", self.0.name, self.0.namespace)
    }
}

/// The autoscalers of the namespace whose targets' selectors, as far as they are known, match one of these pods.
pub fn controlling(namespace: &str, pods: &[&Pod], selectors: &BTreeMap<ObjectKey, Selector>) -> Vec<Key> {
    selectors
        .iter()
        .filter(|(key, _)| key.namespace == namespace)
        .filter(|(_, s)| pods.iter().any(|p| s.matches(p.metadata.labels.as_ref())))
        .map(|(key, _)| Key(key.clone()))
        .collect()
}

/// As Go prints it with `%+v`.
pub(super) fn printed(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else {
        return "nil".into();
    };
    let labels: String = selector
        .match_labels
        .iter()
        .flatten()
        .map(|(k, v)| format!("{k}: {v},"))
        .collect();
    let expressions: String = selector
        .match_expressions
        .iter()
        .flatten()
        .map(|e| {
            let values = e.values.as_deref().unwrap_or_default().join(" ");
            format!(
                "LabelSelectorRequirement{{Key:{},Operator:{},Values:[{values}],}},",
                e.key, e.operator
            )
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},\
         MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}
