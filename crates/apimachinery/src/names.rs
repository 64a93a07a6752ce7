//! The formats of names, with Kubernetes' error messages (apimachinery `util/validation` and
//! `api/validate/content`).
//!
//! Every function returns the error messages, none if the value is valid. They do not contain the field.

/// Longest DNS-1123 subdomain (RFC 1123), in bytes.
pub const DNS1123_SUBDOMAIN_MAX: usize = 253;
/// Longest DNS label (RFC 1123, RFC 1035), in bytes.
pub const DNS_LABEL_MAX: usize = 63;
/// Longest name part of a label key, and longest label value, in bytes.
pub const LABEL_MAX: usize = 63;
/// Longest port name (RFC 6335), in bytes.
pub const PORT_NAME_MAX: usize = 15;
/// Largest user or group id that runtimes take (2^31 - 1).
pub const ID_MAX: i64 = i32::MAX as i64;

const LABEL_1123: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN_1123: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const SUBDOMAIN_1123_UNDERSCORE: &str =
    "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*";
const LABEL_KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

/// The message for a value that does not match (`RegexError`): the rule, examples, and the expression.
fn must_match(message: &str, expression: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{message} (regex used for validation is '{expression}')");
    }
    let examples: Vec<String> = examples.iter().map(|e| format!("'{e}', ")).collect();
    format!(
        "{message} (e.g. {}regex used for validation is '{expression}')",
        examples.join(" or ")
    )
}

fn too_many_characters(max: usize) -> String {
    format!("must be no more than {max} characters")
}

