//! The declared type of a schema for CEL expressions: its types, and how large its values can be in a request.
//!
//! Values without a type, and everything that contains them, are not visible to expressions.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::{Additional, Schema};
use crate::check::Type;
use crate::check::declared::{
    BOOL_MIN, BRACKETS, DATE, DATE_TIME_MAX, DATE_TIME_MIN, DURATION_MAX, DURATION_MIN, Declared, NUMBER_MIN,
    REQUEST_MAX_BYTES, STRING_MIN, Shape, entries_that_fit, items_that_fit,
};

/// The longest string in a request, without its quotation marks.
const STRING_MAX: u64 = REQUEST_MAX_BYTES - 2;
/// Bytes that a character can take.
const BYTES_PER_CHARACTER: u64 = 4;

/// The type of a schema, under a name for its objects; `None` where it is not visible to expressions.
/// `is_resource`: it is a Kubernetes object, which has apiVersion, kind and the names in metadata.
pub fn declared(schema: &Schema, is_resource: bool, name: &str) -> Option<Declared> {
    let count = |n: usize| n as u64;
    if schema.int_or_string {
        let max = schema
            .max_length
            .map_or(STRING_MAX, |n| count(n).saturating_mul(BYTES_PER_CHARACTER));
        return Some(Declared::simple(Type::Dyn, 1, max));
    }
    if is_resource && schema.of == "object" {
        return object(schema, true, name);
    }
    match schema.of.as_str() {
        "array" => {
            let items = schema.items.as_deref()?;
            let items = declared(items, items.embedded, &format!("{name}.@idx"))?;
            let max = schema
                .max_items
                .map_or_else(|| items_that_fit(items.min_size), count);
            Some(Declared::list(items, max))
        }
        "object" => object(schema, is_resource, name),
        "string" => Some(string(schema)),
        "boolean" => Some(Declared::simple(Type::Bool, BOOL_MIN, 0)),
        "number" => Some(Declared::simple(Type::Double, NUMBER_MIN, 0)),
        "integer" => Some(Declared::simple(Type::Int, NUMBER_MIN, 0)),
        _ => None,
    }
}

fn string(schema: &Schema) -> Declared {
    let given = schema.max_length.map(|n| n as u64);
    match schema.format.as_str() {
        "byte" => Declared::simple(Type::Bytes, STRING_MIN, given.unwrap_or(STRING_MAX)),
        "duration" => Declared::simple(Type::Duration, DURATION_MIN, DURATION_MAX),
        "date" => Declared::simple(Type::Timestamp, DATE, DATE),
        "date-time" => Declared::simple(Type::Timestamp, DATE_TIME_MIN, DATE_TIME_MAX),
        _ => {
            let listed = schema
                .enumeration
                .iter()
                .filter_map(Value::as_str)
                .map(str::len)
                .max();
            let max = match (given, schema.enumeration.is_empty()) {
                (Some(given), _) => given.saturating_mul(BYTES_PER_CHARACTER),
                (None, true) => STRING_MAX,
                (None, false) => listed.unwrap_or_default() as u64,
            };
            Declared::simple(Type::String, STRING_MIN, max)
        }
    }
}

