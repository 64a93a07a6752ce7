//! Compares a recorded response, in which placeholders replace what differs from run to run, with a real one.

use std::collections::BTreeMap;

use knarr_api::k8s_openapi::jiff::Timestamp;
use serde_json::Value;

/// Tolerance of the end of a grace period, in seconds.
const GRACE_SLACK_SECONDS: i64 = 6;

/// Placeholders are `{name}` or `{name:number}`; the numbered ones have one value throughout a scenario.
pub struct Matcher {
    bound: BTreeMap<String, String>,
    pub differences: Vec<String>,
}

enum Piece<'a> {
    Text(&'a str),
    /// The whole placeholder, and its name.
    Placeholder(&'a str, &'a str),
}

/// Whether `text` can be a value of a placeholder of this name.
fn fits(name: &str, text: &str) -> bool {
    let digits = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
    let only = |also: &str| {
        let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || also.contains(c);
        !text.is_empty() && text.chars().all(fine)
    };
    // `0` is any digit, all else itself.
    let like = |shape: &str| {
        shape.len() == text.len()
            && shape
                .bytes()
                .zip(text.bytes())
                .all(|(s, t)| if s == b'0' { t.is_ascii_digit() } else { s == t })
    };
    match name {
        "uid" => text.len() == 36 && text.matches('-').count() == 4 && only("-"),
        "rv" | "listrv" | "num" | "nodeport" => digits(text),
        "time" | "time+grace" => like("0000-00-00T00:00:00Z"),
        "microtime" => like("0000-00-00T00:00:00.000000Z"),
        "rand5" => only(""),
        "ns" => only("-"),
        "clusterip" => only(".:"),
        "age" => text == "<invalid>" || (text.starts_with(|c: char| c.is_ascii_digit()) && only("")),
        "continue" | "token" => !text.is_empty() && !text.contains(char::is_whitespace),
        "any" => true,
        _ => false,
    }
}

fn is_placeholder(name: &str) -> bool {
    const NAMES: [&str; 15] = [
        "uid",
        "rv",
        "listrv",
        "num",
        "nodeport",
        "time",
        "time+grace",
        "microtime",
        "rand5",
        "ns",
        "clusterip",
        "age",
        "continue",
        "token",
        "any",
    ];
    NAMES.contains(&name)
}

