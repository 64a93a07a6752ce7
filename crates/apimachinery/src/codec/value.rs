//! Values without their static type: trees, and whether a field is one that Go writes as null.
//!
//! Code that is generic over serde's serializers is compiled once for every type of Kubernetes and every serializer, which is most of
//! what building these crates takes. What is here is compiled once: a visitor receives a value from the only serializer that
//! there is, [`Encoder`](super::Encoder), and asks for the values in it as it needs them.

use std::borrow::Cow;

use serde_json::{Map, Result, Value};

use super::time;

/// A value of any type that serializes.
pub trait UntypedValue {
    /// Shows the value to the visitor.
    ///
    /// # Errors
    ///
    /// The visitor's, and those of a type that does not serialize.
    fn accept(&self, visitor: &mut dyn ValueVisitor) -> Result<()>;
}

/// Receives one value: a scalar, or the beginning, the parts and the end of a list or map.
pub trait ValueVisitor {
    fn scalar(&mut self, value: Scalar<'_>) -> Result<()>;

    /// A list begins. It has this many elements, where that is known.
    fn begin_list(&mut self, len: Option<usize>) -> Result<()>;

    fn element(&mut self, value: &dyn UntypedValue) -> Result<()>;

    fn begin_map(&mut self) -> Result<()>;

    /// A struct of this name begins, whose fields are members.
    fn begin_struct(&mut self, _name: &str) -> Result<()> {
        self.begin_map()
    }

    fn member(&mut self, name: Cow<'static, str>, value: &dyn UntypedValue) -> Result<()>;

    /// The end of the list or map.
    fn end(&mut self) -> Result<()>;

    /// The value that follows is that of an optional one.
    fn optional(&mut self) {}

    /// The value that follows is that of a type of this name.
    fn newtype(&mut self, _name: &str) {}
}

/// A value without parts.
#[derive(Clone, Copy, Debug)]
pub enum Scalar<'a> {
    Null,
    Bool(bool),
    Integer(i64),
    Unsigned(u64),
    Float(f64),
    Text(&'a str),
}

impl From<Scalar<'_>> for Value {
    fn from(scalar: Scalar<'_>) -> Value {
        match scalar {
            Scalar::Null => Value::Null,
            Scalar::Bool(v) => v.into(),
            Scalar::Integer(v) => v.into(),
            Scalar::Unsigned(v) => v.into(),
            Scalar::Float(v) => v.into(),
            Scalar::Text(v) => v.into(),
        }
    }
}

/// The tree of a value.
///
/// # Errors
///
/// If the value has a map with keys other than strings and numbers, or an enum's variant with several fields, which no type of Kubernetes has.
pub fn tree(value: &dyn UntypedValue) -> Result<Value> {
    let mut tree = Tree(Value::Null);
    value.accept(&mut tree)?;
    Ok(tree.0)
}

/// The tree of the value so far.
struct Tree(Value);

/// A list that says that it is longer does not get its room before its elements.
const MAX_PREALLOCATED: usize = 1024;

impl ValueVisitor for Tree {
    fn scalar(&mut self, value: Scalar<'_>) -> Result<()> {
        self.0 = value.into();
        Ok(())
    }

    fn begin_list(&mut self, len: Option<usize>) -> Result<()> {
        let room = len.unwrap_or_default().min(MAX_PREALLOCATED);
        self.0 = Value::Array(Vec::with_capacity(room));
        Ok(())
    }

    fn element(&mut self, value: &dyn UntypedValue) -> Result<()> {
        if let Value::Array(items) = &mut self.0 {
            items.push(tree(value)?);
        }
        Ok(())
    }

    fn begin_map(&mut self) -> Result<()> {
        self.0 = Value::Object(Map::new());
        Ok(())
    }

    fn member(&mut self, name: Cow<'static, str>, value: &dyn UntypedValue) -> Result<()> {
        if let Value::Object(members) = &mut self.0 {
            members.insert(name.into_owned(), tree(value)?);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Whether a field is an empty list or a time that is not set. Nothing in it is visited.
pub(super) fn is_unset(field: &dyn UntypedValue) -> bool {
    let mut found = Unset::Field;
    field.accept(&mut found).is_ok() && matches!(found, Unset::Yes)
}

/// What is known of a field that may be unset.
#[derive(Clone, Copy)]
enum Unset {
    /// Nothing yet.
    Field,
    /// It is optional. A time that is not set is none there.
    Optional,
    /// It is a time.
    Time,
    Yes,
    No,
}

impl ValueVisitor for Unset {
    fn scalar(&mut self, value: Scalar<'_>) -> Result<()> {
        *self = match (*self, value) {
            (Unset::Time, Scalar::Text(text)) if time::is_zero(text) => Unset::Yes,
            _ => Unset::No,
        };
        Ok(())
    }

    fn begin_list(&mut self, _: Option<usize>) -> Result<()> {
        *self = match *self {
            Unset::No => Unset::No,
            _ => Unset::Yes,
        };
        Ok(())
    }

    fn element(&mut self, _: &dyn UntypedValue) -> Result<()> {
        *self = Unset::No;
        Ok(())
    }

    fn begin_map(&mut self) -> Result<()> {
        *self = Unset::No;
        Ok(())
    }

    fn member(&mut self, _: Cow<'static, str>, _: &dyn UntypedValue) -> Result<()> {
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        Ok(())
    }

    fn optional(&mut self) {
        *self = match *self {
            Unset::No => Unset::No,
            _ => Unset::Optional,
        };
    }

    fn newtype(&mut self, name: &str) {
        *self = match (*self, name) {
            (Unset::Field, "Time" | "MicroTime") => Unset::Time,
            _ => Unset::No,
        };
    }
}
