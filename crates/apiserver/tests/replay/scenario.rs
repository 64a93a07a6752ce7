//! Recorded scenarios: parsed, and replayed against a server.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use knarr_apiserver::Server;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use crate::client::{Client, Response, server};
use crate::controllers;
use crate::matching::Matcher;

/// Scenarios of one topic that run at once; they mostly wait.
const AT_ONCE: usize = 8;
/// The timeout of a scenario that is not expected to pass.
const PATIENCE_IN_VAIN: Duration = Duration::from_millis(300);
const ASK_AGAIN: Duration = Duration::from_millis(100);

#[derive(Deserialize)]
pub struct Scenario {
    id: String,
    topic: String,
    title: String,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    request: Sent,
    response: Value,
    #[serde(default)]
    delay_ms: u64,
    #[serde(default)]
    eventually_s: u64,
}

#[derive(Deserialize)]
struct Sent {
    method: String,
    path: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// As it was sent: the order of members is visible in responses.
    body: Option<Box<RawValue>>,
}

/// All recordings of a directory by topic.
pub fn read(directory: &Path) -> BTreeMap<String, Vec<Scenario>> {
    let mut topics: BTreeMap<String, Vec<Scenario>> = BTreeMap::new();
    let entries = std::fs::read_dir(directory)
        .unwrap_or_else(|e| panic!("the recordings in {} cannot be read: {e}", directory.display()));
    for entry in entries {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "gz") {
            continue;
        }
        let mut text = String::new();
        flate2::read::GzDecoder::new(std::fs::File::open(&path).unwrap())
            .read_to_string(&mut text)
            .unwrap();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let scenario: Scenario = serde_json::from_str(line).unwrap();
            topics.entry(scenario.topic.clone()).or_default().push(scenario);
        }
    }
    topics
}

type Outcome = (String, String, Result<(), Vec<String>>);

/// Replays all scenarios on one new server.
pub async fn play_all(scenarios: Vec<Scenario>, listed: &BTreeMap<String, String>) -> Vec<Outcome> {
    let server = server().await;
    let _controllers = controllers::start(&server);
    let played = scenarios.into_iter().enumerate().map(|(i, scenario)| {
        let server = server.clone();
        let in_vain = listed.contains_key(&scenario.id);
        async move {
            let namespace = format!("gold-{i:08}");
            let outcome = play(server, &scenario, &namespace, in_vain).await;
            (scenario.id, scenario.title, outcome)
        }
    });
    futures::stream::iter(played).buffered(AT_ONCE).collect().await
}

async fn play(
    server: Arc<Server>,
    scenario: &Scenario,
    namespace: &str,
    in_vain: bool,
) -> Result<(), Vec<String>> {
    let mut client = Client::connect(server).await;
    let plain = BTreeMap::new();
    let made = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    let setup = |e: String| vec![format!("the namespace cannot be made: {e}")];
    client
        .send("POST", "/api/v1/namespaces", &plain, Some(made.to_string()))
        .await
        .map_err(setup)?;
    let account = json!({"metadata": {"name": "default"}});
    let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    client
        .send("POST", &accounts, &plain, Some(account.to_string()))
        .await
        .map_err(setup)?;
    let mut matcher = Matcher::new(namespace);
    let mut differences = Vec::new();
    for (i, step) in scenario.steps.iter().enumerate() {
        sleep(Duration::from_millis(step.delay_ms)).await;
        let patience = match in_vain {
            true => PATIENCE_IN_VAIN.min(Duration::from_secs(step.eventually_s)),
            false => Duration::from_secs(step.eventually_s),
        };
        let end = Instant::now() + patience;
        loop {
            let before = matcher.bound();
            let path = matcher.fill_text(&step.request.path);
            let headers = step.request.headers.iter();
            let headers = headers.map(|(k, v)| (k.clone(), matcher.fill_text(v))).collect();
            let body = step.request.body.as_ref().map(|b| matcher.fill_body(b.get()));
            let answer = client
                .send(&step.request.method, &path, &headers, body)
                .await
                .map_err(|e| vec![format!("step {i}: no answer: {e}")])?;
            let answer = compared(&answer, &path, scenario.topic == "apply");
            matcher.differences.clear();
            matcher.compare(&format!("step {i}"), "", &step.response, &answer);
            if matcher.differences.is_empty() || Instant::now() >= end {
                break;
            }
            matcher.restore(before);
            sleep(ASK_AGAIN).await;
        }
        let status = format!("step {i}.status:");
        let stop = matcher.differences.iter().any(|d| d.starts_with(&status));
        differences.append(&mut matcher.differences);
        if stop {
            break;
        }
    }
    match differences.is_empty() {
        true => Ok(()),
        false => Err(differences),
    }
}

