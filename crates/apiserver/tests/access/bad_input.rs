//! Errors of users and requests of broken or hostile clients: each gets a `Status` that names what is wrong, with kube-apiserver's message where it
//! has one, and afterwards nothing has changed.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::cluster::{ADMIN, Cluster, Credentials, TestResponse};
use crate::memory::{in_own_process, resident_bytes};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const KEPT: &str = "/api/v1/namespaces/default/configmaps/kept";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/default/deployments/kept";
const JSON: &str = "application/json";
const JSON_PATCH: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// An invalid request: method, path, content type, body; then the code, the reason and a part of the message.
type Case = (
    &'static str,
    String,
    &'static str,
    Vec<u8>,
    u16,
    &'static str,
    &'static str,
);

fn case(
    (method, path): (&'static str, &str),
    media: &'static str,
    body: impl Into<Vec<u8>>,
    (code, reason): (u16, &'static str),
    message: &'static str,
) -> Case {
    (method, path.into(), media, body.into(), code, reason, message)
}

/// A JSON body for a new ConfigMap.
fn posted(body: impl Into<Vec<u8>>, wrong: (u16, &'static str), message: &'static str) -> Case {
    case(("POST", MAPS), JSON, body, wrong, message)
}

/// A patch of the existing ConfigMap.
fn patched(
    media: &'static str,
    body: impl Into<Vec<u8>>,
    wrong: (u16, &'static str),
    message: &'static str,
) -> Case {
    case(("PATCH", KEPT), media, body, wrong, message)
}

const BAD: (u16, &str) = (400, "BadRequest");
/// A resourceVersion of a watch that is not a number: Kubernetes gives no reason.
const UNREADABLE: (u16, &str) = (500, "");
const INVALID: (u16, &str) = (422, "Invalid");
const LARGE: (u16, &str) = (413, "RequestEntityTooLarge");
const MEDIA: (u16, &str) = (415, "UnsupportedMediaType");
const METHOD: (u16, &str) = (405, "MethodNotAllowed");
/// An error that kube-apiserver's handlers pass on without a reason.
const UNNAMED: (u16, &str) = (500, "");
const MISSING: (u16, &str) = (404, "NotFound");

/// So deep that an unbounded recursive parser would run out of stack.
fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

fn map_with(data: &str) -> String {
    format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"new"}},"data":{data}}}"#)
}

