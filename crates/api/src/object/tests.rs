//! Objects: their encoding with a resourceVersion, and what a slim object has.

use super::*;
use crate::registry;

fn stored(kind: &Kind, written: &str) -> serde_json::Value {
    let mut typed = kind.ops.decode(written.as_bytes()).expect("an object").object;
    let stored = Object::encode_for_store(&mut *typed);
    let object = Object::from_stored(kind, typed, &stored, 42);
    assert_eq!(object.metadata().resource_version.as_deref(), Some("42"));
    serde_json::from_slice(object.json()).expect("JSON")
}

#[test]
fn the_resource_version_is_inserted_into_the_metadata_of_every_kind() {
    for kind in registry::ALL.iter().filter(|k| k.is_stored()) {
        for metadata in [r#"{}"#, r#"{"name":"a","labels":{"metadata":"\"}"}}"#] {
            let json = stored(kind, &format!(r#"{{"metadata":{metadata}}}"#));
            assert_eq!(json["metadata"]["resourceVersion"], "42", "{kind:?}");
            let read = metadata_in(kind, json.to_string().as_bytes()).expect("metadata");
            let version = read.resource_version.as_deref();
            assert_eq!(version, Some("42"), "{kind:?}: it can be read by itself");
        }
    }
}

#[test]
fn a_slim_object_is_the_same_object() {
    let written = serde_json::json!({
        "metadata": {"name": "a", "namespace": "b", "labels": {"c": "d"},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "i", "uid": "j"},
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "k", "uid": "l", "controller": true},
            ],
            "managedFields": [{"manager": "e", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}]},
        "spec": {"nodeName": "f", "containers": [{"name": "g", "image": "h".repeat(SLIM_FROM_BYTES)}]},
        "status": {"phase": "Running"},
    });
    let kind = &registry::POD;
    let mut typed = kind.ops.decode(written.to_string().as_bytes()).unwrap().object;
    let stored = Object::encode_for_store(&mut *typed);
    let full = Arc::new(Object::from_stored(kind, typed, &stored, 7));
    let slim = full.slim();
    assert!(slim.is_slim() && !full.is_slim());
    assert!(Arc::ptr_eq(&slim, &full.slim()) && Arc::ptr_eq(&slim, &slim.slim()));
    assert_eq!(slim.json(), full.json());
    assert!(slim.has_encoding(&stored));
    assert!(slim.shares_encoding(&full) && full.shares_encoding(&slim));
    for other in [full.at_revision(7), slim.at_revision(7), full.at_revision(8)] {
        assert!(!full.shares_encoding(&other), "encoded separately: {other:?}");
    }
    assert_eq!(
        [full.stored_len(), slim.stored_len()],
        [Some(stored.len()), Some(stored.len())]
    );
    for path in kind.ops.selectable_fields().iter() {
        assert_eq!(slim.field(path).unwrap(), full.field(path).unwrap(), "{path}");
    }
    let names = |o: &Object| [o.namespace(), o.name(), o.uid(), o.controller_uid()].map(String::from);
    assert_eq!(names(&slim), names(&full));
    assert_eq!(slim.controller_uid(), "l");
    for moved in [full.at_revision(12345), slim.at_revision(12345)] {
        let of_stored = Object::from_stored(kind, full.typed().clone_box(), &stored, 12345);
        assert_eq!(moved.json(), of_stored.json());
        assert!(moved.has_encoding(&stored) && moved.controller_uid() == "l");
    }
    assert!(slim.is_slim(), "all of this was known without reading it again");
    assert_eq!(*slim.metadata(), without_managers(full.metadata()));
    assert!(!slim.is_slim() && slim.slim().is_slim());
    assert!(slim.typed.get().is_none(), "metadata is read by itself");
    use k8s_openapi::api::core::v1::Pod;
    assert_eq!(slim.get::<Pod>().unwrap(), full.get::<Pod>().unwrap());
    assert!(!slim.is_slim() && slim.metadata().managed_fields.is_some());
    assert!(slim.slim().is_slim());
}

