//! Objects in the versions in which their managers wrote them.
//!
//! Conversions between built-in versions, and between custom ones with the strategy None, are computed where they are
//! needed. Only the API server can convert with a definition's webhook: a computation that lacks such
//! a conversion records it, and its result is invalid. The server then makes the missing ones and computes again:
//!
//! ```text
//! loop {
//!     let result = managed.clone().update_with(…, &mut conversions);
//!     if conversions.missing().is_empty() { return result }
//!     for each of them: conversions.add(missing, webhook's response)
//! }
//! ```
//!
//! A conversion that failed can be added as well ([`Conversions::add_failed`]): managers of that version then keep what
//! they own.

use std::collections::BTreeMap;
use std::mem;

use serde_json::Value;

use super::kind_type::type_of_kind;
use super::values::{self, Comparison};
use crate::convert;
use crate::kind::Kind;
use crate::registry;

/// A conversion that a webhook has to make.
#[derive(Clone, Debug, PartialEq)]
pub struct Missing {
    pub from: Kind,
    pub to: Kind,
    pub object: Value,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Conversions {
    /// A handful: linear search is cheaper than hashing objects.
    known: Vec<(Missing, Option<Value>)>,
    missing: Vec<Missing>,
}

/// An object in another version.
enum Converted {
    Object(Kind, Value),
    /// The kind does not have this version any more.
    NoSuchVersion,
    /// Its conversion is missing, or failed.
    Unknown,
}

impl Conversions {
    /// The conversions that the last computation lacked.
    pub fn missing(&mut self) -> Vec<Missing> {
        mem::take(&mut self.missing)
    }

    pub fn add(&mut self, missing: Missing, converted: Value) {
        self.known.push((missing, Some(converted)));
    }

    pub fn add_failed(&mut self, missing: Missing) {
        self.known.push((missing, None));
    }

    /// A value of `kind` in the version `version`, where it can be converted.
    pub(super) fn object(&mut self, kind: &Kind, value: &Value, version: &str) -> Option<(Kind, Value)> {
        match self.convert(kind, value, version) {
            Converted::Object(kind, value) => Some((kind, value)),
            Converted::NoSuchVersion | Converted::Unknown => None,
        }
    }

    fn convert(&mut self, kind: &Kind, value: &Value, version: &str) -> Converted {
        if version == kind.api_version() {
            return Converted::Object(kind.clone(), value.clone());
        }
        let to = match kind.ops.custom() {
            Some(_) => kind.version_of_definition(version),
            None => registry::by_kind(version, kind.kind()).cloned(),
        };
        let Some(to) = to else {
            return Converted::NoSuchVersion;
        };
        if !kind.is_converted_by_webhook() {
            return match convert::json(kind, &to, value) {
                Some(value) => Converted::Object(to, value),
                None => Converted::NoSuchVersion,
            };
        }
        let is_it = |m: &Missing| m.from == *kind && m.to == to && m.object == *value;
        if let Some((_, made)) = self.known.iter().find(|(m, _)| is_it(m)) {
            return match made {
                Some(made) => Converted::Object(to, made.clone()),
                None => Converted::Unknown,
            };
        }
        if !self.missing.iter().any(is_it) {
            self.missing.push(Missing {
                from: kind.clone(),
                to,
                object: value.clone(),
            });
        }
        Converted::Unknown
    }
}

/// How the object differs before and after, in each version in which a manager wrote.
pub(super) struct Versions<'a> {
    pub(super) kind: &'a Kind,
    live: &'a Value,
    new: &'a Value,
    conversions: &'a mut Conversions,
    made: BTreeMap<String, Option<Comparison>>,
}

impl<'a> Versions<'a> {
    pub(super) fn new(
        kind: &'a Kind,
        (live, new): (&'a Value, &'a Value),
        conversions: &'a mut Conversions,
    ) -> Self {
        Versions {
            kind,
            live,
            new,
            conversions,
            made: BTreeMap::new(),
        }
    }

    /// `None` for a version that does not exist any more.
    pub(super) fn at(&mut self, version: &str) -> Option<&Comparison> {
        if !self.made.contains_key(version) {
            let made = self.compare(version);
            self.made.insert(version.to_string(), made);
        }
        self.made.get(version)?.as_ref()
    }

    fn compare(&mut self, version: &str) -> Option<Comparison> {
        if version == self.kind.api_version() {
            return Some(values::compare(type_of_kind(self.kind)?, self.live, self.new));
        }
        // Both are requested before either is needed, so that one call of the webhook converts both.
        let live = self.conversions.convert(self.kind, self.live, version);
        let new = self.conversions.convert(self.kind, self.new, version);
        match (live, new) {
            (Converted::Object(kind, live), Converted::Object(_, new)) => {
                Some(values::compare(type_of_kind(&kind)?, &live, &new))
            }
            (Converted::NoSuchVersion, _) | (_, Converted::NoSuchVersion) => None,
            _ => Some(Comparison::default()),
        }
    }
}
