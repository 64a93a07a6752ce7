//! Plain facts: what validation requires of a value by itself, whatever the other fields are. They are in the descriptors of types (`facts` of
//! a field: required, minimum, enum), and one walker checks them.
//!
//! Kubernetes' declarative validation (KEP-5073) has the same as tags of types, for few of them yet. A rule that depends on another field, on the old
//! object or on a feature is code. Kubernetes reports errors in the order of its own code, where facts and rules alternate; so a kind's code calls
//! [`check`] at the place of the facts, with the fields in Kubernetes' order.
//!
//! The objects' types have no reflection but serde's: the walker is a serializer that reads the fields that are asked for and skips the others.
//! It allocates nothing for valid values, except for paths that are too long for [`Path`] to keep in place.

use std::fmt;

use knarr_apimachinery::descriptors::{Facts, FieldDescriptor, Go, Place, TypeDescriptor};
use knarr_apimachinery::field::{ErrorList, Path};
use serde::ser::{Impossible, Serialize, SerializeSeq, SerializeStruct, Serializer};

/// The detail of an internal error at a field.
const NO_FACTS: &str = "its type has no facts";

/// Checks the facts of these fields of a struct, in this order, and of the structs below them. `path` is that of the struct.
///
/// A field without facts is a bug of the caller, and an internal error at the field.
pub(crate) fn check<T: Serialize + ?Sized>(errors: &mut ErrorList, path: &Path, of: &T, fields: &[&str]) {
    check_fields(errors, path, of, Place::Unknown, fields);
}

fn check_fields<T: Serialize + ?Sized>(
    errors: &mut ErrorList,
    path: &Path,
    of: &T,
    place: Place,
    fields: &[&str],
) {
    let walker = Walker {
        errors: &mut *errors,
        path,
        step: Step::Fields(fields, place),
    };
    if of.serialize(walker).is_err() {
        for field in fields {
            errors.internal(&path.child(field), NO_FACTS);
        }
    }
}

/// Checks the value of a field, or an item of it, which is of the Go type `of`.
fn check_value<T: Serialize + ?Sized>(
    errors: &mut ErrorList,
    path: &Path,
    value: &T,
    field: &'static FieldDescriptor,
    of: &'static Go,
) -> Done {
    if let Some(of) = of.underlying().named() {
        check_fields(errors, path, value, Place::Of(of), of.with_facts());
        return Ok(());
    }
    let step = Step::Value(field, of);
    value.serialize(Walker { errors, path, step })
}

/// An error is a value of another form than the descriptors say.
type Done = Result<(), fmt::Error>;
type Never = Impossible<(), fmt::Error>;

struct Walker<'a> {
    errors: &'a mut ErrorList,
    path: &'a Path,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    /// Checks the fields of these names of a struct.
    Fields(&'a [&'a str], Place),
    /// Checks a value of the field.
    Value(&'static FieldDescriptor, &'static Go),
}

impl<'a> Walker<'a> {
    fn facts(&self) -> Result<(&'static FieldDescriptor, &'static Facts), fmt::Error> {
        match self.step {
            Step::Value(field, _) => field.facts.as_ref().map(|facts| (field, facts)).ok_or(fmt::Error),
            Step::Fields(..) => Err(fmt::Error),
        }
    }
}

macro_rules! without_facts {
    ($($method:ident($($argument:ty),*) -> $ok:ty;)*) => {$(
        fn $method(self, $(_: $argument),*) -> Result<$ok, fmt::Error> {
            Err(fmt::Error)
        }
    )*};
}

impl<'a> Serializer for Walker<'a> {
    type Ok = ();
    type Error = fmt::Error;
    type SerializeSeq = Items<'a>;
    type SerializeTuple = Never;
    type SerializeTupleStruct = Never;
    type SerializeTupleVariant = Never;
    type SerializeMap = Never;
    type SerializeStruct = Fields<'a>;
    type SerializeStructVariant = Never;

