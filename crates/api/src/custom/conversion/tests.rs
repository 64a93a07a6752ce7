//! What is accepted of a webhook's answer.

use serde_json::{Value, json};

use super::super::Definition;
use super::*;

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

fn read(review_version: &'static str, answer: Value, of_list: bool) -> Result<Vec<Value>, String> {
    let definition = definition();
    let to = definition.stored.version_of_definition("example.com/v2").unwrap();
    let asked = Asked {
        of_list,
        from: &definition.stored,
        to: &to,
        review_version,
        uid: "r",
        objects: &[original()],
    };
    asked.read(answer).map_err(|failure| failure.to_string())
}

fn answer(object: Value) -> Value {
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
    assert!(definition.stored.sibling("example.com/v0").is_none());
    assert_eq!(v0.stored(), definition.stored);
    assert_eq!(v0.handled_as(), v0);
}

#[test]
fn only_labels_and_annotations_of_the_metadata_are_the_webhooks() {
    let made = read("v1", answer(converted()), false).unwrap();
    let mut expected = converted();
    expected["metadata"]["generation"] = 3.into();
    assert_eq!(made, [expected]);
}

#[test]
fn what_is_no_conversion_of_the_object_is_rejected_in_kubernetes_words() {
    let changed = |at: &str, value: Value| {
        let mut object = converted();
        match object.pointer_mut(at) {
            Some(found) => *found = value,
            None => object["metadata"]["labels"] = value,
        }
        answer(object)
    };
    let failed = |response: Value| json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response});
    for (answer, message) in [
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
        let found = read("v1", answer.clone(), false).unwrap_err();
        assert_eq!(
            found,
            format!("conversion webhook for example.com/v1, Kind=Widget {message}"),
            "{answer}"
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
fn an_answer_of_v1beta1_is_read_without_its_type_and_uid() {
    let answer = json!({"response": {"result": {"status": "Success"}, "convertedObjects": [converted()]}});
    assert!(read("v1beta1", answer, false).is_ok());
}

#[test]
fn whoever_wrote_in_another_version_keeps_their_fields() {
    use crate::k8s_openapi::jiff::Timestamp;
    use crate::managed_fields::{Managed, ManagerId, Operation, blank};
    let definition = definition();
    let v2 = definition.stored.sibling("example.com/v2").unwrap();
    let by = |name: &str, kind: &Kind| ManagerId::new(name, Operation::Update, kind, "");
    let now = crate::time::seconds(Timestamp::UNIX_EPOCH).0;
    let stored = &definition.stored;
    let created = Managed::default().update(stored, blank(stored), &original(), by("a", stored), now);
    let mut after = converted();
    after["port"] = 2.into();
    let entries = created
        .update(&v2, &converted(), &after, by("b", &v2), now)
        .encode()
        .unwrap();
    let of = |manager: &str| {
        entries
            .iter()
            .find(|e| e.manager.as_deref() == Some(manager))
            .unwrap()
    };
    assert_eq!(of("a").api_version.as_deref(), Some("example.com/v1"));
    let held = |manager: &str| of(manager).fields_v1.as_ref().unwrap().0.to_string();
    assert!(held("a").contains("f:host"), "{}", held("a"));
    assert!(held("b").contains("f:port"), "{}", held("b"));
}
