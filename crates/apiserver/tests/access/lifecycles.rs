//! The lifecycle of every kind in discovery, as in Kubernetes' conformance tests ("… should support … API operations", "…
//! lifecycle", "… status", "… collection"): created, listed in the namespace and in all, patched in every way, updated, applied,
//! its status read, patched, replaced and applied, deleted alone and by selector, and all of it watched.
//!
//! The objects are in `lifecycles.json`: the path of their list, one object, and what is written into its status
//! (`status_keeps_metadata` where v1.36's strategy ignores metadata in writes of the status).

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, KeyPair};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cluster::{ADMIN, Client, Cluster, Credentials};
use crate::forms::{Forms, expect_code};

const NAMESPACE: &str = "lives";
const IN_NAMESPACE: &str = "/namespaces/lives";
const NAMES: [&str; 3] = ["life-a", "life-b", "life-c"];
const CHOSEN: &str = "?labelSelector=life%3Dyes";

#[derive(Deserialize)]
struct Row {
    path: String,
    object: Value,
    status: Option<Value>,
    #[serde(default)]
    status_keeps_metadata: bool,
    /// Set where names cannot be chosen freely.
    names: Option<[String; 3]>,
}

fn rows() -> Vec<Row> {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["life.example.com".to_string()]).unwrap();
    let request = params.serialize_request(&key).unwrap().pem().unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    let text = include_str!("lifecycles.json")
        .replace("{ns}", NAMESPACE)
        .replace("{request}", &STANDARD.encode(request))
        .replace("{certificate}", &STANDARD.encode(certificate));
    serde_json::from_str(&text).unwrap()
}

impl Row {
    fn resource(&self) -> &str {
        self.path.rsplit('/').next().unwrap()
    }

    fn names(&self) -> [String; 3] {
        self.names.clone().unwrap_or_else(|| NAMES.map(String::from))
    }
}

/// Replaces the object, with retries if it is written (by the server, too) in between; returns it and what it was written from.
async fn replaced(client: &mut Client, path: &str, key: &str) -> (Value, Value) {
    loop {
        let mut now = expect_code(client, 200, "GET", path, None).await;
        now["metadata"]["annotations"][key] = json!("yes");
        let answer = client.send("PUT", path, Some(now.clone())).await;
        match answer.code {
            409 => {}
            _ => return (now, answer.expect(200)),
        }
    }
}

fn revision(object: &Value) -> u64 {
    let version = object["metadata"]["resourceVersion"].as_str().unwrap();
    version.parse().unwrap()
}

fn annotation<'a>(object: &'a Value, key: &str) -> &'a Value {
    &object["metadata"]["annotations"][key]
}

/// Without members that are null.
fn bare(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(bare).collect(),
        Value::Object(members) => {
            let there = members.iter().filter(|(_, value)| !value.is_null());
            there.map(|(key, value)| (key.clone(), bare(value))).collect()
        }
        other => other.clone(),
    }
}

async fn created(forms: &mut Forms, row: &Row, path: &str) -> Vec<Value> {
    let mut made = Vec::new();
    for (i, name) in row.names().iter().enumerate() {
        // The part of `v1.a.example.com` and of `as.example.com` that distinguishes them.
        let part = name.trim_start_matches("v1.").split('.').next().unwrap();
        let cidr = format!("10.2{i}.0.0/24");
        let text = row.object.to_string();
        let text = text.replace("{cidr}", &cidr).replace("{name}", part);
        let mut object: Value = serde_json::from_str(&text).unwrap();
        object["metadata"] = json!({"name": name, "labels": {"life": "yes"}});
        made.push(expect_code(&mut forms.json, 201, "POST", path, Some(object.clone())).await);
        let again = expect_code(&mut forms.json, 409, "POST", path, Some(object)).await;
        assert_eq!(again["reason"], "AlreadyExists", "{path}");
    }
    made
}

