//! What a label's key and value may look like (apimachinery `IsLabelKey`, `IsLabelValue`), with its words.

use crate::names;

/// Longest name part of a key, and longest value, in bytes.
const NAME_MAX: usize = 63;

const KEY_WORDS: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

const VALUE_WORDS: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or \
'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

fn well_formed(name: &str) -> bool {
    let bytes = name.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// A label's key: `name` or `example.com/name`. The mistakes' words, none if fine.
pub(crate) fn qualified_name(key: &str) -> Vec<String> {
    let mut mistakes = Vec::new();
    let name = match key.split('/').collect::<Vec<_>>()[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                mistakes.push("prefix part must be non-empty".to_string());
            } else {
                let wrong = names::dns1123_subdomain(prefix);
                mistakes.extend(wrong.iter().map(|m| format!("prefix part {m}")));
            }
            name
        }
        _ => {
            return vec![format!(
                "a valid label key {KEY_WORDS} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        mistakes.push("name part must be non-empty".to_string());
    } else if name.len() > NAME_MAX {
        mistakes.push(format!("name part must be no more than {NAME_MAX} bytes"));
    }
    if !well_formed(name) {
        mistakes.push(format!("name part {KEY_WORDS}"));
    }
    mistakes
}

/// A label's value. The mistakes' words, none if fine.
pub(crate) fn label_value(value: &str) -> Vec<String> {
    let mut mistakes = Vec::new();
    if value.len() > NAME_MAX {
        mistakes.push(format!("must be no more than {NAME_MAX} bytes"));
    }
    if !value.is_empty() && !well_formed(value) {
        mistakes.push(VALUE_WORDS.to_string());
    }
    mistakes
}
