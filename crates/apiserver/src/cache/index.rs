//! An index of a kind's objects: of pods by their node, of PersistentVolumes by the Secrets that they name.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use k8s_openapi::api::core::v1::PersistentVolume;
use knarr_api::{Kind, Object, k8s_openapi, registry};

use super::change::{Change, Filter};
use crate::references::volume_secrets;

/// The field of a pod that its index is for.
const NODE_NAME: &str = "spec.nodeName";

/// The values by which an object is found.
type Values = fn(&Object) -> Vec<String>;

/// What objects of a kind are found by.
#[derive(Clone, Copy)]
pub(super) struct IndexedBy {
    values: Values,
    /// The field whose value it is, if a field selector can select it.
    field: Option<&'static str>,
}

impl IndexedBy {
    /// `None` for kinds without an index.
    pub fn of(kind: &Kind) -> Option<Self> {
        if kind == &registry::POD {
            return Some(IndexedBy {
                values: node,
                field: Some(NODE_NAME),
            });
        }
        (kind == &registry::PERSISTENT_VOLUME).then_some(IndexedBy {
            values: secrets,
            field: None,
        })
    }

    /// The value that all objects that the filter matches have, if it requires one.
    pub fn required(self, filter: &Filter) -> Option<&str> {
        filter
            .fields
            .required(self.field?)
            .filter(|value| !value.is_empty())
    }

    /// The values by which the object of a change was found before, or is found now.
    pub fn values_of(self, change: &Change) -> Vec<String> {
        let mut values = change.prev.as_deref().map(self.values).unwrap_or_default();
        values.extend((self.values)(&change.object));
        values
    }
}

fn node(pod: &Object) -> Vec<String> {
    let node = pod.field(NODE_NAME).ok().filter(|node| !node.is_empty());
    node.into_iter().collect()
}

fn secrets(volume: &Object) -> Vec<String> {
    volume
        .get::<PersistentVolume>()
        .map(volume_secrets)
        .unwrap_or_default()
}

/// The local keys of objects, by value.
#[derive(Default)]
pub(super) struct Index(BTreeMap<String, BTreeSet<String>>);

impl Index {
    /// Enters the change of the object with this local key.
    pub fn change(&mut self, by: IndexedBy, local: &str, before: Option<&Object>, after: Option<&Object>) {
        let values = |object: Option<&Object>| object.map(by.values).unwrap_or_default();
        let (before, after) = (values(before), values(after));
        if before == after {
            return;
        }
        for value in before {
            if let Some(keys) = self.0.get_mut(&value) {
                keys.remove(local);
                if keys.is_empty() {
                    self.0.remove(&value);
                }
            }
        }
        for value in after {
            self.0.entry(value).or_default().insert(local.to_string());
        }
    }

    /// The keys of a value that begin with `prefix`, in order, from `start` on.
    pub fn keys(&self, value: &str, prefix: &str, start: Bound<&str>) -> impl Iterator<Item = &String> {
        let keys = self.0.get(value).into_iter();
        let keys = keys.flat_map(move |keys| keys.range::<str, _>((start, Bound::Unbounded)));
        keys.take_while(move |key| key.starts_with(prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_found_by_their_secrets_until_these_change() {
        let volume = |secret: serde_json::Value| {
            let volume = serde_json::json!({
                "metadata": {"name": "v"},
                "spec": {
                    "claimRef": {"namespace": "a", "name": "c"},
                    "csi": {"driver": "d", "volumeHandle": "h", "nodeStageSecretRef": secret},
                    "azureFile": {"shareName": "s", "secretName": "file"},
                },
            });
            let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
            Object::from_typed(&registry::PERSISTENT_VOLUME, Box::new(volume))
        };
        let by = IndexedBy::of(&registry::PERSISTENT_VOLUME).unwrap();
        let mut index = Index::default();
        let found = |index: &Index, value: &str| {
            let keys = index.keys(value, "", Bound::Unbounded);
            keys.cloned().collect::<Vec<_>>()
        };
        let first = volume(serde_json::json!({"name": "s", "namespace": "b"}));
        let second = volume(serde_json::json!({"name": "s"}));
        index.change(by, "v", None, Some(&first));
        index.change(by, "w", None, Some(&second));
        assert_eq!(
            (found(&index, "b/s"), found(&index, "a/s")),
            (vec!["v".into()], vec!["w".into()])
        );
        assert_eq!(found(&index, "a/file"), ["v", "w"]);
        index.change(by, "v", Some(&first), Some(&second));
        assert_eq!(found(&index, "a/s"), ["v", "w"]);
        assert!(found(&index, "b/s").is_empty());
        index.change(by, "v", Some(&second), None);
        index.change(by, "w", Some(&second), None);
        assert!(index.0.is_empty());
    }
}
