//! JSON patch (RFC 6902), with the peculiarities of kube-apiserver's library, which clients rely on:
//! a path's text before its first slash does not count, negative indices count from the end, and `replace` of a key
//! that is not there adds it.

use knarr_apimachinery::error::Error;
use serde_json::{Map, Value};

use super::go::go_json_kind;
use super::{MAX_DEPTH, cannot_apply, depth};

/// How many operations one patch may have, as in Kubernetes.
pub const MAX_OPERATIONS: usize = 10_000;

/// How many bytes of JSON all `copy` operations of one patch may add, as in Kubernetes: twice a request's body.
pub const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// Applies `patch` (an array of operations). Kubernetes' errors: 400 for an invalid patch, 413 for one with
/// more than [`MAX_OPERATIONS`], 422 for one that fails; `doc` is then in an undefined state.
pub fn apply(doc: &mut Value, patch: &Value) -> Result<(), Error> {
    let operations = decode(patch)?;
    if operations.len() > MAX_OPERATIONS {
        return Err(Error::new(
            413,
            "RequestEntityTooLarge",
            format!(
                "Request entity too large: The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
                operations.len()
            ),
        ));
    }
    let mut copied_bytes = 0;
    for operation in &operations {
        perform(doc, operation, &mut copied_bytes).ok_or_else(cannot_apply)?;
    }
    Ok(())
}

/// Unknown members of operations, as paths (`[0].foo`) for warnings and strict errors.
pub fn unknown_fields(patch: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    for (i, operation) in patch.as_array().into_iter().flatten().enumerate() {
        for key in operation.as_object().into_iter().flat_map(Map::keys) {
            if !matches!(key.as_str(), "op" | "path" | "from" | "value") {
                unknown.push(format!("[{i}].{key}"));
            }
        }
    }
    unknown
}

#[derive(Default)]
struct Operation<'a> {
    op: &'a str,
    path: Option<&'a str>,
    from: Option<&'a str>,
    /// `None`: absent, which is not `null`.
    value: Option<&'a Value>,
}

fn decode(patch: &Value) -> Result<Vec<Operation<'_>>, Error> {
    let cannot_unmarshal = |found: &Value, into: &str| {
        Error::bad_request(format!(
            "error decoding patch: json: cannot unmarshal {} into {into}",
            go_json_kind(found)
        ))
    };
    let list = match patch {
        Value::Array(list) => list,
        Value::Null => return Ok(Vec::new()),
        other => return Err(cannot_unmarshal(other, "Go value of type []handlers.jsonPatchOp")),
    };
    list.iter()
        .map(|operation| {
            let members = match operation {
                Value::Object(members) => members,
                Value::Null => return Ok(Operation::default()),
                other => return Err(cannot_unmarshal(other, "Go value of type handlers.jsonPatchOp")),
            };
            let text = |name: &str| match members.get(name) {
                None | Some(Value::Null) => Ok(None),
                Some(Value::String(text)) => Ok(Some(text.as_str())),
                Some(other) => Err(cannot_unmarshal(
                    other,
                    &format!("Go struct field jsonPatchOp.{name} of type string"),
                )),
            };
            Ok(Operation {
                op: text("op")?.unwrap_or_default(),
                path: text("path")?,
                from: text("from")?,
                value: members.get("value"),
            })
        })
        .collect()
}

/// `None`: the operation fails.
fn perform(doc: &mut Value, operation: &Operation<'_>, copied_bytes: &mut usize) -> Option<()> {
    let path = operation.path?;
    match operation.op {
        "add" => add(doc, path, operation.value.cloned().unwrap_or(Value::Null)),
        "remove" => remove(doc, path).map(drop),
        "replace" => replace(doc, path, operation.value.cloned().unwrap_or(Value::Null)),
        "move" => {
            let value = remove(doc, operation.from?)?;
            add(doc, path, value)
        }
        "copy" => {
            let value = get(doc, operation.from?)?.cloned().unwrap_or(Value::Null);
            *copied_bytes += value.to_string().len();
            if *copied_bytes > MAX_COPIED_BYTES {
                return None;
            }
            add(doc, path, value)
        }
        "test" => {
            let found = if path.is_empty() {
                Some(&*doc)
            } else {
                get(doc, path)?
            };
            let null = &Value::Null;
            (found.unwrap_or(null) == operation.value.unwrap_or(null)).then_some(())
        }
        _ => None,
    }
}

/// The path's tokens, unescaped; `None` for an invalid path without a slash.
fn tokens(path: &str) -> Option<Vec<String>> {
    let (_, rest) = path.split_once('/')?;
    Some(
        rest.split('/')
            .map(|token| token.replace("~1", "/").replace("~0", "~"))
            .collect(),
    )
}

/// An index into a list of `len` items: from the end where negative.
fn index(token: &str, len: usize) -> Option<usize> {
    let at: i64 = token.parse().ok()?;
    let at = if at < 0 {
        at.checked_add(i64::try_from(len).ok()?)?
    } else {
        at
    };
    usize::try_from(at).ok().filter(|at| *at < len)
}

/// The parent object or list of the value at `path`, and the last token.
fn holder<'a>(doc: &'a mut Value, path: &str) -> Option<(&'a mut Value, String, usize)> {
    let mut tokens = tokens(path)?;
    let deep = tokens.len();
    let last = tokens.pop()?;
    let mut at = doc;
    for token in tokens {
        at = match at {
            Value::Object(map) => map.get_mut(&token)?,
            Value::Array(list) => {
                let i = index(&token, list.len())?;
                list.get_mut(i)?
            }
            _ => return None,
        };
    }
    matches!(at, Value::Object(_) | Value::Array(_)).then_some((at, last, deep))
}

/// The value at `path`: `Some(None)` for a missing key of an existing object.
fn get<'a>(doc: &'a mut Value, path: &str) -> Option<Option<&'a Value>> {
    match holder(doc, path)? {
        (Value::Object(map), key, _) => Some(map.get(&key)),
        (Value::Array(list), key, _) => list.get(index(&key, list.len())?).map(Some),
        _ => None,
    }
}

fn add(doc: &mut Value, path: &str, value: Value) -> Option<()> {
    let (holder, key, deep) = holder(doc, path)?;
    if deep + depth(&value) > MAX_DEPTH {
        return None;
    }
    match holder {
        Value::Object(map) => {
            map.insert(key, value);
        }
        Value::Array(list) if key == "-" => list.push(value),
        Value::Array(list) => {
            let at = index(&key, list.len() + 1)?;
            list.insert(at, value);
        }
        _ => return None,
    }
    Some(())
}

fn remove(doc: &mut Value, path: &str) -> Option<Value> {
    match holder(doc, path)? {
        (Value::Object(map), key, _) => map.remove(&key),
        (Value::Array(list), key, _) => {
            let at = index(&key, list.len())?;
            Some(list.remove(at))
        }
        _ => None,
    }
}

fn replace(doc: &mut Value, path: &str, value: Value) -> Option<()> {
    if path.is_empty() {
        if !matches!(value, Value::Object(_) | Value::Array(_)) {
            return None;
        }
        *doc = value;
        return Some(());
    }
    let (holder, key, deep) = holder(doc, path)?;
    if deep + depth(&value) > MAX_DEPTH {
        return None;
    }
    match holder {
        Value::Object(map) => {
            map.insert(key, value);
        }
        Value::Array(list) => {
            let at = index(&key, list.len())?;
            *list.get_mut(at)? = value;
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests;
