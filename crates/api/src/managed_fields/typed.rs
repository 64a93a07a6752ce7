//! The types of values for merging, of built-in and custom kinds, and the path elements of lists' items. The rules are
//! structured-merge-diff's (KEP-555).

use std::borrow::Cow;
use std::collections::BTreeMap;

use knarr_apimachinery::descriptors;
use knarr_apimachinery::schema::Scalar;
use knarr_apimachinery::schema::rules::{self, List};
use knarr_cel::structural::{Additional, Schema};
use serde_json::Value;

use super::text;
use crate::shape::{self, Shape};

/// The type of a value for merging. Borrowed from its kind's [`Shape`].
#[derive(Clone, Copy, Debug)]
pub enum Type<'a> {
    /// An atomic value: a scalar, or an atomic list or map.
    Leaf,
    Struct(&'a Shape, &'a shape::Type),
    /// Keys are the user's.
    Map(&'a Shape, Option<&'a shape::Type>),
    /// Different scalars.
    Set,
    /// Objects that differ in these fields.
    Keyed(&'a Shape, &'a shape::Type, &'static [&'static str]),
    /// A node of a custom kind's schema that allows several forms: see [`Type::resolve`].
    Custom(Node<'a>),
    /// An object, by a custom kind's schema.
    CustomMap(Node<'a>),
    /// Objects that differ in some fields, by a custom kind's schema.
    CustomKeyed(Node<'a>),
    /// A value without a schema: maps are granular, lists and scalars atomic.
    Any,
    AnyMap,
}

impl<'a> Type<'a> {
    /// The kind's own type.
    pub fn root(shape: &'a Shape) -> Self {
        let root = shape.type_named(shape.root());
        root.map_or(Type::Any, |root| Type::Struct(shape, root))
    }

    /// An object of a custom kind with this schema.
    pub(super) fn custom(schema: &'a Schema) -> Self {
        Type::CustomMap(Node::root(schema))
    }

    /// The type of metadata, which is the same in every kind.
    fn metadata() -> Type<'static> {
        let config_map = Type::root(Shape::of_config_map());
        config_map.field("metadata").unwrap_or(Type::Any)
    }

    /// Where several forms are allowed, the type of the form that these values have.
    pub(super) fn resolve(self, left: Option<&Value>, right: Option<&Value>) -> Self {
        let value = [right, left].into_iter().flatten().find(|v| !v.is_null());
        self.resolve_as(value.map_or(Form::Null, Item::form))
    }

    /// The same for a value of this form.
    pub(super) fn resolve_as(self, form: Form) -> Self {
        match (self, form) {
            (Type::Any, Form::Map) => Type::AnyMap,
            (Type::Any, _) => Type::Leaf,
            (Type::Custom(node), form) => node.resolve(form),
            (other, _) => other,
        }
    }

    /// Whether a schema names this field.
    pub(super) fn declares(&self, name: &str) -> bool {
        match self {
            Type::Struct(..) => self.field(name).is_some(),
            Type::Custom(node) | Type::CustomMap(node) => node.declares(name),
            _ => false,
        }
    }

    /// A named type where the field has no rule of its own.
    fn named(shape: &'a Shape, of: Option<&'a shape::Type>) -> Self {
        match of.filter(|of| !of.is_opaque() && !of.is_atomic) {
            Some(of) => Type::Struct(shape, of),
            None => Type::Leaf,
        }
    }

    /// The type of a field, `None` where the struct has none of that name.
    pub(super) fn field(&self, name: &str) -> Option<Type<'a>> {
        match *self {
            Type::Struct(shape, of) => {
                if matches!(name, "apiVersion" | "kind") && of.name() == shape.root() {
                    return Some(Type::Leaf);
                }
                let field = of.field(name)?;
                let map = field.rule.and_then(|r| r.map);
                let of = shape.type_of(field);
                Some(match &field.value {
                    _ if map == Some(rules::Map::Atomic) => Type::Leaf,
                    shape::Value::Struct(_) if map == Some(rules::Map::Granular) => {
                        of.map_or(Type::Leaf, |of| Type::Struct(shape, of))
                    }
                    shape::Value::Struct(_) => Type::named(shape, of),
                    shape::Value::Map(_) => Type::Map(shape, of),
                    shape::Value::List(_) => match (field.rule.and_then(|r| r.list.as_ref()), of) {
                        (Some(List::Set), _) => Type::Set,
                        (Some(List::Map(keys)), Some(of)) => Type::Keyed(shape, of, keys),
                        _ => Type::Leaf,
                    },
                    shape::Value::Scalar => Type::Leaf,
                })
            }
            Type::Map(shape, of) => Some(Type::named(shape, of)),
            Type::Custom(node) | Type::CustomMap(node) => node.field(name),
            Type::Any | Type::AnyMap => Some(Type::Any),
            Type::Leaf | Type::Set | Type::Keyed(..) | Type::CustomKeyed(_) => None,
        }
    }

    pub(super) fn item(&self) -> Type<'a> {
        match *self {
            Type::Keyed(shape, of, _) => Type::named(shape, Some(of)),
            Type::Custom(node) | Type::CustomKeyed(node) => node.item(),
            _ => Type::Leaf,
        }
    }

    pub(super) fn is_map(&self) -> bool {
        matches!(
            self,
            Type::Struct(..) | Type::Map(..) | Type::CustomMap(_) | Type::AnyMap
        )
    }

    pub(super) fn is_list(&self) -> bool {
        matches!(self, Type::Set | Type::Keyed(..) | Type::CustomKeyed(_))
    }

    /// The key fields of a list's items, each with its default.
    pub(super) fn keys(&self) -> Option<Vec<(&'a str, Option<Value>)>> {
        match *self {
            Type::Keyed(_, of, keys) => Some(
                keys.iter()
                    .map(|key| (*key, key_default(of.name(), key)))
                    .collect(),
            ),
            Type::CustomKeyed(node) => Some(node.keys()),
            _ => None,
        }
    }

    /// The path element of a list's item.
    pub(super) fn element(&self, item: &impl Item) -> Result<String, ElementError> {
        element(self.keys().as_deref(), item)
    }

    /// A list's items by path element, in the order of their first. Items that have none are left out.
    pub(super) fn items<'v, I: Item>(&self, list: &'v [I]) -> Vec<(String, Vec<&'v I>)> {
        let mut found: Vec<(String, Vec<&I>)> = Vec::with_capacity(list.len());
        let mut indices = BTreeMap::new();
        for item in list {
            let Ok(element) = self.element(item) else {
                continue;
            };
            let at = *indices.entry(element.clone()).or_insert_with(|| {
                found.push((element, Vec::new()));
                found.len() - 1
            });
            found[at].1.push(item);
        }
        found
    }
}

