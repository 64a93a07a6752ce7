//! Netlink's framing: messages of attributes, written into a buffer and read out of one.
//!
//! Reading never leaves the buffer and never panics: what does not fit its stated length is [`Malformed`].

/// Length of a netlink header and of the nfnetlink header that follows it.
pub(crate) const HEADER: usize = 16;
pub(crate) const NF_HEADER: usize = 4;
const ATTRIBUTE_HEADER: usize = 4;
/// An attribute's length has 16 bits, its header included.
pub(crate) const MAX_ATTRIBUTE: usize = u16::MAX as usize;

const NESTED: u16 = 0x8000;
const TYPE_MASK: u16 = 0x3fff;

/// What was received is not what netlink's framing allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed netlink message: {0}")]
pub struct Malformed(pub(crate) &'static str);

/// Messages and attributes are padded to 4 bytes.
pub(crate) fn padded(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// A header that is not yet complete: [`Writer::end_message`] and [`Writer::end_nested`] fill in the length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open(usize);

/// Builds messages one behind the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writer {
    pub buffer: Vec<u8>,
}

impl Writer {
    /// Begins a message of nfnetlink.
    pub fn message(&mut self, kind: u16, flags: u16, sequence: u32, family: u8, resource: u16) -> Open {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[0; 4]);
        self.buffer.extend_from_slice(&kind.to_ne_bytes());
        self.buffer.extend_from_slice(&flags.to_ne_bytes());
        self.buffer.extend_from_slice(&sequence.to_ne_bytes());
        self.buffer.extend_from_slice(&[0; 4]);
        self.buffer.extend_from_slice(&[family, 0]);
        self.buffer.extend_from_slice(&resource.to_be_bytes());
        Open(start)
    }

    pub fn end_message(&mut self, open: Open) {
        let length = self.buffer.len() - open.0;
        self.set(open.0, &u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
    }

    /// Adds flags to the message that begins at this place.
    pub fn add_flags(&mut self, message: usize, flags: u16) {
        let at = message + 6;
        if let Some(&[a, b]) = self.buffer.get(at..at + 2) {
            let flags = u16::from_ne_bytes([a, b]) | flags;
            self.set(at, &flags.to_ne_bytes());
        }
    }

    /// Numbers the message that begins at this place.
    pub fn number(&mut self, message: usize, sequence: u32) {
        self.set(message + 8, &sequence.to_ne_bytes());
    }

    pub fn nested(&mut self, kind: u16) -> Open {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[0; 2]);
        self.buffer.extend_from_slice(&(kind | NESTED).to_ne_bytes());
        Open(start)
    }

    pub fn end_nested(&mut self, open: Open) {
        let length = self.buffer.len() - open.0;
        // The writers of long lists stop before MAX_ATTRIBUTE.
        self.set(open.0, &u16::try_from(length).unwrap_or(u16::MAX).to_ne_bytes());
    }

    /// How long the nested attribute is by now.
    pub fn length_of(&self, open: Open) -> usize {
        self.buffer.len() - open.0
    }

    pub fn bytes(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(ATTRIBUTE_HEADER + value.len()).unwrap_or(u16::MAX);
        self.buffer.extend_from_slice(&length.to_ne_bytes());
        self.buffer.extend_from_slice(&kind.to_ne_bytes());
        self.buffer.extend_from_slice(value);
        self.buffer.resize(padded(self.buffer.len()), 0);
    }

    /// A string with its closing zero.
    pub fn text(&mut self, kind: u16, value: &str) {
        let length = u16::try_from(ATTRIBUTE_HEADER + value.len() + 1).unwrap_or(u16::MAX);
        self.buffer.extend_from_slice(&length.to_ne_bytes());
        self.buffer.extend_from_slice(&kind.to_ne_bytes());
        self.buffer.extend_from_slice(value.as_bytes());
        self.buffer.push(0);
        self.buffer.resize(padded(self.buffer.len()), 0);
    }

    pub fn u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    fn set(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.buffer.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }
}

/// One received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    /// What follows the netlink header.
    pub body: &'a [u8],
}

impl<'a> Message<'a> {
    /// The address family and the attributes of an nfnetlink message.
    pub fn nf(&self) -> Result<(u8, Attributes<'a>), Malformed> {
        match self.body {
            [family, _, _, _, attributes @ ..] => Ok((*family, Attributes(attributes))),
            _ => Err(Malformed("no nfnetlink header")),
        }
    }
}

