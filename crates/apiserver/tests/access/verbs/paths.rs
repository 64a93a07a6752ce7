//! Paths that name a kind outside its scope: 404, whatever the user may do in the namespace of the path.

use knarr_api::registry;
use serde_json::json;

use super::authorizer::{Allowed, Recorder, text, user};
use super::walk::{definitions, own_node};
use crate::cluster::{ADMIN, Cluster, Credentials};

/// A user with all permissions in namespace `a` only.
async fn owner_of_a(cluster: &Cluster) -> Credentials {
    cluster
        .create("/api/v1/namespaces", json!({"metadata": {"name": "a"}}))
        .await;
    cluster
        .create("/api/v1/namespaces", json!({"metadata": {"name": "victim"}}))
        .await;
    let binding = json!({"metadata": {"name": "owner"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}]});
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/a/rolebindings";
    cluster.create(path, binding).await;
    Credentials::token("bob-token")
}

#[tokio::test]
async fn a2_an_owner_of_one_namespace_reaches_no_other_and_no_list_of_them() {
    let cluster = Cluster::start().await;
    let bob = owner_of_a(&cluster).await;
    let merge = bob.clone().header("content-type", "application/merge-patch+json");
    let apply = bob.clone().header("content-type", "application/apply-patch+yaml");
    let labels = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}});
    let named = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "new"}});
    let within = "/api/v1/namespaces/a/namespaces";
    for (credentials, method, path, body) in [
        (&bob, "GET", within.to_string(), None),
        (&bob, "GET", format!("{within}?watch=true&timeoutSeconds=1"), None),
        (&bob, "GET", "/api/v1/watch/namespaces/a/namespaces".into(), None),
        (&bob, "GET", format!("{within}/a"), None),
        (&bob, "GET", format!("{within}/victim"), None),
        (&bob, "GET", format!("{within}/victim/status"), None),
        (&bob, "POST", within.to_string(), Some(named.clone())),
        (
            &bob,
            "PUT",
            format!("{within}/victim/finalize"),
            Some(named.clone()),
        ),
        (&merge, "PATCH", format!("{within}/victim"), Some(labels.clone())),
        (
            &apply,
            "PATCH",
            format!("{within}/new?fieldManager=m"),
            Some(named.clone()),
        ),
        (&bob, "DELETE", within.to_string(), None),
        (&bob, "DELETE", format!("{within}/victim"), None),
    ] {
        let answer = cluster.ask(credentials, method, &path, body).await;
        assert_eq!(answer.code, 404, "{method} {path}: {}", answer.text);
    }
    let victim = cluster
        .admin("GET", "/api/v1/namespaces/victim", None)
        .await
        .expect(200);
    assert_eq!(victim["status"]["phase"], "Active");
    assert!(victim["metadata"]["labels"]["pod-security.kubernetes.io/enforce"].is_null());
    // The user may get and label the own namespace, as in Kubernetes: that request is authorized in the namespace itself.
    cluster
        .ask(&bob, "GET", "/api/v1/namespaces/a", None)
        .await
        .expect(200);
    let own = cluster
        .ask(&merge, "PATCH", "/api/v1/namespaces/a", Some(labels))
        .await;
    own.expect(200);
    for path in ["/api/v1/namespaces", "/api/v1/namespaces/victim"] {
        assert_eq!(cluster.ask(&bob, "GET", path, None).await.code, 403, "{path}");
    }
}

