//! Custom resources between whose versions a webhook converts: v1 has a host and a port, v2 has both in one field.

use knarr_api::Kind;
use knarr_api::registry::{
    CUSTOM_RESOURCE_DEFINITION as CRD, MUTATING_WEBHOOK_CONFIGURATION, VALIDATING_ADMISSION_POLICY,
    VALIDATING_ADMISSION_POLICY_BINDING,
};
use rcgen::IsCa;
use serde_json::Value;

use super::custom::{decode, established};
use super::hooks::{WebhookServer, hook, hooks};
use super::*;

fn definition(server: &WebhookServer, path: &str) -> Value {
    let version = |name: &str, storage: bool, fields: Value| {
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object",
            "properties": {"spec": {"type": "object", "properties": fields}}}}})
    };
    let text = json!({"type": "string"});
    json!({"metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {
            "url": format!("https://127.0.0.1:{}{path}", server.port), "caBundle": server.ca}}},
        "versions": [version("v1", true, json!({"host": text, "port": text})),
            version("v2", false, json!({"address": text}))]}})
}

/// Converts; and as an admission webhook changes the host.
fn answer(path: &str, request: &Value) -> Value {
    if path == "/admit" {
        let patch = r#"[{"op": "replace", "path": "/spec/host", "value": "mutated"}]"#;
        let patch = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, patch);
        return json!({"allowed": true, "patchType": "JSONPatch", "patch": patch});
    }
    if path == "/broken" {
        return json!({"result": {"status": "Failure", "message": "not today"}});
    }
    let to = request["desiredAPIVersion"].as_str().unwrap();
    let objects = request["objects"].as_array().unwrap().iter().map(|object| {
        let mut object = object.clone();
        object["apiVersion"] = to.into();
        let spec = object["spec"].take();
        let text = |field: &str| spec[field].as_str().unwrap_or_default().to_string();
        object["spec"] = match to {
            "example.com/v2" => json!({"address": format!("{}:{}", text("host"), text("port"))}),
            _ => {
                let address = text("address");
                let (host, port) = address.split_once(':').unwrap();
                json!({"host": host, "port": port})
            }
        };
        object
    });
    json!({"result": {"status": "Success"}, "convertedObjects": objects.collect::<Vec<_>>()})
}

async fn versions(c: &Cluster) -> (Kind, Kind) {
    let v1 = established(c).await;
    (v1, c.server.served().by_kind("example.com/v2", "Widget").unwrap())
}

fn widget(name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec})
}

fn spec(object: &Object) -> Value {
    let object: Value = serde_json::from_slice(object.json()).unwrap();
    object["spec"].clone()
}

#[tokio::test]
async fn each_version_shows_what_the_webhook_makes_of_the_stored_one() {
    let c = cluster().await;
    let server = hooks(answer, IsCa::NoCa).await;
    c.api
        .create(&CRD, decode(&CRD, &definition(&server, "/")))
        .await
        .unwrap();
    let (v1, v2) = versions(&c).await;
    let mut watch = c.api.watch(&v2, WatchOptions::default()).await.unwrap();
    let made = c
        .api
        .create(&v2, decode(&v2, &widget("a", json!({"address": "h:1"}))))
        .await
        .unwrap();
    assert_eq!(spec(&made), json!({"address": "h:1"}));
    assert_eq!(
        spec(&c.api.get(&v1, "default", "a").await.unwrap()),
        json!({"host": "h", "port": "1"})
    );
    c.api
        .create(&v1, decode(&v1, &widget("b", json!({"host": "g", "port": "2"}))))
        .await
        .unwrap();
    let changed = c.api.patch(
        &v2,
        "default",
        "b",
        "",
        Patch::Merge(json!({"spec": {"address": "g:3"}})),
    );
    assert_eq!(spec(&changed.await.unwrap()), json!({"address": "g:3"}));
    let before = server.asked.lock().len();
    let listed = c.api.list(&v2, ListOptions::default()).await.unwrap();
    let all: Vec<Value> = listed.items.iter().map(|o| spec(o)).collect();
    assert_eq!(all, [json!({"address": "h:1"}), json!({"address": "g:3"})]);
    assert!(
        server.asked.lock().len() <= before + 1,
        "a list is one request at most"
    );
    let mut seen = Vec::new();
    while seen.len() < 3 {
        match watch.next().await.unwrap().unwrap() {
            WatchEvent::Added(o) | WatchEvent::Modified(o) => seen.push(spec(&o)["address"].clone()),
            _ => {}
        }
    }
    assert_eq!(seen, ["h:1", "g:2", "g:3"]);
    // The watch and the requests call it at the same time at most.
    let connections = server.connections.load(std::sync::atomic::Ordering::SeqCst);
    let calls = server.asked.lock().len();
    assert!(connections < calls, "{connections} connections for {calls} calls");
}

