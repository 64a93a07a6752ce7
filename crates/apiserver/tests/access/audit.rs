//! What the audit log records of requests.

use knarr_apiserver::audit::{Audit, Lines, Policy};
use serde_json::{Value, json};

use crate::cluster::{ADMIN, Cluster, Credentials};

async fn audited(policy: &str) -> (Cluster, Lines) {
    let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{policy}");
    let (audit, lines) = Audit::new(Policy::parse(&text).unwrap());
    let cluster = Cluster::with(|options, _| options.audit = Some(audit)).await;
    (cluster, lines)
}

fn events(lines: &mut Lines) -> Vec<Value> {
    let mut all = Vec::new();
    while let Ok(line) = lines.try_recv() {
        all.push(serde_json::from_str(&line).unwrap());
    }
    all
}

#[tokio::test]
async fn each_level_records_more() {
    let (cluster, mut lines) = audited(
        "omitManagedFields: true
rules:
- {level: None, users: [ann]}
- {level: Metadata, omitStages: [RequestReceived], resources: [{group: '', resources: [secrets]}]}
- {level: Request, omitStages: [RequestReceived], verbs: [patch]}
- {level: RequestResponse, resources: [{group: '', resources: [configmaps]}]}
",
    )
    .await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let credentials = Credentials::token(ADMIN)
        .header("user-agent", "test/1")
        .header("audit-id", "id-1")
        .header("impersonate-user", "admin2")
        .header("impersonate-group", "system:masters");
    let body = json!({"metadata": {"name": "m"}, "data": {"a": "b"}});
    cluster
        .ask(&credentials, "POST", maps, Some(body.clone()))
        .await
        .expect(201);
    let found = events(&mut lines);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(
        (&found[0]["stage"], &found[1]["stage"]),
        (&json!("RequestReceived"), &json!("ResponseComplete"))
    );
    assert!(found[0]["requestObject"].is_null());
    let event = &found[1];
    for (field, expected) in [
        ("kind", json!("Event")),
        ("apiVersion", json!("audit.k8s.io/v1")),
        ("level", json!("RequestResponse")),
        ("auditID", json!("id-1")),
        ("requestURI", json!(maps)),
        ("verb", json!("create")),
        ("userAgent", json!("test/1")),
        ("sourceIPs", json!(["127.0.0.1"])),
        (
            "objectRef",
            json!({"resource": "configmaps", "namespace": "default", "name": "m", "apiVersion": "v1"}),
        ),
        // As it was decoded, with the defaults from the URL.
        (
            "requestObject",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": body["metadata"], "data": body["data"]}),
        ),
        ("responseStatus", json!({"metadata": {}, "code": 201})),
        ("annotations", json!({"authorization.k8s.io/decision": "allow"})),
    ] {
        assert_eq!(event[field], expected, "{field}: {event}");
    }
    assert_eq!(event["user"]["username"], "admin");
    assert_eq!(event["impersonatedUser"]["username"], "admin2");
    assert_eq!(event["responseObject"]["data"]["a"], "b");
    assert!(
        event["responseObject"]["metadata"]["managedFields"].is_null(),
        "{event}"
    );
    let time = event["requestReceivedTimestamp"].as_str().unwrap();
    assert_eq!(
        (time.len(), time.ends_with('Z')),
        ("2030-01-01T00:00:00.000000Z".len(), true)
    );

    let secret = json!({"metadata": {"name": "s"}, "stringData": {"k": "hidden"}});
    cluster.create("/api/v1/namespaces/default/secrets", secret).await;
    let patch = Credentials::token(ADMIN).header("content-type", "application/merge-patch+json");
    let change = json!({"data": {"c": "d"}});
    cluster
        .ask(&patch, "PATCH", &format!("{maps}/m"), Some(change.clone()))
        .await
        .expect(200);
    cluster
        .ask(&Credentials::token("ann-token"), "GET", "/api/v1/secrets", None)
        .await;
    let found = events(&mut lines);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(found[0]["level"], "Metadata");
    assert!(!found[0].to_string().contains("hidden"));
    assert_eq!(
        (&found[1]["requestObject"], &found[1]["responseObject"]),
        (&change, &Value::Null)
    );
}

#[tokio::test]
async fn errors_and_watches_are_recorded() {
    let (cluster, mut lines) = audited("rules: [{level: Metadata, omitStages: [RequestReceived]}]\n").await;
    cluster
        .ask(&Credentials::token("wrong"), "GET", "/api/v1/pods", None)
        .await;
    cluster
        .ask(&Credentials::token("bob-token"), "GET", "/api/v1/pods", None)
        .await;
    let found = events(&mut lines);
    let codes: Vec<_> = found
        .iter()
        .map(|e| e["responseStatus"]["code"].clone())
        .collect();
    assert_eq!(codes, [401, 403]);
    assert_eq!(found[1]["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!(found[1]["responseStatus"]["reason"], "Forbidden");
    assert_eq!(found[1]["user"]["username"], "bob");
    cluster
        .admin("GET", "/api/v1/pods?watch=true&timeoutSeconds=1", None)
        .await;
    let stages: Vec<_> = events(&mut lines).iter().map(|e| e["stage"].clone()).collect();
    assert_eq!(stages, ["ResponseStarted", "ResponseComplete"]);
}