#[tokio::test]
async fn a2_no_kind_answers_in_a_scope_that_is_not_its_own() {
    let cluster = Cluster::start().await;
    definitions(&cluster).await;
    own_node(&cluster).await;
    let bob = owner_of_a(&cluster).await;
    let mut kinds: Vec<(String, &str, bool)> = registry::ALL
        .iter()
        .map(|kind| {
            let root = match kind.group() {
                "" => format!("/api/{}", kind.version()),
                group => format!("/apis/{group}/{}", kind.version()),
            };
            (root, kind.plural(), kind.namespaced())
        })
        .collect();
    kinds.push(("/apis/example.com/v1".into(), "widgets", true));
    kinds.push(("/apis/example.com/v1".into(), "gadgets", false));
    kinds.push(("/apis/metrics.k8s.io/v1beta1".into(), "nodes", false));
    let mut owner = cluster.connect(&bob).await.unwrap();
    let mut admin = cluster.connect(&Credentials::token(ADMIN)).await.unwrap();
    let clusters = kinds.iter().filter(|(.., namespaced)| !namespaced);
    for (root, plural, _) in clusters {
        let path = format!("{root}/namespaces/a/{plural}");
        for (method, path) in [
            ("GET", path.clone()),
            ("GET", format!("{path}?watch=true&timeoutSeconds=1")),
            ("GET", format!("{path}/x")),
            ("GET", format!("{path}/x/status")),
            ("POST", path.clone()),
            ("PUT", format!("{path}/x")),
            ("PATCH", format!("{path}/x")),
            ("DELETE", format!("{path}/x")),
            ("DELETE", path.clone()),
        ] {
            let body = (method != "GET").then(|| json!({"metadata": {"name": "x"}}));
            let found = owner.send(method, &path, body.clone()).await;
            let as_admin = admin.send(method, &path, body).await;
            assert_eq!(
                (found.code, as_admin.code),
                (404, 404),
                "{method} {path}: {}",
                found.text
            );
        }
    }
    // And no namespaced object can be requested without its namespace.
    for (root, plural, _) in kinds.iter().filter(|(.., namespaced)| *namespaced) {
        let gone = if root.ends_with("example.com/v1") {
            404
        } else {
            405
        };
        for (method, path, expected) in [
            ("GET", format!("{root}/{plural}/x"), 404),
            ("PUT", format!("{root}/{plural}/x"), 404),
            ("PATCH", format!("{root}/{plural}/x"), 404),
            ("DELETE", format!("{root}/{plural}/x"), 404),
            ("POST", format!("{root}/{plural}"), gone),
            ("DELETE", format!("{root}/{plural}"), gone),
        ] {
            let body = (method != "GET").then(|| json!({"metadata": {"name": "x"}}));
            let found = admin.send(method, &path, body).await;
            assert_eq!(found.code, expected, "{method} {path}: {}", found.text);
        }
    }
}

/// A path is parsed once: the object that is authorized is the one that is served, however the path is written.
#[tokio::test]
async fn a1_a_path_is_read_once_for_what_is_asked_and_what_is_answered() {
    let (cluster, recorder) = Recorder::cluster().await;
    let pods = "list /pods/ default/";
    let pod = "get /pods/ default/x";
    for (method, path, asked, code) in [
        ("GET", "/api/v1/namespaces/default/pods/", pods, 200),
        ("GET", "/api/v1//namespaces/default//pods", pods, 200),
        ("GET", "/%61pi/v1/namespaces/d%65fault/p%6fds", pods, 200),
        ("HEAD", "/api/v1/namespaces/default/pods/x", pod, 405),
        ("GET", "/api/v1/namespaces/default/pods/x/", pod, 404),
        (
            "GET",
            "/api/v1/namespaces/default/Pods",
            "list /Pods/ default/",
            404,
        ),
        (
            "GET",
            "/API/v1/namespaces/default/pods",
            "get /API/v1/namespaces/default/pods",
            404,
        ),
        // One segment with an encoded slash is one segment, and not a valid name.
        (
            "GET",
            "/api/v1/namespaces/default%2fpods",
            "get /namespaces/ default/pods/default/pods",
            404,
        ),
        (
            "GET",
            "/api/v1/namespaces/default/pods/x%2flog",
            "get /pods/ default/x/log",
            404,
        ),
        (
            "GET",
            "/api/v1/namespaces/default/pods/%2e%2e",
            "get /pods/ default/..",
            404,
        ),
        ("GET", "/api/v1/namespaces/../pods", "list /pods/ ../", 404),
        (
            "GET",
            "/api/v1/namespaces/default/pods/%ff",
            "get /pods/ default/\u{fffd}",
            404,
        ),
        (
            "GET",
            "/api/v1/namespaces/default/pods/x/log/more",
            "get /pods/log default/x",
            404,
        ),
        (
            "GET",
            "/api/v1/namespaces/default/pods/x/unknown",
            "get /pods/unknown default/x",
            404,
        ),
        ("GET", "/api/v1/nodes/n/status/..", "get /nodes/status /n", 404),
        (
            "GET",
            "/apis/apps/v1/namespaces/default/pods",
            "list apps/pods/ default/",
            404,
        ),
    ] {
        recorder.allow(Allowed::Everything);
        let answer = cluster.ask(&user(), method, path, None).await;
        assert_eq!(
            (answer.code, recorder.asked()),
            (code, vec![asked.to_string()]),
            "{method} {path}"
        );
        // A user without permission does not learn what exists.
        recorder.allow(Allowed::Only(Vec::new()));
        let answer = cluster.ask(&user(), method, path, None).await;
        assert_eq!(answer.code, 403, "{method} {path}");
    }
    let path = knarr_apiserver::authz::Attributes {
        verb: "get",
        path: Some(""),
        ..Default::default()
    };
    assert_eq!(text(&path), "get ");
}
