//! YAML bodies as JSON, in the dialect that Kubernetes reads.
//!
//! That is YAML 1.1 where users notice: `yes`, `no`, `on`, `off`, `y` and `n` are booleans unless quoted, `0777` is octal and `1_000` a
//! number. Keys become strings in JSON, so `n: x` has the key `false`. One document is read; anchored nodes are copied, once for the anchor
//! and once for each alias, as long as [`COPIED_NODES_MAX`] and [`COPIED_BYTES_MAX`] allow.

use std::borrow::Cow;
use std::collections::HashMap;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, Tag};
use serde_json::{Map, Number, Value};

/// How many nodes may be copied for anchors and aliases: a small document must not become a large one.
const COPIED_NODES_MAX: usize = 100_000;
/// How many bytes of memory these copies may take: four times the largest request body.
const COPIED_BYTES_MAX: usize = 4 * 3 * 1024 * 1024;
/// How deep a document may nest.
const DEPTH_MAX: usize = 500;

/// Why a text is not YAML, in the words of Go's YAML parser without `yaml: `.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("exceeded max depth")]
    TooDeep,
    #[error("document contains excessive aliasing")]
    ExcessiveAliasing,
    #[error("anchor contains itself")]
    RecursiveAnchor,
    #[error("unknown anchor '{0}' referenced")]
    UnknownAnchor(String),
    #[error("invalid map key: neither text nor number")]
    InvalidKey,
    /// With its line, unless it is the first.
    #[error("{0}")]
    Syntax(String),
}

/// The first document; null if there is none.
pub fn to_value(text: &str) -> Result<Value, Error> {
    read(text).map(|(value, _)| value)
}

/// Like [`to_value`], with the duplicate keys that strict decoding rejects, as Go's YAML parser reports them.
pub(crate) fn read(text: &str) -> Result<(Value, Vec<String>), Error> {
    let mut reader = Reader {
        events: Parser::new_from_str(text),
        lines: text.lines().count(),
        anchors: HashMap::new(),
        copied: Size::default(),
        line: 0,
        twice: Vec::new(),
    };
    loop {
        match reader.next()? {
            Event::StreamStart | Event::DocumentStart(..) => {}
            Event::StreamEnd | Event::DocumentEnd => return Ok((Value::Null, Vec::new())),
            first => return reader.node(first, 0).map(|value| (value, reader.twice)),
        }
    }
}

struct Reader<'a, I: Iterator<Item = Result<(Event<'a>, granit_parser::Span), ScanError>>> {
    events: I,
    lines: usize,
    anchors: HashMap<usize, (Value, Size)>,
    /// What was copied for anchors and aliases so far.
    copied: Size,
    /// The line of the last event, from 1.
    line: usize,
    /// The errors for duplicate keys.
    twice: Vec<String>,
}

