//! HTTP through the API server to pods, Services and nodes.

use std::convert::Infallible;
use std::net::Ipv4Addr;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::cluster::{ADMIN, Cluster, Credentials};

const NS: &str = "/api/v1/namespaces/default";

/// The server of a pod.
struct Backend {
    port: u16,
    _stop: DropGuard,
}

impl Backend {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(async move {
            loop {
                let stream = tokio::select! {
                    () = stopped.cancelled() => return,
                    accepted = listener.accept() => accepted.unwrap().0,
                };
                let service = service_fn(|request| async { Ok::<_, Infallible>(answer(request).await) });
                let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection.with_upgrades());
            }
        });
        Backend {
            port,
            _stop: stop.drop_guard(),
        }
    }
}

async fn answer(mut request: Request<Incoming>) -> Response<Full<Bytes>> {
    let text = |body: &str| Response::new(Full::new(Bytes::from(body.to_string())));
    match request.uri().path() {
        "/page" => {
            let mut page = text("<a href=\"/there\">x</a><img src=b.png>");
            let headers = page.headers_mut();
            headers.insert(header::CONTENT_TYPE, "text/html; charset=utf-8".parse().unwrap());
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, "*".parse().unwrap());
            page
        }
        "/moved" => {
            let mut moved = text("");
            *moved.status_mut() = StatusCode::FOUND;
            moved
                .headers_mut()
                .insert(header::LOCATION, "/there?a=b".parse().unwrap());
            moved
        }
        "/missing" => {
            let mut missing = text("nothing here");
            *missing.status_mut() = StatusCode::NOT_FOUND;
            missing
        }
        "/socket" => {
            let upgraded = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut stream = TokioIo::new(upgraded.await.unwrap());
                let mut buffer = [0; 4];
                stream.read_exact(&mut buffer).await.unwrap();
                buffer.reverse();
                stream.write_all(&buffer).await.unwrap();
            });
            let mut switched = text("");
            *switched.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            switched
                .headers_mut()
                .insert(header::UPGRADE, "websocket".parse().unwrap());
            switched
                .headers_mut()
                .insert(header::CONNECTION, "Upgrade".parse().unwrap());
            switched
        }
        _ => {
            let headers: serde_json::Map<String, Value> = request
                .headers()
                .iter()
                .map(|(k, v)| (k.to_string(), v.to_str().unwrap().into()))
                .collect();
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let received = json!({"method": head.method.as_str(), "uri": head.uri.to_string(), "headers": headers,
                "body": String::from_utf8_lossy(&body)});
            text(&received.to_string())
        }
    }
}

/// Creates a pod with this address.
async fn pod(cluster: &Cluster, name: &str, ip: &str, port: u16) {
    let account = json!({"metadata": {"name": "robot"}});
    cluster
        .admin("POST", &format!("{NS}/serviceaccounts"), Some(account))
        .await;
    let container = json!({"name": "c", "image": "i", "ports": [{"containerPort": port}]});
    let pod = json!({"metadata": {"name": name},
        "spec": {"serviceAccountName": "robot", "nodeName": "n1", "containers": [container]}});
    cluster.create(&format!("{NS}/pods"), pod).await;
    let merge = Credentials::token(ADMIN).header("content-type", "application/merge-patch+json");
    let status = json!({"status": {"podIP": ip, "podIPs": [{"ip": ip}]}});
    let path = format!("{NS}/pods/{name}/status");
    cluster
        .ask(&merge, "PATCH", &path, Some(status))
        .await
        .expect(200);
}

/// The same behind a Service with port 80.
async fn served(cluster: &Cluster, name: &str, ip: &str, port: u16) {
    pod(cluster, name, ip, port).await;
    let ports = json!([{"name": "web", "port": 80, "targetPort": port}]);
    let service = json!({"metadata": {"name": name}, "spec": {"ports": ports}});
    cluster.create(&format!("{NS}/services"), service).await;
    let to = json!({"kind": "Pod", "namespace": "default", "name": name});
    let subset =
        json!({"addresses": [{"ip": ip, "targetRef": to}], "ports": [{"name": "web", "port": port}]});
    let endpoints = json!({"metadata": {"name": name}, "subsets": [subset]});
    cluster.create(&format!("{NS}/endpoints"), endpoints).await;
}

