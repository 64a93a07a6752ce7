//! Sets and maps as the kernel describes them.

use std::sync::Arc;

use crate::protocol::{DATA_IS_VERDICT, Family, attribute, set_flag};
use crate::wire::{Attributes, Malformed, be32, padded, text};

/// How an element of a set is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetShape {
    /// Single keys, concatenations included.
    Exact,
    /// Ranges of one field: two elements for each, the second one behind the end.
    Intervals,
    /// Concatenations of ranges: one element with the first and the last key.
    ConcatenatedIntervals,
}

/// What the elements of a map have besides their key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataShape {
    /// A set, not a map.
    None,
    Verdict,
    Value {
        length: usize,
    },
}

/// A set or map of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub family: Family,
    pub table: Arc<str>,
    pub name: Arc<str>,
    pub shape: SetShape,
    /// In bytes, as the kernel counts: a concatenation's fields are padded to 4 bytes, a single field is not.
    pub key_length: usize,
    pub data: DataShape,
}

impl Set {
    /// `ip knarr-proxy class`.
    pub fn describe(&self) -> Arc<str> {
        format!("{} {} {}", self.family, self.table, self.name).into()
    }

    /// How long a key is where it is handed in or out: padded to 4 bytes.
    pub fn padded_key_length(&self) -> usize {
        padded(self.key_length)
    }

    /// A set of the answer to `NFT_MSG_GETSET`; `None` if it is of a kind that this crate does not handle (maps of named
    /// objects).
    pub(crate) fn parse(family: u8, attributes: Attributes<'_>) -> Result<Option<Self>, Malformed> {
        let number = |kind: u16| attributes.find(kind)?.map(be32).transpose();
        let name = |kind: u16| attributes.find(kind)?.map(text).transpose();
        let flags = number(attribute::SET_FLAGS)?.unwrap_or(0);
        let has = |flag: u32| flags & flag != 0;
        let Some(family) = Family::of_number(family).filter(|_| !has(set_flag::OBJECT)) else {
            return Ok(None);
        };
        let length = |kind: u16, what: &'static str| {
            let length = number(kind)?.ok_or(Malformed(what))?;
            Ok(length as usize)
        };
        let data = match number(attribute::SET_DATA_TYPE)? {
            _ if !has(set_flag::MAP) => DataShape::None,
            Some(DATA_IS_VERDICT) => DataShape::Verdict,
            _ => DataShape::Value {
                length: length(attribute::SET_DATA_LENGTH, "a map without its data's length")?,
            },
        };
        Ok(Some(Set {
            family,
            table: name(attribute::SET_TABLE)?
                .ok_or(Malformed("a set without its table"))?
                .into(),
            name: name(attribute::SET_NAME)?
                .ok_or(Malformed("a set without a name"))?
                .into(),
            shape: match (has(set_flag::INTERVAL), has(set_flag::CONCAT)) {
                (false, _) => SetShape::Exact,
                (true, false) => SetShape::Intervals,
                (true, true) => SetShape::ConcatenatedIntervals,
            },
            key_length: length(attribute::SET_KEY_LENGTH, "a set without its key's length")?,
            data,
        }))
    }
}
