//! What changes between two files of descriptors, a line a type or field.

use std::collections::BTreeMap;

/// The lines by type and field, `core/v1.Pod` and `core/v1.Pod.spec`.
pub fn entries(text: &str) -> BTreeMap<String, String> {
    let mut entries = BTreeMap::new();
    let (mut package, mut of) = ("", "");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if let Some(rest) = line.strip_prefix("package ") {
            package = rest.split(' ').next().unwrap_or(rest);
            continue;
        }
        let (first, rest) = line
            .trim_start()
            .split_once(' ')
            .unwrap_or((line.trim_start(), ""));
        let name = first.split('=').next().unwrap_or(first);
        let rest = rest.to_string();
        let key = match line.strip_prefix(' ') {
            // Embedded fields have no name of their own.
            Some(_) if name == "^" => format!("{package}.{of}.^{}", rest.split(' ').next().unwrap_or("")),
            Some(_) => format!("{package}.{of}.{name}"),
            None => {
                of = name;
                format!("{package}.{name}")
            }
        };
        entries.insert(key, rest);
    }
    entries
}

/// `+`, `-` or `~` (changed, with both) and the type or field. The fields of a type that is new or removed are only counted.
pub fn between(before: &str, after: &str) -> Vec<String> {
    let (before, after) = (entries(before), entries(after));
    let mut lines = Vec::new();
    let mut keys: Vec<&String> = before.keys().chain(after.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        match (before.get(key), after.get(key)) {
            (Some(was), Some(is)) if was != is => lines.push(format!("~ {key}: {was} => {is}")),
            (Some(_), None) => lines.extend(one_sided('-', key, &before, &after)),
            (None, Some(_)) => lines.extend(one_sided('+', key, &after, &before)),
            _ => {}
        }
    }
    lines
}

/// An entry that only one file has, unless its type is one, too.
fn one_sided(
    sign: char,
    key: &str,
    has: &BTreeMap<String, String>,
    other: &BTreeMap<String, String>,
) -> Option<String> {
    let of_type = key.rsplit_once('.').map_or("", |(of, _)| of);
    if has.contains_key(of_type) {
        return (other.contains_key(of_type)).then(|| format!("{sign} {key}: {}", has[key]));
    }
    let prefix = format!("{key}.");
    match has.keys().filter(|of| of.starts_with(&prefix)).count() {
        0 => Some(format!("{sign} {key}: {}", has[key])),
        fields => Some(format!("{sign} {key}: {fields} fields")),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn changes_are_named_by_type_and_field() {
        let before =
            "package a/v1 x\nA message\n b=BB string 1\n c string 2\n ^ D 3\nGone\n x string -\nP =string\n";
        let after =
            "# new\npackage a/v1 x\nA message\n b=BB string 4\n ^ D 3\n e string 5\nP =string enum=Q\n";
        assert_eq!(
            super::between(before, after),
            [
                "~ a/v1.A.b: string 1 => string 4",
                "- a/v1.A.c: string 2",
                "+ a/v1.A.e: string 5",
                "- a/v1.Gone: 1 fields",
                "~ a/v1.P: =string => =string enum=Q",
            ]
        );
    }
}
