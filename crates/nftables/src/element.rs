//! Elements of sets and maps, and how the kernel writes them.

use std::collections::HashSet;
use std::time::Duration;

use crate::error::Error;
use crate::protocol::{attribute, element_flag, verdict};
use crate::set::{DataShape, Set, SetShape};
use crate::wire::{Attributes, Malformed, Writer, be32, be64, padded, text};

/// What happens to a packet whose key is found in a verdict map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict<'a> {
    Accept,
    Drop,
    Continue,
    Return,
    /// To a chain of the same table.
    Jump(&'a str),
    Goto(&'a str),
}

/// What a map has for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Data<'a> {
    /// Each field padded to 4 bytes, numbers in network byte order.
    Value(&'a [u8]),
    Verdict(Verdict<'a>),
}

/// An element of a set or a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Element<'a> {
    /// Each field padded to 4 bytes, numbers in network byte order.
    pub key: &'a [u8],
    /// The last key of a range, itself included; `None` for a single one.
    pub key_end: Option<&'a [u8]>,
    /// `None` in sets.
    pub data: Option<Data<'a>>,
    /// After which the kernel removes it, in milliseconds; for sets with the flag `timeout`.
    pub timeout: Option<Duration>,
}

impl<'a> Element<'a> {
    /// A single key of a set; or of a map, where a key is all that is needed.
    pub fn key(key: &'a [u8]) -> Self {
        Element {
            key,
            key_end: None,
            data: None,
            timeout: None,
        }
    }

    /// A range of keys, both ends included.
    pub fn range(start: &'a [u8], end: &'a [u8]) -> Self {
        Element {
            key_end: Some(end),
            ..Element::key(start)
        }
    }

    pub fn with(self, data: Data<'a>) -> Self {
        Element {
            data: Some(data),
            ..self
        }
    }

    /// Whether it fits the set; additions need their data, deletions do without.
    pub(crate) fn check(&self, set: &Set, is_addition: bool) -> Result<(), Error> {
        let fault = |part, length, expected| {
            Err(Error::Shape {
                set: set.describe(),
                part,
                length,
                expected,
            })
        };
        let key_length = set.padded_key_length();
        if self.key.len() != key_length {
            return fault("key", self.key.len(), key_length);
        }
        if let Some(end) = self.key_end
            && (end.len() != key_length || set.shape == SetShape::Exact && end != self.key)
        {
            let expected = match set.shape {
                SetShape::Exact => 0,
                _ => key_length,
            };
            return fault("end of a range", end.len(), expected);
        }
        if !is_addition {
            return Ok(());
        }
        match (set.data, self.data) {
            (DataShape::None, None) | (DataShape::Verdict, Some(Data::Verdict(_))) => Ok(()),
            (DataShape::Value { length }, Some(Data::Value(value))) if value.len() == padded(length) => {
                Ok(())
            }
            (DataShape::Value { length }, Some(Data::Value(value))) => {
                fault("value", value.len(), padded(length))
            }
            (DataShape::Value { length }, _) => fault("value", 0, padded(length)),
            (DataShape::Verdict, Some(Data::Value(value))) => fault("value", value.len(), 0),
            (DataShape::Verdict, None) => fault("verdict", 0, 4),
            (DataShape::None, Some(Data::Value(value))) => fault("value", value.len(), 0),
            (DataShape::None, Some(Data::Verdict(_))) => fault("verdict", 4, 0),
        }
    }

    /// Bytes of a message that it takes at the most.
    pub(crate) fn encoded_length(&self, set: &Set) -> usize {
        let data = match self.data {
            None => 0,
            Some(Data::Value(value)) => 8 + value.len(),
            Some(Data::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain))) => 32 + chain.len(),
            Some(Data::Verdict(_)) => 24,
        };
        // Headers of the element and of its key, flags, timeout; a range is two elements, or one with two keys.
        2 * (4 + 8 + set.padded_key_length() + 8) + 12 + data
    }

    /// [`Element::check`] has accepted it.
    pub(crate) fn write(&self, set: &Set, writer: &mut Writer, is_addition: bool) {
        let cut = |key: &'a [u8]| key.get(..set.key_length).unwrap_or(key);
        let element = writer.nested(attribute::LIST_ELEMENT);
        write_key(writer, attribute::ELEMENT_KEY, cut(self.key));
        if set.shape == SetShape::ConcatenatedIntervals {
            let end = self.key_end.unwrap_or(self.key);
            write_key(writer, attribute::ELEMENT_KEY_END, cut(end));
        }
        if is_addition {
            if let Some(data) = &self.data {
                write_data(writer, set, data);
            }
            if let Some(timeout) = self.timeout {
                let milliseconds = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
                writer.bytes(attribute::ELEMENT_TIMEOUT, &milliseconds.to_be_bytes());
            }
        }
        writer.end_nested(element);
        if set.shape == SetShape::Intervals {
            // The range ends before the next key; one that reaches the last key has no end.
            if let Some(behind) = plus_one(cut(self.key_end.unwrap_or(self.key))) {
                let element = writer.nested(attribute::LIST_ELEMENT);
                write_key(writer, attribute::ELEMENT_KEY, &behind);
                writer.u32(attribute::ELEMENT_FLAGS, element_flag::INTERVAL_END);
                writer.end_nested(element);
            }
        }
    }
}

