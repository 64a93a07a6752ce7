//! The error for a result of a strategic merge patch that does not decode, worded as by apimachinery's unstructured converter:
//! it converts without JSON in between, and names types by their Go kinds.

/// The converter's message for an error that the JSON reader found (`json: cannot unmarshal string into Go struct field
/// ScaleSpec.spec.replicas of type int32`). `None` for errors of another type.
pub fn converter_message(json_message: &str) -> Option<String> {
    let rest = json_message.strip_prefix("json: cannot unmarshal ")?;
    let (found, rest) = rest.split_once(" into Go ")?;
    let go_type = rest.rsplit_once("of type ")?.1;
    let number = found.strip_prefix("number");
    let found = match found {
        "array" => "slice",
        "object" => "map",
        "string" | "bool" => found,
        _ if number.is_some_and(|n| n.contains(['.', 'e', 'E'])) => "float64",
        _ if number.is_some() => "int64",
        _ => return None,
    };
    Some(if go_type.starts_with("map[") {
        format!("cannot restore map from {found}")
    } else if go_type.starts_with("[]") {
        format!("cannot restore slice from {found}")
    } else if go_type.contains('.') {
        format!("cannot restore struct from: {found}")
    } else {
        // Go converts between numbers, and from an integer to a string, but JSON does not.
        let convertible = matches!((found, go_type), ("int64", "string"))
            || (matches!(found, "int64" | "float64") && go_type.starts_with(['i', 'u', 'f']));
        match convertible {
            true => format!("cannot convert {found} to {go_type}"),
            false => format!("unrecognized type: {go_type}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::converter_message;

    #[test]
    fn errors_name_go_kinds() {
        for (found, go_type, expected) in [
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
                format!("json: cannot unmarshal {found} into Go struct field A.spec.b of type {go_type}");
            assert_eq!(converter_message(&json).as_deref(), Some(expected), "{json}");
        }
        assert_eq!(
            converter_message("strict decoding error: unknown field \"a\""),
            None
        );
    }
}
