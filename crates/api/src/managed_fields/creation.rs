//! What whoever creates an object holds of it: the fields that the kind's blank object does not have.
//!
//! Creations are what a busy cluster does most. This has the object serialize itself and writes the set down meanwhile:
//! no tree is built of either and no text is read, and values that count as a whole are not looked at. It says what
//! [`super::typed::compare`] with the blank object says: the tests hold both against each other.

use std::borrow::Cow;
use std::ops::Range;

use serde::Serialize;
use serde::ser::{Error as _, Impossible, SerializeMap, SerializeSeq, SerializeStruct, Serializer};
use serde_json::{Error, Map, Value};

use super::set::{FieldSet, Node, owns};
use super::text::Writer;
use super::typed::{self, Form, Item, Type};
use crate::object::AnyObject;

/// The fields of `object` that `blank` does not have, or has at another value, as text; empty where there are none.
/// Left out are what is in `reset` and all behind it, and what is in `stripped`; both name fields only, no items of
/// lists.
///
/// # Errors
///
/// Where the object does not serialize.
pub(super) fn fields_beyond(
    type_: Type<'_>,
    blank: &Value,
    object: &dyn AnyObject,
    reset: &FieldSet,
    stripped: &FieldSet,
) -> Result<String, Error> {
    let mut out = Writer::with_capacity(TEXT_BYTES);
    object.walk(Walk {
        type_,
        blank: Some(blank),
        without: Without {
            all_behind: Some(reset.root()),
            itself: Some(stripped.root()),
        },
        keys: None,
        out: &mut out,
    })?;
    Ok(match out.is_empty() {
        true => String::new(),
        false => out.finish(),
    })
}

/// Room that most sets fit into.
const TEXT_BYTES: usize = 2048;

/// What is left out from here on, of two sets.
#[derive(Clone, Copy)]
struct Without<'a> {
    all_behind: Option<&'a Node>,
    itself: Option<&'a Node>,
}

impl<'a> Without<'a> {
    const NOTHING: Without<'static> = Without {
        all_behind: None,
        itself: None,
    };

    fn behind(self, field: &str) -> Without<'a> {
        if self.all_behind.is_none() && self.itself.is_none() {
            return Without::NOTHING;
        }
        let element = ["f:", field].concat();
        let of = |node: Option<&'a Node>| node?.get(&element)?.as_object();
        Without {
            all_behind: of(self.all_behind),
            itself: of(self.itself),
        }
    }
}

/// What came of a value.
pub enum Found {
    /// The blank object has the same here; nothing was written.
    Same,
    /// What is behind was written. `own`: the place itself counts too.
    Beyond { own: bool },
}

/// Where one value is written down that serializes itself into this.
pub struct Walk<'a, 'w> {
    type_: Type<'a>,
    /// A blank object has nothing in what is not a struct.
    blank: Option<&'a Value>,
    without: Without<'a>,
    /// Where the members are kept by which an item of a list is told from others.
    keys: Option<&'w mut Keys<'a>>,
    out: &'w mut Writer,
}

/// What an item of a list is told from others by: its form, and the members that are its keys.
pub struct Keys<'k> {
    of_list: &'k [(&'k str, Option<Value>)],
    form: Form,
    members: Vec<(&'k str, Value)>,
    scalar: Option<Value>,
}

impl<'k> Keys<'k> {
    fn new(of_list: &'k [(&'k str, Option<Value>)]) -> Self {
        Keys {
            of_list,
            form: Form::Null,
            members: Vec::new(),
            scalar: None,
        }
    }

    /// Of an item that counts as one value all the same.
    fn keep(&mut self, members: Map<String, Value>) {
        let members = members.into_iter();
        let wanted = members.filter_map(|(name, value)| Some((self.wanted(&name)?, value)));
        self.members = wanted.collect();
    }

    fn wanted(&self, member: &str) -> Option<&'k str> {
        self.of_list
            .iter()
            .map(|(key, _)| *key)
            .find(|key| *key == member)
    }
}

impl Item for Keys<'_> {
    fn form(&self) -> Form {
        self.form
    }

    fn member(&self, name: &str) -> Option<Cow<'_, Value>> {
        let (_, value) = self.members.iter().find(|(key, _)| *key == name)?;
        Some(Cow::Borrowed(value))
    }

    fn text(&self) -> String {
        self.scalar.as_ref().map(Value::to_string).unwrap_or_default()
    }
}