fn too_many_bytes(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

/// `must be between 1 and 65535, inclusive`.
pub fn inclusive_range_error(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

fn lower_alnum(c: u8) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

/// First, inner and last bytes each of their class; at least one byte.
fn framed(s: &str, edge: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    match s.as_bytes() {
        [] => false,
        [one] => edge(*one),
        [first, middle @ .., last] => edge(*first) && edge(*last) && middle.iter().all(|c| inner(*c)),
    }
}

fn is_label(s: &str) -> bool {
    framed(s, lower_alnum, |c| lower_alnum(c) || c == b'-')
}

fn is_subdomain(s: &str) -> bool {
    s.split('.').all(is_label)
}

fn is_label_with_underscore(s: &str) -> bool {
    framed(s.strip_prefix('_').unwrap_or(s), lower_alnum, |c| {
        lower_alnum(c) || c == b'-' || c == b'_'
    })
}

fn is_label_key_name(s: &str) -> bool {
    framed(
        s,
        |c| c.is_ascii_alphanumeric(),
        |c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'),
    )
}

fn subdomain_error() -> String {
    must_match(
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
         and must start and end with an alphanumeric character",
        SUBDOMAIN_1123,
        &["example.com"],
    )
}

/// A DNS-1123 subdomain: the name of most objects.
pub fn dns1123_subdomain(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > DNS1123_SUBDOMAIN_MAX {
        errors.push(too_many_characters(DNS1123_SUBDOMAIN_MAX));
    }
    if !is_subdomain(name) {
        errors.push(subdomain_error());
    }
    errors
}

/// A DNS-1123 subdomain whose labels may begin with or contain underscores (DNS search domains).
pub fn dns1123_subdomain_with_underscore(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > DNS1123_SUBDOMAIN_MAX {
        errors.push(too_many_characters(DNS1123_SUBDOMAIN_MAX));
    }
    if !name.split('.').all(is_label_with_underscore) {
        errors.push(must_match(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or \
             '.', and must start and end with an alphanumeric character",
            SUBDOMAIN_1123_UNDERSCORE,
            &["example.com"],
        ));
    }
    errors
}

/// A DNS-1123 label: namespaces, containers, volumes.
pub fn dns1123_label(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > DNS_LABEL_MAX {
        errors.push(too_many_characters(DNS_LABEL_MAX));
    }
    if !is_label(name) {
        errors.push(if is_subdomain(name) {
            "must not contain dots".to_string()
        } else {
            must_match(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and \
                 must start and end with an alphanumeric character",
                LABEL_1123,
                &["my-name", "123-abc"],
            )
        });
    }
    errors
}

/// A DNS-1035 label: services.
pub fn dns1035_label(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > DNS_LABEL_MAX {
        errors.push(too_many_characters(DNS_LABEL_MAX));
    }
    if !(is_label(name) && name.starts_with(|c: char| c.is_ascii_lowercase())) {
        errors.push(must_match(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
             alphabetic character, and end with an alphanumeric character",
            "[a-z]([-a-z0-9]*[a-z0-9])?",
            &["my-name", "abc-123"],
        ));
    }
    errors
}

/// The reason of a condition.
pub fn condition_reason(reason: &str) -> Option<String> {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"_,:".contains(&b);
    let fits = match reason.as_bytes() {
        [one] => one.is_ascii_alphabetic(),
        [first, middle @ .., last] => {
            first.is_ascii_alphabetic()
                && middle.iter().copied().all(inner)
                && (last.is_ascii_alphanumeric() || *last == b'_')
        }
        [] => false,
    };
    (!fits).then(|| {
        must_match(
            "a condition reason must start with alphabetic character, optionally followed by a string of \
             alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'",
            "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?",
            &[
                "my_name",
                "MY_NAME",
                "MyName",
                "ReasonA,ReasonB",
                "ReasonA:ReasonB",
            ],
        )
    })
}

/// `*.` and a DNS-1123 subdomain (RFC 1034 4.3.3): hosts of ingresses.
pub fn wildcard_dns1123_subdomain(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > DNS1123_SUBDOMAIN_MAX {
        errors.push(too_many_characters(DNS1123_SUBDOMAIN_MAX));
    }
    if !name.strip_prefix("*.").is_some_and(is_subdomain) {
        errors.push(must_match(
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which \
             must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric \
             character",
            &format!("\\*\\.{SUBDOMAIN_1123}"),
            &["*.example.com"],
        ));
    }
    errors
}

/// Validates a `generateName` that the server completes: a trailing dash counts as part of a longer name.
pub fn generated(prefix: &str, rule: impl Fn(&str) -> Vec<String>) -> Vec<String> {
    match prefix.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => {
            let mut end = rest.len() - 1;
            while !rest.is_char_boundary(end) {
                end -= 1;
            }
            rule(&format!("{}a", &rest[..end]))
        }
        _ => rule(prefix),
    }
}

/// A label key: an optional DNS-1123 subdomain and `/`, then a name. Annotations (in lower case), finalizers,
/// conditions, resources and taints have the same form.
pub fn qualified_name(value: &str) -> Vec<String> {
    let rule = |before: &str| {
        format!(
            "{before}{}",
            must_match(
                "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                 alphanumeric character",
                LABEL_KEY,
                &["MyName", "my.name", "123-abc"],
            )
        )
    };
    let mut errors = Vec::new();
    let name = match value.split_once('/') {
        None => value,
        Some((_, rest)) if rest.contains('/') => {
            return vec![format!(
                "{} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                rule("a valid label key ")
            )];
        }
        Some((prefix, name)) => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_string());
            } else {
                if prefix.len() > DNS1123_SUBDOMAIN_MAX {
                    errors.push(format!("prefix part {}", too_many_bytes(DNS1123_SUBDOMAIN_MAX)));
                }
                if !is_subdomain(prefix) {
                    errors.push(format!("prefix part {}", subdomain_error()));
                }
            }
            name
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_string());
    } else if name.len() > LABEL_MAX {
        errors.push(format!("name part {}", too_many_bytes(LABEL_MAX)));
    }
    if !is_label_key_name(name) {
        errors.push(rule("name part "));
    }
    errors
}

/// A label's value; may be empty.
pub fn label_value(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > LABEL_MAX {
        errors.push(too_many_bytes(LABEL_MAX));
    }
    if !value.is_empty() && !is_label_key_name(value) {
        errors.push(must_match(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
             and must start and end with an alphanumeric character",
            &format!("({LABEL_KEY})?"),
            &["MyValue", "my_value", "12345"],
        ));
    }
    errors
}

/// An identifier of C, of any length.
pub fn c_identifier(value: &str) -> Vec<String> {
    let first = |c: u8| c.is_ascii_alphabetic() || c == b'_';
    let fine =
        value.bytes().next().is_some_and(first) && value.bytes().all(|c| first(c) || c.is_ascii_digit());
    if fine {
        return Vec::new();
    }
    vec![must_match(
        "a valid C identifier must start with alphabetic character or '_', followed by a string of \
         alphanumeric characters or '_'",
        "[A-Za-z_][A-Za-z0-9_]*",
        &["my_name", "MY_NAME", "MyName"],
    )]
}

