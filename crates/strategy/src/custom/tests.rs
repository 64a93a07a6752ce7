//! Custom resources: their schemas, the validation of their objects, and changes of both.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use knarr_api::Kind;
use knarr_api::any_object::AnyObject;
use knarr_api::custom::{CustomObject, Definition, version_order};
use knarr_api::object::Object;
use serde_json::{Value, json};

use crate::{KindStrategy, Part};

fn crd(extra: Value) -> CustomResourceDefinition {
    let mut value = json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList", "shortNames": ["wg"]},
            "versions": [
                {"name": "v1beta1", "served": true, "storage": false, "schema": {"openAPIV3Schema": {"type": "object",
                    "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}}}},
                {"name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}},
                "selectableFields": [{"jsonPath": ".spec.color"}],
                "additionalPrinterColumns": [
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "required": ["size"], "properties": {
                        "size": {"type": "integer", "minimum": 0},
                        "color": {"type": "string", "default": "red", "minLength": 2}}},
                    "status": {"type": "object", "properties": {"size": {"type": "integer"}}}}}}}]},
        "status": {"acceptedNames": {"plural": "", "kind": ""}, "conditions": [{"type": "Established", "status": "True"}]}
    });
    knarr_api::patch::merge::apply(&mut value, &extra);
    serde_json::from_value(value).unwrap()
}

fn widget(kind: &Kind, value: Value) -> Box<dyn AnyObject> {
    kind.ops.decode(value.to_string().as_bytes()).unwrap().object
}

#[test]
fn a_definition_makes_a_kind_for_each_version() {
    let definition = Definition::of(&crd(json!({}))).unwrap();
    let served: Vec<&str> = definition.served.iter().map(|k| k.version()).collect();
    assert_eq!(served, ["v1", "v1beta1"], "the preferred one first");
    let v1 = &definition.stored;
    assert_eq!(
        (v1.plural(), v1.singular(), v1.kind()),
        ("widgets", "widget", "Widget")
    );
    assert!(v1.subresource("status").is_some() && v1.subresource("scale").is_some());
    assert_eq!(definition.served[1].stored_as().as_ref(), Some(v1));
    let waiting = json!({"status": {"conditions": null}});
    assert!(Definition::of(&crd(waiting)).is_none(), "not established yet");
}

#[test]
fn versions_are_ordered_by_how_stable_they_are() {
    let mut versions = [
        "foo1",
        "v1",
        "v11alpha2",
        "v10",
        "v2",
        "v11beta2",
        "v3beta1",
        "v12alpha1",
        "foo10",
    ];
    versions.sort_by_key(|version| std::cmp::Reverse(version_order(version)));
    assert_eq!(
        versions,
        [
            "v10",
            "v2",
            "v1",
            "v11beta2",
            "v3beta1",
            "v12alpha1",
            "v11alpha2",
            "foo1",
            "foo10"
        ]
    );
}

#[test]
fn an_object_is_pruned_defaulted_and_encoded() {
    let kind = &Definition::of(&crd(json!({}))).unwrap().stored;
    let body = json!({"apiVersion": "example.com/v1", "kind": "Widget", "extra": 1,
        "metadata": {"name": "w", "odd": 1}, "spec": {"size": 3, "zz": 1}});
    let decoded = kind.ops.decode(body.to_string().as_bytes()).unwrap();
    let mut unknown: Vec<String> = decoded.strict_errors.iter().map(|m| m.to_string()).collect();
    unknown.sort();
    let expected = ["extra", "metadata.odd", "spec.zz"].map(|field| format!("unknown field {field:?}"));
    assert_eq!(unknown, expected);
    let object = Object::from_typed(kind, decoded.object);
    let json: Value = serde_json::from_slice(object.json()).unwrap();
    assert_eq!(
        json,
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"},
            "spec": {"size": 3, "color": "red"}})
    );
    assert_eq!(object.field("spec.color").unwrap(), "red");
    let mut typed = object.typed().clone_box();
    let stored = Object::encode_for_store(&mut *typed);
    let back = Object::from_stored(kind, typed, &stored, 42);
    assert!(back.json().starts_with(
        br#"{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"resourceVersion":"42","#
    ));
}

#[test]
fn a6_the_kinds_of_a_definition_are_freed_together_and_not_before_the_last_is_let_go() {
    let Definition { stored, served } = Definition::of(&crd(json!({}))).unwrap();
    let all: Vec<_> = served.iter().map(Kind::downgrade).collect();
    let beta = served[1].clone();
    drop((stored, served));
    assert!(
        all.iter().all(|kind| kind.upgrade().is_some()),
        "a request that holds one version finds the others"
    );
    assert_eq!(beta.stored().version(), "v1");
    let versions: Vec<String> = beta
        .served_versions()
        .iter()
        .map(|k| k.version().to_string())
        .collect();
    assert_eq!(versions, ["v1beta1", "v1"]);
    drop(beta);
    assert!(all.iter().all(|kind| kind.upgrade().is_none()));
}

