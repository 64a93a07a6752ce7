//! Evictions of pods that have opted in to a replacement first (SPEC B6), over HTTP.

use serde_json::{Value, json};

use crate::cluster::{ADMIN, Cluster, Credentials, TestResponse};

const NS: &str = "/api/v1/namespaces/default";
const BUDGET: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
const REQUESTED: &str = "knarr.io/EvictionRequested";

/// A ReplicaSet of one pod; its uid.
async fn replica_set(cluster: &Cluster) -> String {
    let account = json!({"metadata": {"name": "robot"}});
    cluster.create(&format!("{NS}/serviceaccounts"), account).await;
    cluster
        .create("/api/v1/nodes", json!({"metadata": {"name": "n1"}}))
        .await;
    let labels = json!({"app": "web"});
    let template = json!({"metadata": {"labels": labels}, "spec": spec()});
    let set = json!({"metadata": {"name": "web"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}});
    let made = cluster
        .create("/apis/apps/v1/namespaces/default/replicasets", set)
        .await;
    made["metadata"]["uid"].as_str().unwrap().to_string()
}

fn spec() -> Value {
    json!({"serviceAccountName": "robot", "containers": [{"name": "c", "image": "i"}]})
}

/// A Running pod with the annotation; its uid.
async fn pod(cluster: &Cluster, name: &str, owner: Option<&str>) -> String {
    let owners: Vec<Value> = owner
        .iter()
        .map(|uid| json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": uid, "controller": true}))
        .collect();
    let pod = json!({"metadata": {"name": name, "labels": {"app": "web"}, "ownerReferences": owners,
        "annotations": {"knarr.io/eviction": "SurgeFirst"}}, "spec": spec()});
    let made = cluster.create(&format!("{NS}/pods"), pod).await;
    let binding = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"}});
    cluster
        .create(&format!("{NS}/pods/{name}/binding"), binding)
        .await;
    set_ready(cluster, name, false).await;
    made["metadata"]["uid"].as_str().unwrap().to_string()
}

async fn set_ready(cluster: &Cluster, name: &str, is_ready: bool) {
    let status = if is_ready { "True" } else { "False" };
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": status}]}});
    merge(cluster, &format!("{NS}/pods/{name}/status"), status).await;
}

async fn merge(cluster: &Cluster, path: &str, patch: Value) {
    let credentials = Credentials::token(ADMIN).header("content-type", "application/merge-patch+json");
    cluster
        .ask(&credentials, "PATCH", path, Some(patch))
        .await
        .expect(200);
}

async fn evict(cluster: &Cluster, name: &str, query: &str, preconditions: Value) -> TestResponse {
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name},
        "deleteOptions": {"preconditions": preconditions}});
    let path = format!("{NS}/pods/{name}/eviction{query}");
    cluster.admin("POST", &path, Some(eviction)).await
}

/// When the pod's eviction was requested, and when its deletion.
async fn recorded(cluster: &Cluster, name: &str) -> (Option<String>, Option<String>) {
    let found = cluster
        .admin("GET", &format!("{NS}/pods/{name}"), None)
        .await
        .expect(200);
    let conditions = found["status"]["conditions"].as_array().unwrap();
    let requested = conditions.iter().find(|c| c["type"] == REQUESTED);
    let text = |value: &Value| value.as_str().map(str::to_string);
    (
        requested.and_then(|c| text(&c["lastTransitionTime"])),
        text(&found["metadata"]["deletionTimestamp"]),
    )
}

#[track_caller]
fn waits(answer: &TestResponse, why: &str) {
    assert_eq!(answer.code, 429, "{}", answer.text);
    assert_eq!(answer.headers["retry-after"], "1");
    let body = &answer.body;
    assert_eq!(
        (&body["kind"], &body["status"], &body["reason"]),
        (&json!("Status"), &json!("Failure"), &json!("TooManyRequests"))
    );
    assert_eq!(
        body["message"],
        format!("Cannot evict pod before it is replaced: {why}.")
    );
    assert_eq!(
        body["details"],
        json!({"causes": [{"reason": "SurgeFirst", "message": why}], "retryAfterSeconds": 1})
    );
}

