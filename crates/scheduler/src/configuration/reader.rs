//! Reading one object of the file: what is there, what it should have been, and what nobody asked for.

use std::ops::RangeInclusive;

use knarr_api::field::{Errors, Path};
use serde_json::{Map, Value};

/// An object with the path that leads to it.
pub(super) struct Reader<'a> {
    path: Path,
    object: Map<String, Value>,
    errors: &'a mut Errors,
    /// Names that were asked for.
    taken: Vec<String>,
}

fn child(path: &Path, name: &str) -> Path {
    if path.as_str().is_empty() {
        Path::new(name)
    } else {
        path.child(name)
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(path: &Path, value: &Value, errors: &'a mut Errors) -> Self {
        let object = match value {
            Value::Object(object) => object.clone(),
            Value::Null => Map::new(),
            other => {
                errors.type_invalid(path, other.clone(), "must be an object");
                Map::new()
            }
        };
        Reader {
            path: path.clone(),
            object,
            errors,
            taken: Vec::new(),
        }
    }

    pub(super) fn errors(&mut self) -> &mut Errors {
        self.errors
    }

    pub(super) fn at(&self, name: &str) -> Path {
        child(&self.path, name)
    }

    /// The field as it stands; null is as good as missing.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.taken.push(name.to_string());
        self.object.get(name).filter(|v| !v.is_null()).cloned()
    }

    pub(super) fn child(&mut self, name: &str) -> Option<(Path, Value)> {
        Some((self.at(name), self.take(name)?))
    }

    fn wrong(&mut self, name: &str, value: Value, expected: &str) {
        let path = self.at(name);
        self.errors.type_invalid(&path, value, expected);
    }

    pub(super) fn string(&mut self, name: &str) -> Option<String> {
        match self.take(name)? {
            Value::String(text) => Some(text),
            other => {
                self.wrong(name, other, "must be a string");
                None
            }
        }
    }

    pub(super) fn boolean(&mut self, name: &str) -> Option<bool> {
        match self.take(name)? {
            Value::Bool(value) => Some(value),
            other => {
                self.wrong(name, other, "must be true or false");
                None
            }
        }
    }

    /// A whole number of this range.
    pub(super) fn between(&mut self, name: &str, range: RangeInclusive<i64>) -> Option<i64> {
        let value = self.take(name)?;
        let Some(number) = value.as_i64() else {
            self.wrong(name, value, "must be a whole number");
            return None;
        };
        if range.contains(&number) {
            return Some(number);
        }
        let path = self.at(name);
        let detail = format!("not in valid range [{}-{}]", range.start(), range.end());
        self.errors.invalid(&path, value, detail);
        None
    }

    /// The items of a list, with their paths.
    pub(super) fn list(&mut self, name: &str) -> std::vec::IntoIter<(Path, Value)> {
        let path = self.at(name);
        let items = match self.take(name) {
            None => Vec::new(),
            Some(Value::Array(items)) => items,
            Some(other) => {
                self.wrong(name, other, "must be a list");
                Vec::new()
            }
        };
        let items = items.into_iter().enumerate();
        let items: Vec<(Path, Value)> = items.map(|(i, item)| (path.index(i), item)).collect();
        items.into_iter()
    }

    pub(super) fn not_supported(&mut self, name: &str, value: &str, supported: &[&str]) {
        let path = self.at(name);
        self.errors.not_supported(&path, value, supported);
    }

    pub(super) fn forbidden(&mut self, name: &str, why: &str) {
        let path = self.at(name);
        self.errors.forbidden(&path, why);
    }

    /// Complains of what nobody asked for.
    pub(super) fn finish(self) {
        for name in self.object.keys() {
            if !self.taken.contains(name) {
                self.errors.forbidden(&child(&self.path, name), "unknown field");
            }
        }
    }
}
