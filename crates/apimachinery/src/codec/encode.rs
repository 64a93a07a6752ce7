//! Typed objects to JSON, with the nulls and numbers that Kubernetes writes.
//!
//! In Go a time that is no pointer is written as null where it is not set (`lastProbeTime` of a condition), and so
//! is a list without omitempty (`rules` of a Role). The typed objects omit such fields; this encoder adds them.
//! And `fieldsV1`, which typed objects have as text, is written as the object that it is.
//!
//! [`Encoder`] is the only serializer of Kubernetes' types, because each serializer is compiled once for every one of them. What only some
//! callers need, as trees, is a [visitor](ValueVisitor) of it.

use std::borrow::Cow;
use std::mem;

use schemars::JsonSchema;
use serde::ser::{
    Error as _, Impossible, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeTuple,
    SerializeTupleStruct, Serializer,
};
use serde_json::value::RawValue;
use serde_json::{Error, Value};

use super::text;
use super::value::{Scalar, UntypedValue, ValueVisitor, is_unset, tree};
use crate::descriptors::{self, Place, TypeDescriptor};

/// Up to 2^53 a double has an exact value for every integer.
const EXACT_INTEGER_MAX: f64 = 9_007_199_254_740_992.0;

/// The integer that Go writes for an integral number.
fn integral(v: f64) -> Option<i64> {
    (v.fract() == 0.0 && v.abs() <= EXACT_INTEGER_MAX).then_some(v as i64)
}

/// The type that typed objects have as text, and JSON as the object that the text is (see `managed_fields::text`).
pub(super) const FIELDS_V1: &str = "FieldsV1";

/// Appends a value's JSON as Kubernetes writes it.
///
/// # Errors
///
/// If the value has a map with keys other than strings and numbers, or an enum's variant with several fields, which no type of Kubernetes has.
pub fn write<T: Serialize + JsonSchema + ?Sized>(value: &T, out: &mut Vec<u8>) -> serde_json::Result<()> {
    WithNulls::new(value).write(out)
}

/// Appends a value's JSON as serde has it: without the nulls that Kubernetes writes.
///
/// # Errors
///
/// As [`write()`].
pub fn write_plain<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> serde_json::Result<()> {
    value.serialize(Encoder::new(out))
}

/// The tree of a value as Kubernetes writes it.
///
/// # Errors
///
/// As [`write()`].
pub fn to_value<T: Serialize + JsonSchema + ?Sized>(value: &T) -> serde_json::Result<Value> {
    tree(&Untyped(value, Nulls::of::<T>()))
}

/// The tree of a value as serde has it: without the nulls that Kubernetes writes.
///
/// # Errors
///
/// As [`write()`].
pub fn to_plain_value<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<Value> {
    tree(&Untyped(value, Nulls::Omitted))
}

/// A value that is written with its nulls by other serializers: its text is made first.
pub struct WithNulls<'a, T: ?Sized>(&'a T, Nulls);

impl<'a, T: Serialize + JsonSchema + ?Sized> WithNulls<'a, T> {
    pub fn new(value: &'a T) -> Self {
        WithNulls(value, Nulls::of::<T>())
    }
}

impl<T: Serialize + ?Sized> WithNulls<'_, T> {
    fn write(&self, out: &mut Vec<u8>) -> serde_json::Result<()> {
        self.0.serialize(Encoder {
            sink: Sink::Text(out),
            nulls: self.1,
        })
    }
}

impl<T: Serialize + ?Sized> Serialize for WithNulls<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut json = Vec::new();
        self.write(&mut json).map_err(S::Error::custom)?;
        let text = String::from_utf8(json).map_err(S::Error::custom)?;
        let raw = RawValue::from_string(text).map_err(S::Error::custom)?;
        raw.serialize(serializer)
    }
}

/// The serializer of typed values, to JSON or to a visitor.
pub struct Encoder<'s> {
    sink: Sink<'s>,
    nulls: Nulls,
}

/// What receives a value.
enum Sink<'s> {
    /// JSON is appended.
    Text(&'s mut Vec<u8>),
    Visitor(&'s mut dyn ValueVisitor),
}

/// Whether the nulls that Kubernetes writes are written.
#[derive(Clone, Copy)]
enum Nulls {
    Omitted,
    /// They are; the value is here.
    Written(Place),
}

impl Nulls {
    fn of<T: JsonSchema + ?Sized>() -> Nulls {
        Nulls::Written(Place::of::<T>())
    }
}

/// A value that a visitor receives, and whether its nulls are visited.
struct Untyped<'v, T: ?Sized>(&'v T, Nulls);

