//! Validates an object by its schema, in the order and with the messages of Kubernetes' validator (kube-openapi `validate`).

use serde_json::{Map, Value};

use knarr_apimachinery::field::{Cause, ErrorList, FieldError, quoted};
use knarr_cel::structural::{Additional, Schema};

/// Validates `value`. `path` is empty for the root.
pub fn validate(value: &Value, schema: &Schema, path: &str, errors: &mut ErrorList) {
    check_type(value, schema, path, errors);
    if value.is_null() {
        check_enum(value, schema, path, errors);
        return;
    }
    check_combinations(value, schema, path, errors);
    match value {
        Value::String(text) => check_text(text, value, schema, path, errors),
        Value::Number(_) => check_number(value, schema, path, errors),
        Value::Array(list) => check_list(list, value, schema, path, errors),
        _ => {}
    }
    check_enum(value, schema, path, errors);
    if let Value::Object(map) = value {
        check_map(map, value, schema, path, errors);
    }
}

/// A value as an error shows it.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Null => quoted(""),
        other => other.to_string(),
    }
}

fn push_error(
    errors: &mut ErrorList,
    cause: Cause,
    path: &str,
    value: Option<String>,
    detail: impl Into<String>,
) {
    errors.push(FieldError {
        cause,
        field: if path.is_empty() {
            "<nil>".into()
        } else {
            path.to_string()
        },
        value,
        detail: detail.into(),
    });
}

