//! Strategic merge patch: lists merged by key, `$patch`, `$deleteFromPrimitiveList`, `$setElementOrder`, `$retainKeys`.
//!
//! Merge keys and strategies come from [`knarr_apimachinery::schema`]. The results and the errors of invalid patches
//! are those of apimachinery's `strategicpatch`; where that depends on the order of a Go map, the order here is that of the keys.

mod list;

use knarr_apimachinery::error::Error;
use knarr_apimachinery::schema::rules::Strategy;
use serde_json::{Map, Value};

use super::cannot_apply;
use super::go::{GO_SLICE, go_json_kind, go_type, go_value};
use crate::kind::Kind;
use crate::shape::{self, Field, Shape};
use crate::shapes::shape_of;

const DIRECTIVE: &str = "$patch";
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList";
const ELEMENT_ORDER: &str = "$setElementOrder";
const RETAIN_KEYS: &str = "$retainKeys";

/// Applies `patch` to `doc`, an object of `kind`. Kubernetes' errors: 400 for invalid directives or a kind
/// that has no strategies, 422 for lists of lists, 500 for values that do not match the type; `doc` is then in an
/// undefined state.
pub fn apply(kind: &Kind, doc: &mut Value, patch: &Value) -> Result<(), Error> {
    let shape =
        shape_of(kind).ok_or_else(|| Error::bad_request("strategic merge patch format is not supported"))?;
    apply_to(shape, doc, patch)
}

/// Applies `patch` to the scale subresource of any kind.
pub fn apply_to_scale(doc: &mut Value, patch: &Value) -> Result<(), Error> {
    apply_to(Shape::of_scale(), doc, patch)
}

fn apply_to(shape: &Shape, doc: &mut Value, patch: &Value) -> Result<(), Error> {
    let patch = match patch {
        Value::Object(patch) => patch.clone(),
        Value::Null => Map::new(),
        other => {
            return Err(Error::bad_request(format!(
                "json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
                go_json_kind(other)
            )));
        }
    };
    let Value::Object(doc) = doc else {
        return Err(Error::internal("the object to be patched is not a JSON object"));
    };
    let at = MergeType {
        shape,
        name: Some(shape.root()),
    };
    merge_map(doc, patch, at).map_err(PatchError::into_error)
}

/// Why a patch does not apply; with the messages and codes of apimachinery and kube-apiserver.
enum PatchError {
    PrimitiveList,
    RetainKeys,
    ElementOrder,
    ListOfLists,
    /// Anything else, which Kubernetes answers with 500.
    Other(String),
}

impl PatchError {
    fn into_error(self) -> Error {
        match self {
            PatchError::PrimitiveList => Error::bad_request("invalid patch format of primitive list"),
            PatchError::RetainKeys => Error::bad_request("invalid patch format of retainKeys"),
            PatchError::ElementOrder => Error::bad_request("invalid patch format of setElementOrder list"),
            PatchError::ListOfLists => cannot_apply(),
            PatchError::Other(message) => Error::new(500, "", message),
        }
    }

    fn no_merge_key(item: &Map<String, Value>, key: &str) -> Self {
        let item = go_value(&Value::Object(item.clone()));
        PatchError::Other(format!("map: {item} does not contain declared merge key: {key}"))
    }

    fn wrong_type(expected: &str, found: &Value) -> Self {
        PatchError::Other(format!(
            "expected a {expected}, but received a {}",
            go_type(found)
        ))
    }

    fn unknown_directive(directive: &Value, item: Map<String, Value>) -> Self {
        PatchError::Other(format!(
            "unknown patch type: {} in map: {}",
            go_value(directive),
            go_value(&Value::Object(item))
        ))
    }
}

/// The type that is merged; no name where the type has no declared fields.
#[derive(Clone, Copy)]
struct MergeType<'a> {
    shape: &'a Shape,
    name: Option<&'a str>,
}