impl<'a, I: Iterator<Item = Result<(Event<'a>, granit_parser::Span), ScanError>>> Reader<'a, I> {
    fn next(&mut self) -> Result<Event<'a>, Error> {
        loop {
            match self.events.next() {
                None => return Ok(Event::StreamEnd),
                Some(Ok((Event::Comment(..), _))) => {}
                Some(Ok((event, span))) => {
                    self.line = span.start.line();
                    return Ok(event);
                }
                Some(Err(e)) => return Err(Error::Syntax(go_error(&e, self.lines))),
            }
        }
    }

    fn node(&mut self, event: Event<'a>, depth: usize) -> Result<Value, Error> {
        if depth > DEPTH_MAX {
            return Err(Error::TooDeep);
        }
        let (anchor, value) = match event {
            Event::Scalar(text, style, anchor, tag) => (anchor, scalar(&text, style, tag.as_deref())),
            Event::SequenceStart(_, anchor, _) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        Event::SequenceEnd => break,
                        item => items.push(self.node(item, depth + 1)?),
                    }
                }
                (anchor, Value::Array(items))
            }
            Event::MappingStart(_, anchor, _) => (anchor, self.mapping(depth)?),
            Event::Alias(anchor) => {
                let Some((value, size)) = self.anchors.get(&anchor) else {
                    // The alias is inside the node that it names.
                    return Err(Error::RecursiveAnchor);
                };
                self.copied.add(*size)?;
                (0, value.clone())
            }
            Event::UnresolvedAlias(name) => return Err(Error::UnknownAnchor(name.to_string())),
            _ => (0, Value::Null),
        };
        if anchor != 0 {
            let size = Size::of(&value);
            self.copied.add(size)?;
            self.anchors.insert(anchor, (value.clone(), size));
        }
        Ok(value)
    }

    fn mapping(&mut self, depth: usize) -> Result<Value, Error> {
        let mut members = Map::new();
        let mut merged: Vec<Map<String, Value>> = Vec::new();
        loop {
            let key = match self.next()? {
                Event::MappingEnd => break,
                key => key,
            };
            let merges = matches!(&key, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<");
            let line = self.line;
            let key = key_text(self.node(key, depth + 1)?)?;
            if members.contains_key(&key) {
                self.twice
                    .push(format!("line {line}: key {key:?} already set in map"));
            }
            let value = self.next()?;
            let value = self.node(value, depth + 1)?;
            match value {
                Value::Object(from) if merges => merged.push(from),
                Value::Array(all) if merges => {
                    merged.extend(all.into_iter().filter_map(|from| match from {
                        Value::Object(from) => Some(from),
                        _ => None,
                    }));
                }
                value => {
                    members.insert(key, value);
                }
            }
        }
        for (key, value) in merged.into_iter().flatten() {
            members.entry(key).or_insert(value);
        }
        Ok(Value::Object(members))
    }
}

/// The nodes and bytes of a value.
#[derive(Clone, Copy, Default)]
struct Size {
    nodes: usize,
    bytes: usize,
}

impl Size {
    fn of(value: &Value) -> Self {
        let mut size = Size {
            nodes: 1,
            bytes: size_of::<Value>(),
        };
        let mut include = |inner: Size, bytes: usize| {
            size.nodes += inner.nodes;
            size.bytes += inner.bytes + bytes;
        };
        match value {
            Value::Array(items) => items.iter().for_each(|item| include(Size::of(item), 0)),
            Value::Object(members) => members
                .iter()
                .for_each(|(key, value)| include(Size::of(value), size_of::<String>() + key.len())),
            Value::String(text) => size.bytes += text.len(),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        size
    }

    /// Counts a copy before it is made.
    fn add(&mut self, copy: Size) -> Result<(), Error> {
        self.nodes += copy.nodes;
        self.bytes += copy.bytes;
        if self.nodes > COPIED_NODES_MAX || self.bytes > COPIED_BYTES_MAX {
            return Err(Error::ExcessiveAliasing);
        }
        Ok(())
    }
}

/// A key as JSON can have it.
fn key_text(key: Value) -> Result<String, Error> {
    match key {
        Value::String(text) => Ok(text),
        Value::Bool(_) | Value::Number(_) => Ok(key.to_string()),
        Value::Null => Ok("null".into()),
        Value::Array(_) | Value::Object(_) => Err(Error::InvalidKey),
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Value {
    let of = tag.map_or("", Tag::suffix);
    match (style, of) {
        (_, "str" | "binary" | "!") => text.into(),
        (ScalarStyle::Plain, _) | (_, "int" | "float" | "bool" | "null") => plain(text),
        _ => text.into(),
    }
}

/// The value of an unquoted scalar.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return true.into();
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return false.into();
        }
        _ => {}
    }
    let number = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    if !number {
        return text.into();
    }
    let digits = text.replace('_', "");
    integer(&digits)
        .or_else(|| float(&digits))
        .map_or_else(|| text.into(), Value::Number)
}

