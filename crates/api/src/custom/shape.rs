//! Pruning and defaulting by a schema, before validation: unspecified fields are removed, absent fields
//! get their defaults, and nulls that the schema does not allow are dropped.

use serde_json::{Map, Value};

use knarr_cel::structural::{Additional, Schema};

/// The fields that every Kubernetes object has, specified or not.
const TYPE_META: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// The fields of an object's metadata, with the fields of their items where they are lists of objects.
const META: [(&str, &[&str]); 15] = [
    ("name", &[]),
    ("generateName", &[]),
    ("namespace", &[]),
    ("selfLink", &[]),
    ("uid", &[]),
    ("resourceVersion", &[]),
    ("generation", &[]),
    ("creationTimestamp", &[]),
    ("deletionTimestamp", &[]),
    ("deletionGracePeriodSeconds", &[]),
    ("labels", &[]),
    ("annotations", &[]),
    (
        "ownerReferences",
        &[
            "apiVersion",
            "kind",
            "name",
            "uid",
            "controller",
            "blockOwnerDeletion",
        ],
    ),
    ("finalizers", &[]),
    (
        "managedFields",
        &[
            "manager",
            "operation",
            "apiVersion",
            "time",
            "fieldsType",
            "fieldsV1",
            "subresource",
        ],
    ),
];

/// Removes unknown fields from an embedded resource's metadata. The metadata of the root is read before.
fn prune_metadata(metadata: &mut Value, path: &str, unknown: &mut Vec<String>) {
    let Value::Object(map) = metadata else { return };
    map.retain(|name, value| {
        let Some((_, below)) = META.iter().find(|(known, _)| known == name) else {
            unknown.push(format!("{path}.{name}"));
            return false;
        };
        if !below.is_empty() {
            for (i, item) in value.as_array_mut().into_iter().flatten().enumerate() {
                let Value::Object(item) = item else { continue };
                item.retain(|field, _| {
                    let known = below.contains(&field.as_str());
                    if !known {
                        unknown.push(format!("{path}.{name}[{i}].{field}"));
                    }
                    known
                });
            }
        }
        true
    });
}

/// Removes fields that the schema does not specify; their paths are added to `unknown`, in the order of the document.
/// At the `root`, and in embedded resources, apiVersion, kind and metadata are always known.
pub fn prune(value: &mut Value, schema: &Schema, root: bool, path: &str, unknown: &mut Vec<String>) {
    match value {
        Value::Object(map) => prune_map(map, schema, root, path, unknown),
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            for (i, item) in list.iter_mut().enumerate() {
                prune(item, items, false, &format!("{path}[{i}]"), unknown);
            }
        }
        _ => {}
    }
}

fn prune_map(
    map: &mut Map<String, Value>,
    schema: &Schema,
    root: bool,
    path: &str,
    unknown: &mut Vec<String>,
) {
    let child = |name: &str| match path {
        "" => name.to_string(),
        path => format!("{path}.{name}"),
    };
    map.retain(|name, value| {
        if (root || schema.embedded) && TYPE_META.contains(&name.as_str()) {
            if !root && name == "metadata" {
                prune_metadata(value, &child(name), unknown);
            }
            return true;
        }
        if let Some(schema) = schema.field(name) {
            prune(value, schema, false, &child(name), unknown);
            return true;
        }
        let known = schema.preserve_unknown || matches!(schema.additional, Some(Additional::Allowed(true)));
        if !known {
            unknown.push(child(name));
        }
        known
    });
}

fn means_nothing(value: &Value, schema: &Schema) -> bool {
    value.is_null() && !schema.nullable
}

/// Sets the schema's defaults, and drops nulls where the schema is not nullable.
pub fn default(value: &mut Value, schema: &Schema) {
    fill(value, schema);
    drop_nulls(value, schema);
}

fn fill(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(map) => {
            for (name, schema) in &schema.properties {
                let Some(default) = &schema.default else { continue };
                if map.get(name).is_none_or(|found| means_nothing(found, schema)) {
                    map.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in map.iter_mut() {
                let Some(schema) = schema.field(name) else {
                    continue;
                };
                fill_one(value, schema);
            }
        }
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            list.iter_mut().for_each(|item| fill_one(item, items));
        }
        _ => {}
    }
}

fn fill_one(value: &mut Value, schema: &Schema) {
    if let Some(default) = schema.default.as_ref().filter(|_| means_nothing(value, schema)) {
        *value = default.clone();
    }
    fill(value, schema);
}

fn drop_nulls(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(map) => map.retain(|name, value| match schema.field(name) {
            Some(schema) if means_nothing(value, schema) => false,
            Some(schema) => {
                drop_nulls(value, schema);
                true
            }
            None => true,
        }),
        Value::Array(list) => {
            if let Some(items) = &schema.items {
                list.iter_mut().for_each(|item| drop_nulls(item, items));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Schema {
        Schema::read(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "size": {"type": "integer", "default": 3},
                "note": {"type": "string", "nullable": true, "default": "none"},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {"strict": {"type": "object", "properties": {"a": {"type": "string"}}}}},
                "template": {"type": "object", "x-kubernetes-embedded-resource": true},
                "ports": {"type": "array", "items": {"type": "object", "properties": {
                    "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}}}},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            }},
        }}))
    }

    #[test]
    fn unspecified_fields_are_pruned_and_named() {
        let mut value = json!({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "x"}, "other": 1,
            "spec": {"size": 1, "wrong": true, "labels": {"any": "thing"},
                "free": {"any": {"thing": 1}, "strict": {"a": "1", "b": 2}},
                "template": {"kind": "Pod", "spec": {}, "metadata": {"labels": {"any": "thing"}, "label": {},
                    "ownerReferences": [{"kind": "K", "kinds": []}]}},
                "ports": [{"port": 1}, {"port": 2, "prot": "x"}]}});
        let mut unknown = Vec::new();
        prune(&mut value, &schema(), true, "", &mut unknown);
        unknown.sort();
        assert_eq!(
            unknown,
            [
                "other",
                "spec.free.strict.b",
                "spec.ports[1].prot",
                "spec.template.metadata.label",
                "spec.template.metadata.ownerReferences[0].kinds",
                "spec.template.spec",
                "spec.wrong"
            ]
        );
        assert_eq!(
            value["spec"],
            json!({"size": 1, "labels": {"any": "thing"},
                "free": {"any": {"thing": 1}, "strict": {"a": "1"}},
                "template": {"kind": "Pod", "metadata": {"labels": {"any": "thing"}, "ownerReferences": [{"kind": "K"}]}},
                "ports": [{"port": 1}, {"port": 2}]})
        );
    }

    #[test]
    fn absent_fields_get_their_defaults() {
        for (given, want) in [
            (json!({}), json!({"size": 3, "note": "none"})),
            (
                json!({"size": null, "note": null}),
                json!({"size": 3, "note": null}),
            ),
            (
                json!({"size": 1, "note": "n", "ports": [{}, {"protocol": "UDP"}], "labels": {"a": null}}),
                json!({"size": 1, "note": "n", "ports": [{"protocol": "TCP"}, {"protocol": "UDP"}], "labels": {}}),
            ),
        ] {
            let mut value = json!({"spec": given});
            default(&mut value, &schema());
            assert_eq!(value["spec"], want);
        }
        let mut value = json!({});
        default(&mut value, &schema());
        assert_eq!(value, json!({}), "a default does not make its parent");
    }
}
