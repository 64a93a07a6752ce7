//! An extension API server over TLS on loopback: it serves `things` of `example.com/v1`, and records the requests it gets.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apiserver::authn::certificate::PeerCertificate;
use knarr_apiserver::http::body::{Body, full};
use knarr_apiserver::identity::Identity;
use knarr_apiserver::tls::Tls;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

/// Its objects, and the requests that it got.
pub struct State {
    pub asked: Mutex<Vec<Value>>,
    /// By path.
    pub things: Mutex<BTreeMap<String, Value>>,
    pub events: broadcast::Sender<String>,
    /// It answers every request with 500.
    pub sick: AtomicBool,
}

pub struct Extension {
    pub port: u16,
    /// The CA, in base64.
    pub ca: String,
    pub state: Arc<State>,
    _task: AbortOnDropHandle<()>,
}

impl Extension {
    /// Trusts front proxies by this CA, with certificates that are valid at the time `now`.
    pub async fn start(front_proxy_ca_pem: &str, now: Timestamp, http2: bool) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["api.default.svc".to_string()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        let identity = Identity {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        };
        let mut tls = Tls::new(&identity, front_proxy_ca_pem).unwrap();
        if !http2 {
            tls = tls.http1();
        }
        let acceptor = TlsAcceptor::from(tls.config.clone());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            asked: Mutex::default(),
            things: Mutex::default(),
            events: broadcast::channel(16).0,
            sick: AtomicBool::new(false),
        });
        let served = state.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, state, tls) = (acceptor.clone(), served.clone(), tls.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let connection = stream.get_ref().1;
                    let proxy = match tls.peer(connection, now) {
                        PeerCertificate::Verified { user, .. } => user.name,
                        _ => String::new(),
                    };
                    let is_h2 = connection.alpn_protocol() == Some(b"h2");
                    let service = service_fn(move |request| {
                        let (state, proxy) = (state.clone(), proxy.clone());
                        async move { Ok::<_, Infallible>(answer(&state, &proxy, request).await) }
                    });
                    let io = TokioIo::new(stream);
                    let _ = match is_h2 {
                        true => {
                            http2::Builder::new(TokioExecutor::new())
                                .serve_connection(io, service)
                                .await
                        }
                        false => {
                            http1::Builder::new()
                                .serve_connection(io, service)
                                .with_upgrades()
                                .await
                        }
                    };
                });
            }
        });
        Extension {
            port,
            ca: STANDARD.encode(certificate.pem()),
            state,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// The last request at this path.
    pub fn last(&self, path: &str) -> Value {
        let asked = self.state.asked.lock();
        let mut found = asked.iter().rev().filter(|a| a["path"] == path);
        found.next().cloned().unwrap_or_default()
    }
}

fn typed(content_type: &str, body: &Value) -> Response<Body> {
    let mut response = Response::new(full(body.to_string()));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type.parse().unwrap());
    response
}

fn code(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(full("no"));
    *response.status_mut() = status;
    response
}

const THING: &str = r##"{"$ref": "#/definitions/com.example.v1.Thing"}"##;

fn openapi_v2() -> Value {
    let thing: Value = serde_json::from_str(THING).unwrap();
    let responses = json!({"200": {"description": "OK", "schema": thing}});
    json!({"swagger": "2.0", "info": {"title": "Extension", "version": "1"},
        "paths": {"/apis/example.com/v1/namespaces/{namespace}/things": {"get": {"responses": responses}},
            "/api/v1/pods": {"get": {"responses": responses}}},
        "definitions": {"com.example.v1.Thing": {"type": "object", "description": "a thing"}}})
}

