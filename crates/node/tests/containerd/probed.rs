//! Probes and hooks over TLS and gRPC, against a server in a container: this test program itself, which is mounted
//! there with the machine's libraries.

use std::convert::Infallible;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use knarr_node::images;
use prost::Message;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::machine::{Machine, OBEDIENT, first, ready};

const HTTPS: u16 = 8443;
const HTTP: u16 = 8080;
const GRPC: u16 = 9090;

/// What a TLS connection begins with.
const TLS_HANDSHAKE: [u8; 2] = [0x16, 3];

/// The directory where the server logs its requests, and finds the files that make it answer with errors.
const DIRECTORY: &str = "KNARR_TEST_SERVER";

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// Appends a line about a request to a file.
fn record(directory: &Path, line: &str) {
    let file = std::fs::File::options()
        .append(true)
        .create(true)
        .open(directory.join("requests"));
    writeln!(file.unwrap(), "{line}").unwrap();
}

/// One HTTP/1.1 request and its answer: success, except for `/ready` where a file forbids it.
async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, scheme: &str, directory: &Path) {
    let mut request = Vec::new();
    // A client that speaks TLS here gets a plain-text error, as from other servers.
    while !request.ends_with(b"\r\n\r\n") && !request.starts_with(&TLS_HANDSHAKE) {
        match stream.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return,
        }
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    let path = request.split(' ').nth(1).unwrap_or("").to_string();
    let agent = request.lines().find_map(|l| l.strip_prefix("User-Agent: "));
    record(directory, &format!("{scheme} {path} {}", agent.unwrap_or("none")));
    let status = match path.as_str() {
        "" => "400 Bad Request",
        "/ready" if directory.join("unready").exists() => "503 Service Unavailable",
        _ => "200 OK",
    };
    let response = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    // The client may have disconnected.
    let _ = stream.write_all(response.as_bytes()).await;
    let _ = stream.shutdown().await;
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

type Frames = stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>;

/// `grpc.health.v1.Health/Check`: serving, unless a file forbids it.
async fn check(request: Request<Incoming>, directory: &Path) -> Response<StreamBody<Frames>> {
    let path = request.uri().path().to_string();
    let message = request.into_body().collect().await.unwrap().to_bytes();
    let asked = HealthCheckRequest::decode(message.slice(5..)).unwrap();
    record(directory, &format!("grpc {path} {}", asked.service));
    let status = match asked.service.as_str() {
        "main" if directory.join("dying").exists() => 2,
        "main" => 1,
        _ => 3,
    };
    let reply = HealthCheckResponse { status }.encode_to_vec();
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(u32::try_from(reply.len()).unwrap());
    framed.put_slice(&reply);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let frames = vec![Ok(Frame::data(framed.freeze())), Ok(Frame::trailers(trailers))];
    let body = StreamBody::new(stream::iter(frames));
    let response = Response::builder().header("content-type", "application/grpc");
    response.body(body).unwrap()
}

fn acceptor() -> tokio_rustls::TlsAcceptor {
    // Self-signed, for another name: probes and hooks do not verify it.
    let made = rcgen::generate_simple_self_signed(vec!["other".to_string()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    tokio_rustls::TlsAcceptor::from(Arc::new(config))
}

#[test]
#[ignore = "the server that another test runs in a container"]
fn serves() {
    let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else {
        return;
    };
    let waits = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    waits.block_on(async {
        let listen = |port: u16| TcpListener::bind(("0.0.0.0", port));
        let (https, http) = (listen(HTTPS).await.unwrap(), listen(HTTP).await.unwrap());
        let grpc = listen(GRPC).await.unwrap();
        let tls = acceptor();
        let mut term = signal(SignalKind::terminate()).unwrap();
        loop {
            let directory = directory.clone();
            tokio::select! {
                _ = term.recv() => return,
                Ok((stream, _)) = http.accept() => {
                    tokio::spawn(async move { answer(stream, "http", &directory).await });
                }
                Ok((stream, _)) = https.accept() => {
                    let tls = tls.clone();
                    tokio::spawn(async move {
                        if let Ok(stream) = tls.accept(stream).await {
                            answer(stream, "https", &directory).await;
                        }
                    });
                }
                Ok((stream, _)) = grpc.accept() => {
                    tokio::spawn(async move {
                        let service = service_fn(|request| {
                            let directory = directory.clone();
                            async move { Ok::<_, Infallible>(check(request, &directory).await) }
                        });
                        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        // A probe closes as soon as it knows.
                        let _ = connection.serve_connection(TokioIo::new(stream), service).await;
                    });
                }
            }
        }
    });
}

/// The server as a sidecar, next to a container with hooks and probes.
fn spec(seen: &Path) -> Value {
    let program = std::env::current_exe().unwrap();
    let mut volumes = vec![
        json!({"name": "seen", "hostPath": {"path": seen, "type": "Directory"}}),
        json!({"name": "program", "hostPath": {"path": program, "type": "File"}}),
    ];
    let mut mounts = vec![
        json!({"name": "seen", "mountPath": "/seen"}),
        json!({"name": "program", "mountPath": "/server", "readOnly": true}),
    ];
    for (i, libraries) in ["/lib", "/lib64", "/usr/lib"].into_iter().enumerate() {
        if Path::new(libraries).exists() {
            let name = format!("libraries-{i}");
            volumes.push(json!({"name": name, "hostPath": {"path": libraries, "type": "Directory"}}));
            mounts.push(json!({"name": name, "mountPath": libraries, "readOnly": true}));
        }
    }
    let https = |path: &str, port: u16| json!({"httpGet": {"path": path, "port": port, "scheme": "HTTPS"}});
    let health = json!({"port": GRPC, "service": "main"});
    json!({
        "volumes": volumes,
        "initContainers": [{
            "name": "server", "image": images::BUSYBOX, "restartPolicy": "Always", "volumeMounts": mounts,
            "command": ["/server", "probed::serves", "--exact", "--ignored", "--nocapture"],
            "env": [{"name": DIRECTORY, "value": "/seen"}],
            "startupProbe": {"grpc": health, "periodSeconds": 1, "failureThreshold": 60},
        }],
        "containers": [{
            "name": "c", "image": images::BUSYBOX, "command": ["sh", "-c", OBEDIENT],
            // The second port serves plain HTTP, also to HTTPS requests.
            "lifecycle": {"postStart": https("/start", HTTPS), "preStop": https("/stop", HTTP)},
            "readinessProbe": {
                "httpGet": {"path": "/ready", "port": HTTPS, "scheme": "HTTPS"},
                "periodSeconds": 1, "failureThreshold": 1,
            },
            "livenessProbe": {"grpc": health, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 5},
        }],
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l8_l9_probes_and_hooks_speak_tls_and_grpc_with_containers() {
    let Some(machine) = Machine::start(8).await else {
        return;
    };
    let seen = machine.dir.path().join("seen");
    std::fs::create_dir(&seen).unwrap();
    let (unready, dying) = (seen.join("unready"), seen.join("dying"));
    machine.create("p", spec(&seen)).await;
    machine.wait("p", "ready", ready).await;
    let requests = || std::fs::read_to_string(seen.join("requests")).unwrap();
    let lines = requests();
    for line in [
        "grpc /grpc.health.v1.Health/Check main",
        "https /start kube-lifecycle/1.36",
        "https /ready kube-probe/1.36",
    ] {
        assert!(lines.lines().any(|l| l == line), "{line} is not in\n{lines}");
    }
    std::fs::write(&unready, "").unwrap();
    machine.wait("p", "not ready", |p| !ready(p)).await;
    std::fs::remove_file(&unready).unwrap();
    machine.wait("p", "ready again", ready).await;
    // The first restart is immediate; the next probe succeeds, or the container restarts again: at least once.
    std::fs::write(&dying, "").unwrap();
    let restarts = |p: Option<&_>| p.map_or(0, |p| first(p)["restartCount"].as_i64().unwrap_or(0));
    machine.wait("p", "restarted", |p| restarts(p) > 0).await;
    std::fs::remove_file(&dying).unwrap();
    machine.wait("p", "ready after it", ready).await;
    machine.delete("p").await;
    machine.wait("p", "deleted", |p| p.is_none()).await;
    let lines = requests();
    assert!(
        lines.lines().any(|l| l == "http /stop kube-lifecycle/1.36"),
        "{lines}"
    );
    let events = machine.events("p").await.join("\n");
    for event in [
        "Unhealthy Readiness probe failed: HTTP probe failed with statuscode: 503",
        "Unhealthy Liveness probe failed: service unhealthy (responded with \"NOT_SERVING\")",
        "Killing Container c failed liveness probe, will be restarted",
        "LifecycleHTTPFallback request to HTTPS lifecycle hook ",
    ] {
        assert!(events.contains(event), "{event} is not in\n{events}");
    }
    machine.end().await;
}
