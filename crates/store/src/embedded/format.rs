//! The bytes of the files.
//!
//! A file is a header and then frames; a frame is what one fsync made durable. Every frame's header is checked with
//! the file's salt and the frame's own place in the file, so no bytes of a value, of another file or of an earlier life
//! of the disk block are ever taken for a frame. All numbers are little-endian.
//!
//! ```text
//! file    magic[8] number:u64 salt:u64 oldest:u64 revision:u64 crc:u32        (44 bytes)
//! frame   length:u32 crc(payload):u32 crc(salt, place, the two before):u32 payload[length]
//! log     payload = first-revision:u64 record*      revisions count up by one per transaction
//!         record  = 1 ops:u32 (put:u8 key:u32+bytes (value:u32+bytes if put=1))*   a transaction
//!                 | 2 oldest:u64                                                    a compaction
//! base    payload = record*, the last frame holds one end record
//!         record  = 3 key:u32+bytes mod:u64 create:u64 version:u64 put:u8 (value:u32+bytes if put=1)
//!                 | 4 versions:u64                                                  the end
//! ```

use bytes::Bytes;

use crate::Revision;

pub(super) const HEADER_BYTES: usize = 44;
pub(super) const FRAME_HEADER_BYTES: usize = 12;

/// The largest payload that is written or read: a batch of [`super::writer::BATCH_BYTES`] and one more transaction of the
/// largest size, with room for lengths and numbers.
pub(super) const MAX_FRAME_BYTES: usize = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    /// Transactions as they were committed.
    Log,
    /// Every kept version up to a revision, in key order.
    Base,
}

impl FileKind {
    fn magic(self) -> &'static [u8; 8] {
        match self {
            FileKind::Log => b"knarrlg1",
            FileKind::Base => b"knarrbs1",
        }
    }
}

/// What is wrong with a file's header or with a record.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FormatError {
    #[error("it begins with {found}, not with {expected}")]
    Magic { found: String, expected: String },
    #[error("the checksum of its header is wrong")]
    HeaderChecksum,
    #[error("a record is longer than its frame")]
    RecordTooLong,
    #[error("there is no record of type {0}")]
    UnknownRecord(u8),
    #[error("a flag is {0}")]
    UnknownFlag(u8),
    #[error("there is a record that does not belong: {0:?}")]
    Misplaced(Record),
    #[error("revision {found} follows {newest}")]
    Gap { found: Revision, newest: Revision },
    #[error("there is a version of revision {found}, after {newest}")]
    TooNew { found: Revision, newest: Revision },
}

/// The header of each file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub kind: FileKind,
    /// Of a log: its number. Of a base: the last log it replaces.
    pub number: u64,
    pub salt: u64,
    /// The oldest readable revision and the newest one: of a log before its first record, of a base after its last.
    pub oldest: Revision,
    pub revision: Revision,
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(self.kind.magic());
        let numbers = [self.number, self.salt, self.oldest, self.revision];
        for (field, number) in bytes[8..40].chunks_exact_mut(8).zip(numbers) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        let crc = crc32fast::hash(&bytes[..40]);
        bytes[40..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The header, or what is wrong with it.
    pub fn decode(bytes: &[u8; HEADER_BYTES], kind: FileKind) -> Result<Self, FormatError> {
        let mut fields = Fields { rest: &bytes[8..] };
        let (number, salt, oldest, revision) = (fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?);
        if &bytes[..8] != kind.magic() {
            return Err(FormatError::Magic {
                found: bytes[..8].escape_ascii().to_string(),
                expected: kind.magic().escape_ascii().to_string(),
            });
        }
        if fields.u32()? != crc32fast::hash(&bytes[..40]) {
            return Err(FormatError::HeaderChecksum);
        }
        Ok(Header {
            kind,
            number,
            salt,
            oldest,
            revision,
        })
    }
}

/// Begins a frame in `buffer`; the payload is appended next, then [`end_frame`] is called with what this returned.
pub(super) fn begin_frame(buffer: &mut Vec<u8>) -> usize {
    buffer.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
    buffer.len() - FRAME_HEADER_BYTES
}

