//! What whoever creates an object holds of it: the fields that the kind's blank object does not have.
//!
//! Creations are what a busy cluster does most. This reads the encoding once and writes the set down while it reads: no
//! tree is built of either. It says what [`super::typed::compare`] with the blank object says: the tests hold both against
//! each other.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Value};

use super::set::{FieldSet, Node, owns};
use super::text::Writer;
use super::typed::{self, Form, Item, Type};

/// The fields of the object `json` that `blank` does not have, or has at another value, as text; empty where there are
/// none. Left out are what is in `reset` and all behind it, and what is in `stripped`; both name fields only, no items
/// of lists.
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
    let text = std::str::from_utf8(json).map_err(de::Error::custom)?;
    // Names of fields are about a third of most objects.
    let mut out = Writer::with_capacity(json.len() / 2);
    let walk = Walk {
        type_,
        blank: Some(blank),
        without: Without {
            all_behind: Some(reset.root()),
            itself: Some(stripped.root()),
        },
        keys: None,
        out: &mut out,
    };
    let mut from = serde_json::Deserializer::from_str(text);
    walk.deserialize(&mut from)?;
    from.end()?;
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

/// What reading a value came to.
enum Found {
    /// The blank object has the same here; nothing was written.
    Same,
    /// What is behind was written. `own`: the place itself counts too.
    Beyond { own: bool },
}

/// Reads one value, and writes what is behind its place.
struct Walk<'a, 'w> {
    type_: Type<'a>,
    /// A blank object has nothing in what is not a struct.
    blank: Option<&'a Value>,
    without: Without<'a>,
    /// Where the members are kept by which an item of a list is told from others.
    keys: Option<&'w mut Keys<'a>>,
    out: &'w mut Writer,
}

/// What an item of a list is told from others by: its form, and the members that are its keys.
struct Keys<'k> {
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

impl<'de> DeserializeSeed<'de> for Walk<'_, '_> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Found, D::Error> {
        if matches!(self.type_, Type::Leaf) && self.blank.is_none() && self.keys.is_none() {
            IgnoredAny::deserialize(from)?;
            return Ok(Found::Beyond { own: true });
        }
        from.deserialize_any(self)
    }
}

impl Walk<'_, '_> {
    /// What is no map or list, or is none to its type: it counts as one value.
    fn whole(mut self, form: Form, value: impl Fn() -> Value) -> Found {
        if let Some(keys) = self.keys.take() {
            keys.form = form;
            keys.scalar = Some(value());
        }
        if self.blank.is_some_and(|blank| *blank == value()) {
            return Found::Same;
        }
        let type_ = self.type_.settle_as(form);
        let is_leaf = !(type_.is_map() || type_.is_list());
        match is_leaf {
            true => Found::Beyond { own: true },
            false => beyond(self.blank, true),
        }
    }
}

/// A map or list that is not as in the blank object; a bare one counts where the blank object's is as bare.
fn beyond(blank: Option<&Value>, is_bare: bool) -> Found {
    Found::Beyond {
        own: blank.is_none_or(|blank| is_bare && is_empty(blank)),
    }
}

impl<'de> Visitor<'de> for Walk<'_, '_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Found, E> {
        Ok(self.whole(Form::Null, || Value::Null))
    }

    fn visit_bool<E>(self, is: bool) -> Result<Found, E> {
        Ok(self.whole(Form::Scalar, || Value::Bool(is)))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Found, E> {
        Ok(self.whole(Form::Scalar, || number.into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Found, E> {
        Ok(self.whole(Form::Scalar, || number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Found, E> {
        Ok(self.whole(Form::Scalar, || number.into()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Found, E> {
        Ok(self.whole(Form::Scalar, || text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Found, A::Error> {
        let type_ = self.type_.settle_as(Form::List);
        if !type_.is_list() {
            let mut list = Vec::new();
            while let Some(item) = from.next_element()? {
                list.push(item);
            }
            let list = Value::Array(list);
            return Ok(self.whole(Form::List, || list.clone()));
        }
        if let Some(keys) = self.keys {
            keys.form = Form::List;
        }
        let keys = type_.keys();
        let begin = self.out.len();
        let mut count = 0;
        let mut items: Vec<(String, Range<usize>)> = Vec::new();
        loop {
            let mut item = Keys::new(keys.as_deref().unwrap_or_default());
            let at = self.out.len();
            let walk = Walk {
                type_: type_.item(),
                blank: None,
                without: Without::NOTHING,
                keys: Some(&mut item),
                out: &mut *self.out,
            };
            if from.next_element_seed(walk)?.is_none() {
                break;
            }
            count += 1;
            // Items that have no path element are left out.
            if let Ok(element) = typed::element(keys.as_deref(), &item) {
                items.push((element, at..self.out.len()));
            }
        }
        self.out.name(begin, items);
        if count == 0 && self.blank == Some(&Value::Array(Vec::new())) {
            return Ok(Found::Same);
        }
        Ok(beyond(self.blank, count == 0))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Found, A::Error> {
        let type_ = self.type_.settle_as(Form::Map);
        if !type_.is_map() {
            let mut map = Map::new();
            while let Some((key, value)) = from.next_entry::<String, Value>()? {
                map.insert(key, value);
            }
            let map = Value::Object(map);
            return Ok(self.whole(Form::Map, || map.clone()));
        }
        let mut keys = self.keys;
        if let Some(keys) = &mut keys {
            keys.form = Form::Map;
        }
        let begin = self.out.len();
        let mut last: Cow<'_, str> = Cow::Borrowed("");
        let (mut count, mut in_order, mut same) = (0, true, true);
        while let Some(Key(key)) = from.next_key()? {
            count += 1;
            in_order &= last <= key;
            let blank = self.blank.and_then(|blank| blank.get(&*key));
            let without = self.without.behind(&key);
            if without.all_behind.is_some_and(owns) {
                let value: Value = from.next_value()?;
                same &= blank == Some(&value);
                last = key;
                continue;
            }
            let element = self.out.begin("f:", &key);
            let found = match keys
                .as_deref_mut()
                .and_then(|keys| Some((keys.wanted(&key)?, keys)))
            {
                Some((name, keys)) => {
                    keys.members.push((name, from.next_value()?));
                    Found::Beyond { own: true }
                }
                None => from.next_value_seed(Walk {
                    type_: type_.field(&key).unwrap_or(Type::Leaf),
                    blank,
                    without,
                    keys: None,
                    out: &mut *self.out,
                })?,
            };
            let own = match found {
                Found::Same => false,
                Found::Beyond { own } => {
                    same = false;
                    own && !without.itself.is_some_and(owns)
                }
            };
            self.out.end(&element, own);
            last = key;
        }
        if !in_order {
            self.out.sort(begin);
        }
        let of_blank = self.blank.and_then(Value::as_object);
        if same && of_blank.is_some_and(|blank| blank.len() == count) {
            return Ok(Found::Same);
        }
        Ok(beyond(self.blank, count == 0))
    }
}

/// A member's name.
struct Key<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Key<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Name;
        impl<'de> Visitor<'de> for Name {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a member's name")
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(name)))
            }

            fn visit_str<E>(self, name: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(name.to_string())))
            }
        }
        from.deserialize_str(Name)
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => true,
    }
}
