//! JSON merge patch (RFC 7386).

use knarr_apimachinery::error::Error;
use serde_json::{Map, Value};

use super::go::go_json_kind;

/// Rejects (400) JSON that is not a merge patch of an object. To be called before [`apply`].
pub fn check(patch: &Value) -> Result<(), Error> {
    match patch {
        Value::Object(_) => Ok(()),
        Value::Null => Err(Error::bad_request("Invalid JSON Patch")),
        other => Err(Error::bad_request(format!(
            "error decoding patch: json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            go_json_kind(other)
        ))),
    }
}

/// Applies `patch` to `doc`. As the RFC has it, a patch that is no object replaces the document.
/// Recurses as deep as the patch, so the patch must come from a reader that bounds depth, as `serde_json` does.
pub fn apply(doc: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *doc = patch.clone();
        return;
    };
    if !doc.is_object() {
        *doc = Value::Object(Map::new());
    }
    let Value::Object(fields) = doc else { return };
    for (key, change) in patch {
        if change.is_null() {
            fields.remove(key);
        } else {
            apply(fields.entry(key.clone()).or_insert(Value::Null), change);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The examples of RFC 7386, appendix A.
    #[test]
    fn the_rfcs_examples_hold() {
        for (mut doc, patch, result) in [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (json!({"a":"b","b":"c"}), json!({"a":null}), json!({"b":"c"})),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
            (
                json!({"a":{"b":"c"}}),
                json!({"a":{"b":"d","c":null}}),
                json!({"a":{"b":"d"}}),
            ),
            (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a":"b"}), json!(["c"]), json!(["c"])),
            (json!({"a":"foo"}), json!(null), json!(null)),
            (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
            (json!([1, 2]), json!({"a":"b","c":null}), json!({"a":"b"})),
            (
                json!({}),
                json!({"a":{"bb":{"ccc":null}}}),
                json!({"a":{"bb":{}}}),
            ),
        ] {
            apply(&mut doc, &patch);
            assert_eq!(doc, result, "{patch}");
        }
    }

    #[test]
    fn a_merge_patch_is_an_object() {
        assert!(check(&json!({})).is_ok());
        for (patch, message) in [
            (json!(null), "Invalid JSON Patch"),
            (
                json!([]),
                "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}",
            ),
        ] {
            let error = check(&patch).expect_err("no object");
            assert_eq!((error.code(), error.message()), (400, message));
        }
    }
}