fn write_key(writer: &mut Writer, kind: u16, key: &[u8]) {
    let nested = writer.nested(kind);
    writer.bytes(attribute::DATA_VALUE, key);
    writer.end_nested(nested);
}

fn write_data(writer: &mut Writer, set: &Set, data: &Data<'_>) {
    let nested = writer.nested(attribute::ELEMENT_DATA);
    match data {
        Data::Value(value) => {
            let length = match set.data {
                DataShape::Value { length } => length,
                _ => value.len(),
            };
            writer.bytes(attribute::DATA_VALUE, value.get(..length).unwrap_or(value));
        }
        Data::Verdict(verdict) => {
            let (code, chain) = match verdict {
                Verdict::Accept => (verdict::ACCEPT, None),
                Verdict::Drop => (verdict::DROP, None),
                Verdict::Continue => (verdict::CONTINUE, None),
                Verdict::Return => (verdict::RETURN, None),
                Verdict::Jump(chain) => (verdict::JUMP, Some(chain)),
                Verdict::Goto(chain) => (verdict::GOTO, Some(chain)),
            };
            let nested = writer.nested(attribute::DATA_VERDICT);
            writer.u32(attribute::VERDICT_CODE, code.cast_unsigned());
            if let Some(chain) = chain {
                writer.text(attribute::VERDICT_CHAIN, chain);
            }
            writer.end_nested(nested);
        }
    }
    writer.end_nested(nested);
}

/// The next key in network byte order; `None` behind the last.
fn plus_one(key: &[u8]) -> Option<Vec<u8>> {
    let mut next = key.to_vec();
    for byte in next.iter_mut().rev() {
        let (sum, overflows) = byte.overflowing_add(1);
        *byte = sum;
        if !overflows {
            return Some(next);
        }
    }
    None
}

/// The key before; `None` before the first.
fn minus_one(key: &[u8]) -> Option<Vec<u8>> {
    let mut before = key.to_vec();
    for byte in before.iter_mut().rev() {
        let (difference, overflows) = byte.overflowing_sub(1);
        *byte = difference;
        if !overflows {
            return Some(before);
        }
    }
    None
}

#[derive(Clone, Copy, Debug)]
enum KeptData {
    None,
    Value,
    /// With the length of the chain's name.
    Verdict(i32, u16),
}

/// Where an element's parts are in the buffer: its key, the end of its range, its data.
#[derive(Clone, Copy, Debug)]
struct Kept {
    start: u32,
    has_end: bool,
    is_end: bool,
    data: KeptData,
    timeout_milliseconds: u64,
}

/// The elements of a set at one moment, in one piece of memory.
#[derive(Clone, Debug)]
pub struct Elements {
    key_length: usize,
    value_length: usize,
    bytes: Vec<u8>,
    kept: Vec<Kept>,
}

