//! Roles, bindings and nodes: users have only the permissions they were granted, and grant only permissions they have.

use serde_json::{Value, json};

use crate::cluster::{ADMIN, Cluster, Credentials, grant};

const GROUP: &str = "/apis/rbac.authorization.k8s.io/v1";

fn ann() -> Credentials {
    Credentials::token("ann-token")
}

fn node() -> Credentials {
    Credentials::token("n1-token")
}

fn binding(name: &str, kind: &str, role: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "bob"}],
    })
}

#[tokio::test]
async fn a_user_grants_only_permissions_that_the_user_has() {
    let cluster = Cluster::start().await;
    let everything = json!({"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["*"],
        "verbs": ["get", "create", "update", "patch", "delete"]});
    let pods = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]});
    grant(&cluster, "ann", "ann", json!([everything, pods])).await;
    let roles = format!("{GROUP}/namespaces/default/roles");
    let role = |name: &str, verbs: Value| {
        let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": verbs});
        json!({"metadata": {"name": name}, "rules": [rule]})
    };
    let ask = |method, path: String, body| {
        let cluster = &cluster;
        async move { cluster.ask(&ann(), method, &path, Some(body)).await }
    };
    ask("POST", roles.clone(), role("fine", json!(["get"])))
        .await
        .expect(201);
    let denied = ask("POST", roles.clone(), role("more", json!(["get", "delete"]))).await;
    assert_eq!(denied.code, 403);
    let message = denied.message().to_string();
    assert_eq!(
        message,
        "roles.rbac.authorization.k8s.io \"more\" is forbidden: user \"ann\" \
(groups=[\"dev\" \"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n\
{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\"]}"
    );
    // Neither by an update nor by a patch.
    assert_eq!(
        ask("PUT", format!("{roles}/fine"), role("fine", json!(["*"])))
            .await
            .code,
        403
    );
    let patch = ann().header("content-type", "application/merge-patch+json");
    let more = json!({"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]});
    let path = format!("{roles}/fine");
    assert_eq!(cluster.ask(&patch, "PATCH", &path, Some(more)).await.code, 403);
    // A write that does not change its rules is allowed.
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(cluster.ask(&patch, "PATCH", &path, Some(label)).await.code, 200);
    // A binding grants the permissions of its role.
    let bindings = format!("{GROUP}/namespaces/default/rolebindings");
    ask("POST", bindings.clone(), binding("fine", "Role", "fine"))
        .await
        .expect(201);
    assert_eq!(
        ask(
            "POST",
            bindings.clone(),
            binding("x", "ClusterRole", "cluster-admin")
        )
        .await
        .code,
        403
    );
    assert_eq!(
        ask("POST", bindings.clone(), binding("x", "ClusterRole", "nothing"))
            .await
            .code,
        404
    );
    let cluster_bindings = format!("{GROUP}/clusterrolebindings");
    let all = binding("x", "ClusterRole", "cluster-admin");
    assert_eq!(ask("POST", cluster_bindings.clone(), all.clone()).await.code, 403);
    // An aggregation rule can select any role.
    let aggregates = json!({"metadata": {"name": "gather"}, "rules": [],
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}});
    let denied = ask("POST", format!("{GROUP}/clusterroles"), aggregates.clone()).await;
    assert!(
        denied
            .message()
            .ends_with("must have cluster-admin privileges to use the aggregationRule")
    );
    // `escalate` and `bind` are permissions of their own.
    let extra = json!([
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["escalate"]},
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["bind"],
         "resourceNames": ["cluster-admin"]},
    ]);
    grant(&cluster, "extra", "ann", extra).await;
    ask("POST", roles, role("more", json!(["get", "delete"])))
        .await
        .expect(201);
    ask("POST", cluster_bindings, all).await.expect(201);
    let bob = Credentials::token("bob-token");
    assert_eq!(cluster.ask(&bob, "GET", "/api/v1/secrets", None).await.code, 200);
    ask("POST", format!("{GROUP}/clusterroles"), aggregates).await;
}