/// Why an item of a list has no path element, worded as structured-merge-diff's errors.
#[derive(Debug, thiserror::Error)]
pub(super) enum ElementError {
    #[error("associative list without keys has an element that's a map type")]
    MapInSet,
    #[error("not supported: associative list with lists as elements")]
    ListInSet,
    #[error("associative list without keys has an element that's an explicit null")]
    NullInSet,
    #[error("associative list with keys may not have a null element")]
    Null,
    #[error("associative list with keys may not have non-map elements")]
    NotAMap,
    #[error(
        "associative list with keys has an element that omits all key fields [{0}] (and doesn't have default values \
for any key fields)"
    )]
    NoKey(String),
}

/// The path element of an item of a list with these keys (`None`: a set).
pub(super) fn element(
    keys: Option<&[(&str, Option<Value>)]>,
    item: &impl Item,
) -> Result<String, ElementError> {
    let Some(keys) = keys else {
        return match item.form() {
            Form::Map => Err(ElementError::MapInSet),
            Form::List => Err(ElementError::ListInSet),
            Form::Null => Err(ElementError::NullInSet),
            Form::Scalar => Ok(format!("v:{}", item.text())),
        };
    };
    match item.form() {
        Form::Map => {}
        Form::Null => return Err(ElementError::Null),
        _ => return Err(ElementError::NotAMap),
    }
    let mut found: Vec<(&str, Cow<'_, Value>)> = keys
        .iter()
        .filter_map(|(key, default)| {
            let value = item.member(key).or_else(|| default.clone().map(Cow::Owned))?;
            Some((*key, value))
        })
        .collect();
    if found.is_empty() {
        let keys: Vec<String> = keys.iter().map(|(k, _)| format!("{k:?}")).collect();
        return Err(ElementError::NoKey(keys.join(" ")));
    }
    found.sort_unstable_by_key(|(key, _)| *key);
    let mut element = String::from("k:");
    for (at, (key, value)) in found.iter().enumerate() {
        element.push(if at == 0 { '{' } else { ',' });
        text::push_string(&mut element, key);
        element.push(':');
        match &**value {
            Value::String(value) => text::push_string(&mut element, value),
            other => element.push_str(&other.to_string()),
        }
    }
    element.push('}');
    Ok(element)
}

/// The form of a value, as far as lists distinguish their items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Null,
    Scalar,
    List,
    Map,
}

/// An item of a list, in any representation.
pub(super) trait Item {
    fn form(&self) -> Form;
    /// Of a map.
    fn member(&self, name: &str) -> Option<Cow<'_, Value>>;
    /// A scalar as JSON.
    fn text(&self) -> String;
}

impl Item for Value {
    fn form(&self) -> Form {
        match self {
            Value::Null => Form::Null,
            Value::Array(_) => Form::List,
            Value::Object(_) => Form::Map,
            Value::Bool(_) | Value::Number(_) | Value::String(_) => Form::Scalar,
        }
    }

    fn member(&self, name: &str) -> Option<Cow<'_, Value>> {
        self.get(name).map(Cow::Borrowed)
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

/// The published default of a key: the zero value of a field that Go always writes, which are nearly all of them.
fn key_default(of: &str, key: &str) -> Option<Value> {
    descriptors::published(of)?.field(key)?.published_default()
}

/// A node of a custom kind's schema.
///
/// A structural schema has a type for each value; where it has none, the form of the value decides: maps are then merged
/// field by field, lists and scalars are atomic. `x-kubernetes-preserve-unknown-fields` holds for everything below.
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
    fn root(schema: &'a Schema) -> Self {
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
    fn resolve(self, form: Form) -> Type<'a> {
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

    fn declares(&self, name: &str) -> bool {
        self.schema.properties.contains_key(name) || (self.is_resource && is_of_every_object(name))
    }

    fn field(&self, name: &str) -> Option<Type<'a>> {
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

    fn item(&self) -> Type<'a> {
        match &self.schema.items {
            Some(items) => self.below(items),
            None => Type::Leaf,
        }
    }

    /// The key fields of a list's items (`x-kubernetes-list-map-keys`), with their defaults.
    fn keys(&self) -> Vec<(&'a str, Option<Value>)> {
        let items = self.schema.items.as_deref();
        let default = |key: &str| items?.properties.get(key)?.default.clone();
        let keys = self.schema.list_map_keys.iter();
        keys.map(|key| (key.as_str(), default(key))).collect()
    }

    /// The scalar type that the schema has for the value; `None` where it allows others.
    pub(super) fn scalar(&self) -> Option<Scalar> {
        match self.schema.int_or_string {
            true => None,
            false => Scalar::of(&self.schema.of, &self.schema.format),
        }
    }
}

fn is_of_every_object(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}

#[cfg(test)]
mod tests;
