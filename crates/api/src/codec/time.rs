//! Times as Kubernetes takes them: RFC 3339 with Go's words where it is not.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff::Timestamp;

/// How Go writes the form of a meta/v1 Time.
pub(super) const SECONDS: &str = "2006-01-02T15:04:05Z07:00";
/// How Go writes the form of a meta/v1 MicroTime.
pub(super) const MICROSECONDS: &str = "2006-01-02T15:04:05.000000Z07:00";

/// Go's zero time, which says that a time is not set.
pub(crate) const ZERO: &str = "0001-01-01T00:00:00Z";

/// The same, as seconds since 1970.
pub(crate) const ZERO_SECONDS: i64 = -62_135_596_800;

/// Whether a time that our types want was not given.
pub(crate) fn is_unset(time: &Time) -> bool {
    time.0.as_second() == ZERO_SECONDS
}

/// The same of a time with parts of seconds.
pub(crate) fn is_unset_micro(time: &MicroTime) -> bool {
    time.0.as_second() == ZERO_SECONDS
}

/// Whether this is the zero time, in seconds or parts of them.
pub(crate) fn is_zero(text: &str) -> bool {
    let fraction = text.strip_prefix("0001-01-01T00:00:00");
    fraction.is_some_and(|rest| rest.bytes().all(|b| matches!(b, b'.' | b'0' | b'Z')))
}

/// Checks `text` against `layout` and gives it back in UTC, cut to the layout's precision.
pub(super) fn normal(text: &str, layout: &'static str) -> Result<String, String> {
    check(text, layout).map_err(|why| format!("parsing time {text:?} as {layout:?}: {why}"))?;
    let time: Timestamp = text
        .parse()
        .map_err(|_| format!("parsing time {text:?}: day out of range"))?;
    let form = if layout == SECONDS {
        "%Y-%m-%dT%H:%M:%SZ"
    } else {
        "%Y-%m-%dT%H:%M:%S%.6fZ"
    };
    Ok(time.strftime(form).to_string())
}

/// Goes along both; at the first difference says what could not be read as what.
fn check(text: &str, layout: &str) -> Result<(), String> {
    let cannot = |rest: &str, element: &str| Err(format!("cannot parse {rest:?} as {element:?}"));
    let mut rest = text;
    for element in ["2006", "-", "01", "-", "02", "T", "15", ":", "04", ":", "05"] {
        if element.starts_with(|c: char| c.is_ascii_digit()) {
            let digits = rest
                .bytes()
                .take(element.len())
                .take_while(u8::is_ascii_digit)
                .count();
            if digits < element.len() {
                return cannot(rest, element);
            }
            rest = &rest[element.len()..];
        } else {
            match rest.strip_prefix(element) {
                Some(next) => rest = next,
                None => return cannot(rest, element),
            }
        }
    }
    let digits = |s: &str| s.bytes().take_while(u8::is_ascii_digit).count();
    if layout == MICROSECONDS {
        match rest.strip_prefix('.') {
            Some(fraction) if digits(fraction) == 6 => rest = &fraction[6..],
            _ => return cannot(rest, ".000000"),
        }
    } else if let Some(fraction) = rest.strip_prefix('.') {
        // A fraction is taken after seconds even where the layout has none.
        let n = digits(fraction);
        if n > 0 {
            rest = &fraction[n..];
        }
    }
    if let Some(after) = rest.strip_prefix('Z') {
        return if after.is_empty() {
            Ok(())
        } else {
            Err(format!("extra text: {after:?}"))
        };
    }
    let zone = rest.as_bytes();
    let numeric = zone.len() >= 6
        && matches!(zone[0], b'+' | b'-')
        && zone[3] == b':'
        && [1, 2, 4, 5].iter().all(|i| zone[*i].is_ascii_digit());
    match numeric {
        false => cannot(rest, "Z07:00"),
        true if zone.len() > 6 => Err(format!("extra text: {:?}", &rest[6..])),
        true => Ok(()),
    }
}