fn bodies() -> Vec<Case> {
    let post = ("POST", MAPS);
    let strict = format!("{MAPS}?fieldValidation=Strict");
    let strict = ("POST", strict.as_str());
    let bomb = {
        let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for n in 1..10 {
            let of = format!("*a{}", n - 1);
            text += &format!("a{n}: &a{n} [{}]\n", [of.as_str(); 10].join(","));
        }
        text
    };
    vec![
        posted("", BAD, "must be of type ConfigMap"),
        posted(r#"{"metadata":"#, BAD, "unexpected end of JSON input"),
        posted(
            "null",
            INVALID,
            "metadata.name: Required value: name or generateName is required",
        ),
        posted("[]", BAD, "json: cannot unmarshal array into Go value"),
        posted("{} {}", BAD, "invalid character '{' after top-level value"),
        posted(
            map_with(r#"{"k":5}"#),
            BAD,
            "json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
        ),
        posted(
            map_with(r#""x""#),
            BAD,
            "json: cannot unmarshal string into Go struct field ConfigMap.data of type map[string]string",
        ),
        posted(map_with(&nested(200_000)), BAD, "exceeded max depth"),
        posted(
            [
                b"{\"metadata\":{\"name\":\"new\"},\"data\":{\"k\":".as_slice(),
                &[b'['; 1_000_000],
            ]
            .concat(),
            BAD,
            "json parse error: ",
        ),
        posted(
            b"{\"metadata\":{\"name\":\"\xff\xfe\"}}".as_slice(),
            BAD,
            "invalid UTF-8 in string",
        ),
        case(
            strict,
            JSON,
            map_with(r#"{"a":"1","a":"2"}"#),
            BAD,
            r#"strict decoding error: duplicate field "data.a""#,
        ),
        case(
            strict,
            JSON,
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"new","nme":"x"},"dta":{}}"#,
            BAD,
            r#"strict decoding error: unknown field "metadata.nme", unknown field "dta""#,
        ),
        posted(
            r#"{"apiVersion":"v1","kind":"Nothing","metadata":{"name":"new"}}"#,
            BAD,
            r#"no kind "Nothing" is registered for version "v1""#,
        ),
        posted(
            r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"new"}}"#,
            BAD,
            "",
        ),
        posted(
            r#"{"apiVersion":"apps/v1","kind":"ConfigMap","metadata":{"name":"new"}}"#,
            BAD,
            "",
        ),
        posted(
            r#"{"metadata":{"name":"Not_A_Name"}}"#,
            INVALID,
            "metadata.name: Invalid value: \"Not_A_Name\": a lowercase RFC 1123 subdomain must consist of",
        ),
        posted(r#"{"metadata":{}}"#, INVALID, "name or generateName is required"),
        posted(
            r#"{"metadata":{"name":"new","namespace":"other"}}"#,
            BAD,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        posted(
            r#"{"metadata":{"name":"new","resourceVersion":"5"}}"#,
            UNNAMED,
            "resourceVersion should not be set on objects to be created",
        ),
        posted(
            r#"{"metadata":{"name":"new","labels":{"a b":"c"}}}"#,
            INVALID,
            "metadata.labels: Invalid value: \"a b\"",
        ),
        posted(
            format!(
                r#"{{"metadata":{{"name":"new","annotations":{{"a":"{}"}}}}}}"#,
                "x".repeat(300_000)
            ),
            INVALID,
            "metadata.annotations: Too long: may not be more than 262144 bytes",
        ),
        posted(
            map_with(&format!(r#"{{"k":"{}"}}"#, "x".repeat((1 << 20) + 1))),
            INVALID,
            "may not be more than 1048576 bytes",
        ),
        posted(
            vec![b' '; 3 * 1024 * 1024 + 1],
            LARGE,
            "Request entity too large: limit is 3145728",
        ),
        posted(
            vec![b' '; 9 * 1024 * 1024],
            LARGE,
            "Request entity too large: limit is 3145728",
        ),
        case(
            post,
            "text/csv",
            "{}",
            MEDIA,
            "the body of the request was in an unknown format - accepted media types include: ",
        ),
        case(post, YAML, bomb, BAD, "document contains excessive aliasing"),
        case(
            post,
            YAML,
            "[".repeat(100_000),
            BAD,
            "yaml: recursion limit exceeded",
        ),
        case(post, YAML, "a: b: c", BAD, "yaml: "),
        case(post, YAML, b"\xff\xfe".as_slice(), BAD, "yaml: "),
        case(post, PROTOBUF, "k8s", BAD, "protobuf"),
        case(
            post,
            PROTOBUF,
            b"k8s\0\x0a\xff\xff\xff\xff\x0f".as_slice(),
            BAD,
            "protobuf",
        ),
        // A compressed body is not decompressed, so a decompression bomb does no harm: it is bytes that are not JSON.
        posted(
            b"\x1f\x8b\x08\0\0\0\0\0".as_slice(),
            BAD,
            "invalid character '\\x1f' looking for beginning of value",
        ),
    ]
}

fn patches() -> Vec<Case> {
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

fn requests() -> Vec<Case> {
    let get = |path: &str| ("GET", format!("/api/v1/namespaces/default/configmaps{path}"));
    let asked = |path: &str, wrong, message| {
        let (method, path) = get(path);
        case((method, &path), "", "", wrong, message)
    };
    vec![
        asked("?labelSelector=a+in+(", BAD, "unable to parse requirement: "),
        asked("?labelSelector=!!!", BAD, "unable to parse requirement: "),
        asked("?labelSelector=a%3D%3D%3Db", BAD, "unable to parse requirement: "),
        asked(
            "?fieldSelector=spec.none%3Dx",
            BAD,
            r#""spec.none" is not a known field selector: only "metadata.name", "metadata.namespace""#,
        ),
        asked(
            "?fieldSelector=x",
            BAD,
            "invalid selector: 'x'; can't understand 'x'",
        ),
        asked(
            "?limit=many",
            BAD,
            "strconv.ParseInt: parsing \"many\": invalid syntax",
        ),
        asked("?continue=%00%C3%BF", BAD, "continue key is not valid"),
        asked(
            "?continue=%00%ff",
            BAD,
            "the query of the request URL cannot be decoded",
        ),
        asked(
            "?labelSelector=%zz",
            BAD,
            "the query of the request URL cannot be decoded",
        ),
        asked("?continue=bm90IGpzb24=", BAD, "continue key is not valid"),
        asked(
            "?resourceVersion=new",
            BAD,
            "resourceVersion: Invalid value: \"new\"",
        ),
        asked(
            "?resourceVersion=5&resourceVersionMatch=Roughly",
            INVALID,
            "resourceVersionMatch: ",
        ),
        asked("?watch=1&timeoutSeconds=x", BAD, "strconv.ParseInt"),
        asked("?watch=1&resourceVersion=-5", UNREADABLE, "resourceVersion"),
        asked(
            "?timeout=soon",
            BAD,
            "invalid timeout specified in the request URL",
        ),
        asked("/%2e%2e%2fnodes", MISSING, ""),
        asked("/..", MISSING, ""),
        asked("/kept/none", MISSING, ""),
        asked("s", MISSING, "the server could not find the requested resource"),
        case(
            ("GET", "/api/v9/pods"),
            "",
            "",
            MISSING,
            "the server could not find the requested resource",
        ),
        case(
            ("PUT", MAPS),
            JSON,
            "{}",
            METHOD,
            "the server does not allow this method on the requested resource",
        ),
        case(
            ("POST", KEPT),
            JSON,
            "{}",
            METHOD,
            "the server does not allow this method on the requested resource",
        ),
        case(("BREW", KEPT), "", "", METHOD, ""),
        case(("TRACE", KEPT), "", "", METHOD, ""),
        case(
            ("PUT", KEPT),
            JSON,
            r#"{"metadata":{"name":"other"}}"#,
            BAD,
            "the name of the object (other) does not match the name on the URL (kept)",
        ),
        case(
            ("PUT", KEPT),
            JSON,
            r#"{"metadata":{"name":"kept","resourceVersion":"x"}}"#,
            UNNAMED,
            r#"strconv.ParseUint: parsing "x": invalid syntax"#,
        ),
        case(
            ("PUT", KEPT),
            JSON,
            r#"{"metadata":{"name":"kept","uid":"other"}}"#,
            (409, "Conflict"),
            "Precondition failed: UID in precondition: other",
        ),
        case(
            ("DELETE", KEPT),
            JSON,
            r#"{"propagationPolicy":"Sideways"}"#,
            INVALID,
            "propagationPolicy: ",
        ),
        case(("DELETE", KEPT), JSON, r#"{"gracePeriodSeconds":"x"}"#, BAD, ""),
        case(
            ("DELETE", KEPT),
            JSON,
            r#"{"preconditions":{"uid":"other"}}"#,
            (409, "Conflict"),
            "the UID in the precondition (other) does not match the UID in record (",
        ),
        case(
            ("DELETE", KEPT),
            JSON,
            r#"{"kind":"Pod","apiVersion":"v1"}"#,
            BAD,
            "",
        ),
    ]
}

/// Requests for a media type that is not supported: path, `Accept`, and a part of the message.
const UNACCEPTABLE: [(&str, &str, &str); 9] = [
    (KEPT, "application/xml", "406: Not Acceptable"),
    (KEPT, "text/*", "406: Not Acceptable"),
    (KEPT, "json", "406: Not Acceptable"),
    (
        MAPS,
        "text/html,image/png;q=0.9",
        "Available representations: application/json, application/yaml, application/vnd.kubernetes.protobuf, \
application/json;stream=watch",
    ),
    ("/api", "text/html", "406: Not Acceptable"),
    ("/apis", "image/png", "406: Not Acceptable"),
    (KEPT, PROTOBUF, "only the following media types are accepted: "),
    (
        KEPT,
        "application/json;as=Table;v=v9;g=meta.k8s.io",
        "only the following media types are accepted: ",
    ),
    (
        MAPS,
        "application/json;as=PartialObjectMetadataList;v=v1;g=example.com",
        "only the following media types are accepted: ",
    ),
];

#[tokio::test]
async fn a_media_type_that_is_not_supported_is_rejected_with_those_that_are() {
    let cluster = Cluster::start().await;
    cluster.create(MAPS, json!({"metadata": {"name": "kept"}})).await;
    for (path, accept, message) in UNACCEPTABLE {
        let credentials = Credentials::token(ADMIN).header("accept", accept);
        let answer = cluster.ask(&credentials, "GET", path, None).await;
        let status = &answer.body;
        assert_eq!(
            (answer.code, &status["kind"], &status["reason"], &status["code"]),
            (406, &json!("Status"), &json!("NotAcceptable"), &json!(406)),
            "{path} {accept}: {}",
            answer.text
        );
        assert!(
            answer.message().contains(message),
            "{path} {accept}: {}",
            answer.text
        );
        // A client that also accepts a supported media type gets that.
        let credentials =
            Credentials::token(ADMIN).header("accept", format!("{accept},application/json;q=0.1"));
        let answer = cluster.ask(&credentials, "GET", path, None).await;
        assert_eq!(answer.code, 200, "{path} {accept}: {}", answer.text);
    }
}

async fn sent(cluster: &Cluster, (method, path, media, body, ..): &Case) -> TestResponse {
    let mut credentials = Credentials::token(ADMIN);
    if !media.is_empty() {
        credentials = credentials.header("content-type", *media);
    }
    let mut client = cluster.connect(&credentials).await.unwrap();
    client
        .send_bytes(method, path, Some(Bytes::from(body.clone())))
        .await
}

/// What is wrong with an error response; `None` if nothing.
fn error_of(case: &Case, answer: &TestResponse) -> Option<String> {
    let (method, path, media, body, code, reason, message) = case;
    let status = &answer.body;
    let right = answer.code == *code
        && status["kind"] == "Status"
        && status["status"] == "Failure"
        && status["code"] == json!(code)
        && (reason.is_empty() || status["reason"] == *reason)
        && !answer.message().is_empty()
        && answer.message().contains(message)
        && answer.text.len() < 20_000;
    let body = String::from_utf8_lossy(&body[..body.len().min(120)]).into_owned();
    let text: String = answer.text.chars().take(700).collect();
    (!right).then(|| {
        format!(
            "{method} {path} {media} {body}\n  wanted {code} {reason} {message:?}\n  found  {} {text}",
            answer.code
        )
    })
}

#[tokio::test]
async fn bad_input_is_rejected_with_its_error_and_nothing_is_lost() {
    if !in_own_process("bad_input::bad_input_is_rejected_with_its_error_and_nothing_is_lost") {
        return;
    }
    let cluster = Cluster::start().await;
    cluster
        .create(MAPS, json!({"metadata": {"name": "kept"}, "data": {"k": "v"}}))
        .await;
    let labels = json!({"app": "kept"});
    let deployment = json!({"metadata": {"name": "kept"}, "spec": {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    }});
    cluster
        .create("/apis/apps/v1/namespaces/default/deployments", deployment)
        .await;
    let mut before = Vec::new();
    for path in [KEPT, DEPLOYMENT, MAPS] {
        before.push(cluster.admin("GET", path, None).await.expect(200));
    }
    let cases = [bodies(), patches(), requests()].concat();
    // Once to fill all caches, then to measure the memory.
    let mut errors = BTreeSet::new();
    let mut least = 0;
    for round in 0..4 {
        for case in &cases {
            let answer = sent(&cluster, case).await;
            errors.extend(error_of(case, &answer));
        }
        if round == 1 {
            least = resident_bytes();
        }
    }
    let grown = resident_bytes().saturating_sub(least);
    let errors: Vec<String> = errors.into_iter().collect();
    assert!(errors.is_empty(), "{}", errors.join("\n"));
    assert!(
        grown < 100 << 20,
        "{grown} bytes more after the same requests again"
    );
    for (path, before) in [KEPT, DEPLOYMENT, MAPS].into_iter().zip(before) {
        let now: Value = cluster.admin("GET", path, None).await.expect(200);
        assert_eq!(without_revision(now), without_revision(before), "{path}");
    }
    assert_eq!(
        cluster
            .ask(&Credentials::default(), "GET", "/livez", None)
            .await
            .code,
        200
    );
}

/// Lists have the revision of when they were read.
fn without_revision(mut value: Value) -> Value {
    if value["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) {
        value["metadata"] = Value::Null;
    }
    value
}