#[tokio::test]
async fn b6_an_eviction_waits_for_a_replacement_that_is_ready_and_served_and_then_for_the_budget() {
    let cluster = Cluster::start().await;
    let set = replica_set(&cluster).await;
    pod(&cluster, "old", Some(&set)).await;
    set_ready(&cluster, "old", true).await;
    let budget = json!({"metadata": {"name": "web"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    cluster.create(BUDGET, budget).await;
    let allowed = |allowed: i32| {
        json!({"status": {"observedGeneration": 1, "disruptionsAllowed": allowed, "expectedPods": 1,
            "currentHealthy": 1 + allowed, "desiredHealthy": 1}})
    };
    merge(&cluster, &format!("{BUDGET}/web/status"), allowed(0)).await;

    let requested = "a replacement was requested from ReplicaSet web (0 of 1 Ready)";
    let dry = evict(&cluster, "old", "?dryRun=All", json!({})).await;
    waits(&dry, requested);
    assert_eq!(recorded(&cluster, "old").await, (None, None), "a dry run");
    waits(&evict(&cluster, "old", "", json!({})).await, requested);
    let (first, deleted) = recorded(&cluster, "old").await;
    assert_eq!((first.is_some(), deleted), (true, None));

    cluster.pass(5);
    let not_created = "ReplicaSet web has not created the replacement yet (0 of 1 Ready)";
    waits(&evict(&cluster, "old", "", json!({})).await, not_created);
    assert_eq!(
        recorded(&cluster, "old").await,
        (first, None),
        "it is not renewed"
    );
    let uid = pod(&cluster, "new", Some(&set)).await;
    let not_ready = "replacement new is not Ready yet (0 of 1 Ready)";
    waits(&evict(&cluster, "old", "", json!({})).await, not_ready);

    // It is Ready, and its Service does not have it as an endpoint yet.
    set_ready(&cluster, "new", true).await;
    let service =
        json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
    cluster.create(&format!("{NS}/services"), service).await;
    let no_endpoint = "replacement new is Ready but not an endpoint yet: no EndpointSlice of Service web has it as ready \
                       (0 of 1 Ready)";
    waits(&evict(&cluster, "old", "", json!({})).await, no_endpoint);
    let endpoint = json!({"addresses": ["10.0.0.1"], "conditions": {"ready": true},
        "targetRef": {"kind": "Pod", "namespace": "default", "name": "new", "uid": uid}});
    let slice = json!({"metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "endpoints": [endpoint]});
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    cluster.create(slices, slice).await;

    // From here on the budget decides, as it does without a replacement.
    let answer = evict(&cluster, "old", "", json!({})).await;
    assert_eq!(
        (answer.code, &answer.body["details"]["causes"][0]["reason"]),
        (429, &json!("DisruptionBudget")),
        "{}",
        answer.text
    );
    merge(&cluster, &format!("{BUDGET}/web/status"), allowed(1)).await;
    evict(&cluster, "old", "", json!({})).await.expect(201);
    assert!(recorded(&cluster, "old").await.1.is_some());
}

#[tokio::test]
async fn b6_after_ten_minutes_without_a_replacement_the_budget_alone_decides() {
    let cluster = Cluster::start().await;
    let set = replica_set(&cluster).await;
    pod(&cluster, "old", Some(&set)).await;
    set_ready(&cluster, "old", true).await;
    assert_eq!(evict(&cluster, "old", "", json!({})).await.code, 429);
    cluster.pass(599);
    assert_eq!(evict(&cluster, "old", "", json!({})).await.code, 429);
    cluster.pass(1);
    evict(&cluster, "old", "", json!({})).await.expect(201);
    assert!(recorded(&cluster, "old").await.1.is_some());
}

#[tokio::test]
async fn b6_preconditions_hold_before_a_request_is_recorded() {
    let cluster = Cluster::start().await;
    let set = replica_set(&cluster).await;
    let uid = pod(&cluster, "old", Some(&set)).await;
    set_ready(&cluster, "old", true).await;
    let other = evict(&cluster, "old", "", json!({"uid": "other"})).await;
    assert_eq!(other.code, 409, "{}", other.text);
    assert_eq!(recorded(&cluster, "old").await.0, None);
    // With the version that the client has read: the record changes it.
    let found = cluster
        .admin("GET", &format!("{NS}/pods/old"), None)
        .await
        .expect(200);
    let read = json!({"uid": uid, "resourceVersion": found["metadata"]["resourceVersion"]});
    assert_eq!(evict(&cluster, "old", "", read.clone()).await.code, 429);
    assert!(recorded(&cluster, "old").await.0.is_some());
    assert_eq!(evict(&cluster, "old", "", read).await.code, 409);
}

#[tokio::test]
async fn b6_pods_that_no_replica_set_replaces_or_that_are_not_ready_are_evicted_at_once() {
    let cluster = Cluster::start().await;
    let set = replica_set(&cluster).await;
    pod(&cluster, "bare", None).await;
    set_ready(&cluster, "bare", true).await;
    let answer = evict(&cluster, "bare", "", json!({})).await;
    assert_eq!(answer.code, 201, "{}", answer.text);
    let warning = answer.headers["warning"].to_str().unwrap();
    assert!(warning.contains("SurgeFirst has no effect on pod"), "{warning}");

    pod(&cluster, "starting", Some(&set)).await;
    let answer = evict(&cluster, "starting", "", json!({})).await;
    assert_eq!(answer.code, 201, "{}", answer.text);
    assert!(answer.headers.get("warning").is_none());
    for name in ["bare", "starting"] {
        let (requested, deleted) = recorded(&cluster, name).await;
        assert_eq!((requested, deleted.is_some()), (None, true), "{name}");
    }
}
