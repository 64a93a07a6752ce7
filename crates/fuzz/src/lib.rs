//! What must hold of every byte that comes from outside: the checks that the fuzzers drive.
//!
//! A [`Target`] is a function that takes any bytes and panics if a promise is broken, with inputs to start from. The
//! same targets run under libFuzzer (`fuzz/` beside `crates/`, see its README) and, with inputs that `mutation.rs` makes of
//! the seeds, always the same ones, in this crate's test. No target may panic, hang or grow without bound; what more each
//! promises stands in its file.

mod apply;
mod cel;
mod certificates;
mod configuration;
#[cfg(test)]
mod mutation;
mod objects;
mod patches;
mod readers;
mod requests;
mod schemas;
mod seeds;
mod small;
mod storage;

use knarr_api::{AnyObject, Kind, registry};

/// Separates the parts of inputs that have several: a byte that JSON and YAML never hold.
const PART: u8 = 0x1e;

/// One room that takes bytes from outside.
pub struct Target {
    /// What `KNARR_FUZZ_TARGET` calls it.
    pub name: &'static str,
    /// Panics if a promise is broken by this input.
    pub check: fn(&[u8]),
    /// Inputs that are worth changing.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    objects::TARGET,
    objects::PROTOBUF,
    patches::TARGET,
    apply::TARGET,
    apply::FIELDS,
    small::LABEL_SELECTORS,
    small::FIELD_SELECTORS,
    small::QUANTITIES,
    small::DURATIONS,
    small::SCHEDULES,
    requests::YAML,
    requests::REQUESTS,
    requests::TOKENS,
    readers::JSON,
    readers::REQUIRED_FIELDS,
    readers::QUERIES,
    readers::BEARER,
    readers::YAML,
    cel::TARGET,
    schemas::TARGET,
    configuration::TARGET,
    storage::TARGET,
    certificates::TARGET,
];

/// The target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// The kind that an input's first byte means, and the rest.
fn kind(data: &[u8]) -> Option<(&'static Kind, &[u8])> {
    let (first, rest) = data.split_first()?;
    let kind = registry::ALL.get(usize::from(*first) % registry::ALL.len())?;
    Some((kind, rest))
}

/// An input's kind, its second byte, and the two texts that [`PART`] separates: an object, and what is done to it.
fn object_and_more(data: &[u8]) -> Option<(&'static Kind, u8, &[u8], &[u8])> {
    let (kind, rest) = kind(data)?;
    let (how, rest) = rest.split_first()?;
    let mut parts = rest.splitn(2, |byte| *byte == PART);
    Some((kind, *how, parts.next()?, parts.next()?))
}

/// The first byte of inputs that are about this kind.
fn byte_of(kind: &Kind) -> u8 {
    let place = registry::ALL.iter().position(|k| *k == kind);
    place.and_then(|place| u8::try_from(place).ok()).unwrap_or(0)
}

fn encoded(object: &dyn AnyObject) -> Vec<u8> {
    let mut out = Vec::new();
    object.encode_into(&mut out);
    out
}

/// Bytes as a person can read them, for messages.
fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

#[cfg(test)]
mod tests;
