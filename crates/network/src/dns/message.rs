//! Writes answers. An owner name that equals the question's is a pointer to it; an answer that is longer than the client
//! accepts has the TC bit and no records, so that the client retries over TCP.

use std::net::IpAddr;

use super::name::Name;
use super::query::{
    FLAG_AUTHORITATIVE, FLAG_CHECKING_DISABLED, FLAG_RECURSION_AVAILABLE, FLAG_RECURSION_DESIRED,
    FLAG_RESPONSE, FLAG_TRUNCATED, HEADER_BYTES, Query, Rejected, UDP_BYTES_MAX,
};
use super::{record_type, response_code};

/// The longest message TCP can carry.
pub const TCP_BYTES_MAX: usize = u16::MAX as usize;
const OPT_BYTES: usize = 11;
const CLASS_IN: u16 = 1;
/// A pointer to the question's name, which is at the same offset in every answer.
const QUESTION_POINTER: u16 = 0xc000 | HEADER_BYTES as u16;
/// Pointers have 14 bits.
const POINTER_MAX: usize = 0x3fff;

/// The data of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    Address(IpAddr),
    Cname(Name),
    Ns(Name),
    Ptr(Name),
    Srv {
        priority: u16,
        weight: u16,
        port: u16,
        target: Name,
    },
    Txt(&'static str),
    Soa(Soa),
    /// The one record that a question for ANY gets (RFC 8482): HINFO "RFC8482" "".
    MinimalAny,
}

/// The start of authority of the cluster's zone; its minimum is how long negative answers are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Soa {
    pub primary: Name,
    pub mailbox: Name,
    pub serial: u32,
    pub refresh_seconds: u32,
    pub retry_seconds: u32,
    pub expire_seconds: u32,
    pub minimum_seconds: u32,
}

impl Data {
    pub fn record_type(&self) -> u16 {
        match self {
            Data::Address(IpAddr::V4(_)) => record_type::A,
            Data::Address(IpAddr::V6(_)) => record_type::AAAA,
            Data::Cname(_) => record_type::CNAME,
            Data::Ns(_) => record_type::NS,
            Data::Ptr(_) => record_type::PTR,
            Data::Srv { .. } => record_type::SRV,
            Data::Txt(_) => record_type::TXT,
            Data::Soa(_) => record_type::SOA,
            Data::MinimalAny => record_type::HINFO,
        }
    }
}

/// A record of class IN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// `None`: the question's name.
    pub owner: Option<Name>,
    pub ttl_seconds: u32,
    pub data: Data,
}

/// A record of another server's message. Its data has no pointers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub owner: Name,
    pub record_type: u16,
    pub class: u16,
    pub ttl_seconds: u32,
    pub data: Vec<u8>,
}

/// The section of a record; sections are written in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    Answer,
    Authority,
    Additional,
}

/// Appends one answer to `out`.
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
    query: &'a Query<'a>,
    start: usize,
    limit: usize,
    counts: [u16; 3],
    truncated: bool,
    /// Names that were written uncompressed, and their offsets.
    names: Vec<(Name, u16)>,
}

impl<'a> Writer<'a> {
    /// `limit` counts the whole message and holds as long as header, question and OPT fit in.
    pub fn begin(out: &'a mut Vec<u8>, query: &'a Query<'a>, limit: usize) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        out.extend_from_slice(query.question);
        let reserved = if query.edns.is_some() { OPT_BYTES } else { 0 };
        Writer {
            out,
            query,
            start,
            limit: limit.min(TCP_BYTES_MAX).saturating_sub(reserved),
            counts: [0; 3],
            truncated: false,
            names: Vec::new(),
        }
    }

    /// Adds a record. One that does not fit empties the answer; an additional one that does not fit is left out.
    pub fn record(&mut self, section: Section, record: &Record) {
        self.add(section, |writer| writer.write(record));
    }

    /// As [`Writer::record`].
    pub fn received(&mut self, section: Section, record: &Received) {
        self.add(section, |writer| {
            writer.owner(Some(&record.owner));
            writer.number(record.record_type);
            writer.number(record.class);
            writer.long(record.ttl_seconds);
            // Data of more than 16 bits fits in no message, and the record is removed again.
            writer.number(record.data.len() as u16);
            writer.out.extend_from_slice(&record.data);
        });
    }

    fn add(&mut self, section: Section, write: impl FnOnce(&mut Self)) {
        if self.truncated {
            return;
        }
        let before = self.out.len();
        let names_before = self.names.len();
        write(self);
        if self.out.len() - self.start <= self.limit {
            // No overflow: 65 535 bytes have fewer records.
            self.counts[section as usize] += 1;
            return;
        }
        self.names.truncate(names_before);
        self.out.truncate(before);
        if section != Section::Additional {
            self.truncate();
        }
    }

    /// Empties the answer and sets the TC bit.
    fn truncate(&mut self) {
        self.truncated = true;
        self.counts = [0; 3];
        self.out
            .truncate(self.start + HEADER_BYTES + self.query.question.len());
    }

