//! Server-side apply to custom resources: lists and maps merge as their schemas say.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::custom::Definition;
use crate::kind::Kind;
use crate::managed_fields::{ApplyError, FieldSet, Managed, ManagerId, Operation, blank};

fn kind() -> Kind {
    let item = json!({"type": "object", "properties": {"name": {"type": "string"}, "port": {"type": "integer"},
        "protocol": {"type": "string", "default": "TCP"}}, "required": ["name"]});
    let crd: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [
                {"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                 "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "size": {"type": "integer"},
                        "any": {"x-kubernetes-preserve-unknown-fields": true},
                        "either": {"x-kubernetes-int-or-string": true},
                        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                        "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
                        "plain": {"type": "array", "items": {"type": "string"}},
                        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                        "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "protocol"], "items": item}}},
                    "status": {"type": "object", "properties": {"ready": {"type": "integer"}}}}}}},
                {"name": "v1beta1", "served": true, "storage": false,
                 "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
        "status": {"acceptedNames": {"plural": "", "kind": ""}, "conditions": [{"type": "Established", "status": "True"}]}
    }))
    .unwrap();
    Definition::of(&crd).unwrap().stored
}

fn widget(spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w", "namespace": "n"}, "spec": spec})
}

fn by(kind: &Kind, name: &str, operation: Operation) -> ManagerId {
    ManagerId::new(name, operation, kind, "")
}

fn message_of(error: ApplyError) -> String {
    match error {
        ApplyError::Conflicts(conflicts) => conflicts.to_string(),
        ApplyError::Schema(errors) => errors.join("; "),
    }
}

/// One manager applies the first configuration, then another (or the same) one the second: the spec at the end,
/// and the fields of both.
fn after(first: Value, who: &str, second: Value) -> Result<(Value, Vec<String>), String> {
    let kind = &kind();
    let apply = |managed: Managed, live: &Value, config: Value, name: &str| {
        let id = by(kind, name, Operation::Apply);
        managed.apply(kind, live, &widget(config), id, false, Timestamp::UNIX_EPOCH)
    };
    let made = apply(Managed::default(), blank(kind), first, "one").map_err(message_of)?;
    let live = made.object.unwrap();
    let made = apply(made.managed, &live, second, who).map_err(message_of)?;
    let held = made.managed.encode().unwrap_or_default().into_iter().map(|e| {
        let set = e.fields_v1.and_then(|f| FieldSet::read(&f.0)).unwrap_or_default();
        let fields = set.root()["f:spec"].to_string();
        format!("{} {fields}", e.manager.unwrap_or_default())
    });
    let spec = made.object.unwrap_or(live)["spec"].clone();
    Ok((spec, held.collect()))
}

