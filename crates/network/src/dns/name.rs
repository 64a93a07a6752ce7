//! Domain names in the form in which they are compared: labels in lower case, each after its length.

use std::fmt;

/// RFC 1035: a name with the lengths of its labels and the root's.
pub const NAME_BYTES_MAX: usize = 255;
/// RFC 1035.
pub const LABEL_BYTES_MAX: usize = 63;

/// Why a text is not a domain name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("a label is empty")]
    EmptyLabel,
    #[error("a label is longer than 63 bytes")]
    LongLabel,
    #[error("the name is longer than 255 bytes")]
    LongName,
}

/// A fully qualified domain name. Uncompressed wire format without the root's zero byte, ASCII letters in lower case.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Vec<u8>);

impl Name {
    /// The root.
    pub fn root() -> Self {
        Name::default()
    }

    /// From dotted text; a dot at the end may be left out. Escapes (`\.`) are not known: no Kubernetes name has any.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let mut name = Name::root();
        if !text.is_empty() {
            for label in text.split('.') {
                name.push(label.as_bytes())?;
            }
        }
        Ok(name)
    }

    /// Adds a label at the root's end.
    pub fn push(&mut self, label: &[u8]) -> Result<(), NameError> {
        if label.is_empty() {
            return Err(NameError::EmptyLabel);
        }
        if label.len() > LABEL_BYTES_MAX {
            return Err(NameError::LongLabel);
        }
        // One byte for the label's length and one for the root's.
        if self.0.len() + label.len() + 2 > NAME_BYTES_MAX {
            return Err(NameError::LongName);
        }
        self.0.push(label.len() as u8);
        self.0.extend(label.iter().map(u8::to_ascii_lowercase));
        Ok(())
    }

    /// These labels in front of a suffix; `None` where that is no name.
    pub fn of_labels<'a>(labels: impl IntoIterator<Item = &'a [u8]>, suffix: &'a Name) -> Option<Self> {
        let mut name = Name::root();
        for label in labels.into_iter().chain(suffix.labels()) {
            name.push(label).ok()?;
        }
        Some(name)
    }

    /// From the host's end to the root's.
    pub fn labels(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.0[..];
        std::iter::from_fn(move || {
            let (length, tail) = rest.split_first()?;
            let (label, tail) = tail.split_at_checked(usize::from(*length))?;
            rest = tail;
            Some(label)
        })
    }

    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The labels in front of `suffix`, where the name is that or below it.
    pub fn below<'a>(&'a self, suffix: &Name) -> Option<Labels<'a>> {
        let cut = self.0.len().checked_sub(suffix.0.len())?;
        if self.0[cut..] != suffix.0[..] {
            return None;
        }
        let mut labels = Labels::default();
        let mut at = 0;
        while at < cut {
            let length = usize::from(self.0[at]);
            labels.0.push(self.0.get(at + 1..at + 1 + length)?);
            at += 1 + length;
        }
        // Bytes may be equal where labels are not.
        (at == cut).then_some(labels)
    }

    /// Wire format with the root's zero byte.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
        out.push(0);
    }

    /// Bytes of the wire format.
    pub fn wire_bytes(&self) -> usize {
        self.0.len() + 1
    }
}

/// A few labels, from the host's end.
#[derive(Clone, Debug, Default)]
pub struct Labels<'a>(Vec<&'a [u8]>);

impl<'a> Labels<'a> {
    pub fn as_slice(&self) -> &[&'a [u8]] {
        &self.0
    }
}

/// With a dot at the end; what is not printable as `\ddd` (RFC 1035 5.1).
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() {
            return f.write_str(".");
        }
        for label in self.labels() {
            for byte in label {
                match byte {
                    b'.' | b'\\' => write!(f, "\\{}", char::from(*byte))?,
                    0x21..=0x7e => write!(f, "{}", char::from(*byte))?,
                    _ => write!(f, "\\{byte:03}")?,
                }
            }
            f.write_str(".")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
