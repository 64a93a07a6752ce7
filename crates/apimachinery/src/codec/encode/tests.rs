//! What is encoded is what Kubernetes writes, and the same as a tree, and without nulls what serde_json writes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerState, Pod};
use k8s_openapi::api::rbac::v1::Role;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use serde_json::json;

use super::*;

fn encoded<T: Serialize + JsonSchema>(value: &T) -> Value {
    serde_json::from_str(&serde_json::to_string(&WithNulls::new(value)).unwrap()).unwrap()
}

#[test]
fn empty_lists_and_the_fields_of_one_name_in_two_groups_are_null_as_their_kinds_have_it() {
    use k8s_openapi::api::{autoscaling, core, events, storage};
    assert_eq!(
        encoded(&storage::v1::CSINodeSpec::default()),
        json!({"drivers": null})
    );
    let hpa = autoscaling::v2::HorizontalPodAutoscalerStatus::default();
    assert!(encoded(&hpa).get("currentMetrics").is_some_and(Value::is_null));
    let hpa = autoscaling::v1::HorizontalPodAutoscalerStatus::default();
    assert_eq!(encoded(&hpa).get("currentMetrics"), None);
    let null = Some(&Value::Null);
    let old = encoded(&core::v1::Event::default());
    assert_eq!(
        (old.get("firstTimestamp"), old.get("deprecatedFirstTimestamp")),
        (null, None)
    );
    let new = encoded(&events::v1::Event::default());
    assert_eq!(
        (new.get("firstTimestamp"), new.get("deprecatedFirstTimestamp")),
        (None, null)
    );
}

#[test]
fn times_that_are_not_set_are_null() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}},
        "status": {"conditions": [{"type": "Ready", "status": "True",
            "lastTransitionTime": "2020-01-01T00:00:00Z"}]}});
    let mut want = pod.clone();
    want["status"]["conditions"][0]["lastProbeTime"] = Value::Null;
    assert_eq!(encoded(&serde_json::from_value::<Pod>(pod).unwrap()), want);
    let state: ContainerState = serde_json::from_value(json!({"running": {}})).unwrap();
    assert_eq!(encoded(&state), json!({"running": {"startedAt": null}}));
}

#[test]
fn a_role_without_rules_has_null_rules() {
    assert_eq!(encoded(&Role::default())["rules"], Value::Null);
    assert!(
        encoded(&Role::default())
            .as_object()
            .unwrap()
            .contains_key("rules")
    );
}

#[test]
fn integral_numbers_have_no_fraction() {
    let numbers = [1.0, -3.0, 0.5, 9_007_199_254_740_992.0, 1e300, 0.0];
    let written = serde_json::to_string(&WithNulls::new(&numbers)).unwrap();
    assert_eq!(written, "[1,-3,0.5,9007199254740992,1e+300,0]");
}

/// Without nulls, the text and the tree are what serde_json makes of the value.
fn is_as_by_serde_json<T: Serialize>(value: &T) {
    let mut plain = Vec::new();
    write_plain(value, &mut plain).unwrap();
    assert_eq!(plain, serde_json::to_vec(value).unwrap());
    assert_eq!(
        to_plain_value(value).unwrap(),
        serde_json::to_value(value).unwrap()
    );
}

/// The tree is what is read from the text.
fn is_the_same<T: Serialize + JsonSchema>(value: &T) {
    let text = serde_json::to_string(&WithNulls::new(value)).unwrap();
    assert_eq!(
        to_value(value).unwrap(),
        serde_json::from_str::<Value>(&text).unwrap()
    );
    is_as_by_serde_json(value);
}

#[test]
fn a_tree_is_what_the_text_says() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "labels": {"a": "b"}, "creationTimestamp": "2020-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}, "ports": [{"containerPort": 80}]}],
            "terminationGracePeriodSeconds": 30},
        "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}]}});
    is_the_same(&serde_json::from_value::<Pod>(pod).unwrap());
    is_the_same(&Pod::default());
    is_the_same(&Role::default());
    is_the_same(&[1.0, -3.5, 1e300]);
    is_the_same(&json!({"a": [null, true, {"b": 1}], "c": "d"}));
}

#[test]
fn the_text_of_fields_is_an_object_in_the_tree_with_nulls() {
    let fields = FieldsV1(json!(r#"{"f:a":{}}"#));
    let entry = ManagedFieldsEntry {
        fields_v1: Some(fields),
        ..ManagedFieldsEntry::default()
    };
    assert_eq!(to_value(&entry).unwrap(), json!({"fieldsV1": {"f:a": {}}}));
}

#[test]
fn values_of_all_forms_are_written_as_by_serde_json() {
    is_as_by_serde_json(&[0.1_f32, f32::MAX]);
    is_as_by_serde_json(&(1_u8, 'c', "\"\\\n\u{7f}\u{1}é", None::<i32>, Some(true)));
    is_as_by_serde_json(&[i64::MIN, -1, 0]);
    is_as_by_serde_json(&[u64::MAX, 1]);
    is_as_by_serde_json(&BTreeMap::from([(1, "a"), (-2, "b")]));
    is_as_by_serde_json(&BTreeMap::from([
        ("", Vec::<String>::new()),
        ("a\"b", vec![String::new()]),
    ]));
    is_as_by_serde_json(&json!([[], {}, [{}], {"a": {}}]));
}
