//! Answers of upstream servers: checked once, kept as they were received, and sent with the client's id, question and
//! EDNS.

use super::message::{response_flags, write_opt};
use super::name::Name;
use super::query::{FLAG_RESPONSE, FLAG_TRUNCATED, HEADER_BYTES, Query, number, skip_name};
use super::{record_type, response_code};

mod combined;

/// The longest time that answers are cached: `cache 30` in Kubernetes' Corefile.
const TTL_SECONDS_MAX: u32 = 30;
/// How long failures are cached, as in CoreDNS; RFC 2308 allows five minutes.
const FAILURE_SECONDS: u32 = 5;
/// 0x0010 is CD, 0x0020 is AD: an upstream server's result of validation is sent to clients that requested it.
const FLAG_AUTHENTIC: u16 = 0x0020;

/// A question to an upstream server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Question {
    pub name: Name,
    pub record_type: u16,
    pub dnssec_ok: bool,
    pub checking_disabled: bool,
}

impl Question {
    pub fn new(name: Name, query: &Query<'_>) -> Self {
        Question {
            name,
            record_type: query.record_type,
            dnssec_ok: query.dnssec_ok(),
            checking_disabled: query.flags & super::query::FLAG_CHECKING_DISABLED != 0,
        }
    }

    /// The message with the question.
    pub fn message(&self, id: u16) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + self.name.wire_bytes() + 16);
        let flags = super::query::FLAG_RECURSION_DESIRED
            | match self.checking_disabled {
                true => super::query::FLAG_CHECKING_DISABLED,
                false => 0,
            };
        for value in [id, flags, 1, 0, 0, 1] {
            out.extend_from_slice(&value.to_be_bytes());
        }
        self.name.write(&mut out);
        out.extend_from_slice(&self.record_type.to_be_bytes());
        out.extend_from_slice(&1u16.to_be_bytes());
        write_opt(&mut out, 0, self.dnssec_ok);
        out
    }
}

/// Why a message is not the answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// It answers another question: late or forged. Keep waiting.
    #[error("the message answers another question")]
    Foreign,
    #[error("the answer cannot be read")]
    Malformed,
}

/// A checked answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The bytes after the question, without EDNS.
    records: Box<[u8]>,
    counts: [u16; 3],
    code: u16,
    is_authentic: bool,
    /// The offsets of the TTLs in `records`.
    ttls: Box<[u32]>,
    /// The length of the question: pointers into it stay valid, whatever the client's case.
    question_bytes: usize,
    pub lifetime_seconds: u32,
    pub is_truncated: bool,
}

fn long(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from(number(bytes, at)?) << 16 | u32::from(number(bytes, at + 2)?))
}

impl Reply {
    /// Reads what a server sent to [`Question::message`] with this id.
    pub fn read(bytes: &[u8], question: &Question, id: u16) -> Result<Self, ReplyError> {
        let header = |at| number(bytes, at).ok_or(ReplyError::Foreign);
        let (got, flags) = (header(0)?, header(2)?);
        if got != id || flags & FLAG_RESPONSE == 0 {
            return Err(ReplyError::Foreign);
        }
        let mut question_bytes = Vec::with_capacity(question.name.wire_bytes() + 4);
        question.name.write(&mut question_bytes);
        question_bytes.extend_from_slice(&question.record_type.to_be_bytes());
        question_bytes.extend_from_slice(&1u16.to_be_bytes());
        let end = HEADER_BYTES + question_bytes.len();
        let code = flags & 0xf;
        match bytes.get(HEADER_BYTES..end) {
            Some(echoed) if header(4)? == 1 && echoed.eq_ignore_ascii_case(&question_bytes) => {}
            // Servers that cannot read a question may leave it out.
            None if header(4)? == 0 && code != response_code::NO_ERROR => {
                return Ok(Reply::empty(code, question_bytes.len()));
            }
            _ => return Err(ReplyError::Foreign),
        }
        let counts = [header(6)?, header(8)?, header(10)?];
        let is_truncated = flags & FLAG_TRUNCATED != 0;
        let mut reply = Reply {
            is_truncated,
            is_authentic: flags & FLAG_AUTHENTIC != 0,
            ..Reply::empty(code, question_bytes.len())
        };
        if !is_truncated {
            reply.records(bytes, end, counts).ok_or(ReplyError::Malformed)?;
        }
        Ok(reply)
    }

    fn empty(code: u16, question_bytes: usize) -> Self {
        Reply {
            records: Box::default(),
            counts: [0; 3],
            code,
            is_authentic: false,
            ttls: Box::default(),
            question_bytes,
            lifetime_seconds: FAILURE_SECONDS,
            is_truncated: false,
        }
    }

