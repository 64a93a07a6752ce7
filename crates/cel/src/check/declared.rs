//! The declared types of variables (`apiserver.DeclType`): their fields, and how large a value
//! can be in a request, from which costs are estimated.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::types::Type;

/// The largest request that is accepted, in bytes; no value in it is larger.
pub const REQUEST_MAX_BYTES: u64 = 3 * 1024 * 1024;
/// Shortest and longest encoding in JSON, in bytes, with the quotation marks.
pub const STRING_MIN: u64 = 2;
pub const BOOL_MIN: u64 = 4;
pub const NUMBER_MIN: u64 = 1;
pub const DATE: u64 = 12;
pub const DATE_TIME_MIN: u64 = 21;
pub const DATE_TIME_MAX: u64 = 32;
pub const DURATION_MIN: u64 = 3;
pub const DURATION_MAX: u64 = 32;
/// `{}` and `[]`.
pub const BRACKETS: u64 = 2;

/// A declared type.
#[derive(Clone, Debug)]
pub struct Declared {
    pub shape: Shape,
    /// Most characters of a string, items of a list, entries of a map.
    pub max_elements: u64,
    /// The fewest bytes that a value of it takes in JSON.
    pub min_size: u64,
}

#[derive(Clone, Debug)]
pub enum Shape {
    Simple(Type),
    List(Arc<Declared>),
    /// Keys are strings.
    Map(Arc<Declared>),
    Object {
        name: Arc<str>,
        /// By their names as expressions write them.
        fields: BTreeMap<String, Arc<Declared>>,
    },
}

impl Declared {
    pub fn simple(of: Type, min_size: u64, max_elements: u64) -> Declared {
        Declared {
            shape: Shape::Simple(of),
            max_elements,
            min_size,
        }
    }

    pub fn string() -> Declared {
        Declared::simple(Type::String, STRING_MIN, 0)
    }

    /// A list of at most so many items.
    pub fn list(items: Declared, max_items: u64) -> Declared {
        Declared {
            shape: Shape::List(Arc::new(items)),
            max_elements: max_items,
            min_size: BRACKETS,
        }
    }

    pub fn map(values: Declared, max_entries: u64) -> Declared {
        Declared {
            shape: Shape::Map(Arc::new(values)),
            max_elements: max_entries,
            min_size: BRACKETS,
        }
    }

    pub fn object<'a>(name: &str, fields: impl IntoIterator<Item = (&'a str, Declared)>) -> Declared {
        let fields = fields.into_iter();
        Declared {
            shape: Shape::Object {
                name: name.into(),
                fields: fields
                    .map(|(name, declared)| (name.to_string(), Arc::new(declared)))
                    .collect(),
            },
            max_elements: 0,
            min_size: BRACKETS,
        }
    }

    pub fn cel_type(&self) -> Type {
        match &self.shape {
            Shape::Simple(of) => of.clone(),
            Shape::List(items) => Type::list(items.cel_type()),
            Shape::Map(values) => Type::map(Type::String, values.cel_type()),
            Shape::Object { name, .. } => Type::Struct(name.clone()),
        }
    }

    pub fn field(&self, name: &str) -> Option<&Arc<Declared>> {
        match &self.shape {
            Shape::Object { fields, .. } => fields.get(name),
            _ => None,
        }
    }

    /// The items of a list, the values of a map.
    pub fn elements(&self) -> Option<&Arc<Declared>> {
        match &self.shape {
            Shape::List(of) | Shape::Map(of) => Some(of),
            _ => None,
        }
    }
}

/// How many items of a list fit into a request.
pub fn items_that_fit(min_size: u64) -> u64 {
    (REQUEST_MAX_BYTES - BRACKETS) / (min_size + 1)
}

/// How many entries of a map fit: each has the quotes of its key, a colon and a comma, and a bit of a key.
pub fn entries_that_fit(min_size: u64) -> u64 {
    (REQUEST_MAX_BYTES - BRACKETS) / (min_size + 6)
}