async fn written(forms: &mut Forms, one: &str, identity: &Value) {
    let patch = |how: &str| Some(json!({"metadata": {"annotations": {how: "yes"}}}));
    let merged = expect_code(&mut forms.merge, 200, "PATCH", one, patch("merged")).await;
    expect_code(&mut forms.strategic, 200, "PATCH", one, patch("strategic")).await;
    let add = json!([{"op": "add", "path": "/metadata/annotations/operations", "value": "yes"}]);
    let patched = expect_code(&mut forms.operations, 200, "PATCH", one, Some(add)).await;
    assert!(revision(&patched) > revision(&merged), "{one}");

    let (mut now, updated) = replaced(&mut forms.json, one, "updated").await;
    now["metadata"]["annotations"]["updated"] = json!("too late");
    let late = expect_code(&mut forms.json, 409, "PUT", one, Some(now)).await;
    assert_eq!(late["reason"], "Conflict", "{one}");

    let mut config = identity.clone();
    config["metadata"]["annotations"] = json!({"applied": "yes"});
    let path = format!("{one}?fieldManager=life&force=true");
    let applied = expect_code(&mut forms.apply, 200, "PATCH", &path, Some(config)).await;
    assert!(revision(&applied) > revision(&updated), "{one}");
    for how in ["merged", "strategic", "operations", "updated", "applied"] {
        assert_eq!(annotation(&applied, how), "yes", "{one}: {how}");
    }
}

async fn status_written(forms: &mut Forms, row: &Row, one: &str, identity: &Value, status: &Value) {
    let path = format!("{one}/status");
    expect_code(&mut forms.json, 200, "GET", &path, None).await;
    let meta = json!({"annotations": {"patchedstatus": "yes"}, "ownerReferences": []});
    let patch = Some(json!({"metadata": meta, "status": status}));
    let patched = expect_code(&mut forms.merge, 200, "PATCH", &path, patch).await;
    let noted = annotation(&patched, "patchedstatus") == "yes";
    assert_eq!(noted, !row.status_keeps_metadata, "{path}: {patched}");
    for (key, value) in status.as_object().unwrap() {
        assert_eq!(bare(&patched["status"][key]), *value, "{path}: {patched}");
    }
    let (_, updated) = replaced(&mut forms.json, &path, "replaced").await;
    let noted = annotation(&updated, "replaced") == "yes";
    assert_eq!(noted, !row.status_keeps_metadata, "{path}: {updated}");

    let mut config = identity.clone();
    config["status"] = status.clone();
    let apply = format!("{path}?fieldManager=life-status&force=true");
    let applied = expect_code(&mut forms.apply, 200, "PATCH", &apply, Some(config)).await;
    let managers = applied["metadata"]["managedFields"].as_array().unwrap();
    let of_status = |m: &&Value| m["manager"] == "life-status" && m["subresource"] == "status";
    assert!(managers.iter().any(|m| of_status(&m)), "{path}: {managers:?}");
}

/// Removes the finalizers, which controllers would remove; there are none here.
async fn remove_finalizers(forms: &mut Forms, one: &str) {
    let none = Some(json!({"metadata": {"finalizers": null}}));
    expect_code(&mut forms.merge, 200, "PATCH", one, none).await;
}

async fn deleted(forms: &mut Forms, row: &Row, path: &str) {
    let names = row.names();
    let one = format!("{path}/{}", names[0]);
    for name in &names {
        remove_finalizers(forms, &format!("{path}/{name}")).await;
    }
    let dry = format!("{one}?dryRun=All");
    expect_code(&mut forms.json, 200, "DELETE", &dry, None).await;
    expect_code(&mut forms.json, 200, "GET", &one, None).await;
    let background = Some(json!({"propagationPolicy": "Background"}));
    expect_code(&mut forms.json, 200, "DELETE", &one, background).await;
    if row.resource() == "namespaces" {
        // Its controller would delete the contents, and there is no deletecollection.
        for name in &names[1..] {
            let path = format!("{path}/{name}");
            expect_code(&mut forms.json, 200, "DELETE", &path, None).await;
        }
        let left = expect_code(&mut forms.json, 200, "GET", &format!("{path}{CHOSEN}"), None).await;
        for item in left["items"].as_array().unwrap() {
            assert_eq!(item["status"]["phase"], "Terminating");
        }
        return;
    }
    if row.resource() != "customresourcedefinitions" {
        let gone = expect_code(&mut forms.json, 404, "GET", &one, None).await;
        assert_eq!(gone["reason"], "NotFound", "{one}");
    }
    let many = format!("{path}{CHOSEN}&propagationPolicy=Background");
    expect_code(&mut forms.json, 200, "DELETE", &many, None).await;
}

