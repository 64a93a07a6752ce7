//! The schemas of custom kinds in documents of both versions.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use crate::custom::Definition;

const NAME: &str = "com.example.v1.Thing";

fn published(schema: Value, root: &'static str) -> Value {
    let crd: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "selectableFields": [{"jsonPath": ".spec.color"}], "schema": {"openAPIV3Schema": schema}}]},
        "status": {"conditions": [{"type": "Established", "status": "True", "lastTransitionTime": null, "reason": ""}]}
    }))
    .unwrap();
    let kind = Definition::of(&crd).unwrap().stored;
    let mut generator = knarr_apimachinery::schema::generator(root);
    let reference = kind.ops.schema(&mut generator);
    assert_eq!(reference.as_value(), &json!({"$ref": format!("#{root}/{NAME}")}));
    generator.take_definitions(false).remove(NAME).unwrap()
}

/// Without what every custom kind is published with.
fn own(mut schema: Value) -> Value {
    let fields = schema.as_object_mut().unwrap();
    assert!(fields.remove("x-kubernetes-group-version-kind").is_some());
    assert_eq!(
        fields.remove("x-kubernetes-selectable-fields"),
        Some(json!([{"fieldPath": "spec.color"}]))
    );
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        for name in ["apiVersion", "kind", "metadata"] {
            properties.remove(name);
        }
        if properties.is_empty() {
            fields.remove("properties");
        }
    }
    schema
}

#[test]
fn every_kind_has_described_type_fields_and_no_description_but_its_own() {
    for root in ["/definitions", "/components/schemas"] {
        let schema = published(json!({"type": "object"}), root);
        for (field, begins) in [
            ("apiVersion", "APIVersion defines"),
            ("kind", "Kind is a string"),
            ("metadata", "Standard object's metadata."),
        ] {
            let description = schema["properties"][field]["description"].as_str().unwrap();
            assert!(description.starts_with(begins), "{field}: {description}");
        }
        assert_eq!(own(schema), json!({"type": "object"}));
    }
}

#[test]
fn a_v2_document_omits_what_its_readers_would_reject() {
    let cases = [
        // Any value at the root: no property is published.
        (
            json!({"type": "object", "description": "d", "x-kubernetes-preserve-unknown-fields": true,
                "properties": {"spec": {"type": "object"}}}),
            json!({"type": "object"}),
        ),
        // Any value below the root.
        (
            json!({"type": "object", "properties": {"spec": {"type": "object", "description": "d",
                "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}}}}),
            json!({"type": "object", "properties": {"spec": {"description": "d", "x-kubernetes-preserve-unknown-fields": true}}}),
        ),
        // A nullable property, which becomes optional, too.
        (
            json!({"type": "object", "required": ["a", "b"], "properties": {
                "a": {"type": "object", "nullable": true, "properties": {"x": {"type": "string"}}}, "b": {"type": "string"}}}),
            json!({"type": "object", "required": ["b"], "properties": {"a": {}, "b": {"type": "string"}}}),
        ),
        // Alternatives.
        (
            json!({"type": "object", "properties": {"p": {"x-kubernetes-int-or-string": true,
                "anyOf": [{"type": "integer"}, {"type": "string"}]}}}),
            json!({"type": "object", "properties": {"p": {"x-kubernetes-int-or-string": true}}}),
        ),
        // Inside lists.
        (
            json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "object", "not": {}}}}}),
            json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "object"}}}}),
        ),
    ];
    for (given, expected) in cases {
        assert_eq!(own(published(given.clone(), "/definitions")), expected);
        assert_eq!(own(published(given.clone(), "/components/schemas")), given);
    }
}

#[test]
fn embedded_resources_require_their_type() {
    let given = |preserve: bool| {
        json!({"type": "object", "properties": {"o": {"type": "object", "x-kubernetes-embedded-resource": true,
            "x-kubernetes-preserve-unknown-fields": preserve}}})
    };
    let inner = |preserve, root| published(given(preserve), root)["properties"]["o"].clone();
    for root in ["/definitions", "/components/schemas"] {
        let object = inner(false, root);
        assert_eq!(object["required"], json!(["kind", "apiVersion"]));
        let meta = &object["properties"]["metadata"];
        // In OpenAPI 3.0 a reference has no siblings.
        let reference = match root {
            "/definitions" => &meta["$ref"],
            _ => &meta["allOf"][0]["$ref"],
        };
        let meta = reference.as_str().unwrap();
        assert!(
            meta.starts_with(&format!("#{root}/")) && meta.ends_with(".ObjectMeta"),
            "{meta}"
        );
    }
    assert_eq!(
        inner(true, "/components/schemas")["required"],
        json!(["kind", "apiVersion"])
    );
    assert!(inner(true, "/definitions").get("properties").is_none());
}
