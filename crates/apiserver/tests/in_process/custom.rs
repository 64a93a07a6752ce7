//! The lifecycle of custom resources, from their definition to its deletion.

use std::time::Duration;

use knarr_api::Kind;
use knarr_api::registry::CUSTOM_RESOURCE_DEFINITION as CRD;
use serde_json::Value;

use super::*;

pub fn definition() -> Value {
    json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [
                {"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "size": {"type": "integer", "x-kubernetes-validations": [
                            {"rule": "self >= oldSelf", "message": "may only grow"}]},
                        "color": {"type": "string", "default": "red"}}},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}]},
    })
}

pub fn decode(kind: &Kind, value: &Value) -> Box<dyn knarr_api::AnyObject> {
    kind.ops.decode(value.to_string().as_bytes()).unwrap().object
}

/// Waits until the definition is Established, and returns its kind.
pub async fn established(c: &Cluster) -> Kind {
    for _ in 0..100 {
        if let Some(kind) = c.server.served().by_kind("example.com/v1", "Widget") {
            return kind;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not established");
}

fn widget(spec: Value) -> Value {
    json!({"metadata": {"name": "w", "namespace": "default"}, "spec": spec})
}

fn json_of(object: &Object) -> Value {
    serde_json::from_slice(object.json()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_definition_is_established_and_its_objects_are_written_and_watched() {
    let c = cluster().await;
    c.api.create(&CRD, decode(&CRD, &definition())).await.unwrap();
    let kind = &established(&c).await;
    let crd = json_of(&c.api.get(&CRD, "", "widgets.example.com").await.unwrap());
    let reasons: Vec<&str> = crd["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["reason"].as_str().unwrap())
        .collect();
    assert_eq!(reasons, ["NoConflicts", "InitialNamesAccepted"]);
    assert_eq!(crd["status"]["storedVersions"], json!(["v1"]));

    let mut watch = c.api.watch(kind, WatchOptions::default()).await.unwrap();
    let made = c
        .api
        .create(kind, decode(kind, &widget(json!({"size": 3, "zz": 1}))))
        .await
        .unwrap();
    let made = json_of(&made);
    assert_eq!(made["spec"], json!({"size": 3, "color": "red"}));
    assert_eq!(made["metadata"]["generation"], 1);
    assert!(matches!(
        watch.next().await.unwrap().unwrap(),
        WatchEvent::Bookmark(_)
    ));
    assert!(matches!(
        watch.next().await.unwrap().unwrap(),
        WatchEvent::Added(_)
    ));

    let patch = |body: Value| c.api.patch(kind, "default", "w", "", Patch::Merge(body));
    let grown = json_of(
        &patch(json!({"spec": {"size": 4}, "status": {"x": 1}}))
            .await
            .unwrap(),
    );
    assert_eq!((&grown["spec"]["size"], grown.get("status")), (&json!(4), None));
    assert_eq!(grown["metadata"]["generation"], 2);
    let rejected = patch(json!({"spec": {"size": 1}})).await.unwrap_err();
    assert_eq!(
        rejected.message(),
        "Widget.example.com \"w\" is invalid: spec.size: Invalid value: 1: may only grow"
    );
    let patched = c.api.patch(
        kind,
        "default",
        "w",
        "status",
        Patch::Merge(json!({"status": {"x": 1}})),
    );
    let patched = json_of(&patched.await.unwrap());
    assert_eq!(
        (&patched["status"], &patched["metadata"]["generation"]),
        (&json!({"x": 1}), &json!(2))
    );
}

#[tokio::test(start_paused = true)]
async fn a_changed_definition_changes_the_objects_there_are() {
    let c = cluster().await;
    c.api.create(&CRD, decode(&CRD, &definition())).await.unwrap();
    let kind = &established(&c).await;
    c.api
        .create(kind, decode(kind, &widget(json!({"size": 3}))))
        .await
        .unwrap();
    let mut versions = definition()["spec"]["versions"].clone();
    versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["depth"] =
        json!({"type": "integer", "default": 7});
    let patch = Patch::Merge(json!({"spec": {"versions": versions}}));
    c.api
        .patch(&CRD, "", "widgets.example.com", "", patch)
        .await
        .unwrap();
    let changed = &c.server.served().by_kind("example.com/v1", "Widget").unwrap();
    let found = c.api.get(changed, "default", "w").await.unwrap();
    assert_eq!(
        json_of(&found)["spec"],
        json!({"size": 3, "color": "red", "depth": 7})
    );
}

#[tokio::test(start_paused = true)]
async fn deleting_a_definition_deletes_its_objects() {
    let c = cluster().await;
    c.api.create(&CRD, decode(&CRD, &definition())).await.unwrap();
    let kind = &established(&c).await;
    let mut held = widget(json!({"size": 1}));
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    c.api.create(kind, decode(kind, &held)).await.unwrap();
    let gone = c
        .api
        .delete(&CRD, "", "widgets.example.com", DeleteOptions::default())
        .await
        .unwrap();
    let gone = json_of(&gone);
    assert_eq!(
        gone["metadata"]["finalizers"],
        json!(["customresourcecleanup.apiextensions.k8s.io"])
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    let crd = json_of(&c.api.get(&CRD, "", "widgets.example.com").await.unwrap());
    let last = crd["status"]["conditions"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&last["type"], &last["reason"]),
        (&json!("Terminating"), &json!("InstanceDeletionInProgress"))
    );
    let new = json!({"metadata": {"name": "x", "namespace": "default"}});
    assert_eq!(
        c.api.create(kind, decode(kind, &new)).await.unwrap_err().code(),
        405
    );

    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    c.api.patch(kind, "default", "w", "", release).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let found = c.api.get(&CRD, "", "widgets.example.com").await;
    assert!(found.unwrap_err().is_not_found());
    assert!(c.server.served().custom().is_empty());
}
