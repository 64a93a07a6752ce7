//! Compares the results of patches with the recorded responses, without the fields that the server then sets
//! (defaults, resourceVersion, generation).

use knarr_api::patch::{json, merge, strategic};
use knarr_apimachinery::Error;
use serde_json::Value;

use super::{Step, kind_of, scenarios};

/// Applies the step's patch as the request pipeline does; `None` if the request is not a patch of a stored kind.
fn patched(step: &Step, mut doc: Value) -> Option<Result<Value, Error>> {
    let (kind, subresource) = kind_of(step.path())?;
    let form = step.header("Content-Type").strip_prefix("application/")?;
    let patch = match &step.request["body"] {
        Value::String(text) => serde_json::from_str(text).ok()?,
        body => body.clone(),
    };
    let result = match form {
        "json-patch+json" => json::apply(&mut doc, &patch),
        "merge-patch+json" => merge::check(&patch).map(|()| merge::apply(&mut doc, &patch)),
        "strategic-merge-patch+json" if subresource == "scale" => strategic::apply_to_scale(&mut doc, &patch),
        "strategic-merge-patch+json" => strategic::apply(kind, &mut doc, &patch),
        _ => return None,
    };
    Some(result.map(|()| doc))
}

/// Whether the server sets this field.
fn is_added(key: &str) -> bool {
    matches!(
        key,
        "resourceVersion"
            | "generation"
            | "managedFields"
            | "terminationMessagePath"
            | "terminationMessagePolicy"
            | "imagePullPolicy"
            | "resources"
            | "protocol"
            | "targetPort"
            | "type"
            | "securityContext"
            | "uid"
            | "creationTimestamp"
            | "namespace"
            | "apiVersion"
            | "kind"
            | "stringData"
    )
}

/// Compares `ours` with the recorded response, in which fields that are null here are absent.
fn compare(ours: &Value, theirs: &Value, path: &str, differences: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|k| !a.contains_key(*k))) {
                let path = format!("{path}.{key}");
                match (a.get(key).filter(|v| !v.is_null()), b.get(key)) {
                    _ if matches!(key.as_str(), "resourceVersion" | "generation" | "stringData") => {}
                    (Some(a), Some(b)) => compare(a, b, &path, differences),
                    (None, Some(_)) if is_added(key) => {}
                    (Some(a), None) if a.as_object().is_some_and(serde_json::Map::is_empty) => {}
                    (a, b) => {
                        if a.is_some() || b.is_some() {
                            differences.push(format!("{path}: {a:?}, recorded {b:?}"));
                        }
                    }
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                compare(a, b, &format!("{path}[{i}]"), differences);
            }
        }
        (a, b) if a == b => {}
        (a, b) => differences.push(format!("{path}: {a}, recorded {b}")),
    }
}

#[test]
fn every_recorded_patch_gives_the_recorded_object() {
    let mut compared = 0;
    for scenario in scenarios("patch") {
        let mut stored = Value::Null;
        for step in &scenario.steps {
            let name = format!("{} {}", scenario.id, scenario.title);
            let is_object = step.status < 300 && step.response["kind"] != "Table";
            if step.request["method"] == "PATCH"
                && !stored.is_null()
                && is_object
                && let Some(result) = patched(step, stored.clone())
            {
                let ours = result.unwrap_or_else(|e| panic!("{name}: {e}"));
                let mut differences = Vec::new();
                compare(&ours, &step.response, "", &mut differences);
                // Decoding prunes unknown fields, and moves a Secret's stringData into its data.
                differences.retain(|m| !m.starts_with(".foo:") && !m.starts_with(".a:"));
                if !ours["stringData"].is_null() {
                    differences.retain(|m| !m.starts_with(".data.c:"));
                }
                assert!(differences.is_empty(), "{name}:\n{}", differences.join("\n"));
                compared += 1;
            }
            if is_object && !step.path().contains("dryRun") {
                stored = step.response.clone();
            }
        }
    }
    assert!(compared >= 35, "only {compared} patches compared");
}

#[test]
fn patches_that_do_not_apply_are_rejected_as_recorded() {
    let mut compared = 0;
    for scenario in scenarios("patch") {
        let mut stored = Value::Null;
        for step in &scenario.steps {
            if step.request["method"] == "PATCH" && step.status >= 400 && !stored.is_null() {
                // The others are rejected when their result is decoded or written.
                if let Some(Err(error)) = patched(step, stored.clone()) {
                    let ours = serde_json::to_value(error.status()).expect("a status");
                    for field in ["code", "reason", "message", "details"] {
                        assert_eq!(
                            ours.get(field),
                            step.response.get(field),
                            "{} {field}",
                            scenario.id
                        );
                    }
                    compared += 1;
                }
            }
            stored = step.response.clone();
        }
    }
    assert!(compared >= 6, "only {compared} rejections compared");
}
