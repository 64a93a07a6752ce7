//! Elements of DER, read strictly and written.
//!
//! Only DER is accepted: definite lengths in their shortest form and tags of one byte. A sequence is read to its end, so
//! that nothing in it is passed over.

use der::asn1::{AnyRef, ObjectIdentifier};
use der::{Decode, Encode, Reader, SliceReader, Tag, TagNumber, Tagged};

/// An element: its tag and content, and the bytes of both.
#[derive(Clone, Copy, Debug)]
pub struct Element<'a> {
    raw: &'a [u8],
    value: AnyRef<'a>,
}

impl<'a> Element<'a> {
    /// The one element that these bytes are.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, der::Error> {
        Ok(Element {
            raw: bytes,
            value: AnyRef::from_der(bytes)?,
        })
    }

    /// All its bytes.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    pub fn tag(&self) -> Tag {
        self.value.tag()
    }

    /// Its content, where it has this tag.
    pub fn content(&self, tag: Tag) -> Result<&'a [u8], der::Error> {
        self.tag().assert_eq(tag)?;
        Ok(self.value.value())
    }

    /// The elements that it consists of, where it has this tag.
    pub fn elements(&self, tag: Tag) -> Result<Vec<Element<'a>>, der::Error> {
        let mut reader = SliceReader::new(self.content(tag)?)?;
        let mut elements = Vec::new();
        while !reader.is_finished() {
            elements.push(Element::decode(reader.tlv_bytes()?)?);
        }
        Ok(elements)
    }

    /// The elements of a SEQUENCE of exactly so many.
    pub fn sequence<const N: usize>(&self) -> Result<[Element<'a>; N], der::Error> {
        let elements = self.elements(Tag::Sequence)?;
        elements.try_into().map_err(|_| Tag::Sequence.value_error())
    }

    pub fn oid(&self) -> Result<ObjectIdentifier, der::Error> {
        self.value.decode_as()
    }
}

/// `[number]`, a context-specific tag.
pub fn context(number: u8, constructed: bool) -> Tag {
    Tag::ContextSpecific {
        constructed,
        number: TagNumber::new(number),
    }
}

/// An element with these parts for its content.
pub fn element(tag: Tag, parts: &[&[u8]]) -> Result<Vec<u8>, der::Error> {
    AnyRef::new(tag, &parts.concat())?.to_der()
}

/// A SEQUENCE of these elements.
pub fn sequence(parts: &[&[u8]]) -> Result<Vec<u8>, der::Error> {
    element(Tag::Sequence, parts)
}

/// A BIT STRING of whole bytes.
pub fn bit_string(bytes: &[u8]) -> Result<Vec<u8>, der::Error> {
    element(Tag::BitString, &[&[0], bytes])
}