/// A recorded text split at its placeholders.
fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let (mut rest, mut from) = (text, 0);
    while let Some(open) = rest[from..].find('{').map(|i| i + from) {
        let close = rest[open..].find('}').map(|i| i + open + 1);
        let known = close.and_then(|close| {
            let inner = &rest[open + 1..close - 1];
            let (name, number) = inner.split_once(':').unwrap_or((inner, "0"));
            (is_placeholder(name) && number.parse::<u32>().is_ok()).then_some((close, name))
        });
        match known {
            Some((close, name)) => {
                pieces.push(Piece::Text(&rest[..open]));
                pieces.push(Piece::Placeholder(&rest[open..close], name));
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
    pub fn new(namespace: &str) -> Self {
        Matcher {
            bound: BTreeMap::from([("{ns}".to_string(), namespace.to_string())]),
            differences: Vec::new(),
        }
    }

    /// The values so far, to restore after a response that did not match.
    pub fn bound(&self) -> BTreeMap<String, String> {
        self.bound.clone()
    }

    pub fn restore(&mut self, bound: BTreeMap<String, String>) {
        self.bound = bound;
    }

    pub fn fill_text(&self, text: &str) -> String {
        let all = self.bound.iter();
        all.fold(text.to_string(), |text, (name, value)| text.replace(name, value))
    }

    /// A body as it is sent: a JSON document, or a string that is sent unchanged.
    pub fn fill_body(&self, recorded: &str) -> String {
        if let Ok(Value::String(text)) = serde_json::from_str(recorded) {
            return self.fill_text(&text);
        }
        let ports = self
            .bound
            .iter()
            .filter(|(name, _)| name.starts_with("{nodeport:"));
        let numbers = ports.fold(recorded.to_string(), |text, (name, value)| {
            text.replace(&format!("{name:?}"), value)
        });
        self.fill_text(&numbers)
    }

    /// Replaces placeholders by their values; a node port is a number.
    pub fn fill(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => {
                let filled = self.fill_text(text);
                match filled.parse::<u64>() {
                    Ok(port) if text.starts_with("{nodeport:") => port.into(),
                    _ => filled.into(),
                }
            }
            Value::Array(items) => items.iter().map(|v| self.fill(v)).collect(),
            Value::Object(fields) => {
                let filled = fields.iter().map(|(k, v)| (self.fill_text(k), self.fill(v)));
                Value::Object(filled.collect())
            }
            other => other.clone(),
        }
    }

    fn text(&mut self, expected: &str, actual: &str) -> bool {
        let pieces = pieces(expected);
        let mut found = BTreeMap::new();
        if !unify(&pieces, actual, &self.bound, &mut found) {
            return false;
        }
        self.bound.extend(found);
        true
    }

    fn differ(&mut self, path: &str, expected: &Value, actual: Option<&Value>) {
        let expected = self.fill(expected);
        let actual = actual.map_or("<absent>".to_string(), Value::to_string);
        self.differences.push(format!("{path}: {actual} for {expected}"));
    }

    pub fn compare(&mut self, path: &str, key: &str, expected: &Value, actual: &Value) {
        match (expected, actual) {
            (Value::Object(e), Value::Object(a)) => {
                let several = e.get("kind") == Some(&"Status".into())
                    && expected["details"]["causes"]
                        .as_array()
                        .is_some_and(|c| c.len() > 1);
                for (key, value) in e {
                    let filled = self.fill_text(key);
                    let at = format!("{path}.{filled}");
                    match a.get(&filled) {
                        None => self.differ(&at, value, None),
                        Some(found) if several && key == "message" => {
                            if words(&self.fill(value)) != words(found) {
                                self.differ(&at, value, Some(found));
                            }
                        }
                        Some(found) => self.compare(&at, key, value, found),
                    }
                }
                for (key, value) in a {
                    if !e.keys().any(|k| self.fill_text(k) == *key) {
                        self.differences
                            .push(format!("{path}.{key}: {value} for <absent>"));
                    }
                }
                if e.get("deletionTimestamp") == Some(&"{time+grace}".into()) {
                    self.grace(path, actual);
                }
            }
            (Value::Array(e), Value::Array(a)) => {
                let set = matches!(key, "resources" | "causes") && e.iter().chain(a).all(Value::is_object);
                let (e, a) = match set {
                    true => (self.sorted(e), self.sorted(a)),
                    false => (e.clone(), a.clone()),
                };
                if e.len() != a.len() {
                    self.differences
                        .push(format!("{path}: {} items for {}", a.len(), e.len()));
                }
                for (i, (e, a)) in e.iter().zip(&a).enumerate() {
                    self.compare(&format!("{path}[{i}]"), "", e, a);
                }
            }
            (Value::String(e), Value::String(a)) => {
                if e != a && !self.text(e, a) {
                    self.differ(path, expected, Some(actual));
                }
            }
            (Value::String(e), Value::Number(a)) if e.starts_with('{') => {
                if !self.text(e, &a.to_string()) {
                    self.differ(path, expected, Some(actual));
                }
            }
            (Value::String(e), _) if e == "{any}" => {}
            (e, a) if e == a => {}
            _ => self.differ(path, expected, Some(actual)),
        }
    }

    /// A deletion ends when its grace period does.
    fn grace(&mut self, path: &str, actual: &Value) {
        let time = actual["deletionTimestamp"]
            .as_str()
            .and_then(|t| t.parse::<Timestamp>().ok());
        let grace = actual["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        let off = time.map(|t| t.as_second() - Timestamp::now().as_second() - grace);
        if off.is_none_or(|off| off.abs() > GRACE_SLACK_SECONDS) {
            let differs = format!("{path}.deletionTimestamp: not now and {grace} s: {off:?}");
            self.differences.push(differs);
        }
    }

    fn sorted(&self, items: &[Value]) -> Vec<Value> {
        let mut items = items.to_vec();
        items.sort_by_cached_key(|item| {
            let item = self.fill(item);
            let name = item.get("name").or(item.get("field"));
            format!("{name:?} {}", item["message"])
        });
        items
    }
}

/// If a match is ambiguous (a placeholder follows another's text), the longest is taken.
fn unify(
    pieces: &[Piece<'_>],
    actual: &str,
    bound: &BTreeMap<String, String>,
    found: &mut BTreeMap<String, String>,
) -> bool {
    let Some((first, rest)) = pieces.split_first() else {
        return actual.is_empty();
    };
    match first {
        Piece::Text(text) => actual
            .strip_prefix(text)
            .is_some_and(|actual| unify(rest, actual, bound, found)),
        Piece::Placeholder(whole, name) => {
            if let Some(value) = bound.get(*whole).or(found.get(*whole)).cloned() {
                return actual
                    .strip_prefix(&value)
                    .is_some_and(|actual| unify(rest, actual, bound, found));
            }
            let ends = actual.char_indices().map(|(i, _)| i).chain([actual.len()]);
            let ends: Vec<usize> = ends.collect();
            for end in ends.into_iter().rev() {
                if !fits(name, &actual[..end]) {
                    continue;
                }
                let mut more = found.clone();
                if whole.contains(':') {
                    more.insert((*whole).into(), actual[..end].into());
                }
                if unify(rest, &actual[end..], bound, &mut more) {
                    *found = more;
                    return true;
                }
            }
            false
        }
    }
}

/// The order of several causes is not guaranteed, nor that of the message's parts.
fn words(value: &Value) -> Vec<String> {
    let text = value.as_str().unwrap_or("").replace(['[', ']', ','], " ");
    let mut words: Vec<String> = text.split_whitespace().map(String::from).collect();
    words.sort();
    words
}