impl<'a, 'w> Walk<'a, 'w> {
    /// Takes in the value of this place.
    fn take<T: Serialize + ?Sized>(self, value: &T) -> Result<Found, Error> {
        match self.type_ {
            Type::Leaf if self.blank.is_none() && self.keys.is_none() => Ok(Found::Beyond { own: true }),
            _ => value.serialize(self),
        }
    }

    /// What is no map or list, or is none to its type: it counts as one value.
    fn whole(self, form: Form, value: Value) -> Found {
        let found = if self.blank == Some(&value) {
            Found::Same
        } else {
            let type_ = self.type_.settle_as(form);
            match type_.is_map() || type_.is_list() {
                true => beyond(self.blank, true),
                false => Found::Beyond { own: true },
            }
        };
        if let Some(keys) = self.keys {
            keys.form = form;
            match value {
                Value::Object(members) => keys.keep(members),
                scalar => keys.scalar = Some(scalar),
            }
        }
        found
    }

    fn list(mut self) -> List<'a, 'w> {
        self.type_ = self.type_.settle_as(Form::List);
        if !self.type_.is_list() {
            return List::Whole(self, Vec::new());
        }
        if let Some(keys) = &mut self.keys {
            keys.form = Form::List;
        }
        List::Items {
            keys: self.type_.keys(),
            begin: self.out.len(),
            walk: self,
            count: 0,
            items: Vec::new(),
        }
    }

    fn map(mut self) -> Members<'a, 'w> {
        self.type_ = self.type_.settle_as(Form::Map);
        let whole = (!self.type_.is_map()).then(Map::new);
        if let (None, Some(keys)) = (&whole, &mut self.keys) {
            keys.form = Form::Map;
        }
        Members {
            begin: self.out.len(),
            walk: self,
            whole,
            named: None,
            last: Cow::Borrowed(""),
            count: 0,
            in_order: true,
            same: true,
        }
    }
}

/// A map or list that is not as in the blank object; a bare one counts where the blank object's is as bare.
fn beyond(blank: Option<&Value>, is_bare: bool) -> Found {
    Found::Beyond {
        own: blank.is_none_or(|blank| is_bare && is_empty(blank)),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => true,
    }
}

/// A list that is being written down.
pub enum List<'a, 'w> {
    /// One value to its type.
    Whole(Walk<'a, 'w>, Vec<Value>),
    Items {
        walk: Walk<'a, 'w>,
        keys: Option<Vec<(&'a str, Option<Value>)>>,
        begin: usize,
        count: usize,
        /// The elements found so far, each with where its text is.
        items: Vec<(String, Range<usize>)>,
    },
}

impl List<'_, '_> {
    fn item<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        match self {
            List::Whole(_, items) => items.push(serde_json::to_value(value)?),
            List::Items {
                walk,
                keys,
                count,
                items,
                ..
            } => {
                *count += 1;
                let keys = keys.as_deref();
                let mut item = Keys::new(keys.unwrap_or_default());
                let at = walk.out.len();
                let place = Walk {
                    type_: walk.type_.item(),
                    blank: None,
                    without: Without::NOTHING,
                    keys: Some(&mut item),
                    out: &mut *walk.out,
                };
                place.take(value)?;
                // Items that have no path element are left out.
                if let Ok(element) = typed::element(keys, &item) {
                    items.push((element, at..walk.out.len()));
                }
            }
        }
        Ok(())
    }

    fn finish(self) -> Found {
        match self {
            List::Whole(walk, items) => walk.whole(Form::List, Value::Array(items)),
            List::Items {
                walk,
                begin,
                count,
                items,
                ..
            } => {
                walk.out.name(begin, items);
                match walk.blank {
                    Some(Value::Array(blank)) if count == 0 && blank.is_empty() => Found::Same,
                    blank => beyond(blank, count == 0),
                }
            }
        }
    }
}

/// A map or struct that is being written down.
pub struct Members<'a, 'w> {
    walk: Walk<'a, 'w>,
    /// What it is, where it is one value to its type.
    whole: Option<Map<String, Value>>,
    begin: usize,
    /// A member of a map whose value is to come.
    named: Option<String>,
    /// The member before.
    last: Cow<'static, str>,
    count: usize,
    in_order: bool,
    /// As in the blank object so far.
    same: bool,
}

