//! Merging of lists: of objects by their merge key, of scalars by value; and the order of the result.
//!
//! Items are found through hash maps, so that two long lists do not cost their product.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::{DIRECTIVE, ELEMENT_ORDER, MergeType, PatchError, merge_map};
use crate::patch::go::{GO_MAP, go_type, go_value};

const NULL: &Value = &Value::Null;

/// The identity of an item: the value of its merge key, or the item itself without one.
fn identity<'a>(item: &'a Value, merge_key: &str) -> &'a Value {
    if merge_key.is_empty() {
        item
    } else {
        item.get(merge_key).unwrap_or(NULL)
    }
}

/// The identity of an object in a list with merge key, which must have it.
fn keyed<'a>(item: &'a Value, merge_key: &str) -> Result<&'a Value, PatchError> {
    match item {
        _ if merge_key.is_empty() => Ok(item),
        Value::Object(map) => map
            .get(merge_key)
            .ok_or_else(|| PatchError::no_merge_key(map, merge_key)),
        other => Err(PatchError::wrong_type(GO_MAP, other)),
    }
}

/// Rejects items of different types, and lists of lists. Returns whether there are items.
pub(super) fn same_type(a: &[Value], b: &[Value]) -> Result<bool, PatchError> {
    let mut first = None;
    for item in a.iter().chain(b) {
        match (first, item) {
            (None, Value::Array(_)) => return Err(PatchError::ListOfLists),
            (_, Value::Null) => {
                return Err(PatchError::Other(
                    "null is no element of a list that is merged".to_string(),
                ));
            }
            (None, item) => first = Some(go_type(item)),
            (Some(first), item) if first != go_type(item) => {
                let lists = Value::Array(vec![a.to_vec().into(), b.to_vec().into()]);
                return Err(PatchError::Other(format!(
                    "list element types are not identical: {}",
                    go_value(&lists)
                )));
            }
            _ => {}
        }
    }
    Ok(first.is_some())
}

/// Merges `patch` into `original`. With `delete`, scalars of `patch` are removed instead.
pub(super) fn merge(
    original: Vec<Value>,
    patch: Vec<Value>,
    merge_key: &str,
    at: MergeType<'_>,
    delete: bool,
) -> Result<Vec<Value>, PatchError> {
    if !same_type(&original, &patch)? {
        return Ok(original);
    }
    if original.iter().chain(&patch).next().is_some_and(Value::is_object) {
        if merge_key.is_empty() {
            return Err(PatchError::Other(
                "cannot merge lists without merge key for struct".to_string(),
            ));
        }
        let (original, patch) = apply_directives(original, patch, merge_key)?;
        let merged = merge_objects(original.clone(), &patch, merge_key, at)?;
        return in_order(merged, &patch, &original, merge_key);
    }
    if delete {
        let deleted: HashSet<&Value> = patch.iter().collect();
        return Ok(original
            .into_iter()
            .filter(|item| !deleted.contains(item))
            .collect());
    }
    let mut seen = HashSet::new();
    let both = original.iter().chain(&patch).cloned();
    let merged = both.filter(|item| seen.insert(item.clone())).collect();
    in_order(merged, &patch, &original, "")
}

/// Carries out `$patch` items: deletes the items they name, or all. Returns both lists without them.
fn apply_directives(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    merge_key: &str,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let mut rest = Vec::with_capacity(patch.len());
    let mut deleted = HashSet::new();
    let mut replace = false;
    for item in patch {
        match item.get(DIRECTIVE) {
            None => rest.push(item),
            Some(directive) => match directive.as_str() {
                Some("delete") => {
                    deleted.insert(keyed(&item, merge_key)?.clone());
                }
                Some("replace") => replace = true,
                Some("merge") => {
                    return Err(PatchError::Other(
                        "merging lists cannot yet be specified in the patch".to_string(),
                    ));
                }
                _ => {
                    let map = item.as_object().cloned().unwrap_or_default();
                    return Err(PatchError::unknown_directive(directive, map));
                }
            },
        }
    }
    if replace {
        return Ok((rest, Vec::new()));
    }
    if !deleted.is_empty() {
        original.retain(|item| !item.get(merge_key).is_some_and(|id| deleted.contains(id)));
    }
    Ok((original, rest))
}

