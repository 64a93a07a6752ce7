//! The resourceVersion of a write, and which writes require one.

use knarr_api::emulation::{Emulation, MinorVersion};
use serde_json::json;

use crate::cluster::{ADMIN, Cluster, Credentials};

/// A kind without unconditional update: appliers without a resourceVersion do not conflict.
#[tokio::test]
async fn applies_without_a_resource_version_all_succeed() {
    let cluster = Cluster::start().await;
    let path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/b";
    let credentials = Credentials::token(ADMIN).header("content-type", "application/apply-patch+yaml");
    let applied = async |n: usize, version: Option<&str>| {
        let mut budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": "b", "labels": {format!("l{n}"): "x"}}});
        if let Some(version) = version {
            budget["metadata"]["resourceVersion"] = json!(version);
        }
        let path = format!("{path}?fieldManager=m{n}");
        cluster.ask(&credentials, "PATCH", &path, Some(budget)).await
    };
    let made = applied(0, None).await.expect(201);
    let all = futures::future::join_all((1..10).map(|n| applied(n, None))).await;
    for answer in all {
        answer.expect(200);
    }
    let found = cluster.admin("GET", path, None).await.expect(200);
    assert_eq!(found["metadata"]["labels"].as_object().map(|l| l.len()), Some(10));
    // An applier with a resourceVersion gets a conflict; an update requires one.
    let old = made["metadata"]["resourceVersion"].as_str();
    assert_eq!(applied(1, old).await.body["reason"], "Conflict");
    let mut bare = found.clone();
    bare["metadata"]["resourceVersion"] = json!("");
    let answer = cluster.admin("PUT", path, Some(bare)).await;
    assert_eq!(answer.code, 422, "{}", answer.text);
    let said = "metadata.resourceVersion: Invalid value: 0: must be specified for an update";
    assert!(answer.message().contains(said), "{}", answer.text);
}

/// What an API server of v1.33 does not serve is absent: in discovery, OpenAPI, requests and APIServices (KEP-4330).
#[tokio::test]
async fn an_emulated_version_serves_what_that_version_served() {
    let minor = |text: &str| Some(text.parse::<MinorVersion>().unwrap());
    let cluster = Cluster::with(|options, _| {
        options.emulation = Emulation::new(minor("1.33"), None).unwrap();
    })
    .await;
    let get = async |path: &str| cluster.admin("GET", path, None).await;
    let version = get("/version").await.body;
    let minors = ["minor", "emulationMinor", "minCompatibilityMinor"].map(|field| version[field].clone());
    assert_eq!(minors, ["36", "33", "33"]);
    let groups = get("/apis").await.body;
    let names: Vec<&str> = groups["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|group| group["name"].as_str().unwrap())
        .collect();
    assert!(
        !names.contains(&"resource.k8s.io") && names.contains(&"storage.k8s.io"),
        "{names:?}"
    );
    for path in [
        "/apis/resource.k8s.io/v1",
        "/apis/resource.k8s.io/v1/deviceclasses",
        "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims",
        "/apis/storage.k8s.io/v1/volumeattributesclasses",
        "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
        "/openapi/v3/apis/resource.k8s.io/v1",
        "/apis/apiregistration.k8s.io/v1/apiservices/v1.resource.k8s.io",
    ] {
        assert_eq!(get(path).await.code, 404, "{path}");
    }
    for path in [
        "/apis/storage.k8s.io/v1/storageclasses",
        "/apis/networking.k8s.io/v1/servicecidrs",
        "/apis/apiregistration.k8s.io/v1/apiservices/v1.storage.k8s.io",
    ] {
        get(path).await.expect(200);
    }
    let index = get("/openapi/v3").await.body;
    assert!(index["paths"]["apis/resource.k8s.io/v1"].is_null());
    let document = get("/openapi/v3/apis/storage.k8s.io/v1").await.body;
    let classes = &document["paths"]["/apis/storage.k8s.io/v1/volumeattributesclasses"];
    assert!(classes.is_null(), "{classes}");

    // A later version over the same store serves them again.
    let newer = cluster
        .next(|options| options.emulation = Emulation::default())
        .await;
    newer
        .admin("GET", "/apis/resource.k8s.io/v1/deviceclasses", None)
        .await
        .expect(200);
}
