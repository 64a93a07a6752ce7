//! Limits for a client's requests, and the server's health and metrics.

use std::time::Duration;

use serde_json::json;

use crate::cluster::{ADMIN, Cluster, Credentials};

#[tokio::test]
async fn a_body_is_as_large_as_kubernetes_lets_it_be() {
    let cluster = Cluster::start().await;
    let map = |bytes: usize| Some(json!({"metadata": {"name": "m"}, "data": {"k": "x".repeat(bytes)}}));
    let path = "/api/v1/namespaces/default/configmaps";
    let answer = cluster.admin("POST", path, map(3 * 1024 * 1024 + 1)).await;
    assert_eq!(
        (answer.code, &answer.body["reason"]),
        (413, &json!("RequestEntityTooLarge"))
    );
    cluster.admin("POST", path, map(1000)).await.expect(201);
}

#[tokio::test]
async fn a_request_ends_at_its_timeout() {
    let cluster = Cluster::with(|options, _| options.request_timeout = Duration::from_millis(300)).await;
    // It would wait for a revision that is never written.
    let path = "/api/v1/namespaces/default/pods?resourceVersion=999999";
    let answer = cluster.admin("GET", path, None).await;
    assert!(answer.code == 504 || answer.code == 500, "{}", answer.text);
    assert_eq!(answer.body["reason"], "Timeout");
    let answer = cluster.admin("GET", "/api/v1/nodes?timeout=soon", None).await;
    assert_eq!(answer.code, 400);
    assert!(
        answer.message().ends_with("time: invalid duration \"soon\""),
        "{}",
        answer.text
    );
}