#[test]
fn what_is_decoded_of_a_slim_object_for_one_read_is_not_kept() {
    use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    let kind = &registry::CONFIG_MAP;
    let written = serde_json::json!({"metadata": {"name": "a"}, "data": {"k": "v".repeat(SLIM_FROM_BYTES)}});
    let typed = kind.ops.decode(written.to_string().as_bytes()).unwrap().object;
    let full = Arc::new(Object::from_typed(kind, typed));
    let slim = full.slim();
    for object in [&full, &slim] {
        let was_slim = object.is_slim();
        let data = object.with_typed(|map: &ConfigMap| map.data.clone()).flatten();
        assert_eq!(data.unwrap()["k"].len(), SLIM_FROM_BYTES);
        assert_eq!(object.with_typed(|_: &Secret| ()), None);
        assert_eq!(object.is_slim(), was_slim);
    }
    assert!(slim.get::<ConfigMap>().is_some() && !slim.is_slim());
    assert!(slim.with_typed(|_: &ConfigMap| ()).is_some());
}

#[test]
fn each_decoding_of_a_slim_object_is_counted_by_its_kind() {
    type Read = fn(&Object);
    let kind = &registry::PRIORITY_CLASS;
    let description = "d".repeat(SLIM_FROM_BYTES);
    let written = format!(r#"{{"metadata":{{"name":"a"}},"value":1,"description":"{description}"}}"#);
    let typed = kind.ops.decode(written.as_bytes()).unwrap().object;
    let full = Arc::new(Object::from_typed(kind, typed));
    let reads: [(&str, Read, bool); 4] = [
        ("its names", |object| drop(object.name().to_string()), false),
        ("its metadata", |object| drop(object.metadata().clone()), true),
        ("its typed value", |object| drop(object.typed().clone_box()), true),
        ("its JSON", |object| drop(object.json().clone()), false),
    ];
    for (what, read, is_counted) in reads {
        let mut slim = full.slim();
        while !slim.is_slim() {
            slim = slim.slim();
        }
        let count = || kind.decoded_again().expect("of a built-in kind");
        let before = count();
        read(&slim);
        // Another test may decode one of this kind at the same time.
        assert!(count() >= before + u64::from(is_counted), "{what}");
        assert_eq!(slim.is_slim(), !is_counted, "{what}");
        let before = count();
        read(&full);
        assert!(!full.is_slim() && count() >= before, "{what}");
    }
}

#[test]
fn the_encoding_of_every_kind_begins_with_its_type() {
    for kind in registry::ALL.iter().filter(|k| k.is_stored()) {
        let typed = kind.ops.decode(br#"{"metadata":{"name":"a"}}"#).unwrap().object;
        let object = Object::from_typed(kind, typed);
        let rest = after_type(kind, object.json()).expect("a type");
        assert_eq!(rest, object.json_without_type(), "{kind:?}");
        let type_meta = format!(
            r#"{{"apiVersion":"{}","kind":"{}","#,
            kind.api_version(),
            kind.kind()
        );
        assert!(object.json().starts_with(type_meta.as_bytes()), "{kind:?}");
        assert_eq!(type_len(kind), type_meta.len());
    }
}

#[test]
fn an_encoding_is_kept_without_the_rest_of_its_buffer() {
    let kind = &registry::CONFIG_MAP;
    for written in [r#"{"metadata":{"name":"a"}}"#, r#"{"metadata":{}}"#] {
        let mut typed = kind.ops.decode(written.as_bytes()).unwrap().object;
        let stored = Object::encode_for_store(&mut *typed);
        let mut json = Vec::new();
        let at = metadata_start(kind, &stored).unwrap();
        splice_version(&mut json, &stored, &(at..at), 1234);
        assert_eq!(json.capacity(), json.len(), "{written}");
        let object = Object::from_stored(kind, typed, &stored, 1234);
        assert_eq!(object.json(), &kept(json));
    }
    let mut large = Vec::with_capacity(4096);
    large.extend_from_slice(b"small");
    assert_eq!(kept(large), "small");
}

#[test]
fn data_with_a_key_named_metadata_is_not_changed() {
    let json = stored(
        &registry::CONFIG_MAP,
        r#"{"metadata":{"name":"a"},"data":{"metadata":"{\"metadata\":{","x":"\\"}}"#,
    );
    assert_eq!(json["metadata"]["resourceVersion"], "42");
    assert_eq!(json["data"]["metadata"], "{\"metadata\":{");
}

#[test]
fn an_object_and_its_reference_counts_fit_in_128_bytes() {
    // The next larger allocation has 160.
    let counts = 2 * size_of::<usize>();
    assert!(counts + size_of::<Object>() <= 128, "{}", size_of::<Object>());
}