async fn answer(state: &Arc<State>, proxy: &str, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_string();
    let mut headers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in request.headers() {
        let value = value.to_str().unwrap().to_string();
        headers.entry(name.to_string()).or_default().push(value);
    }
    let mut asked = json!({"method": request.method().as_str(), "path": path, "query": request.uri().query(),
        "headers": headers, "proxy": proxy, "version": format!("{:?}", request.version())});
    if state.sick.load(Ordering::Relaxed) {
        state.asked.lock().push(asked);
        return code(StatusCode::INTERNAL_SERVER_ERROR);
    }
    if path.ends_with("/console") {
        state.asked.lock().push(asked);
        return console(request);
    }
    let watches = request.uri().query().is_some_and(|q| q.contains("watch=true"));
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    asked["length"] = body.len().into();
    state.asked.lock().push(asked.clone());
    let root = "/apis/example.com/v1";
    let verbs = json!(["get", "list", "create", "delete", "deletecollection", "watch"]);
    match (head.method.as_str(), path.as_str()) {
        ("GET", "/apis") => typed(
            "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
            &json!({"items": [{"metadata": {"name": "example.com"}, "versions": [{"version": "v1", "resources": [
                {"resource": "things", "scope": "Namespaced", "singularResource": "thing", "verbs": verbs,
                 "responseKind": {"group": "example.com", "version": "v1", "kind": "Thing"}}]}]}]}),
        ),
        ("GET", "/apis/example.com/v1") => typed(
            "application/json",
            &json!({"kind": "APIResourceList", "mine": true}),
        ),
        ("GET", "/openapi/v2") => typed("application/json", &openapi_v2()),
        ("GET", "/openapi/v3") => typed(
            "application/json",
            &json!({"paths": {"apis/example.com/v1": {"serverRelativeURL": "/openapi/v3/apis/example.com/v1?hash=AB"},
                "apis/apps/v1": {"serverRelativeURL": "/openapi/v3/apis/apps/v1?hash=CD"}}}),
        ),
        ("GET", "/openapi/v3/apis/example.com/v1") => typed("application/json", &json!({"openapi": "3.0.0"})),
        ("GET", "/apis/example.com/v1/moved") => {
            let mut moved = code(StatusCode::FOUND);
            moved
                .headers_mut()
                .insert(header::LOCATION, "https://169.254.169.254/".parse().unwrap());
            moved
        }
        ("GET", _) if watches => {
            let events = state.events.subscribe();
            let events = futures::stream::unfold(events, |mut events| async move {
                let event = events.recv().await.ok()?;
                Some((Ok(Frame::data(Bytes::from(event + "\n"))), events))
            });
            let first = Bytes::from("{\"type\":\"ADDED\"}\n");
            let first = futures::stream::once(async move { Ok(Frame::data(first)) });
            let mut response = Response::new(StreamBody::new(first.chain(events)).boxed_unsync());
            response
                .headers_mut()
                .insert(header::CONTENT_TYPE, "application/json".parse().unwrap());
            response
        }
        ("GET", collection) => {
            let things = state.things.lock();
            let prefix = format!("{collection}/");
            let items: Vec<&Value> = things
                .iter()
                .filter(|(path, _)| path.starts_with(&prefix))
                .map(|(_, thing)| thing)
                .collect();
            typed("application/json", &json!({"kind": "ThingList", "items": items}))
        }
        ("DELETE", collection) => {
            let prefix = format!("{collection}/");
            state.things.lock().retain(|path, _| !path.starts_with(&prefix));
            typed(
                "application/json",
                &json!({"kind": "Status", "status": "Success"}),
            )
        }
        _ if path.starts_with(root) => typed("application/json", &asked),
        _ => code(StatusCode::NOT_FOUND),
    }
}

/// Echoes four bytes backwards.
fn console(mut request: Request<Incoming>) -> Response<Body> {
    if !request.headers().contains_key(header::UPGRADE) {
        return code(StatusCode::BAD_REQUEST);
    }
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgraded.await.unwrap());
        let mut buffer = [0; 4];
        stream.read_exact(&mut buffer).await.unwrap();
        buffer.reverse();
        stream.write_all(&buffer).await.unwrap();
    });
    let mut switched = Response::new(
        Full::new(Bytes::new())
            .map_err(|never| match never {})
            .boxed_unsync(),
    );
    *switched.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = switched.headers_mut();
    headers.insert(header::UPGRADE, "websocket".parse().unwrap());
    headers.insert(header::CONNECTION, "Upgrade".parse().unwrap());
    switched
}