#[test]
fn lists_and_maps_of_a_custom_kind_merge_as_its_schema_says() {
    for (field, first, second, merged, held) in [
        // Scalars, and atomic values.
        ("size", json!(1), json!(1), json!(1), r#"{"f:size":{}}"#),
        (
            "plain",
            json!(["a", "b"]),
            json!(["a", "b"]),
            json!(["a", "b"]),
            r#"{"f:plain":{}}"#,
        ),
        (
            "whole",
            json!({"a": "x"}),
            json!({"a": "x"}),
            json!({"a": "x"}),
            r#"{"f:whole":{}}"#,
        ),
        ("either", json!(80), json!(80), json!(80), r#"{"f:either":{}}"#),
        // Granular values.
        (
            "labels",
            json!({"a": "x"}),
            json!({"b": "y"}),
            json!({"a": "x", "b": "y"}),
            r#"{"f:labels":{"f:b":{}}}"#,
        ),
        (
            "set",
            json!(["a", "b"]),
            json!(["c", "b"]),
            json!(["a", "c", "b"]),
            r#"{"f:set":{"v:\"b\"":{},"v:\"c\"":{}}}"#,
        ),
        (
            "ports",
            json!([{"name": "a", "port": 1}]),
            json!([{"name": "b", "port": 2}, {"name": "a", "protocol": "UDP"}]),
            json!([{"name": "a", "port": 1}, {"name": "b", "port": 2}, {"name": "a", "protocol": "UDP"}]),
            r#"{"f:ports":{"k:{\"name\":\"a\",\"protocol\":\"UDP\"}":{".":{},"f:name":{},"f:protocol":{}},"k:{\"name\":\"b\",\"protocol\":\"TCP\"}":{".":{},"f:name":{},"f:port":{}}}}"#,
        ),
        // Unspecified fields.
        (
            "free",
            json!({"m": {"a": 1}, "l": [1]}),
            json!({"m": {"b": [{"c": 1}]}, "l": [1]}),
            json!({"m": {"a": 1, "b": [{"c": 1}]}, "l": [1]}),
            r#"{"f:free":{"f:l":{},"f:m":{".":{},"f:b":{}}}}"#,
        ),
        (
            "any",
            json!({"a": 1}),
            json!({"b": 2}),
            json!({"a": 1, "b": 2}),
            r#"{"f:any":{"f:b":{}}}"#,
        ),
    ] {
        let (spec, managers) = after(json!({field: first}), "two", json!({field: second}))
            .unwrap_or_else(|e| panic!("{field}: {e}"));
        assert_eq!(spec[field], merged, "{field}");
        assert_eq!(managers[1], format!("two {held}"), "{field}");
    }
}

#[test]
fn fields_that_their_applier_no_longer_has_are_removed() {
    let ports = |names: &[&str]| {
        let all: Vec<Value> = names.iter().map(|n| json!({"name": n})).collect();
        json!({"ports": all, "size": 1})
    };
    let (spec, _) = after(ports(&["a", "b"]), "one", ports(&["b"])).unwrap();
    assert_eq!(spec, ports(&["b"]));
    let (spec, _) = after(
        json!({"free": {"a": 1, "b": 2}}),
        "one",
        json!({"free": {"b": 2}}),
    )
    .unwrap();
    assert_eq!(spec, json!({"free": {"b": 2}}));
}

#[test]
fn conflicts_and_schema_errors_are_reported() {
    for (first, second, message) in [
        (
            json!({"size": 1}),
            json!({"size": 2}),
            "Apply failed with 1 conflict: conflict with \"one\": .spec.size",
        ),
        (
            json!({"ports": [{"name": "a", "port": 1}]}),
            json!({"ports": [{"name": "a", "port": 2}]}),
            "Apply failed with 1 conflict: conflict with \"one\": .spec.ports[name=\"a\",protocol=\"TCP\"].port",
        ),
        (
            json!({}),
            json!({"colour": 1}),
            ".spec.colour: field not declared in schema",
        ),
        (
            json!({}),
            json!({"size": "1"}),
            ".spec.size: expected numeric (int or float), got string",
        ),
        (
            json!({}),
            json!({"set": ["a", "a"]}),
            ".spec.set: duplicate entries for key [=\"a\"]",
        ),
    ] {
        assert_eq!(after(first, "two", second).unwrap_err(), message);
    }
}

#[test]
fn status_is_owned_through_its_subresource_only() {
    let kind = &kind();
    let mut new = widget(json!({"size": 1}));
    new["status"] = json!({"ready": 1});
    for (subresource, held) in [
        (
            "",
            r#"{"f:metadata":{"f:labels":{".":{},"f:a":{}}},"f:spec":{".":{},"f:size":{}}}"#,
        ),
        ("status", r#"{"f:status":{".":{},"f:ready":{}}}"#),
    ] {
        new["metadata"]["labels"] = json!({"a": "b"});
        let id = ManagerId::new("m", Operation::Update, kind, subresource);
        let managed = Managed::default().update(kind, blank(kind), &new, id, Timestamp::UNIX_EPOCH);
        let entries = managed.encode().unwrap();
        assert_eq!(entries[0].fields_v1.as_ref().unwrap().0, held);
    }
}

#[test]
fn fields_set_in_another_version_are_still_known() {
    let v1 = &kind();
    let beta = &v1.served_version("example.com/v1beta1").unwrap();
    let new = json!({"apiVersion": "example.com/v1beta1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}});
    let id = by(beta, "old", Operation::Update);
    let managed = Managed::default().update(beta, blank(beta), &new, id, Timestamp::UNIX_EPOCH);
    let id = by(v1, "new", Operation::Apply);
    let error = managed
        .apply(
            v1,
            &widget(json!({"size": 1})),
            &widget(json!({"size": 2})),
            id,
            false,
            Timestamp::UNIX_EPOCH,
        )
        .unwrap_err();
    assert_eq!(
        message_of(error),
        "Apply failed with 1 conflict: conflict with \"old\" using example.com/v1beta1: .spec.size"
    );
}

#[test]
fn a_creator_of_a_custom_resource_owns_all_its_fields() {
    let specs = [
        json!({}),
        json!(null),
        json!({"size": 1, "free": {}, "labels": {}, "set": [], "ports": []}),
        json!({"any": {"deep": [{"a": 1}], "map": {"b": null}}, "either": "80%", "free": {"x": {"y": []}},
            "labels": {"a/b": "c"}, "whole": {"b": "2", "a": "1"}, "plain": ["b", "a"], "set": ["b", "a", "b"],
            "ports": [{"name": "x", "port": 1, "protocol": "UDP"}, {"name": "a", "protocol": "TCP"}]}),
        json!({"any": [1], "either": 1, "unknown": {"z": 1.5, "a": true}, "ports": [{"port": 2}, null, "x", {"name": "n"}]}),
    ];
    let kind = &kind();
    for spec in specs {
        let json = widget(spec).to_string();
        let object = kind.ops.decode(json.as_bytes()).unwrap().object;
        let mut json = Vec::new();
        object.encode_into(&mut json);
        let value: Value = serde_json::from_slice(&json).unwrap();
        let id = || by(kind, "creator", Operation::Update);
        let quick = Managed::create(kind, &*object, id(), Timestamp::UNIX_EPOCH).unwrap();
        let long = Managed::default().update(kind, blank(kind), &value, id(), Timestamp::UNIX_EPOCH);
        assert_eq!(quick, long.encode(), "{value}");
    }
}
