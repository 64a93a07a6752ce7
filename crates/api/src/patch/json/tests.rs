//! JSON patches: the RFC's rules with Kubernetes' deviations, and random patches.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn patched(mut doc: Value, patch: Value) -> Result<Value, u16> {
    apply(&mut doc, &patch).map(|()| doc).map_err(|e| e.code())
}

#[test]
fn operations_do_what_the_rfc_and_kubernetes_say() {
    let doc = json!({"a": {"b": [1, 2, 3]}, "x/y": "~", "n": null});
    let with = |change: fn(&mut Value)| {
        let mut doc = doc.clone();
        change(&mut doc);
        Ok(doc)
    };
    for (operation, result) in [
        (
            json!({"op":"add","path":"/a/c","value":1}),
            with(|d| d["a"]["c"] = json!(1)),
        ),
        (
            json!({"op":"add","path":"a/c","value":1}),
            with(|d| d["c"] = json!(1)),
        ),
        (
            json!({"op":"add","path":"/a/b/-","value":4}),
            with(|d| d["a"]["b"] = json!([1, 2, 3, 4])),
        ),
        (
            json!({"op":"add","path":"/a/b/0","value":0}),
            with(|d| d["a"]["b"] = json!([0, 1, 2, 3])),
        ),
        (
            json!({"op":"add","path":"/a/b/-1","value":4}),
            with(|d| d["a"]["b"] = json!([1, 2, 3, 4])),
        ),
        (json!({"op":"add","path":"/a/b/4","value":4}), Err(422)),
        (json!({"op":"add","path":"/a/b/x","value":4}), Err(422)),
        (json!({"op":"add","path":"/q/r","value":4}), Err(422)),
        (json!({"op":"add","path":"","value":{}}), Err(422)),
        (
            json!({"op":"add","path":"/a/c"}),
            with(|d| d["a"]["c"] = Value::Null),
        ),
        (
            json!({"op":"remove","path":"/a/b/-1"}),
            with(|d| d["a"]["b"] = json!([1, 2])),
        ),
        (json!({"op":"remove","path":"/q"}), Err(422)),
        (
            json!({"op":"remove","path":"/x~1y"}),
            with(|d| {
                d.as_object_mut().unwrap().remove("x/y");
            }),
        ),
        (
            json!({"op":"replace","path":"/q","value":1}),
            with(|d| d["q"] = json!(1)),
        ),
        (json!({"op":"replace","path":"/a/b/3","value":1}), Err(422)),
        (
            json!({"op":"replace","path":"","value":{"z":1}}),
            Ok(json!({"z":1})),
        ),
        (json!({"op":"replace","path":"","value":1}), Err(422)),
        (
            json!({"op":"move","from":"/a/b","path":"/c"}),
            with(|d| {
                d["a"] = json!({});
                d["c"] = json!([1, 2, 3]);
            }),
        ),
        (json!({"op":"move","from":"/a","path":"/a/b"}), Err(422)),
        (json!({"op":"move","path":"/c"}), Err(422)),
        (
            json!({"op":"copy","from":"/a/b/1","path":"/c"}),
            with(|d| d["c"] = json!(2)),
        ),
        (
            json!({"op":"copy","from":"/q","path":"/c"}),
            with(|d| d["c"] = Value::Null),
        ),
        (
            json!({"op":"test","path":"/a","value":{"b":[1,2,3]}}),
            with(|_| {}),
        ),
        (json!({"op":"test","path":"/a","value":{}}), Err(422)),
        (json!({"op":"test","path":"/q"}), with(|_| {})),
        (json!({"op":"test","path":"/q","value":"x"}), Err(422)),
        (json!({"op":"test","path":"/a/q/r","value":null}), Err(422)),
        (json!({"path":"/a"}), Err(422)),
        (json!({"op":"frob","path":"/a"}), Err(422)),
        (json!({"op":"add","value":1}), Err(422)),
        (json!({"op":"add","path":1}), Err(400)),
        (json!(1), Err(400)),
    ] {
        assert_eq!(patched(doc.clone(), json!([operation])), result, "{operation}");
    }
}

#[test]
fn errors_are_worded_as_by_kubernetes() {
    let error = apply(&mut json!({}), &json!([{"op":"remove","path":"/a"}])).expect_err("nothing there");
    let status = serde_json::to_value(error.status()).expect("a status");
    assert_eq!(
        (&status["reason"], &status["message"], &status["details"]),
        (
            &json!("Invalid"),
            &json!("the server rejected our request due to an error in our request"),
            &json!({})
        )
    );
    let error = apply(&mut json!({}), &json!({})).expect_err("no list");
    assert_eq!(
        error.message(),
        "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
    );
    assert_eq!(
        unknown_fields(&json!([{"op":"add","path":"/a","foo":1}])),
        ["[0].foo"]
    );
}

#[test]
fn a_patch_has_at_most_ten_thousand_operations() {
    let test = json!({"op":"test","path":"/a","value":1});
    let many = |n: usize| Value::Array(vec![test.clone(); n]);
    assert_eq!(patched(json!({"a":1}), many(MAX_OPERATIONS)), Ok(json!({"a":1})));
    let error = apply(&mut json!({"a":1}), &many(MAX_OPERATIONS + 1)).expect_err("one too many");
    assert_eq!(
        (error.code(), error.message()),
        (
            413,
            "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001"
        )
    );
}

#[test]
fn copies_can_neither_fill_memory_nor_outgrow_the_stack() {
    let doubling = |op: &str| vec![json!({"op":op,"from":"/a","path":"/a/-"}); 64];
    assert_eq!(
        patched(json!({"a":["x".repeat(1000)]}), doubling("copy").into()),
        Err(422)
    );
    let deeper = vec![json!({"op":"copy","from":"/a","path":"/a/b"}); MAX_DEPTH + 1];
    assert_eq!(patched(json!({"a":{}}), deeper.into()), Err(422));
    let nest = |n: usize| (0..n).fold(json!(1), |inner, _| json!([inner]));
    let at_the_limit = json!([{"op":"add","path":"/a","value":nest(MAX_DEPTH - 1)}]);
    let deepest = patched(json!({}), at_the_limit).expect("deep, and not too deep");
    assert_eq!(
        serde_json::from_str::<Value>(&deepest.to_string()).ok(),
        Some(deepest)
    );
    let beyond = json!([{"op":"add","path":"/a","value":nest(MAX_DEPTH)}]);
    assert_eq!(patched(json!({}), beyond), Err(422));
}

proptest! {
    #[test]
    fn no_patch_panics(
        ops in prop::collection::vec(
            (
                prop::sample::select(vec!["add", "remove", "replace", "move", "copy", "test"]),
                "(/(a|b|0|1|-|-1|~0|)){0,3}",
                "(/(a|b|0|1)){0,3}",
            ),
            0..8,
        )
    ) {
        let patch: Vec<Value> = ops
            .into_iter()
            .map(|(op, path, from)| json!({"op":op,"path":path,"from":from,"value":{"a":[1]}}))
            .collect();
        let _ = patched(json!({"a":[{"b":1}],"b":{"a":{}}}), patch.into());
    }
}
