//! The Table.

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
