//! A server in this process, and HTTP to it over a pipe.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use knarr_apiserver::authn::token_key::KeyFiles;
use knarr_apiserver::http::Protocol;
use knarr_apiserver::seams::{SystemClock, SystemEntropy};
use knarr_apiserver::{Config, ISSUER, Seams, Server, ServiceRange, User};
use knarr_client::{Conn, NodeDialer};
use tokio_util::sync::CancellationToken;

const TOKEN: &str = "replay";
const PIPE_BYTES: usize = 64 * 1024;

struct NoNodes;

#[async_trait]
impl NodeDialer for NoNodes {
    async fn dial(&self, _: &str) -> std::io::Result<Box<dyn Conn>> {
        Err(std::io::ErrorKind::NotFound.into())
    }
}

/// A server configured like the recorded one: service range, issuer, an RSA key and a client of the group `system:masters`.
pub async fn server() -> Arc<Server> {
    let config = Config {
        advertised: "127.0.0.1:6443".into(),
        address: [127, 0, 0, 1].into(),
        port: 6443,
        service_range: ServiceRange::parse("10.97.0.0/16").unwrap(),
        static_tokens: HashMap::from([(TOKEN.to_string(), User::new("admin", ["system:masters"]))]),
        issuer: ISSUER.into(),
        service_account_key: KeyFiles {
            signing: include_str!("../keys/rsa.pem").into(),
            verifying: Vec::new(),
        },
        options: knarr_apiserver::Options::default(),
    };
    let seams = Seams {
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
        nodes: Arc::new(NoNodes),
    };
    let store = knarr_store::open(knarr_store::Config::Memory).await.unwrap();
    Server::new(config, seams, store).await.unwrap()
}

/// A connection; one request at a time. The server may close it after a response; then there is another.
pub struct Client {
    server: Arc<Server>,
    sender: http1::SendRequest<Full<Bytes>>,
}

/// The parts of a response that are compared.
pub struct Response {
    pub status: u16,
    pub content_type: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Client {
    pub async fn connect(server: Arc<Server>) -> Self {
        let sender = connection(server.clone()).await;
        Client { server, sender }
    }

    pub async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &BTreeMap<String, String>,
        body: Option<String>,
    ) -> Result<Response, String> {
        let mut builder = Request::builder().method(method).uri(escaped(path));
        let mut all = BTreeMap::from([
            ("host".to_string(), "127.0.0.1".to_string()),
            ("accept".to_string(), "application/json".to_string()),
            ("authorization".to_string(), format!("Bearer {TOKEN}")),
        ]);
        if body.is_some() {
            all.insert("content-type".into(), "application/json".into());
        }
        all.extend(headers.iter().map(|(k, v)| (k.to_lowercase(), v.clone())));
        for (name, value) in all {
            builder = builder.header(name, value);
        }
        let request = builder
            .body(Full::new(body.unwrap_or_default().into()))
            .map_err(|e| e.to_string())?;
        if self.sender.ready().await.is_err() {
            self.sender = connection(self.server.clone()).await;
        }
        let response = self
            .sender
            .send_request(request)
            .await
            .map_err(|e| e.to_string())?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(|e| e.to_string())?.to_bytes();
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let content_type = head.headers.get(header::CONTENT_TYPE).map(text);
        Ok(Response {
            status: head.status.as_u16(),
            content_type: content_type.unwrap_or_default(),
            headers: head
                .headers
                .iter()
                .map(|(name, value)| (name.as_str().to_string(), text(value)))
                .collect(),
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    }
}

async fn connection(server: Arc<Server>) -> http1::SendRequest<Full<Bytes>> {
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    let stop = CancellationToken::new();
    tokio::spawn(server.serve_connection(far, Protocol::Http1, Arc::default(), stop));
    let (sender, connection) = http1::handshake(TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// A path as it is sent: characters that a URL may not have are escaped, escapes stay.
fn escaped(path: &str) -> String {
    const PLAIN: &[u8] = b"/?&=%,:;+!~*()'@$-._";
    let mut out = String::new();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || PLAIN.contains(&byte) {
            out.push(byte.into());
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
