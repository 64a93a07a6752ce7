//! Which version of an object a write is for, and who must say so.

use serde_json::json;

use crate::cluster::{ADMIN, Cluster, Shows};

/// A kind that Kubernetes updates only for a version that is named: who applies names none and is not sent away.
#[tokio::test]
async fn appliers_who_name_no_version_all_get_their_turn() {
    let cluster = Cluster::start().await;
    let path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/b";
    let shows = Shows::token(ADMIN).header("content-type", "application/apply-patch+yaml");
    let applied = async |n: usize, version: Option<&str>| {
        let mut budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": "b", "labels": {format!("l{n}"): "x"}}});
        if let Some(version) = version {
            budget["metadata"]["resourceVersion"] = json!(version);
        }
        let path = format!("{path}?fieldManager=m{n}");
        cluster.ask(&shows, "PATCH", &path, Some(budget)).await
    };
    let made = applied(0, None).await.expect(201);
    let all = futures::future::join_all((1..10).map(|n| applied(n, None))).await;
    for answer in all {
        answer.expect(200);
    }
    let found = cluster.admin("GET", path, None).await.expect(200);
    assert_eq!(found["metadata"]["labels"].as_object().map(|l| l.len()), Some(10));
    // One who names a version means that one; one who replaces must.
    let old = made["metadata"]["resourceVersion"].as_str();
    assert_eq!(applied(1, old).await.body["reason"], "Conflict");
    let mut bare = found.clone();
    bare["metadata"]["resourceVersion"] = json!("");
    let answer = cluster.admin("PUT", path, Some(bare)).await;
    assert_eq!(answer.code, 422, "{}", answer.text);
    let said = "metadata.resourceVersion: Invalid value: 0: must be specified for an update";
    assert!(answer.message().contains(said), "{}", answer.text);
}
