//! Compares pods with the recorded responses of kube-apiserver v1.36.2: every recorded request that creates or changes a pod is
//! decoded, defaulted, prepared and validated, and the object or error compared with the recording
//! (`tests/golden-api/`: one scenario per line, requests and responses, names and times replaced by placeholders).
//!
//! What the server adds (admission, metadata) is imitated here as far as the responses show it.

// The helper functions unwrap as the tests do.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_api::registry::POD;
use knarr_api::{AnyObject, k8s_openapi, patch};
use knarr_apimachinery::field::ErrorList;
use knarr_apimachinery::{Error, codec};
use knarr_strategy::metadata;
use knarr_strategy::{Part, Strategy};
use serde_json::{Value, json};

use crate::recordings::{self, NAMESPACE};

const NOW: &str = "2020-02-02T02:02:02Z";

/// Skipped scenarios, which test something else than the rules of pods, and what.
const SKIPPED: &[(&str, &str)] = &[
    ("pod-validation-0368", "bindings"),
    ("defaulting-0067", "RuntimeClass admission"),
    ("defaulting-0069", "ServiceAccount admission copies secrets"),
    ("defaulting-0071", "LimitRanger admission"),
    (
        "pod-validation-0031",
        "the request pipeline rejects a resourceVersion",
    ),
    ("pod-validation-0237", "Priority admission"),
    ("pod-validation-0239", "Priority admission"),
    ("pod-validation-0241", "Priority admission"),
    ("pod-validation-0267", "RuntimeClass admission"),
    ("pod-validation-0269", "RuntimeClass admission"),
    ("pod-validation-0271", "ServiceAccount admission"),
    ("pod-validation-0331", "the request pipeline compares names"),
    ("pod-validation-0333", "the request pipeline compares namespaces"),
    ("pod-validation-0367", "the binding subresource"),
    ("pod-validation-0369", "the binding subresource"),
    ("pod-validation-0371", "the binding subresource"),
    ("pod-validation-0373", "the binding subresource"),
];

fn scenarios(name: &str) -> Vec<Value> {
    let text = recordings::read(name)
        .replace("{ns}", NAMESPACE)
        .replace("{time}", NOW);
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// A response: status code, body, warnings.
struct Response {
    status: u64,
    body: Value,
    warnings: Vec<String>,
}

fn rejected(error: &Error, warnings: Vec<String>) -> Response {
    let mut body = serde_json::to_value(error.status()).unwrap();
    body["metadata"] = json!({});
    Response {
        status: error.code().into(),
        body,
        warnings,
    }
}

fn invalid(pod: &Pod, errors: &ErrorList, warnings: Vec<String>) -> Response {
    let name = pod.metadata.name.as_deref().unwrap_or("");
    rejected(&Error::invalid(POD.kind_ref(name), errors), warnings)
}

fn decode(body: &Value) -> Result<(Pod, Vec<String>), Response> {
    let text = match body {
        Value::String(text) => text.clone(),
        body => body.to_string(),
    };
    match codec::read::<Pod>(text.as_bytes()) {
        Ok((pod, strict_errors)) => Ok((pod, strict_errors.iter().map(ToString::to_string).collect())),
        Err(e) => {
            let message = format!("Pod in version \"v1\" cannot be handled as a Pod: {}", e.message);
            Err(rejected(&Error::bad_request(message), Vec::new()))
        }
    }
}

/// A pod as the server sends it.
fn encoded(pod: &Pod) -> Value {
    let mut json = Vec::new();
    AnyObject::encode_into(pod, &mut json);
    serde_json::from_slice(&json).unwrap()
}

/// Sets what admission plugins set in pods: service account, priority, two tolerations.
fn admit(pod: &mut Pod) {
    let spec = pod.spec.as_mut().unwrap();
    if spec.service_account_name.is_none() {
        spec.service_account_name = Some("default".into());
        spec.service_account = Some("default".into());
    }
    if spec.priority_class_name.is_none() {
        spec.priority.get_or_insert(0);
        spec.preemption_policy
            .get_or_insert_with(|| "PreemptLowerPriority".into());
    }
    let tolerations = spec.tolerations.get_or_insert_default();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covers = |t: &Toleration| {
            t.key.as_deref().is_none_or(|k| k == key) && t.effect.as_deref().is_none_or(|e| e == "NoExecute")
        };
        if !tolerations.iter().any(covers) {
            tolerations.push(Toleration {
                key: Some(key.into()),
                operator: Some("Exists".into()),
                effect: Some("NoExecute".into()),
                toleration_seconds: Some(300),
                value: None,
            });
        }
    }
}

