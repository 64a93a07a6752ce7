//! Steps of Kubernetes' conformance tests about one kind only, with the requests that Go's clients send.

use serde_json::{Value, json};

use crate::cluster::{ADMIN, Cluster, Credentials};

/// "Services should complete a service status lifecycle": Go sends unset times as null.
#[tokio::test]
async fn a_services_status_completes_its_lifecycle() {
    let cluster = Cluster::start().await;
    let all = "/api/v1/namespaces/default/services";
    let ports = json!([{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 80}]);
    let service = json!({"metadata": {"name": "s", "creationTimestamp": null, "labels": {"test-service-static": "true"}},
        "spec": {"type": "LoadBalancer", "ports": ports}, "status": {"loadBalancer": {}}});
    cluster.create(all, service).await;
    let merge = Credentials::token(ADMIN).header("content-type", "application/merge-patch+json");
    let patch = json!({"metadata": {"annotations": {"patchedstatus": "true"}},
        "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}}});
    let path = format!("{all}/s/status");
    let patched = cluster.ask(&merge, "PATCH", &path, Some(patch)).await.expect(200);
    assert_eq!(
        patched["status"]["loadBalancer"]["ingress"][0]["ip"],
        "203.0.113.1"
    );
    let mut now = cluster.admin("GET", &path, None).await.expect(200);
    now["status"]["conditions"] = json!([{"type": "StatusUpdate", "status": "True", "lastTransitionTime": null,
        "reason": "E2E", "message": "Set from e2e test"}]);
    let updated = cluster.admin("PUT", &path, Some(now)).await.expect(200);
    let condition = &updated["status"]["conditions"][0];
    assert_eq!(condition["reason"], "E2E");
    assert_eq!(condition.get("lastTransitionTime"), Some(&Value::Null));
    let patch = json!({"metadata": {"labels": {"test-service": "patched"}}});
    let patched = cluster
        .ask(&merge, "PATCH", &format!("{all}/s"), Some(patch))
        .await
        .expect(200);
    assert_eq!(patched["status"]["conditions"][0]["reason"], "E2E");
    cluster
        .admin("DELETE", &format!("{all}/s"), None)
        .await
        .expect(200);
}

/// "Service CIDRs should support ServiceCIDR API operations": a cluster has one from the start.
#[tokio::test]
async fn the_default_service_cidr_exists() {
    let cluster = Cluster::start().await;
    let all = "/apis/networking.k8s.io/v1/servicecidrs";
    let found = cluster
        .admin("GET", &format!("{all}/kubernetes"), None)
        .await
        .expect(200);
    assert_eq!(found["spec"]["cidrs"], json!(["10.96.0.0/16"]));
    let status = cluster
        .admin("GET", &format!("{all}/kubernetes/status"), None)
        .await
        .expect(200);
    assert_eq!(status["metadata"]["uid"], found["metadata"]["uid"]);
    let conditions = &status["status"]["conditions"];
    assert_eq!(
        (&conditions[0]["type"], &conditions[0]["status"]),
        (&json!("Ready"), &json!("True"))
    );

    let next = cluster.next(|_| {}).await;
    let again = next
        .admin("GET", &format!("{all}/kubernetes"), None)
        .await
        .expect(200);
    assert_eq!(
        again["metadata"]["resourceVersion"],
        found["metadata"]["resourceVersion"]
    );
}

/// Conditions of the kinds that validate their conditions.
#[tokio::test]
async fn invalid_conditions_are_rejected() {
    let cluster = Cluster::start().await;
    let all = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}});
    cluster.create(all, budget).await;
    let merge = Credentials::token(ADMIN).header("content-type", "application/merge-patch+json");
    let noon = "2027-01-15T08:00:00Z";
    let good =
        json!({"type": "A", "status": "True", "reason": "R_", "message": "", "lastTransitionTime": noon});
    let with = |key: &str, value: Value| {
        let mut condition = good.clone();
        condition[key] = value;
        json!([condition])
    };
    for (conditions, error) in [
        (json!([good]), None),
        (
            json!([good, good]),
            Some("status.conditions[1].type: Duplicate value: \"A\""),
        ),
        (
            with("status", json!("yes")),
            Some(
                "status.conditions[0].status: Unsupported value: \"yes\": supported values: \"False\", \"True\", \"Unknown\"",
            ),
        ),
        (
            with("observedGeneration", json!(-1)),
            Some(
                "status.conditions[0].observedGeneration: Invalid value: -1: must be greater than or equal to zero",
            ),
        ),
        (
            with("lastTransitionTime", Value::Null),
            Some("status.conditions[0].lastTransitionTime: Required value"),
        ),
        (
            with("reason", json!("")),
            Some("status.conditions[0].reason: Required value"),
        ),
        (
            with("reason", json!("9")),
            Some(
                "status.conditions[0].reason: Invalid value: \"9\": a condition reason must start with alphabetic \
                 character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an \
                 alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  \
                 or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')",
            ),
        ),
        (
            with("message", json!("x".repeat(32 * 1024 + 1))),
            Some("status.conditions[0].message: Too long: may not be more than 32768 bytes"),
        ),
    ] {
        let patch = Some(json!({"status": {"conditions": conditions}}));
        let answer = cluster
            .ask(&merge, "PATCH", &format!("{all}/b/status"), patch)
            .await;
        match error {
            None => assert_eq!(answer.code, 200, "{}", answer.text),
            Some(error) => {
                assert_eq!(answer.code, 422, "{}", answer.text);
                let expected = format!("PodDisruptionBudget.policy \"b\" is invalid: {error}");
                assert_eq!(answer.message(), expected);
            }
        }
    }
}

/// `kubectl get apiservices`: every group and version that is served, those of custom resources while they are.
#[tokio::test]
async fn what_is_served_has_its_api_service() {
    let cluster = Cluster::start().await;
    let all = "/apis/apiregistration.k8s.io/v1/apiservices";
    let table = Credentials::token(ADMIN).header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    let rows = cluster.ask(&table, "GET", all, None).await.expect(200);
    let rows = rows["rows"].as_array().unwrap().clone();
    let row = |name: &str| {
        let found = rows.iter().find(|r| r["cells"][0] == name).unwrap();
        (found["cells"][1].clone(), found["cells"][2].clone())
    };
    for name in ["v1.", "v1.apps", "v2.autoscaling", "v1.apiextensions.k8s.io"] {
        assert_eq!(row(name), (json!("Local"), json!("True")), "{name}");
    }
    assert!(rows.iter().all(|r| r["cells"][0] != "v1.apiregistration.k8s.io"));

    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = json!({"metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com",
        "scope": "Cluster", "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    cluster.create(crds, definition).await;
    let mine = format!("{all}/v1.example.com");
    let comes = async |code: u16| {
        for n in 0.. {
            let found = cluster.admin("GET", &mine, None).await;
            if found.code == code {
                return found.body;
            }
            assert!(n < 6000, "{}", found.text);
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        unreachable!()
    };
    let found = comes(200).await;
    let spec = json!({"group": "example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 100});
    assert_eq!(found["spec"], spec);
    let labels = json!({"kube-aggregator.kubernetes.io/automanaged": "true"});
    assert_eq!(found["metadata"]["labels"], labels);
    assert_eq!(found["status"]["conditions"][0]["reason"], "Local");
    let one = format!("{crds}/widgets.example.com");
    cluster.admin("DELETE", &one, None).await.expect(200);
    comes(404).await;
}