fn invalid(errors: &mut ErrorList, path: &str, value: &Value, detail: String) {
    push_error(errors, Cause::Invalid, path, Some(shown(value)), detail);
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn check_type(value: &Value, schema: &Schema, path: &str, errors: &mut ErrorList) {
    let types = schema.types();
    if types.is_empty() {
        return;
    }
    let found = type_of(value);
    let whole = || value.as_f64().is_some_and(|n| n.fract() == 0.0);
    let fits = types.iter().any(|expected| match *expected {
        "number" => found == "number" || found == "integer",
        "integer" => found == "integer" || (found == "number" && whole()),
        expected => expected == found,
    });
    if fits || (value.is_null() && schema.nullable) {
        return;
    }
    let detail = format!(
        "{path} in body must be of type {}: {}",
        types.join(","),
        quoted(found)
    );
    push_error(errors, Cause::TypeInvalid, path, Some(quoted(found)), detail);
}

fn check_enum(value: &Value, schema: &Schema, path: &str, errors: &mut ErrorList) {
    if schema.enumeration.is_empty() || schema.enumeration.contains(value) {
        return;
    }
    let allowed = schema.enumeration.iter().map(|v| match v {
        Value::String(text) => quoted(text),
        other => quoted(&other.to_string()),
    });
    let allowed: Vec<String> = allowed.collect();
    let detail = format!("supported values: {}", allowed.join(", "));
    push_error(errors, Cause::NotSupported, path, Some(shown(value)), detail);
}

fn check_text(text: &str, value: &Value, schema: &Schema, path: &str, errors: &mut ErrorList) {
    let chars = text.chars().count();
    if let Some(max) = schema.max_length.filter(|max| chars > *max) {
        push_error(
            errors,
            Cause::TooLong,
            path,
            None,
            format!("may not be more than {max} bytes"),
        );
    }
    if let Some(min) = schema.min_length.filter(|min| chars < *min) {
        invalid(
            errors,
            path,
            value,
            format!("{path} in body should be at least {min} chars long"),
        );
    }
    if let Some(pattern) = &schema.pattern
        && pattern.regex.as_ref().is_some_and(|r| !r.is_match(text))
    {
        invalid(
            errors,
            path,
            value,
            format!("{path} in body should match '{}'", pattern.text),
        );
    }
    if !knarr_apimachinery::formats::fits(&schema.format, text) {
        let detail = format!(
            "{path} in body must be of type {}: {}",
            schema.format,
            quoted(text)
        );
        push_error(errors, Cause::TypeInvalid, path, Some(shown(value)), detail);
    }
}

fn check_number(value: &Value, schema: &Schema, path: &str, errors: &mut ErrorList) {
    let n = value.as_f64().unwrap_or_default();
    if let Some(of) = schema.multiple_of
        && of > 0.0
        && (n / of).fract() != 0.0
    {
        invalid(
            errors,
            path,
            value,
            format!("{path} in body should be a multiple of {of}"),
        );
    }
    if let Some(max) = schema.maximum {
        let (out, detail) = match schema.exclusive_maximum {
            true => (n >= max, "less than"),
            false => (n > max, "less than or equal to"),
        };
        if out {
            invalid(
                errors,
                path,
                value,
                format!("{path} in body should be {detail} {max}"),
            );
        }
    }
    if let Some(min) = schema.minimum {
        let (out, detail) = match schema.exclusive_minimum {
            true => (n <= min, "greater than"),
            false => (n < min, "greater than or equal to"),
        };
        if out {
            invalid(
                errors,
                path,
                value,
                format!("{path} in body should be {detail} {min}"),
            );
        }
    }
}

fn check_counts(
    found: usize,
    (min, max): (Option<usize>, Option<usize>),
    what: &str,
    path: &str,
    errors: &mut ErrorList,
) {
    if let Some(min) = min.filter(|min| found < *min) {
        let detail = format!("{path} in body should have at least {min} {what}");
        push_error(errors, Cause::Invalid, path, Some(found.to_string()), detail);
    }
    if let Some(max) = max.filter(|max| found > *max) {
        let items = if max == 1 { "item" } else { "items" };
        let detail = format!("must have at most {max} {items}");
        push_error(errors, Cause::TooMany, path, Some(found.to_string()), detail);
    }
}

fn check_list(list: &[Value], value: &Value, schema: &Schema, path: &str, errors: &mut ErrorList) {
    if let Some(items) = &schema.items {
        for (i, item) in list.iter().enumerate() {
            validate(item, items, &format!("{path}[{i}]"), errors);
        }
    }
    check_counts(
        list.len(),
        (schema.min_items, schema.max_items),
        "items",
        path,
        errors,
    );
    if schema.unique_items && list.iter().enumerate().any(|(i, item)| list[..i].contains(item)) {
        invalid(
            errors,
            path,
            value,
            format!("{path} in body shouldn't contain duplicates"),
        );
    }
}

fn check_map(map: &Map<String, Value>, value: &Value, schema: &Schema, path: &str, errors: &mut ErrorList) {
    let child = |name: &str| match path {
        "" => name.to_string(),
        path => format!("{path}.{name}"),
    };
    let counts = (schema.min_properties, schema.max_properties);
    check_counts(map.len(), counts, "properties", path, errors);
    for name in &schema.required {
        if !map.contains_key(name) {
            push_error(errors, Cause::Required, &child(name), None, "");
        }
    }
    for (name, found) in map {
        match (schema.properties.get(name), &schema.additional) {
            (Some(schema), _) => validate(found, schema, &child(name), errors),
            (None, Some(Additional::Schema(schema))) => validate(found, schema, &child(name), errors),
            (None, Some(Additional::Allowed(false))) => {
                let detail = format!("{} in body is a forbidden property", child(name));
                invalid(errors, path, value, detail);
            }
            (None, _) => {}
        }
    }
}

/// Checks anyOf, oneOf, allOf and not.
fn check_combinations(value: &Value, schema: &Schema, path: &str, errors: &mut ErrorList) {
    let of = |schema: &Schema| {
        let mut found = ErrorList::new();
        validate(value, schema, path, &mut found);
        found
    };
    let push_for_value = |detail: String, more: Option<ErrorList>, errors: &mut ErrorList| {
        errors.push(FieldError {
            cause: Cause::Invalid,
            field: "<nil>".into(),
            value: Some(quoted("")),
            detail,
        });
        errors.extend(more.unwrap_or_default());
    };
    let at = quoted(path);
    if !schema.any_of.is_empty() {
        let found: Vec<ErrorList> = schema.any_of.iter().map(of).collect();
        if !found.iter().any(ErrorList::is_empty) {
            let closest = found.into_iter().min_by_key(ErrorList::len);
            push_for_value(
                format!("{at} must validate at least one schema (anyOf)"),
                closest,
                errors,
            );
        }
    }
    if !schema.one_of.is_empty() {
        let found: Vec<ErrorList> = schema.one_of.iter().map(of).collect();
        let valid = found.iter().filter(|e| e.is_empty()).count();
        let detail = format!("{at} must validate one and only one schema (oneOf)");
        match valid {
            0 => {
                let closest = found.into_iter().min_by_key(ErrorList::len);
                push_for_value(format!("{detail}. Found none valid"), closest, errors);
            }
            1 => {}
            n => push_for_value(format!("{detail}. Found {n} valid alternatives"), None, errors),
        }
    }
    if !schema.all_of.is_empty() {
        let found: Vec<ErrorList> = schema.all_of.iter().map(of).collect();
        let valid = found.iter().filter(|e| e.is_empty()).count();
        let all = found.len();
        for more in found {
            errors.extend(more);
        }
        let detail = format!("{at} must validate all the schemas (allOf)");
        match valid {
            0 => push_for_value(format!("{detail}. None validated"), None, errors),
            n if n < all => push_for_value(detail, None, errors),
            _ => {}
        }
    }
    if let Some(not) = &schema.not
        && of(not).is_empty()
    {
        push_for_value(format!("{at} must not validate the schema (not)"), None, errors);
    }
}

/// Checks that lists of type set or map have no duplicate items.
pub fn check_lists(value: &Value, schema: &Schema, path: &str, errors: &mut ErrorList) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let at = match (path, schema.properties.contains_key(name)) {
                    ("", _) => name.clone(),
                    (path, true) => format!("{path}.{name}"),
                    (path, false) => format!("{path}[{name}]"),
                };
                if let Some(schema) = schema.field(name) {
                    check_lists(value, schema, &at, errors);
                }
            }
        }
        Value::Array(list) => {
            check_duplicates(list, schema, path, errors);
            if let Some(items) = &schema.items {
                for (i, item) in list.iter().enumerate() {
                    check_lists(item, items, &format!("{path}[{i}]"), errors);
                }
            }
        }
        _ => {}
    }
}

