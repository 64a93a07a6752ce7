//! The fields that the creator of an object owns: those that the kind's blank object does not have.
//!
//! Creations are frequent in a busy cluster. The object serializes itself to a visitor, and the set is written meanwhile:
//! no tree is built of either, no text is read, and atomic values are not traversed. The result is that of
//! [`super::values::compare`] with the blank object: the tests compare both.

mod keys;

use std::borrow::Cow;
use std::mem;
use std::ops::Range;

use knarr_apimachinery::codec::{Encoder, Scalar, UntypedValue, ValueVisitor, tree};
use serde_json::{Error, Map, Value};

use super::set::{FieldSet, Node, owns};
use super::text::{Element, Writer};
use super::typed::{self, Form, Type};
use crate::any_object::AnyObject;
use keys::Keys;

/// The fields of `object` that `blank` does not have, or has at another value, as text; empty where there are none.
/// Without the fields in `reset` and all below them, and without those in `stripped`; both name fields only, no items of
/// lists.
///
/// # Errors
///
/// If the object does not serialize.
pub(super) fn created_fields(
    type_: Type<'_>,
    blank: &Value,
    object: &dyn AnyObject,
    reset: &FieldSet,
    stripped: &FieldSet,
) -> Result<String, Error> {
    let mut out = Writer::with_capacity(TEXT_BYTES);
    let place = Place {
        type_,
        blank: Some(blank),
        without: ExcludedFields {
            all_behind: Some(reset.root()),
            itself: Some(stripped.root()),
        },
    };
    object.encode(Encoder::visiting(&mut FieldSetVisitor::new(
        place, None, &mut out,
    )))?;
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
enum Ownership {
    /// The blank object has the same value; nothing was written.
    Same,
    /// The paths below were written. `own`: the path itself is owned, too.
    Written { own: bool },
}

/// Where a value is.
struct Place<'a> {
    type_: Type<'a>,
    /// `None` below lists and maps, which a blank object does not have.
    blank: Option<&'a Value>,
    without: ExcludedFields<'a>,
}

/// Writes the field set of one value.
struct FieldSetVisitor<'a, 'w> {
    at: Place<'a>,
    /// Receives the key fields of a list item.
    keys: Option<&'w mut Keys<'a>>,
    out: &'w mut Writer,
    /// The value, if it is a list or map.
    parts: Parts<'a>,
    /// The result, once the value was visited.
    found: Ownership,
}

/// A list or map that is being visited.
#[derive(Default)]
enum Parts<'a> {
    #[default]
    None,
    AtomicList(Vec<Value>),
    AtomicMap(Map<String, Value>),
    List(List<'a>),
    Map(Members),
}

struct List<'a> {
    keys: Option<Vec<(&'a str, Option<Value>)>>,
    begin: usize,
    count: usize,
    /// The elements so far, each with the range of its text.
    items: Vec<(String, Range<usize>)>,
}

/// The members of a map or struct so far.
struct Members {
    begin: usize,
    /// The member before.
    last: Cow<'static, str>,
    count: usize,
    in_order: bool,
    /// Equal to the blank object so far.
    same: bool,
}

