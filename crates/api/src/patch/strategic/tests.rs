//! Strategic merge patches: merge keys, directives and orders by kind, and laws that all patches keep.

use proptest::prelude::{Just, prop, prop_assert_eq, prop_oneof, proptest};
use proptest::strategy::Strategy as _;
use serde_json::json;

use super::*;
use crate::registry::{CONFIG_MAP, DEPLOYMENT, NODE, POD, POD_DISRUPTION_BUDGET, SERVICE};

fn patched(kind: &Kind, mut doc: Value, patch: Value) -> Result<Value, (u16, String)> {
    match apply(kind, &mut doc, &patch) {
        Ok(()) => Ok(doc),
        Err(e) => Err((e.code(), e.message().to_string())),
    }
}

/// Patches a pod's spec and returns the result.
fn spec(doc: Value, patch: Value) -> Result<Value, (u16, String)> {
    patched(&POD, json!({ "spec": doc }), json!({ "spec": patch })).map(|mut doc| doc["spec"].take())
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(|item| item["name"].as_str())
        .collect()
}

#[test]
fn maps_are_merged_and_nulls_delete() {
    let doc = json!({"data": {"a": "1", "b": "2"}, "metadata": {"labels": {"x": "y"}}});
    for (patch, result) in [
        (json!({}), doc.clone()),
        (
            json!({"data": {"a": null, "c": "3"}}),
            json!({"data": {"b": "2", "c": "3"}, "metadata": {"labels": {"x": "y"}}}),
        ),
        (
            json!({"data": {"$patch": "replace", "z": "z"}, "metadata": {"labels": {"$patch": "delete"}}}),
            json!({"data": {"z": "z"}, "metadata": {"labels": {}}}),
        ),
        (
            json!({"$patch": "replace", "data": {"z": "z"}}),
            json!({"data": {"z": "z"}}),
        ),
        (
            json!({"binaryData": {"n": null, "m": "bQ=="}}),
            json!({"binaryData": {"m": "bQ=="}, "data": {"a": "1", "b": "2"}, "metadata": {"labels": {"x": "y"}}}),
        ),
    ] {
        assert_eq!(
            patched(&CONFIG_MAP, doc.clone(), patch.clone()),
            Ok(result),
            "{patch}"
        );
    }
}

#[test]
fn lists_of_objects_merge_by_their_key() {
    let doc = json!({"containers": [
        {"name": "a", "image": "i:1", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}], "args": ["q"]},
        {"name": "b", "image": "j:1"},
    ]});
    let patch = json!({"containers": [
        {"name": "c", "image": "k"},
        {"name": "a", "args": ["r", "s"], "env": [{"name": "Y", "$patch": "delete"}, {"name": "Z"}, {"name": "X", "value": "9"}]},
        {"name": "b", "$patch": "delete"},
    ]});
    assert_eq!(
        spec(doc, patch),
        Ok(json!({"containers": [
            {"name": "c", "image": "k"},
            {"name": "a", "image": "i:1", "args": ["r", "s"], "env": [{"name": "Z"}, {"name": "X", "value": "9"}]},
        ]}))
    );
    let ports = json!({"spec": {"ports": [{"name": "x", "port": 80}, {"name": "y", "port": 81}]}});
    let patch = json!({"spec": {"ports": [{"port": 80, "targetPort": 8080}, {"port": 82}]}});
    assert_eq!(
        patched(&SERVICE, ports, patch),
        Ok(json!({"spec": {"ports": [
            {"name": "x", "port": 80, "targetPort": 8080}, {"port": 82}, {"name": "y", "port": 81}
        ]}}))
    );
}

#[test]
fn a_list_can_be_replaced_and_a_nested_directive_does_not_leak() {
    let doc = json!({"containers": [{"name": "a"}, {"name": "b"}]});
    assert_eq!(
        spec(doc, json!({"containers": [{"name": "z"}, {"$patch": "replace"}]})),
        Ok(json!({"containers": [{"name": "z"}]}))
    );
    assert_eq!(
        spec(
            json!({}),
            json!({"containers": [{"name": "a", "env": [{"name": "X", "$patch": "delete"}], "image": null}]})
        ),
        Ok(json!({"containers": [{"name": "a", "env": []}]}))
    );
}

