//! Protobuf's wire format (encoding spec of protocol buffers): tags, varints, lengths.

use super::Error;

/// One value in its wire format.
#[derive(Clone, Copy, Debug)]
pub enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32,
    Bytes(&'a [u8]),
}

impl Wire<'_> {
    /// The number of its wire type.
    pub fn number(&self) -> u8 {
        match self {
            Wire::Varint(_) => 0,
            Wire::Fixed64(_) => 1,
            Wire::Bytes(_) => 2,
            Wire::Fixed32 => 5,
        }
    }
}

/// Reads fields one after the other; never beyond the end.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// The next field's number and value; `None` at the end.
    pub fn next(&mut self) -> Result<Option<(u32, Wire<'a>)>, Error> {
        let Some(tag) = self.varint_or_end()? else {
            return Ok(None);
        };
        let number = u32::try_from(tag >> 3).map_err(|_| Error::Truncated)?;
        let wire = match tag & 7 {
            0 => Wire::Varint(self.varint_or_end()?.ok_or(Error::Truncated)?),
            1 => {
                let bytes = self.take(8)?;
                Wire::Fixed64(u64::from_le_bytes(
                    bytes.try_into().map_err(|_| Error::Truncated)?,
                ))
            }
            2 => {
                let length = self.varint_or_end()?.ok_or(Error::Truncated)?;
                Wire::Bytes(self.take(usize::try_from(length).map_err(|_| Error::Truncated)?)?)
            }
            5 => {
                self.take(4)?;
                Wire::Fixed32
            }
            // Groups, which Kubernetes never had.
            _ => return Err(Error::Truncated),
        };
        Ok(Some((number, wire)))
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.rest.split_at_checked(n).ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// A varint of at most ten bytes; `None` at the end.
    pub fn varint_or_end(&mut self) -> Result<Option<u64>, Error> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(Some(value));
            }
        }
        Err(Error::Truncated)
    }
}
