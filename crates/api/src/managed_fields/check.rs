//! Validation of an applied configuration against the schema, before it is merged.
//!
//! Atomic values are checked as well: an invalid value in one would be found only when the merged object is decoded,
//! after its conflicts were reported.

use std::collections::BTreeSet;

use knarr_apimachinery::schema::Scalar;
use serde_json::Value;

use super::set::shown;
use super::typed::Type;
use crate::patch::{go_syntax, go_type, go_value};
use crate::shape::{self, Field, Shape};

/// The schema errors of a value, with their paths.
pub fn errors(type_: Type<'_>, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check(type_, value, "", &mut found);
    found
}

/// Why a value is not of this scalar type.
fn mismatch(scalar: Scalar, value: &Value) -> Option<String> {
    let expected = match scalar {
        _ if scalar.takes(value) => return None,
        Scalar::Numeric => format!("expected numeric (int or float), got {}", go_type(value)),
        Scalar::String => format!(
            "expected string, got &value.valueUnstructured{{Value:{}}}",
            go_syntax(value)
        ),
        Scalar::Boolean => format!("expected boolean, got &{{{}}}", go_value(value)),
        Scalar::Untyped => format!("expected any scalar, got &{{{}}}", go_value(value)),
    };
    Some(expected)
}

fn say(found: &mut Vec<String>, path: &str, what: &str) {
    found.push(match path {
        "" => what.to_string(),
        path => format!("{path}: {what}"),
    });
}

fn check(type_: Type<'_>, value: &Value, path: &str, found: &mut Vec<String>) {
    if value.is_null() {
        return;
    }
    if let Type::Custom(node) = type_
        && let Some(what) = node.scalar().and_then(|scalar| mismatch(scalar, value))
    {
        return say(found, path, &what);
    }
    let type_ = type_.resolve(None, Some(value));
    if type_.is_map() {
        let Value::Object(map) = value else {
            return say(
                found,
                path,
                &format!("expected map, got &{{{}}}", go_value(value)),
            );
        };
        for (key, value) in map {
            let path = format!("{path}.{key}");
            let Some(field) = type_.field(key) else {
                return say(found, &path, "field not declared in schema");
            };
            let known = match type_ {
                Type::Struct(shape, of) => of.field(key).map(|known| (shape, known)),
                _ => None,
            };
            match known {
                Some((shape, known)) => check_field(shape, known, field, value, &path, found),
                None => check(field, value, &path, found),
            }
        }
    } else if type_.is_list() {
        let Value::Array(list) = value else {
            return say(
                found,
                path,
                &format!("expected list, got &{{{}}}", go_value(value)),
            );
        };
        let mut seen = BTreeSet::new();
        for (at, item) in list.iter().enumerate() {
            match type_.element(item) {
                Err(why) => return found.push(format!("{path}: element {at}: {why}")),
                Ok(element) => {
                    if !seen.insert(element.clone()) {
                        found.push(format!("{path}: duplicate entries for key {}", shown(&element)));
                    }
                    check(type_.item(), item, &format!("{path}{}", shown(&element)), found);
                }
            }
        }
    }
}

/// A field of a built-in type, which merges as `type_` says, and is checked in either case.
fn check_field(
    shape: &Shape,
    field: &Field,
    type_: Type<'_>,
    value: &Value,
    path: &str,
    found: &mut Vec<String>,
) {
    if value.is_null() {
        return;
    }
    let of = shape.type_of(field);
    let mut inside = |value: &Value, path: String| match of {
        Some(of) if of.is_opaque() => check_scalar(of.scalar, value, &path, found),
        Some(of) => check(Type::Struct(shape, of), value, &path, found),
        None => check_scalar(field.scalar, value, &path, found),
    };
    match (&field.value, value) {
        (shape::Value::Scalar | shape::Value::Struct(_), value) => inside(value, path.to_string()),
        (shape::Value::Map(_), Value::Object(map)) => {
            for (key, value) in map {
                inside(value, format!("{path}.{key}"));
            }
        }
        (shape::Value::Map(_), other) => {
            say(
                found,
                path,
                &format!("expected map, got &{{{}}}", go_value(other)),
            );
        }
        (shape::Value::List(_), Value::Array(list)) => {
            if !type_.is_list() {
                for (at, item) in list.iter().enumerate() {
                    inside(item, format!("{path}[{at}]"));
                }
                return;
            }
            if matches!(type_, Type::Set) {
                for item in list {
                    if let Ok(element) = type_.element(item) {
                        inside(item, format!("{path}{}", shown(&element)));
                    }
                }
            }
            check(type_, value, path, found);
        }
        (shape::Value::List(_), other) => {
            say(
                found,
                path,
                &format!("expected list, got &{{{}}}", go_value(other)),
            );
        }
    }
}