#[test]
fn lists_of_scalars_merge_only_with_strategy_merge() {
    let doc = json!({"metadata": {"finalizers": ["x/a", "x/b"]}});
    for (patch, finalizers) in [
        (
            json!({"finalizers": ["x/c", "x/a"]}),
            json!(["x/c", "x/a", "x/b"]),
        ),
        (
            json!({"$deleteFromPrimitiveList/finalizers": ["x/a", "x/z"]}),
            json!(["x/b"]),
        ),
        (
            json!({"$setElementOrder/finalizers": ["x/b", "x/a"], "finalizers": ["x/b"]}),
            json!(["x/b", "x/a"]),
        ),
        (
            json!({"$deleteFromPrimitiveList/foo": "x"}),
            json!(["x/a", "x/b"]),
        ),
    ] {
        let result = patched(&CONFIG_MAP, doc.clone(), json!({ "metadata": patch }));
        assert_eq!(
            result,
            Ok(json!({"metadata": {"finalizers": finalizers}})),
            "{patch}"
        );
    }
}

#[test]
fn set_element_order_orders_the_listed_items_and_keeps_the_others_in_place() {
    let list = |names: &[&str]| -> Value { names.iter().map(|n| json!({ "name": n })).collect() };
    for (live, order, change, result) in [
        (&["a", "b"][..], &["b", "a"][..], &["a"][..], &["b", "a"][..]),
        (&["a", "b"], &["c", "a", "b"], &["c"], &["c", "a", "b"]),
        (
            &["s", "a", "t", "b", "u"],
            &["b", "a"],
            &["b", "a"],
            &["s", "t", "b", "a", "u"],
        ),
        (&["a", "b"], &["b", "a"], &[], &["b", "a"]),
        (&[], &["b", "a"], &["b", "a"], &["b", "a"]),
    ] {
        let mut doc = json!({});
        if !live.is_empty() {
            doc["containers"] = list(live);
        }
        let mut patch = json!({ "$setElementOrder/containers": list(order) });
        if !change.is_empty() {
            patch["containers"] = list(change);
        }
        let spec = spec(doc, patch).expect("a good patch");
        assert_eq!(
            names(&spec["containers"]),
            result,
            "{live:?} {order:?} {change:?}"
        );
    }
}

#[test]
fn retain_keys_drops_the_other_members_of_a_union() {
    let doc = json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}});
    let patch = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
    assert_eq!(
        patched(&DEPLOYMENT, doc.clone(), patch),
        Ok(json!({"spec": {"strategy": {"type": "Recreate"}}}))
    );
    let patch = json!({"spec": {"strategy": {"$retainKeys": ["rollingUpdate"], "type": "Recreate"}}});
    assert_eq!(
        patched(&DEPLOYMENT, doc, patch),
        Err((400, "invalid patch format of retainKeys".to_string()))
    );
}

#[test]
fn a_field_with_strategy_replace_is_replaced() {
    let doc = json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}});
    let patch = json!({"spec": {"selector": {"matchLabels": {"c": "d"}}}});
    assert_eq!(patched(&POD_DISRUPTION_BUDGET, doc, patch.clone()), Ok(patch));
}

#[test]
fn invalid_patches_are_rejected_with_kubernetes_messages() {
    let doc = json!({
        "metadata": {"finalizers": ["x/a"], "labels": {}},
        "spec": {"taints": [{"key": "k"}]},
        "status": {"addresses": [{"type": "InternalIP"}]},
    });
    for (patch, code, message) in [
        (
            json!([]),
            400,
            "json: cannot unmarshal array into Go value of type map[string]interface {}",
        ),
        (
            json!({"$patch": "frob"}),
            500,
            "unknown patch type: frob in map: map[$patch:frob]",
        ),
        (
            json!({"status": {"addresses": [{"address": "1.1.1.1"}]}}),
            500,
            "map: map[address:1.1.1.1] does not contain declared merge key: type",
        ),
        (
            json!({"status": {"addresses": [{"type": "x", "$patch": "merge"}]}}),
            500,
            "merging lists cannot yet be specified in the patch",
        ),
        (
            json!({"status": {"addresses": ["x"]}}),
            500,
            "list element types are not identical: [[map[type:InternalIP]] [x]]",
        ),
        (
            json!({"metadata": {"finalizers": [["x"]]}}),
            500,
            "list element types are not identical: [[x/a] [[x]]]",
        ),
        (
            json!({"metadata": {"$setElementOrder/finalizers": "x"}}),
            500,
            "expected a []interface {}, but received a string",
        ),
        (
            json!({"metadata": {"$setElementOrder": []}}),
            400,
            "invalid patch format of setElementOrder list",
        ),
        (
            json!({"metadata": {"$deleteFromPrimitiveList": []}}),
            400,
            "invalid patch format of primitive list",
        ),
        (
            json!({"metadata": {"$setElementOrder/finalizers": ["a"], "finalizers": ["b"]}}),
            500,
            "The order in patch list:\n[b]\n doesn't match $setElementOrder list:\n[a]\n",
        ),
        (
            json!({"metadata": {"$setElementOrder/nope": []}}),
            500,
            "unable to find api field in struct ObjectMeta for the json field \"nope\"",
        ),
        (
            json!({"metadata": {"finalizers": [null]}}),
            500,
            "null is no element of a list that is merged",
        ),
    ] {
        assert_eq!(
            patched(&NODE, doc.clone(), patch.clone()),
            Err((code, message.to_string())),
            "{patch}"
        );
    }
}

