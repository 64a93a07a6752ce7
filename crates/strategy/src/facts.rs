//! Plain facts: what validation requires of a value by itself, whatever the other fields are. They are in the descriptors of types (`facts` of
//! a field: required, minimum, enum), and one walker checks them.
//!
//! Kubernetes' declarative validation (KEP-5073) has the same as tags of types, for few of them yet. A rule that depends on another field, on the old
//! object or on a feature is code. Kubernetes reports errors in the order of its own code, where facts and rules alternate; so a kind's code calls
//! [`check`] at the place of the facts, with the fields in Kubernetes' order.
//!
//! The objects' types have no reflection but serde's: the walker is a visitor that reads the fields that are asked for and skips the others.
//! It allocates nothing for valid values, except for paths that are too long for [`Path`] to keep in place.

use std::borrow::Cow;

use knarr_apimachinery::codec::{Scalar, UntypedValue, ValueVisitor, untyped};
use knarr_apimachinery::descriptors::{Facts, FieldDescriptor, Go, Place};
use knarr_apimachinery::field::{ErrorList, Path};
use serde::Serialize;
use serde::ser::Error as _;
use serde_json::Error;

/// Checks the facts of these fields of a struct, in this order, and of the structs below them. `path` is that of the struct.
///
/// A field without facts is a bug of the caller, and an internal error at the field.
pub(crate) fn check<T: Serialize + ?Sized>(errors: &mut ErrorList, path: &Path, of: &T, fields: &[&str]) {
    check_fields(errors, path, &untyped(of), Place::Unknown, fields);
}

fn check_fields(errors: &mut ErrorList, path: &Path, of: &dyn UntypedValue, place: Place, fields: &[&str]) {
    for field in fields {
        let mut walker = Walker::new(&mut *errors, path, Step::Field(field, place));
        if of.accept(&mut walker).is_err() {
            errors.internal(&path.child(field), "its type has no facts");
        }
    }
}

/// Checks the value of a field, or an item of it, which is of the Go type `of`.
fn check_value(
    errors: &mut ErrorList,
    path: &Path,
    value: &dyn UntypedValue,
    field: &'static FieldDescriptor,
    of: &'static Go,
) -> Done {
    if let Some(of) = of.underlying().named() {
        check_fields(errors, path, value, Place::Of(of), of.with_facts());
        return Ok(());
    }
    value.accept(&mut Walker::new(errors, path, Step::Value(field, of)))
}

/// An error is a value of another form than the descriptors say.
type Done = Result<(), Error>;

fn no_facts() -> Error {
    Error::custom("its type has no facts")
}

struct Walker<'a> {
    errors: &'a mut ErrorList,
    path: &'a Path,
    step: Step<'a>,
    /// The fields of the struct, or the items of the list, that are checked.
    values: Option<Values>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    /// Finds the field of this name in a struct.
    Field(&'a str, Place),
    /// Checks a value of the field.
    Value(&'static FieldDescriptor, &'static Go),
    /// The value is of a type that has no facts.
    Newtype,
}

/// The fields of a struct, of which one is checked, or the items of a list.
struct Values {
    field: &'static FieldDescriptor,
    /// The Go type of the field or of an item.
    of: &'static Go,
    /// How many values were checked.
    checked: usize,
}

impl<'a> Walker<'a> {
    fn new(errors: &'a mut ErrorList, path: &'a Path, step: Step<'a>) -> Self {
        Walker {
            errors,
            path,
            step,
            values: None,
        }
    }

    fn facts(&self) -> Result<(&'static FieldDescriptor, &'static Facts), Error> {
        match self.step {
            Step::Value(field, _) => {
                let facts = field.facts.as_ref();
                facts.map(|facts| (field, facts)).ok_or_else(no_facts)
            }
            Step::Field(..) | Step::Newtype => Err(no_facts()),
        }
    }

    fn begin(&mut self, field: &'static FieldDescriptor, of: &'static Go) {
        self.values = Some(Values {
            field,
            of,
            checked: 0,
        });
    }

    fn integer(&mut self, v: i64) -> Done {
        let (_, facts) = self.facts()?;
        if let Some(least) = facts.minimum.filter(|least| v < *least) {
            let detail = format!("must be greater than or equal to {least}");
            self.errors.invalid(self.path, v, detail);
        }
        Ok(())
    }

    /// A pointer to an empty string is not absent.
    fn text(&mut self, v: &str) -> Done {
        let (field, facts) = self.facts()?;
        let supported = field.supported();
        if v.is_empty() && facts.is_required && !field.of.is_pointer() {
            self.errors.required(self.path, "");
        } else if !supported.is_empty() && !supported.iter().any(|known| known == v) {
            let supported: Vec<&str> = supported.iter().map(String::as_str).collect();
            self.errors.not_supported_in_order(self.path, v, &supported);
        }
        Ok(())
    }
}

impl ValueVisitor for Walker<'_> {
    fn scalar(&mut self, value: Scalar<'_>) -> Done {
        match value {
            Scalar::Integer(v) => self.integer(v),
            Scalar::Text(v) => self.text(v),
            Scalar::Null | Scalar::Bool(_) | Scalar::Unsigned(_) | Scalar::Float(_) => Err(no_facts()),
        }
    }

    fn newtype(&mut self, _: &str) {
        self.step = Step::Newtype;
    }

    fn begin_list(&mut self, _: Option<usize>) -> Done {
        let Step::Value(field, of) = self.step else {
            return Err(no_facts());
        };
        match of.underlying() {
            Go::List(item) => self.begin(field, item),
            _ => return Err(no_facts()),
        }
        Ok(())
    }

    fn element(&mut self, value: &dyn UntypedValue) -> Done {
        let Some(values) = &mut self.values else {
            return Err(no_facts());
        };
        let path = self.path.index(values.checked);
        values.checked += 1;
        check_value(self.errors, &path, value, values.field, values.of)
    }

    fn begin_map(&mut self) -> Done {
        Err(no_facts())
    }

    fn begin_struct(&mut self, name: &str) -> Done {
        let Step::Field(wanted, place) = self.step else {
            return Err(no_facts());
        };
        let field = place.of_struct(name).and_then(|of| of.field(wanted));
        let field = field.filter(|field| field.facts.is_some()).ok_or_else(no_facts)?;
        self.begin(field, &field.of);
        Ok(())
    }

    fn member(&mut self, name: Cow<'static, str>, value: &dyn UntypedValue) -> Done {
        let Some(values) = self.values.as_mut().filter(|values| values.field.name == name) else {
            return Ok(());
        };
        values.checked += 1;
        let path = self.path.child(values.field.name);
        check_value(self.errors, &path, value, values.field, values.of)
    }

    fn end(&mut self) -> Done {
        let Some(values) = self.values.take() else {
            return Ok(());
        };
        let is_struct = matches!(self.step, Step::Field(..));
        let is_required = values.field.facts.as_ref().is_some_and(|facts| facts.is_required);
        if is_struct && is_required && values.checked == 0 {
            self.errors.required(&self.path.child(values.field.name), "");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
