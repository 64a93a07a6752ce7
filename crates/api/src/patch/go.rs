//! JSON values and their types as Go prints them, in messages.

use serde_json::Value;

pub(super) const GO_MAP: &str = "map[string]interface {}";
pub(super) const GO_SLICE: &str = "[]interface {}";

/// A JSON value's type in Go. Two numbers are of one type only if both or none are integers.
pub(crate) fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "%!s(<nil>)",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => GO_SLICE,
        Value::Object(_) => GO_MAP,
    }
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
pub(super) fn go_json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