    fn number(&mut self, value: u16) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    fn long(&mut self, value: u32) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    fn remember(&mut self, name: &Name) {
        let at = self.out.len() - self.start;
        if at <= POINTER_MAX {
            self.names.push((name.clone(), 0xc000 | at as u16));
        }
    }

    fn owner(&mut self, owner: Option<&Name>) {
        let Some(name) = owner else {
            return self.number(QUESTION_POINTER);
        };
        if let Some((_, pointer)) = self.names.iter().find(|(known, _)| known == name) {
            let pointer = *pointer;
            return self.number(pointer);
        }
        self.remember(name);
        name.write(self.out);
    }

    /// Names in data are not compressed: RFC 2782 requires that for SRV, and the others are short.
    fn target(&mut self, name: &Name) {
        self.remember(name);
        name.write(self.out);
    }

    fn write(&mut self, record: &Record) {
        self.owner(record.owner.as_ref());
        self.number(record.data.record_type());
        self.number(CLASS_IN);
        self.long(record.ttl_seconds);
        let length_at = self.out.len();
        self.number(0);
        match &record.data {
            Data::Address(IpAddr::V4(address)) => self.out.extend_from_slice(&address.octets()),
            Data::Address(IpAddr::V6(address)) => self.out.extend_from_slice(&address.octets()),
            Data::Cname(name) | Data::Ns(name) | Data::Ptr(name) => self.target(name),
            Data::Srv {
                priority,
                weight,
                port,
                target,
            } => {
                for value in [*priority, *weight, *port] {
                    self.number(value);
                }
                self.target(target);
            }
            Data::Txt(text) => self.text(text),
            Data::Soa(soa) => {
                self.target(&soa.primary);
                self.target(&soa.mailbox);
                for value in [
                    soa.serial,
                    soa.refresh_seconds,
                    soa.retry_seconds,
                    soa.expire_seconds,
                    soa.minimum_seconds,
                ] {
                    self.long(value);
                }
            }
            Data::MinimalAny => {
                self.text("RFC8482");
                self.text("");
            }
        }
        let length = (self.out.len() - length_at - 2) as u16;
        self.out[length_at..length_at + 2].copy_from_slice(&length.to_be_bytes());
    }

    /// One character string; ours are short.
    fn text(&mut self, text: &str) {
        let bytes = &text.as_bytes()[..text.len().min(255)];
        self.out.push(bytes.len() as u8);
        self.out.extend_from_slice(bytes);
    }

    /// Completes the message.
    pub fn finish(mut self, code: u16, is_authoritative: bool) {
        if let Some(edns) = self.query.edns {
            self.counts[Section::Additional as usize] += 1;
            write_opt(self.out, code, edns.dnssec_ok);
        }
        let mut flags = response_flags(self.query.flags) | (code & 0xf);
        if is_authoritative {
            flags |= FLAG_AUTHORITATIVE;
        }
        if self.truncated {
            flags |= FLAG_TRUNCATED;
        }
        let [answers, authority, additional] = self.counts;
        let header = [self.query.id, flags, 1, answers, authority, additional];
        let start = self.start;
        for (at, value) in header.into_iter().enumerate() {
            self.out[start + 2 * at..start + 2 * at + 2].copy_from_slice(&value.to_be_bytes());
        }
    }
}

/// The flags of an answer, some of which are copied from the question.
pub fn response_flags(question_flags: u16) -> u16 {
    let repeated = question_flags & (FLAG_RECURSION_DESIRED | FLAG_CHECKING_DISABLED);
    FLAG_RESPONSE | FLAG_RECURSION_AVAILABLE | repeated
}

/// Our own EDNS0 pseudo-record, with the upper bits of the response code.
pub fn write_opt(out: &mut Vec<u8>, code: u16, dnssec_ok: bool) {
    out.push(0);
    for value in [
        record_type::OPT,
        UDP_BYTES_MAX as u16,
        (code >> 4) << 8,
        if dnssec_ok { 0x8000 } else { 0 },
        0,
    ] {
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Writes an answer without records: an error.
pub fn error(out: &mut Vec<u8>, query: &Query<'_>, code: u16) {
    Writer::begin(out, query, TCP_BYTES_MAX).finish(code, false);
}

/// Writes the answer to a rejected message; returns false if it gets none.
pub fn rejection(out: &mut Vec<u8>, rejected: &Rejected<'_>) -> bool {
    match rejected {
        Rejected::Ignored => return false,
        Rejected::Header { id, flags, code } => {
            let flags = FLAG_RESPONSE | (flags & (0x7800 | FLAG_RECURSION_DESIRED)) | code;
            for value in [*id, flags, 0, 0, 0, 0] {
                out.extend_from_slice(&value.to_be_bytes());
            }
        }
        Rejected::Question { query, code } => error(out, query, *code),
    }
    true
}

/// The response code of a written message, without EDNS' upper bits.
pub fn code_of(message: &[u8]) -> u16 {
    message
        .get(3)
        .map_or(response_code::SERVER_FAILURE, |byte| u16::from(byte & 0xf))
}
