//! Times as Kubernetes accepts them: RFC 3339, with Go's errors.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff::Timestamp;

/// How Go writes the form of a meta/v1 Time.
pub(super) const SECONDS: &str = "2006-01-02T15:04:05Z07:00";
/// How Go writes the form of a meta/v1 MicroTime.
pub(super) const MICROSECONDS: &str = "2006-01-02T15:04:05.000000Z07:00";

/// Go's zero time, which means an unset time.
pub const ZERO: &str = "0001-01-01T00:00:00Z";

/// The same, as seconds since 1970.
pub const ZERO_SECONDS: i64 = -62_135_596_800;

/// Whether a time that our types require is absent.
pub fn is_unset(time: &Time) -> bool {
    time.0.as_second() == ZERO_SECONDS
}

/// The same of a time with parts of seconds.
pub fn is_unset_micro(time: &MicroTime) -> bool {
    time.0.as_second() == ZERO_SECONDS
}

/// Whether this is the zero time, in seconds or parts of them.
pub fn is_zero(text: &str) -> bool {
    let fraction = text.strip_prefix("0001-01-01T00:00:00");
    fraction.is_some_and(|rest| rest.bytes().all(|b| matches!(b, b'.' | b'0' | b'Z')))
}

/// Why a text is no time.
#[derive(Debug, thiserror::Error)]
pub(super) enum TimeError<'a> {
    #[error("parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {element:?}")]
    Element {
        text: &'a str,
        layout: &'static str,
        rest: &'a str,
        element: &'static str,
    },
    #[error("parsing time {text:?} as {layout:?}: extra text: {extra:?}")]
    Extra {
        text: &'a str,
        layout: &'static str,
        extra: &'a str,
    },
    #[error("parsing time {0:?}: day out of range")]
    Day(&'a str),
}

/// Checks `text` against `layout` and returns it in UTC, truncated to the layout's precision.
pub(super) fn normal<'a>(text: &'a str, layout: &'static str) -> Result<Cow<'a, str>, TimeError<'a>> {
    if is_normal(text.as_bytes(), layout) {
        return Ok(Cow::Borrowed(text));
    }
    check(text, layout)?;
    let time: Timestamp = text.parse().map_err(|_| TimeError::Day(text))?;
    let form = if layout == SECONDS {
        "%Y-%m-%dT%H:%M:%SZ"
    } else {
        "%Y-%m-%dT%H:%M:%S%.6fZ"
    };
    Ok(Cow::Owned(time.strftime(form).to_string()))
}

/// Whether the text certainly is a time as [`normal`] returns it; stored times are. Others (the last
/// days of months) are parsed.
fn is_normal(text: &[u8], layout: &str) -> bool {
    let form: &[u8] = if layout == SECONDS {
        b"0000-00-00T00:00:00Z"
    } else {
        b"0000-00-00T00:00:00.000000Z"
    };
    let fits = |(c, form): (&u8, &u8)| {
        if *form == b'0' {
            c.is_ascii_digit()
        } else {
            c == form
        }
    };
    if text.len() != form.len() || !text.iter().zip(form).all(fits) {
        return false;
    }
    let number = |at: usize| (text[at] - b'0') * 10 + (text[at + 1] - b'0');
    (1..=12).contains(&number(5))
        && (1..=28).contains(&number(8))
        && number(11) < 24
        && number(14) < 60
        && number(17) < 60
        && text[..4] != *b"0000"
}

/// Compares both; at the first difference returns Go's error about it.
fn check<'a>(text: &'a str, layout: &'static str) -> Result<(), TimeError<'a>> {
    let cannot = |rest, element| {
        Err(TimeError::Element {
            text,
            layout,
            rest,
            element,
        })
    };
    let nothing_after = |extra: &'a str| match extra {
        "" => Ok(()),
        extra => Err(TimeError::Extra { text, layout, extra }),
    };
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
        // A fraction is accepted after seconds even where the layout has none.
        let n = digits(fraction);
        if n > 0 {
            rest = &fraction[n..];
        }
    }
    if let Some(after) = rest.strip_prefix('Z') {
        return nothing_after(after);
    }
    let zone = rest.as_bytes();
    let numeric = zone.len() >= 6
        && matches!(zone[0], b'+' | b'-')
        && zone[3] == b':'
        && [1, 2, 4, 5].iter().all(|i| zone[*i].is_ascii_digit());
    match numeric {
        false => cannot(rest, "Z07:00"),
        true => nothing_after(&rest[6..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text that is not parsed is the text that parsing would return.
    #[test]
    fn a_time_in_its_normal_form_stays_as_it_is() {
        let table = [
            ("2026-01-28T23:59:59Z", SECONDS, true),
            ("2026-01-31T23:59:59Z", SECONDS, false),
            ("2026-01-28T23:59:59.000000Z", MICROSECONDS, true),
            ("2026-01-28T23:59:59.5Z", MICROSECONDS, false),
            ("2026-01-28T23:59:59.5Z", SECONDS, false),
            ("2026-01-28T23:59:59+01:00", SECONDS, false),
            ("2026-13-28T23:59:59Z", SECONDS, false),
            ("2026-02-30T23:59:59Z", SECONDS, false),
            ("2026-01-28T24:00:00Z", SECONDS, false),
            ("2026-01-28 23:59:59Z", SECONDS, false),
            (ZERO, SECONDS, true),
            ("", SECONDS, false),
        ];
        for (text, layout, at_once) in table {
            assert_eq!(is_normal(text.as_bytes(), layout), at_once, "{text}");
            if at_once {
                let parsed: Timestamp = text.parse().unwrap();
                let form = if layout == SECONDS {
                    "%Y-%m-%dT%H:%M:%SZ"
                } else {
                    "%Y-%m-%dT%H:%M:%S%.6fZ"
                };
                assert_eq!(parsed.strftime(form).to_string(), text);
            }
        }
        assert_eq!(
            normal("2026-01-31T23:59:59+01:00", SECONDS).unwrap(),
            "2026-01-31T22:59:59Z"
        );
        assert!(normal("2026-02-30T23:59:59Z", SECONDS).is_err());
    }
}
