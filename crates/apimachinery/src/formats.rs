//! The string formats that are enforced (apiextensions' supported formats); others are only published.

use std::net::{Ipv4Addr, Ipv6Addr};

use jiff::Timestamp;
use jiff::civil::Date;

use crate::cidr::Cidr;

/// Whether `text` is of this format; true for formats that are not enforced.
pub fn fits(format: &str, text: &str) -> bool {
    match format {
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "date" => text.len() == 10 && text.parse::<Date>().is_ok(),
        "date-time" | "datetime" => text.parse::<Timestamp>().is_ok(),
        "byte" => {
            use base64::Engine;
            base64::engine::general_purpose::STANDARD.decode(text).is_ok()
        }
        "uuid" | "uuid3" | "uuid4" | "uuid5" => is_uuid(format, text),
        "uri" => text.contains(':') && !text.contains(char::is_whitespace),
        "hostname" => text.len() <= 255 && text.split('.').all(is_host_label),
        "email" => text
            .split_once('@')
            .is_some_and(|(l, d)| !l.is_empty() && !d.is_empty() && !d.contains('@')),
        "mac" => {
            let parts: Vec<&str> = text.split([':', '-']).collect();
            matches!(parts.len(), 6 | 8) && parts.iter().all(|p| p.len() == 2 && hex(p))
        }
        "duration" => is_duration(text),
        _ => true,
    }
}

fn hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_hexdigit())
}

fn is_cidr(text: &str) -> bool {
    text.split_once('/')
        .and_then(|(address, bits)| Cidr::new(address.parse().ok()?, bits.parse().ok()?))
        .is_some()
}

fn is_host_label(label: &str) -> bool {
    let inner = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    (1..=63).contains(&label.len())
        && label.chars().all(inner)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

fn is_uuid(format: &str, text: &str) -> bool {
    let bare = text.replace('-', "");
    let version = match format {
        "uuid3" => Some('3'),
        "uuid4" => Some('4'),
        "uuid5" => Some('5'),
        _ => None,
    };
    bare.len() == 32 && hex(&bare) && version.is_none_or(|v| bare.chars().nth(12) == Some(v))
}

/// Go's durations (`1h30m`) and those of strfmt in words (`3 days`).
fn is_duration(text: &str) -> bool {
    let mut rest = text.trim().trim_start_matches(['+', '-']);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let number = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        if number.len() == rest.len() {
            return false;
        }
        let unit = number.trim_start();
        let end = unit.find(|c: char| c.is_ascii_digit()).unwrap_or(unit.len());
        let known = [
            "ns", "us", "µs", "μs", "ms", "s", "m", "h", "d", "w", "sec", "secs", "second", "seconds", "min",
            "mins", "minute", "minutes", "hr", "hrs", "hour", "hours", "day", "days", "wk", "week", "weeks",
        ];
        if !known.contains(&unit[..end].trim()) {
            return false;
        }
        rest = &unit[end..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn formats_accept_valid_and_reject_invalid_texts() {
        for (format, right, wrong) in [
            ("ipv4", "10.0.0.1", "10.0.0"),
            ("ipv6", "fd00::1", "10.0.0.1"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("date", "2020-02-29", "2021-02-29"),
            ("date-time", "2020-01-02T03:04:05Z", "2020-01-02"),
            ("byte", "YQ==", "a"),
            ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123"),
            ("uri", "https://a/b", "not a uri"),
            ("hostname", "a.b-c", "-a"),
            ("email", "a@b.c", "a"),
            ("mac", "01:23:45:67:89:ab", "01:23"),
            ("duration", "1h30m", "1x"),
        ] {
            assert!(fits(format, right), "{format} {right}");
            assert!(!fits(format, wrong), "{format} {wrong}");
        }
        assert!(fits("unheard-of", "anything"));
    }
}
