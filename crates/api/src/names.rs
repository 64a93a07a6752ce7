//! How names may look (apimachinery `util/validation`), with Kubernetes' words for what is wrong.

/// Longest DNS-1123 subdomain (RFC 1123).
pub const DNS1123_SUBDOMAIN_MAX: usize = 253;

const SUBDOMAIN_WORDS: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
'-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

fn is_label(s: &str) -> bool {
    let b = s.as_bytes();
    let alnum = |c: &u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    b.first().is_some_and(alnum) && b.last().is_some_and(alnum) && b.iter().all(|c| alnum(c) || *c == b'-')
}

/// A DNS-1123 subdomain: what most objects are called.
pub fn dns1123_subdomain(name: &str) -> Vec<String> {
    let mut mistakes = Vec::new();
    if name.len() > DNS1123_SUBDOMAIN_MAX {
        mistakes.push(format!("must be no more than {DNS1123_SUBDOMAIN_MAX} bytes"));
    }
    if !name.split('.').all(is_label) {
        mistakes.push(SUBDOMAIN_WORDS.to_string());
    }
    mistakes
}

/// Longest DNS-1123 or DNS-1035 label.
pub const LABEL_MAX: usize = 63;

fn too_long(name: &str, max: usize, mistakes: &mut Vec<String>) {
    if name.len() > max {
        mistakes.push(format!("must be no more than {max} bytes"));
    }
}

/// A DNS-1123 label.
pub fn dns1123_label(name: &str) -> Vec<String> {
    let mut mistakes = Vec::new();
    too_long(name, LABEL_MAX, &mut mistakes);
    if !is_label(name) {
        mistakes.push(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
             and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
                .into(),
        );
    }
    mistakes
}

fn is_qualified_part(s: &str) -> bool {
    let b = s.as_bytes();
    b.first().is_some_and(u8::is_ascii_alphanumeric)
        && b.last().is_some_and(u8::is_ascii_alphanumeric)
        && b.iter().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(c))
}

/// A label key: `name` or `prefix/name`.
pub fn qualified_name(name: &str) -> Vec<String> {
    const SHAPE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let mut mistakes = Vec::new();
    let parts: Vec<&str> = name.split('/').collect();
    let own = match parts.as_slice() {
        [own] => own,
        [prefix, own] => {
            if prefix.is_empty() {
                mistakes.push("prefix part must be non-empty".into());
            } else {
                mistakes.extend(
                    dns1123_subdomain(prefix)
                        .iter()
                        .map(|m| format!("prefix part {m}")),
                );
            }
            own
        }
        _ => {
            return vec![format!(
                "a qualified name {SHAPE} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if own.is_empty() {
        mistakes.push("name part must be non-empty".into());
    } else if own.len() > LABEL_MAX {
        mistakes.push(format!("name part must be no more than {LABEL_MAX} bytes"));
    }
    if !is_qualified_part(own) {
        mistakes.push(format!("name part {SHAPE}"));
    }
    mistakes
}

/// The value of a label.
pub fn label_value(value: &str) -> Vec<String> {
    let mut mistakes = Vec::new();
    too_long(value, LABEL_MAX, &mut mistakes);
    if !value.is_empty() && !is_qualified_part(value) {
        mistakes.push(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
             for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
                .into(),
        );
    }
    mistakes
}

/// A key of a ConfigMap or Secret.
pub fn config_map_key(key: &str) -> Vec<String> {
    let mut mistakes = Vec::new();
    too_long(key, DNS1123_SUBDOMAIN_MAX, &mut mistakes);
    if key.is_empty()
        || !key
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c))
    {
        mistakes.push(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
             'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
                .into(),
        );
    }
    match key {
        "." => mistakes.push("must not be '.'".into()),
        ".." => mistakes.push("must not be '..'".into()),
        k if k.starts_with("..") => mistakes.push("must not start with '..'".into()),
        _ => {}
    }
    mistakes
}

/// A container port's name.
pub fn port_name(name: &str) -> Vec<String> {
    let mut mistakes = Vec::new();
    if name.len() > 15 {
        mistakes.push("must be no more than 15 bytes".into());
    }
    if !name
        .bytes()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-')
    {
        mistakes.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".into());
    }
    if !name.bytes().any(|c| c.is_ascii_lowercase()) {
        mistakes.push("must contain at least one letter (a-z)".into());
    }
    if name.contains("--") {
        mistakes.push("must not contain consecutive hyphens".into());
    }
    if name.starts_with('-') || name.ends_with('-') {
        mistakes.push("must not begin or end with a hyphen".into());
    }
    mistakes
}
