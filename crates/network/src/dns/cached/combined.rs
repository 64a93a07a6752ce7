//! Another server's records behind our own, in one answer. Its pointers count from the beginning of its own message: each name is read
//! where it is, and written again where it comes to be.
//!
//! What cannot be read is an error; nothing here panics, and pointers lead backwards only, so that each name ends.

use std::ops::Range;

use super::super::message::{Received, Section, Writer};
use super::super::name::{NAME_BYTES_MAX, Name};
use super::super::query::{HEADER_BYTES, Query};
use super::super::zone::Answer;
use super::{Question, Reply, ReplyError, long, number};

/// A pointer's offset, without the two bits that mark it.
const POINTER: u16 = 0x3fff;

/// Where the data of a type has names that may be compressed: the number of bytes before them, and of names. RFC 1035, and types
/// that RFC 3597 (section 4) requires to be read so, because servers compress them.
fn names_in(record_type: u16) -> (usize, usize) {
    match record_type {
        // NS, MD, MF, CNAME, MB, MG, MR, PTR, DNAME.
        2..=5 | 7..=9 | 12 | 39 => (0, 1),
        // SOA, MINFO, RP.
        6 | 14 | 17 => (0, 2),
        // MX, AFSDB, RT, KX.
        15 | 18 | 21 | 36 => (2, 1),
        // PX.
        26 => (2, 2),
        // SRV.
        33 => (6, 1),
        _ => (0, 0),
    }
}

/// The labels of the name at `start`, and where it ends.
fn read_name(bytes: &[u8], start: usize) -> Option<(Vec<&[u8]>, usize)> {
    let mut labels = Vec::new();
    let mut end = None;
    let (mut at, mut begin) = (start, start);
    let mut wire_bytes = 1;
    loop {
        match *bytes.get(at)? {
            0 => return Some((labels, end.unwrap_or(at + 1))),
            length @ 1..=63 => {
                let next = at + 1 + usize::from(length);
                labels.push(bytes.get(at + 1..next)?);
                wire_bytes += next - at;
                if wire_bytes > NAME_BYTES_MAX {
                    return None;
                }
                at = next;
            }
            192.. => {
                let target = usize::from(number(bytes, at)? & POINTER);
                if target >= begin {
                    return None;
                }
                end = end.or(Some(at + 2));
                (at, begin) = (target, target);
            }
            _ => return None,
        }
    }
}

/// The data of a record, with each name in full and in the case that the server sent.
fn read_data(bytes: &[u8], range: Range<usize>, record_type: u16) -> Option<Vec<u8>> {
    let (before, names) = names_in(record_type);
    let mut at = range.start + before;
    let mut data = bytes.get(range.start..at)?.to_vec();
    for _ in 0..names {
        let (labels, end) = read_name(bytes, at)?;
        for label in labels {
            data.push(label.len() as u8);
            data.extend_from_slice(label);
        }
        data.push(0);
        at = end;
    }
    data.extend_from_slice(bytes.get(at..range.end)?);
    Some(data)
}

/// The record at `at`, and where it ends.
fn read_record(bytes: &[u8], at: usize) -> Option<(Received, usize)> {
    let (labels, fixed) = read_name(bytes, at)?;
    let data = fixed + 10;
    let end = data + usize::from(number(bytes, fixed + 8)?);
    let record_type = number(bytes, fixed)?;
    let record = Received {
        owner: Name::of_labels(labels, &Name::root())?,
        record_type,
        class: number(bytes, fixed + 2)?,
        ttl_seconds: long(bytes, fixed + 4)?,
        data: read_data(bytes, data..end, record_type)?,
    };
    Some((record, end))
}

impl Reply {
    /// Writes an answer that has our own records, and behind them the answers and the authority of this reply to `question`,
    /// `age_seconds` after it was received. It has the reply's response code. After an error `out` holds a part of it.
    pub fn write_behind(
        &self,
        out: &mut Vec<u8>,
        query: &Query<'_>,
        own: &Answer,
        question: &Question,
        age_seconds: u32,
        limit: usize,
    ) -> Result<(), ReplyError> {
        let mut writer = Writer::begin(out, query, limit);
        for record in &own.records {
            writer.record(Section::Answer, record);
        }
        let message = self.message(question, age_seconds);
        let mut at = HEADER_BYTES + self.question_bytes;
        for (section, count) in [
            (Section::Answer, self.counts[0]),
            (Section::Authority, self.counts[1]),
        ] {
            for _ in 0..count {
                let (record, end) = read_record(&message, at).ok_or(ReplyError::Malformed)?;
                writer.received(section, &record);
                at = end;
            }
        }
        for record in &own.additional {
            writer.record(Section::Additional, record);
        }
        writer.finish(self.code, false);
        Ok(())
    }
}