/// Completes the frame begun at `start` of the buffer, which will be written at `place` of its file.
pub(super) fn end_frame(buffer: &mut [u8], start: usize, salt: u64, place: u64) {
    let frame = &mut buffer[start..];
    let (header, payload) = frame.split_at_mut(FRAME_HEADER_BYTES);
    debug_assert!(payload.len() <= MAX_FRAME_BYTES);
    header[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[4..8].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
    let crc = header_crc(salt, place, &header[..8]);
    header[8..].copy_from_slice(&crc.to_le_bytes());
}

fn header_crc(salt: u64, place: u64, header: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&salt.to_le_bytes());
    crc.update(&place.to_le_bytes());
    crc.update(header);
    crc.finalize()
}

/// Length and checksum of the payload, if these are the first bytes of a frame at `place`.
pub(super) fn frame_header(bytes: &[u8; FRAME_HEADER_BYTES], salt: u64, place: u64) -> Option<(usize, u32)> {
    let mut fields = Fields { rest: &bytes[..] };
    let (length, payload_crc, crc) = (fields.u32().ok()?, fields.u32().ok()?, fields.u32().ok()?);
    let valid = crc == header_crc(salt, place, &bytes[..8]) && length as usize <= MAX_FRAME_BYTES;
    valid.then_some((length as usize, payload_crc))
}

const TXN: u8 = 1;
const COMPACTION: u8 = 2;
const VERSION: u8 = 3;
const END: u8 = 4;

/// Where a value is in its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub start: usize,
    pub len: usize,
}

/// Appends records to a payload.
pub(super) struct Encoder<'a> {
    pub buffer: &'a mut Vec<u8>,
}

impl Encoder<'_> {
    pub fn u64(&mut self, number: u64) {
        self.buffer.extend_from_slice(&number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        self.buffer.extend_from_slice(bytes);
    }

    pub fn txn(&mut self, ops: usize) {
        self.buffer.push(TXN);
        self.buffer.extend_from_slice(&(ops as u32).to_le_bytes());
    }

    /// One write of a transaction; returns where in the buffer the value is.
    pub fn op(&mut self, key: &[u8], value: Option<&[u8]>) -> Option<Span> {
        self.buffer.push(u8::from(value.is_some()));
        self.bytes(key);
        value.map(|value| self.value(value))
    }

    fn value(&mut self, value: &[u8]) -> Span {
        self.bytes(value);
        Span {
            start: self.buffer.len() - value.len(),
            len: value.len(),
        }
    }

    pub fn compaction(&mut self, oldest: Revision) {
        self.buffer.push(COMPACTION);
        self.u64(oldest);
    }

    /// A version of a base: key, then mod revision, create revision and version.
    pub fn version(&mut self, key: &[u8], numbers: [u64; 3], value: Option<&[u8]>) {
        self.buffer.push(VERSION);
        self.bytes(key);
        numbers.into_iter().for_each(|number| self.u64(number));
        self.buffer.push(u8::from(value.is_some()));
        if let Some(value) = value {
            self.value(value);
        }
    }

    pub fn end(&mut self, versions: u64) {
        self.buffer.push(END);
        self.u64(versions);
    }
}

/// A record as it is read back. Values are given by their place in the payload.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Record {
    Txn(Vec<(Bytes, Option<Span>)>),
    Compaction(Revision),
    Version {
        key: Bytes,
        numbers: [u64; 3],
        value: Option<Span>,
    },
    End {
        versions: u64,
    },
}

/// Reads the records of a payload.
pub(super) struct Decoder<'a> {
    payload: &'a [u8],
    fields: Fields<'a>,
}

impl<'a> Decoder<'a> {
    pub fn new(payload: &'a [u8]) -> Self {
        Decoder {
            payload,
            fields: Fields { rest: payload },
        }
    }

    pub fn u64(&mut self) -> Result<u64, FormatError> {
        self.fields.u64()
    }

