//! Reads the fields of a configuration document, strictly: fields of a wrong type and unknown fields are
//! reported with their paths, and reading continues. For the configuration files of every component.

use std::collections::BTreeMap;

use k8s_openapi::jiff::SignedDuration;
use serde_json::{Map, Value};

use crate::duration;
use crate::field::{ErrorList, Path};

/// The errors and notes from reading a file.
#[derive(Debug, Default)]
pub struct Report {
    /// Errors that make the file invalid.
    pub errors: ErrorList,
    /// `path: message`, on fields that are accepted and have no effect here.
    pub notes: Vec<String>,
}

impl Report {
    pub fn note(&mut self, path: &Path, message: &str) {
        self.notes.push(format!("{path}: {message}"));
    }
}

/// The fields of one object. Those not taken when [`Fields::finish`] is called are errors.
pub struct Fields<'a> {
    pub path: Path,
    map: Option<&'a Map<String, Value>>,
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    pub fn new(value: &'a Value, path: Path, report: &mut Report) -> Self {
        let map = match value {
            Value::Object(map) => Some(map),
            Value::Null => None,
            other => {
                report.errors.type_invalid(&path, other, "must be a mapping");
                None
            }
        };
        Fields {
            path,
            map,
            known: Vec::new(),
        }
    }

    /// `null` counts as absent.
    pub fn take(&mut self, name: &'static str) -> Option<&'a Value> {
        self.known.push(name);
        self.map?.get(name).filter(|value| !value.is_null())
    }

    pub fn at(&self, name: &str) -> Path {
        self.path.child(name)
    }

    fn typed<T>(
        &mut self,
        name: &'static str,
        report: &mut Report,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.take(name)?;
        let read = read(value);
        if read.is_none() {
            report
                .errors
                .type_invalid(&self.at(name), value, format!("must be {expected}"));
        }
        read
    }

    pub fn integer(&mut self, name: &'static str, report: &mut Report) -> Option<i32> {
        self.typed(name, report, "a 32-bit integer", |v| {
            v.as_i64().and_then(|n| i32::try_from(n).ok())
        })
    }

    pub fn long(&mut self, name: &'static str, report: &mut Report) -> Option<i64> {
        self.typed(name, report, "an integer", Value::as_i64)
    }

    pub fn number(&mut self, name: &'static str, report: &mut Report) -> Option<f64> {
        self.typed(name, report, "a number", Value::as_f64)
    }

    pub fn boolean(&mut self, name: &'static str, report: &mut Report) -> Option<bool> {
        self.typed(name, report, "true or false", Value::as_bool)
    }

    pub fn text(&mut self, name: &'static str, report: &mut Report) -> Option<&'a str> {
        self.typed(name, report, "a string", Value::as_str)
    }

    /// A duration as Go writes it: `15s`, `1m30s`, `500ms`.
    pub fn duration(&mut self, name: &'static str, report: &mut Report) -> Option<SignedDuration> {
        self.typed(name, report, "a duration such as 15s or 1m30s", |v| {
            duration::parse(v.as_str()?)
        })
    }

    /// Its items with their paths.
    pub fn list(&mut self, name: &'static str, report: &mut Report) -> Option<Vec<(&'a Value, Path)>> {
        let items = self.typed(name, report, "a list", Value::as_array)?;
        let at = self.at(name);
        Some(items.iter().enumerate().map(|(i, v)| (v, at.index(i))).collect())
    }

    /// Items that are strings, with their paths.
    pub fn texts(&mut self, name: &'static str, report: &mut Report) -> Vec<(&'a str, Path)> {
        let mut texts = Vec::new();
        for (item, path) in self.list(name, report).unwrap_or_default() {
            match item.as_str() {
                Some(text) => texts.push((text, path)),
                None => report.errors.type_invalid(&path, item, "must be a string"),
            }
        }
        texts
    }

    /// A mapping from names to strings; numbers count as they are written.
    pub fn text_map(&mut self, name: &'static str, report: &mut Report) -> Option<BTreeMap<String, String>> {
        let map = self.typed(name, report, "a mapping", Value::as_object)?;
        let mut texts = BTreeMap::new();
        for (key, value) in map {
            match value {
                Value::String(text) => drop(texts.insert(key.clone(), text.clone())),
                Value::Number(number) => drop(texts.insert(key.clone(), number.to_string())),
                other => report
                    .errors
                    .type_invalid(&self.at(name).key(key), other, "must be a string"),
            }
        }
        Some(texts)
    }

    pub fn object(&mut self, name: &'static str, report: &mut Report) -> Option<Fields<'a>> {
        let value = self.take(name)?;
        Some(Fields::new(value, self.at(name), report))
    }

    /// Reports every field that was not taken.
    pub fn finish(mut self, report: &mut Report) {
        self.known.sort_unstable();
        self.known.dedup();
        for name in self.map.into_iter().flat_map(Map::keys) {
            if !self.known.contains(&name.as_str()) {
                let known = self.known.join(", ");
                report
                    .errors
                    .forbidden(&self.at(name), format!("unknown field; there are {known}"));
            }
        }
    }
}
