//! serde's side of the reader: structs, maps, lists and scalars as `k8s-openapi`'s types ask for them.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::de::value::{BorrowedStrDeserializer, CowStrDeserializer, StrDeserializer};
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::reader::{Error, Reader, Step, Token};
use super::{StrictError, go, time};
use crate::quantity;

impl<'de> Reader<'de> {
    /// The type's name for errors: the field's own one, else what `visitor` asks for.
    fn field_type(&self) -> Option<&'static str> {
        match self.path.as_slice() {
            [.., Step::Field(field, _)] => go::named_type(self.inside, field),
            [.., Step::Field(field, _), Step::Index(_)] => {
                go::named_type(self.inside, field)?.strip_prefix("[]")
            }
            _ => None,
        }
    }

    /// Fails unless `wanted` (or null) stands here; `of` names the Go type.
    fn expect(&mut self, wanted: Token, of: &str) -> Result<Token, Error> {
        let token = self.token()?;
        if token == wanted || token == Token::Null {
            Ok(token)
        } else {
            let of = self
                .field_type()
                .filter(|_| wanted == Token::String)
                .unwrap_or(of);
            Err(self.mismatch(token.word(), of))
        }
    }

    fn text(&mut self, of: &str) -> Result<Cow<'de, str>, Error> {
        match self.expect(Token::String, of)? {
            Token::Null => self.null().map(|()| Cow::Borrowed("")),
            _ => self.string(),
        }
    }

    fn integer<T: std::str::FromStr + Default>(&mut self, of: &str) -> Result<T, Error> {
        if self.expect(Token::Number, of)? == Token::Null {
            return self.null().map(|()| T::default());
        }
        let text = self.number()?;
        text.parse()
            .map_err(|_| self.mismatch(&format!("number {text}"), of))
    }

    fn float(&mut self, of: &str) -> Result<f64, Error> {
        if self.expect(Token::Number, of)? == Token::Null {
            return self.null().map(|()| 0.0);
        }
        let text = self.number()?;
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(value),
            _ => Err(self.mismatch(&format!("number {text}"), of)),
        }
    }

    fn map<V: Visitor<'de>>(&mut self, fields: Option<Fields>, visitor: V) -> Result<V::Value, Error> {
        let outer = self.inside;
        if let Some(fields) = &fields {
            self.inside = fields.of;
        }
        self.enter()?;
        let depth = self.path.len();
        let value = visitor.visit_map(Members {
            reader: self,
            owed: fields.as_ref().and_then(|f| f.time),
            fields,
            first: true,
            seen: BTreeSet::new(),
            seen_fields: 0,
            ended: false,
            unset: false,
        })?;
        self.path.truncate(depth);
        self.inside = outer;
        Ok(value)
    }

    fn seq<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, Error> {
        self.enter()?;
        self.path.push(Step::Index(0));
        let value = visitor.visit_seq(Elements {
            reader: self,
            first: true,
            next: 0,
        })?;
        self.path.pop();
        Ok(value)
    }
}

/// The fields of the struct that is read.
struct Fields {
    of: &'static str,
    names: &'static [&'static str],
    /// The time that our type wants although Go's may be unset.
    time: Option<&'static str>,
}

/// Of the type `path`, called `name`, the one field that must be there in our type though it is no pointer in Go.
fn wanted_time(name: &str, path: &str) -> Option<&'static str> {
    match name {
        "Condition" => Some("lastTransitionTime"),
        "EventSeries" if path.contains("::events::") => Some("lastObservedTime"),
        _ => None,
    }
}

/// A time that was not given: Go's zero time, which is written as null again.
struct Unset;

impl<'de> Deserializer<'de> for Unset {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(BorrowedStrDeserializer::<Error>::new(time::ZERO))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

struct Members<'a, 'de> {
    reader: &'a mut Reader<'de>,
    /// None in a map.
    fields: Option<Fields>,
    first: bool,
    /// Keys of a map that were read.
    seen: BTreeSet<Cow<'de, str>>,
    /// Fields of a struct that were read, one bit each. No struct of Kubernetes has 128.
    seen_fields: u128,
    /// The time that is wanted and has not come.
    owed: Option<&'static str>,
    /// The object was read to its end.
    ended: bool,
    /// The value asked for next is that of a time that did not come.
    unset: bool,
}

impl<'de> Members<'_, 'de> {
    /// The next field that is known and has something to say, with its key.
    fn next_field(
        &mut self,
        of: &'static str,
        names: &[&'static str],
    ) -> Result<Option<&'static str>, Error> {
        while !self.ended {
            if !self.reader.more(&mut self.first, b'}')? {
                self.ended = true;
                break;
            }
            let key = self.reader.key()?;
            let Some(index) = names.iter().position(|name| *name == key) else {
                let path = self.reader.path_to(Some(&key));
                self.reader.mistakes.push(StrictError::Unknown(path));
                self.reader.skip()?;
                continue;
            };
            let bit = 1_u128
                .checked_shl(u32::try_from(index).unwrap_or(u32::MAX))
                .unwrap_or(0);
            if self.seen_fields & bit != 0 {
                let path = self.reader.path_to(Some(&key));
                self.reader.mistakes.push(StrictError::Twice(path));
            }
            self.seen_fields |= bit;
            let name = names[index];
            if self.reader.token()? == Token::Null {
                self.reader.null()?;
                continue;
            }
            if let Some(form) = self.reader.zero()
                && go::drops_zero(of, name, form)
            {
                self.reader.skip()?;
                continue;
            }
            self.owed = self.owed.filter(|owed| *owed != name);
            return Ok(Some(name));
        }
        self.unset = self.owed.is_some();
        Ok(self.owed.take())
    }
}

