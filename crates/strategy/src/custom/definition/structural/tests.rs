//! What of a schema is not structural.

use super::*;
use serde_json::json;

fn errors_of(schema: Value) -> Vec<String> {
    let mut errors = ErrorList::new();
    check(&schema, &Path::new("s"), false, &mut errors);
    errors.iter().map(ToString::to_string).collect()
}

fn with(spec: Value) -> Value {
    json!({"type": "object", "properties": {"spec": spec}})
}

#[test]
fn schemas_that_are_not_structural_are_rejected_with_the_reason() {
    for (schema, want) in [
        (json!({"type": "object"}), ""),
        (json!({}), "s.type: Required value: must not be empty at the root"),
        (
            json!({"type": "array", "items": {"type": "string"}}),
            "s.type: Invalid value: \"array\": must be object at the root",
        ),
        (
            with(json!({})),
            "s.properties[spec].type: Required value: must not be empty for specified object fields",
        ),
        (
            with(json!({"type": "array"})),
            "s.properties[spec].items: Required value: must be specified",
        ),
        (
            with(json!({"type": "array", "items": {}})),
            "s.properties[spec].items.type: Required value: must not be empty for specified array items",
        ),
        (
            with(json!({"type": "strin"})),
            "s.properties[spec].type: Unsupported value: \"strin\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
        ),
        (
            with(
                json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
            ),
            "",
        ),
        (with(json!({"x-kubernetes-preserve-unknown-fields": true})), ""),
        (
            with(
                json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
            ),
            "s.properties[spec].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
        ),
        (
            with(json!({"type": "object", "anyOf": [{"properties": {"a": {"minLength": 1}}}]})),
            "s.properties[spec].properties[a]: Required value: because it is defined in s.properties[spec].anyOf[0].properties[a]",
        ),
        (
            with(json!({"type": "integer", "allOf": [{"type": "integer"}]})),
            "s.properties[spec].allOf[0].type: Forbidden: must be empty to be structural",
        ),
        (
            with(json!({"type": "integer", "default": "x"})),
            "s.properties[spec].default: Invalid value: \"string\": s.properties[spec].default in body must be of type integer: \"string\"",
        ),
        (
            with(
                json!({"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object", "properties": {"k": {"type": "string"}}},
            "x-kubernetes-list-map-keys": ["k"]}),
            ),
            "s.properties[spec].items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
        ),
        (
            with(
                json!({"type": "string", "x-kubernetes-validations": [{"rule": "self.size() > 1", "reason": "Why"}]}),
            ),
            "s.properties[spec].x-kubernetes-validations[0].reason: Unsupported value: \"Why\": supported values: \"FieldValueDuplicate\", \"FieldValueForbidden\", \"FieldValueInvalid\", \"FieldValueRequired\"",
        ),
        (
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
            "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
        ),
    ] {
        assert_eq!(errors_of(schema.clone()).join("; "), want, "{schema}");
    }
}

#[test]
fn a_schema_that_nests_too_deeply_is_rejected() {
    let mut schema = json!({"type": "string"});
    for _ in 0..100 {
        schema = json!({"type": "object", "properties": {"a": schema}});
    }
    assert!(
        errors_of(schema)
            .iter()
            .any(|e| e.contains("must not nest deeper"))
    );
}