impl<'a> MergeType<'a> {
    fn field(self, key: &str) -> Result<&'a Field, PatchError> {
        let Some(name) = self.name else {
            return Err(PatchError::Other(
                "merging an object in json but data type is not struct, instead is: map".to_string(),
            ));
        };
        self.shape
            .type_named(name)
            .and_then(|t| t.field(key))
            .ok_or_else(|| {
                let name = name.rsplit('.').next().unwrap_or(name);
                PatchError::Other(format!(
                    "unable to find api field in struct {name} for the json field {key:?}"
                ))
            })
    }

    /// The field's strategy, and the type of its value.
    fn map_field(self, key: &str) -> Result<(Strategy, MergeType<'a>), PatchError> {
        let field = self.field(key)?;
        let name = match &field.value {
            shape::Value::Struct(name) => Some(name.as_str()),
            _ => None,
        };
        Ok((
            field.rule.map_or(Strategy::Default, |r| r.strategy),
            MergeType { name, ..self },
        ))
    }

    /// The field's strategy, merge key, and the type of its items.
    fn list_field(self, key: &str) -> Result<(Strategy, &'static str, MergeType<'a>), PatchError> {
        let field = self.field(key)?;
        let name = match &field.value {
            shape::Value::List(name) => name.as_deref(),
            _ => {
                return Err(PatchError::Other(
                    "expected slice or array type, but got: struct".to_string(),
                ));
            }
        };
        let (strategy, merge_key) = field
            .rule
            .map_or((Strategy::Default, ""), |r| (r.strategy, r.merge_key));
        Ok((strategy, merge_key, MergeType { name, ..self }))
    }
}

/// The text after a directive's prefix and slash.
fn after_prefix(key: &str, prefix: &str, error: PatchError) -> Result<String, PatchError> {
    match key.split_once('/') {
        Some((before, after)) if before == prefix => Ok(after.to_string()),
        _ => Err(error),
    }
}

fn merge_map(
    original: &mut Map<String, Value>,
    mut patch: Map<String, Value>,
    at: MergeType<'_>,
) -> Result<(), PatchError> {
    if let Some(directive) = patch.get(DIRECTIVE) {
        match directive.as_str() {
            Some("replace") => {
                patch.remove(DIRECTIVE);
                *original = patch;
            }
            Some("delete") => original.clear(),
            _ => return Err(PatchError::unknown_directive(&directive.clone(), patch)),
        }
        return Ok(());
    }
    retain_keys(original, &mut patch)?;
    order_elements(original, &mut patch, at)?;
    for (key, change) in patch {
        if key.starts_with(DELETE_FROM_LIST) {
            let key = after_prefix(&key, DELETE_FROM_LIST, PatchError::PrimitiveList)?;
            delete_from_list(original, &key, change, at)?;
        } else {
            merge_field(original, key, change, at)?;
        }
    }
    Ok(())
}

fn merge_field(
    original: &mut Map<String, Value>,
    key: String,
    change: Value,
    at: MergeType<'_>,
) -> Result<(), PatchError> {
    if change.is_null() {
        original.remove(&key);
        return Ok(());
    }
    match (original.get_mut(&key), change) {
        (Some(Value::Object(old)), Value::Object(change)) => {
            let (strategy, below) = at.map_field(&key)?;
            if strategy == Strategy::Replace {
                *old = change;
            } else {
                merge_map(old, change, below)?;
            }
        }
        (Some(Value::Array(old)), Value::Array(change)) => {
            let (strategy, merge_key, below) = at.list_field(&key)?;
            *old = if strategy == Strategy::Merge {
                list::merge(std::mem::take(old), change, merge_key, below, false)?
            } else {
                change
            };
        }
        // New, or of another type: replaced.
        (_, mut change) => {
            discard_nulls(&mut change);
            match without_directives(change) {
                Some(change) => original.insert(key, change),
                None => original.remove(&key),
            };
        }
    }
    Ok(())
}

