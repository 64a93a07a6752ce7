//! Every way of creating requires `create` (SPEC A2), and the permissions that admission checks in addition.

use serde_json::{Value, json};

use crate::cluster::{Cluster, Credentials, TestResponse, grant};

const APPLY: &str = "application/apply-patch+yaml";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

fn bob() -> Credentials {
    Credentials::token("bob-token")
}

fn applying() -> Credentials {
    bob().header("content-type", APPLY)
}

fn pod() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"},
        "spec": {"containers": [{"name": "c", "image": "i", "securityContext": {"privileged": true}}]}})
}

async fn rule(
    cluster: &Cluster,
    name: &str,
    group: &str,
    resources: &[&str],
    verbs: &[&str],
    names: &[&str],
) {
    let rule =
        json!([{"apiGroups": [group], "resources": resources, "verbs": verbs, "resourceNames": names}]);
    grant(cluster, name, "bob", rule).await;
}

#[track_caller]
fn denied(answer: &TestResponse, message: &str) {
    assert_eq!((answer.code, answer.message()), (403, message));
    assert_eq!(answer.body["reason"], "Forbidden");
}

#[tokio::test]
async fn a2_a_user_with_patch_alone_creates_nothing_by_applying() {
    let cluster = Cluster::start().await;
    let account = json!({"metadata": {"name": "default"}});
    cluster
        .create("/api/v1/namespaces/default/serviceaccounts", account)
        .await;
    rule(
        &cluster,
        "patch",
        "",
        &["pods", "pods/status"],
        &["get", "patch", "update"],
        &[],
    )
    .await;
    let path = "/api/v1/namespaces/default/pods/x";
    let missing = "pods \"x\" is forbidden: User \"bob\" cannot create resource \"pods\" in API group \"\" in the \
namespace \"default\"";
    for query in ["", "&dryRun=All", "&force=true"] {
        let path = format!("{path}?fieldManager=m{query}");
        denied(
            &cluster.ask(&applying(), "PATCH", &path, Some(pod())).await,
            missing,
        );
    }
    // A subresource creates nothing, whichever user requests it.
    let status = format!("{path}/status?fieldManager=m");
    assert_eq!(
        cluster.ask(&applying(), "PATCH", &status, Some(pod())).await.code,
        404
    );
    assert_eq!(cluster.ask(&bob(), "PUT", path, Some(pod())).await.code, 404);
    assert_eq!(cluster.admin("GET", path, None).await.code, 404);
    // The name is known here, so a permission for that one name is enough; for another it is not.
    rule(&cluster, "create", "", &["pods"], &["create"], &["x"]).await;
    let apply = format!("{path}?fieldManager=m");
    cluster
        .ask(&applying(), "PATCH", &apply, Some(pod()))
        .await
        .expect(201);
    let other = "/api/v1/namespaces/default/pods/y?fieldManager=m";
    let mut named = pod();
    named["metadata"]["name"] = json!("y");
    assert_eq!(
        cluster.ask(&applying(), "PATCH", other, Some(named)).await.code,
        403
    );
    // An existing object is changed without it.
    let mut changed = pod();
    changed["metadata"]["labels"] = json!({"a": "b"});
    cluster
        .ask(&applying(), "PATCH", &apply, Some(changed))
        .await
        .expect(200);
}

#[tokio::test]
async fn a2_a_user_with_update_alone_creates_nothing_by_replacing() {
    let cluster = Cluster::start().await;
    rule(
        &cluster,
        "update",
        "coordination.k8s.io",
        &["leases"],
        &["update"],
        &[],
    )
    .await;
    let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/x";
    let lease = |version: &str| {
        let meta = json!({"name": "x", "resourceVersion": version});
        Some(json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta}))
    };
    let missing = "leases.coordination.k8s.io \"x\" is forbidden: User \"bob\" cannot create resource \"leases\" in API \
group \"coordination.k8s.io\" in the namespace \"default\"";
    denied(&cluster.ask(&bob(), "PUT", path, lease("")).await, missing);
    let dry = format!("{path}?dryRun=All");
    denied(&cluster.ask(&bob(), "PUT", &dry, lease("")).await, missing);
    // An update with a resourceVersion creates nothing.
    assert_eq!(cluster.ask(&bob(), "PUT", path, lease("7")).await.code, 404);
    assert_eq!(cluster.admin("GET", path, None).await.code, 404);
    rule(
        &cluster,
        "create",
        "coordination.k8s.io",
        &["leases"],
        &["create"],
        &[],
    )
    .await;
    cluster.ask(&bob(), "PUT", path, lease("")).await.expect(201);
}

