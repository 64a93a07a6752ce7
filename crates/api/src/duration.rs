//! Durations as Go writes them: `1h30m`, `1.5s`, `-2us`, `0`. Configuration files, cron schedules and requests have them.

use k8s_openapi::jiff::SignedDuration;

/// A duration in Go's notation. `None` if it is none, or too long for 64 bits of nanoseconds.
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
    const UNITS: [(&str, i64); 8] = [
        ("ns", 1),
        ("us", 1_000),
        ("µs", 1_000),
        ("μs", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("h", 3_600_000_000_000),
    ];
    let mut nanoseconds: i64 = 0;
    while !rest.is_empty() {
        let number = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .map(|end| rest.split_at(end))?;
        let amount: f64 = number.0.parse().ok()?;
        let (name, unit) = UNITS.iter().find(|(name, _)| number.1.starts_with(name))?;
        let part = amount * *unit as f64;
        if !(0.0..9.2e18).contains(&part) {
            return None;
        }
        nanoseconds = nanoseconds.checked_add(part as i64)?;
        rest = number.1.strip_prefix(name)?;
    }
    Some(SignedDuration::from_nanos(if negative {
        -nanoseconds
    } else {
        nanoseconds
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

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
