//! The Table, and the texts that cells share.

use knarr_api::registry::CONFIG_MAP;
use serde_json::json;

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

fn config_map() -> Arc<knarr_api::Object> {
    let mut typed = CONFIG_MAP
        .ops
        .decode(br#"{"metadata":{"name":"a","creationTimestamp":"2026-01-01T00:00:00Z"},"data":{"k":"v"}}"#)
        .expect("a config map")
        .object;
    let stored = knarr_api::Object::encode_for_store(&mut *typed);
    Arc::new(knarr_api::Object::from_stored(&CONFIG_MAP, typed, &stored, 7))
}

fn table(include: Include, head: &Head<'_>) -> serde_json::Value {
    let now = at("2026-01-01T00:01:00Z");
    let bytes = render_with(&CONFIG_MAP, &[config_map()], include, now, head).expect("a table");
    serde_json::from_slice(&bytes).expect("JSON")
}

#[test]
fn l13_rows_have_as_much_of_the_object_as_was_requested() {
    let whole: serde_json::Value = serde_json::from_slice(config_map().json()).expect("JSON");
    let metadata = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": whole["metadata"]});
    for (include, object) in [
        (Include::None, json!(null)),
        (Include::Metadata, metadata),
        (Include::Object, whole),
    ] {
        let table = table(include, &Head::default());
        assert_eq!(
            table["rows"],
            json!([{"cells": ["a", 1, "60s"], "object": object}])
        );
    }
}

#[test]
fn l13_a_table_has_the_metadata_of_a_list() {
    let head = Head {
        resource_version: "9",
        continue_token: "c",
        remaining_item_count: Some(3),
        no_headers: false,
        beta: false,
    };
    let full = table(Include::None, &head);
    assert_eq!(
        full["metadata"],
        json!({"resourceVersion": "9", "continue": "c", "remainingItemCount": 3})
    );
    assert_eq!(
        full["columnDefinitions"][0],
        json!({"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0})
    );
    let bare = table(
        Include::None,
        &Head {
            no_headers: true,
            ..Head::default()
        },
    );
    assert_eq!(bare["metadata"], json!({}));
    assert_eq!(bare["columnDefinitions"], json!(null));
}

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