impl Elements {
    pub(crate) fn of(set: &Set) -> Self {
        Elements {
            key_length: set.padded_key_length(),
            value_length: match set.data {
                DataShape::Value { length } => padded(length),
                _ => 0,
            },
            bytes: Vec::new(),
            kept: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.kept.len()
    }

    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// In the kernel's order, which is none, except for ranges: those are in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = Element<'_>> {
        self.kept.iter().map(|kept| self.element(kept))
    }

    /// Whether an element is there more than once. Costs a hash of each key, and 8 bytes for each.
    pub(crate) fn has_repeated_keys(&self) -> bool {
        let mut seen = HashSet::with_capacity(self.len());
        self.iter()
            .any(|element| !seen.insert((element.key, element.key_end)))
    }

    /// One of them, in the order of [`Elements::iter`].
    pub fn get(&self, index: usize) -> Option<Element<'_>> {
        self.kept.get(index).map(|kept| self.element(kept))
    }

    fn element(&self, kept: &Kept) -> Element<'_> {
        let bytes = self.bytes.get(kept.start as usize..).unwrap_or_default();
        let (key, rest) = split(bytes, self.key_length);
        let (end, rest) = split(rest, if kept.has_end { self.key_length } else { 0 });
        Element {
            key,
            key_end: kept.has_end.then_some(end),
            data: match kept.data {
                KeptData::None => None,
                KeptData::Value => Some(Data::Value(split(rest, self.value_length).0)),
                KeptData::Verdict(code, chain) => {
                    let (chain, _) = split(rest, usize::from(chain));
                    let chain = std::str::from_utf8(chain).unwrap_or_default();
                    Some(Data::Verdict(match code {
                        verdict::JUMP => Verdict::Jump(chain),
                        verdict::GOTO => Verdict::Goto(chain),
                        verdict::ACCEPT => Verdict::Accept,
                        verdict::CONTINUE => Verdict::Continue,
                        verdict::RETURN => Verdict::Return,
                        _ => Verdict::Drop,
                    }))
                }
            },
            timeout: (kept.timeout_milliseconds > 0)
                .then(|| Duration::from_millis(kept.timeout_milliseconds)),
        }
    }

    /// Takes in one message of a dump.
    pub(crate) fn parse(&mut self, set: &Set, attributes: Attributes<'_>) -> Result<(), Malformed> {
        for attribute in attributes.nested(attribute::ELEMENTS_LIST)?.unwrap_or_default() {
            let (kind, value) = attribute?;
            if kind == attribute::LIST_ELEMENT {
                self.parse_element(set, Attributes(value))?;
            }
        }
        Ok(())
    }

    fn parse_element(&mut self, set: &Set, element: Attributes<'_>) -> Result<(), Malformed> {
        let number = |kind: u16| element.find(kind)?.map(be32).transpose();
        let flags = number(attribute::ELEMENT_FLAGS)?.unwrap_or(0);
        if flags & element_flag::CATCH_ALL != 0 {
            return Ok(());
        }
        let key = |kind: u16| -> Result<Option<&[u8]>, Malformed> {
            let Some(nested) = element.nested(kind)? else {
                return Ok(None);
            };
            let value = nested.find(attribute::DATA_VALUE)?;
            match value {
                Some(value) if value.len() == set.key_length => Ok(Some(value)),
                _ => Err(Malformed("a key is not as long as its set's keys")),
            }
        };
        let start = u32::try_from(self.bytes.len()).map_err(|_| Malformed("more elements than 4 GiB"))?;
        let first = key(attribute::ELEMENT_KEY)?.ok_or(Malformed("an element without a key"))?;
        let last = key(attribute::ELEMENT_KEY_END)?.filter(|last| *last != first);
        let data = element.nested(attribute::ELEMENT_DATA)?;
        self.push(first, self.key_length);
        if let Some(last) = last {
            self.push(last, self.key_length);
        }
        let data = match data {
            None => KeptData::None,
            Some(data) => self.parse_data(data)?,
        };
        let timeout = element.find(attribute::ELEMENT_TIMEOUT)?.map(be64).transpose()?;
        self.kept.push(Kept {
            start,
            has_end: last.is_some(),
            is_end: flags & element_flag::INTERVAL_END != 0,
            data,
            timeout_milliseconds: timeout.unwrap_or(0),
        });
        Ok(())
    }

    fn parse_data(&mut self, data: Attributes<'_>) -> Result<KeptData, Malformed> {
        if let Some(value) = data.find(attribute::DATA_VALUE)? {
            if padded(value.len()) != self.value_length {
                return Err(Malformed("a value is not as long as its map's values"));
            }
            self.push(value, self.value_length);
            return Ok(KeptData::Value);
        }
        let verdict = data.nested(attribute::DATA_VERDICT)?;
        let verdict = verdict.ok_or(Malformed("data is neither a value nor a verdict"))?;
        let code = verdict.find(attribute::VERDICT_CODE)?.map(be32).transpose()?;
        let code = code.ok_or(Malformed("a verdict without its code"))?.cast_signed();
        let chain = verdict.find(attribute::VERDICT_CHAIN)?.map(text).transpose()?;
        let chain = chain.unwrap_or_default();
        self.push(chain.as_bytes(), chain.len());
        let length = u16::try_from(chain.len()).map_err(|_| Malformed("a chain's name is too long"))?;
        Ok(KeptData::Verdict(code, length))
    }

    fn push(&mut self, value: &[u8], length: usize) {
        let end = self.bytes.len() + length;
        self.bytes.extend_from_slice(value);
        self.bytes.resize(end, 0);
    }

    /// Puts the two elements of each range together.
    pub(crate) fn join_intervals(self, set: &Set) -> Self {
        let mut ordered: Vec<(&[u8], bool, &Kept)> = self
            .kept
            .iter()
            .map(|kept| (self.element(kept).key, !kept.is_end, kept))
            .collect();
        // An end comes before a start with the same key.
        ordered.sort_by_key(|(key, is_start, _)| (*key, *is_start));
        let mut joined = Elements::of(set);
        let mut open: Option<&Kept> = None;
        for (key, is_start, kept) in ordered {
            if is_start {
                open = Some(kept);
            } else if let Some(first) = open.take() {
                let last = minus_one(key.get(..set.key_length).unwrap_or(key));
                joined.push_range(&self, first, &last.unwrap_or_default());
            }
        }
        if let Some(first) = open {
            joined.push_range(&self, first, &vec![0xff; set.key_length]);
        }
        joined
    }

    fn push_range(&mut self, from: &Elements, first: &Kept, last: &[u8]) {
        let element = from.element(first);
        let start = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        let is_single = element.key.get(..last.len()) == Some(last);
        self.push(element.key, self.key_length);
        if !is_single {
            self.push(last, self.key_length);
        }
        match element.data {
            Some(Data::Value(value)) => self.push(value, value.len()),
            Some(Data::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain))) => {
                self.push(chain.as_bytes(), chain.len());
            }
            _ => (),
        }
        self.kept.push(Kept {
            start,
            has_end: !is_single,
            is_end: false,
            ..*first
        });
    }
}