#[tokio::test]
async fn a_request_without_a_free_seat_gets_a_429() {
    let cluster = Cluster::with(|options, _| {
        options.max_in_flight = (0, 0);
        options.request_timeout = Duration::from_secs(2);
    })
    .await;
    let ann = Credentials::token("ann-token");
    for (method, path) in [("GET", "/api"), ("POST", "/api/v1/namespaces/default/pods")] {
        let body = (method == "POST").then(|| json!({}));
        let answer = cluster.ask(&ann, method, path, body).await;
        assert_eq!(
            (answer.code, &answer.body["reason"]),
            (429, &json!("TooManyRequests")),
            "{method}"
        );
        assert_eq!(answer.headers["retry-after"], "1", "{method}");
    }
    // Administrators and health checks are exempt.
    assert_eq!(cluster.admin("GET", "/api", None).await.code, 200);
    assert_eq!(cluster.ask(&ann, "GET", "/livez", None).await.code, 200);
    let metrics = cluster.admin("GET", "/metrics", None).await.text;
    let counted = "apiserver_flowcontrol_rejected_requests_total{flow_schema=\"global-default\",\
        priority_level=\"global-default\",reason=\"time-out\"} 2";
    assert!(metrics.contains(counted), "{metrics}");
    for line in [
        "# HELP apiserver_flowcontrol_nominal_limit_seats [BETA] Nominal number of execution seats configured for each priority level\n",
        "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"global-default\"} ",
        "apiserver_flowcontrol_lower_limit_seats{priority_level=\"catch-all\"} ",
        "apiserver_flowcontrol_upper_limit_seats{priority_level=\"system\"} ",
        "apiserver_flowcontrol_current_limit_seats{priority_level=\"workload-low\"} ",
        "apiserver_flowcontrol_current_inqueue_requests{flow_schema=\"global-default\",priority_level=\"global-default\"} 0\n",
        "apiserver_flowcontrol_current_executing_requests{flow_schema=\"global-default\",priority_level=\"global-default\"} 0\n",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[tokio::test]
async fn responses_have_the_flow_schema_and_priority_level_of_their_requests() {
    let cluster = Cluster::start().await;
    let group = "/apis/flowcontrol.apiserver.k8s.io/v1";
    let of = |answer: &crate::cluster::TestResponse| {
        [
            "x-kubernetes-pf-flowschema-uid",
            "x-kubernetes-pf-prioritylevel-uid",
        ]
        .map(|name| answer.headers.get(name).map(|v| v.to_str().unwrap().to_string()))
    };
    let uid = async |kind: &str, name: &str| {
        let found = cluster
            .admin("GET", &format!("{group}/{kind}/{name}"), None)
            .await
            .expect(200);
        Some(found["metadata"]["uid"].as_str().unwrap().to_string())
    };
    let ann = Credentials::token("ann-token");
    let before = cluster.ask(&ann, "GET", "/api", None).await;
    let default = [
        uid("flowschemas", "global-default").await,
        uid("prioritylevelconfigurations", "global-default").await,
    ];
    assert_eq!(of(&before), default);
    let root = cluster.admin("GET", "/api", None).await;
    let exempt = [
        uid("flowschemas", "exempt").await,
        uid("prioritylevelconfigurations", "exempt").await,
    ];
    assert_eq!(of(&root), exempt);
    // A user's FlowSchema is used once its priority level exists, and its condition says so.
    let level = json!({"metadata": {"name": "mine"}, "spec": {"type": "Limited", "limited":
        {"nominalConcurrencyShares": 1, "limitResponse": {"type": "Reject"}}}});
    let schema = json!({"metadata": {"name": "mine"}, "spec": {
        "priorityLevelConfiguration": {"name": "mine"}, "matchingPrecedence": 1000,
        "rules": [{"subjects": [{"kind": "User", "user": {"name": "ann"}}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["/api", "/api/*"]}]}]}});
    let schema = cluster.create(&format!("{group}/flowschemas"), schema).await;
    let dangles = async |wanted: &str| {
        for _ in 0..6000 {
            let found = cluster
                .admin("GET", &format!("{group}/flowschemas/mine"), None)
                .await
                .expect(200);
            if found["status"]["conditions"][0]["status"] == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the schema never said {wanted}");
    };
    dangles("True").await;
    assert_eq!(of(&cluster.ask(&ann, "GET", "/api", None).await), default);
    let level = cluster
        .create(&format!("{group}/prioritylevelconfigurations"), level)
        .await;
    dangles("False").await;
    let mine = [&schema, &level].map(|o| o["metadata"]["uid"].as_str().map(String::from));
    assert_eq!(of(&cluster.ask(&ann, "GET", "/api", None).await), mine);
    // Mandatory objects are restored.
    cluster
        .admin("DELETE", &format!("{group}/flowschemas/catch-all"), None)
        .await
        .expect(200);
    for n in 0.. {
        let found = cluster
            .admin("GET", &format!("{group}/flowschemas/catch-all"), None)
            .await;
        if found.code == 200 {
            break;
        }
        assert!(n < 6000, "it does not come back: {}", found.text);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn every_response_has_its_audit_id() {
    let cluster = Cluster::start().await;
    let named = Credentials::token(ADMIN).header("audit-id", "my-request");
    assert_eq!(
        cluster.ask(&named, "GET", "/api", None).await.headers["audit-id"],
        "my-request"
    );
    let answer = cluster
        .ask(&Credentials::token("wrong"), "GET", "/api", None)
        .await;
    assert_eq!(answer.headers["audit-id"].len(), 36);
    assert_eq!(answer.headers["cache-control"], "no-cache, private");
}

#[tokio::test]
async fn health_is_reported_as_a_whole_and_by_check() {
    let cluster = Cluster::start().await;
    let get = |path: &'static str| {
        let cluster = &cluster;
        async move {
            let answer = cluster.admin("GET", path, None).await;
            (answer.code, answer.text)
        }
    };
    assert_eq!(get("/livez").await, (200, "ok".to_string()));
    let (code, text) = get("/readyz?verbose").await;
    assert_eq!(code, 200);
    assert!(
        text.starts_with("[+]ping ok\n") && text.ends_with("readyz check passed\n"),
        "{text}"
    );
    assert!(
        text.contains("[+]informer-sync ok\n") && text.contains("[+]poststarthook/rbac/bootstrap-roles ok\n")
    );
    let (_, text) = get("/livez?verbose&exclude=etcd&exclude=nothing").await;
    assert!(
        text.contains("[+]etcd excluded: ok\n") && !text.contains("[+]informer-sync"),
        "{text}"
    );
    assert!(text.contains("no matches for \"nothing\""), "{text}");
    assert_eq!(get("/readyz/informer-sync").await, (200, "ok".to_string()));
    assert_eq!(get("/healthz/poststarthook/rbac/bootstrap-roles").await.0, 200);
    assert_eq!(get("/livez/informer-sync").await.0, 404);
    let (_, slis) = get("/metrics/slis").await;
    for line in [
        "kubernetes_healthcheck{name=\"informer-sync\",type=\"readyz\"} 1\n",
        "kubernetes_healthchecks_total{name=\"informer-sync\",status=\"success\",type=\"readyz\"} 2\n",
        "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"livez\"} 2\n",
    ] {
        assert!(slis.contains(line), "{line}: {slis}");
    }
    assert_eq!(get("/healthz/nothing").await.0, 404);
}

#[tokio::test]
async fn metrics_have_kubernetes_names() {
    let cluster = Cluster::start().await;
    cluster
        .create(
            "/api/v1/namespaces/default/limitranges",
            json!({"metadata": {"name": "m"}, "spec": {"limits": []}}),
        )
        .await;
    let watch = "/api/v1/namespaces/default/limitranges?watch=true&timeoutSeconds=1";
    cluster.admin("GET", watch, None).await;
    let text = cluster.admin("GET", "/metrics", None).await.text;
    for part in [
        "apiserver_request_total{code=\"201\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"limitranges\",scope=\"resource\",subresource=\"\",verb=\"POST\",version=\"v1\"} 1\n",
        "apiserver_request_duration_seconds_count{component=\"apiserver\"",
        "apiserver_current_inflight_requests{request_kind=\"readOnly\"} 1\n",
        "apiserver_watch_events_total{group=\"\",kind=\"LimitRange\",version=\"v1\"} 1\n",
        "etcd_request_duration_seconds_count{operation=\"create\",type=\"limitranges\"} 1\n",
        "# HELP apiserver_storage_objects [STABLE] (Deprecated since 1.34.0) [DEPRECATED, consider using apiserver_resource_objects instead] \
         Number of stored objects at the time of last check split by kind. In case of a fetching error, the value will be -1.\n",
        "apiserver_storage_objects{resource=\"limitranges\"} 1\n",
        "apiserver_admission_step_admission_duration_seconds_count{operation=\"CREATE\",rejected=\"false\",type=\"validate\"} ",
        "apiserver_admission_controller_admission_duration_seconds_count{name=\"LimitRanger\",operation=\"CREATE\",rejected=\"false\",type=\"admit\"} ",
        "apiserver_watch_cache_events_dispatched_total{group=\"\",resource=\"limitranges\"} 1\n",
        "knarr_watch_cache_changes{group=\"\",resource=\"limitranges\"} 1\n",
        "apiserver_request_total{code=\"200\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"limitranges\",scope=\"namespace\",subresource=\"\",verb=\"WATCH\",version=\"v1\"} 1\n",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    // Every series has its HELP and TYPE, and every line is one.
    for line in text.lines() {
        let fine = line.starts_with('#')
            || line
                .rsplit_once(' ')
                .is_some_and(|(_, n)| n.parse::<f64>().is_ok());
        assert!(fine, "{line}");
    }
}

#[tokio::test]
async fn priority_and_fairness_has_its_objects() {
    let cluster = Cluster::start().await;
    let group = "/apis/flowcontrol.apiserver.k8s.io/v1";
    for (resource, count, name) in [
        ("flowschemas", 11, "system-leader-election"),
        ("prioritylevelconfigurations", 8, "workload-low"),
    ] {
        let list = cluster
            .admin("GET", &format!("{group}/{resource}"), None)
            .await
            .expect(200);
        let items = list["items"].as_array().unwrap();
        assert_eq!(items.len(), count, "{resource}");
        assert!(items.iter().any(|i| i["metadata"]["name"] == name), "{resource}");
    }
}
