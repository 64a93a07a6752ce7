//! Every path of discovery, requested without credentials and with wrong ones.

use knarr_api::k8s_openapi;
use knarr_apiserver::pki::Pki;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Credentials};

/// What v1.36 serves to clients without credentials (`system:public-info-viewer`).
const PUBLIC: [&str; 5] = ["/healthz", "/livez", "/readyz", "/version", "/version/"];

/// Paths that are not in discovery.
const OTHERS: [&str; 22] = [
    "/",
    "/api",
    "/apis",
    "/metrics",
    "/metrics/slis",
    "/openapi",
    "/openapi/v2",
    "/openapi/v3",
    "/openapi/v3/api/v1",
    "/openid/v1/jwks",
    "/.well-known/openid-configuration",
    "/healthz/ping",
    "/livez/ping",
    "/readyz/ping",
    "/debug/pprof",
    "/debug/pprof/profile",
    "/logs",
    "/configz",
    "/flagz",
    "/statusz",
    "/apis/nothing.example.com/v1",
    "/api/v1/nothing",
];

/// Every resource and subresource of every group, as a path, with the methods of its verbs.
async fn paths(cluster: &Cluster) -> Vec<(String, &'static str)> {
    let mut roots = vec!["/api/v1".to_string()];
    let groups = cluster.admin("GET", "/apis", None).await.expect(200);
    for group in groups["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            roots.push(format!("/apis/{}", version["groupVersion"].as_str().unwrap()));
        }
    }
    let mut all = Vec::new();
    for root in roots {
        all.push((root.clone(), "GET"));
        let list = cluster.admin("GET", &root, None).await.expect(200);
        for resource in list["resources"].as_array().unwrap() {
            let namespace = match resource["namespaced"] == true {
                true => "/namespaces/default",
                false => "",
            };
            let name = resource["name"].as_str().unwrap();
            let path = match name.split_once('/') {
                Some((plural, sub)) => format!("{root}{namespace}/{plural}/x/{sub}"),
                None => format!("{root}{namespace}/{name}"),
            };
            for verb in resource["verbs"].as_array().unwrap() {
                let (path, method) = match verb.as_str().unwrap() {
                    "get" if !name.contains('/') => (format!("{path}/x"), "GET"),
                    "get" | "list" => (path.clone(), "GET"),
                    "watch" => (format!("{path}?watch=true"), "GET"),
                    "create" => (path.clone(), "POST"),
                    "update" if !name.contains('/') => (format!("{path}/x"), "PUT"),
                    "update" => (path.clone(), "PUT"),
                    "patch" if !name.contains('/') => (format!("{path}/x"), "PATCH"),
                    "patch" => (path.clone(), "PATCH"),
                    "delete" if !name.contains('/') => (format!("{path}/x"), "DELETE"),
                    "delete" | "deletecollection" => (path.clone(), "DELETE"),
                    other => panic!("{path} has the verb {other}"),
                };
                all.push((path, method));
            }
        }
    }
    all.extend(OTHERS.map(|path| (path.to_string(), "GET")));
    all
}

/// A service-account token that has expired.
async fn expired_token(cluster: &Cluster) -> String {
    let account = json!({"metadata": {"name": "robot"}});
    cluster
        .create("/api/v1/namespaces/default/serviceaccounts", account)
        .await;
    let request = json!({"spec": {"expirationSeconds": 600}});
    let path = "/api/v1/namespaces/default/serviceaccounts/robot/token";
    let token = cluster.create(path, request).await["status"]["token"]
        .as_str()
        .unwrap()
        .to_string();
    let credentials = Credentials::token(&token);
    assert_eq!(cluster.ask(&credentials, "GET", "/api", None).await.code, 200);
    cluster.pass(601);
    token
}

#[tokio::test]
async fn only_health_and_version_are_served_without_valid_credentials() {
    let cluster = Cluster::start().await;
    let expired_token = expired_token(&cluster).await;
    // An expired certificate of the right CA; and a valid one of another CA with the same names.
    let earlier = cluster.now() - days(400);
    let directory = tempfile::tempdir().unwrap();
    for file in ["client-ca.crt", "client-ca.key"] {
        std::fs::copy(cluster.pki.directory().join(file), directory.path().join(file)).unwrap();
    }
    let expired = Pki::open(directory.path(), earlier).unwrap().admin().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let foreign = Pki::open(elsewhere.path(), cluster.now())
        .unwrap()
        .admin()
        .unwrap();
    // The server's own certificate is not a client's, and neither is the front proxy's.
    let server = cluster.pki.server(&["localhost".to_string()]).unwrap();
    let front_proxy = cluster.pki.front_proxy_client().unwrap();
    let clients = [
        ("nothing", Credentials::default(), false),
        ("a wrong token", Credentials::token("wrong"), true),
        ("an expired token", Credentials::token(expired_token), true),
        (
            "a bootstrap token that does not exist",
            Credentials::token("abcdef.0123456789abcdef"),
            true,
        ),
        ("an expired certificate", Credentials::certificate(expired), true),
        ("a foreign certificate", Credentials::certificate(foreign), true),
        ("a server's certificate", Credentials::certificate(server), true),
        (
            "the front proxy's certificate",
            Credentials::certificate(front_proxy),
            true,
        ),
        (
            "no bearer",
            Credentials::default().header("authorization", "Basic YWRtaW46YWRtaW4="),
            false,
        ),
    ];
    let paths = paths(&cluster).await;
    assert!(paths.len() > 400, "{} paths", paths.len());
    for (what, credentials, wrong) in clients {
        let mut client = cluster.connect(&credentials).await.unwrap();
        for (path, method) in &paths {
            let body = (*method != "GET").then(|| json!({}));
            let answer = client.send(method, path, body).await;
            // A client without credentials is anonymous, and may get next to nothing; invalid credentials are rejected.
            let code = if wrong { 401 } else { 403 };
            assert_eq!(answer.code, code, "{method} {path} with {what}: {}", answer.text);
            assert_eq!(
                answer.body["kind"],
                Value::from("Status"),
                "{method} {path} with {what}"
            );
        }
        for path in PUBLIC {
            let answer = client.send("GET", path, None).await;
            assert_eq!(answer.code, if wrong { 401 } else { 200 }, "{path} with {what}");
        }
    }
}

fn days(days: i64) -> k8s_openapi::jiff::SignedDuration {
    k8s_openapi::jiff::SignedDuration::from_hours(days * 24)
}

#[tokio::test]
async fn a_certificate_ends_while_its_connection_is_open() {
    let cluster = Cluster::start().await;
    let credentials = Credentials::certificate(cluster.pki.admin().unwrap());
    let mut client = cluster.connect(&credentials).await.unwrap();
    assert_eq!(client.send("GET", "/api/v1/nodes", None).await.code, 200);
    cluster.pass(366 * 24 * 3600);
    assert_eq!(client.send("GET", "/api/v1/nodes", None).await.code, 401);
}

#[tokio::test]
async fn without_anonymous_users_even_health_needs_credentials() {
    let cluster = Cluster::with(|options, _| options.anonymous = false).await;
    for path in PUBLIC {
        let answer = cluster.ask(&Credentials::default(), "GET", path, None).await;
        assert_eq!(answer.code, 401, "{path}");
        assert_eq!(cluster.admin("GET", path, None).await.code, 200, "{path}");
    }
}
