//! Fuzz targets: the checks that hold for any bytes from outside the process.
//!
//! A [`Target`] is a function that takes any bytes and panics if a property does not hold, with inputs to start from. The
//! same targets run under libFuzzer (the directory `fuzz/`, see its README) and in this crate's test, with inputs that
//! `mutation.rs` makes of the seeds and that are the same in every run. No target may panic, hang or use unbounded memory;
//! the further properties of each are documented in its module.

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

/// A function under test, and its seeds.
pub struct Target {
    /// The name, as in `KNARR_FUZZ_TARGET`.
    pub name: &'static str,
    /// Panics if a property does not hold for this input.
    pub check: fn(&[u8]),
    /// Inputs to mutate.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
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

/// The kind that the input's first byte selects, and the rest of the input.
fn kind(data: &[u8]) -> Option<(&'static Kind, &[u8])> {
    let (first, rest) = data.split_first()?;
    let kind = registry::ALL.get(usize::from(*first) % registry::ALL.len())?;
    Some((kind, rest))
}

/// The input's kind, its second byte, and the two texts that [`PART`] separates: an object, and a patch or configuration.
fn object_and_change(data: &[u8]) -> Option<(&'static Kind, u8, &[u8], &[u8])> {
    let (kind, rest) = kind(data)?;
    let (option, rest) = rest.split_first()?;
    let mut parts = rest.splitn(2, |byte| *byte == PART);
    Some((kind, *option, parts.next()?, parts.next()?))
}

/// The first byte of an input for this kind.
fn byte_of(kind: &Kind) -> u8 {
    let index = registry::ALL.iter().position(|k| *k == kind);
    index.and_then(|index| u8::try_from(index).ok()).unwrap_or(0)
}

fn encoded(object: &dyn AnyObject) -> Vec<u8> {
    let mut out = Vec::new();
    object.encode_into(&mut out);
    out
}

/// The bytes as printable ASCII with escapes, for messages.
fn escaped(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

#[cfg(test)]
mod tests;
