//! The environment of an expression: its variables, and the types of the objects in them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::declarations::{Overload, STANDARD, TYPES};
use super::declared::{Declared, Shape};
use super::types::Type;

/// Variables and the object types they use.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    variables: BTreeMap<String, Type>,
    objects: HashMap<Arc<str>, Declared>,
    /// Whether expressions can construct `Object{…}` and `JSONPatch{…}`.
    makes_patches: bool,
}

impl Environment {
    pub fn with(mut self, name: &str, of: Type) -> Self {
        self.set(name, of);
        self
    }

    pub fn with_patches(mut self) -> Self {
        self.makes_patches = true;
        self
    }

    pub fn set(&mut self, name: &str, of: Type) {
        self.variables.insert(name.to_string(), of);
    }

    /// A variable of a declared type.
    pub fn with_declared(mut self, name: &str, declared: &Declared) -> Self {
        self.declare(declared);
        self.with(name, declared.cel_type())
    }

    /// Declares the object types within a type.
    pub fn declare(&mut self, declared: &Declared) {
        match &declared.shape {
            Shape::Simple(_) => {}
            Shape::List(of) | Shape::Map(of) => self.declare(of),
            Shape::Object { name, fields } => {
                fields.values().for_each(|field| self.declare(field));
                self.objects.insert(name.clone(), declared.clone());
            }
        }
    }

    /// The type of an identifier.
    pub(super) fn identifier(&self, name: &str) -> Option<Type> {
        let name = name.strip_prefix('.').unwrap_or(name);
        if let Some(found) = self.variables.get(name) {
            return Some(found.clone());
        }
        let is_type = |of: Type| Type::Type(Some(Arc::new(of)));
        if let Some(found) = TYPES.get(name) {
            return Some(is_type(found.clone()));
        }
        self.has_struct(name).then(|| is_type(Type::Struct(name.into())))
    }

    /// Whether the fields of objects of this type are declared.
    pub(super) fn has_struct(&self, name: &str) -> bool {
        self.objects.contains_key(name) || (self.makes_patches && is_patch_type(name))
    }

    /// The type of an object's field.
    pub(super) fn field(&self, object: &str, field: &str) -> Option<Type> {
        if self.makes_patches && is_patch_type(object) {
            return match (object, field) {
                ("JSONPatch", "op" | "from" | "path") => Some(Type::String),
                ("JSONPatch", "value") => Some(Type::Dyn),
                ("JSONPatch", _) => None,
                _ => Some(Type::Dyn),
            };
        }
        Some(self.objects.get(object)?.field(field)?.cel_type())
    }

    pub(super) fn function(&self, name: &str) -> Option<&'static [Overload]> {
        // It has a meaning only where patches can be constructed.
        if name == "jsonpatch.escapeKey" && !self.makes_patches {
            return None;
        }
        STANDARD
            .get(name.strip_prefix('.').unwrap_or(name))
            .map(Vec::as_slice)
    }
}

fn is_patch_type(name: &str) -> bool {
    name == "JSONPatch" || name == "Object" || name.starts_with("Object.")
}
