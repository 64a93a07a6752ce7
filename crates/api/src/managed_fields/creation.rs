//! The fields that the creator of an object owns: those that the kind's blank object does not have.
//!
//! Creations are frequent in a busy cluster. The object serializes itself, and the set is written meanwhile:
//! no tree is built of either, no text is read, and atomic values are not traversed. The result is that of
//! [`super::values::compare`] with the blank object: the tests compare both.

mod keys;

use std::borrow::Cow;
use std::ops::Range;

use knarr_apimachinery::codec::to_plain_value;
use serde::Serialize;
use serde::ser::{Error as _, Impossible, SerializeMap, SerializeSeq, SerializeStruct, Serializer};
use serde_json::{Error, Map, Value};

use super::set::{FieldSet, Node, owns};
use super::text::{Element, Writer};
use super::typed::{self, Form, Type};
use keys::Keys;

/// The fields of the object that `serialize` writes and that `blank` does not have, or has at another value, as text; empty where there
/// are none.
/// Without the fields in `reset` and all below them, and without those in `stripped`; both name fields only, no items of
/// lists.
///
/// # Errors
///
/// If the object does not serialize.
pub(super) fn created_fields(
    type_: Type<'_>,
    blank: &Value,
    serialize: impl FnOnce(FieldSetSerializer<'_, '_>) -> Result<Ownership, Error>,
    reset: &FieldSet,
    stripped: &FieldSet,
) -> Result<String, Error> {
    let mut out = Writer::with_capacity(TEXT_BYTES);
    serialize(FieldSetSerializer {
        type_,
        blank: Some(blank),
        without: ExcludedFields {
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

/// The rest of the two sets of fields to leave out, below the current path.
#[derive(Clone, Copy)]
struct ExcludedFields<'a> {
    all_behind: Option<&'a Node>,
    itself: Option<&'a Node>,
}

impl<'a> ExcludedFields<'a> {
    const NOTHING: ExcludedFields<'static> = ExcludedFields {
        all_behind: None,
        itself: None,
    };

    fn below(self, field: &str) -> ExcludedFields<'a> {
        if self.all_behind.is_none() && self.itself.is_none() {
            return ExcludedFields::NOTHING;
        }
        let element = ["f:", field].concat();
        let of = |node: Option<&'a Node>| node?.get(&element)?.as_object();
        ExcludedFields {
            all_behind: of(self.all_behind),
            itself: of(self.itself),
        }
    }
}

/// The result for a value.
pub enum Ownership {
    /// The blank object has the same value; nothing was written.
    Same,
    /// The paths below were written. `own`: the path itself is owned, too.
    Written { own: bool },
}

/// A serializer that writes the field set of one value.
pub struct FieldSetSerializer<'a, 'w> {
    type_: Type<'a>,
    /// `None` below lists and maps, which a blank object does not have.
    blank: Option<&'a Value>,
    without: ExcludedFields<'a>,
    /// Receives the key fields of a list item.
    keys: Option<&'w mut Keys<'a>>,
    out: &'w mut Writer,
}

impl<'a, 'w> FieldSetSerializer<'a, 'w> {
    /// Serializes the value at this path.
    fn take<T: Serialize + ?Sized>(self, value: &T) -> Result<Ownership, Error> {
        match self.type_ {
            Type::Leaf if self.blank.is_none() && self.keys.is_none() => Ok(Ownership::Written { own: true }),
            _ => value.serialize(self),
        }
    }

    /// An atomic value: a scalar, or a map or list that is atomic by its type.
    fn atomic(self, form: Form, value: Value) -> Ownership {
        let found = if self.blank == Some(&value) {
            Ownership::Same
        } else {
            let type_ = self.type_.resolve_as(form);
            match type_.is_map() || type_.is_list() {
                true => written(self.blank, true),
                false => Ownership::Written { own: true },
            }
        };
        if let Some(keys) = self.keys {
            keys.set_value(form, value);
        }
        found
    }

    fn list(mut self) -> List<'a, 'w> {
        self.type_ = self.type_.resolve_as(Form::List);
        if !self.type_.is_list() {
            return List::Atomic(self, Vec::new());
        }
        if let Some(keys) = &mut self.keys {
            keys.set_form(Form::List);
        }
        List::Items {
            keys: self.type_.keys(),
            begin: self.out.len(),
            parent: self,
            count: 0,
            items: Vec::new(),
        }
    }

    fn map(mut self) -> Members<'a, 'w> {
        self.type_ = self.type_.resolve_as(Form::Map);
        let atomic = (!self.type_.is_map()).then(Map::new);
        if let (None, Some(keys)) = (&atomic, &mut self.keys) {
            keys.set_form(Form::Map);
        }
        Members {
            begin: self.out.len(),
            parent: self,
            atomic,
            named: None,
            last: Cow::Borrowed(""),
            count: 0,
            in_order: true,
            same: true,
        }
    }
}

/// A map or list that differs from the blank object's; an empty one is owned where the blank object's is empty, too.
fn written(blank: Option<&Value>, is_bare: bool) -> Ownership {
    Ownership::Written {
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

/// The serializer of a list.
pub enum List<'a, 'w> {
    /// An atomic list.
    Atomic(FieldSetSerializer<'a, 'w>, Vec<Value>),
    Items {
        parent: FieldSetSerializer<'a, 'w>,
        keys: Option<Vec<(&'a str, Option<Value>)>>,
        begin: usize,
        count: usize,
        /// The elements so far, each with the range of its text.
        items: Vec<(String, Range<usize>)>,
    },
}

impl List<'_, '_> {
    fn item<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        match self {
            List::Atomic(_, items) => items.push(to_plain_value(value)?),
            List::Items {
                parent,
                keys,
                count,
                items,
                ..
            } => {
                *count += 1;
                let keys = keys.as_deref();
                let mut item = Keys::new(keys.unwrap_or_default());
                let at = parent.out.len();
                let item_serializer = FieldSetSerializer {
                    type_: parent.type_.item(),
                    blank: None,
                    without: ExcludedFields::NOTHING,
                    keys: Some(&mut item),
                    out: &mut *parent.out,
                };
                item_serializer.take(value)?;
                // Items that have no path element are left out.
                if let Ok(element) = typed::element(keys, &item) {
                    items.push((element, at..parent.out.len()));
                }
            }
        }
        Ok(())
    }

    fn finish(self) -> Ownership {
        match self {
            List::Atomic(parent, items) => parent.atomic(Form::List, Value::Array(items)),
            List::Items {
                parent,
                begin,
                count,
                items,
                ..
            } => {
                parent.out.name(begin, items);
                match parent.blank {
                    Some(Value::Array(blank)) if count == 0 && blank.is_empty() => Ownership::Same,
                    blank => written(blank, count == 0),
                }
            }
        }
    }
}

/// The serializer of a map or struct.
pub struct Members<'a, 'w> {
    parent: FieldSetSerializer<'a, 'w>,
    /// Its value, if it is atomic.
    atomic: Option<Map<String, Value>>,
    begin: usize,
    /// The key of a map's member whose value comes next.
    named: Option<String>,
    /// The member before.
    last: Cow<'static, str>,
    count: usize,
    in_order: bool,
    /// Equal to the blank object so far.
    same: bool,
}

/// How a member is written. It is planned, and finished, without the type of its value: that is compiled once and not for each type.
enum MemberPlan<'a> {
    /// Its own fields are written.
    Fields(FieldPlan<'a>),
    /// Its value is needed as a tree.
    Tree(TreeUse<'a>),
}

/// A member whose element was begun.
struct FieldPlan<'a> {
    type_: Type<'a>,
    blank: Option<&'a Value>,
    without: ExcludedFields<'a>,
    element: Element,
}

enum TreeUse<'a> {
    /// A member of an atomic map.
    Atomic,
    /// The field, and all below, are left out; it is compared with the blank object's value.
    Compare(Option<&'a Value>),
    /// One of the keys of a list's item.
    Key(&'a str, FieldPlan<'a>),
}

impl<'a> Members<'a, '_> {
    fn member<T: Serialize + ?Sized>(&mut self, name: Cow<'static, str>, value: &T) -> Result<(), Error> {
        match self.plan(&name) {
            MemberPlan::Fields(plan) => {
                let field = FieldSetSerializer {
                    type_: plan.type_,
                    blank: plan.blank,
                    without: plan.without,
                    keys: None,
                    out: &mut *self.parent.out,
                };
                let found = field.take(value)?;
                self.end_field(name, &plan, found);
            }
            MemberPlan::Tree(tree_use) => {
                let tree = to_plain_value(value)?;
                self.use_tree(name, tree_use, tree);
            }
        }
        Ok(())
    }

    fn plan(&mut self, name: &str) -> MemberPlan<'a> {
        if self.atomic.is_some() {
            return MemberPlan::Tree(TreeUse::Atomic);
        }
        self.count += 1;
        self.in_order &= *self.last <= *name;
        let parent = &mut self.parent;
        let blank = parent.blank.and_then(|blank| blank.get(name));
        let without = parent.without.below(name);
        if without.all_behind.is_some_and(owns) {
            return MemberPlan::Tree(TreeUse::Compare(blank));
        }
        let plan = FieldPlan {
            type_: parent.type_.field(name).unwrap_or(Type::Leaf),
            blank,
            without,
            element: parent.out.begin("f:", name),
        };
        match parent.keys.as_deref().and_then(|keys| keys.key(name)) {
            Some(key) => MemberPlan::Tree(TreeUse::Key(key, plan)),
            None => MemberPlan::Fields(plan),
        }
    }

    fn end_field(&mut self, name: Cow<'static, str>, plan: &FieldPlan<'_>, found: Ownership) {
        let own = match found {
            Ownership::Same => false,
            Ownership::Written { own } => {
                self.same = false;
                own && !plan.without.itself.is_some_and(owns)
            }
        };
        self.parent.out.end(&plan.element, own);
        self.last = name;
    }

    fn use_tree(&mut self, name: Cow<'static, str>, tree_use: TreeUse<'a>, tree: Value) {
        match tree_use {
            TreeUse::Atomic => {
                if let Some(atomic) = &mut self.atomic {
                    atomic.insert(name.into_owned(), tree);
                }
            }
            TreeUse::Compare(blank) => {
                self.same = self.same && blank == Some(&tree);
                self.last = name;
            }
            TreeUse::Key(key, plan) => {
                if let Some(keys) = self.parent.keys.as_deref_mut() {
                    keys.add(key, tree);
                }
                self.end_field(name, &plan, Ownership::Written { own: true });
            }
        }
    }

    fn finish(self) -> Ownership {
        let parent = self.parent;
        if let Some(atomic) = self.atomic {
            return parent.atomic(Form::Map, Value::Object(atomic));
        }
        if !self.in_order {
            parent.out.sort(self.begin);
        }
        match parent.blank {
            Some(Value::Object(blank)) if self.same && blank.len() == self.count => Ownership::Same,
            blank => written(blank, self.count == 0),
        }
    }
}

macro_rules! scalars {
    ($($method:ident($t:ty);)*) => {$(
        fn $method(self, v: $t) -> Result<Ownership, Error> {
            Ok(self.atomic(Form::Scalar, v.into()))
        }
    )*};
}

impl<'a, 'w> Serializer for FieldSetSerializer<'a, 'w> {
    type Ok = Ownership;
    type Error = Error;
    type SerializeSeq = List<'a, 'w>;
    type SerializeTuple = Impossible<Ownership, Error>;
    type SerializeTupleStruct = Impossible<Ownership, Error>;
    type SerializeTupleVariant = Impossible<Ownership, Error>;
    type SerializeMap = Members<'a, 'w>;
    type SerializeStruct = Members<'a, 'w>;
    type SerializeStructVariant = Impossible<Ownership, Error>;

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

    fn serialize_char(self, v: char) -> Result<Ownership, Error> {
        Ok(self.atomic(Form::Scalar, v.to_string().into()))
    }

    fn serialize_unit(self) -> Result<Ownership, Error> {
        Ok(self.atomic(Form::Null, Value::Null))
    }

    fn serialize_none(self) -> Result<Ownership, Error> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Ownership, Error> {
        value.serialize(self)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Ownership, Error> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<Ownership, Error> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Ownership, Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: &T,
    ) -> Result<Ownership, Error> {
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
    type Ok = Ownership;
    type Error = Error;
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.item(value)
    }
    fn end(self) -> Result<Ownership, Error> {
        Ok(self.finish())
    }
}

impl SerializeStruct for Members<'_, '_> {
    type Ok = Ownership;
    type Error = Error;
    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Error> {
        self.member(Cow::Borrowed(key), value)
    }
    fn end(self) -> Result<Ownership, Error> {
        Ok(self.finish())
    }
}

impl SerializeMap for Members<'_, '_> {
    type Ok = Ownership;
    type Error = Error;
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        match to_plain_value(key)? {
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
    fn end(self) -> Result<Ownership, Error> {
        Ok(self.finish())
    }
}
