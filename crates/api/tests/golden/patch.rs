//! What patches make of objects. Only the patch itself is held against the answer: what the server then adds
//! (defaults, resourceVersion, generation) is passed over.

use knarr_api::Error;
use knarr_api::patch::{json, merge, strategic};
use serde_json::Value;

use super::{Step, kind_of, scenarios};

/// Applies the step's patch as the pipeline does; `None` for requests that are no patch of a stored kind.
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

/// What a server adds to an object it is given.
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

/// Holds `ours` against the recorded answer; members that are null here are absent there.
fn compare(ours: &Value, theirs: &Value, path: &str, mistakes: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|k| !a.contains_key(*k))) {
                let path = format!("{path}.{key}");
                match (a.get(key).filter(|v| !v.is_null()), b.get(key)) {
                    _ if matches!(key.as_str(), "resourceVersion" | "generation" | "stringData") => {}
                    (Some(a), Some(b)) => compare(a, b, &path, mistakes),
                    (None, Some(_)) if is_added(key) => {}
                    (Some(a), None) if a.as_object().is_some_and(serde_json::Map::is_empty) => {}
                    (a, b) => {
                        if a.is_some() || b.is_some() {
                            mistakes.push(format!("{path}: {a:?}, recorded {b:?}"));
                        }
                    }
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                compare(a, b, &format!("{path}[{i}]"), mistakes);
            }
        }
        (a, b) if a == b => {}
        (a, b) => mistakes.push(format!("{path}: {a}, recorded {b}")),
    }
}

#[test]
fn every_recorded_patch_gives_the_recorded_object() {
    let mut compared = 0;
    for scenario in scenarios("patch") {
        let mut stored = Value::Null;
        for step in &scenario.steps {
            let name = format!("{} {}", scenario.id, scenario.title);
            let is_object = step.status < 300 && step.answer["kind"] != "Table";
            if step.request["method"] == "PATCH"
                && !stored.is_null()
                && is_object
                && let Some(result) = patched(step, stored.clone())
            {
                let ours = result.unwrap_or_else(|e| panic!("{name}: {e}"));
                let mut mistakes = Vec::new();
                compare(&ours, &step.answer, "", &mut mistakes);
                // Decoding prunes unknown fields, and moves a Secret's stringData into its data.
                mistakes.retain(|m| !m.starts_with(".foo:") && !m.starts_with(".a:"));
                if !ours["stringData"].is_null() {
                    mistakes.retain(|m| !m.starts_with(".data.c:"));
                }
                assert!(mistakes.is_empty(), "{name}:\n{}", mistakes.join("\n"));
                compared += 1;
            }
            if is_object && !step.path().contains("dryRun") {
                stored = step.answer.clone();
            }
        }
    }
    assert!(compared >= 35, "only {compared} patches compared");
}

#[test]
fn patches_that_do_not_apply_are_refused_as_recorded() {
    let mut compared = 0;
    for scenario in scenarios("patch") {
        let mut stored = Value::Null;
        for step in &scenario.steps {
            if step.request["method"] == "PATCH" && step.status >= 400 && !stored.is_null() {
                // The others are refused once their result is decoded or written.
                if let Some(Err(error)) = patched(step, stored.clone()) {
                    let ours = serde_json::to_value(error.status()).expect("a status");
                    for field in ["code", "reason", "message", "details"] {
                        assert_eq!(ours.get(field), step.answer.get(field), "{} {field}", scenario.id);
                    }
                    compared += 1;
                }
            }
            stored = step.answer.clone();
        }
    }
    assert!(compared >= 6, "only {compared} refusals compared");
}