impl<T: Serialize + ?Sized> UntypedValue for Untyped<'_, T> {
    fn accept(&self, visitor: &mut dyn ValueVisitor) -> serde_json::Result<()> {
        self.0.serialize(Encoder {
            sink: Sink::Visitor(visitor),
            nulls: self.1,
        })
    }
}

/// The value without its static type, and without nulls.
pub fn untyped<T: Serialize + ?Sized>(value: &T) -> impl UntypedValue {
    Untyped(value, Nulls::Omitted)
}

impl<'s> Encoder<'s> {
    /// Appends JSON, without nulls.
    pub fn new(out: &'s mut Vec<u8>) -> Self {
        Encoder {
            sink: Sink::Text(out),
            nulls: Nulls::Omitted,
        }
    }

    /// Shows the value to a visitor, without nulls.
    pub fn visiting(visitor: &'s mut dyn ValueVisitor) -> Self {
        Encoder {
            sink: Sink::Visitor(visitor),
            nulls: Nulls::Omitted,
        }
    }

    /// For an object of a kind, with its nulls.
    pub fn of_kind(self, api_version: &str, kind: &str) -> Self {
        let place = descriptors::of_kind(api_version, kind).map_or(Place::Unknown, Place::Of);
        Encoder {
            nulls: Nulls::Written(place),
            ..self
        }
    }

    fn scalar(self, value: Scalar<'_>) -> Result<(), Error> {
        match self.sink {
            Sink::Visitor(visitor) => visitor.scalar(value),
            Sink::Text(out) => match value {
                Scalar::Null => serde_json::to_writer(out, &()),
                Scalar::Bool(v) => serde_json::to_writer(out, &v),
                Scalar::Integer(v) => serde_json::to_writer(out, &v),
                Scalar::Unsigned(v) => serde_json::to_writer(out, &v),
                Scalar::Float(v) => serde_json::to_writer(out, &v),
                Scalar::Text(v) => serde_json::to_writer(out, v),
            },
        }
    }

    fn list(mut self, len: Option<usize>) -> Result<Compound<'s>, Error> {
        match &mut self.sink {
            Sink::Text(out) => out.push(b'['),
            Sink::Visitor(visitor) => visitor.begin_list(len)?,
        }
        Ok(self.compound(b']'))
    }

    fn map(mut self) -> Result<Compound<'s>, Error> {
        match &mut self.sink {
            Sink::Text(out) => out.push(b'{'),
            Sink::Visitor(visitor) => visitor.begin_map()?,
        }
        Ok(self.compound(b'}'))
    }

    /// A struct: a map whose type is known by its name.
    fn fields(mut self, name: &str) -> Result<Compound<'s>, Error> {
        let (values, nulls) = match self.nulls {
            Nulls::Omitted => (Nulls::Omitted, &[][..]),
            Nulls::Written(place) => match place.of_struct(name) {
                Some(of) => (Nulls::Written(Place::Below(of)), TypeDescriptor::nulls(of)),
                None => (Nulls::Written(Place::Unknown), &[][..]),
            },
        };
        match &mut self.sink {
            Sink::Text(out) => out.push(b'{'),
            Sink::Visitor(visitor) => visitor.begin_struct(name)?,
        }
        Ok(Compound {
            values,
            nulls,
            ..self.compound(b'}')
        })
    }

    fn compound(self, close: u8) -> Compound<'s> {
        Compound {
            sink: self.sink,
            close,
            values: self.nulls,
            nulls: &[],
            written: 0,
            key: String::new(),
        }
    }

    /// Begins a newtype. The result is whether all of it was written: that of `fieldsV1`, the text of an object.
    fn newtype(&mut self, name: &str, value: &dyn UntypedValue) -> Result<bool, Error> {
        if let Sink::Visitor(visitor) = &mut self.sink {
            visitor.newtype(name);
        }
        if name != FIELDS_V1 || matches!(self.nulls, Nulls::Omitted) {
            return Ok(false);
        }
        let Value::String(text) = tree(value)? else {
            return Ok(false);
        };
        match &mut self.sink {
            Sink::Text(out) => {
                let Ok(raw) = RawValue::from_string(text) else {
                    return Ok(false);
                };
                out.extend_from_slice(raw.get().as_bytes());
            }
            Sink::Visitor(visitor) => {
                let Ok(fields) = serde_json::from_str::<Value>(&text) else {
                    return Ok(false);
                };
                Untyped(&fields, Nulls::Omitted).accept(&mut **visitor)?;
            }
        }
        Ok(true)
    }
}