#[test]
fn a6_an_object_keeps_the_rules_it_was_read_by() {
    let before = Definition::of(&crd(json!({}))).unwrap().stored;
    let weak = before.downgrade();
    let read = widget(
        &before,
        json!({"metadata": {"name": "w"}, "spec": {"size": 1, "color": "a"}}),
    );
    drop(before);
    assert!(weak.upgrade().is_none());
    let without_schema = json!({"spec": {"versions": [{"name": "v1", "served": true, "storage": true}]}});
    let now = Definition::of(&crd(without_schema)).unwrap().stored;
    assert!(!now.ops.custom().unwrap().is_own(&*read));
    let errors = now.strategy().validate(&*read).unwrap();
    let fields: Vec<&str> = errors.iter().map(|e| e.field.as_str()).collect();
    assert_eq!(fields, ["spec.color"]);
}

#[test]
fn other_versions_show_what_they_describe() {
    let definition = Definition::of(&crd(json!({}))).unwrap();
    let (v1, beta) = (&definition.stored, &definition.served[1]);
    let stored = widget(
        v1,
        json!({"metadata": {"name": "w"}, "spec": {"size": 3, "color": "blue"}}),
    );
    let stored = std::sync::Arc::new(Object::from_typed(v1, stored));
    let shown = knarr_api::convert::object(&stored, beta).unwrap();
    let json: Value = serde_json::from_slice(shown.json()).unwrap();
    assert_eq!(json["apiVersion"], "example.com/v1beta1");
    assert_eq!(json["spec"], json!({"size": 3}));
    // A v1beta1 object is validated by v1beta1 and stored as v1.
    let came = widget(beta, json!({"metadata": {"name": "w"}, "spec": {}}));
    let stored = knarr_api::convert::typed(beta, v1, came).unwrap();
    assert!(v1.strategy().validate(&*stored).unwrap().is_empty());
    let json: Value = serde_json::from_slice(Object::from_typed(v1, stored).json()).unwrap();
    assert_eq!(json["apiVersion"], "example.com/v1");
}

#[test]
fn the_status_is_written_through_its_subresource() {
    let kind = &Definition::of(&crd(json!({}))).unwrap().stored;
    let full =
        json!({"metadata": {"name": "w", "generation": 1}, "spec": {"size": 1}, "status": {"size": 9}});
    let mut made = widget(kind, full.clone());
    kind.strategy().prepare_for_create(&mut *made).unwrap();
    let encoded = |o: &dyn AnyObject| -> Value {
        serde_json::from_slice(Object::from_typed(kind, o.clone_box()).json()).unwrap()
    };
    assert_eq!(encoded(&*made).get("status"), None);
    assert_eq!(made.metadata().generation, Some(1));

    let mut spec = widget(
        kind,
        json!({"metadata": {"name": "w"}, "spec": {"size": 2}, "status": {"size": 7}}),
    );
    kind.strategy()
        .prepare_for_update(&mut *spec, &*made, Part::Main)
        .unwrap();
    assert_eq!(
        (encoded(&*spec).get("status"), spec.metadata().generation),
        (None, Some(2))
    );

    let mut status = widget(kind, full);
    kind.strategy()
        .prepare_for_update(&mut *status, &*spec, Part::Status)
        .unwrap();
    let json = encoded(&*status);
    assert_eq!(
        (&json["spec"]["size"], &json["status"]["size"]),
        (&json!(2), &json!(9))
    );
    assert_eq!(status.metadata().generation, Some(2));
}

#[test]
fn rows_and_scales_are_read_by_path() {
    let kind = &Definition::of(&crd(json!({}))).unwrap().stored;
    let mut object = widget(
        kind,
        json!({"metadata": {"name": "w", "creationTimestamp": "2020-01-01T00:00:00Z"}, "spec": {"size": 4}, "status": {"size": 2}}),
    );
    let now = "2020-01-01T01:00:00Z".parse().unwrap();
    assert_eq!(
        kind.strategy().row(&*object, now).unwrap(),
        [json!("w"), json!(4), json!("60m")]
    );
    let custom = object.as_any_mut().downcast_mut::<CustomObject>().unwrap();
    assert!(custom.set_replicas(6));
    let scale = custom.scale().unwrap();
    assert_eq!(scale.spec.unwrap().replicas, Some(6));
    assert_eq!(scale.status.unwrap().replicas, 2);
}

#[test]
fn unchanged_invalid_values_are_ratcheted() {
    let kind = &Definition::of(&crd(json!({}))).unwrap().stored;
    let of = |spec: Value| widget(kind, json!({"metadata": {"name": "w"}, "spec": spec}));
    let error_fields = |new: Value, old: Value| {
        let errors = kind
            .strategy()
            .validate_update(&*of(new), &*of(old), Part::Main)
            .unwrap();
        errors.iter().map(|e| e.field.clone()).collect::<Vec<_>>()
    };
    let old = json!({"size": 1, "color": "a"});
    assert_eq!(
        error_fields(json!({"size": 2, "color": "a"}), old.clone()),
        [""; 0]
    );
    assert_eq!(
        error_fields(json!({"size": 1, "color": "b"}), old),
        ["spec.color"]
    );
}
