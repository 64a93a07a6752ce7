//! The schema of a custom kind as merging sees it.
//!
//! A structural schema says of each place what it holds; where it says nothing, the value does: maps are then merged
//! field by field, lists and scalars set as a whole. `x-kubernetes-preserve-unknown-fields` holds for everything below.

use serde_json::Value;

use super::check::mismatch;
use super::typed::{Form, Type};
use crate::custom::Schema;
use crate::custom::schema::Additional;
use crate::schema::Scalar;

/// A place in a schema.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    schema: &'a Schema,
    /// Whether fields that are not described may stand here.
    preserve: bool,
    /// Whether it is an object with apiVersion, kind and metadata.
    whole: bool,
}

impl<'a> Node<'a> {
    /// An object of the kind.
    pub fn root(schema: &'a Schema) -> Self {
        Node {
            schema,
            preserve: schema.preserve_unknown,
            whole: true,
        }
    }

    fn below(&self, schema: &'a Schema) -> Type<'a> {
        Type::Custom(Node {
            schema,
            preserve: self.preserve || schema.preserve_unknown,
            whole: schema.embedded,
        })
    }

    /// The type of what stands here, if that is one form of several: this one.
    pub fn settle(self, form: Form) -> Type<'a> {
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
        self.schema.properties.contains_key(name) || (self.whole && is_of_every_object(name))
    }

    pub fn field(&self, name: &str) -> Option<Type<'a>> {
        if self.whole && is_of_every_object(name) {
            return Some(match name {
                "metadata" => Type::metadata(),
                _ => Type::Leaf,
            });
        }
        if let Some(schema) = self.schema.properties.get(name) {
            return Some(self.below(schema));
        }
        let bare = self.schema.properties.is_empty() && !self.whole;
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

    /// The fields that tell a list's items apart, with their defaults.
    pub fn keys(&self) -> Vec<(&'a str, Option<Value>)> {
        let items = self.schema.items.as_deref();
        let default = |key: &str| items?.properties.get(key)?.default.clone();
        let keys = self.schema.list_map_keys.iter();
        keys.map(|key| (key.as_str(), default(key))).collect()
    }

    /// Why a scalar cannot stand here.
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
