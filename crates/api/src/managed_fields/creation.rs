//! What whoever creates an object holds of it: the fields that the kind's blank object does not have.
//!
//! Creations are what a busy cluster does most. This walks the encoding once, over a tree that borrows its text, and
//! builds nothing but the set. It says what [`super::typed::compare`] with the blank object says: the tests hold both
//! against each other.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};

use super::set::FieldSet;
use super::typed::{Form, Item, Type};

/// JSON that borrows what it can from its text.
#[derive(Debug)]
enum Json<'a> {
    Null,
    Bool(bool),
    Number(Number),
    String(Cow<'a, str>),
    List(Vec<Json<'a>>),
    Map(Vec<(Cow<'a, str>, Json<'a>)>),
}

impl<'a> Json<'a> {
    fn members(&self) -> &[(Cow<'a, str>, Json<'a>)] {
        match self {
            Json::Map(members) => members,
            _ => &[],
        }
    }

    fn items(&self) -> &[Json<'a>] {
        match self {
            Json::List(items) => items,
            _ => &[],
        }
    }

    fn is_bare(&self, type_: &Type<'_>) -> bool {
        if type_.is_map() {
            self.members().is_empty()
        } else {
            self.items().is_empty()
        }
    }

    fn scalar(&self) -> Option<Value> {
        Some(match self {
            Json::Bool(is) => Value::Bool(*is),
            Json::Number(number) => Value::Number(number.clone()),
            Json::String(text) => Value::String(text.to_string()),
            Json::Null | Json::List(_) | Json::Map(_) => return None,
        })
    }

    fn is(&self, other: &Value) -> bool {
        match (self, other) {
            (Json::Null, Value::Null) => true,
            (Json::Bool(a), Value::Bool(b)) => a == b,
            (Json::Number(a), Value::Number(b)) => a == b,
            (Json::String(a), Value::String(b)) => a == b,
            (Json::List(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is(b)),
            (Json::Map(a), Value::Object(b)) => {
                a.len() == b.len() && a.iter().all(|(key, a)| b.get(&**key).is_some_and(|b| a.is(b)))
            }
            _ => false,
        }
    }
}

impl Item for Json<'_> {
    fn form(&self) -> Form {
        match self {
            Json::Null => Form::Null,
            Json::List(_) => Form::List,
            Json::Map(_) => Form::Map,
            Json::Bool(_) | Json::Number(_) | Json::String(_) => Form::Scalar,
        }
    }

    fn member(&self, name: &str) -> Option<Cow<'_, Value>> {
        let (_, value) = self.members().iter().find(|(key, _)| key == name)?;
        // Keys of lists are scalars.
        Some(Cow::Owned(value.scalar().unwrap_or_default()))
    }

    fn text(&self) -> String {
        self.scalar().unwrap_or_default().to_string()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Json<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(AnyJson)
    }
}

struct AnyJson;

impl<'de> Visitor<'de> for AnyJson {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json<'de>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, is: bool) -> Result<Json<'de>, E> {
        Ok(Json::Bool(is))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Json<'de>, E> {
        Ok(Json::Number(number.into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Json<'de>, E> {
        Ok(Json::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Json<'de>, E> {
        Ok(Number::from_f64(number).map_or(Json::Null, Json::Number))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Json<'de>, E> {
        Ok(Json::String(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json<'de>, E> {
        Ok(Json::String(Cow::Owned(text.to_string())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Json<'de>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = from.next_element()? {
            items.push(item);
        }
        Ok(Json::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Json<'de>, A::Error> {
        let mut members = Vec::new();
        while let Some((Key(key), value)) = from.next_entry()? {
            members.push((key, value));
        }
        Ok(Json::Map(members))
    }
}

/// A member's name.
struct Key<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Key<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match Json::deserialize(from)? {
            Json::String(key) => Ok(Key(key)),
            _ => Err(serde::de::Error::custom("a member's name must be a string")),
        }
    }
}

/// The fields of the object `json` that `blank` does not have, or has at another value.
///
/// # Errors
///
/// Where `json` is no JSON.
pub fn fields_beyond(type_: Type<'_>, blank: &Value, json: &[u8]) -> Result<FieldSet, serde_json::Error> {
    let new: Json<'_> = serde_json::from_slice(json)?;
    Ok(walk(type_, Some(blank), &new).1)
}

/// Whether the place itself counts, and what is behind it.
fn walk(type_: Type<'_>, blank: Option<&Value>, new: &Json<'_>) -> (bool, FieldSet) {
    let mut set = FieldSet::default();
    if blank.is_some_and(|blank| new.is(blank)) {
        return (false, set);
    }
    // A blank object has nothing in what is not a struct.
    let is_leaf = !(type_.is_map() || type_.is_list());
    if is_leaf || (new.is_bare(&type_) && blank.is_none_or(is_empty)) {
        return (true, set);
    }
    if type_.is_map() {
        for (key, value) in new.members() {
            let field = type_.field(key).unwrap_or(Type::Leaf);
            let (own, behind) = walk(field, blank.and_then(|b| b.get(&**key)), value);
            set.add(format!("f:{key}"), own, behind);
        }
    } else {
        for (element, items) in type_.items(new.items()) {
            let behind = match items[..] {
                [one] => walk(type_.item(), None, one).1,
                _ => FieldSet::default(),
            };
            set.add(element, true, behind);
        }
    }
    (blank.is_none(), set)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => true,
    }
}
