//! Durations as Go writes them: `1h30m`, `1.5s`, `-2us`, `0`. Configuration files, cron schedules and requests have them.

use k8s_openapi::jiff::SignedDuration;

/// Parses a duration in Go's notation. `None` if it is invalid, or too long for 64 bits of nanoseconds.
pub fn parse(text: &str) -> Option<SignedDuration> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(SignedDuration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    // Longest first where one begins like another.
    const UNITS: [(&str, u64); 8] = [
        ("ns", 1),
        ("us", 1_000),
        ("µs", 1_000),
        ("μs", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("h", 3_600_000_000_000),
    ];
    /// As in Go: the smallest negative duration is one nanosecond longer than the largest positive one.
    const MOST: u64 = 1 << 63;
    let mut nanoseconds: u64 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, behind) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        let (name, unit) = UNITS.iter().find(|(name, _)| behind.starts_with(name))?;
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        // A fraction is less than a unit, so a float is enough for it, counted as Go does; whole units are exact.
        let (mut digits, mut scale) = (0u64, 1.0);
        for digit in fraction.bytes().map(|byte| u64::from(byte - b'0')) {
            match digits.checked_mul(10).and_then(|tens| tens.checked_add(digit)) {
                Some(more) if more <= MOST => digits = more,
                // Too fine to count.
                _ => break,
            }
            scale *= 10.0;
        }
        let part = (digits as f64 * (*unit as f64 / scale)) as u64;
        nanoseconds = whole
            .checked_mul(*unit)?
            .checked_add(part)?
            .checked_add(nanoseconds)
            .filter(|sum| *sum <= MOST)?;
        rest = behind.strip_prefix(name)?;
    }
    let signed = match negative {
        true => 0i64.checked_sub_unsigned(nanoseconds)?,
        false => i64::try_from(nanoseconds).ok()?,
    };
    Some(SignedDuration::from_nanos(signed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_are_exact_up_to_the_longest_duration() {
        for nanoseconds in [2_023_372_036_854_784_001, i64::MAX, i64::MIN, i64::MIN + 1] {
            let text = format!("{nanoseconds}ns");
            assert_eq!(
                parse(&text),
                Some(SignedDuration::from_nanos(nanoseconds)),
                "{text}"
            );
        }
        assert_eq!(
            parse("2562047h47m16.854775807s"),
            Some(SignedDuration::from_nanos(i64::MAX))
        );
        assert_eq!(
            parse("1.0000000000000000000000001s"),
            Some(SignedDuration::from_secs(1))
        );
        assert_eq!(parse(".8547758s"), Some(SignedDuration::from_nanos(854_775_800)));
        for text in ["9223372036854775808ns", "-9223372036854775809ns", ".s", "1.2.3s"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn durations_are_read_as_go_reads_them() {
        let table = [
            ("15s", Some(15_000)),
            ("1m30s", Some(90_000)),
            ("1.5h", Some(5_400_000)),
            ("250ms", Some(250)),
            ("-2s", Some(-2_000)),
            ("0", Some(0)),
            ("-0", Some(0)),
            ("15", None),
            ("", None),
            ("-", None),
            ("s", None),
            ("1d", None),
            ("9999999999h", None),
        ];
        for (text, milliseconds) in table {
            assert_eq!(
                parse(text),
                milliseconds.map(SignedDuration::from_millis),
                "{text:?}"
            );
        }
    }
}