fn create(body: &Value) -> (Response, Option<Pod>) {
    let (mut pod, mut warnings) = match decode(body) {
        Ok(decoded) => decoded,
        Err(answer) => return (answer, None),
    };
    let generate_name = pod.metadata.generate_name.clone().unwrap_or_default();
    if pod.metadata.name.is_none() && !generate_name.is_empty() {
        pod.metadata.name = Some(format!("{generate_name}{{rand5:1}}"));
    }
    pod.metadata.namespace = Some(NAMESPACE.into());
    pod.metadata.uid = Some("{uid:1}".into());
    pod.metadata.creation_timestamp = Some(Time(NOW.parse().unwrap()));
    pod.set_defaults();
    let once = pod.clone();
    pod.set_defaults();
    assert_eq!(pod, once, "defaults are idempotent");
    admit(&mut pod);
    pod.prepare_for_create();
    let mut errors = metadata::validate(&POD, &pod.metadata);
    errors.extend(pod.validate());
    warnings.extend(pod.early_warnings());
    if !errors.is_empty() {
        return (invalid(&pod, &errors, warnings), None);
    }
    warnings.extend(pod.warnings());
    let answer = Response {
        status: 201,
        body: encoded(&pod),
        warnings,
    };
    (answer, Some(pod))
}

fn change(old: &Pod, part: Part, content_type: &str, change: &Value) -> (Response, Option<Pod>) {
    let mut body = serde_json::to_value(old).unwrap();
    match content_type {
        "application/json-patch+json" => patch::json::apply(&mut body, change).unwrap(),
        "application/merge-patch+json" => patch::merge::apply(&mut body, change),
        _ => patch::strategic::apply(&POD, &mut body, change).unwrap(),
    }
    let (mut pod, warnings) = match decode(&body) {
        Ok(decoded) => decoded,
        Err(answer) => return (answer, None),
    };
    pod.set_defaults();
    pod.metadata.resource_version = Some("1".into());
    pod.metadata.generation = old.metadata.generation;
    pod.metadata
        .creation_timestamp
        .clone_from(&old.metadata.creation_timestamp);
    pod.prepare_for_update(old, part);
    let mut errors = metadata::validate_update(&POD, part, &pod.metadata, &old.metadata);
    errors.extend(pod.validate_update(old, part));
    if !errors.is_empty() {
        return (invalid(&pod, &errors, warnings), None);
    }
    let answer = Response {
        status: 200,
        body: encoded(&pod),
        warnings,
    };
    (answer, Some(pod))
}

/// Plays the steps of a scenario; `None` if they are not all about pods.
fn play(scenario: &Value) -> Option<Result<(), String>> {
    let steps = scenario["steps"].as_array().unwrap();
    let is_of_pods = |step: &Value| {
        let path = step["request"]["path"].as_str().unwrap();
        path.starts_with(&format!("/api/v1/namespaces/{NAMESPACE}/pods"))
    };
    if !steps.iter().all(is_of_pods) {
        return None;
    }
    let mut stored: Option<Pod> = None;
    for (i, step) in steps.iter().enumerate() {
        let request = &step["request"];
        let path = request["path"].as_str().unwrap();
        let (answer, pod) = match request["method"].as_str().unwrap() {
            "POST" => create(&request["body"]),
            "PATCH" => {
                let part = match path.rsplit('/').next().unwrap() {
                    "status" => Part::Status,
                    "resize" => Part::Other("resize"),
                    "ephemeralcontainers" => Part::Other("ephemeralcontainers"),
                    _ => Part::Main,
                };
                let content_type = request["headers"]["Content-Type"].as_str().unwrap();
                change(stored.as_ref().unwrap(), part, content_type, &request["body"])
            }
            _ => return None,
        };
        if let Err(error) = compare(&answer, &step["response"]) {
            return Some(Err(format!("step {i}: {error}")));
        }
        stored = pod.or(stored);
    }
    Some(Ok(()))
}

