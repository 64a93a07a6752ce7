//! Which responses of a webhook are accepted.

use serde_json::{Value, json};

use super::super::Definition;
use super::*;
use crate::k8s_openapi;
use crate::managed_fields::{ApplyError, Conversions, Managed, ManagerId, Operation, blank};

fn definition() -> Definition {
    let crd = json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"kind": "Widget", "plural": "widgets"},
            "conversion": {"strategy": "Webhook", "webhook": {
                "conversionReviewVersions": ["v9", "v1beta1"],
                "clientConfig": {"url": "https://127.0.0.1:1/convert"},
            }},
            "versions": [
                {"name": "v1", "served": true, "storage": true},
                {"name": "v2", "served": true, "storage": false},
                {"name": "v0", "served": false, "storage": false},
            ],
        },
        "status": {"conditions": [{"type": "Established", "status": "True", "reason": "", "message": "",
            "lastTransitionTime": null}], "acceptedNames": {"kind": "Widget", "plural": "widgets"}},
    });
    Definition::of(&serde_json::from_value(crd).unwrap()).unwrap()
}

fn original() -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "host": "a:1",
        "metadata": {"name": "a", "namespace": "n", "uid": "u", "generation": 3, "labels": {"x": "y"}}})
}

fn converted() -> Value {
    json!({"apiVersion": "example.com/v2", "kind": "Widget", "port": 1,
        "metadata": {"name": "a", "namespace": "n", "uid": "u", "generation": 9, "annotations": {"by": "webhook"}}})
}

fn read(review_version: &'static str, response: Value, of_list: bool) -> Result<Vec<Value>, String> {
    let definition = definition();
    let to = definition.stored.version_of_definition("example.com/v2").unwrap();
    let request = ConversionRequest {
        of_list,
        from: &definition.stored,
        to: &to,
        review_version,
        uid: "r",
        objects: &[original()],
    };
    request.read(response).map_err(|failure| failure.to_string())
}

fn response(object: Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": {
        "uid": "r", "result": {"status": "Success"}, "convertedObjects": [object]}})
}

#[test]
fn a_definition_knows_its_webhook_and_the_versions_that_are_not_served() {
    let definition = definition();
    let webhook = definition.stored.webhook().unwrap();
    assert_eq!(webhook.review_version, Some("v1beta1"));
    assert_eq!(definition.served.len(), 2);
    let v0 = definition.stored.version_of_definition("example.com/v0").unwrap();
    assert!(definition.stored.served_version("example.com/v0").is_none());
    assert_eq!(v0.stored(), definition.stored);
    assert_eq!(v0.handled_as(), v0);
}

#[test]
fn a_webhook_changes_only_labels_and_annotations_of_the_metadata() {
    let made = read("v1", response(converted()), false).unwrap();
    let mut expected = converted();
    expected["metadata"]["generation"] = 3.into();
    assert_eq!(made, [expected]);
}

#[test]
fn an_invalid_conversion_is_rejected_with_kubernetes_message() {
    let changed = |at: &str, value: Value| {
        let mut object = converted();
        match object.pointer_mut(at) {
            Some(found) => *found = value,
            None => object["metadata"]["labels"] = value,
        }
        response(object)
    };
    let failed = |response: Value| json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response});
    for (response, message) in [
        (
            changed("/apiVersion", "example.com/v1".into()),
            "returned invalid object at index 0: invalid groupVersion (expected example.com/v2, received example.com/v1)",
        ),
        (
            changed("/kind", "Other".into()),
            "returned invalid object at index 0: invalid kind (expected Widget, received Other)",
        ),
        (
            changed("/metadata/name", "b".into()),
            "returned invalid object: must have the same name: a != b",
        ),
        (
            changed("/metadata/uid", "w".into()),
            "returned invalid object: must have the same UID: u != w",
        ),
        (
            changed("/metadata", 7.into()),
            "returned invalid object: must have the same name: a != ",
        ),
        (
            changed("/labels", json!({"x": 1})),
            "returned invalid metadata: metadata.labels[x] must be a string, but is int64 in converted object",
        ),
        (
            failed(json!({"uid": "r", "result": {"status": "Failure", "message": "no"}})),
            "failed: no",
        ),
        (
            failed(json!({"uid": "r", "result": {}})),
            "failed: response.result.status was '', not 'Success'",
        ),
        (
            failed(json!({"uid": "s"})),
            "failed: expected response.uid=\"r\", got \"s\"",
        ),
        (failed(Value::Null), "failed: no response provided"),
        (
            failed(json!({"uid": "r", "result": {"status": "Success"}})),
            "returned 0 objects, expected 1",
        ),
        (
            json!([]),
            "failed: expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got , Kind=",
        ),
    ] {
        let found = read("v1", response.clone(), false).unwrap_err();
        assert_eq!(
            found,
            format!("conversion webhook for example.com/v1, Kind=Widget {message}"),
            "{response}"
        );
    }
    let found = read("v1", changed("/metadata/name", "b".into()), true).unwrap_err();
    assert_eq!(
        found,
        "conversion webhook for example.com/v1, Kind=WidgetList returned invalid converted object at index 0: must have \
         the same name: a != b"
    );
}