    /// Keeps everything up to EDNS; additional records after it are left out, so that no pointers have to be moved.
    fn records(&mut self, bytes: &[u8], start: usize, counts: [u16; 3]) -> Option<()> {
        let mut at = start;
        let mut ttls = Vec::new();
        let mut lowest = u32::MAX;
        let mut negative = None;
        'sections: for (section, count) in counts.into_iter().enumerate() {
            for _ in 0..count {
                let fixed = skip_name(bytes, at)?;
                let record_type = number(bytes, fixed)?;
                if record_type == record_type::OPT {
                    break 'sections;
                }
                let ttl = long(bytes, fixed + 4)?;
                let next = fixed + 10 + usize::from(number(bytes, fixed + 8)?);
                bytes.get(at..next)?;
                ttls.push(u32::try_from(fixed + 4 - start).ok()?);
                lowest = lowest.min(ttl);
                if section == 1 && record_type == record_type::SOA && next - fixed >= 14 {
                    negative = Some(ttl.min(long(bytes, next - 4)?));
                }
                self.counts[section] += 1;
                at = next;
            }
        }
        let is_answer = self.code == response_code::NO_ERROR && self.counts[0] > 0;
        let lifetime = match self.code {
            _ if is_answer => lowest,
            // A negative answer without SOA is not cached (RFC 2308).
            response_code::NO_ERROR | response_code::NAME_ERROR => negative.unwrap_or(0).min(lowest),
            _ => FAILURE_SECONDS,
        };
        self.lifetime_seconds = lifetime.min(TTL_SECONDS_MAX);
        self.records = bytes.get(start..at)?.into();
        self.ttls = ttls.into();
        Some(())
    }

    pub fn code(&self) -> u16 {
        self.code
    }

    pub fn has_answers(&self) -> bool {
        self.counts[0] > 0
    }

    /// Heap bytes.
    pub fn bytes(&self) -> usize {
        self.records.len() + self.ttls.len() * 4
    }

    /// Writes the answer for a client whose question has this name, `age` seconds after it was received.
    pub fn write(&self, out: &mut Vec<u8>, query: &Query<'_>, age_seconds: u32, limit: usize) {
        let start = out.len();
        let opt_bytes = if query.edns.is_some() { 11 } else { 0 };
        // Pointers count from the beginning, and the question in front of them must be as long as theirs was.
        let has_room = HEADER_BYTES + query.question.len() + self.records.len() + opt_bytes <= limit;
        let is_truncated = self.is_truncated || !has_room;
        let is_kept = !is_truncated && query.question.len() == self.question_bytes;
        let mut counts = if is_kept { self.counts } else { [0; 3] };
        if query.edns.is_some() {
            counts[2] = counts[2].saturating_add(1);
        }
        let mut flags = response_flags(query.flags) | self.code;
        if is_truncated {
            flags |= FLAG_TRUNCATED;
        }
        if self.is_authentic && query.dnssec_ok() {
            flags |= FLAG_AUTHENTIC;
        }
        for value in [query.id, flags, 1, counts[0], counts[1], counts[2]] {
            out.extend_from_slice(&value.to_be_bytes());
        }
        out.extend_from_slice(query.question);
        if is_kept {
            self.write_records(out, age_seconds);
        }
        if let Some(edns) = query.edns {
            write_opt(out, 0, edns.dnssec_ok);
        }
        debug_assert!(out.len() - start <= limit.max(HEADER_BYTES + query.question.len() + opt_bytes));
    }

    fn write_records(&self, out: &mut Vec<u8>, age_seconds: u32) {
        let records = out.len();
        out.extend_from_slice(&self.records);
        for at in &self.ttls {
            let at = records + *at as usize;
            if let Some(ttl) = long(out, at) {
                out[at..at + 4].copy_from_slice(&ttl.saturating_sub(age_seconds).to_be_bytes());
            }
        }
    }

    /// The whole message as the other server would send it without EDNS, `age` seconds after it came.
    pub fn message(&self, question: &Question, age_seconds: u32) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + self.question_bytes + self.records.len());
        let [answers, authority, additional] = self.counts;
        for value in [0, FLAG_RESPONSE | self.code, 1, answers, authority, additional] {
            out.extend_from_slice(&value.to_be_bytes());
        }
        question.name.write(&mut out);
        out.extend_from_slice(&question.record_type.to_be_bytes());
        out.extend_from_slice(&1u16.to_be_bytes());
        self.write_records(&mut out, age_seconds);
        out
    }
}

#[cfg(test)]
mod tests;
