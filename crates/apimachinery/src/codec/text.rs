//! JSON as it is appended: commas, the names of members, the keys of maps.

use serde::ser::Error as _;
use serde_json::Error;

/// Separates two parts of a list or map.
pub(super) fn separate(out: &mut Vec<u8>) {
    if !matches!(out.last(), Some(b'[' | b'{')) {
        out.push(b',');
    }
}

/// Begins a member.
pub(super) fn write_name(out: &mut Vec<u8>, name: &str) -> Result<(), Error> {
    separate(out);
    serde_json::to_writer(&mut *out, name)?;
    out.push(b':');
    Ok(())
}

/// Ends the key of a map that was written from `at` on. A number becomes a string.
pub(super) fn end_key(out: &mut Vec<u8>, at: usize) -> Result<(), Error> {
    match out.get(at) {
        Some(b'"') => {}
        Some(b'-' | b'0'..=b'9') => {
            out.insert(at, b'"');
            out.push(b'"');
        }
        _ => return Err(no_key()),
    }
    out.push(b':');
    Ok(())
}

pub(super) fn no_key() -> Error {
    Error::custom("unexpected key: expected a string")
}