fn object(schema: &Schema, is_resource: bool, name: &str) -> Option<Declared> {
    if let Some(Additional::Schema(values)) = &schema.additional {
        let values = declared(values, values.embedded, &format!("{name}.@elem"))?;
        let max = match schema.max_properties {
            Some(n) => n as u64,
            None => entries_that_fit(values.min_size),
        };
        return Some(Declared::map(values, max));
    }
    let mut fields = BTreeMap::new();
    let mut min_size = BRACKETS;
    for (field, of) in &schema.properties {
        let shown = escaped(field);
        let type_name = format!("{name}.{}", shown.as_deref().unwrap_or(field));
        let Some(of_field) = declared(of, of.embedded, &type_name) else {
            continue;
        };
        // A field with a default is not required in a request.
        if of.default.is_none() && schema.required.contains(field) {
            min_size += field.len() as u64 + of_field.min_size + 4;
        }
        if let Some(shown) = shown {
            fields.insert(shown, Arc::new(of_field));
        }
    }
    if is_resource {
        let text = || Declared::simple(Type::String, STRING_MIN, STRING_MAX);
        let names = [("name", text()), ("generateName", text())];
        let metadata = Declared::object(&format!("{name}.metadata"), names);
        for (field, of) in [("apiVersion", text()), ("kind", text()), ("metadata", metadata)] {
            fields.insert(field.into(), Arc::new(of));
        }
    }
    Some(Declared {
        shape: Shape::Object {
            name: name.into(),
            fields,
        },
        max_elements: 0,
        min_size,
    })
}

/// Reserved words of CEL.
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// A property's name as expressions write it; `None` where they cannot.
pub fn escaped(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let writable = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    name.chars().all(writable).then(|| {
        name.replace("__", "__underscores__")
            .replace('.', "__dot__")
            .replace('-', "__dash__")
            .replace('/', "__slash__")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_written_as_expressions_can() {
        for (name, want) in [
            ("a", Some("a")),
            ("a-b.c/d", Some("a__dash__b__dot__c__slash__d")),
            ("a__b", Some("a__underscores__b")),
            ("namespace", Some("__namespace__")),
            ("namespaces", Some("namespaces")),
            ("1a", None),
            ("a b", None),
            ("", None),
        ] {
            assert_eq!(escaped(name).as_deref(), want, "{name}");
        }
    }

    /// The type, how many elements, and the fewest bytes.
    fn read(schema: Value) -> Option<(String, u64, u64)> {
        let found = declared(&Schema::read(&schema), false, "self")?;
        Some((found.cel_type().to_string(), found.max_elements, found.min_size))
    }

    #[test]
    fn types_and_sizes_come_from_the_schema() {
        for (schema, want) in [
            (json!({"type": "string"}), Some(("string", 3_145_726, 2))),
            (
                json!({"type": "string", "maxLength": 10}),
                Some(("string", 40, 2)),
            ),
            (
                json!({"type": "string", "enum": ["a", "abc"]}),
                Some(("string", 3, 2)),
            ),
            (
                json!({"type": "string", "format": "byte"}),
                Some(("bytes", 3_145_726, 2)),
            ),
            (
                json!({"type": "string", "format": "date-time"}),
                Some(("timestamp", 32, 21)),
            ),
            (
                json!({"type": "string", "format": "duration"}),
                Some(("duration", 32, 3)),
            ),
            (json!({"type": "boolean"}), Some(("bool", 0, 4))),
            (json!({"type": "number"}), Some(("double", 0, 1))),
            (
                json!({"x-kubernetes-int-or-string": true}),
                Some(("dyn", 3_145_726, 1)),
            ),
            (
                json!({"type": "array", "items": {"type": "string"}}),
                Some(("list(string)", 1_048_575, 2)),
            ),
            (
                json!({"type": "array", "maxItems": 5, "items": {"type": "integer"}}),
                Some(("list(int)", 5, 2)),
            ),
            (
                json!({"type": "object", "additionalProperties": {"type": "string"}}),
                Some(("map(string, string)", 393_215, 2)),
            ),
            (
                json!({"type": "object", "required": ["a", "b"], "properties": {
                    "a": {"type": "string"}, "b": {"type": "integer", "default": 1}, "c": {}}}),
                Some(("self", 0, 9)),
            ),
            (json!({"type": "array", "items": {}}), None),
            (json!({"x-kubernetes-preserve-unknown-fields": true}), None),
        ] {
            let found = read(schema.clone());
            let found = found.as_ref().map(|(of, max, min)| (of.as_str(), *max, *min));
            assert_eq!(found, want, "{schema}");
        }
    }
}