/// The messages of one datagram.
pub(crate) struct Messages<'a>(pub &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.0);
        let (Some(header), Some(length)) = (rest.get(..HEADER), u32_at(rest, 0)) else {
            return Some(Err(Malformed("a header is cut off")));
        };
        let length = length as usize;
        let Some(body) = rest.get(HEADER..length) else {
            return Some(Err(Malformed("a message is longer than what was received")));
        };
        self.0 = rest.get(padded(length)..).unwrap_or_default();
        Some(Ok(Message {
            kind: u16::from_ne_bytes([header[4], header[5]]),
            flags: u16::from_ne_bytes([header[6], header[7]]),
            sequence: u32_at(header, 8)?,
            body,
        }))
    }
}

/// A number in the host's byte order.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// A sequence of attributes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attributes<'a>(pub &'a [u8]);

impl<'a> Attributes<'a> {
    /// The first of this type.
    pub fn find(self, kind: u16) -> Result<Option<&'a [u8]>, Malformed> {
        for attribute in self {
            let (of, value) = attribute?;
            if of == kind {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    pub fn nested(self, kind: u16) -> Result<Option<Attributes<'a>>, Malformed> {
        Ok(self.find(kind)?.map(Attributes))
    }
}

impl<'a> Iterator for Attributes<'a> {
    /// Type and value.
    type Item = Result<(u16, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.0);
        let Some(&[a, b, c, d]) = rest.get(..ATTRIBUTE_HEADER) else {
            return Some(Err(Malformed("an attribute's header is cut off")));
        };
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let kind = u16::from_ne_bytes([c, d]) & TYPE_MASK;
        let Some(value) = rest.get(ATTRIBUTE_HEADER..length) else {
            return Some(Err(Malformed("an attribute is longer than what it is in")));
        };
        self.0 = rest.get(padded(length)..).unwrap_or_default();
        Some(Ok((kind, value)))
    }
}

/// A number in network byte order.
pub(crate) fn be32(value: &[u8]) -> Result<u32, Malformed> {
    let bytes = value
        .try_into()
        .map_err(|_| Malformed("a number is not of 4 bytes"))?;
    Ok(u32::from_be_bytes(bytes))
}

pub(crate) fn be64(value: &[u8]) -> Result<u64, Malformed> {
    let bytes = value
        .try_into()
        .map_err(|_| Malformed("a number is not of 8 bytes"))?;
    Ok(u64::from_be_bytes(bytes))
}

pub(crate) fn be16(value: &[u8]) -> Result<u16, Malformed> {
    let bytes = value
        .try_into()
        .map_err(|_| Malformed("a number is not of 2 bytes"))?;
    Ok(u16::from_be_bytes(bytes))
}

/// A string up to its closing zero.
pub(crate) fn text(value: &[u8]) -> Result<&str, Malformed> {
    let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
    std::str::from_utf8(&value[..end]).map_err(|_| Malformed("a name is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let mut w = Writer::default();
        for sequence in [7, 8] {
            let message = w.message(0x0a0c, 5, sequence, 2, 10);
            w.text(1, "abc");
            let nested = w.nested(3);
            w.u32(1, 99);
            w.bytes(2, &[1, 2, 3, 4, 5]);
            w.end_nested(nested);
            w.end_message(message);
            w.add_flags(message.0, 0x100);
        }
        let all: Vec<_> = Messages(&w.buffer).collect::<Result<_, _>>().unwrap();
        assert_eq!(all.iter().map(|m| m.sequence).collect::<Vec<_>>(), [7, 8]);
        let (family, attributes) = all[1].nf().unwrap();
        assert_eq!((all[1].kind, all[1].flags, family), (0x0a0c, 0x105, 2));
        assert_eq!(text(attributes.find(1).unwrap().unwrap()).unwrap(), "abc");
        let nested = attributes.nested(3).unwrap().unwrap();
        assert_eq!(be32(nested.find(1).unwrap().unwrap()).unwrap(), 99);
        assert_eq!(nested.find(2).unwrap().unwrap(), [1, 2, 3, 4, 5]);
        assert_eq!(nested.find(9).unwrap(), None);
    }

    proptest! {
        #[test]
        fn random_bytes_end_and_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut count = 0;
            for message in Messages(&bytes) {
                count += 1;
                let Ok(message) = message else { break };
                if let Ok((_, attributes)) = message.nf() {
                    prop_assert!(attributes.count() <= bytes.len());
                }
            }
            prop_assert!(count <= bytes.len());
        }
    }
}
