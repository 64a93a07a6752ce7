//! The Go type of the elements that a list or map should have, for errors: `[]string`, `map[string]v1.Container`.

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::reader::Error;

/// Finds the element type of a list or map: deserializing an element returns an error with its Go type.
struct ElementType;

/// The element type of a list that the visitor reads.
pub(super) fn of_list<'de, V: Visitor<'de>>(visitor: V) -> String {
    element_type(visitor.visit_seq(ElementType))
}

/// The type of a map's values that the visitor reads.
pub(super) fn of_map<'de, V: Visitor<'de>>(visitor: V) -> String {
    element_type(visitor.visit_map(ElementType))
}

fn element_type<T>(result: Result<T, Error>) -> String {
    match result {
        Ok(_) => "interface {}".into(),
        Err(e) => e.message().to_string(),
    }
}

impl<'de> SeqAccess<'de> for ElementType {
    type Error = Error;
    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        seed.deserialize(ElementType).map(Some)
    }
}

impl<'de> MapAccess<'de> for ElementType {
    type Error = Error;
    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        seed.deserialize(BorrowedStrDeserializer::new("")).map(Some)
    }
    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        seed.deserialize(ElementType)
    }
}

macro_rules! answers {
    ($($method:ident $of:literal;)*) => {$(
        fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            Err(de::Error::custom($of))
        }
    )*};
}

impl<'de> Deserializer<'de> for ElementType {
    type Error = Error;

    answers! {
        deserialize_any "interface {}";
        deserialize_bool "bool";
        deserialize_i8 "int8";
        deserialize_i16 "int16";
        deserialize_i32 "int32";
        deserialize_i64 "int64";
        deserialize_u8 "uint8";
        deserialize_u16 "uint16";
        deserialize_u32 "uint32";
        deserialize_u64 "uint64";
        deserialize_f32 "float32";
        deserialize_f64 "float64";
        deserialize_char "string";
        deserialize_str "string";
        deserialize_string "string";
        deserialize_bytes "[]uint8";
        deserialize_byte_buf "[]uint8";
        deserialize_option "[]uint8";
        deserialize_unit "interface {}";
        deserialize_identifier "string";
        deserialize_ignored_any "interface {}";
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, _: V) -> Result<V::Value, Error> {
        Err(de::Error::custom("interface {}"))
    }
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: V,
    ) -> Result<V::Value, Error> {
        Err(de::Error::custom(match name {
            "Quantity" => "resource.Quantity".to_string(),
            other => format!("v1.{other}"),
        }))
    }
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        Err(de::Error::custom(format!("[]{}", of_list(visitor))))
    }
    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }
    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        Err(de::Error::custom(format!("map[string]{}", of_map(visitor))))
    }
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        Err(de::Error::custom(format!("v1.{name}")))
    }
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        Err(de::Error::custom(format!("v1.{name}")))
    }
}