#[tokio::test]
async fn every_method_reaches_a_pod_and_no_credential_does() {
    let (cluster, backend) = (Cluster::start().await, Backend::start().await);
    served(&cluster, "web", "10.244.0.5", backend.port).await;
    let credentials = Credentials::token(ADMIN)
        .header("x-mine", "1")
        .header("x-forwarded-for", "192.0.2.7");
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        for of in [
            "pods/web".to_string(),
            format!("pods/http:web:{}", backend.port),
            "services/web:80".into(),
        ] {
            let path = format!("{NS}/{of}/proxy/a%2Fb/c/?d=e");
            let body = (method == "POST").then(|| json!({"k": "v"}));
            let received = cluster.ask(&credentials, method, &path, body).await.expect(200);
            assert_eq!(received["method"], method, "{of}");
            assert_eq!(received["uri"], "/a%2Fb/c/?d=e", "{of}");
            assert_eq!(received["headers"]["x-mine"], "1");
            assert_eq!(received["headers"]["host"], "localhost");
            assert_eq!(received["headers"]["x-forwarded-for"], "192.0.2.7, 127.0.0.1");
            assert_eq!(
                received["headers"]["x-forwarded-uri"],
                format!("{NS}/{of}/proxy/a%2Fb/c/")
            );
            assert!(received["headers"].get("authorization").is_none(), "{received}");
            let sent = if method == "POST" { r#"{"k":"v"}"# } else { "" };
            assert_eq!(received["body"], sent);
        }
    }
}

#[tokio::test]
async fn responses_of_a_pod_have_their_links_rewritten() {
    let (cluster, backend) = (Cluster::start().await, Backend::start().await);
    served(&cluster, "web", "10.244.0.5", backend.port).await;
    let root = format!("{NS}/services/web:web/proxy");
    let page = cluster.admin("GET", &format!("{root}/page"), None).await;
    assert_eq!(
        page.text,
        format!("<a href=\"{root}/there\">x</a><img src=b.png>")
    );
    assert!(!page.headers.contains_key("access-control-allow-origin"));
    let moved = cluster.admin("GET", &format!("{root}/moved"), None).await;
    assert_eq!(moved.code, 302);
    assert_eq!(moved.headers["location"], format!("{root}/there?a=b"));
    let missing = cluster.admin("GET", &format!("{root}/missing"), None).await;
    assert_eq!((missing.code, missing.text.as_str()), (404, "nothing here"));
    // The root ends with a slash, or relative links would be wrong.
    let bare = cluster.admin("GET", &format!("{root}?q=1"), None).await;
    assert_eq!(
        (bare.code, &bare.headers["location"]),
        (301, &format!("{root}/?q=1").parse().unwrap())
    );
    // HEAD is answered like GET, without the body; a page is not a document of the API, whatever its client accepts.
    let browser = Credentials::token(ADMIN).header("accept", "text/html");
    for (path, code) in [
        (format!("{root}?q=1"), 301),
        (format!("{NS}/pods/web/proxy?q=1"), 301),
        (format!("{root}/page"), 200),
        (format!("{root}/missing"), 404),
    ] {
        let head = cluster.ask(&browser, "HEAD", &path, None).await;
        let got = cluster.ask(&browser, "GET", &path, None).await;
        assert_eq!((head.code, got.code), (code, code), "{path}");
        assert_eq!(head.headers.get("location"), got.headers.get("location"));
        assert_eq!(head.text, "");
    }
    let posted = cluster.admin("POST", &root, None).await.expect(200);
    assert_eq!((&posted["method"], &posted["uri"]), (&json!("POST"), &json!("/")));
}

#[tokio::test]
async fn a_websocket_passes() {
    let (cluster, backend) = (Cluster::start().await, Backend::start().await);
    served(&cluster, "web", "10.244.0.5", backend.port).await;
    let mut client = cluster.connect(&Credentials::token(ADMIN)).await.unwrap();
    let (code, stream) = client.upgrade(&format!("{NS}/pods/web/proxy/socket")).await;
    assert_eq!(code, StatusCode::SWITCHING_PROTOCOLS);
    let mut stream = TokioIo::new(stream.unwrap());
    stream.write_all(b"abcd").await.unwrap();
    let mut buffer = [0; 4];
    stream.read_exact(&mut buffer).await.unwrap();
    assert_eq!(&buffer, b"dcba");
}

