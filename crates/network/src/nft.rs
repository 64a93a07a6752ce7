//! Elements of nftables sets and maps as the kernel has them: the result of decisions.

use std::collections::BTreeMap;

/// The verdict of an element of a verdict map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    Accept,
    Drop,
    Continue,
    Return,
    /// To a chain of the same table.
    Jump(Box<str>),
    Goto(Box<str>),
}

/// The value of a key in a map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Data {
    /// A value in the kernel's layout: each field of a concatenation padded to 4 bytes, numbers in network byte order.
    Value(Box<[u8]>),
    Verdict(Verdict),
}

/// An element's key: `start` alone, or a range up to and including `end` in interval sets. Bytes as in [`Data::Value`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub start: Box<[u8]>,
    pub end: Option<Box<[u8]>>,
}

impl Key {
    /// A single value.
    pub fn exact(bytes: impl Into<Box<[u8]>>) -> Self {
        Key {
            start: bytes.into(),
            end: None,
        }
    }
}

/// The elements of one set or map; `None` in sets.
pub type Elements = BTreeMap<Key, Option<Data>>;

/// All sets and maps of one table, by name.
pub type Table = BTreeMap<&'static str, Elements>;