impl<'de> MapAccess<'de> for Members<'_, 'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        if let Some(Fields { of, names, .. }) = self.fields {
            let Some(name) = self.next_field(of, names)? else {
                return Ok(None);
            };
            self.reader.path.push(Step::Field(name, go::embedded(of, name)));
            return seed.deserialize(BorrowedStrDeserializer::new(name)).map(Some);
        }
        if !self.reader.more(&mut self.first, b'}')? {
            return Ok(None);
        }
        let key = self.reader.key()?;
        if !self.seen.insert(key.clone()) {
            let path = self.reader.path_to(Some(&key));
            self.reader.mistakes.push(StrictError::Twice(path));
        }
        let value = match &key {
            Cow::Borrowed(key) => seed.deserialize(BorrowedStrDeserializer::new(key)),
            Cow::Owned(key) => seed.deserialize(StrDeserializer::new(key)),
        };
        self.reader.path.push(Step::Key(key));
        value.map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let value = match std::mem::take(&mut self.unset) {
            true => seed.deserialize(Unset)?,
            false => seed.deserialize(&mut *self.reader)?,
        };
        self.reader.path.pop();
        Ok(value)
    }
}

struct Elements<'a, 'de> {
    reader: &'a mut Reader<'de>,
    first: bool,
    next: usize,
}

impl<'de> SeqAccess<'de> for Elements<'_, 'de> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        if !self.reader.more(&mut self.first, b']')? {
            return Ok(None);
        }
        if let Some(Step::Index(i)) = self.reader.path.last_mut() {
            *i = self.next;
        }
        self.next += 1;
        seed.deserialize(&mut *self.reader).map(Some)
    }
}

/// What a number in an untyped place is.
fn visit_number<'de, V: Visitor<'de>>(text: &str, visitor: V) -> Result<V::Value, Error> {
    if let Ok(n) = text.parse::<i64>() {
        visitor.visit_i64(n)
    } else if let Ok(n) = text.parse::<u64>() {
        visitor.visit_u64(n)
    } else {
        match text.parse::<f64>() {
            Ok(n) if n.is_finite() => visitor.visit_f64(n),
            _ => Err(de::Error::custom(format!(
                "json: cannot unmarshal number {text} into Go value of type float64"
            ))),
        }
    }
}

