//! Compares a recorded response, in which values that differ between runs are placeholders, with a real one.

use std::collections::BTreeMap;

use serde_json::Value;

const PLACEHOLDERS: &[&str] = &[
    "uid",
    "rv",
    "listrv",
    "num",
    "nodeport",
    "time+grace",
    "time",
    "microtime",
    "rand5",
    "clusterip",
    "continue",
    "age",
    "token",
    "any",
];

/// Remembers the value of each numbered placeholder.
#[derive(Default)]
pub struct Matcher {
    bound: BTreeMap<String, String>,
}

/// A part of a recorded text: literal text or a placeholder.
enum Piece<'a> {
    Text(&'a str),
    Placeholder(&'a str),
}

fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    let mut from = 0;
    while let Some(open) = rest[from..].find('{').map(|i| i + from) {
        let close = rest[open..].find('}').map(|i| i + open + 1);
        let known = close.filter(|close| {
            let inner = &rest[open + 1..close - 1];
            let name = inner.split(':').next().unwrap_or("");
            PLACEHOLDERS.contains(&name)
        });
        match known {
            Some(close) => {
                pieces.push(Piece::Text(&rest[..open]));
                pieces.push(Piece::Placeholder(&rest[open..close]));
                rest = &rest[close..];
                from = 0;
            }
            None => from = open + 1,
        }
    }
    pieces.push(Piece::Text(rest));
    pieces
}

impl Matcher {
    /// Replaces the placeholders by their values.
    pub fn fill(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.fill_text(text).into(),
            Value::Array(items) => items.iter().map(|v| self.fill(v)).collect(),
            Value::Object(fields) => fields
                .iter()
                .map(|(k, v)| (self.fill_text(k), self.fill(v)))
                .collect(),
            other => other.clone(),
        }
    }

    pub fn fill_text(&self, text: &str) -> String {
        self.bound
            .iter()
            .fold(text.to_string(), |text, (name, value)| text.replace(name, value))
    }

    fn text(&mut self, expected: &str, actual: &str) -> bool {
        let mut rest = actual;
        let pieces = pieces(expected);
        for (i, piece) in pieces.iter().enumerate() {
            match piece {
                Piece::Text(text) => match rest.strip_prefix(text) {
                    Some(r) => rest = r,
                    None => return false,
                },
                Piece::Placeholder(name) => {
                    let length = match (self.bound.get(*name), pieces.get(i + 1)) {
                        (Some(value), _) if !rest.starts_with(value.as_str()) => return false,
                        (Some(value), _) => value.len(),
                        (None, Some(Piece::Text(next))) if !next.is_empty() => match rest.find(next) {
                            Some(at) => at,
                            None => return false,
                        },
                        _ => rest.len(),
                    };
                    if name.contains(':') {
                        self.bound.insert((*name).into(), rest[..length].into());
                    }
                    rest = &rest[length..];
                }
            }
        }
        rest.is_empty()
    }

    /// The first difference, with its path.
    pub fn compare(&mut self, expected: &Value, actual: &Value) -> Result<(), String> {
        match (expected, actual) {
            (Value::Object(e), Value::Object(a)) => {
                let several_causes = expected["details"]["causes"]
                    .as_array()
                    .is_some_and(|c| c.len() > 1);
                for (key, value) in e {
                    let key = self.fill_text(key);
                    let Some(found) = a.get(&key) else {
                        // k8s-openapi never serializes null.
                        if value.is_null() {
                            continue;
                        }
                        return Err(format!(".{key}: absent for {value}"));
                    };
                    let result = if key == "message" && several_causes {
                        same_words_in_any_order(&self.fill(value), found)
                    } else if key == "causes" {
                        self.compare(&sorted(&self.fill(value)), &sorted(found))
                    } else {
                        self.compare(value, found)
                    };
                    result.map_err(|error| format!(".{key}{error}"))?;
                }
                for (key, value) in a {
                    if !e.keys().any(|k| self.fill_text(k) == *key) {
                        return Err(format!(".{key}: {value} for absent"));
                    }
                }
                Ok(())
            }
            (Value::Array(e), Value::Array(a)) => {
                for (i, (e, a)) in e.iter().zip(a).enumerate() {
                    self.compare(e, a).map_err(|error| format!("[{i}]{error}"))?;
                }
                if e.len() != a.len() {
                    return Err(format!(
                        ": {} items for {}: {actual} for {expected}",
                        a.len(),
                        e.len()
                    ));
                }
                Ok(())
            }
            (Value::String(e), Value::String(a)) if self.text(e, a) => Ok(()),
            (Value::String(e), Value::Number(a)) if e.starts_with('{') && self.text(e, &a.to_string()) => {
                Ok(())
            }
            (Value::Null, Value::Array(a)) if a.is_empty() => Ok(()),
            (e, a) if e == a => Ok(()),
            (e, a) => Err(format!(": {a} for {e}")),
        }
    }
}

fn same_words_in_any_order(expected: &Value, actual: &Value) -> Result<(), String> {
    let words = |value: &Value| {
        let text = value.as_str().unwrap_or("").replace(['[', ']', ','], " ");
        let mut words: Vec<String> = text.split_whitespace().map(String::from).collect();
        words.sort();
        words
    };
    if words(expected) == words(actual) {
        Ok(())
    } else {
        Err(format!(": {actual} for {expected}"))
    }
}

fn sorted(causes: &Value) -> Value {
    let mut causes = causes.as_array().cloned().unwrap_or_default();
    causes.sort_by_key(|c| format!("{} {}", c["field"], c["message"]));
    Value::Array(causes)
}
