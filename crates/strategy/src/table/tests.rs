//! The texts that cells share.

use serde_json::json;

use super::*;

#[test]
fn ages_are_coarser_as_they_grow() {
    for (seconds, text) in [
        (-2, "<invalid>"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (150, "2m30s"),
        (600, "10m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 60, "3h1m"),
        (9 * 3600, "9h"),
        (2 * 86400, "2d"),
        (2 * 86400 + 3600, "2d1h"),
        (30 * 86400, "30d"),
        (2 * 365 * 86400, "2y"),
        (2 * 365 * 86400 + 86400, "2y1d"),
        (9 * 365 * 86400, "9y"),
    ] {
        assert_eq!(human_duration(seconds), text, "{seconds}");
    }
}

#[test]
fn selectors_are_shown_in_the_query_strings_syntax() {
    let selector: LabelSelector =
        serde_json::from_value(json!({"matchLabels": {"b": "1"}, "matchExpressions": [
        {"key": "a", "operator": "In", "values": ["y", "x"]},
        {"key": "c", "operator": "DoesNotExist"}]}))
        .expect("a selector");
    assert_eq!(label_selector(Some(&selector)), "a in (x,y),b=1,!c");
    assert_eq!(label_selector(None), "<none>");
}