#[tokio::test]
async fn every_kind_completes_its_lifecycle() {
    let cluster = Cluster::start().await;
    let namespace = json!({"metadata": {"name": NAMESPACE}});
    cluster.create("/api/v1/namespaces", namespace).await;
    let account = json!({"metadata": {"name": "default"}});
    let accounts = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts");
    cluster.create(&accounts, account).await;
    let mut forms = Forms::to(&cluster).await;
    for row in rows() {
        let path = &row.path;
        let chosen = format!("{path}{CHOSEN}");
        let made = created(&mut forms, &row, path).await;
        let name = made[0]["metadata"]["name"].as_str().unwrap();
        let identity =
            json!({"apiVersion": made[0]["apiVersion"], "kind": made[0]["kind"], "metadata": {"name": name}});
        let listed = expect_code(&mut forms.json, 200, "GET", &chosen, None).await;
        assert_eq!(listed["items"].as_array().map(Vec::len), Some(3), "{path}");
        let everywhere = chosen.replace(IN_NAMESPACE, "");
        let listed_all = expect_code(&mut forms.json, 200, "GET", &everywhere, None).await;
        assert_eq!(
            listed_all["items"].as_array().map(Vec::len),
            Some(3),
            "{everywhere}"
        );

        let one = format!("{path}/{name}");
        written(&mut forms, &one, &identity).await;
        if let Some(status) = &row.status {
            status_written(&mut forms, &row, &one, &identity, status).await;
        }
        deleted(&mut forms, &row, path).await;

        let since = revision(&json!({"metadata": listed["metadata"]}));
        let watch = format!("{everywhere}&watch=true&resourceVersion={since}");
        let ends = if row.resource() == "namespaces" { 0 } else { 3 };
        let events = cluster
            .connect(&Credentials::token(ADMIN))
            .await
            .unwrap()
            .events(&watch, |events| {
                let of = |type_: &str| events.iter().filter(|e| e["type"] == type_).count();
                of("MODIFIED") >= 5 && of("DELETED") == ends
            });
        let mut last = since;
        for event in events.await {
            let now = revision(&event["object"]);
            assert!(now > last, "{watch}: {event}");
            last = now;
        }
    }
}

/// So that a new kind is tested, too.
#[tokio::test]
async fn every_kind_of_discovery_has_a_lifecycle() {
    let cluster = Cluster::start().await;
    let mut client = cluster.connect(&Credentials::token(ADMIN)).await.unwrap();
    let mut groups = vec!["/api/v1".to_string()];
    let all = expect_code(&mut client, 200, "GET", "/apis", None).await;
    for group in all["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            groups.push(format!("/apis/{}", version["groupVersion"].as_str().unwrap()));
        }
    }
    let mut served = BTreeSet::new();
    for group in groups {
        let list = expect_code(&mut client, 200, "GET", &group, None).await;
        for resource in list["resources"].as_array().unwrap() {
            let verbs = resource["verbs"].as_array().unwrap();
            if ["create", "watch"]
                .iter()
                .all(|verb| verbs.contains(&json!(verb)))
            {
                served.insert(format!("{group}/{}", resource["name"].as_str().unwrap()));
            }
        }
    }
    let here: BTreeSet<String> = rows().iter().map(|r| r.path.replace(IN_NAMESPACE, "")).collect();
    assert_eq!(here, served);
}
