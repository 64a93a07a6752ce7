//! Why a document that a strategic merge patch made is no object, in the words of the converter that reads it there:
//! it goes from value to value without JSON in between, and calls types by their Go kinds.

/// The converter's words for a mistake that the JSON reader found (`json: cannot unmarshal string into Go struct field
/// ScaleSpec.spec.replicas of type int32`). `None` for mistakes of another sort.
pub fn words(json_words: &str) -> Option<String> {
    let rest = json_words.strip_prefix("json: cannot unmarshal ")?;
    let (found, rest) = rest.split_once(" into Go ")?;
    let wanted = rest.rsplit_once("of type ")?.1;
    let number = found.strip_prefix("number");
    let found = match found {
        "array" => "slice",
        "object" => "map",
        "string" | "bool" => found,
        _ if number.is_some_and(|n| n.contains(['.', 'e', 'E'])) => "float64",
        _ if number.is_some() => "int64",
        _ => return None,
    };
    Some(if wanted.starts_with("map[") {
        format!("cannot restore map from {found}")
    } else if wanted.starts_with("[]") {
        format!("cannot restore slice from {found}")
    } else if wanted.contains('.') {
        format!("cannot restore struct from: {found}")
    } else {
        // Go converts between numbers, and from a whole number to a text, but JSON does not.
        let convertible = matches!((found, wanted), ("int64", "string"))
            || (matches!(found, "int64" | "float64") && wanted.starts_with(['i', 'u', 'f']));
        match convertible {
            true => format!("cannot convert {found} to {wanted}"),
            false => format!("unrecognized type: {wanted}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn mistakes_are_told_by_the_kinds_of_go() {
        for (found, wanted, expected) in [
            ("string", "int32", "unrecognized type: int32"),
            ("number", "string", "cannot convert int64 to string"),
            ("number 1.5", "int32", "cannot convert float64 to int32"),
            ("bool", "string", "unrecognized type: string"),
            ("object", "string", "unrecognized type: string"),
            ("string", "map[string]string", "cannot restore map from string"),
            ("object", "[]v1.Container", "cannot restore slice from map"),
            ("array", "v1.PodSpec", "cannot restore struct from: slice"),
        ] {
            let json =
                format!("json: cannot unmarshal {found} into Go struct field A.spec.b of type {wanted}");
            assert_eq!(words(&json).as_deref(), Some(expected), "{json}");
        }
        assert_eq!(words("strict decoding error: unknown field \"a\""), None);
    }
}
