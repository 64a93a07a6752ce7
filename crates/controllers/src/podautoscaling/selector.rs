//! Which autoscalers control the same pods.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::ObjectKey;
use knarr_api::k8s_openapi;
use knarr_apimachinery::labels::Selector;

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
