//! Reads clients' messages. Only one ordinary question of class IN is answered; everything else is rejected with a header
//! alone, or ignored if an answer would only help an attacker.

use super::name::Name;
use super::{record_type, response_code};

pub const HEADER_BYTES: usize = 12;
/// The longest message for a client without EDNS over UDP (RFC 1035).
pub const PLAIN_UDP_BYTES: usize = 512;
/// The longest message over UDP, whatever the client offers: it is not fragmented on common networks (DNS flag day 2020).
pub const UDP_BYTES_MAX: usize = 1232;
/// OPT and a signature: a question has no other additional records.
const ADDITIONAL_MAX: u16 = 2;
const CLASS_IN: u16 = 1;

pub const FLAG_RESPONSE: u16 = 0x8000;
pub const FLAG_AUTHORITATIVE: u16 = 0x0400;
pub const FLAG_TRUNCATED: u16 = 0x0200;
pub const FLAG_RECURSION_DESIRED: u16 = 0x0100;
pub const FLAG_RECURSION_AVAILABLE: u16 = 0x0080;
pub const FLAG_CHECKING_DISABLED: u16 = 0x0010;
const OPCODE: u16 = 0x7800;

/// A client's EDNS0 options (RFC 6891).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edns {
    pub udp_bytes: u16,
    pub dnssec_ok: bool,
}

/// One question, as far as it matters for the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query<'a> {
    pub id: u16,
    pub flags: u16,
    /// Name, type and class as the client sent them: answers repeat them, whose case clients may check.
    pub question: &'a [u8],
    pub name: Name,
    pub record_type: u16,
    pub edns: Option<Edns>,
}

impl Query<'_> {
    /// The longest answer the client takes over UDP.
    pub fn udp_limit(&self) -> usize {
        let offered = self.edns.map_or(PLAIN_UDP_BYTES, |e| usize::from(e.udp_bytes));
        offered.clamp(PLAIN_UDP_BYTES, UDP_BYTES_MAX)
    }

    pub fn dnssec_ok(&self) -> bool {
        self.edns.is_some_and(|e| e.dnssec_ok)
    }
}

/// A message that is not answered normally.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejected<'a> {
    /// No answer at all: not a question, or not even a header.
    Ignored,
    /// A header with this response code and nothing else.
    Header { id: u16, flags: u16, code: u16 },
    /// The question can be repeated, so the client can match the answer.
    Question { query: Query<'a>, code: u16 },
}

/// The 16 bits at `at`; `None` if the message ends before.
pub(super) fn number(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes([two[0], two[1]]))
}

/// The name at `at` and its end. Pointers are not allowed: there is nothing before a question that they could point to.
fn plain_name(bytes: &[u8], mut at: usize) -> Option<(Name, usize)> {
    let mut name = Name::root();
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1;
        if length == 0 {
            return Some((name, at));
        }
        name.push(bytes.get(at..at + length)?).ok()?;
        at += length;
    }
}

/// Where the name at `at` ends, pointers allowed but not followed.
pub(super) fn skip_name(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *bytes.get(at)? {
            0 => return Some(at + 1),
            length @ 1..=63 => at += 1 + usize::from(length),
            192.. => return (at + 2 <= bytes.len()).then_some(at + 2),
            _ => return None,
        }
    }
}

/// Finds OPT among the records after the question. `Err` if they cannot be read.
fn read_edns(bytes: &[u8], mut at: usize, count: u16) -> Result<Option<(Edns, u8)>, ()> {
    let mut found = None;
    for _ in 0..count {
        let fixed = skip_name(bytes, at).ok_or(())?;
        let is_root = fixed == at + 1;
        let record_type = number(bytes, fixed).ok_or(())?;
        let class = number(bytes, fixed + 2).ok_or(())?;
        let high = number(bytes, fixed + 4).ok_or(())?;
        let low = number(bytes, fixed + 6).ok_or(())?;
        let length = usize::from(number(bytes, fixed + 8).ok_or(())?);
        at = fixed + 10 + length;
        if at > bytes.len() {
            return Err(());
        }
        if record_type == record_type::OPT {
            if found.is_some() || !is_root {
                return Err(());
            }
            let edns = Edns {
                udp_bytes: class,
                dnssec_ok: low & 0x8000 != 0,
            };
            found = Some((edns, (high & 0xff) as u8));
        }
    }
    // Bytes after the last record do not belong to the message.
    (at == bytes.len()).then_some(found).ok_or(())
}

/// Reads one message of a client.
pub fn read(bytes: &[u8]) -> Result<Query<'_>, Rejected<'_>> {
    let header = |at: usize| number(bytes, at).ok_or(Rejected::Ignored);
    if bytes.len() < HEADER_BYTES {
        return Err(Rejected::Ignored);
    }
    let (id, flags) = (header(0)?, header(2)?);
    if flags & FLAG_RESPONSE != 0 {
        return Err(Rejected::Ignored);
    }
    let reject = |code| Rejected::Header { id, flags, code };
    if flags & OPCODE != 0 {
        return Err(reject(response_code::NOT_IMPLEMENTED));
    }
    let format_error = || reject(response_code::FORMAT_ERROR);
    let (questions, answers, authority, additional) = (header(4)?, header(6)?, header(8)?, header(10)?);
    let is_plain = questions == 1 && answers == 0 && authority == 0 && additional <= ADDITIONAL_MAX;
    if !is_plain || flags & FLAG_TRUNCATED != 0 {
        return Err(format_error());
    }
    let (name, end) = plain_name(bytes, HEADER_BYTES).ok_or_else(format_error)?;
    let record_type = number(bytes, end).ok_or_else(format_error)?;
    let class = number(bytes, end + 2).ok_or_else(format_error)?;
    let edns = read_edns(bytes, end + 4, additional).map_err(|()| format_error())?;
    let query = Query {
        id,
        flags,
        question: &bytes[HEADER_BYTES..end + 4],
        name,
        record_type,
        edns: edns.map(|(edns, _)| edns),
    };
    let code = match (edns, record_type) {
        (Some((_, 1..)), _) => response_code::BAD_VERSION,
        _ if class != CLASS_IN => response_code::REFUSED,
        (_, record_type::AXFR | record_type::IXFR) => response_code::REFUSED,
        // Meta types: about a transaction and not about a name.
        (_, 0 | record_type::OPT | 128..=254) => response_code::NOT_IMPLEMENTED,
        _ => return Ok(query),
    };
    Err(Rejected::Question { query, code })
}
