//! An invalid request with the error that it gets.

pub const MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub const KEPT: &str = "/api/v1/namespaces/default/configmaps/kept";
pub const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/default/deployments/kept";
pub const JSON: &str = "application/json";
pub const JSON_PATCH: &str = "application/json-patch+json";
pub const MERGE: &str = "application/merge-patch+json";
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub const APPLY: &str = "application/apply-patch+yaml";
pub const YAML: &str = "application/yaml";
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// An invalid request: method, path, content type, body; then the code, the reason and a part of the message.
pub type Case = (
    &'static str,
    String,
    &'static str,
    Vec<u8>,
    u16,
    &'static str,
    &'static str,
);

pub fn case(
    (method, path): (&'static str, &str),
    media: &'static str,
    body: impl Into<Vec<u8>>,
    (code, reason): (u16, &'static str),
    message: &'static str,
) -> Case {
    (method, path.into(), media, body.into(), code, reason, message)
}

/// A JSON body for a new ConfigMap.
pub fn posted(body: impl Into<Vec<u8>>, wrong: (u16, &'static str), message: &'static str) -> Case {
    case(("POST", MAPS), JSON, body, wrong, message)
}

/// A patch of the existing ConfigMap.
pub fn patched(
    media: &'static str,
    body: impl Into<Vec<u8>>,
    wrong: (u16, &'static str),
    message: &'static str,
) -> Case {
    case(("PATCH", KEPT), media, body, wrong, message)
}

pub const BAD: (u16, &str) = (400, "BadRequest");
/// A resourceVersion of a watch that is not a number: Kubernetes gives no reason.
pub const UNREADABLE: (u16, &str) = (500, "");
pub const INVALID: (u16, &str) = (422, "Invalid");
pub const LARGE: (u16, &str) = (413, "RequestEntityTooLarge");
pub const MEDIA: (u16, &str) = (415, "UnsupportedMediaType");
pub const METHOD: (u16, &str) = (405, "MethodNotAllowed");
/// An error that kube-apiserver's handlers pass on without a reason.
pub const UNNAMED: (u16, &str) = (500, "");
pub const MISSING: (u16, &str) = (404, "NotFound");

/// So deep that an unbounded recursive parser would run out of stack.
pub fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

pub fn map_with(data: &str) -> String {
    format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"new"}},"data":{data}}}"#)
}