#[test]
fn a_v1beta1_response_is_read_without_its_type_and_uid() {
    let response = json!({"response": {"result": {"status": "Success"}, "convertedObjects": [converted()]}});
    assert!(read("v1beta1", response, false).is_ok());
}

/// v1's `host` is v2's `address`; `port` is the same in both.
fn webhook(of: &Value, to: &Kind) -> Value {
    let mut made = of.clone();
    made["apiVersion"] = to.api_version().into();
    let (from, into) = match to.version() {
        "v2" => ("host", "address"),
        _ => ("address", "host"),
    };
    if let Some(value) = made.as_object_mut().unwrap().remove(from) {
        made[into] = value;
    }
    made
}

/// The result of `compute` with the conversions that it needs, and how many were missing.
fn converted_as_needed<T>(mut compute: impl FnMut(&mut Conversions) -> T) -> (T, usize) {
    let mut conversions = Conversions::default();
    let mut made = 0;
    loop {
        let result = compute(&mut conversions);
        let missing = conversions.missing();
        if missing.is_empty() {
            return (result, made);
        }
        made += missing.len();
        for one in missing {
            let converted = webhook(&one.object, &one.to);
            conversions.add(one, converted);
        }
    }
}

fn widget(version: &str, fields: Value) -> Value {
    let mut widget =
        json!({"apiVersion": format!("example.com/{version}"), "kind": "Widget", "metadata": {"name": "a"}});
    for (name, value) in fields.as_object().unwrap() {
        widget[name] = value.clone();
    }
    widget
}

fn owners(managed: Managed) -> Vec<String> {
    let entries = managed.encode().unwrap_or_default();
    let shown = entries.into_iter().map(|e| {
        // Kept as text.
        let fields = e.fields_v1.and_then(|f| f.0.as_str().map(str::to_string));
        let fields = fields.unwrap_or_default();
        let version = e.api_version.unwrap_or_default();
        format!("{} {version} {fields}", e.manager.unwrap_or_default())
    });
    shown.collect()
}

fn now() -> k8s_openapi::jiff::Timestamp {
    knarr_apimachinery::time::seconds(k8s_openapi::jiff::Timestamp::UNIX_EPOCH).0
}

#[test]
fn an_apply_conflicts_with_managers_of_a_version_that_a_webhook_converts() {
    let definition = definition();
    let v1 = &definition.stored;
    let v2 = &v1.served_version("example.com/v2").unwrap();
    let by = |name: &str, kind: &Kind| ManagerId::new(name, Operation::Apply, kind, "");
    let first = Managed::default()
        .apply(
            v1,
            blank(v1),
            &widget("v1", json!({"host": "h", "port": 1})),
            by("a", v1),
            false,
            now(),
        )
        .unwrap();
    let live = webhook(&first.object.unwrap(), v2);
    let config = widget("v2", json!({"address": "other"}));
    let apply = |force: bool| {
        converted_as_needed(|conversions| {
            let managed = first.managed.clone();
            managed.apply_with(v2, (&live, &config), by("b", v2), (force, now()), conversions)
        })
    };
    let (rejected, conversions) = apply(false);
    match rejected {
        Err(ApplyError::Conflicts(conflicts)) => assert_eq!(
            conflicts.to_string(),
            "Apply failed with 1 conflict: conflict with \"a\": .host"
        ),
        other => panic!("{other:?}"),
    }
    assert_eq!(conversions, 2, "the object before and after");
    let forced = apply(true).0.unwrap();
    assert_eq!(
        owners(forced.managed),
        [
            "a example.com/v1 {\"f:port\":{}}",
            "b example.com/v2 {\"f:address\":{}}"
        ]
    );
}