#[tokio::test]
async fn default_roles_are_restored_when_the_server_starts() {
    let cluster = Cluster::start().await;
    let path = format!("{GROUP}/clusterroles/system:basic-user");
    let mut role = cluster.admin("GET", &path, None).await.expect(200);
    let all = role["rules"].clone();
    role["rules"] = json!([]);
    cluster.admin("PUT", &path, Some(role)).await.expect(200);
    let may = json!({"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}});
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    assert_eq!(
        cluster.ask(&ann(), "POST", reviews, Some(may.clone())).await.code,
        403
    );
    let binding = format!("{GROUP}/clusterrolebindings/system:discovery");
    cluster.admin("DELETE", &binding, None).await.expect(200);
    let cluster = cluster.next(|_| {}).await;
    let role = cluster.admin("GET", &path, None).await.expect(200);
    assert_eq!(
        role["rules"].as_array().unwrap().len(),
        3,
        "{all} broken down: {role}"
    );
    assert_eq!(cluster.admin("GET", &binding, None).await.code, 200);
    assert_eq!(cluster.ask(&ann(), "POST", reviews, Some(may)).await.code, 201);
}

#[tokio::test]
async fn a_denial_names_a_role_that_is_missing() {
    let cluster = Cluster::start().await;
    let lost = binding("lost", "ClusterRole", "gone");
    cluster
        .create(&format!("{GROUP}/clusterrolebindings"), lost)
        .await;
    let bob = Credentials::token("bob-token");
    let answer = cluster.ask(&bob, "GET", "/api/v1/namespaces/a/pods", None).await;
    assert_eq!(
        answer.message(),
        "pods is forbidden: User \"bob\" cannot list resource \"pods\" in API group \"\" in the namespace \"a\": \
RBAC: clusterrole.rbac.authorization.k8s.io \"gone\" not found"
    );
}

#[tokio::test]
async fn who_may_impersonate_may_do_it_for_each_thing() {
    let cluster = Cluster::start().await;
    let who = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let review = Some(json!({}));
    let rule = json!([
        {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["bob"]},
        {"apiGroups": ["authentication.k8s.io"], "resources": ["userextras/scopes"], "verbs": ["impersonate"]},
        {"apiGroups": ["authentication.k8s.io"], "resources": ["uids"], "verbs": ["impersonate"]},
    ]);
    grant(&cluster, "as-bob", "ann", rule).await;
    let as_bob = ann().header("impersonate-user", "bob");
    let full = as_bob
        .clone()
        .header("impersonate-uid", "7")
        .header("impersonate-extra-scopes", "view");
    let user = cluster.ask(&full, "POST", who, review.clone()).await.expect(201);
    assert_eq!(
        user["status"]["userInfo"],
        json!({"username": "bob", "uid": "7", "groups": ["system:authenticated"],
            "extra": {"scopes": ["view"]}})
    );
    for more in [("impersonate-group", "dev"), ("impersonate-extra-other", "x")] {
        let credentials = as_bob.clone().header(more.0, more.1);
        assert_eq!(
            cluster.ask(&credentials, "POST", who, review.clone()).await.code,
            403,
            "{more:?}"
        );
    }
    let credentials = ann().header("impersonate-user", "carol");
    assert_eq!(
        cluster.ask(&credentials, "POST", who, review.clone()).await.code,
        403
    );
    let admin = Credentials::token(ADMIN).header("impersonate-user", "system:serviceaccount:a:b");
    let user = cluster.ask(&admin, "POST", who, review).await.expect(201);
    assert_eq!(
        user["status"]["userInfo"]["groups"][1],
        "system:serviceaccounts:a"
    );
}

#[tokio::test]
async fn a_node_reaches_what_its_pods_use_and_no_more() {
    let cluster = Cluster::start().await;
    for account in ["default", "robot"] {
        let account = json!({"metadata": {"name": account}});
        cluster
            .create("/api/v1/namespaces/default/serviceaccounts", account)
            .await;
    }
    for name in ["n1", "n2"] {
        cluster
            .create("/api/v1/nodes", json!({"metadata": {"name": name}}))
            .await;
    }
    for name in ["mine", "other", "volume"] {
        let path = "/api/v1/namespaces/default";
        cluster
            .create(&format!("{path}/secrets"), json!({"metadata": {"name": name}}))
            .await;
        cluster
            .create(&format!("{path}/configmaps"), json!({"metadata": {"name": name}}))
            .await;
        let claim = json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"],
            "volumeName": name, "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}});
        cluster
            .create(&format!("{path}/persistentvolumeclaims"), claim)
            .await;
        let volume = json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"}, "claimRef": {"namespace": "default", "name": name},
            "csi": {"driver": "d", "volumeHandle": name,
                "nodeStageSecretRef": {"namespace": "default", "name": if name == "mine" {"volume"} else {"other"}}}}});
        cluster.create("/api/v1/persistentvolumes", volume).await;
    }
    let pod = |name: &str, node: &str, uses: &str| {
        json!({"metadata": {"name": name}, "spec": {"nodeName": node, "serviceAccountName": "default",
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "s", "secret": {"secretName": uses}},
                {"name": "m", "configMap": {"name": uses}},
                {"name": "p", "persistentVolumeClaim": {"claimName": uses}}]}})
    };
    let pods = "/api/v1/namespaces/default/pods";
    let here = cluster.create(pods, pod("here", "n1", "mine")).await;
    cluster.create(pods, pod("there", "n2", "other")).await;
    let uid = here["metadata"]["uid"].as_str().unwrap().to_string();
    let ns = "/api/v1/namespaces/default";
    let token = |pod: &str, uid: &str| {
        Some(json!({"spec": {"audiences": [], "boundObjectRef":
            {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}}}))
    };
    let status = |name: &str| {
        let patch = json!({"status": {"phase": "Running"}});
        (format!("{pods}/{name}/status"), Some(patch))
    };
    let lease = |name: &str| Some(json!({"metadata": {"name": name}}));
    let table: Vec<(&str, String, Option<Value>, u16)> = vec![
        ("GET", format!("{ns}/secrets/mine"), None, 200),
        ("GET", format!("{ns}/secrets/volume"), None, 200),
        ("GET", format!("{ns}/secrets/other"), None, 403),
        ("GET", format!("{ns}/secrets"), None, 403),
        (
            "GET",
            format!("{ns}/secrets?fieldSelector=metadata.name%3Dmine"),
            None,
            200,
        ),
        (
            "GET",
            format!("{ns}/secrets?fieldSelector=metadata.name%3Dother"),
            None,
            403,
        ),
        ("GET", format!("{ns}/configmaps/mine"), None, 200),
        ("GET", format!("{ns}/configmaps/other"), None, 403),
        ("GET", format!("{ns}/persistentvolumeclaims/mine"), None, 200),
        ("GET", format!("{ns}/persistentvolumeclaims/other"), None, 403),
        ("GET", "/api/v1/persistentvolumes/mine".into(), None, 200),
        ("GET", "/api/v1/persistentvolumes/other".into(), None, 403),
        ("GET", format!("{ns}/serviceaccounts/default"), None, 200),
        ("GET", format!("{ns}/serviceaccounts/robot"), None, 403),
        ("GET", "/api/v1/nodes/n1".into(), None, 200),
        ("GET", "/api/v1/nodes/n2".into(), None, 403),
        ("GET", "/api/v1/nodes".into(), None, 403),
        ("GET", "/api/v1/pods".into(), None, 403),
        (
            "GET",
            "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1".into(),
            None,
            200,
        ),
        (
            "GET",
            "/api/v1/pods?fieldSelector=spec.nodeName%3Dn2".into(),
            None,
            403,
        ),
        ("GET", format!("{pods}/here"), None, 200),
        ("GET", format!("{pods}/there"), None, 403),
        ("GET", "/api/v1/services".into(), None, 200),
        (
            "POST",
            format!("{ns}/serviceaccounts/default/token"),
            token("here", &uid),
            201,
        ),
        (
            "POST",
            format!("{ns}/serviceaccounts/default/token"),
            token("here", "wrong"),
            403,
        ),
        (
            "POST",
            format!("{ns}/serviceaccounts/default/token"),
            Some(json!({"spec": {}})),
            403,
        ),
        (
            "POST",
            format!("{ns}/serviceaccounts/robot/token"),
            token("here", &uid),
            403,
        ),
        (
            "POST",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases".into(),
            lease("n1"),
            201,
        ),
        (
            "POST",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases".into(),
            lease("n2"),
            403,
        ),
        (
            "POST",
            "/apis/coordination.k8s.io/v1/namespaces/default/leases".into(),
            lease("n1"),
            403,
        ),
        ("POST", "/api/v1/nodes".into(), lease("n3"), 403),
        ("POST", pods.into(), Some(pod("made", "n1", "mine")), 403),
        ("DELETE", format!("{pods}/there"), None, 403),
        ("POST", format!("{pods}/there/eviction"), lease("there"), 403),
        ("GET", format!("{GROUP}/clusterroles"), None, 403),
    ];
    for (method, path, body, expected) in table {
        let answer = cluster.ask(&node(), method, &path, body).await;
        assert_eq!(answer.code, expected, "{method} {path}: {}", answer.text);
    }
    let patch = node().header("content-type", "application/merge-patch+json");
    for (name, expected) in [("here", 200), ("there", 403)] {
        let (path, body) = status(name);
        assert_eq!(
            cluster.ask(&patch, "PATCH", &path, body).await.code,
            expected,
            "{name}"
        );
    }
    for (change, expected) in [
        (
            json!({"metadata": {"labels": {"kubernetes.io/os": "linux", "mine": "x"}}}),
            200,
        ),
        (
            json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
            403,
        ),
        (json!({"spec": {"taints": []}}), 403),
    ] {
        let body = Some(change.clone());
        let answer = cluster.ask(&patch, "PATCH", "/api/v1/nodes/n1", body).await;
        assert_eq!(answer.code, expected, "{change}: {}", answer.text);
    }
}
