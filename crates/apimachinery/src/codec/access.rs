//! The members of an object and the elements of a list, one after the other as serde asks for them.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, MapAccess, SeqAccess};

use super::StrictError;
use super::reader::{Error, PathElement, Reader, Token};
use crate::descriptors::{FieldDescriptor, TypeDescriptor};

/// The fields of the struct that is read.
#[derive(Clone, Copy)]
pub(super) struct Fields {
    pub(super) name: &'static str,
    pub(super) of: Option<&'static TypeDescriptor>,
    pub(super) names: &'static [&'static str],
}

impl Fields {
    /// The time that our type requires although Go's may be unset.
    pub(super) fn required_time(&self) -> Option<&'static str> {
        self.of.and_then(TypeDescriptor::required_time)
    }
}

/// The index of a field by its name, which is unique; the names from `first` on are compared before the others.
fn index_of(names: &[&str], name: &str, first: usize) -> Option<usize> {
    let first = first.min(names.len());
    let (before, after) = names.split_at(first);
    let at = after.iter().position(|n| *n == name).map(|at| first + at);
    at.or_else(|| before.iter().position(|n| *n == name))
}

/// A field's name and descriptor.
type NextField = (&'static str, Option<&'static FieldDescriptor>);

/// The members of an object.
pub(super) struct Members<'a, 'de> {
    reader: &'a mut Reader<'de>,
    /// `None` for a map.
    pub(super) fields: Option<Fields>,
    first: bool,
    /// Keys of a map that were read.
    seen: BTreeSet<Cow<'de, str>>,
    /// The index of the field after the last one that was read: documents most often have fields in the order of the struct.
    next_index: usize,
    /// Fields of a struct that were read, one bit each. No struct of Kubernetes has 128.
    seen_fields: u128,
    /// The required time that was not read yet.
    pub(super) pending_time: Option<&'static str>,
    /// The object was read to its end, or is null.
    pub(super) finished: bool,
}

impl<'a, 'de> Members<'a, 'de> {
    /// Of a map that begins.
    pub(super) fn new(reader: &'a mut Reader<'de>) -> Self {
        Members {
            reader,
            fields: None,
            first: true,
            seen: BTreeSet::new(),
            next_index: 0,
            seen_fields: 0,
            pending_time: None,
            finished: false,
        }
    }

    /// The next field that is known and not null: its name and descriptor.
    fn next_field(&mut self, of: Fields) -> Result<Option<NextField>, Error> {
        let names = of.names;
        while !self.finished {
            if !self.reader.more(&mut self.first, b'}')? {
                self.finished = true;
                break;
            }
            let key = self.reader.key()?;
            let Some(index) = index_of(names, &key, self.next_index) else {
                let path = self.reader.path_to(Some(&key));
                self.reader.strict_errors.push(StrictError::UnknownField(path));
                self.reader.skip()?;
                continue;
            };
            self.next_index = index + 1;
            let bit = 1_u128
                .checked_shl(u32::try_from(index).unwrap_or(u32::MAX))
                .unwrap_or(0);
            if self.seen_fields & bit != 0 {
                let path = self.reader.path_to(Some(&key));
                self.reader.strict_errors.push(StrictError::DuplicateField(path));
            }
            self.seen_fields |= bit;
            let name = names[index];
            if self.reader.token()? == Token::Null {
                self.reader.null()?;
                continue;
            }
            let field = of.of.and_then(|of| of.field_at(names, index));
            if let Some(zero) = self.reader.zero()
                && field.is_some_and(|field| field.zero == Some(zero))
            {
                self.reader.skip()?;
                continue;
            }
            self.pending_time = self.pending_time.filter(|pending_time| *pending_time != name);
            return Ok(Some((name, field)));
        }
        self.reader.unset_time = self.pending_time.is_some();
        Ok(self.pending_time.take().map(|name| (name, None)))
    }

    /// The next key, which is put on the reader's path.
    fn next_key(&mut self) -> Result<Option<Cow<'de, str>>, Error> {
        if let Some(fields) = self.fields {
            let Some((name, field)) = self.next_field(fields)? else {
                return Ok(None);
            };
            self.reader.path.push(PathElement::Field(name, field));
            return Ok(Some(Cow::Borrowed(name)));
        }
        if self.reader.is_asked() {
            return Ok(Some(Cow::Borrowed("")));
        }
        if self.finished || !self.reader.more(&mut self.first, b'}')? {
            return Ok(None);
        }
        let key = self.reader.key()?;
        if !self.seen.insert(key.clone()) {
            let path = self.reader.path_to(Some(&key));
            self.reader.strict_errors.push(StrictError::DuplicateField(path));
        }
        self.reader.path.push(PathElement::Key(key.clone()));
        Ok(Some(key))
    }
}

impl<'de> MapAccess<'de> for Members<'_, 'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        match self.next_key()? {
            // Not as a Cow, which compiles two methods more of each struct's visitor of names.
            Some(key) => seed.deserialize(StrDeserializer::new(&key)).map(Some),
            None => Ok(None),
        }
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let value = seed.deserialize(&mut *self.reader)?;
        self.reader.path.pop();
        Ok(value)
    }
}

/// The elements of a list.
pub(super) struct Elements<'a, 'de> {
    reader: &'a mut Reader<'de>,
    first: bool,
    next: usize,
    /// The list is null.
    pub(super) finished: bool,
}

impl<'a, 'de> Elements<'a, 'de> {
    /// Of a list that begins.
    pub(super) fn new(reader: &'a mut Reader<'de>) -> Self {
        Elements {
            reader,
            first: true,
            next: 0,
            finished: false,
        }
    }

    fn next(&mut self) -> Result<bool, Error> {
        if self.reader.is_asked() {
            return Ok(true);
        }
        if self.finished || !self.reader.more(&mut self.first, b']')? {
            return Ok(false);
        }
        if let Some(PathElement::Index(i)) = self.reader.path.last_mut() {
            *i = self.next;
        }
        self.next += 1;
        Ok(true)
    }
}

impl<'de> SeqAccess<'de> for Elements<'_, 'de> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        match self.next()? {
            true => seed.deserialize(&mut *self.reader).map(Some),
            false => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::index_of;

    #[test]
    fn a_field_is_found_wherever_the_search_begins() {
        let names = ["a", "b", "c"];
        for first in 0..=4 {
            for (index, name) in names.iter().enumerate() {
                assert_eq!(index_of(&names, name, first), Some(index), "{name} from {first}");
            }
            assert_eq!(index_of(&names, "d", first), None);
            assert_eq!(index_of(&[], "a", first), None);
        }
    }
}
