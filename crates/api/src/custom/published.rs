//! The schema of a custom kind as OpenAPI documents publish it: with the fields that every object has, and in the terms of
//! the document's version.
//!
//! OpenAPI 2.0 knows neither `nullable` nor alternatives, and its readers (kubectl among them) take a described object
//! to be closed. So values that may be null or of any type are published with fewer constraints: never as
//! something that a reader would reject and the server would accept.

use std::sync::OnceLock;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_apimachinery::schema;
use schemars::SchemaGenerator;
use serde_json::{Map, Value, json};

use super::rules::Rules;

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";
/// The path of the definitions in an OpenAPI 2.0 document.
const V2_DEFINITIONS: &str = "/definitions";

/// Adds the kind's schema to the generator's definitions, and returns a reference to it.
pub(super) fn schema(rules: &Rules, generator: &mut SchemaGenerator) -> schemars::Schema {
    let root = generator.settings().definitions_path.to_string();
    let v2 = root == V2_DEFINITIONS;
    let meta = generator.subschema_for::<ObjectMeta>();
    let meta = format!(
        "#{root}/{}",
        schema::referred(meta.as_value()).unwrap_or_default()
    );
    let mut schema = match rules.schema.preserve_unknown && v2 {
        // A property would close the object for kubectl.
        true => json!({"type": "object"}),
        false => {
            let mut schema = rules.json.clone();
            integers(&mut schema);
            if v2 {
                simplify(&mut schema);
            }
            add_type_fields(&mut schema, &meta);
            embedded(&mut schema, &meta, v2);
            schema
        }
    };
    schema["x-kubernetes-group-version-kind"] =
        json!([{"group": rules.group, "version": rules.version, "kind": rules.kind}]);
    if !rules.selectable.is_empty() {
        let fields = rules
            .selectable
            .iter()
            .map(|(field, _)| json!({"fieldPath": field}));
        schema["x-kubernetes-selectable-fields"] = fields.collect();
    }
    let name = published_name(&rules.group, &rules.version, &rules.kind);
    generator.definitions_mut().insert(name.clone(), schema);
    schemars::Schema::new_ref(format!("#{root}/{name}"))
}

/// The name of the schema in OpenAPI documents, which begins with the group's labels in reverse order.
fn published_name(group: &str, version: &str, kind: &str) -> String {
    let mut labels: Vec<&str> = group.split('.').collect();
    labels.reverse();
    format!("{}.{version}.{kind}", labels.join("."))
}

/// `apiVersion`, `kind` and `metadata`, described as every built-in kind describes them.
fn add_type_fields(schema: &mut Value, meta: &str) {
    static DESCRIBED: OnceLock<Value> = OnceLock::new();
    let described = DESCRIBED.get_or_init(|| {
        let mut generator = schema::generator(V2_DEFINITIONS);
        let reference = schema::define::<ConfigMap>(&mut generator);
        let name = schema::referred(reference.as_value()).unwrap_or_default();
        let all = generator.take_definitions(false);
        all.get(name)
            .map(|schema| schema["properties"].clone())
            .unwrap_or_default()
    });
    let text = |field: &str| json!({"type": "string", "description": described[field]["description"]});
    let Some(schema) = schema.as_object_mut() else {
        return;
    };
    let properties = schema.entry("properties").or_insert_with(|| json!({}));
    properties["apiVersion"] = text("apiVersion");
    properties["kind"] = text("kind");
    properties["metadata"] = json!({"$ref": meta, "description": described["metadata"]["description"]});
}

/// Embedded resources have the same fields, and require two of them.
fn embedded(schema: &mut Value, meta: &str, v2: bool) {
    for below in children(schema) {
        embedded(below, meta, v2);
    }
    let says = |name: &str| schema.get(name).and_then(Value::as_bool) == Some(true);
    if !says(EMBEDDED) || (v2 && says(PRESERVE)) {
        return;
    }
    add_type_fields(schema, meta);
    if !v2 {
        // In OpenAPI 3.0 a reference has no siblings.
        let metadata = &mut schema["properties"]["metadata"];
        if let Some(reference) = metadata.as_object_mut().and_then(|m| m.remove("$ref")) {
            metadata["allOf"] = json!([{ "$ref": reference }]);
        }
    }
    let required = schema
        .as_object_mut()
        .map(|s| s.entry("required").or_insert_with(|| json!([])));
    if let Some(Value::Array(required)) = required {
        for field in ["kind", "apiVersion"] {
            if !required.iter().any(|known| known == field) {
                required.push(field.into());
            }
        }
    }
}

/// Writes integral limits (`minimum`, `multipleOf`, …) without a fraction, as they were given and as Go writes them.
fn integers(schema: &mut Value) {
    match schema {
        Value::Number(number) if number.is_f64() => {
            if let Some(whole) = number.as_f64().and_then(whole) {
                *schema = whole.into();
            }
        }
        Value::Object(fields) => {
            let own = |name: &String| !matches!(name.as_str(), "default" | "example" | "enum");
            let limits = fields.iter_mut().filter(|(name, _)| own(name));
            limits.for_each(|(_, value)| integers(value));
        }
        Value::Array(items) => items.iter_mut().for_each(integers),
        _ => {}
    }
}

/// The integer value of a float, if it is one that JSON's readers represent exactly.
fn whole(number: f64) -> Option<i64> {
    /// 2^53.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    let is_whole = number.fract() == 0.0 && number.abs() <= EXACT_MAX;
    is_whole.then(|| format!("{number:.0}").parse().ok()).flatten()
}

/// The schemas of properties, items and further properties.
fn children(schema: &mut Value) -> Vec<&mut Value> {
    let mut below = Vec::new();
    for (name, value) in schema.as_object_mut().into_iter().flatten() {
        match (name.as_str(), value) {
            ("properties", Value::Object(properties)) => below.extend(properties.values_mut()),
            ("items" | "additionalProperties", value @ Value::Object(_)) => below.push(value),
            _ => {}
        }
    }
    below
}

/// Removes what OpenAPI 2.0 and its readers do not support.
fn simplify(schema: &mut Value) {
    if let Some(schema) = schema.as_object_mut() {
        simplify_one(schema);
    }
    children(schema).into_iter().for_each(simplify);
}

fn is_nullable(schema: &Value) -> bool {
    schema.get("nullable").and_then(Value::as_bool) == Some(true)
}

fn simplify_one(schema: &mut Map<String, Value>) {
    for alternatives in ["allOf", "oneOf", "anyOf", "not"] {
        schema.remove(alternatives);
    }
    let preserves = schema.get(PRESERVE).and_then(Value::as_bool) == Some(true);
    let nullable = schema.remove("nullable") == Some(Value::Bool(true));
    if nullable || preserves {
        schema.remove("items");
        schema.remove("properties");
    }
    let of = schema.get("type").and_then(Value::as_str).unwrap_or_default();
    // In 2.0 an array must have items.
    if nullable || (of == "array" && !schema.contains_key("items")) || (of == "object" && preserves) {
        schema.remove("type");
    }
    // For these readers a nullable property is an optional one.
    let properties = schema.get("properties").and_then(Value::as_object);
    let may_be_null: Vec<String> = properties
        .into_iter()
        .flatten()
        .filter(|(_, property)| is_nullable(property))
        .map(|(name, _)| name.clone())
        .collect();
    let none_required = schema.get("additionalProperties").is_some_and(is_nullable);
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.retain(|field| !none_required && !may_be_null.iter().any(|name| field == name));
        if required.is_empty() {
            schema.remove("required");
        }
    }
}

#[cfg(test)]
mod tests;
