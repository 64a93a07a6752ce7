//! Typed objects to trees, and whether a field is one that Go writes as null.
//!
//! One serializer for all of it: each serializer is compiled once for every type of Kubernetes, which is most of what building this
//! crate takes.

use std::fmt::{self, Display};

use schemars::JsonSchema;
use serde::ser::{
    Impossible, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeTuple, SerializeTupleStruct,
    Serializer,
};
use serde_json::{Map, Value};

use super::time;
use crate::descriptors::{Place, TypeDescriptor};

/// Up to 2^53 a double has an exact value for every integer.
const EXACT_INTEGER_MAX: f64 = 9_007_199_254_740_992.0;

/// The integer that Go writes for an integral number.
pub(super) fn integral(v: f64) -> Option<i64> {
    (v.fract() == 0.0 && v.abs() <= EXACT_INTEGER_MAX).then_some(v as i64)
}

/// The index of a field among those that may be null.
pub(super) fn null_index(nulls: &[&str], key: &str) -> Option<usize> {
    nulls.iter().position(|field| *field == key)
}

/// The type that typed objects have as text, and JSON as the object that the text is (see `managed_fields::text`).
pub(super) const FIELDS_V1: &str = "FieldsV1";

/// The tree of a value as serde has it: without the nulls that Kubernetes writes.
///
/// # Errors
///
/// As [`to_value`].
pub fn to_plain_value<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<Value> {
    serialized(value, Mode::Plain)
}

/// The tree of a value as Kubernetes writes it.
///
/// # Errors
///
/// If the value has a map with keys other than strings and numbers, or an enum's variant with several fields, which no type of Kubernetes has.
pub fn to_value<T: Serialize + JsonSchema + ?Sized>(value: &T) -> serde_json::Result<Value> {
    serialized(value, Mode::WithNulls(Place::of::<T>()))
}

fn serialized<T: Serialize + ?Sized>(value: &T, mode: Mode) -> serde_json::Result<Value> {
    value
        .serialize(ValueSerializer(mode))
        .map_err(ValueError::into_json)
}

/// Whether a field is an empty list or a time that is not set. It is not traversed.
pub fn is_unset<T: Serialize + ?Sized>(field: &T) -> bool {
    field
        .serialize(ValueSerializer(Mode::Unset(Unset::Field)))
        .is_ok()
}

/// What is asked of a value.
#[derive(Clone, Copy)]
enum Mode {
    /// Its tree.
    Plain,
    /// Its tree with nulls.
    WithNulls(Place),
    /// Whether it is unset: an error if not.
    Unset(Unset),
}

/// How far into a field that may be unset.
#[derive(Clone, Copy)]
enum Unset {
    /// The field itself.
    Field,
    /// The value of an optional field. A time that is not set is none there.
    Optional,
    /// The text of a time.
    Time,
}

#[derive(Debug)]
enum ValueError {
    NotUnset,
    Message(String),
}

impl ValueError {
    fn into_json(self) -> serde_json::Error {
        serde::ser::Error::custom(self)
    }
}