/// The value without what is not compared: fields that storage sets, and the volume of the token.
fn normalized(value: &Value) -> Value {
    let is_token = |v: &Value| {
        v["name"]
            .as_str()
            .is_some_and(|n| n.starts_with("kube-api-access-"))
    };
    match value {
        Value::Object(map) => {
            let mut out = serde_json::Map::new();
            for (key, value) in map {
                if matches!(key.as_str(), "resourceVersion" | "managedFields") {
                    continue;
                }
                let mut value = normalized(value);
                if let (Value::Array(list), "volumes" | "volumeMounts") = (&mut value, key.as_str()) {
                    list.retain(|v| !is_token(v));
                    if list.is_empty() {
                        continue;
                    }
                }
                if key == "causes"
                    && let Value::Array(list) = &mut value
                {
                    list.sort_by_key(|c| format!("{} {}", c["field"], c["message"]));
                }
                out.insert(key.clone(), value);
            }
            // The order of several causes is not specified.
            let causes = out
                .get("details")
                .and_then(|d| d["causes"].as_array())
                .map_or(0, Vec::len);
            if causes > 1
                && let Some(Value::String(message)) = out.get("message")
            {
                let mut words: Vec<String> = message
                    .replace(['[', ']', ','], " ")
                    .split_whitespace()
                    .map(str::to_string)
                    .collect();
                words.sort();
                out.insert("message".into(), json!(words.join(" ")));
            }
            Value::Object(out)
        }
        Value::Array(list) => Value::Array(list.iter().map(normalized).collect()),
        other => other.clone(),
    }
}

fn differences(path: &str, want: &Value, got: &Value, out: &mut Vec<String>) {
    match (want, got) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeMap<&String, ()> = a.keys().chain(b.keys()).map(|k| (k, ())).collect();
            for key in keys.keys() {
                let path = format!("{path}.{key}");
                match (a.get(*key), b.get(*key)) {
                    (Some(a), Some(b)) => differences(&path, a, b, out),
                    (a, b) => out.push(format!("{path}: want {a:?}, got {b:?}")),
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}[{i}]"), a, b, out);
            }
        }
        (a, b) if a != b => out.push(format!("{path}:\n      want {a}\n      got  {b}")),
        _ => {}
    }
}

fn compare(got: &Response, want: &Value) -> Result<(), String> {
    let mut found = Vec::new();
    if want["status"] != got.status {
        found.push(format!("status: want {}, got {}", want["status"], got.status));
    }
    differences("", &normalized(&want["body"]), &normalized(&got.body), &mut found);
    let expected: Vec<String> = want["headers"]["Warning"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|w| w.as_str().unwrap().to_string())
        .collect();
    let ours: Vec<String> = got
        .warnings
        .iter()
        .map(|w| format!("299 - \"{}\"", w.replace('\\', "\\\\").replace('"', "\\\"")))
        .collect();
    if expected != ours {
        found.push(format!("warnings: want {expected:?}, got {ours:?}"));
    }
    if found.is_empty() {
        Ok(())
    } else {
        Err(found.join("\n    "))
    }
}

/// Plays all scenarios of a file, at least `least`, and asserts that the results are as recorded.
fn check(file: &str, least: usize) {
    let mut played = 0;
    let mut failures = Vec::new();
    for scenario in scenarios(file) {
        let id = scenario["id"].as_str().unwrap();
        if SKIPPED.iter().any(|(other, _)| *other == id) {
            continue;
        }
        match play(&scenario) {
            None => {}
            Some(Ok(())) => played += 1,
            Some(Err(error)) => failures.push(format!("{id} {}\n    {error}", scenario["title"])),
        }
    }
    assert!(
        failures.is_empty(),
        "{} failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert!(played >= least, "only {played} scenarios were played");
}

#[test]
fn pods_are_defaulted_as_recorded() {
    check("defaulting", 30);
}

#[test]
fn pods_are_validated_as_recorded() {
    check("pod-validation", 170);
}
