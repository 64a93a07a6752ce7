//! The JSON paths of printer columns and selectable fields: `.spec.size`, `.metadata.labels.a\.b/c`, `.a[0].b`,
//! `.status.conditions[?(@.type=="Ready")].status`, `.a['b']`, `.a[*].b`. Only the first value found is of use to them.

use serde_json::Value;

/// One segment of a path.
#[derive(Clone, Debug, PartialEq)]
enum Segment {
    Field(String),
    /// Counted from the end where negative.
    Index(i64),
    Every,
    /// A filter: items whose field at this path compares so with a value.
    Where(Vec<Segment>, Comparison, Value),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Comparison {
    Equal,
    NotEqual,
}

/// A path that has been read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JsonPath(Vec<Segment>);

impl JsonPath {
    /// `None` for paths that are not supported; such columns stay empty.
    pub fn parse(text: &str) -> Option<Self> {
        steps(text).map(JsonPath)
    }

    /// The first value at the path.
    pub fn first<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        first(&self.0, value)
    }

    /// The names of a path that consists of fields only; `None` for any other.
    pub fn fields(&self) -> Option<Vec<&str>> {
        self.0
            .iter()
            .map(|step| match step {
                Segment::Field(name) => Some(name.as_str()),
                _ => None,
            })
            .collect()
    }
}

/// The value as text, as a column of strings and a field selector have it.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn first<'a>(steps: &[Segment], value: &'a Value) -> Option<&'a Value> {
    let Some((step, rest)) = steps.split_first() else {
        return Some(value);
    };
    match step {
        Segment::Field(name) => first(rest, value.get(name.as_str())?),
        Segment::Index(at) => {
            let list = value.as_array()?;
            let at = if *at < 0 {
                at + i64::try_from(list.len()).ok()?
            } else {
                *at
            };
            first(rest, list.get(usize::try_from(at).ok()?)?)
        }
        Segment::Every => match value {
            Value::Array(list) => list.iter().find_map(|item| first(rest, item)),
            Value::Object(map) => map.values().find_map(|item| first(rest, item)),
            _ => None,
        },
        Segment::Where(path, comparison, operand) => value.as_array()?.iter().find_map(|item| {
            let found = first(path, item)?;
            let equal = found == operand;
            (equal == (*comparison == Comparison::Equal))
                .then(|| first(rest, item))
                .flatten()
        }),
    }
}

fn steps(mut text: &str) -> Option<Vec<Segment>> {
    let mut found = Vec::new();
    while !text.is_empty() {
        if let Some(rest) = text.strip_prefix('[') {
            let end = closing(rest)?;
            found.push(bracket(rest[..end].trim())?);
            text = &rest[end + 1..];
            continue;
        }
        let rest = text.strip_prefix('.')?;
        let mut name = String::new();
        let mut chars = rest.char_indices();
        let mut end = rest.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => name.push(chars.next()?.1),
                '.' | '[' => {
                    end = at;
                    break;
                }
                c => name.push(c),
            }
        }
        text = &rest[end..];
        match name.as_str() {
            "" if text.starts_with('[') => {}
            "" => return None,
            "*" => found.push(Segment::Every),
            _ => found.push(Segment::Field(name)),
        }
    }
    Some(found)
}

/// Where the bracket that was opened before `text` closes, quotes and inner brackets heeded.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn bracket(inner: &str) -> Option<Segment> {
    if inner == "*" {
        return Some(Segment::Every);
    }
    if let Some(name) = unquoted(inner) {
        return Some(Segment::Field(name.to_string()));
    }
    if let Ok(at) = inner.parse() {
        return Some(Segment::Index(at));
    }
    let condition = inner.strip_prefix("?(")?.strip_suffix(')')?.trim();
    let (comparison, operator) = match (condition.find("=="), condition.find("!=")) {
        (Some(at), _) => (Comparison::Equal, at),
        (None, Some(at)) => (Comparison::NotEqual, at),
        (None, None) => return None,
    };
    let path = steps(condition[..operator].trim().strip_prefix('@')?)?;
    let literal = condition[operator + 2..].trim();
    let operand = match unquoted(literal) {
        Some(text) => Value::from(text),
        None => serde_json::from_str(literal).ok()?,
    };
    Some(Segment::Where(path, comparison, operand))
}

fn unquoted(text: &str) -> Option<&str> {
    ['"', '\'']
        .into_iter()
        .find_map(|q| text.strip_prefix(q)?.strip_suffix(q))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_lead_to_the_first_value() {
        let value = json!({"spec": {"size": 3, "list": [{"a": 1}, {"a": 2, "b": "x"}]},
            "metadata": {"labels": {"a.b/c": "dotted"}},
            "status": {"conditions": [{"type": "Synced", "status": "False"}, {"type": "Ready", "status": "True"}]}});
        for (path, want) in [
            (".spec.size", json!(3)),
            (".spec.list[1].b", json!("x")),
            (".spec.list[-1].a", json!(2)),
            (".spec.list[*].b", json!("x")),
            (".spec['size']", json!(3)),
            (r".metadata.labels.a\.b/c", json!("dotted")),
            (r#".metadata.labels["a.b/c"]"#, json!("dotted")),
            (r#".status.conditions[?(@.type=="Ready")].status"#, json!("True")),
            (".status.conditions[?(@.type != 'Synced')].status", json!("True")),
            (".status.conditions[?(@.type=='None')].status", Value::Null),
            (".spec.missing.deeper", Value::Null),
            (".spec.list[9]", Value::Null),
        ] {
            let parsed = JsonPath::parse(path).expect(path);
            assert_eq!(parsed.first(&value).cloned().unwrap_or_default(), want, "{path}");
        }
        for bad in ["spec", ".spec..size", ".a[", ".a[?(@.b)]", ".a[x]", r".a\"] {
            assert_eq!(JsonPath::parse(bad), None, "{bad}");
        }
    }
}