/// No type of Kubernetes is written as a variant with fields.
fn no_variants(variant: &str) -> Error {
    Error::custom(format!("unexpected variant {variant}"))
}

macro_rules! scalars {
    ($($method:ident($t:ty) $scalar:ident;)*) => {$(
        fn $method(self, v: $t) -> Result<(), Error> {
            self.scalar(Scalar::$scalar(v.into()))
        }
    )*};
}

impl<'s> Serializer for Encoder<'s> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Compound<'s>;
    type SerializeTuple = Compound<'s>;
    type SerializeTupleStruct = Compound<'s>;
    type SerializeTupleVariant = Impossible<(), Error>;
    type SerializeMap = Compound<'s>;
    type SerializeStruct = Compound<'s>;
    type SerializeStructVariant = Impossible<(), Error>;

    scalars! {
        serialize_i8(i8) Integer;
        serialize_i16(i16) Integer;
        serialize_i32(i32) Integer;
        serialize_u8(u8) Unsigned;
        serialize_u16(u16) Unsigned;
        serialize_u32(u32) Unsigned;
    }

    fn serialize_bool(self, v: bool) -> Result<(), Error> {
        self.scalar(Scalar::Bool(v))
    }

    fn serialize_i64(self, v: i64) -> Result<(), Error> {
        self.scalar(Scalar::Integer(v))
    }

    fn serialize_u64(self, v: u64) -> Result<(), Error> {
        self.scalar(Scalar::Unsigned(v))
    }

    /// Its text is shorter than that of the double.
    fn serialize_f32(self, v: f32) -> Result<(), Error> {
        match self.sink {
            Sink::Text(out) => serde_json::to_writer(out, &v),
            Sink::Visitor(visitor) => visitor.scalar(Scalar::Float(v.into())),
        }
    }

    /// Go writes an integral number without a fraction, whatever its type.
    fn serialize_f64(self, v: f64) -> Result<(), Error> {
        match (self.nulls, integral(v)) {
            (Nulls::Written(_), Some(whole)) => self.scalar(Scalar::Integer(whole)),
            _ => self.scalar(Scalar::Float(v)),
        }
    }

    fn serialize_char(self, v: char) -> Result<(), Error> {
        self.serialize_str(v.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, v: &str) -> Result<(), Error> {
        self.scalar(Scalar::Text(v))
    }

    fn serialize_bytes(self, v: &[u8]) -> Result<(), Error> {
        let mut list = self.list(Some(v.len()))?;
        for byte in v {
            list.element(byte)?;
        }
        list.finish()
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.scalar(Scalar::Null)
    }

    fn serialize_unit(self) -> Result<(), Error> {
        self.scalar(Scalar::Null)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Error> {
        self.scalar(Scalar::Null)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), Error> {
        self.scalar(Scalar::Text(variant))
    }

    fn serialize_some<T: Serialize + ?Sized>(mut self, value: &T) -> Result<(), Error> {
        if let Sink::Visitor(visitor) = &mut self.sink {
            visitor.optional();
        }
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        match self.newtype(name, &Untyped(value, Nulls::Omitted))? {
            true => Ok(()),
            false => value.serialize(self),
        }
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        let nulls = self.nulls;
        let mut map = self.map()?;
        map.put(variant, value, nulls)?;
        map.finish()
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Compound<'s>, Error> {
        self.list(len)
    }

    fn serialize_tuple(self, len: usize) -> Result<Compound<'s>, Error> {
        self.list(Some(len))
    }

    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<Compound<'s>, Error> {
        self.list(Some(len))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, Error> {
        Err(no_variants(variant))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Compound<'s>, Error> {
        self.map()
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Compound<'s>, Error> {
        self.fields(name)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, Error> {
        Err(no_variants(variant))
    }
}

/// A list, map or struct that is being written. What is generic in it is compiled for each type, so it is short.
pub struct Compound<'s> {
    sink: Sink<'s>,
    /// The bracket that ends it.
    close: u8,
    /// Whether the values in it are written with nulls.
    values: Nulls,
    /// Fields that are written as null if nothing else comes, and which of them were written, a bit each.
    nulls: &'static [&'static str],
    written: u64,
    /// Of a map's member whose value comes next, for a visitor.
    key: String,
}

