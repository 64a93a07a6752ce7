//! The messages whose JSON form is not an object of their fields: times, quantities, numbers-or-strings, raw JSON.

use base64::Engine;
use k8s_openapi::jiff::{Timestamp, fmt::strtime};
use serde_json::Value;

use crate::codec::time::ZERO_SECONDS;

use super::wire::{Reader, Wire};
use super::{Error, utf8};

/// Whether Go's JSON would omit the value for a field that is not a pointer. Empty objects stay: they mean the same.
pub fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(s) => s.is_empty(),
        Value::Number(n) => n.as_f64() == Some(0.0),
        _ => false,
    }
}

pub fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// A double; integral ones as integers, as Go's JSON writes them. `None` if it is not a number.
pub fn double(bits: u64) -> Option<Value> {
    /// Beyond it not every integer is a double.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let n = f64::from_bits(bits);
    if n.fract() == 0.0 && n.abs() <= EXACT {
        return Some(Value::from(n as i64));
    }
    serde_json::Number::from_f64(n).map(Value::Number)
}

/// meta/v1 Time and MicroTime: seconds and nanoseconds. Go's zero time, which it writes as nothing, is null. `None` if out
/// of range.
pub fn time(bytes: &[u8], micro: bool) -> Result<Option<Value>, Error> {
    let (mut seconds, mut nanos) = (0, 0);
    let mut reader = Reader::new(bytes);
    while let Some((number, wire)) = reader.next()? {
        match (number, wire) {
            (1, Wire::Varint(n)) => seconds = n.cast_signed(),
            (2, Wire::Varint(n)) => nanos = n.cast_signed(),
            _ => {}
        }
    }
    if bytes.is_empty() || (seconds == ZERO_SECONDS && nanos == 0) {
        return Ok(Some(Value::Null));
    }
    let format = if micro {
        "%Y-%m-%dT%H:%M:%S.%6fZ"
    } else {
        "%Y-%m-%dT%H:%M:%SZ"
    };
    let at = i32::try_from(nanos)
        .ok()
        .and_then(|nanos| Timestamp::new(seconds, nanos).ok());
    Ok(at
        .and_then(|at| strtime::format(format, at).ok())
        .map(Value::String))
}

/// meta/v1 Duration: nanoseconds, written as seconds with a fraction.
pub fn duration(bytes: &[u8]) -> Result<String, Error> {
    let mut nanos = 0;
    let mut reader = Reader::new(bytes);
    while let Some((number, wire)) = reader.next()? {
        if let (1, Wire::Varint(n)) = (number, wire) {
            nanos = n.cast_signed();
        }
    }
    let (whole, part) = (nanos / 1_000_000_000, (nanos % 1_000_000_000).abs());
    if part == 0 {
        return Ok(format!("{whole}s"));
    }
    let part = format!("{part:09}");
    Ok(format!("{whole}.{}s", part.trim_end_matches('0')))
}

/// A message that is one string: a Quantity.
pub fn text_of(bytes: &[u8], field: &'static str) -> Result<String, Error> {
    let mut text = String::new();
    let mut reader = Reader::new(bytes);
    while let Some((number, wire)) = reader.next()? {
        if let (1, Wire::Bytes(bytes)) = (number, wire) {
            text = utf8(bytes, field)?.to_string();
        }
    }
    Ok(if text.is_empty() { "0".into() } else { text })
}

/// util/intstr: type 0 is the number, 1 the string.
pub fn int_or_string(bytes: &[u8], field: &'static str) -> Result<Value, Error> {
    let (mut is_string, mut number, mut string) = (false, 0, "");
    let mut reader = Reader::new(bytes);
    while let Some((n, wire)) = reader.next()? {
        match (n, wire) {
            (1, Wire::Varint(n)) => is_string = n == 1,
            (2, Wire::Varint(n)) => number = n.cast_signed(),
            (3, Wire::Bytes(bytes)) => string = utf8(bytes, field)?,
            _ => {}
        }
    }
    Ok(if is_string { string.into() } else { number.into() })
}

/// A message that contains JSON: RawExtension, FieldsV1, apiextensions' JSON. `None` if it does not parse.
pub fn json(bytes: &[u8]) -> Option<Value> {
    let mut reader = Reader::new(bytes);
    let mut value = Value::Null;
    while let Ok(Some((number, wire))) = reader.next() {
        if let (1, Wire::Bytes(raw)) = (number, wire) {
            value = if raw.is_empty() {
                Value::Null
            } else {
                serde_json::from_slice(raw).ok()?
            };
        }
    }
    Some(value)
}