/// How a member is written.
enum MemberPlan<'a> {
    /// Its own fields are written.
    Fields(Place<'a>, Element),
    /// Its value is needed as a tree.
    Tree(TreeUse<'a>),
}

enum TreeUse<'a> {
    /// A member of an atomic map.
    Atomic,
    /// The field, and all below, are left out; it is compared with the blank object's value.
    Compare(Option<&'a Value>),
    /// One of the keys of a list's item: its element was begun.
    Key(&'a str, ExcludedFields<'a>, Element),
}

impl<'a, 'w> FieldSetVisitor<'a, 'w> {
    fn new(at: Place<'a>, keys: Option<&'w mut Keys<'a>>, out: &'w mut Writer) -> Self {
        FieldSetVisitor {
            at,
            keys,
            out,
            parts: Parts::None,
            found: Ownership::Same,
        }
    }

    /// Visits the value, if it has parts that count.
    fn take(mut self, value: &dyn UntypedValue) -> Result<Ownership, Error> {
        match self.at.type_ {
            Type::Leaf if self.at.blank.is_none() && self.keys.is_none() => {
                Ok(Ownership::Written { own: true })
            }
            _ => {
                value.accept(&mut self)?;
                Ok(self.found)
            }
        }
    }

    /// An atomic value: a scalar, or a map or list that is atomic by its type.
    fn atomic(&mut self, form: Form, value: Value) -> Ownership {
        let blank = self.at.blank;
        let found = if blank == Some(&value) {
            Ownership::Same
        } else {
            let type_ = self.at.type_.resolve_as(form);
            match type_.is_map() || type_.is_list() {
                true => written(blank, true),
                false => Ownership::Written { own: true },
            }
        };
        if let Some(keys) = self.keys.as_deref_mut() {
            keys.set_value(form, value);
        }
        found
    }

    fn plan(&mut self, name: &str) -> MemberPlan<'a> {
        let Parts::Map(members) = &mut self.parts else {
            return MemberPlan::Tree(TreeUse::Atomic);
        };
        members.count += 1;
        members.in_order &= *members.last <= *name;
        let blank = self.at.blank.and_then(|blank| blank.get(name));
        let without = self.at.without.below(name);
        if without.all_behind.is_some_and(owns) {
            return MemberPlan::Tree(TreeUse::Compare(blank));
        }
        let element = self.out.begin("f:", name);
        match self.keys.as_deref().and_then(|keys| keys.key(name)) {
            Some(key) => MemberPlan::Tree(TreeUse::Key(key, without, element)),
            None => {
                let type_ = self.at.type_.field(name).unwrap_or(Type::Leaf);
                let place = Place {
                    type_,
                    blank,
                    without,
                };
                MemberPlan::Fields(place, element)
            }
        }
    }

    fn end_field(
        &mut self,
        name: Cow<'static, str>,
        without: ExcludedFields<'_>,
        element: &Element,
        found: Ownership,
    ) {
        let Parts::Map(members) = &mut self.parts else {
            return;
        };
        let own = match found {
            Ownership::Same => false,
            Ownership::Written { own } => {
                members.same = false;
                own && !without.itself.is_some_and(owns)
            }
        };
        members.last = name;
        self.out.end(element, own);
    }

    fn use_tree(&mut self, name: Cow<'static, str>, tree_use: TreeUse<'a>, tree: Value) {
        match (tree_use, &mut self.parts) {
            (TreeUse::Atomic, Parts::AtomicMap(members)) => {
                members.insert(name.into_owned(), tree);
            }
            (TreeUse::Compare(blank), Parts::Map(members)) => {
                members.same = members.same && blank == Some(&tree);
                members.last = name;
            }
            (TreeUse::Key(key, without, element), _) => {
                if let Some(keys) = self.keys.as_deref_mut() {
                    keys.add(key, tree);
                }
                self.end_field(name, without, &element, Ownership::Written { own: true });
            }
            _ => {}
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

impl ValueVisitor for FieldSetVisitor<'_, '_> {
    fn scalar(&mut self, value: Scalar<'_>) -> Result<(), Error> {
        let form = match value {
            Scalar::Null => Form::Null,
            _ => Form::Scalar,
        };
        self.found = self.atomic(form, value.into());
        Ok(())
    }

    fn begin_list(&mut self, _: Option<usize>) -> Result<(), Error> {
        self.at.type_ = self.at.type_.resolve_as(Form::List);
        if !self.at.type_.is_list() {
            self.parts = Parts::AtomicList(Vec::new());
            return Ok(());
        }
        if let Some(keys) = self.keys.as_deref_mut() {
            keys.set_form(Form::List);
        }
        self.parts = Parts::List(List {
            keys: self.at.type_.keys(),
            begin: self.out.len(),
            count: 0,
            items: Vec::new(),
        });
        Ok(())
    }

    fn element(&mut self, value: &dyn UntypedValue) -> Result<(), Error> {
        match &mut self.parts {
            Parts::AtomicList(items) => items.push(tree(value)?),
            Parts::List(list) => {
                list.count += 1;
                let keys = list.keys.as_deref();
                let mut item = Keys::new(keys.unwrap_or_default());
                let begin = self.out.len();
                let place = Place {
                    type_: self.at.type_.item(),
                    blank: None,
                    without: ExcludedFields::NOTHING,
                };
                FieldSetVisitor::new(place, Some(&mut item), &mut *self.out).take(value)?;
                // Items that have no path element are left out.
                if let Ok(element) = typed::element(keys, &item) {
                    list.items.push((element, begin..self.out.len()));
                }
            }
            Parts::None | Parts::AtomicMap(_) | Parts::Map(_) => {}
        }
        Ok(())
    }

    fn begin_map(&mut self) -> Result<(), Error> {
        self.at.type_ = self.at.type_.resolve_as(Form::Map);
        if !self.at.type_.is_map() {
            self.parts = Parts::AtomicMap(Map::new());
            return Ok(());
        }
        if let Some(keys) = self.keys.as_deref_mut() {
            keys.set_form(Form::Map);
        }
        self.parts = Parts::Map(Members {
            begin: self.out.len(),
            last: Cow::Borrowed(""),
            count: 0,
            in_order: true,
            same: true,
        });
        Ok(())
    }

    fn member(&mut self, name: Cow<'static, str>, value: &dyn UntypedValue) -> Result<(), Error> {
        match self.plan(&name) {
            MemberPlan::Fields(place, element) => {
                let without = place.without;
                let found = FieldSetVisitor::new(place, None, &mut *self.out).take(value)?;
                self.end_field(name, without, &element, found);
            }
            MemberPlan::Tree(tree_use) => {
                let tree = tree(value)?;
                self.use_tree(name, tree_use, tree);
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Error> {
        let blank = self.at.blank;
        self.found = match mem::take(&mut self.parts) {
            Parts::None => Ownership::Same,
            Parts::AtomicList(items) => self.atomic(Form::List, Value::Array(items)),
            Parts::AtomicMap(members) => self.atomic(Form::Map, Value::Object(members)),
            Parts::List(list) => {
                self.out.name(list.begin, list.items);
                match blank {
                    Some(Value::Array(blank)) if list.count == 0 && blank.is_empty() => Ownership::Same,
                    blank => written(blank, list.count == 0),
                }
            }
            Parts::Map(members) => {
                if !members.in_order {
                    self.out.sort(members.begin);
                }
                match blank {
                    Some(Value::Object(blank)) if members.same && blank.len() == members.count => {
                        Ownership::Same
                    }
                    blank => written(blank, members.count == 0),
                }
            }
        };
        Ok(())
    }
}
