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