impl Members<'_, '_> {
    fn member<T: Serialize + ?Sized>(&mut self, name: Cow<'static, str>, value: &T) -> Result<(), Error> {
        if let Some(whole) = &mut self.whole {
            whole.insert(name.into_owned(), serde_json::to_value(value)?);
            return Ok(());
        }
        self.count += 1;
        self.in_order &= self.last <= name;
        let walk = &mut self.walk;
        let blank = walk.blank.and_then(|blank| blank.get(&*name));
        let without = walk.without.behind(&name);
        if without.all_behind.is_some_and(owns) {
            self.same = self.same && blank.is_some() && blank == Some(&serde_json::to_value(value)?);
            self.last = name;
            return Ok(());
        }
        let element = walk.out.begin("f:", &name);
        let key = walk
            .keys
            .as_deref_mut()
            .and_then(|keys| Some((keys.wanted(&name)?, keys)));
        let found = match key {
            Some((key, keys)) => {
                keys.members.push((key, serde_json::to_value(value)?));
                Found::Beyond { own: true }
            }
            None => Walk {
                type_: walk.type_.field(&name).unwrap_or(Type::Leaf),
                blank,
                without,
                keys: None,
                out: &mut *walk.out,
            }
            .take(value)?,
        };
        let own = match found {
            Found::Same => false,
            Found::Beyond { own } => {
                self.same = false;
                own && !without.itself.is_some_and(owns)
            }
        };
        walk.out.end(&element, own);
        self.last = name;
        Ok(())
    }

    fn finish(self) -> Found {
        let walk = self.walk;
        if let Some(whole) = self.whole {
            return walk.whole(Form::Map, Value::Object(whole));
        }
        if !self.in_order {
            walk.out.sort(self.begin);
        }
        match walk.blank {
            Some(Value::Object(blank)) if self.same && blank.len() == self.count => Found::Same,
            blank => beyond(blank, self.count == 0),
        }
    }
}

macro_rules! scalars {
    ($($method:ident($t:ty);)*) => {$(
        fn $method(self, v: $t) -> Result<Found, Error> {
            Ok(self.whole(Form::Scalar, v.into()))
        }
    )*};
}

impl<'a, 'w> Serializer for Walk<'a, 'w> {
    type Ok = Found;
    type Error = Error;
    type SerializeSeq = List<'a, 'w>;
    type SerializeTuple = Impossible<Found, Error>;
    type SerializeTupleStruct = Impossible<Found, Error>;
    type SerializeTupleVariant = Impossible<Found, Error>;
    type SerializeMap = Members<'a, 'w>;
    type SerializeStruct = Members<'a, 'w>;
    type SerializeStructVariant = Impossible<Found, Error>;

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
        serialize_f64(f64);
        serialize_str(&str);
        serialize_bytes(&[u8]);
    }

    fn serialize_char(self, v: char) -> Result<Found, Error> {
        Ok(self.whole(Form::Scalar, v.to_string().into()))
    }

    fn serialize_unit(self) -> Result<Found, Error> {
        Ok(self.whole(Form::Null, Value::Null))
    }

    fn serialize_none(self) -> Result<Found, Error> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Found, Error> {
        value.serialize(self)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Found, Error> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<Found, Error> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Found, Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: &T,
    ) -> Result<Found, Error> {
        Err(unexpected(variant))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<List<'a, 'w>, Error> {
        Ok(self.list())
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, Error> {
        Err(unexpected("tuple"))
    }

    fn serialize_tuple_struct(
        self,
        name: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleStruct, Error> {
        Err(unexpected(name))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, Error> {
        Err(unexpected(variant))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Members<'a, 'w>, Error> {
        Ok(self.map())
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Members<'a, 'w>, Error> {
        Ok(self.map())
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, Error> {
        Err(unexpected(variant))
    }
}

/// No type of Kubernetes is written as a tuple or as a variant with fields.
fn unexpected(what: &str) -> Error {
    Error::custom(format!("unexpected {what}"))
}

impl SerializeSeq for List<'_, '_> {
    type Ok = Found;
    type Error = Error;
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.item(value)
    }
    fn end(self) -> Result<Found, Error> {
        Ok(self.finish())
    }
}

impl SerializeStruct for Members<'_, '_> {
    type Ok = Found;
    type Error = Error;
    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Error> {
        self.member(Cow::Borrowed(key), value)
    }
    fn end(self) -> Result<Found, Error> {
        Ok(self.finish())
    }
}

impl SerializeMap for Members<'_, '_> {
    type Ok = Found;
    type Error = Error;
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        match serde_json::to_value(key)? {
            Value::String(name) => self.named = Some(name),
            other => {
                return Err(Error::custom(format!(
                    "{other} names a member, expected a string"
                )));
            }
        }
        Ok(())
    }
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let name = self.named.take().unwrap_or_default();
        self.member(Cow::Owned(name), value)
    }
    fn end(self) -> Result<Found, Error> {
        Ok(self.finish())
    }
}