fn check_duplicates(list: &[Value], schema: &Schema, path: &str, errors: &mut ErrorList) {
    let keyed: Vec<Value> = match schema.list_type.as_str() {
        "set" => list.to_vec(),
        "map" => {
            let object = |(i, item): (usize, &Value)| {
                (!item.is_object() && !item.is_null()).then_some((i, item.clone()))
            };
            if let Some((i, item)) = list.iter().enumerate().find_map(object) {
                let detail = "must be an object for an array of list-type map";
                return push_error(
                    errors,
                    Cause::Invalid,
                    &format!("{path}[{i}]"),
                    Some(shown(&item)),
                    detail,
                );
            }
            let key = |item: &Value| -> Value {
                let keys = schema.list_map_keys.iter();
                let found = keys.filter_map(|k| Some((k.clone(), item.get(k)?.clone())));
                Value::Object(found.collect())
            };
            list.iter().map(key).collect()
        }
        _ => return,
    };
    // Each duplicate value is reported once.
    let mut seen = std::collections::HashMap::<String, usize>::new();
    for (i, key) in keyed.iter().enumerate() {
        let times = seen.entry(key.to_string()).or_default();
        *times += 1;
        if *times == 2 {
            push_error(
                errors,
                Cause::Duplicate,
                &format!("{path}[{i}]"),
                Some(shown(key)),
                "",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_are_worded_as_by_kubernetes() {
        for (schema, value, want) in [
            (
                json!({"type": "integer"}),
                json!("x"),
                "f: Invalid value: \"string\": f in body must be of type integer: \"string\"",
            ),
            (
                json!({"type": "integer"}),
                json!(1.5),
                "f: Invalid value: \"number\": f in body must be of type integer: \"number\"",
            ),
            (json!({"type": "integer"}), json!(2.0), ""),
            (
                json!({"type": "string"}),
                json!(null),
                "f: Invalid value: \"null\": f in body must be of type string: \"null\"",
            ),
            (json!({"type": "string", "nullable": true}), json!(null), ""),
            (
                json!({"x-kubernetes-int-or-string": true}),
                json!(true),
                "f: Invalid value: \"boolean\": f in body must be of type integer,string: \"boolean\"",
            ),
            (
                json!({"type": "string", "maxLength": 2}),
                json!("abc"),
                "f: Too long: may not be more than 2 bytes",
            ),
            (
                json!({"type": "string", "minLength": 4}),
                json!("abc"),
                "f: Invalid value: \"abc\": f in body should be at least 4 chars long",
            ),
            (
                json!({"type": "string", "pattern": "^a+$"}),
                json!("b"),
                "f: Invalid value: \"b\": f in body should match '^a+$'",
            ),
            (
                json!({"type": "string", "enum": ["a", "b"]}),
                json!("c"),
                "f: Unsupported value: \"c\": supported values: \"a\", \"b\"",
            ),
            (
                json!({"type": "integer", "minimum": 1}),
                json!(0),
                "f: Invalid value: 0: f in body should be greater than or equal to 1",
            ),
            (
                json!({"type": "integer", "maximum": 5, "exclusiveMaximum": true}),
                json!(5),
                "f: Invalid value: 5: f in body should be less than 5",
            ),
            (
                json!({"type": "integer", "multipleOf": 2}),
                json!(3),
                "f: Invalid value: 3: f in body should be a multiple of 2",
            ),
            (
                json!({"type": "array", "maxItems": 1, "items": {"type": "integer"}}),
                json!([1, 2]),
                "f: Too many: 2: must have at most 1 item",
            ),
            (
                json!({"type": "array", "minItems": 1}),
                json!([]),
                "f: Invalid value: 0: f in body should have at least 1 items",
            ),
            (
                json!({"type": "array", "items": {"type": "integer"}}),
                json!([1, "a"]),
                "f[1]: Invalid value: \"string\": f[1] in body must be of type integer: \"string\"",
            ),
            (
                json!({"type": "object", "required": ["a"]}),
                json!({}),
                "f.a: Required value",
            ),
            (
                json!({"type": "object", "additionalProperties": {"type": "boolean"}}),
                json!({"k": 1}),
                "f.k: Invalid value: \"integer\": f.k in body must be of type boolean: \"integer\"",
            ),
            (
                json!({"type": "string", "format": "ipv4"}),
                json!("300.1.1.1"),
                "f: Invalid value: \"300.1.1.1\": f in body must be of type ipv4: \"300.1.1.1\"",
            ),
            (
                json!({"not": {"type": "string"}}),
                json!("a"),
                "<nil>: Invalid value: \"\": \"f\" must not validate the schema (not)",
            ),
            (
                json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
                json!({"a": 1, "b": 1}),
                "<nil>: Invalid value: \"\": \"f\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
            ),
            (
                json!({"anyOf": [{"required": ["a"]}]}),
                json!({}),
                "<nil>: Invalid value: \"\": \"f\" must validate at least one schema (anyOf); f.a: Required value",
            ),
        ] {
            let mut errors = ErrorList::new();
            validate(&value, &Schema::read(&schema), "f", &mut errors);
            let found: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(found.join("; "), want, "{schema} {value}");
        }
    }

    #[test]
    fn lists_of_type_set_and_map_have_no_duplicates() {
        let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
        let map = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object"}});
        for (schema, value, want) in [
            (&set, json!(["a", "b"]), ""),
            (&set, json!(["a", "b", "a", "a"]), "f[2]: Duplicate value: \"a\""),
            (
                &map,
                json!([{"k": "a", "v": 1}, {"k": "a", "v": 2}]),
                "f[1]: Duplicate value: {\"k\":\"a\"}",
            ),
            (
                &map,
                json!([1]),
                "f[0]: Invalid value: 1: must be an object for an array of list-type map",
            ),
        ] {
            let mut errors = ErrorList::new();
            check_lists(&value, &Schema::read(schema), "f", &mut errors);
            let found: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(found.join("; "), want, "{value}");
        }
    }
}
