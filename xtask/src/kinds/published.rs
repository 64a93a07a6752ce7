//! What Kubernetes publishes about its types: the OpenAPI v3 documents of `api/openapi-spec/v3`, and `generated.proto`.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

/// The schemas of all documents by name: `io.k8s.api.core.v1.Pod`.
pub fn schemas(directory: &Path) -> Result<Map<String, Value>, String> {
    let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", directory.display());
    let mut schemas = Map::new();
    for entry in std::fs::read_dir(directory).map_err(|e| failed(&e))? {
        let path = entry.map_err(|e| failed(&e))?.path();
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut document: Value =
            serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        if let Some(Value::Object(found)) = document.pointer_mut("/components/schemas").map(Value::take) {
            schemas.extend(found);
        }
    }
    Ok(schemas)
}

/// The messages of a package: the numbers of their fields, by name.
pub type Messages = BTreeMap<String, BTreeMap<String, u32>>;

/// The messages of one `generated.proto`.
pub fn messages(text: &str) -> Messages {
    let mut messages = Messages::new();
    let mut current: Option<&mut BTreeMap<String, u32>> = None;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line
            .strip_prefix("message ")
            .and_then(|rest| rest.strip_suffix(" {"))
        {
            current = Some(messages.entry(name.to_string()).or_default());
        } else if line == "}" {
            current = None;
        } else if let (Some(fields), Some((declared, number))) = (&mut current, line.split_once(" = "))
            && !line.starts_with("//")
            && let Some(name) = declared.split_whitespace().last()
            && let Some(number) = number
                .split(|c: char| !c.is_ascii_digit())
                .next()
                .and_then(|n| n.parse().ok())
        {
            fields.insert(name.to_string(), number);
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_the_numbers_of_its_fields() {
        let found = messages(
            "message A {\n  // one = 9;\n  optional string one = 1;\n\n  map<string, B> two = 22;\n}\n\nmessage B {\n}\n",
        );
        let fields = [("one".to_string(), 1), ("two".to_string(), 22)];
        assert_eq!(found["A"], fields.into());
        assert!(found["B"].is_empty());
    }
}
