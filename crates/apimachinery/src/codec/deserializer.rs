//! The serde deserializer: structs, maps, lists and scalars for `k8s-openapi`'s types.

use std::borrow::Cow;

use serde::de::value::{BorrowedStrDeserializer, CowStrDeserializer, StrDeserializer};
use serde::de::{self, Deserializer, Visitor};

use super::access::{Elements, Fields, Members};
use super::encode::FIELDS_V1;
use super::reader::{Error, PathElement, Reader, Token};
use super::{go, time};
use crate::descriptors::{self, Go, Place, TypeDescriptor};
use crate::quantity;

impl<'de> Reader<'de> {
    /// The type's name for errors: the field's own one, else the one that `visitor` expects.
    fn field_type(&self) -> Option<String> {
        let name = |of: &Go| of.is_renamed().then(|| of.text());
        match self.path.as_slice() {
            [.., PathElement::Field(_, Some(field))] => name(field.of.pointed()),
            [.., PathElement::Field(_, Some(field)), PathElement::Index(_)] => match field.of.pointed() {
                Go::List(item) => name(item.pointed()),
                _ => None,
            },
            _ => None,
        }
    }

    /// The Go type of the field whose value is next: `[]v2.MetricSpec`.
    fn go_type(&self) -> Option<String> {
        match self.path.last() {
            Some(PathElement::Field(_, Some(field))) => Some(field.of.pointed().text()),
            _ => None,
        }
    }

    /// Fails unless the next value is `expected` (or null); `of` names the Go type.
    fn expect(&mut self, expected: Token, of: &str) -> Result<Token, Error> {
        let token = self.token()?;
        if token == expected || token == Token::Null {
            Ok(token)
        } else {
            let of = self
                .field_type()
                .filter(|_| expected == Token::String)
                .unwrap_or_else(|| of.to_string());
            Err(self.mismatch(token.name(), &of))
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

    /// Reads an object, or null as an empty one.
    fn map<V: Visitor<'de>>(
        &mut self,
        fields: Option<Fields>,
        is_null: bool,
        visitor: V,
    ) -> Result<V::Value, Error> {
        let (outer, outer_place) = (self.inside, self.place);
        let depth = self.path.len();
        let value = visitor.visit_map(self.members(fields, is_null)?)?;
        self.path.truncate(depth);
        (self.inside, self.place) = (outer, outer_place);
        Ok(value)
    }

    fn members<'a>(&'a mut self, fields: Option<Fields>, is_null: bool) -> Result<Members<'a, 'de>, Error> {
        if is_null {
            self.null()?;
        } else {
            if let Some(fields) = &fields {
                self.inside = fields.name;
                self.place = fields.of.map_or(Place::Unknown, Place::Below);
            }
            self.enter()?;
        }
        let mut members = Members::new(self);
        members.pending_time = fields
            .as_ref()
            .and_then(Fields::required_time)
            .filter(|_| !is_null);
        members.fields = fields;
        members.finished = is_null;
        Ok(members)
    }

    /// Reads a list, or null as an empty one.
    fn seq<V: Visitor<'de>>(&mut self, is_null: bool, visitor: V) -> Result<V::Value, Error> {
        let value = visitor.visit_seq(self.elements(is_null)?)?;
        if !is_null {
            self.path.pop();
        }
        Ok(value)
    }

    fn elements<'a>(&'a mut self, is_null: bool) -> Result<Elements<'a, 'de>, Error> {
        if is_null {
            self.null()?;
        } else {
            self.enter()?;
            self.path.push(PathElement::Index(0));
        }
        let mut elements = Elements::new(self);
        elements.finished = is_null;
        Ok(elements)
    }

    /// The fields of the struct that comes next, and whether it is null.
    fn struct_fields(
        &mut self,
        name: &'static str,
        names: &'static [&'static str],
    ) -> Result<(Fields, bool), Error> {
        let of = match self.place {
            Place::Unknown => descriptors::of_struct(name, names),
            place => place.of_struct(name),
        };
        let fields = Fields { name, of, names };
        match self.token()? {
            Token::Object => Ok((fields, false)),
            Token::Null => Ok((fields, true)),
            Token::Asked => Err(self.mismatch("", &format!("v1.{name}"))),
            other => {
                let of = of.map_or_else(|| format!("v1.{name}"), TypeDescriptor::go_name);
                Err(self.mismatch(other.name(), &of))
            }
        }
    }

    /// The next value is null, which is read.
    fn takes_null(&mut self) -> Result<bool, Error> {
        let token = self.token()?;
        if token == Token::Asked {
            // Only bytes are read as optional without being a field.
            return Err(self.mismatch("", "[]uint8"));
        }
        let is_null = token == Token::Null;
        if is_null {
            self.null()?;
        }
        Ok(is_null)
    }
}

