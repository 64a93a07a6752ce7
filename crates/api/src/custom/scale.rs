//! The scale of a custom kind: three paths into its objects.

use k8s_openapi::api::autoscaling::v1::Scale;
use knarr_apimachinery::field::{Cause, ErrorList, FieldError};
use serde_json::{Map, Value};

use super::CustomObject;
use crate::kinds::scale::new_scale;
use crate::patch::{go_type, go_value};

/// The largest number of replicas.
const REPLICAS_MAX: i64 = i32::MAX as i64;

fn names(path: &str) -> impl Iterator<Item = &str> {
    path.trim_start_matches('.').split('.')
}

fn find<'a>(fields: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let mut names = names(path);
    let mut found = fields.get(names.next()?)?;
    for name in names {
        found = found.get(name)?;
    }
    Some(found)
}

fn count(fields: &Map<String, Value>, path: &str) -> Option<i32> {
    i32::try_from(find(fields, path)?.as_i64()?).ok()
}

impl CustomObject {
    /// `None` where the kind has no scale.
    pub fn scale(&self) -> Option<Scale> {
        let paths = self.rules.scale.as_ref()?;
        let replicas = count(&self.fields, &paths.spec_replicas_path);
        let selector = paths.label_selector_path.as_deref();
        let selector = selector.and_then(|path| find(&self.fields, path)?.as_str());
        let current = count(&self.fields, &paths.status_replicas_path);
        Some(new_scale(
            &self.metadata,
            replicas,
            current,
            selector.unwrap_or(""),
        ))
    }

    /// Whether the object has a number of replicas; the scale of an object without one cannot be read.
    pub fn has_replicas(&self) -> bool {
        let paths = self.rules.scale.as_ref();
        paths.is_some_and(|p| find(&self.fields, &p.spec_replicas_path).is_some())
    }

    /// The path of the number of replicas; empty for kinds without a scale.
    pub fn replicas_path(&self) -> &str {
        let paths = self.rules.scale.as_ref();
        paths.map_or("", |p| p.spec_replicas_path.as_str())
    }

    /// Writes the number of replicas; false where the kind has no scale, or a value on the path is not an object.
    pub fn set_replicas(&mut self, replicas: i32) -> bool {
        let Some(paths) = &self.rules.scale else {
            return false;
        };
        let names: Vec<&str> = names(&paths.spec_replicas_path).collect();
        let Some((last, parents)) = names.split_last() else {
            return false;
        };
        let mut map = &mut self.fields;
        for name in parents {
            let Value::Object(next) = map.entry(*name).or_insert_with(|| Map::new().into()) else {
                return false;
            };
            map = next;
        }
        map.insert((*last).to_string(), replicas.into());
        true
    }

    /// Validates the values at the scale's paths; with `status_only` not those of the spec.
    pub fn check_scale(&self, status_only: bool, errors: &mut ErrorList) {
        let Some(paths) = &self.rules.scale else { return };
        let spec = (!status_only).then_some(&paths.spec_replicas_path);
        for path in spec.into_iter().chain([&paths.status_replicas_path]) {
            let Some(found) = find(&self.fields, path) else {
                continue;
            };
            let detail = match found.as_i64() {
                Some(n) if n < 0 => "should be a non-negative integer".to_string(),
                Some(n) if n > REPLICAS_MAX => format!("should be less than or equal to {REPLICAS_MAX}"),
                Some(_) => continue,
                None => format!(
                    "{path} accessor error: {} is of the type {}, expected int64",
                    go_value(found),
                    match found {
                        Value::Null => "<nil>",
                        other => go_type(other),
                    }
                ),
            };
            errors.push(FieldError {
                cause: Cause::Invalid,
                field: path.clone(),
                value: Some(found.as_i64().unwrap_or_default().to_string()),
                detail,
            });
        }
    }
}