/// `$deleteFromPrimitiveList/key`.
fn delete_from_list(
    original: &mut Map<String, Value>,
    key: &str,
    change: Value,
    at: MergeType<'_>,
) -> Result<(), PatchError> {
    if change.is_null() {
        original.remove(key);
        return Ok(());
    }
    match (original.get_mut(key), change) {
        (Some(Value::Array(old)), Value::Array(delete)) => {
            let (_, merge_key, below) = at.list_field(key)?;
            *old = list::merge(std::mem::take(old), delete, merge_key, below, true)?;
        }
        (Some(Value::Object(old)), Value::Object(change)) => {
            let (_, below) = at.map_field(key)?;
            merge_map(old, change, below)?;
        }
        (Some(old), change) if go_type(old) == go_type(&change) => *old = change,
        _ => {}
    }
    Ok(())
}

/// `$retainKeys`: drops what it does not list. It must list all that the patch sets.
fn retain_keys(original: &mut Map<String, Value>, patch: &mut Map<String, Value>) -> Result<(), PatchError> {
    let Some(keys) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let Value::Array(keys) = keys else {
        return Err(PatchError::RetainKeys);
    };
    let listed: std::collections::HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let directive = |key: &str| key.starts_with(DELETE_FROM_LIST) || key.starts_with(ELEMENT_ORDER);
    if patch
        .iter()
        .any(|(key, change)| !change.is_null() && !directive(key) && !listed.contains(key.as_str()))
    {
        return Err(PatchError::RetainKeys);
    }
    original.retain(|key, _| listed.contains(key.as_str()));
    Ok(())
}

/// `$setElementOrder/key`: merges the patch's list of that key into the original's, in the order it gives.
/// Removes both from the patch.
fn order_elements(
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    at: MergeType<'_>,
) -> Result<(), PatchError> {
    let directives: Vec<String> = patch
        .keys()
        .filter(|key| key.starts_with(ELEMENT_ORDER))
        .cloned()
        .collect();
    for directive in directives {
        let order = match patch.remove(&directive) {
            Some(Value::Array(order)) => order,
            other => return Err(PatchError::wrong_type(GO_SLICE, &other.unwrap_or(Value::Null))),
        };
        let key = after_prefix(&directive, ELEMENT_ORDER, PatchError::ElementOrder)?;
        let list_at = |from: &Map<String, Value>| match from.get(&key) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list.clone())),
            Some(other) => Err(PatchError::wrong_type(GO_SLICE, other)),
        };
        let (old, change) = (list_at(original)?, list_at(patch)?);
        let (strategy, merge_key, below) = at.list_field(&key)?;
        list::check_order(change.as_deref().unwrap_or_default(), &order, merge_key)?;
        let merged = match (old.clone(), change.clone()) {
            (None, None) => continue,
            (Some(old), None) => old,
            (None, Some(change)) => change.into_iter().filter_map(without_directives).collect(),
            (Some(old), Some(change)) if strategy == Strategy::Merge => {
                list::merge(old, change, merge_key, below, false)?
            }
            (Some(_), Some(change)) => change,
        };
        let old = old.unwrap_or_default();
        if !list::same_type(&old, change.as_deref().unwrap_or_default())? {
            return Err(PatchError::Other(
                "no elements in any of the given slices".to_string(),
            ));
        }
        let ordered = list::in_order(merged, &order, &old, merge_key)?;
        patch.remove(&key);
        original.insert(key, Value::Array(ordered));
    }
    Ok(())
}

/// Removes every `null` member, recursively.
fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(discard_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(discard_nulls),
        _ => {}
    }
}

/// A new value without the objects that are only a `$patch` directive; `None` if it is one itself.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(DIRECTIVE) => None,
        Value::Object(map) => Some(Value::Object(
            map.into_iter()
                .filter_map(|(key, v)| Some((key, without_directives(v)?)))
                .collect(),
        )),
        Value::Array(list) => Some(Value::Array(
            list.into_iter().filter_map(without_directives).collect(),
        )),
        other => Some(other),
    }
}

#[cfg(test)]
mod tests;