/// A response as recorded: status, the headers that matter, and the body (JSON, watch events or text).
fn compared(answer: &Response, path: &str, managed_fields: bool) -> Value {
    let text = &answer.body;
    let mut body = Value::String(text.clone());
    if (answer.content_type.contains("json") || text.starts_with('{')) && !text.trim().is_empty() {
        if let Ok(value) = serde_json::from_str(text) {
            body = value;
        } else {
            let events: Result<Vec<Value>, _> =
                serde_json::Deserializer::from_str(text).into_iter().collect();
            body = events.map_or(body, Value::Array);
        }
    }
    let query = path.split_once('?').map_or("", |(_, query)| query);
    let watched = query.split('&').any(|p| p == "watch=1" || p == "watch=true");
    if watched && answer.status == 200 && !body.is_array() {
        body = match body.as_str() {
            Some("") => Value::Array(Vec::new()),
            _ => Value::Array(vec![body]),
        };
    }
    prepare(&mut body, managed_fields, path.split('?').next().unwrap_or(""));
    let mut headers = Map::new();
    let of = |name: &str| {
        let named = answer.headers.iter().filter(move |(n, _)| n == name);
        named
            .map(|(_, value)| Value::from(value.as_str()))
            .collect::<Vec<_>>()
    };
    for (name, known_as) in [("retry-after", "Retry-After"), ("allow", "Allow")] {
        if let Some(value) = of(name).pop() {
            headers.insert(known_as.into(), value);
        }
    }
    if answer.content_type != "application/json" {
        headers.insert("Content-Type".into(), answer.content_type.as_str().into());
    }
    let warnings = of("warning");
    if !warnings.is_empty() {
        headers.insert("Warning".into(), warnings.into());
    }
    let mut whole = json!({"status": answer.status, "body": body});
    if !headers.is_empty() {
        whole["headers"] = headers.into();
    }
    whole
}

/// Whether a group is Kubernetes' own and not of a custom resource.
fn built_in(group: &str) -> bool {
    !group.contains('.') || group.ends_with(".k8s.io")
}

/// Objects that are never compared: the CA's ConfigMap, and bookmarks, which come at any time.
fn skipped(item: &Value) -> bool {
    let object = item.get("object").filter(|o| o.is_object()).unwrap_or(item);
    object["metadata"]["name"] == "kube-root-ca.crt"
        || (item["type"] == "BOOKMARK" && !item.to_string().contains("k8s.io/initial-events-end"))
}

/// Removes what is never compared.
fn prepare(value: &mut Value, managed_fields: bool, path: &str) {
    match value {
        Value::Array(items) => {
            items.retain(|item| !skipped(item));
            for item in items {
                prepare(item, managed_fields, path);
            }
        }
        Value::Object(fields) => {
            if !managed_fields {
                fields.remove("managedFields");
            }
            for value in fields.values_mut() {
                prepare(value, managed_fields, path);
            }
            for field in ["serverAddress", "jwks_uri"] {
                if let Some(address) = fields.get_mut(field) {
                    *address = "{any}".into();
                }
            }
            prepare_kind(fields, path);
        }
        _ => {}
    }
}

fn prepare_kind(fields: &mut Map<String, Value>, path: &str) {
    let kind = fields
        .get("kind")
        .and_then(Value::as_str)
        .unwrap_or("")
        .to_string();
    let list = |fields: &mut Map<String, Value>, name: &str, keep: &mut dyn FnMut(&mut Value) -> bool| {
        if let Some(items) = fields.get_mut(name).and_then(Value::as_array_mut) {
            items.retain_mut(keep);
        }
    };
    let group = |name: &Value| built_in(name.as_str().unwrap_or(""));
    match kind.as_str() {
        "Table" => list(fields, "columnDefinitions", &mut |column| {
            if let Some(column) = column.as_object_mut() {
                column.remove("description");
            }
            true
        }),
        "APIGroupList" => list(fields, "groups", &mut |g| group(&g["name"])),
        "APIGroupDiscoveryList" => list(fields, "items", &mut |g| group(&g["metadata"]["name"])),
        "APIResourceList" => {
            let of = fields.get("groupVersion").and_then(Value::as_str).unwrap_or("");
            if !built_in(of.split('/').next().unwrap_or("")) {
                list(fields, "resources", &mut |resource| {
                    if let Some(resource) = resource.as_object_mut() {
                        resource.remove("storageVersionHash");
                    }
                    true
                });
            }
        }
        "SelfSubjectReview" if fields.contains_key("status") => {
            fields.insert("status".into(), "{any}".into());
        }
        _ => {}
    }
    if path == "/openapi/v3"
        && let Some(Value::Object(paths)) = fields.get("paths")
    {
        let ours = |path: &&String| {
            let group = path.strip_prefix("apis/").and_then(|p| p.split('/').next());
            group.is_none_or(built_in)
        };
        let mut paths: Vec<String> = paths.keys().filter(ours).cloned().collect();
        paths.sort();
        *fields = Map::from_iter([("paths".to_string(), paths.into())]);
    }
    if path == "/version" && fields.contains_key("major") {
        for (name, value) in fields.iter_mut() {
            if !matches!(name.as_str(), "major" | "minor") {
                *value = "{any}".into();
            }
        }
    }
}