#[test]
fn a_field_that_an_applier_leaves_out_stays_while_a_manager_of_another_version_owns_it() {
    let definition = definition();
    let v1 = &definition.stored;
    let v2 = &v1.served_version("example.com/v2").unwrap();
    let by = |name: &str, kind: &Kind| ManagerId::new(name, Operation::Apply, kind, "");
    let both = widget("v1", json!({"host": "h", "port": 1}));
    let first = Managed::default().apply(v1, blank(v1), &both, by("a", v1), false, now());
    let first = first.unwrap();
    let live = first.object.unwrap();
    let (second, _) = converted_as_needed(|conversions| {
        let config = widget("v2", json!({"address": "h"}));
        let managed = first.managed.clone();
        managed.apply_with(
            v2,
            (&webhook(&live, v2), &config),
            by("b", v2),
            (false, now()),
            conversions,
        )
    });
    let managed = second.unwrap().managed;
    let (third, _) = converted_as_needed(|conversions| {
        let managed = managed.clone();
        managed.apply_with(
            v1,
            (&live, &widget("v1", json!({}))),
            by("a", v1),
            (false, now()),
            conversions,
        )
    });
    let third = third.unwrap();
    assert_eq!(third.object, Some(widget("v1", json!({"host": "h"}))));
    assert_eq!(owners(third.managed), ["b example.com/v2 {\"f:address\":{}}"]);
}

#[test]
fn an_update_takes_fields_from_managers_of_another_version() {
    let definition = definition();
    let v1 = &definition.stored;
    let v2 = &v1.served_version("example.com/v2").unwrap();
    let by = |name: &str, kind: &Kind| ManagerId::new(name, Operation::Update, kind, "");
    let live = widget("v1", json!({"host": "h", "port": 1}));
    let created = Managed::default().update(v1, blank(v1), &live, by("a", v1), now());
    let (before, after) = (
        webhook(&live, v2),
        widget("v2", json!({"address": "g", "port": 1})),
    );
    let (updated, _) = converted_as_needed(|conversions| {
        let managed = created.clone();
        managed.update_with(v2, (&before, &after), by("b", v2), now(), conversions)
    });
    assert_eq!(
        owners(updated),
        [
            "a example.com/v1 {\"f:port\":{}}",
            "b example.com/v2 {\"f:address\":{}}"
        ]
    );
}

#[test]
fn managers_of_a_version_whose_conversion_failed_keep_their_fields() {
    let definition = definition();
    let v1 = &definition.stored;
    let v2 = &v1.served_version("example.com/v2").unwrap();
    let by = |name: &str, kind: &Kind| ManagerId::new(name, Operation::Update, kind, "");
    let live = widget("v1", json!({"host": "h"}));
    let created = Managed::default().update(v1, blank(v1), &live, by("a", v1), now());
    let (before, after) = (webhook(&live, v2), widget("v2", json!({"address": "g"})));
    let mut conversions = Conversions::default();
    let update = |conversions: &mut Conversions| {
        let managed = created.clone();
        managed.update_with(v2, (&before, &after), by("b", v2), now(), conversions)
    };
    update(&mut conversions);
    for one in conversions.missing() {
        conversions.add_failed(one);
    }
    let updated = update(&mut conversions);
    assert!(conversions.missing().is_empty());
    assert_eq!(
        owners(updated),
        [
            "a example.com/v1 {\"f:host\":{}}",
            "b example.com/v2 {\"f:address\":{}}"
        ]
    );
}
