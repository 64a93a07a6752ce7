//! Every path that discovery names, asked without a credential and with wrong ones.

use knarr_api::k8s_openapi;
use knarr_apiserver::pki::Pki;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Shows};

/// What v1.36 answers to clients that show nothing (`system:public-info-viewer`).
const PUBLIC: [&str; 5] = ["/healthz", "/livez", "/readyz", "/version", "/version/"];

/// Paths that discovery does not name.
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

/// Every resource and subresource of every group, as a path, with the methods its verbs are asked by.
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

/// A service-account token that ran out while its certificate-less bearer was away.
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
    let shows = Shows::token(&token);
    assert_eq!(cluster.ask(&shows, "GET", "/api", None).await.code, 200);
    cluster.pass(601);
    token
}

#[tokio::test]
async fn nothing_but_health_and_version_answers_who_shows_no_good_credential() {
    let cluster = Cluster::start().await;
    let expired_token = expired_token(&cluster).await;
    // A certificate that ended, of the right CA; and a good one of another CA with the same names.
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
    // The server's own certificate is no client's, and neither is the front proxy's.
    let server = cluster.pki.server(&["localhost".to_string()]).unwrap();
    let front_proxy = cluster.pki.front_proxy_client().unwrap();
    let clients = [
        ("nothing", Shows::default(), false),
        ("a wrong token", Shows::token("wrong"), true),
        ("an expired token", Shows::token(expired_token), true),
        (
            "a bootstrap token of nobody",
            Shows::token("abcdef.0123456789abcdef"),
            true,
        ),
        ("an expired certificate", Shows::certificate(expired), true),
        ("a foreign certificate", Shows::certificate(foreign), true),
        ("a server's certificate", Shows::certificate(server), true),
        (
            "the front proxy's certificate",
            Shows::certificate(front_proxy),
            true,
        ),
        (
            "no bearer",
            Shows::default().header("authorization", "Basic YWRtaW46YWRtaW4="),
            false,
        ),
    ];
    let paths = paths(&cluster).await;
    assert!(paths.len() > 400, "{} paths", paths.len());
    for (what, shows, wrong) in clients {
        let mut client = cluster.connect(&shows).await.unwrap();
        for (path, method) in &paths {
            let body = (*method != "GET").then(|| json!({}));
            let answer = client.send(method, path, body).await;
            // Who shows nothing is anonymous, and may see next to nothing; what does not hold is no credential.
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
    let shows = Shows::certificate(cluster.pki.admin().unwrap());
    let mut client = cluster.connect(&shows).await.unwrap();
    assert_eq!(client.send("GET", "/api/v1/nodes", None).await.code, 200);
    cluster.pass(366 * 24 * 3600);
    assert_eq!(client.send("GET", "/api/v1/nodes", None).await.code, 401);
}

#[tokio::test]
async fn without_anonymous_users_even_health_wants_a_credential() {
    let cluster = Cluster::with(|options, _| options.anonymous = false).await;
    for path in PUBLIC {
        let answer = cluster.ask(&Shows::default(), "GET", path, None).await;
        assert_eq!(answer.code, 401, "{path}");
        assert_eq!(cluster.admin("GET", path, None).await.code, 200, "{path}");
    }
}