    without_facts! {
        serialize_bool(bool) -> (); serialize_i8(i8) -> (); serialize_i16(i16) -> ();
        serialize_u8(u8) -> (); serialize_u16(u16) -> (); serialize_u32(u32) -> (); serialize_u64(u64) -> ();
        serialize_f32(f32) -> (); serialize_f64(f64) -> (); serialize_char(char) -> ();
        serialize_bytes(&[u8]) -> (); serialize_none() -> (); serialize_unit() -> ();
        serialize_unit_struct(&'static str) -> (); serialize_unit_variant(&'static str, u32, &'static str) -> ();
        serialize_tuple(usize) -> Never; serialize_tuple_struct(&'static str, usize) -> Never;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> Never;
        serialize_map(Option<usize>) -> Never;
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> Never;
    }

    fn serialize_i32(self, v: i32) -> Done {
        self.serialize_i64(v.into())
    }

    fn serialize_i64(self, v: i64) -> Done {
        let (_, facts) = self.facts()?;
        if let Some(least) = facts.minimum.filter(|least| v < *least) {
            let detail = format!("must be greater than or equal to {least}");
            self.errors.invalid(self.path, v, detail);
        }
        Ok(())
    }

    /// A pointer to an empty string is not absent.
    fn serialize_str(self, v: &str) -> Done {
        let (field, facts) = self.facts()?;
        let supported = field.supported();
        if v.is_empty() && facts.is_required && !field.of.is_pointer() {
            self.errors.required(self.path, "");
        } else if !supported.is_empty() && !supported.iter().any(|known| known == v) {
            let supported: Vec<&str> = supported.iter().map(String::as_str).collect();
            self.errors.not_supported_in_order(self.path, v, &supported);
        }
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Done {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, _: &T) -> Done {
        Err(fmt::Error)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Done {
        Err(fmt::Error)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Items<'a>, fmt::Error> {
        let Step::Value(field, of) = self.step else {
            return Err(fmt::Error);
        };
        match of.underlying() {
            Go::List(item) => Ok(Items {
                errors: self.errors,
                path: self.path,
                field,
                of: item,
                checked: 0,
            }),
            _ => Err(fmt::Error),
        }
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Fields<'a>, fmt::Error> {
        let Step::Fields(names, place) = self.step else {
            return Err(fmt::Error);
        };
        Ok(Fields {
            errors: self.errors,
            path: self.path,
            of: place.of_struct(name).ok_or(fmt::Error)?,
            names,
            present: 0,
            found: Vec::new(),
        })
    }
}

/// The fields of a struct, of which those that are named are checked. Serde has them in another order than the names, in whose order errors are
/// reported.
struct Fields<'a> {
    errors: &'a mut ErrorList,
    path: &'a Path,
    of: &'static TypeDescriptor,
    names: &'a [&'a str],
    /// The positions in the names of the fields that the struct has, as bits: no type has as many fields with facts.
    present: u128,
    /// The errors, by the position of the field's name.
    found: Vec<(usize, ErrorList)>,
}

impl Fields<'_> {
    fn field(&self, name: &str) -> Option<(&'static FieldDescriptor, &'static Facts)> {
        let field = self.of.field(name)?;
        field.facts.as_ref().map(|facts| (field, facts))
    }
}

impl SerializeStruct for Fields<'_> {
    type Ok = ();
    type Error = fmt::Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Done {
        let Some(at) = self.names.iter().position(|wanted| *wanted == name) else {
            return Ok(());
        };
        self.present |= 1 << at;
        let path = self.path.child(name);
        let mut errors = ErrorList::new();
        let checked = match self.field(name) {
            Some((field, _)) => check_value(&mut errors, &path, value, field, &field.of),
            None => Err(fmt::Error),
        };
        if checked.is_err() {
            errors.internal(&path, NO_FACTS);
        }
        if !errors.is_empty() {
            self.found.push((at, errors));
        }
        Ok(())
    }

    fn end(mut self) -> Done {
        for (at, name) in self.names.iter().enumerate() {
            if self.present & (1 << at) != 0 {
                continue;
            }
            let mut errors = ErrorList::new();
            match self.field(name) {
                Some((_, facts)) if facts.is_required => errors.required(&self.path.child(name), ""),
                Some(_) => continue,
                None => errors.internal(&self.path.child(name), NO_FACTS),
            }
            self.found.push((at, errors));
        }
        self.found.sort_unstable_by_key(|(at, _)| *at);
        for (_, errors) in self.found {
            self.errors.extend(errors);
        }
        Ok(())
    }
}

/// The items of a list.
struct Items<'a> {
    errors: &'a mut ErrorList,
    path: &'a Path,
    field: &'static FieldDescriptor,
    /// The Go type of an item.
    of: &'static Go,
    /// How many were checked.
    checked: usize,
}

impl SerializeSeq for Items<'_> {
    type Ok = ();
    type Error = fmt::Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
        let path = self.path.index(self.checked);
        self.checked += 1;
        check_value(self.errors, &path, value, self.field, self.of)
    }

    fn end(self) -> Done {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
