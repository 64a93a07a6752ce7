//! Invalid patches.

use super::case::*;

pub fn patches() -> Vec<Case> {
    let deployment = ("PATCH", DEPLOYMENT);
    let operations = |n: usize| {
        format!(
            "[{}]",
            vec![r#"{"op":"add","path":"/data/x","value":"y"}"#; n].join(",")
        )
    };
    let doubling = format!(
        "[{}]",
        (0..60)
            .map(|n| format!(r#"{{"op":"copy","from":"/data","path":"/data/x{n}"}}"#))
            .collect::<Vec<_>>()
            .join(",")
    );
    vec![
        patched(JSON, "{}", MEDIA, "415: Unsupported Media Type"),
        patched(
            JSON_PATCH,
            "{}",
            BAD,
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
        ),
        patched(
            JSON_PATCH,
            "[",
            BAD,
            "error decoding patch: unexpected end of JSON input",
        ),
        patched(
            JSON_PATCH,
            operations(10_001),
            LARGE,
            "The allowed maximum operations in a JSON patch is 10000, got 10001",
        ),
        patched(
            JSON_PATCH,
            doubling,
            INVALID,
            "the server rejected our request due to an error in our request",
        ),
        patched(
            JSON_PATCH,
            r#"[{"op":"remove","path":"/data/none"}]"#,
            INVALID,
            "the server rejected our request due to an error in our request",
        ),
        patched(
            JSON_PATCH,
            r#"[{"op":"test","path":"/data/k","value":"other"}]"#,
            INVALID,
            "the server rejected our request due to an error in our request",
        ),
        patched(
            JSON_PATCH,
            r#"[{"op":"add","path":"/data","value":5}]"#,
            INVALID,
            "json: cannot unmarshal number into Go struct field ConfigMap.data of type map[string]string",
        ),
        patched(
            JSON_PATCH,
            format!(r#"[{{"op":"add","path":"/data/x","value":{}}}]"#, nested(50_000)),
            BAD,
            "error decoding patch: ",
        ),
        patched(
            JSON_PATCH,
            format!(
                r#"[{{"op":"add","path":"/data{}","value":"x"}}]"#,
                "/a".repeat(100_000)
            ),
            INVALID,
            "",
        ),
        patched(
            MERGE,
            "[]",
            BAD,
            "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}",
        ),
        patched(MERGE, "5", BAD, "error decoding patch: "),
        patched(
            MERGE,
            r#"{"data":"x"}"#,
            INVALID,
            "json: cannot unmarshal string into Go struct field ConfigMap.data of type map[string]string",
        ),
        patched(
            MERGE,
            format!(r#"{{"data":{{"x":{}}}}}"#, nested(50_000)),
            BAD,
            "error decoding patch: ",
        ),
        patched(
            MERGE,
            r#"{"metadata":{"name":"other"}}"#,
            BAD,
            "the name of the object (other) does not match the name on the URL (kept)",
        ),
        case(
            deployment,
            STRATEGIC,
            r#"{"spec":{"$patch":"explode"}}"#,
            UNNAMED,
            "unknown patch type: explode",
        ),
        case(
            deployment,
            STRATEGIC,
            r#"{"spec":{"replicas":"many"}}"#,
            INVALID,
            "patch: Invalid value",
        ),
        case(
            deployment,
            STRATEGIC,
            r#"{"spec":{"template":{"spec":{"containers":[{"image":"x"}]}}}}"#,
            UNNAMED,
            "does not contain declared merge key: name",
        ),
        case(
            deployment,
            APPLY,
            "apiVersion: apps/v1\nkind: Deployment\n",
            INVALID,
            "fieldManager: Required value: is required for apply patch",
        ),
        case(
            ("PATCH", &format!("{KEPT}?dryRun=Some")),
            MERGE,
            "{}",
            INVALID,
            "dryRun: ",
        ),
        case(
            ("PATCH", &format!("{KEPT}?fieldManager={}", "x".repeat(129))),
            MERGE,
            "{}",
            INVALID,
            "fieldManager: Too long: may not be more than 128 bytes",
        ),
        case(
            ("PATCH", &format!("{KEPT}?fieldValidation=Loud")),
            MERGE,
            "{}",
            INVALID,
            r#"fieldValidation: Unsupported value: "Loud""#,
        ),
    ]
}