macro_rules! integers {
    ($($method:ident $visit:ident $t:ty, $of:literal;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            let value: $t = self.integer(self.field_type().unwrap_or($of))?;
            visitor.$visit(value)
        }
    )*};
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let token = self.token()?;
        let result = match token {
            Token::Null => self.null().and_then(|()| visitor.visit_unit()),
            Token::Bool => self.bool().and_then(|b| visitor.visit_bool(b)),
            Token::Number => {
                let text = self.number()?;
                // What takes a number but not this one is an IntOrString.
                return visit_number(text, visitor).map_err(|_| {
                    self.error(format!(
                        "json: cannot unmarshal number {text} into Go value of type int32"
                    ))
                });
            }
            Token::String => match self.string()? {
                Cow::Borrowed(s) => visitor.visit_borrowed_str(s),
                Cow::Owned(s) => visitor.visit_string(s),
            },
            Token::Array => self.seq(visitor),
            Token::Object => self.map(None, visitor),
        };
        let is_scalar = !matches!(token, Token::Array | Token::Object);
        result.map_err(|e| match is_scalar || e.is_refusal() {
            true => self.error(format!(
                "json: cannot unmarshal {} into Go value of type int32",
                token.word()
            )),
            false => e,
        })
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.expect(Token::Bool, "bool")? {
            Token::Null => self.null().and_then(|()| visitor.visit_bool(false)),
            _ => self.bool().and_then(|b| visitor.visit_bool(b)),
        }
    }

    integers! {
        deserialize_i8 visit_i8 i8, "int8";
        deserialize_i16 visit_i16 i16, "int16";
        deserialize_i32 visit_i32 i32, "int32";
        deserialize_i64 visit_i64 i64, "int64";
        deserialize_u8 visit_u8 u8, "uint8";
        deserialize_u16 visit_u16 u16, "uint16";
        deserialize_u32 visit_u32 u32, "uint32";
        deserialize_u64 visit_u64 u64, "uint64";
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let value = self.float("float64")?;
        visitor.visit_f64(value)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let text = self.text("string")?;
        let shown = text.clone();
        let result = match text {
            Cow::Borrowed(s) => visitor.visit_borrowed_str(s),
            Cow::Owned(s) => visitor.visit_string(s),
        };
        result.map_err(|e: Error| {
            // The only visitor that refuses a string for what is in it reads base64.
            let base64 = [
                "Invalid symbol",
                "Invalid padding",
                "Invalid input length",
                "Invalid last symbol",
            ];
            if base64.iter().any(|words| e.message().starts_with(words)) {
                self.error(go::base64_mistake(&shown))
            } else {
                self.error(e.message())
            }
        })
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.token()? == Token::Null {
            self.null()?;
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.skip()?;
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        let layout = match name {
            "Quantity" => {
                // Kubernetes looks at the raw text: a number is as good as a string.
                let text = match self.token()? {
                    Token::Null => self.null().map(|()| Cow::Borrowed("0"))?,
                    Token::String => self.string()?,
                    _ => Cow::Borrowed(self.raw()?),
                };
                let text = quantity::canonical_text(text.trim()).map_err(|e| self.error(e))?;
                return visitor.visit_string(text);
            }
            // Kept as text, see `managed_fields::text`.
            "FieldsV1" if self.token()? == Token::Object => {
                let text = self.raw()?;
                return visitor.visit_newtype_struct(BorrowedStrDeserializer::<Error>::new(text));
            }
            "Time" => time::SECONDS,
            "MicroTime" => time::MICROSECONDS,
            _ => return visitor.visit_newtype_struct(self),
        };
        let token = self.token()?;
        if token != Token::String {
            return Err(self.error(format!(
                "json: cannot unmarshal {} into Go value of type string",
                token.word()
            )));
        }
        let text = self.string()?;
        let text = time::normal(&text, layout).map_err(|e| self.error(e))?;
        visitor
            .visit_newtype_struct(CowStrDeserializer::<Error>::new(text))
            .map_err(|e| self.error(e.message()))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.token()? {
            Token::Array => self.seq(visitor),
            Token::Null => {
                self.null()?;
                visitor.visit_seq(Nothing)
            }
            other => {
                let of = match self.field_type() {
                    Some(name) => name.to_string(),
                    None => format!("[]{}", asked_for(visitor.visit_seq(Ask))),
                };
                Err(self.mismatch(other.word(), &of))
            }
        }
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
        match self.token()? {
            Token::Object => self.map(None, visitor),
            Token::Null => {
                self.null()?;
                visitor.visit_map(Nothing)
            }
            other => {
                let of = match self.field_type() {
                    Some(name) => name.to_string(),
                    None => format!("map[string]{}", asked_for(visitor.visit_map(Ask))),
                };
                Err(self.mismatch(other.word(), &of))
            }
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.token()? {
            Token::Object => {
                let time = wanted_time(name, std::any::type_name::<V::Value>());
                self.map(
                    Some(Fields {
                        of: name,
                        names,
                        time,
                    }),
                    visitor,
                )
            }
            Token::Null => {
                self.null()?;
                visitor.visit_map(Nothing)
            }
            other => Err(self.mismatch(other.word(), &format!("v1.{name}"))),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let text = self.text(name)?;
        visitor.visit_enum(StrDeserializer::new(&text))
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.skip()?;
        visitor.visit_unit()
    }
}

/// A list or object with nothing in it: what `null` stands for.
struct Nothing;

impl<'de> SeqAccess<'de> for Nothing {
    type Error = Error;
    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, _: S) -> Result<Option<S::Value>, Error> {
        Ok(None)
    }
}

impl<'de> MapAccess<'de> for Nothing {
    type Error = Error;
    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, _: K) -> Result<Option<K::Value>, Error> {
        Ok(None)
    }
    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, _: S) -> Result<S::Value, Error> {
        Err(de::Error::custom("no value without a key"))
    }
}

/// Asks a visitor of a list or map what its elements are: they answer with an error that is their Go type.
struct Ask;

fn asked_for<T>(answer: Result<T, Error>) -> String {
    match answer {
        Ok(_) => "interface {}".into(),
        Err(e) => e.message().to_string(),
    }
}

impl<'de> SeqAccess<'de> for Ask {
    type Error = Error;
    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        seed.deserialize(Ask).map(Some)
    }
}

impl<'de> MapAccess<'de> for Ask {
    type Error = Error;
    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        seed.deserialize(BorrowedStrDeserializer::new("")).map(Some)
    }
    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        seed.deserialize(Ask)
    }
}

macro_rules! answers {
    ($($method:ident $of:literal;)*) => {$(
        fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            Err(de::Error::custom($of))
        }
    )*};
}

impl<'de> Deserializer<'de> for Ask {
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
        Err(de::Error::custom(format!(
            "[]{}",
            asked_for(visitor.visit_seq(Ask))
        )))
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
        Err(de::Error::custom(format!(
            "map[string]{}",
            asked_for(visitor.visit_map(Ask))
        )))
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