#[tokio::test]
async fn a_nodes_proxy_is_its_kubelet() {
    let (cluster, backend) = (Cluster::start().await, Backend::start().await);
    let status = json!({"addresses": [{"type": "InternalIP", "address": "192.0.2.9"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}});
    let node = json!({"metadata": {"name": "n1"}, "status": status});
    cluster.create("/api/v1/nodes", node).await;
    cluster.kubelet_at(backend.port);
    for (name, uri) in [
        ("n1", "/stats"),
        ("n1:10250", "/stats"),
        (&format!("http:n1:{}", backend.port), "/stats"),
    ] {
        let path = format!("/api/v1/nodes/{name}/proxy/stats");
        let received = cluster.admin("GET", &path, None).await.expect(200);
        assert_eq!(received["uri"], uri, "{name}");
    }
}

#[tokio::test]
async fn unreachable_backends_are_reported_as_in_kubernetes() {
    let cluster = Cluster::start().await;
    // No process listens there: the listener was closed again.
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    served(&cluster, "web", "10.244.0.5", closed).await;
    pod(&cluster, "own", "127.0.0.1", closed).await;
    let lonely = json!({"metadata": {"name": "lonely"}, "spec": {"ports": [{"port": 80}]}});
    cluster.create(&format!("{NS}/services"), lonely).await;
    cluster
        .create(
            &format!("{NS}/endpoints"),
            json!({"metadata": {"name": "lonely"}}),
        )
        .await;
    // An address that is not a pod's.
    let to = json!({"kind": "Pod", "namespace": "default", "name": "web"});
    let subset = json!({"addresses": [{"ip": "10.0.0.9", "targetRef": to}], "ports": [{"port": closed}]});
    let ports = json!([{"port": 80}]);
    cluster
        .create(
            &format!("{NS}/services"),
            json!({"metadata": {"name": "sly"}, "spec": {"ports": ports}}),
        )
        .await;
    cluster
        .create(
            &format!("{NS}/endpoints"),
            json!({"metadata": {"name": "sly"}, "subsets": [subset]}),
        )
        .await;
    let rejected =
        format!("error trying to reach service: dial tcp 10.244.0.5:{closed}: connect: connection refused");
    for (path, code, message) in [
        ("pods/web/proxy/", 503, rejected.as_str()),
        ("services/web:web/proxy/", 503, &rejected),
        (
            "pods/web:http/proxy/",
            503,
            "error trying to reach service: dial tcp: lookup tcp/http: unknown port",
        ),
        ("pods/own/proxy/", 400, "address not allowed"),
        ("pods/none/proxy/", 404, "pods \"none\" not found"),
        ("services/none/proxy/", 404, "endpoints \"none\" not found"),
        ("services/none:80/proxy/", 404, "services \"none\" not found"),
        (
            "services/lonely/proxy/",
            503,
            "no endpoints available for service \"lonely\"",
        ),
        (
            "services/web:81/proxy/",
            503,
            "no service port 81 found for service \"web\"",
        ),
        (
            "services/web:other/proxy/",
            503,
            "no endpoints available for service \"web:other\"",
        ),
        (
            "services/sly:80/proxy/",
            503,
            "no endpoints available for service \"sly:80\"",
        ),
        (
            "services/ftp:web:80/proxy/",
            400,
            "invalid service request \"ftp:web:80\"",
        ),
        ("pods/:80/proxy/", 400, "invalid pod request \":80\""),
    ] {
        let answer = cluster.admin("GET", &format!("{NS}/{path}"), None).await;
        assert_eq!((answer.code, answer.message()), (code, message), "{path}");
    }
    // A client without permission gets a 403 before anything is read.
    let ann = Credentials::token("ann-token");
    let answer = cluster
        .ask(&ann, "GET", &format!("{NS}/pods/web/proxy/"), None)
        .await;
    assert_eq!(answer.code, 403);
}