/// An environment variable's name: printable ASCII without `=`.
pub fn env_var_name(value: &str) -> Vec<String> {
    if value.is_empty() {
        return vec!["environment variable name must be non-empty".into()];
    }
    if value.bytes().all(|c| (b' '..=b'~').contains(&c) && c != b'=') {
        return Vec::new();
    }
    vec![
        "a valid environment variable name must consist only of printable ASCII characters other than '='"
            .into(),
    ]
}

/// A key of a ConfigMap or Secret.
pub fn config_map_key(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > DNS1123_SUBDOMAIN_MAX {
        errors.push(too_many_characters(DNS1123_SUBDOMAIN_MAX));
    }
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    if value.is_empty() || !value.bytes().all(allowed) {
        errors.push(must_match(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    match value {
        "." => errors.push("must not be '.'".into()),
        ".." => errors.push("must not be '..'".into()),
        v if v.starts_with("..") => errors.push("must not start with '..'".into()),
        _ => {}
    }
    errors
}

/// A port's number, 1 to 65535.
pub fn port_number(port: i64) -> Vec<String> {
    in_range(port, 1, 65535)
}

/// A number between two limits, both included.
pub fn in_range(value: i64, low: i64, high: i64) -> Vec<String> {
    if (low..=high).contains(&value) {
        Vec::new()
    } else {
        vec![inclusive_range_error(low, high)]
    }
}

/// A user's or group's id.
pub fn user_or_group_id(id: i64) -> Vec<String> {
    in_range(id, 0, ID_MAX)
}

/// A port's name (RFC 6335, lower case only).
pub fn port_name(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > PORT_NAME_MAX {
        errors.push(too_many_characters(PORT_NAME_MAX));
    }
    if name.is_empty() || !name.bytes().all(|c| lower_alnum(c) || c == b'-') {
        errors.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".into());
    }
    if !name.bytes().any(|c| c.is_ascii_lowercase()) {
        errors.push("must contain at least one letter (a-z)".into());
    }
    if name.contains("--") {
        errors.push("must not contain consecutive hyphens".into());
    }
    if name.starts_with('-') || name.ends_with('-') {
        errors.push("must not begin or end with a hyphen".into());
    }
    errors
}

/// A percentage such as `25%`.
pub fn percent(value: &str) -> Vec<String> {
    let fine = value
        .strip_suffix('%')
        .is_some_and(|d| !d.is_empty() && d.bytes().all(|c| c.is_ascii_digit()));
    if fine {
        return Vec::new();
    }
    vec![must_match(
        "a valid percent string must be a numeric string followed by an ending '%'",
        "[0-9]+%",
        &["1%", "93%"],
    )]
}

/// The name of an HTTP header.
pub fn http_header_name(value: &str) -> Vec<String> {
    if !value.is_empty() && value.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-') {
        return Vec::new();
    }
    vec![must_match(
        "a valid HTTP header must consist of alphanumeric characters or '-'",
        "[-A-Za-z0-9]+",
        &["X-Header-Name"],
    )]
}

/// A segment of a URL's path: any object's name.
pub fn path_segment(name: &str) -> Vec<String> {
    match name {
        "." => vec!["may not be '.'".into()],
        ".." => vec!["may not be '..'".into()],
        _ => path_segment_prefix(name),
    }
}

/// The beginning of a path segment: any object's `generateName`.
pub fn path_segment_prefix(prefix: &str) -> Vec<String> {
    ['/', '%']
        .iter()
        .filter(|c| prefix.contains(**c))
        .map(|c| format!("may not contain '{c}'"))
        .collect()
}

/// An IP address as Kubernetes accepts it in its older fields: no leading zeros, no IPv4-mapped IPv6.
pub fn ip_address(value: &str) -> Vec<String> {
    use std::net::{IpAddr, Ipv4Addr};
    match value.parse::<IpAddr>() {
        Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_some() => {
            vec!["must not be an IPv4-mapped IPv6 address".into()]
        }
        Ok(_) => Vec::new(),
        Err(_) => {
            // Leading zeros used to be ignored, and have their own message.
            let trimmed: Vec<&str> = value
                .split('.')
                .map(|part| match part.trim_start_matches('0') {
                    "" if !part.is_empty() => "0",
                    rest => rest,
                })
                .collect();
            if trimmed.len() == 4 && trimmed.join(".").parse::<Ipv4Addr>().is_ok() {
                return vec!["must not have leading 0s".into()];
            }
            vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".into()]
        }
    }
}

#[cfg(test)]
mod tests;