fn split(bytes: &[u8], at: usize) -> (&[u8], &[u8]) {
    bytes.split_at_checked(at).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::Family;
    use crate::wire::Messages;

    pub(crate) fn set(shape: SetShape, key_length: usize, data: DataShape) -> Set {
        Set {
            family: Family::Ip,
            table: "t".into(),
            name: "s".into(),
            shape,
            key_length,
            data,
        }
    }

    fn written(set: &Set, elements: &[Element<'_>]) -> Elements {
        let mut writer = Writer::default();
        let message = writer.message(1, 0, 1, 2, 0);
        let list = writer.nested(attribute::ELEMENTS_LIST);
        for element in elements {
            element.check(set, true).unwrap();
            let before = writer.buffer.len();
            element.write(set, &mut writer, true);
            assert!(writer.buffer.len() - before <= element.encoded_length(set));
        }
        writer.end_nested(list);
        writer.end_message(message);
        let mut read = Elements::of(set);
        for message in Messages(&writer.buffer) {
            read.parse(set, message.unwrap().nf().unwrap().1).unwrap();
        }
        match set.shape {
            SetShape::Intervals => read.join_intervals(set),
            _ => read,
        }
    }

    #[test]
    fn elements_are_read_as_they_were_written() {
        let value = DataShape::Value { length: 6 };
        let map = set(SetShape::Exact, 12, value);
        let element = Element::key(&[1, 2, 3, 4, 0, 80, 0, 0, 6, 0, 0, 0]);
        let element = element.with(Data::Value(&[10, 0, 0, 1, 0, 80, 0, 0]));
        assert_eq!(written(&map, &[element]).iter().collect::<Vec<_>>(), [element]);

        let verdicts = set(SetShape::Exact, 2, DataShape::Verdict);
        let elements = [
            Verdict::Goto("class-4"),
            Verdict::Drop,
            Verdict::Continue,
            Verdict::Jump(""),
        ]
        .map(|verdict| Element::key(&[0, 80, 0, 0]).with(Data::Verdict(verdict)));
        assert_eq!(written(&verdicts, &elements).iter().collect::<Vec<_>>(), elements);

        let ranges = set(SetShape::ConcatenatedIntervals, 8, DataShape::None);
        let elements = [
            Element::range(&[10, 0, 0, 0, 0, 80, 0, 0], &[10, 255, 255, 255, 0, 90, 0, 0]),
            Element::key(&[10, 0, 0, 0, 0, 80, 0, 0]),
        ];
        assert_eq!(written(&ranges, &elements).iter().collect::<Vec<_>>(), elements);
    }

    #[test]
    fn ranges_that_touch_and_the_last_range_are_read_as_they_were_written() {
        let intervals = set(SetShape::Intervals, 1, DataShape::None);
        let elements = [
            Element::range(&[0, 0, 0, 0], &[4, 0, 0, 0]),
            Element::key(&[5, 0, 0, 0]),
            Element::key(&[7, 0, 0, 0]),
            Element::range(&[200, 0, 0, 0], &[255, 0, 0, 0]),
        ];
        assert_eq!(
            written(&intervals, &elements).iter().collect::<Vec<_>>(),
            elements
        );
        assert_eq!(
            written(&intervals, &[Element::key(&[255, 0, 0, 0])])
                .iter()
                .next(),
            Some(Element::key(&[255, 0, 0, 0]))
        );
    }

    #[test]
    fn an_element_that_does_not_fit_its_set_is_an_error() {
        let map = set(SetShape::Exact, 4, DataShape::Value { length: 4 });
        let of = |element: Element<'_>| element.check(&map, true).unwrap_err().to_string();
        assert_eq!(
            of(Element::key(&[1])),
            "an element of ip t s has a key of 1 bytes, expected 4"
        );
        assert_eq!(
            of(Element::key(&[1; 4])),
            "an element of ip t s has a value of 0 bytes, expected 4"
        );
        assert!(Element::range(&[1; 4], &[2; 4]).check(&map, false).is_err());
        assert!(Element::key(&[1; 4]).check(&map, false).is_ok());
    }

    proptest! {
        #[test]
        fn random_elements_are_read_without_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            shape in 0..3,
            is_verdict in any::<bool>(),
        ) {
            let shape = [SetShape::Exact, SetShape::Intervals, SetShape::ConcatenatedIntervals][shape as usize];
            let data = if is_verdict { DataShape::Verdict } else { DataShape::Value { length: 2 } };
            let set = set(shape, 2, data);
            let mut elements = Elements::of(&set);
            let _ = elements.parse_element(&set, Attributes(&bytes));
            let mut writer = Writer::default();
            writer.bytes(attribute::ELEMENTS_LIST, &bytes);
            let _ = elements.parse(&set, Attributes(&writer.buffer));
            for element in elements.clone().join_intervals(&set).iter().chain(elements.iter()) {
                prop_assert!(element.key.len() <= 4);
            }
        }
    }
}