fn integer(text: &str) -> Option<Number> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let (radix, digits): (u32, Cow<'_, str>) = match digits.get(..2) {
        Some("0x") => (16, digits[2..].into()),
        Some("0b") => (2, digits[2..].into()),
        Some("0o") => (8, digits[2..].into()),
        _ if digits.len() > 1 && digits.starts_with('0') => (8, digits[1..].into()),
        _ => (10, digits.into()),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = u64::from_str_radix(&digits, radix).ok()?;
    match negative {
        false => Some(magnitude.into()),
        true => i64::try_from(-i128::from(magnitude)).ok().map(Number::from),
    }
}

/// Infinity and NaN do not exist in JSON and stay text.
fn float(text: &str) -> Option<Number> {
    let fine = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
    if !text.contains(|c: char| c.is_ascii_digit()) || !text.chars().all(fine) {
        return None;
    }
    Number::from_f64(text.parse().ok()?)
}

/// An error in libyaml's words, with the line as Go's YAML parser counts it: none for the first.
fn go_error(error: &ScanError, lines: usize) -> String {
    let at = error.marker().line().saturating_sub(1);
    let other;
    // The message, whether the scanner and not the parser reports it, and whether it is reported at the end.
    let (what, scanning, at_end) = match error.kind() {
        ErrorKind::UnexpectedEofFlowSequence | ErrorKind::UnclosedFlowCollection { open: '[' } => {
            ("did not find expected ',' or ']'", false, true)
        }
        ErrorKind::UnexpectedEofFlowMapping | ErrorKind::UnclosedFlowCollection { .. } => {
            ("did not find expected ',' or '}'", false, true)
        }
        ErrorKind::ExpectedFlowSequenceSeparator
        | ErrorKind::MismatchedFlowCollectionEnd { open: '[', .. } => {
            ("did not find expected ',' or ']'", false, false)
        }
        ErrorKind::ExpectedFlowMappingSeparator | ErrorKind::MismatchedFlowCollectionEnd { .. } => {
            ("did not find expected ',' or '}'", false, false)
        }
        ErrorKind::UnexpectedEofBlockMapping => ("did not find expected key", false, true),
        ErrorKind::ExpectedBlockMappingKey => ("did not find expected key", false, false),
        ErrorKind::UnexpectedEofBlockSequence => ("did not find expected '-' indicator", false, true),
        ErrorKind::ExpectedBlockSequenceEntry => ("did not find expected '-' indicator", false, false),
        ErrorKind::ExpectedNodeContent => ("did not find expected node content", false, false),
        ErrorKind::UnclosedQuotedScalar => ("found unexpected end of stream", true, at == 0),
        ErrorKind::TabInIndentation | ErrorKind::TabInBlockIndentation | ErrorKind::TabNotAllowed => {
            ("found character that cannot start any token", true, false)
        }
        ErrorKind::UnknownAnchor => return "unknown anchor referenced".into(),
        kind => {
            other = kind.to_string();
            let what = other.rsplit_once(", ").map_or(other.as_str(), |(_, what)| what);
            (what, true, false)
        }
    };
    // The end counts as a line of its own.
    let at = if at_end { lines } else { at };
    match at {
        0 => what.to_string(),
        at => format!("line {}: {what}", at + usize::from(scanning)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn yaml_is_read_as_version_1_1_where_people_notice() {
        for (yaml, expected) in [
            (
                "n: \"1\"\nm: yes-string\n",
                json!({"false": "1", "m": "yes-string"}),
            ),
            (
                "[yes, No, on, OFF, true, ~, 'yes', null]",
                json!([true, false, true, false, true, null, "yes", null]),
            ),
            (
                "[1, -2, 0777, 0x1F, 0b11, 1_000, 1.5, 1e3, .5]",
                json!([1, -2, 511, 31, 3, 1000, 1.5, 1000.0, 0.5]),
            ),
            (
                "[1.2.3, 10m, 1Gi, 2020-01-01, .inf, 09]",
                json!(["1.2.3", "10m", "1Gi", "2020-01-01", ".inf", 9.0]),
            ),
            (
                "a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}",
                json!({"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2}}),
            ),
            (
                "a: |\n  x\n  y\nb: !!str 5\n1: 2",
                json!({"a": "x\ny\n", "b": "5", "1": 2}),
            ),
            ("# nothing\n", Value::Null),
            ("a: 1\n---\nb: 2", json!({"a": 1})),
        ] {
            assert_eq!(to_value(yaml), Ok(expected), "{yaml}");
        }
    }

    #[test]
    fn duplicate_keys_are_reported_with_the_line_of_the_second() {
        let (value, twice) = read("\na: 1\nb:\n  c: x\n  c: z\na: 2\n").unwrap();
        assert_eq!(value, json!({"a": 2, "b": {"c": "z"}}));
        assert_eq!(
            twice,
            [
                r#"line 5: key "c" already set in map"#,
                r#"line 6: key "a" already set in map"#
            ]
        );
    }

    #[test]
    fn errors_have_their_line_and_excessive_aliasing_is_rejected() {
        assert_eq!(
            to_value("a: [b"),
            Err(Error::Syntax("line 1: did not find expected ',' or ']'".into()))
        );
        assert_eq!(
            to_value("a: b: c"),
            Err(Error::Syntax(
                "mapping values are not allowed in this context".into()
            ))
        );
        assert_eq!(
            to_value("a: 1\nb: c: d"),
            Err(Error::Syntax(
                "line 2: mapping values are not allowed in this context".into()
            ))
        );
        let mut bomb = String::from("a: &a [x, x, x, x, x, x, x, x, x, x]\n");
        for (of, name) in ["a", "b", "c", "d", "e", "f"]
            .iter()
            .zip(["b", "c", "d", "e", "f", "g"])
        {
            bomb.push_str(&format!(
                "{name}: &{name} [{}]\n",
                vec![format!("*{of}"); 10].join(", ")
            ));
        }
        assert_eq!(to_value(&bomb), Err(Error::ExcessiveAliasing));
        assert!(to_value(&"[".repeat(2000)).is_err());
    }

    #[test]
    fn a6_copies_of_anchored_nodes_are_bounded_in_bytes() {
        let excessive = Err(Error::ExcessiveAliasing);
        let long = "x".repeat(1_000_000);
        let aliases = |n: usize| to_value(&format!("a: &a {long}\nb:\n{}", "- *a\n".repeat(n)));
        assert_eq!(
            aliases(5).unwrap()["b"][4].as_str().map(str::len),
            Some(1_000_000)
        );
        // Of 99 000 copies, which are 99 GB, only some are made.
        assert_eq!(aliases(99_000), excessive);
        // The same as a key, and merged.
        let keys = format!("- &a {long}\n{}", "- {*a : 1}\n".repeat(1_000));
        assert_eq!(to_value(&keys), excessive);
        let merged = format!("- &a {{k: {long}}}\n{}", "- {<<: [*a, *a]}\n".repeat(1_000));
        assert_eq!(to_value(&merged), excessive);
        // An anchor is a copy, too: each of these holds all that follow.
        let mut anchors: String = (0..100).map(|n| format!("&a{n} [")).collect();
        anchors.push_str(&long);
        anchors.push_str(&"]".repeat(100));
        assert_eq!(to_value(&anchors), excessive);
        // Members of a map count with their keys.
        let keys: String = (0..1_000)
            .map(|n| format!(" k{n}{}: 1\n", "x".repeat(900)))
            .collect();
        let maps = format!("a: &a\n{keys}b:\n{}", "- *a\n".repeat(90));
        assert_eq!(to_value(&maps), excessive);
    }

    #[test]
    fn a1_an_anchor_inside_itself_is_rejected() {
        assert_eq!(to_value("a: &a [*a]"), Err(Error::RecursiveAnchor));
        assert_eq!(to_value("a: &a {b: *a}"), Err(Error::RecursiveAnchor));
    }
}