    /// The next record; `None` at the end.
    pub fn record(&mut self) -> Result<Option<Record>, FormatError> {
        if self.fields.rest.is_empty() {
            return Ok(None);
        }
        let record = match self.fields.u8()? {
            TXN => {
                let ops = self.fields.u32()?;
                let op = |_| {
                    let put = self.fields.flag()?;
                    let key = Bytes::copy_from_slice(self.fields.bytes()?);
                    Ok((key, if put { Some(self.value()?) } else { None }))
                };
                Record::Txn((0..ops).map(op).collect::<Result<_, FormatError>>()?)
            }
            COMPACTION => Record::Compaction(self.fields.u64()?),
            VERSION => {
                let key = Bytes::copy_from_slice(self.fields.bytes()?);
                let numbers = [self.fields.u64()?, self.fields.u64()?, self.fields.u64()?];
                let put = self.fields.flag()?;
                Record::Version {
                    key,
                    numbers,
                    value: if put { Some(self.value()?) } else { None },
                }
            }
            END => Record::End {
                versions: self.fields.u64()?,
            },
            other => return Err(FormatError::UnknownRecord(other)),
        };
        Ok(Some(record))
    }

    fn value(&mut self) -> Result<Span, FormatError> {
        let len = self.fields.bytes()?.len();
        Ok(Span {
            start: self.payload.len() - self.fields.rest.len() - len,
            len,
        })
    }
}

/// Takes numbers and byte strings off the front.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(FormatError::RecordTooLong)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(FormatError::RecordTooLong)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, FormatError> {
        self.array().map(u8::from_le_bytes)
    }

    fn flag(&mut self) -> Result<bool, FormatError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(FormatError::UnknownFlag(other)),
        }
    }

    fn u32(&mut self) -> Result<u32, FormatError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, FormatError> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Result<&'a [u8], FormatError> {
        let len = self.u32()?;
        self.take(len as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_were_written() {
        let mut buffer = Vec::new();
        let mut encoder = Encoder { buffer: &mut buffer };
        encoder.txn(2);
        let span = encoder.op(b"key", Some(b"value"));
        assert_eq!(encoder.op(b"gone", None), None);
        encoder.compaction(7);
        encoder.version(b"k", [3, 2, 1], Some(b""));
        encoder.version(b"k", [4, 0, 0], None);
        encoder.end(2);
        let mut decoder = Decoder::new(&buffer);
        let mut records = Vec::new();
        while let Some(record) = decoder.record().unwrap() {
            records.push(record);
        }
        let version = |numbers, value| Record::Version {
            key: Bytes::from_static(b"k"),
            numbers,
            value,
        };
        let empty = Some(Span { start: 75, len: 0 });
        assert_eq!(
            records,
            [
                Record::Txn(vec![
                    (Bytes::from_static(b"key"), span),
                    (Bytes::from_static(b"gone"), None)
                ]),
                Record::Compaction(7),
                version([3, 2, 1], empty),
                version([4, 0, 0], None),
                Record::End { versions: 2 },
            ]
        );
        assert_eq!(&buffer[span.unwrap().start..][..5], b"value");
    }

    #[test]
    fn no_cut_or_changed_payload_makes_the_decoder_panic() {
        let mut buffer = Vec::new();
        let mut encoder = Encoder { buffer: &mut buffer };
        encoder.txn(1);
        encoder.op(b"key", Some(b"value"));
        encoder.version(b"k", [3, 2, 1], Some(b"v"));
        for len in 0..buffer.len() {
            for change in [0, 1, 0xff] {
                let mut bytes = buffer[..len].to_vec();
                if let Some(last) = bytes.last_mut() {
                    *last ^= change;
                }
                let mut decoder = Decoder::new(&bytes);
                while let Ok(Some(_)) = decoder.record() {}
            }
        }
    }

    #[test]
    fn a_frame_is_valid_only_in_its_file_and_place() {
        let mut buffer = Vec::new();
        let start = begin_frame(&mut buffer);
        buffer.extend_from_slice(b"payload");
        end_frame(&mut buffer, start, 5, 100);
        let header: &[u8; FRAME_HEADER_BYTES] = buffer.first_chunk().unwrap();
        assert_eq!(
            frame_header(header, 5, 100),
            Some((7, crc32fast::hash(b"payload")))
        );
        assert_eq!(frame_header(header, 6, 100), None);
        assert_eq!(frame_header(header, 5, 101), None);
    }

    #[test]
    fn every_changed_bit_of_a_file_header_is_noticed() {
        let header = Header {
            kind: FileKind::Log,
            number: 1,
            salt: 2,
            oldest: 3,
            revision: 4,
        };
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes, FileKind::Log), Ok(header));
        assert!(Header::decode(&bytes, FileKind::Base).is_err());
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&changed, FileKind::Log).is_err(), "bit {bit}");
        }
    }
}
