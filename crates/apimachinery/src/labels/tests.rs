//! Label selectors: their grammar, what they match, and the errors.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use proptest::prelude::*;

use super::*;

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .collect()
}

#[test]
fn selectors_match_and_print_canonically() {
    let web = labels(&[("app", "web"), ("tier", "2")]);
    for (text, canonical, matches) in [
        ("", "", true),
        ("app=web", "app=web", true),
        ("app==web", "app==web", true),
        ("app!=web", "app!=web", false),
        ("zone!=a", "zone!=a", true),
        (" tier = 2 ,app", "app,tier=2", true),
        ("app in (db, web)", "app in (db,web)", true),
        ("app notin (web)", "app notin (web)", false),
        ("zone notin (web)", "zone notin (web)", true),
        ("!app", "!app", false),
        ("!zone", "!zone", true),
        ("tier>1", "tier>1", true),
        ("tier<2", "tier<2", false),
        ("app>1", "app>1", false),
        ("app=", "app=", false),
        ("app in ()", "app in ()", false),
        ("app in (,)", "app in ()", false),
        ("app in (web,)", "app in (,web)", true),
        ("in in (in),app", "app,in in (in)", false),
        ("x.io/a,app", "app,x.io/a", false),
    ] {
        let selector = Selector::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(selector.to_string(), canonical, "{text}");
        assert_eq!(selector.matches(Some(&web)), matches, "{text}");
        assert_eq!(
            Selector::parse(canonical).as_ref().map(ToString::to_string),
            Ok(canonical.to_string())
        );
    }
}

#[test]
fn no_labels_are_like_empty_labels() {
    for (text, matches) in [("a", false), ("!a", true), ("a!=b", true), ("a=b", false)] {
        assert_eq!(Selector::parse(text).unwrap().matches(None), matches, "{text}");
    }
}

#[test]
fn errors_are_worded_as_apimachinerys() {
    for (text, message) in [
        (
            "app in web",
            "unable to parse requirement: found 'web' expected: '('",
        ),
        ("=x", "found '=', expected: !, identifier, or 'end of string'"),
        (
            "app!!x",
            "unable to parse requirement: found '!', expected: in, notin, =, ==, !=, gt, lt",
        ),
        ("app=web,", "found '', expected: identifier after ','"),
        ("(a)", "found '(', expected: !, identifier, or 'end of string'"),
        ("!app=b", "found '=', expected: ',' or 'end of string'"),
        (
            "app in (a b)",
            "unable to parse requirement: found 'b', expected: ',' or ')'",
        ),
        (
            "a=(",
            "unable to parse requirement: found '(', expected: identifier",
        ),
        (
            "!!a",
            "unable to parse requirement: found '!', expected: identifier",
        ),
        (
            "a in (=",
            "unable to parse requirement: found '=', expected: ',', ')' or identifier",
        ),
        (
            "a>x",
            "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
        ),
        (
            "/a",
            "unable to parse requirement: <nil>: Invalid value: \"/a\": prefix part must be non-empty",
        ),
    ] {
        assert_eq!(Selector::parse(text).unwrap_err().to_string(), message, "{text}");
    }
    let long = "v".repeat(64);
    assert_eq!(
        Selector::parse(&format!("a={long}")).unwrap_err().to_string(),
        format!(
            "unable to parse requirement: values[0][a]: Invalid value: \"{long}\": must be no more than 63 bytes"
        )
    );
}

fn expression(key: &str, operator: &str, values: &[&str]) -> LabelSelectorRequirement {
    LabelSelectorRequirement {
        key: key.into(),
        operator: operator.into(),
        values: (!values.is_empty()).then(|| values.iter().map(|v| v.to_string()).collect()),
    }
}

#[test]
fn a_label_selector_is_the_conjunction_of_its_parts() {
    let selector = LabelSelector {
        match_labels: Some(labels(&[("app", "web")])),
        match_expressions: Some(vec![
            expression("tier", "In", &["1", "2"]),
            expression("old", "DoesNotExist", &[]),
        ]),
    };
    let compiled = Selector::from_label_selector(&selector).unwrap();
    assert_eq!(compiled.to_string(), "app=web,!old,tier in (1,2)");
    assert!(compiled.matches(Some(&labels(&[("app", "web"), ("tier", "1")]))));
    assert!(!compiled.matches(Some(&labels(&[("app", "web"), ("tier", "3")]))));
    assert!(
        Selector::from_label_selector(&LabelSelector::default())
            .unwrap()
            .is_everything()
    );
}

#[test]
fn an_invalid_label_selector_is_rejected() {
    for (expression, message) in [
        (
            expression("a", "Foo", &[]),
            "\"Foo\" is not a valid label selector operator",
        ),
        (
            expression("a", "In", &[]),
            "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty",
        ),
        (
            expression("a", "Exists", &["b"]),
            "values: Invalid value: [\"b\"]: values set must be empty for exists and does not exist",
        ),
    ] {
        let selector = LabelSelector {
            match_expressions: Some(vec![expression]),
            ..LabelSelector::default()
        };
        let error = Selector::from_label_selector(&selector).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

proptest! {
    #[test]
    fn parsing_never_panics(text in "\\PC*") {
        let _ = Selector::parse(&text);
    }

    #[test]
    fn what_parses_prints_as_something_that_parses_to_the_same(
        text in "[ab!=<>(),/ \0]{0,24}|(!?[a-c]( ?(=|==|!=|in|notin) ?(\\(a,b\\)|a|))?,?){1,4}"
    ) {
        if let Ok(selector) = Selector::parse(&text) {
            prop_assert_eq!(Selector::parse(&selector.to_string()), Ok(selector));
        }
    }
}
