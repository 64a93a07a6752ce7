//! Quantities compared with apimachinery's results for the same texts.

use proptest::prelude::*;

use super::*;

#[test]
fn canonical_texts() {
    for (given, want) in [
        ("0", "0"),
        ("0.5", "500m"),
        ("1024Mi", "1Gi"),
        ("1536Mi", "1536Mi"),
        ("1.5Gi", "1536Mi"),
        ("1000m", "1"),
        ("1000Ki", "1000Ki"),
        ("1023", "1023"),
        ("0.1Ki", "102400m"),
        ("1e6", "1e6"),
        ("1E6", "1E6"),
        ("1000e3", "1e6"),
        ("1e-3", "1e-3"),
        ("12e-1", "1200e-3"),
        ("1.500", "1.500"),
        ("1.5", "1500m"),
        ("-1.5", "-1500m"),
        ("+5", "+5"),
        ("007", "007"),
        ("1000k", "1M"),
        ("1000E", "1e21"),
        ("0.1n", "1n"),
        ("1n", "1n"),
        ("100n", "100n"),
        ("10Ei", "9223372036854775807"),
        ("0Gi", "0"),
        ("-1Ki", "-1Ki"),
        (".5", "500m"),
        ("5.", "5."),
        ("1Ei", "1Ei"),
    ] {
        assert_eq!(canonical_text(given).as_deref(), Ok(want), "{given}");
    }
}

#[test]
fn errors_are_worded_as_by_kubernetes() {
    for text in ["", " ", "1 Gi", "abc", "1.2.3", "1Gi ", "1Mi1x"] {
        assert_eq!(
            Quantity::parse(text).unwrap_err(),
            QuantityError::Format,
            "{text:?}"
        );
    }
    for text in ["1gi", "1K", "1e", "1mm", "1iK", "1Mi1", "1e1e1"] {
        let error = Quantity::parse(text).unwrap_err();
        assert!(
            error == QuantityError::Suffix || error == QuantityError::Format,
            "{text:?}: {error}"
        );
    }
    assert_eq!(Quantity::parse("1K").unwrap_err(), QuantityError::Suffix);
}

#[test]
fn values_round_away_from_zero() {
    for (text, value, milli) in [
        ("1", 1, 1000),
        ("1m", 1, 1),
        ("1u", 1, 1),
        ("-1m", -1, -1),
        ("1500m", 2, 1500),
        ("-1500m", -2, -1500),
        ("1Ki", 1024, 1_024_000),
        ("1E", 1_000_000_000_000_000_000, i64::MAX),
        ("1000E", i64::MAX, i64::MAX),
    ] {
        let q = Quantity::parse(text).unwrap();
        assert_eq!((q.value(), q.milli_value()), (value, milli), "{text}");
    }
}

#[test]
fn sums_keep_the_notation_of_what_was_there() {
    let sum = Quantity::parse("1Gi").unwrap() + Quantity::parse("1073741824").unwrap();
    assert_eq!(sum.to_string(), "2Gi");
    let sum = Quantity::default() + Quantity::parse("1Gi").unwrap();
    assert_eq!(sum.to_string(), "1Gi");
    let difference = Quantity::parse("2").unwrap() - Quantity::parse("500m").unwrap();
    assert_eq!(difference.to_string(), "1500m");
}

#[test]
fn resource_lists_keep_thousandths() {
    for (given, want) in [
        ("1u", "1m"),
        ("1.0001", "1001m"),
        ("1024Mi", "1Gi"),
        ("100m", "100m"),
    ] {
        let mut q = Wire(given.into());
        canonicalize_resource(&mut q);
        assert_eq!(q.0, want);
    }
}

proptest! {
    #[test]
    fn never_panics(text in ".{0,40}") {
        let _ = canonical_text(&text);
    }

    #[test]
    fn canonical_text_has_the_same_value(
        text in "[+-]?[0-9]{1,20}(\\.[0-9]{0,12})?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e[0-9]|E-[0-9])?"
    ) {
        let q = Quantity::parse(&text).unwrap();
        let canonical = q.to_string();
        prop_assert_eq!(Quantity::parse(&canonical).unwrap(), q);
        let shown = canonical_text(&text).unwrap();
        prop_assert_eq!(Quantity::parse(&shown).unwrap(), q);
    }
}

/// Most quantities are computed as whole numbers, the others digit by digit: both say the same wherever both can.
#[test]
fn few_and_many_digits_give_the_same_value() {
    let numbers = [
        "0",
        "00",
        "1",
        "7",
        "10",
        "999",
        "1000",
        "12345678901",
        "9223372036854775807",
    ];
    let fractions = ["", ".0", ".5", ".000000001", ".1234567891", ".999999999999"];
    let suffixes = [
        "", "n", "u", "m", "k", "M", "E", "Ki", "Mi", "Ei", "e3", "e-3", "e-12", "E5", "e20", "e-30", "e99",
    ];
    let mut both = 0;
    for number in numbers {
        for fraction in fractions {
            for letters in suffixes {
                let text = format!("{number}{fraction}{letters}");
                let parts = Parts::split(&text).unwrap();
                let (base, exponent, _) = suffix(parts.suffix).unwrap();
                let fraction = parts.fraction.len() as i64;
                let few = parts
                    .number()
                    .and_then(|n| scaled_few(n, base, exponent, fraction));
                if let Some(few) = few {
                    assert_eq!(few, parts.scaled(base, exponent), "{text}");
                    both += 1;
                }
            }
        }
    }
    assert!(both > 500, "{both}");
}