fn merge_objects(
    mut merged: Vec<Value>,
    patch: &[Value],
    merge_key: &str,
    at: MergeType<'_>,
) -> Result<Vec<Value>, PatchError> {
    let mut positions: HashMap<Value, usize> = HashMap::new();
    for (i, item) in merged.iter().enumerate() {
        if let Some(id) = item.get(merge_key) {
            positions.entry(id.clone()).or_insert(i);
        }
    }
    for change in patch {
        let id = keyed(change, merge_key)?.clone();
        match positions.get(&id).and_then(|i| merged.get_mut(*i)) {
            Some(Value::Object(old)) => {
                let change: Map<String, Value> = change.as_object().cloned().unwrap_or_default();
                merge_map(old, change, at)?;
            }
            _ => {
                positions.insert(id, merged.len());
                merged.push(change.clone());
            }
        }
    }
    Ok(merged)
}

/// Rejects a patch list whose items are not all in `order`, in its order (deletions do not count).
pub(super) fn check_order(patch: &[Value], order: &[Value], merge_key: &str) -> Result<(), PatchError> {
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut left = order.iter();
    for item in patch {
        if !merge_key.is_empty() {
            let Value::Object(map) = item else {
                return Err(PatchError::wrong_type(GO_MAP, item));
            };
            if map.contains_key(DIRECTIVE) {
                continue;
            }
        }
        let id = keyed(item, merge_key)?;
        loop {
            match left.next() {
                Some(next) if keyed(next, merge_key)? == id => break,
                Some(_) => {}
                None => {
                    return Err(PatchError::Other(format!(
                        "The order in patch list:\n{}\n doesn't match {ELEMENT_ORDER} list:\n{}\n",
                        go_value(&patch.to_vec().into()),
                        go_value(&order.to_vec().into())
                    )));
                }
            }
        }
    }
    Ok(())
}

/// Orders `items`: those in `order` in that order, the others as in `original`, the two interleaved as in
/// `original` where it has both, else the ordered ones first.
pub(super) fn in_order(
    items: Vec<Value>,
    order: &[Value],
    original: &[Value],
    merge_key: &str,
) -> Result<Vec<Value>, PatchError> {
    for item in items.iter().chain(order).chain(original) {
        keyed(item, merge_key)?;
    }
    let order_positions = positions(order, merge_key);
    let original_positions = positions(original, merge_key);
    let position =
        |positions: &HashMap<&Value, usize>, item: &Value| positions.get(identity(item, merge_key)).copied();

    let (mut ordered, mut others): (Vec<_>, Vec<_>) = items
        .into_iter()
        .partition(|item| position(&order_positions, item).is_some());
    ordered.sort_by_key(|item| position(&order_positions, item));
    others.sort_by_key(|item| position(&original_positions, item));

    let mut out = Vec::with_capacity(ordered.len() + others.len());
    let mut others = others.into_iter().peekable();
    for item in ordered {
        while let Some(other) = others.peek() {
            match (
                position(&original_positions, other),
                position(&original_positions, &item),
            ) {
                (Some(before), Some(after)) if before < after => out.extend(others.next()),
                _ => break,
            }
        }
        out.push(item);
    }
    out.extend(others);
    Ok(out)
}

/// The first index of each identity.
fn positions<'a>(list: &'a [Value], merge_key: &str) -> HashMap<&'a Value, usize> {
    let mut positions = HashMap::with_capacity(list.len());
    for (i, item) in list.iter().enumerate() {
        positions.entry(identity(item, merge_key)).or_insert(i);
    }
    positions
}
