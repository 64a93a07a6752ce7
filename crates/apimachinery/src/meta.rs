//! Labels, annotations and label selectors in any field: their rules (apimachinery `api/validation/objectmeta.go`).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use crate::field::{ErrorList, Path};
use crate::names;

/// All annotations of an object together, keys and values, in bytes.
pub const ANNOTATIONS_MAX_BYTES: usize = 256 * 1024;

type Labels = BTreeMap<String, String>;

/// Drops maps and lists that are empty, as decoding does: a typed object of a caller in the same process was
/// not decoded.
pub fn drop_empty(meta: &mut ObjectMeta) {
    meta.annotations.take_if(|of| of.is_empty());
    meta.labels.take_if(|of| of.is_empty());
    meta.finalizers.take_if(|of| of.is_empty());
    meta.owner_references.take_if(|of| of.is_empty());
}

/// Validates a label's key.
pub fn label_name(name: &str, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for detail in names::qualified_name(name) {
        errors.invalid(path, name, detail);
    }
    errors
}

/// Validates labels, node selectors and the like.
pub fn labels(labels: Option<&Labels>, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for (key, value) in labels.into_iter().flatten() {
        errors.extend(label_name(key, path));
        for detail in names::label_value(value) {
            errors.invalid(path, value, detail);
        }
    }
    errors
}

/// Validates annotations: keys like labels' in any case, and their total size.
pub fn annotations(annotations: Option<&Labels>, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut bytes = 0;
    for (key, value) in annotations.into_iter().flatten() {
        bytes += key.len() + value.len();
        for detail in names::qualified_name(&key.to_lowercase()) {
            errors.invalid(path, key, detail);
        }
    }
    if bytes > ANNOTATIONS_MAX_BYTES {
        errors.too_long(path, ANNOTATIONS_MAX_BYTES);
    }
    errors
}

/// Validates a label selector; an absent one is valid.
pub fn label_selector(selector: Option<&LabelSelector>, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let Some(selector) = selector else {
        return errors;
    };
    errors.extend(labels(selector.match_labels.as_ref(), &path.child("matchLabels")));
    for (i, requirement) in selector.match_expressions.iter().flatten().enumerate() {
        let at = path.child("matchExpressions").index(i);
        let values = requirement.values.as_deref().unwrap_or_default();
        let values_at = at.child("values");
        match requirement.operator.as_str() {
            "In" | "NotIn" => {
                if values.is_empty() {
                    errors.required(&values_at, "must be specified when `operator` is 'In' or 'NotIn'");
                }
            }
            "Exists" | "DoesNotExist" => {
                if !values.is_empty() {
                    errors.forbidden(
                        &values_at,
                        "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                    );
                }
            }
            other => errors.invalid(&at.child("operator"), other, "not a valid selector operator"),
        }
        errors.extend(label_name(&requirement.key, &at.child("key")));
        for (j, value) in values.iter().enumerate() {
            for detail in names::label_value(value) {
                errors.invalid(&values_at.index(j), value, detail);
            }
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typed_object_reads_back_as_it_was_written() {
        let mut meta = ObjectMeta {
            annotations: Some(BTreeMap::new()),
            labels: Some(BTreeMap::new()),
            finalizers: Some(Vec::new()),
            owner_references: Some(Vec::new()),
            ..ObjectMeta::default()
        };
        drop_empty(&mut meta);
        assert_eq!(meta, ObjectMeta::default());
        meta.labels = Some([("app".to_string(), String::new())].into());
        let before = meta.clone();
        drop_empty(&mut meta);
        assert_eq!(meta, before);
    }
}
