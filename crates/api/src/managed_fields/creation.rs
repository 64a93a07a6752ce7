//! What whoever creates an object holds of it: the fields that the kind's blank object does not have.
//!
//! Creations are what a busy cluster does most. This walks the encoding once, over a tree that borrows its text, and
//! writes the set down as it goes. It says what [`super::typed::compare`] with the blank object says: the tests hold both
//! against each other.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};

use super::set::{FieldSet, Node, owns};
use super::text::Writer;
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

/// The fields of the object `json` that `blank` does not have, or has at another value, as text; empty where there are
/// none. Left out are what is in `reset` and all behind it, and what is in `stripped`.
///
/// # Errors
///
/// Where `json` is no JSON.
pub(super) fn fields_beyond(
    type_: Type<'_>,
    blank: &Value,
    json: &[u8],
    reset: &FieldSet,
    stripped: &FieldSet,
) -> Result<String, serde_json::Error> {
    let new: Json<'_> = serde_json::from_slice(json)?;
    let mut out = Writer::new();
    let without = Without {
        all_behind: Some(reset.root()),
        itself: Some(stripped.root()),
    };
    walk(type_, Some(blank), &new, without, &mut out);
    Ok(match out.is_empty() {
        true => String::new(),
        false => out.finish(),
    })
}

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

    fn behind(self, form: &str, element: &str) -> Without<'a> {
        if self.all_behind.is_none() && self.itself.is_none() {
            return Without::NOTHING;
        }
        let element = [form, element].concat();
        let of = |node: Option<&'a Node>| node?.get(&element)?.as_object();
        Without {
            all_behind: of(self.all_behind),
            itself: of(self.itself),
        }
    }
}

/// Writes what is behind a place, and says whether the place itself counts.
fn walk(
    type_: Type<'_>,
    blank: Option<&Value>,
    new: &Json<'_>,
    without: Without<'_>,
    out: &mut Writer,
) -> bool {
    if blank.is_some_and(|blank| new.is(blank)) {
        return false;
    }
    let type_ = type_.settle_as(new.form());
    // A blank object has nothing in what is not a struct.
    let is_leaf = !(type_.is_map() || type_.is_list());
    if is_leaf || (new.is_bare(&type_) && blank.is_none_or(is_empty)) {
        return true;
    }
    if type_.is_map() {
        let mut members: Vec<&(Cow<'_, str>, Json<'_>)> = new.members().iter().collect();
        // Most are in order already.
        members.sort_by(|a, b| a.0.cmp(&b.0));
        for (key, value) in members {
            let without = without.behind("f:", key);
            if without.all_behind.is_some_and(owns) {
                continue;
            }
            let field = type_.field(key).unwrap_or(Type::Leaf);
            let element = out.begin("f:", key);
            let own = walk(field, blank.and_then(|b| b.get(&**key)), value, without, out);
            out.end(&element, own && !without.itself.is_some_and(owns));
        }
    } else {
        let items = new.items().iter();
        let mut items: Vec<(String, &Json<'_>)> = items
            .filter_map(|item| Some((type_.element(item).ok()?, item)))
            .collect();
        items.sort_by(|a, b| a.0.cmp(&b.0));
        for same in items.chunk_by(|a, b| a.0 == b.0) {
            let Some((name, one)) = same.first() else { continue };
            let without = without.behind("", name);
            if without.all_behind.is_some_and(owns) {
                continue;
            }
            let element = out.begin("", name);
            if same.len() == 1 {
                walk(type_.item(), None, one, without, out);
            }
            out.end(&element, !without.itself.is_some_and(owns));
        }
    }
    blank.is_none()
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => true,
    }
}
