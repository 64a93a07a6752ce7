//! Errors of users and requests of broken or hostile clients: each gets a `Status` that names what is wrong, with kube-apiserver's message where it
//! has one, and afterwards nothing has changed.

mod bodies;
mod case;
mod patches;
mod requests;

use std::collections::BTreeSet;

use bytes::Bytes;
use serde_json::{Value, json};

use self::bodies::bodies;
use self::case::*;
use self::patches::patches;
use self::requests::requests;
use crate::cluster::{ADMIN, Cluster, Credentials, TestResponse};
use crate::memory::{in_own_process, resident_bytes};

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