fn check_scalar(scalar: Option<Scalar>, value: &Value, path: &str, found: &mut Vec<String>) {
    if let Some(what) = scalar.and_then(|scalar| mismatch(scalar, value)) {
        say(found, path, &what);
    }
}

#[cfg(test)]
mod tests {
    use super::super::kind_type::type_of_kind;
    use super::*;
    use crate::kind::Kind;
    use crate::registry;
    use serde_json::json;

    #[test]
    fn scalars_of_built_in_kinds_are_checked() {
        let cases: [(&'static Kind, Value, &[&str]); 16] = [
            (
                &registry::DEPLOYMENT,
                json!({"spec": {"replicas": [1]}}),
                &[".spec.replicas: expected numeric (int or float), got []interface {}"],
            ),
            (
                &registry::DEPLOYMENT,
                json!({"spec": {"replicas": "3", "paused": "yes"}}),
                &[
                    ".spec.paused: expected boolean, got &{yes}",
                    ".spec.replicas: expected numeric (int or float), got string",
                ],
            ),
            (
                &registry::DEPLOYMENT,
                json!({"spec": {"replicas": null, "paused": true}}),
                &[],
            ),
            (
                &registry::CONFIG_MAP,
                json!({"data": {"a": 1, "b": "x"}, "immutable": {}}),
                &[
                    ".data.a: expected string, got &value.valueUnstructured{Value:1}",
                    ".immutable: expected boolean, got &{map[]}",
                ],
            ),
            (
                &registry::CONFIG_MAP,
                json!({"data": ["a"]}),
                &[".data: expected map, got &{[a]}"],
            ),
            (
                &registry::CONFIG_MAP,
                json!({"metadata": {"labels": {"a": ["x", 1]}, "finalizers": ["a", 7]}}),
                &[
                    ".metadata.finalizers[=7]: expected string, got &value.valueUnstructured{Value:7}",
                    ".metadata.labels.a: expected string, got &value.valueUnstructured{Value:[]interface {}{\"x\", 1}}",
                ],
            ),
            (
                &registry::CONFIG_MAP,
                json!({"metadata": {"creationTimestamp": {"now": true}, "generation": 1.5}}),
                &[".metadata.creationTimestamp: expected any scalar, got &{map[now:true]}"],
            ),
            // Atomic, and checked all the same.
            (
                &registry::DEPLOYMENT,
                json!({"spec": {"selector": {"matchLabels": {"a": 1}, "match": {}}}}),
                &[".spec.selector.match: field not declared in schema"],
            ),
            (
                &registry::DEPLOYMENT,
                json!({"spec": {"selector": {"matchLabels": {"a": 1}}}}),
                &[".spec.selector.matchLabels.a: expected string, got &value.valueUnstructured{Value:1}"],
            ),
            (
                &registry::POD,
                json!({"spec": {"containers": [{"name": "c", "args": ["a", 2], "command": "sh"}]}}),
                &[
                    ".spec.containers[name=\"c\"].args[1]: expected string, got &value.valueUnstructured{Value:2}",
                    ".spec.containers[name=\"c\"].command: expected list, got &{sh}",
                ],
            ),
            (
                &registry::POD,
                json!({"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": 1, "memory": "1Gi"}},
                    "livenessProbe": {"httpGet": {"port": "http"}}}]}}),
                &[],
            ),
            (
                &registry::POD,
                json!({"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": [1]}},
                    "livenessProbe": {"httpGet": {"port": {}}}}]}}),
                &[
                    ".spec.containers[name=\"c\"].livenessProbe.httpGet.port: expected any scalar, got &{map[]}",
                    ".spec.containers[name=\"c\"].resources.limits.cpu: expected any scalar, got &{[1]}",
                ],
            ),
            (
                &registry::POD,
                json!({"spec": {"tolerations": [{"key": 5}, "x"]}}),
                &[
                    ".spec.tolerations[0].key: expected string, got &value.valueUnstructured{Value:5}",
                    ".spec.tolerations[1]: expected map, got &{x}",
                ],
            ),
            (
                &registry::SECRET,
                json!({"data": {"a": 5, "b": "eA=="}}),
                &[".data.a: expected string, got &value.valueUnstructured{Value:5}"],
            ),
            // Any value.
            (
                &registry::CONTROLLER_REVISION,
                json!({"data": {"a": [1, {"b": "c"}]}, "revision": 1}),
                &[],
            ),
            (
                &registry::DEPLOYMENT,
                json!({"spec": [1]}),
                &[".spec: expected map, got &{[1]}"],
            ),
        ];
        for (kind, value, expected) in cases {
            let root = type_of_kind(kind).unwrap();
            assert_eq!(errors(root, &value), expected, "{value}");
        }
    }
}