#[tokio::test]
async fn policies_and_webhooks_of_another_version_are_shown_that_version() {
    let c = cluster().await;
    let server = hooks(answer, IsCa::NoCa).await;
    c.api
        .create(&CRD, decode(&CRD, &definition(&server, "/")))
        .await
        .unwrap();
    let (v1, v2) = versions(&c).await;
    let rules = json!([{"apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["widgets"]}]);
    let configuration =
        json!({"metadata": {"name": "m"}, "webhooks": [hook(&server, "/admit", json!({"rules": rules}))]});
    let kind = &MUTATING_WEBHOOK_CONFIGURATION;
    c.api.create(kind, decode(kind, &configuration)).await.unwrap();
    let policy = json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": rules},
        "validations": [{"expression": "object.spec.host == 'mutated' && object.spec.port != '13'"}]}});
    let kind = &VALIDATING_ADMISSION_POLICY;
    c.api.create(kind, decode(kind, &policy)).await.unwrap();
    let binding =
        json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    let kind = &VALIDATING_ADMISSION_POLICY_BINDING;
    c.api.create(kind, decode(kind, &binding)).await.unwrap();
    let made = c
        .api
        .create(&v2, decode(&v2, &widget("a", json!({"address": "h:1"}))))
        .await
        .unwrap();
    assert_eq!(spec(&made), json!({"address": "mutated:1"}));
    let denied = c
        .api
        .create(&v2, decode(&v2, &widget("c", json!({"address": "h:13"}))))
        .await;
    let denied = denied.unwrap_err();
    assert!(
        denied.message().contains("ValidatingAdmissionPolicy 'p'"),
        "{denied}"
    );
    assert_eq!(
        spec(&c.api.get(&v1, "default", "a").await.unwrap())["host"],
        "mutated"
    );
}

#[tokio::test]
async fn a_failed_conversion_is_reported_and_affects_nothing_else() {
    let c = cluster().await;
    let server = hooks(answer, IsCa::NoCa).await;
    c.api
        .create(&CRD, decode(&CRD, &definition(&server, "/broken")))
        .await
        .unwrap();
    let (v1, v2) = versions(&c).await;
    c.api
        .create(&v1, decode(&v1, &widget("a", json!({"host": "h", "port": "1"}))))
        .await
        .unwrap();
    let failed = c.api.get(&v2, "default", "a").await.unwrap_err();
    assert_eq!(
        (failed.code(), failed.message()),
        (
            500,
            "conversion webhook for example.com/v1, Kind=Widget failed: not today"
        )
    );
    assert!(c.api.list(&v2, ListOptions::default()).await.is_err());
    assert_eq!(spec(&c.api.get(&v1, "default", "a").await.unwrap())["port"], "1");
}

#[tokio::test]
async fn an_update_in_one_version_takes_fields_from_managers_of_the_other() {
    let c = cluster().await;
    let server = hooks(answer, IsCa::NoCa).await;
    c.api
        .create(&CRD, decode(&CRD, &definition(&server, "/")))
        .await
        .unwrap();
    let (v1, v2) = versions(&c).await;
    let made = widget("a", json!({"host": "h", "port": "1"}));
    c.api.create(&v1, decode(&v1, &made)).await.unwrap();
    let patch = Patch::Merge(json!({"spec": {"address": "g:1"}}));
    let changed = c.api.patch(&v2, "default", "a", "", patch).await.unwrap();
    let json: Value = serde_json::from_slice(changed.json()).unwrap();
    let entries = json["metadata"]["managedFields"].as_array().unwrap();
    let of = |version: &str| {
        let mut entries = entries.iter();
        let entry = entries.find(|e| e["apiVersion"] == format!("example.com/{version}"));
        entry.map(|e| e["fieldsV1"]["f:spec"].clone())
    };
    assert_eq!(of("v2"), Some(json!({"f:address": {}})));
    // The port is the same in both versions of the object, the host is not.
    assert_eq!(of("v1"), Some(json!({".": {}, "f:port": {}})), "{entries:?}");
}
