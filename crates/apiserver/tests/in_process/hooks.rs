//! A webhook server over TLS on loopback, for tests.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rcgen::{CertificateParams, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// A webhook server: answers each path by a function, and records the requests it gets.
pub struct WebhookServer {
    pub port: u16,
    pub ca: String,
    pub asked: Arc<Mutex<Vec<Value>>>,
    /// How many connections were made to it.
    pub connections: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for WebhookServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub type Answer = fn(&str, &Value) -> Value;

/// With a self-signed certificate that is (`ca`) or is not a CA's.
pub async fn hooks(answer: Answer, ca: IsCa) -> WebhookServer {
    let key = KeyPair::generate().unwrap();
    let names = vec!["127.0.0.1".to_string(), "hook.default.svc".to_string()];
    let mut params = CertificateParams::new(names).unwrap();
    params.is_ca = ca;
    let certificate = params.self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let requests = asked.clone();
    let connections = Arc::new(AtomicUsize::new(0));
    let accepted = connections.clone();
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            accepted.fetch_add(1, Ordering::SeqCst);
            let (acceptor, requests) = (acceptor.clone(), requests.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let service = hyper::service::service_fn(
                    move |request: http::Request<hyper::body::Incoming>| {
                        let requests = requests.clone();
                        async move {
                            let path = request.uri().path().to_string();
                            let body = request.into_body().collect().await.unwrap().to_bytes();
                            let review: Value = serde_json::from_slice(&body).unwrap();
                            requests.lock().push(review["request"].clone());
                            if path == "/hang" {
                                std::future::pending::<()>().await;
                            }
                            let mut response = answer(&path, &review["request"]);
                            if response.get("uid").is_none() {
                                response["uid"] = review["request"]["uid"].clone();
                            }
                            let answer = json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response});
                            let status = if path == "/missing" { 404 } else { 200 };
                            let body = Full::new(Bytes::from(answer.to_string()));
                            let mut response = http::Response::builder().status(status);
                            if path == "/close" {
                                response = response.header("connection", "close");
                            }
                            Ok::<_, Infallible>(response.body(body).unwrap())
                        }
                    },
                );
                let connection = hyper::server::conn::http1::Builder::new();
                let _ = connection.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    WebhookServer {
        port,
        ca: base64::engine::general_purpose::STANDARD.encode(certificate.pem()),
        asked,
        connections,
        task,
    }
}

/// A webhook of this server for new ConfigMaps, changed by `more`.
pub fn hook(hooks: &WebhookServer, path: &str, more: Value) -> Value {
    let mut hook = json!({"name": "hook.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "timeoutSeconds": 30, "rules": rules(json!(["CREATE"])),
        "clientConfig": {"url": format!("https://127.0.0.1:{}{path}", hooks.port), "caBundle": hooks.ca}});
    knarr_api::patch::merge::apply(&mut hook, &more);
    hook
}

pub fn rules(operations: Value) -> Value {
    json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": operations, "resources": ["configmaps"]}])
}
