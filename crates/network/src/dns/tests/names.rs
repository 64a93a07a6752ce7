//! How long names are, and how they are shown.

use crate::dns::name::{Name, NameError};

#[test]
fn n5_labels_and_names_are_as_long_as_rfc_1035_allows() {
    let label = |bytes: usize| "a".repeat(bytes);
    let four = |last: usize| format!("{0}.{0}.{0}.{1}", label(63), label(last));
    for (text, wire_bytes) in [
        (String::new(), Ok(1)),
        (".".to_string(), Ok(1)),
        ("a.bc.".to_string(), Ok(6)),
        ("a..bc".to_string(), Err(NameError::EmptyLabel)),
        (label(63), Ok(65)),
        (label(64), Err(NameError::LongLabel)),
        (label(65), Err(NameError::LongLabel)),
        (four(61), Ok(255)),
        (four(62), Err(NameError::LongName)),
        (four(63), Err(NameError::LongName)),
    ] {
        let name = Name::parse(&text);
        assert_eq!(name.map(|name| name.wire_bytes()), wire_bytes, "{text}");
    }
}

#[test]
fn n5_names_are_shown_with_a_dot_at_the_end_and_with_escapes() {
    let mut name = Name::root();
    assert_eq!(name.to_string(), ".");
    name.push(b"a.b\\C").unwrap();
    name.push(b"\x07 ~").unwrap();
    assert_eq!(name.to_string(), r"a\.b\\c.\007\032~.");
}