#[test]
fn scale_has_its_own_shape() {
    let mut doc = json!({"spec": {"replicas": 1}});
    apply_to_scale(&mut doc, &json!({"spec": {"replicas": 3}})).expect("a good patch");
    assert_eq!(doc, json!({"spec": {"replicas": 3}}));
}

/// A request body has room for a hundred thousand items. (With a linear search for each this would take minutes.)
#[test]
fn long_lists_merge_in_linear_time() {
    const MANY: usize = 20_000;
    let list = |from: usize| -> Value {
        (from..from + MANY)
            .map(|i| json!({"name": i.to_string()}))
            .collect()
    };
    let merged = spec(
        json!({"containers": list(0)}),
        json!({"containers": list(MANY / 2)}),
    )
    .expect("a good patch");
    assert_eq!(
        merged["containers"].as_array().map(Vec::len),
        Some(MANY + MANY / 2)
    );
}

/// Values as a hostile client would write them: the right names and directives in the wrong places.
fn any_patch() -> impl proptest::strategy::Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        Just(json!("replace")),
        Just(json!("delete")),
        Just(json!("a")),
        Just(json!(1)),
    ];
    scalar.prop_recursive(5, 40, 4, |inner| {
        let key = prop::sample::select(vec![
            "$patch",
            "$retainKeys",
            "$setElementOrder/containers",
            "$setElementOrder/finalizers",
            "$deleteFromPrimitiveList/finalizers",
            "$deleteFromPrimitiveList/containers",
            "$setElementOrder",
            "containers",
            "finalizers",
            "metadata",
            "spec",
            "name",
            "env",
            "labels",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..5).prop_map(|fields| {
                Value::Object(fields.into_iter().map(|(k, v)| (k.to_string(), v)).collect())
            }),
        ]
    })
}

proptest! {
    #[test]
    fn no_patch_panics(metadata in any_patch(), spec in any_patch()) {
        let doc = json!({
            "metadata": {"name": "a", "finalizers": ["a", "b"], "labels": {"a": "1"}},
            "spec": {"containers": [{"name": "a", "env": [{"name": "a"}]}, {"name": "b"}]},
        });
        let _ = patched(&POD, doc, json!({"metadata": metadata, "spec": spec}));
    }

    /// Items that a patch has by key exist afterwards, in its order, and other items stay.
    #[test]
    fn a_merged_list_has_both_lists_items_and_the_patchs_order(
        live in prop::collection::vec("[a-f]", 0..6),
        patched in prop::collection::vec("[a-h]", 0..6),
    ) {
        let unique = |names: Vec<String>| -> Vec<String> {
            let mut seen = std::collections::HashSet::new();
            names.into_iter().filter(|n| seen.insert(n.clone())).collect()
        };
        let (live, patched) = (unique(live), unique(patched));
        let list = |names: &[String]| -> Value { names.iter().map(|n| json!({ "name": n })).collect() };
        let merged = spec(json!({"containers": list(&live)}), json!({"containers": list(&patched)})).unwrap();
        let merged = names(&merged["containers"]);
        let of = |keep: &[String]| -> Vec<String> {
            merged.iter().filter(|n| keep.iter().any(|k| k == *n)).map(ToString::to_string).collect()
        };
        let untouched: Vec<String> = live.iter().filter(|n| !patched.contains(n)).cloned().collect();
        prop_assert_eq!(of(&patched), patched.clone());
        prop_assert_eq!(of(&untouched), untouched.clone());
        prop_assert_eq!(merged.len(), untouched.len() + patched.len());
    }
}
