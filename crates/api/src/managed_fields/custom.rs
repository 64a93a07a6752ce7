//! The schema of a custom kind for merging.
//!
//! A structural schema has a type for each value; where it has none, the form of the value decides: maps are then merged
//! field by field, lists and scalars are atomic. `x-kubernetes-preserve-unknown-fields` holds for everything below.

use knarr_apimachinery::schema::Scalar;
use knarr_cel::structural::Additional;
use knarr_cel::structural::Schema;
use serde_json::Value;

use super::check::mismatch;
use super::typed::{Form, Type};

/// A node of a schema.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    schema: &'a Schema,
    /// Whether unspecified fields are preserved (`x-kubernetes-preserve-unknown-fields`).
    preserve: bool,
    /// Whether it is a resource, with apiVersion, kind and metadata.
    is_resource: bool,
}

impl<'a> Node<'a> {
    /// An object of the kind.
    pub fn root(schema: &'a Schema) -> Self {
        Node {
            schema,
            preserve: schema.preserve_unknown,
            is_resource: true,
        }
    }

    fn below(&self, schema: &'a Schema) -> Type<'a> {
        Type::Custom(Node {
            schema,
            preserve: self.preserve || schema.preserve_unknown,
            is_resource: schema.embedded,
        })
    }

    /// The type of a value of this form, where the node allows several forms.
    pub fn resolve(self, form: Form) -> Type<'a> {
        let of = match (self.schema.of.as_str(), form) {
            ("", Form::List) => "array",
            ("", Form::Map) => "object",
            (of, _) => of,
        };
        match (of, self.schema.list_type.as_str()) {
            ("object", _) if self.schema.map_type == "atomic" => Type::Leaf,
            ("object", _) => Type::CustomMap(self),
            ("array", "set") => Type::Set,
            ("array", "map") => Type::CustomKeyed(self),
            _ => Type::Leaf,
        }
    }

    pub fn declares(&self, name: &str) -> bool {
        self.schema.properties.contains_key(name) || (self.is_resource && is_of_every_object(name))
    }

    pub fn field(&self, name: &str) -> Option<Type<'a>> {
        if self.is_resource && is_of_every_object(name) {
            return Some(match name {
                "metadata" => Type::metadata(),
                _ => Type::Leaf,
            });
        }
        if let Some(schema) = self.schema.properties.get(name) {
            return Some(self.below(schema));
        }
        let bare = self.schema.properties.is_empty() && !self.is_resource;
        match &self.schema.additional {
            Some(Additional::Schema(schema)) => Some(self.below(schema)),
            Some(Additional::Allowed(allowed)) => allowed.then_some(Type::Any),
            None => (self.preserve || bare).then_some(Type::Any),
        }
    }

    pub fn item(&self) -> Type<'a> {
        match &self.schema.items {
            Some(items) => self.below(items),
            None => Type::Leaf,
        }
    }

    /// The key fields of a list's items (`x-kubernetes-list-map-keys`), with their defaults.
    pub fn keys(&self) -> Vec<(&'a str, Option<Value>)> {
        let items = self.schema.items.as_deref();
        let default = |key: &str| items?.properties.get(key)?.default.clone();
        let keys = self.schema.list_map_keys.iter();
        keys.map(|key| (key.as_str(), default(key))).collect()
    }

    /// Why the node does not allow this scalar.
    pub fn mismatch(&self, value: &Value) -> Option<String> {
        if value.is_null() || self.schema.int_or_string {
            return None;
        }
        mismatch(Scalar::of(&self.schema.of, &self.schema.format)?, value)
    }
}

fn is_of_every_object(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}

#[cfg(test)]
mod tests;