/// The key of a map, for a visitor.
fn key_of(key: &dyn UntypedValue) -> Result<String, Error> {
    match tree(key)? {
        Value::String(key) => Ok(key),
        Value::Number(key) => Ok(key.to_string()),
        _ => Err(text::no_key()),
    }
}

impl Compound<'_> {
    /// A member of a map that is of a type of Kubernetes, with its nulls.
    ///
    /// # Errors
    ///
    /// As [`write()`].
    pub fn typed_entry<T: Serialize + JsonSchema + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> serde_json::Result<()> {
        self.put(name, value, Nulls::of::<T>())
    }

    fn put<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
        nulls: Nulls,
    ) -> Result<(), Error> {
        match &mut self.sink {
            Sink::Text(out) => {
                text::write_name(out, name)?;
                let sink = Sink::Text(out);
                value.serialize(Encoder { sink, nulls })
            }
            Sink::Visitor(visitor) => visitor.member(Cow::Borrowed(name), &Untyped(value, nulls)),
        }
    }

    fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let nulls = self.values;
        match &mut self.sink {
            Sink::Text(out) => {
                text::separate(out);
                let sink = Sink::Text(out);
                value.serialize(Encoder { sink, nulls })
            }
            Sink::Visitor(visitor) => visitor.element(&Untyped(value, nulls)),
        }
    }

    /// Whether a field is one that is null because it is unset.
    fn is_null(&mut self, field: &str, value: &dyn UntypedValue) -> bool {
        let Some(i) = self.nulls.iter().position(|name| *name == field) else {
            return false;
        };
        if is_unset(value) {
            return true;
        }
        self.written |= 1 << i;
        false
    }

    fn finish(mut self) -> Result<(), Error> {
        let nulls = self.nulls;
        for (i, field) in nulls.iter().copied().enumerate() {
            if self.written & (1 << i) == 0 {
                self.put(field, &(), Nulls::Omitted)?;
            }
        }
        match self.sink {
            Sink::Text(out) => out.push(self.close),
            Sink::Visitor(visitor) => visitor.end()?,
        }
        Ok(())
    }
}

impl SerializeStruct for Compound<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Error> {
        if self.is_null(key, &Untyped(value, Nulls::Omitted)) {
            return Ok(());
        }
        self.put(key, value, self.values)
    }

    fn end(self) -> Result<(), Error> {
        self.finish()
    }
}

impl SerializeMap for Compound<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        let nulls = Nulls::Omitted;
        match &mut self.sink {
            Sink::Text(out) => {
                text::separate(out);
                let at = out.len();
                let sink = Sink::Text(out);
                key.serialize(Encoder { sink, nulls })?;
                text::end_key(out, at)
            }
            Sink::Visitor(_) => {
                self.key = key_of(&Untyped(key, nulls))?;
                Ok(())
            }
        }
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let nulls = self.values;
        match &mut self.sink {
            Sink::Text(out) => {
                let sink = Sink::Text(out);
                value.serialize(Encoder { sink, nulls })
            }
            Sink::Visitor(visitor) => {
                let key = mem::take(&mut self.key);
                visitor.member(Cow::Owned(key), &Untyped(value, nulls))
            }
        }
    }

    fn end(self) -> Result<(), Error> {
        self.finish()
    }
}

macro_rules! lists {
    ($($trait:ident $method:ident;)*) => {$(
        impl $trait for Compound<'_> {
            type Ok = ();
            type Error = Error;
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
                self.element(value)
            }
            fn end(self) -> Result<(), Error> {
                self.finish()
            }
        }
    )*};
}

lists! {
    SerializeSeq serialize_element;
    SerializeTuple serialize_element;
    SerializeTupleStruct serialize_field;
}

#[cfg(test)]
mod tests;