/// Visits a number that has no declared type.
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
            let of = self.field_type();
            let value: $t = self.integer(of.as_deref().unwrap_or($of))?;
            visitor.$visit(value)
        }
    )*};
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let token = self.token()?;
        let result = match token {
            Token::Asked => return Err(self.mismatch("", "interface {}")),
            Token::Null => self.null().and_then(|()| visitor.visit_unit()),
            Token::Bool => self.bool().and_then(|b| visitor.visit_bool(b)),
            Token::Number => {
                let text = self.number()?;
                // A visitor that takes numbers but not this one is that of an IntOrString.
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
            Token::Array => self.seq(false, visitor),
            Token::Object => self.map(None, false, visitor),
        };
        let is_scalar = !matches!(token, Token::Array | Token::Object);
        result.map_err(|e| match is_scalar || e.is_rejection() {
            true => self.error(format!(
                "json: cannot unmarshal {} into Go value of type int32",
                token.name()
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
            // The only visitor that rejects a string for its content reads base64.
            let base64 = [
                "Invalid symbol",
                "Invalid padding",
                "Invalid input length",
                "Invalid last symbol",
            ];
            if base64.iter().any(|message| e.message().starts_with(message)) {
                self.error(go::base64_error(&shown)).of_base64()
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
        match self.takes_null()? {
            true => visitor.visit_none(),
            false => visitor.visit_some(self),
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
        self.answer(|| match name {
            "Quantity" => "resource.Quantity".into(),
            other => format!("v1.{other}"),
        })?;
        if std::mem::take(&mut self.unset_time) {
            // An absent time: Go's zero time, which is written as null again.
            return visitor.visit_newtype_struct(BorrowedStrDeserializer::<Error>::new(time::ZERO));
        }
        let layout = match name {
            "Quantity" => {
                // Kubernetes reads the raw text: a number is accepted like a string.
                let text = match self.token()? {
                    Token::Null => self.null().map(|()| Cow::Borrowed("0"))?,
                    Token::String => self.string()?,
                    _ => Cow::Borrowed(self.raw()?),
                };
                let text = quantity::canonical_text(text.trim()).map_err(|e| self.error(e))?;
                return visitor.visit_string(text);
            }
            // Kept as text, see `managed_fields::text`.
            FIELDS_V1 if self.token()? == Token::Object => {
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
                token.name()
            )));
        }
        let text = self.string()?;
        let text = time::normal(&text, layout).map_err(|e| self.error(e.to_string()))?;
        visitor
            .visit_newtype_struct(CowStrDeserializer::<Error>::new(text))
            .map_err(|e| self.error(e.message()))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.token()? {
            Token::Array => self.seq(false, visitor),
            Token::Null => self.seq(true, visitor),
            other => {
                let of = match self.go_type().or_else(|| self.field_type()) {
                    Some(name) => name,
                    None => format!(
                        "[]{}",
                        self.ask(|reader| visitor.visit_seq(Elements::new(reader)))
                    ),
                };
                Err(self.mismatch(other.name(), &of))
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
            Token::Object => self.map(None, false, visitor),
            Token::Null => self.map(None, true, visitor),
            other => {
                let of = match self.go_type().or_else(|| self.field_type()) {
                    Some(name) => name,
                    None => format!(
                        "map[string]{}",
                        self.ask(|reader| visitor.visit_map(Members::new(reader)))
                    ),
                };
                Err(self.mismatch(other.name(), &of))
            }
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let (fields, is_null) = self.struct_fields(name, names)?;
        self.map(Some(fields), is_null, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.answer(|| format!("v1.{name}"))?;
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