impl Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueError::NotUnset => f.write_str("neither an empty list nor a time that is not set"),
            ValueError::Message(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for ValueError {}

impl serde::ser::Error for ValueError {
    fn custom<T: Display>(message: T) -> Self {
        ValueError::Message(message.to_string())
    }
}

fn unexpected(what: &str) -> ValueError {
    ValueError::Message(format!("unexpected {what}"))
}

struct ValueSerializer(Mode);

impl ValueSerializer {
    /// A value that is never unset.
    fn scalar(self, value: impl Into<Value>) -> Result<Value, ValueError> {
        match self.0 {
            Mode::Unset(_) => Err(ValueError::NotUnset),
            _ => Ok(value.into()),
        }
    }

    fn list(self, len: Option<usize>) -> ListSerializer {
        ListSerializer {
            mode: self.0,
            items: Vec::with_capacity(len.unwrap_or_default().min(MAX_PREALLOCATED)),
        }
    }

    fn object(self, name: &str) -> Result<ObjectSerializer, ValueError> {
        let (mode, nulls) = match self.0 {
            Mode::Plain => (self.0, &[][..]),
            // A map has no name; its values are where it is.
            Mode::WithNulls(_) if name.is_empty() => (self.0, &[][..]),
            Mode::WithNulls(place) => match place.of_struct(name) {
                Some(of) => (Mode::WithNulls(Place::Below(of)), TypeDescriptor::nulls(of)),
                None => (Mode::WithNulls(Place::Unknown), &[][..]),
            },
            Mode::Unset(_) => return Err(ValueError::NotUnset),
        };
        Ok(ObjectSerializer {
            mode,
            members: Map::new(),
            key: String::new(),
            nulls,
            written: 0,
        })
    }
}

/// A list that says that it is longer does not get its room before its elements.
const MAX_PREALLOCATED: usize = 1024;

macro_rules! scalars {
    ($($method:ident($t:ty);)*) => {$(
        fn $method(self, v: $t) -> Result<Value, ValueError> {
            self.scalar(v)
        }
    )*};
}

impl Serializer for ValueSerializer {
    type Ok = Value;
    type Error = ValueError;
    type SerializeSeq = ListSerializer;
    type SerializeTuple = ListSerializer;
    type SerializeTupleStruct = ListSerializer;
    type SerializeTupleVariant = Impossible<Value, ValueError>;
    type SerializeMap = ObjectSerializer;
    type SerializeStruct = ObjectSerializer;
    type SerializeStructVariant = Impossible<Value, ValueError>;

    scalars! {
        serialize_bool(bool);
        serialize_i8(i8);
        serialize_i16(i16);
        serialize_i32(i32);
        serialize_i64(i64);
        serialize_u8(u8);
        serialize_u16(u16);
        serialize_u32(u32);
        serialize_u64(u64);
        serialize_f32(f32);
        serialize_bytes(&[u8]);
    }

    fn serialize_f64(self, v: f64) -> Result<Value, ValueError> {
        match (self.0, integral(v)) {
            (Mode::WithNulls(_), Some(whole)) => self.scalar(whole),
            _ => self.scalar(v),
        }
    }

    fn serialize_char(self, v: char) -> Result<Value, ValueError> {
        self.scalar(v.to_string())
    }

    fn serialize_str(self, text: &str) -> Result<Value, ValueError> {
        match self.0 {
            Mode::Unset(Unset::Time) if time::is_zero(text) => Ok(Value::Null),
            _ => self.scalar(text),
        }
    }

    fn serialize_none(self) -> Result<Value, ValueError> {
        self.scalar(Value::Null)
    }

    fn serialize_unit(self) -> Result<Value, ValueError> {
        self.scalar(Value::Null)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Value, ValueError> {
        self.scalar(Value::Null)
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<Value, ValueError> {
        self.scalar(variant)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Value, ValueError> {
        let mode = match self.0 {
            Mode::Unset(_) => Mode::Unset(Unset::Optional),
            mode => mode,
        };
        value.serialize(ValueSerializer(mode))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<Value, ValueError> {
        let mode = match (self.0, name) {
            (Mode::Unset(Unset::Field), "Time" | "MicroTime") => Mode::Unset(Unset::Time),
            (Mode::Unset(_), _) => return Err(ValueError::NotUnset),
            // The text is written as the object that it is.
            (Mode::WithNulls(_), FIELDS_V1) => {
                let text = value.serialize(ValueSerializer(Mode::Plain))?;
                let parsed = text.as_str().and_then(|text| serde_json::from_str(text).ok());
                return Ok(parsed.unwrap_or(text));
            }
            (mode, _) => mode,
        };
        value.serialize(ValueSerializer(mode))
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Value, ValueError> {
        let mut object = self.object(name)?;
        object.serialize_field(variant, value)?;
        Ok(object.finish())
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<ListSerializer, ValueError> {
        Ok(self.list(len))
    }

    fn serialize_tuple(self, len: usize) -> Result<ListSerializer, ValueError> {
        Ok(self.list(Some(len)))
    }

    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<ListSerializer, ValueError> {
        Ok(self.list(Some(len)))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, ValueError> {
        Err(unexpected(variant))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<ObjectSerializer, ValueError> {
        self.object("")
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<ObjectSerializer, ValueError> {
        self.object(name)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, ValueError> {
        Err(unexpected(variant))
    }
}

struct ListSerializer {
    mode: Mode,
    items: Vec<Value>,
}

impl ListSerializer {
    fn push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), ValueError> {
        if let Mode::Unset(_) = self.mode {
            return Err(ValueError::NotUnset);
        }
        self.items.push(value.serialize(ValueSerializer(self.mode))?);
        Ok(())
    }
}

macro_rules! lists {
    ($($trait:ident $method:ident;)*) => {$(
        impl $trait for ListSerializer {
            type Ok = Value;
            type Error = ValueError;
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), ValueError> {
                self.push(value)
            }
            fn end(self) -> Result<Value, ValueError> {
                Ok(Value::Array(self.items))
            }
        }
    )*};
}

lists! {
    SerializeSeq serialize_element;
    SerializeTuple serialize_element;
    SerializeTupleStruct serialize_field;
}

struct ObjectSerializer {
    mode: Mode,
    members: Map<String, Value>,
    /// Of a map's member whose value comes next.
    key: String,
    /// Fields that are null if nothing else was written, and which of them were written, a bit each.
    nulls: &'static [&'static str],
    written: u64,
}

impl ObjectSerializer {
    fn finish(mut self) -> Value {
        for (i, field) in self.nulls.iter().enumerate() {
            if self.written & (1 << i) == 0 {
                self.members.insert((*field).to_string(), Value::Null);
            }
        }
        Value::Object(self.members)
    }

    fn take_key(&mut self, key: Value) -> Result<(), ValueError> {
        self.key = match key {
            Value::String(key) => key,
            Value::Number(key) => key.to_string(),
            _ => return Err(unexpected("key: expected a string")),
        };
        Ok(())
    }
}

impl SerializeStruct for ObjectSerializer {
    type Ok = Value;
    type Error = ValueError;
    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), ValueError> {
        if let Some(i) = null_index(self.nulls, key) {
            if is_unset(value) {
                return Ok(());
            }
            self.written |= 1 << i;
        }
        let value = value.serialize(ValueSerializer(self.mode))?;
        self.members.insert(key.to_string(), value);
        Ok(())
    }
    fn end(self) -> Result<Value, ValueError> {
        Ok(self.finish())
    }
}

impl SerializeMap for ObjectSerializer {
    type Ok = Value;
    type Error = ValueError;
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), ValueError> {
        let key = key.serialize(ValueSerializer(Mode::Plain))?;
        self.take_key(key)
    }
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), ValueError> {
        let value = value.serialize(ValueSerializer(self.mode))?;
        let key = std::mem::take(&mut self.key);
        self.members.insert(key, value);
        Ok(())
    }
    fn end(self) -> Result<Value, ValueError> {
        Ok(self.finish())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use k8s_openapi::api::rbac::v1::Role;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
    use serde_json::json;

    use super::*;
    use crate::codec::WithNulls;

    /// The tree is what is read from the text, and without nulls what serde_json makes of it.
    fn is_the_same<T: Serialize + JsonSchema>(value: &T) {
        let text = serde_json::to_string(&WithNulls::new(value)).unwrap();
        assert_eq!(
            to_value(value).unwrap(),
            serde_json::from_str::<Value>(&text).unwrap()
        );
        assert_eq!(
            to_plain_value(value).unwrap(),
            serde_json::to_value(value).unwrap()
        );
    }

    #[test]
    fn a_tree_is_what_the_text_says() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "labels": {"a": "b"}, "creationTimestamp": "2020-01-01T00:00:00Z"},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}, "ports": [{"containerPort": 80}]}],
                "terminationGracePeriodSeconds": 30},
            "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}]}});
        is_the_same(&serde_json::from_value::<Pod>(pod).unwrap());
        is_the_same(&Pod::default());
        is_the_same(&Role::default());
        is_the_same(&[1.0, -3.5, 1e300]);
        is_the_same(&json!({"a": [null, true, {"b": 1}], "c": "d"}));
    }

    #[test]
    fn the_text_of_fields_is_an_object_in_the_tree_with_nulls() {
        let fields = FieldsV1(json!(r#"{"f:a":{}}"#));
        let entry = ManagedFieldsEntry {
            fields_v1: Some(fields),
            ..ManagedFieldsEntry::default()
        };
        assert_eq!(to_value(&entry).unwrap(), json!({"fieldsV1": {"f:a": {}}}));
    }
}
