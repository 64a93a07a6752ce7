//! The difference between two specs as Kubernetes shows it where a whole spec may not change: a unified diff of
//! the two as indented JSON, in Go's names.

use k8s_openapi::api::core::v1::PersistentVolumeClaimSpec;
use serde_json::Value;

/// Lines shown around a change.
const CONTEXT: usize = 3;

/// One line: its text and in which of the two it is.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Both,
    Old,
    New,
}

/// Of two claims' specs.
pub(super) fn of_claims(old: &PersistentVolumeClaimSpec, new: &PersistentVolumeClaimSpec) -> String {
    unified(&claim_lines(old), &claim_lines(new))
}

/// A value's lines, indented by one blank a level.
fn lines_of(name: &str, value: &Value, depth: usize, last: bool, out: &mut Vec<String>) {
    let indent = " ".repeat(depth);
    let comma = if last { "" } else { "," };
    let label = if name.is_empty() {
        String::new()
    } else {
        format!("{name:?}: ")
    };
    let mut group = |open: &str, close: &str, items: Vec<(&str, &Value)>| {
        out.push(format!("{indent}{label}{open}"));
        let count = items.len();
        for (i, (name, item)) in items.into_iter().enumerate() {
            lines_of(name, item, depth + 1, i + 1 == count, out);
        }
        out.push(format!("{indent}{close}{comma}"));
    };
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            group("{", "}", fields.iter().map(|(k, v)| (k.as_str(), v)).collect());
        }
        Value::Array(items) if !items.is_empty() => group("[", "]", items.iter().map(|v| ("", v)).collect()),
        other => out.push(format!("{indent}{label}{other}{comma}")),
    }
}

fn claim_lines(spec: &PersistentVolumeClaimSpec) -> Vec<String> {
    let json = |value: Result<Value, serde_json::Error>| value.unwrap_or(Value::Null);
    let resources = spec.resources.clone().unwrap_or_default();
    // Go's fields in Go's order. serde_json's maps are sorted, so the order is kept here.
    let top = [
        ("AccessModes", json(serde_json::to_value(&spec.access_modes))),
        ("Selector", json(serde_json::to_value(&spec.selector))),
        ("Resources", Value::Null),
        ("VolumeName", spec.volume_name.clone().unwrap_or_default().into()),
        (
            "StorageClassName",
            json(serde_json::to_value(&spec.storage_class_name)),
        ),
        ("VolumeMode", json(serde_json::to_value(&spec.volume_mode))),
        (
            "DataSource",
            references(json(serde_json::to_value(&spec.data_source))),
        ),
        (
            "DataSourceRef",
            references(json(serde_json::to_value(&spec.data_source_ref))),
        ),
        (
            "VolumeAttributesClassName",
            json(serde_json::to_value(&spec.volume_attributes_class_name)),
        ),
    ];
    let mut lines = vec!["{".to_string()];
    let count = top.len();
    for (i, (name, value)) in top.iter().enumerate() {
        if *name == "Resources" {
            lines.push(" \"Resources\": {".into());
            let limits = json(serde_json::to_value(&resources.limits));
            let requests = json(serde_json::to_value(&resources.requests));
            lines_of("Limits", &limits, 2, false, &mut lines);
            lines_of("Requests", &requests, 2, true, &mut lines);
            lines.push(" },".into());
        } else {
            lines_of(name, value, 1, i + 1 == count, &mut lines);
        }
    }
    lines.push("}".into());
    lines
}

/// References have Go's names inside, too.
fn references(value: Value) -> Value {
    let Value::Object(fields) = value else {
        return value;
    };
    fields
        .into_iter()
        .map(|(key, value)| {
            let key = match key.as_str() {
                "apiGroup" => "APIGroup".to_string(),
                "kind" => "Kind".to_string(),
                "name" => "Name".to_string(),
                _ => "Namespace".to_string(),
            };
            (key, value)
        })
        .collect()
}

/// The edit script of two short texts, by longest common subsequence.
fn script<'a>(old: &'a [String], new: &'a [String]) -> Vec<(Side, &'a str)> {
    let (n, m) = (old.len(), new.len());
    let mut longest = vec![vec![0usize; m + 1]; n + 1];
    for i in (0..n).rev() {
        for j in (0..m).rev() {
            longest[i][j] = if old[i] == new[j] {
                longest[i + 1][j + 1] + 1
            } else {
                longest[i + 1][j].max(longest[i][j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut lines = Vec::with_capacity(n + m);
    while i < n || j < m {
        if i < n && j < m && old[i] == new[j] {
            lines.push((Side::Both, old[i].as_str()));
            i += 1;
            j += 1;
        } else if i < n && (j == m || longest[i + 1][j] >= longest[i][j + 1]) {
            lines.push((Side::Old, old[i].as_str()));
            i += 1;
        } else {
            lines.push((Side::New, new[j].as_str()));
            j += 1;
        }
    }
    lines
}

fn unified(old: &[String], new: &[String]) -> String {
    let script = script(old, new);
    let changed: Vec<usize> = (0..script.len()).filter(|i| script[*i].0 != Side::Both).collect();
    let mut out = String::new();
    let mut next = 0;
    while next < changed.len() {
        let first = changed[next].saturating_sub(CONTEXT);
        let mut end = changed[next] + 1;
        while next < changed.len() && changed[next] < end + 2 * CONTEXT {
            end = changed[next] + 1;
            next += 1;
        }
        let last = (end + CONTEXT).min(script.len());
        let count = |lines: &[(Side, &str)], not: Side| lines.iter().filter(|(side, _)| *side != not).count();
        out += &format!(
            "@@ -{},{} +{},{} @@\n",
            count(&script[..first], Side::New) + 1,
            count(&script[first..last], Side::New),
            count(&script[..first], Side::Old) + 1,
            count(&script[first..last], Side::Old),
        );
        for (side, line) in &script[first..last] {
            let mark = match side {
                Side::Both => ' ',
                Side::Old => '-',
                Side::New => '+',
            };
            out.push(mark);
            out += line;
            out.push('\n');
        }
    }
    out
}