/// Roles and bindings that are created by another verb than `create` grant no more than those that are posted.
#[tokio::test]
async fn a2_no_way_of_creating_grants_what_its_user_does_not_hold() {
    let cluster = Cluster::start().await;
    let verbs = ["get", "create", "update", "patch"];
    rule(
        &cluster,
        "writer",
        "rbac.authorization.k8s.io",
        &["*"],
        &verbs,
        &[],
    )
    .await;
    let of = |kind: &str, more: Value| {
        let mut object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
            "metadata": {"name": "x"}});
        object
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        object
    };
    let rules = json!({"rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]});
    let gathers =
        json!({"rules": [], "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}});
    let binds = json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
        "name": "cluster-admin"}, "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User",
        "name": "bob"}]});
    for (resource, object) in [
        ("namespaces/default/roles", of("Role", rules.clone())),
        (
            "namespaces/default/rolebindings",
            of("RoleBinding", binds.clone()),
        ),
        ("clusterroles", of("ClusterRole", rules)),
        ("clusterroles", of("ClusterRole", gathers)),
        ("clusterrolebindings", of("ClusterRoleBinding", binds)),
    ] {
        let all = format!("{RBAC}/{resource}");
        for (credentials, method, path) in [
            (bob(), "POST", all.clone()),
            (bob(), "PUT", format!("{all}/x")),
            (applying(), "PATCH", format!("{all}/x?fieldManager=m&force=true")),
            (applying(), "PATCH", format!("{all}/x?fieldManager=m&dryRun=All")),
        ] {
            let answer = cluster
                .ask(&credentials, method, &path, Some(object.clone()))
                .await;
            assert_eq!(answer.code, 403, "{method} {path}: {}", answer.text);
            let words = [
                "is attempting to grant RBAC permissions not currently held",
                "cluster-admin privileges",
            ];
            assert!(
                words.iter().any(|w| answer.message().contains(w)),
                "{}",
                answer.text
            );
        }
        assert_eq!(cluster.admin("GET", &format!("{all}/x"), None).await.code, 404);
    }
}

#[tokio::test]
async fn a2_tokens_and_streams_need_permissions_of_their_own() {
    let cluster = Cluster::start().await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    for name in ["mine", "other"] {
        cluster
            .create(accounts, json!({"metadata": {"name": name}}))
            .await;
    }
    rule(
        &cluster,
        "accounts",
        "",
        &["serviceaccounts", "pods"],
        &["*"],
        &[],
    )
    .await;
    rule(
        &cluster,
        "token",
        "",
        &["serviceaccounts/token"],
        &["create"],
        &["mine"],
    )
    .await;
    let request = || Some(json!({"spec": {}}));
    for (name, code) in [("mine", 201), ("other", 403)] {
        let path = format!("{accounts}/{name}/token");
        assert_eq!(
            cluster.ask(&bob(), "POST", &path, request()).await.code,
            code,
            "{name}"
        );
    }
    for sub in [
        "exec",
        "attach",
        "portforward",
        "log",
        "proxy",
        "status",
        "eviction",
        "binding",
        "ephemeralcontainers",
        "resize",
    ] {
        let path = format!("/api/v1/namespaces/default/pods/x/{sub}");
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            let answer = cluster.ask(&bob(), method, &path, request()).await;
            assert_eq!(answer.code, 403, "{method} {path}: {}", answer.text);
        }
    }
    // Reading a stream's subresource does not begin a stream.
    rule(&cluster, "read", "", &["pods/exec"], &["get"], &[]).await;
    let exec = "/api/v1/namespaces/default/pods/x/exec?command=sh&stdout=true";
    let (code, _) = cluster.connect(&bob()).await.unwrap().upgrade(exec).await;
    assert_eq!(code.as_u16(), 403);
}

