//! The pods that must never run twice (SPEC S1): they are replaced only after fencing, and a node that is cut off terminates
//! them itself.

use k8s_openapi::api::core::v1::Pod;

/// Annotation of a pod: `true` if it must never run twice, `false` if it may; it overrides every other rule.
pub const AT_MOST_ONE: &str = "knarr.io/at-most-one";

/// Whether a pod must never run twice, by its annotation or because a StatefulSet owns it.
/// `None`: its volumes decide, it is at-most-one if it has one that only one node may use.
pub fn at_most_one(pod: &Pod) -> Option<bool> {
    let annotations = pod.metadata.annotations.as_ref();
    match annotations.and_then(|a| a.get(AT_MOST_ONE)).map(String::as_str) {
        Some("true") => return Some(true),
        Some("false") => return Some(false),
        _ => {}
    }
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    let by_set = |o: &k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference| {
        o.controller == Some(true) && o.kind == "StatefulSet" && o.api_version.starts_with("apps/")
    };
    owners.iter().any(by_set).then_some(true)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn s1_pods_of_statefulsets_and_annotated_pods_are_at_most_one() {
        let set = |kind: &str, api: &str| json!([{"apiVersion": api, "kind": kind, "name": "s", "uid": "u", "controller": true}]);
        for (annotation, owners, expected) in [
            (Value::Null, Value::Null, None),
            (Value::Null, set("StatefulSet", "apps/v1"), Some(true)),
            (Value::Null, set("ReplicaSet", "apps/v1"), None),
            (Value::Null, set("StatefulSet", "other.example/v1"), None),
            (json!("true"), Value::Null, Some(true)),
            (json!("false"), set("StatefulSet", "apps/v1"), Some(false)),
            (json!("perhaps"), Value::Null, None),
        ] {
            let pod =
                json!({"metadata": {"annotations": {AT_MOST_ONE: annotation}, "ownerReferences": owners}});
            let mut pod = pod;
            if annotation.is_null() {
                pod["metadata"]["annotations"] = Value::Null;
            }
            let pod: Pod = serde_json::from_value(pod).unwrap();
            assert_eq!(at_most_one(&pod), expected, "{annotation} {owners}");
        }
    }
}
