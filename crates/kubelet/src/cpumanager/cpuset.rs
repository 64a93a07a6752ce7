//! Sets of CPUs as the kernel and the kubelet write them: `0-3,7`.

use std::collections::BTreeSet;

/// CPUs by their number.
pub type CpuSet = BTreeSet<u32>;

/// CPU numbers are below this; the kernel's own bound (`NR_CPUS`) is lower. It bounds the length of a range.
pub const CPUS_MAX: u32 = 1 << 16;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("strconv.Atoi: parsing {0:?}: invalid syntax")]
    NotANumber(String),
    #[error("strconv.Atoi: parsing {0:?}: value out of range")]
    TooLarge(String),
    #[error("invalid range {text:?} ({first} > {last})")]
    Reversed { text: String, first: u32, last: u32 },
}

/// Reads a set; empty text is the empty set.
pub fn parse(text: &str) -> Result<CpuSet, ParseError> {
    let mut cpus = CpuSet::new();
    if text.is_empty() {
        return Ok(cpus);
    }
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            None => (number(part)?, number(part)?),
            Some((first, last)) => (number(first)?, number(last)?),
        };
        if first > last {
            let text = part.to_string();
            return Err(ParseError::Reversed { text, first, last });
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

fn number(text: &str) -> Result<u32, ParseError> {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_number {
        return Err(ParseError::NotANumber(text.to_string()));
    }
    let parsed = text.parse().ok().filter(|n| *n < CPUS_MAX);
    parsed.ok_or_else(|| ParseError::TooLarge(text.to_string()))
}

/// Writes a set, with ranges where CPUs follow each other.
pub fn format(cpus: &CpuSet) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for cpu in cpus.iter().copied() {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(cpu) => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let text = |(first, last): (u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.into_iter().map(text).collect::<Vec<_>>().join(",")
}