/// KEP-4817: allocation, reservation and device status are permissions of their own.
#[tokio::test]
async fn a2_parts_of_a_claims_status_need_permissions_of_their_own() {
    let cluster = Cluster::start().await;
    let group = "resource.k8s.io";
    let claims = format!("/apis/{group}/v1/namespaces/default/resourceclaims");
    let claim = json!({"metadata": {"name": "x"}, "spec": {"devices": {"requests": [
        {"name": "r", "exactly": {"deviceClassName": "c"}}]}}});
    cluster.create(&claims, claim).await;
    rule(
        &cluster,
        "status",
        group,
        &["resourceclaims", "resourceclaims/status"],
        &["get", "patch", "update"],
        &[],
    )
    .await;
    let path = format!("{claims}/x/status");
    let merge = bob().header("content-type", "application/merge-patch+json");
    let allocation = json!({"devices": {"results": [
        {"request": "r", "driver": "d.example.com", "pool": "p", "device": "one"}]}});
    let allocated = json!({"status": {"allocation": allocation}});
    let patch = |body: &Value| {
        let (cluster, merge, path, body) = (&cluster, &merge, &path, body.clone());
        async move { cluster.ask(merge, "PATCH", path, Some(body)).await }
    };
    let answer = patch(&allocated).await;
    assert_eq!(answer.code, 422, "{}", answer.text);
    assert_eq!(
        answer.message(),
        "ResourceClaim.resource.k8s.io \"x\" is invalid: status.allocation: Forbidden: changing status.allocation or \
status.reservedFor requires resource=\"resourceclaims/binding\", verb=\"patch\" permission: resourceclaims.resource.k8s.io \
is forbidden: User \"bob\" cannot patch resource \"resourceclaims/binding\" in API group \"resource.k8s.io\" at the \
cluster scope"
    );
    // The permission is for this verb: a user that may update may not patch.
    rule(
        &cluster,
        "update",
        group,
        &["resourceclaims/binding"],
        &["update"],
        &[],
    )
    .await;
    assert_eq!(patch(&allocated).await.code, 422);
    rule(
        &cluster,
        "patch",
        group,
        &["resourceclaims/binding"],
        &["patch"],
        &[],
    )
    .await;
    patch(&allocated).await.expect(200);
    let devices = json!({"status": {"devices": [{"driver": "d.example.com", "pool": "p", "device": "one"}]}});
    let answer = patch(&devices).await;
    assert_eq!(answer.code, 422, "{}", answer.text);
    assert!(
        answer
            .message()
            .contains("verb=\"[arbitrary-node:patch]\" permission"),
        "{}",
        answer.text
    );
    let driver = ["resourceclaims/driver"];
    rule(
        &cluster,
        "other",
        group,
        &driver,
        &["arbitrary-node:patch"],
        &["e.example.com"],
    )
    .await;
    assert_eq!(patch(&devices).await.code, 422);
    rule(
        &cluster,
        "driver",
        group,
        &driver,
        &["arbitrary-node:patch"],
        &["d.example.com"],
    )
    .await;
    patch(&devices).await.expect(200);
}

/// A policy's expressions see its parameters, so the user that writes it must be allowed to read them.
#[tokio::test]
async fn a2_parameters_of_policies_are_read_only_with_permission() {
    let cluster = Cluster::start().await;
    let group = "admissionregistration.k8s.io";
    rule(&cluster, "policies", group, &["*"], &["*"], &[]).await;
    let policies = format!("/apis/{group}/v1/validatingadmissionpolicies");
    let bindings = format!("/apis/{group}/v1/validatingadmissionpolicybindings");
    let policy = |name: &str, kind: &str| {
        json!({"metadata": {"name": name}, "spec": {"paramKind": {"apiVersion": "v1", "kind": kind},
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
                "resources": ["configmaps"], "operations": ["CREATE"]}]},
            "validations": [{"expression": "false", "messageExpression": "string(params.data.key)"}]}})
    };
    let binding = |policy: &str, reference: Value| {
        let mut reference = reference;
        reference["parameterNotFoundAction"] = json!("Deny");
        json!({"metadata": {"name": policy}, "spec": {"policyName": policy, "validationActions": ["Deny"],
            "paramRef": reference}})
    };
    let post = |path: &str, body: Value| {
        let (cluster, path) = (&cluster, path.to_string());
        async move { cluster.ask(&bob(), "POST", &path, Some(body)).await }
    };
    let answer = post(&policies, policy("secrets", "Secret")).await;
    assert_eq!(answer.code, 422, "{}", answer.text);
    let expected = "spec.paramKind: Forbidden: user &{bob  [system:authenticated] map[]} must have \"get\" permission on \
all objects of the referenced paramKind (kind=Secret, apiVersion=v1)";
    assert!(answer.message().contains(expected), "{}", answer.text);
    cluster.create(&policies, policy("secrets", "Secret")).await;
    let named = || json!({"namespace": "kube-system", "name": "token"});
    let selected = || json!({"namespace": "kube-system", "selector": {}});
    for reference in [named(), selected()] {
        let answer = post(&bindings, binding("secrets", reference)).await;
        assert_eq!(answer.code, 422, "{}", answer.text);
        assert!(
            answer
                .message()
                .contains("permission on the object referenced by paramRef"),
            "{}",
            answer.text
        );
    }
    assert_eq!(post(&bindings, binding("none", named())).await.code, 422);
    // Updating it to another kind is not allowed, either.
    rule(&cluster, "maps", "", &["configmaps"], &["get"], &[]).await;
    post(&policies, policy("maps", "ConfigMap")).await.expect(201);
    let merge = bob().header("content-type", "application/merge-patch+json");
    let other = Some(json!({"spec": {"paramKind": {"kind": "Secret"}}}));
    let path = format!("{policies}/maps");
    assert_eq!(cluster.ask(&merge, "PATCH", &path, other).await.code, 422);
    rule(&cluster, "one", "", &["secrets"], &["get"], &["token"]).await;
    post(&bindings, binding("secrets", named())).await.expect(201);
    let all = Some(json!({"spec": {"paramRef": {"name": null, "selector": {}}}}));
    let path = format!("{bindings}/secrets");
    assert_eq!(cluster.ask(&merge, "PATCH", &path, all).await.code, 422);
}
