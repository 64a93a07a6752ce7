//! The keys of a list's item (`x-kubernetes-list-map-keys`), which its path element is made of, kept while the item is serialized.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::super::typed::{Form, Item};

/// What identifies an item of a list: its form, and the members that are its keys.
pub(super) struct Keys<'k> {
    of_list: &'k [(&'k str, Option<Value>)],
    form: Form,
    members: Vec<(&'k str, Value)>,
    scalar: Option<Value>,
}

impl<'k> Keys<'k> {
    pub(super) fn new(of_list: &'k [(&'k str, Option<Value>)]) -> Self {
        Keys {
            of_list,
            form: Form::Null,
            members: Vec::new(),
            scalar: None,
        }
    }

    pub(super) fn set_form(&mut self, form: Form) {
        self.form = form;
    }

    /// For an item that is atomic.
    pub(super) fn set_value(&mut self, form: Form, value: Value) {
        self.form = form;
        match value {
            Value::Object(members) => self.keep(members),
            scalar => self.scalar = Some(scalar),
        }
    }

    fn keep(&mut self, members: Map<String, Value>) {
        let members = members.into_iter();
        let keys = members.filter_map(|(name, value)| Some((self.key(&name)?, value)));
        self.members = keys.collect();
    }

    /// The value of one of the keys.
    pub(super) fn add(&mut self, key: &'k str, value: Value) {
        self.members.push((key, value));
    }

    /// The key that this member is, if it is one.
    pub(super) fn key(&self, member: &str) -> Option<&'k str> {
        self.of_list
            .iter()
            .map(|(key, _)| *key)
            .find(|key| *key == member)
    }
}

impl Item for Keys<'_> {
    fn form(&self) -> Form {
        self.form
    }

    fn member(&self, name: &str) -> Option<Cow<'_, Value>> {
        let (_, value) = self.members.iter().find(|(key, _)| *key == name)?;
        Some(Cow::Borrowed(value))
    }

    fn text(&self) -> String {
        self.scalar.as_ref().map(Value::to_string).unwrap_or_default()
    }
}
