//! The three patch types, on JSON values. The result of a patch is decoded, defaulted and validated like an update.
//!
//! All of them work in time about linear in document and patch, and none makes a document deeper than
//! [`MAX_DEPTH`], whatever the patch.

pub mod conversion;
pub mod json;
pub mod merge;
pub mod strategic;

use serde_json::Value;

use knarr_apimachinery::error::Error;

/// How deep objects and lists may nest: what `serde_json` reads back.
pub const MAX_DEPTH: usize = 127;

/// How deep `value` is: 0 for a scalar. Stops counting past [`MAX_DEPTH`].
fn depth(value: &Value) -> usize {
    fn below(value: &Value, left: usize) -> usize {
        if left == 0 {
            return 0;
        }
        match value {
            Value::Object(map) => 1 + map.values().map(|v| below(v, left - 1)).max().unwrap_or(0),
            Value::Array(list) => 1 + list.iter().map(|v| below(v, left - 1)).max().unwrap_or(0),
            _ => 0,
        }
    }
    below(value, MAX_DEPTH + 1)
}

/// 422 as Kubernetes answers a patch that parses and cannot be applied, without the reason.
fn cannot_apply() -> Error {
    let mut error = Error::new(
        422,
        "Invalid",
        "the server rejected our request due to an error in our request",
    );
    error.status_mut().details = Some(Default::default());
    error
}

/// A JSON value as Go's `%v` prints it, as in messages about strategic merge patches.
pub fn go_value(value: &Value) -> String {
    let mut out = String::new();
    write_go_value(value, &mut out);
    out
}

/// A JSON value as Go's `%#v` prints it.
pub(crate) fn go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".into(),
        Value::String(text) => format!("{text:?}"),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(list) => {
            let items: Vec<String> = list.iter().map(go_syntax).collect();
            format!("[]interface {{}}{{{}}}", items.join(", "))
        }
        Value::Object(map) => {
            let items = map
                .iter()
                .map(|(key, item)| format!("{key:?}:{}", go_syntax(item)));
            let items: Vec<String> = items.collect();
            format!("map[string]interface {{}}{{{}}}", items.join(", "))
        }
    }
}

fn write_go_value(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("<nil>"),
        Value::String(s) => out.push_str(s),
        Value::Bool(_) | Value::Number(_) => out.push_str(&value.to_string()),
        Value::Array(list) => {
            out.push('[');
            for (i, item) in list.iter().enumerate() {
                if i > 0 {
                    out.push(' ');
                }
                write_go_value(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push_str("map[");
            for (i, (key, item)) in map.iter().enumerate() {
                if i > 0 {
                    out.push(' ');
                }
                out.push_str(key);
                out.push(':');
                write_go_value(item, out);
            }
            out.push(']');
        }
    }
}

/// Go's name of a JSON value in errors.
fn go_json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
