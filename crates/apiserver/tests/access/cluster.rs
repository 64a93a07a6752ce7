//! The server under test, and clients with the credentials that a test needs.

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU16, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apiserver::authn::token_key::KeyFiles;
use knarr_apiserver::identity::Identity;
use knarr_apiserver::pki::Pki;
use knarr_apiserver::seams::{Clock, SystemEntropy};
use knarr_apiserver::tls::Tls;
use knarr_apiserver::{Config, ISSUER, Options, Seams, Server, ServiceRange, User};
use knarr_client::{Conn, NodeDialer};
use knarr_store::Store;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The administrator's token.
pub const ADMIN: &str = "admin-token";

/// When the cluster and its keys are created.
const START: i64 = 1_800_000_000;

/// The timeout for everything that must happen.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// A clock that tests advance.
pub struct TestClock(AtomicI64);

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.0.load(Ordering::Relaxed)).unwrap()
    }
}

/// Resolves every address to loopback, and to the only kubelet once its port is known.
#[derive(Default)]
struct Loopback {
    kubelet: AtomicU16,
}

#[async_trait]
impl NodeDialer for Loopback {
    async fn dial(&self, node: &str) -> std::io::Result<Box<dyn Conn>> {
        match self.kubelet.load(Ordering::Relaxed) {
            0 => Err(std::io::ErrorKind::NotFound.into()),
            _ if node != "n1" => Err(std::io::ErrorKind::NotFound.into()),
            port => self.dial_address((Ipv4Addr::LOCALHOST, port).into()).await,
        }
    }

    async fn dial_address(&self, address: SocketAddr) -> std::io::Result<Box<dyn Conn>> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, address.port())).await?;
        Ok(Box::new(stream))
    }
}

pub struct Cluster {
    /// The API without HTTP in between.
    pub server: Arc<Server>,
    pub store: Arc<dyn Store>,
    pub pki: Pki,
    pub address: SocketAddr,
    clock: Arc<TestClock>,
    nodes: Arc<Loopback>,
    _directory: tempfile::TempDir,
    _stop: DropGuard,
}

/// A client's credentials and headers.
#[derive(Clone, Default)]
pub struct Credentials {
    pub token: Option<String>,
    pub certificate: Option<Identity>,
    pub headers: Vec<(&'static str, String)>,
}

impl Credentials {
    pub fn token(token: impl Into<String>) -> Self {
        Credentials {
            token: Some(token.into()),
            ..Credentials::default()
        }
    }

    pub fn certificate(identity: Identity) -> Self {
        Credentials {
            certificate: Some(identity),
            ..Credentials::default()
        }
    }

    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// A response; the body is null unless it is JSON.
#[derive(Debug)]
pub struct TestResponse {
    pub code: u16,
    pub headers: HeaderMap,
    pub text: String,
    pub body: Value,
}

impl TestResponse {
    #[track_caller]
    pub fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", self.text);
        self.body
    }

    pub fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or("")
    }
}

fn config(static_tokens: HashMap<String, User>, service_account_key: KeyFiles, options: Options) -> Config {
    Config {
        advertised: "127.0.0.1:6443".into(),
        address: [192, 0, 2, 1].into(),
        port: 6443,
        service_range: ServiceRange::parse("10.96.0.0/16").unwrap(),
        static_tokens,
        issuer: ISSUER.into(),
        service_account_key,
        options,
    }
}

impl Cluster {
    pub async fn start() -> Self {
        Self::with(|_, _| {}).await
    }

    /// With other options, or other keys.
    pub async fn with(change: impl FnOnce(&mut Options, &mut KeyFiles)) -> Self {
        let store = knarr_store::open(knarr_store::Config::Memory).await.unwrap();
        Self::over(store, change).await
    }

    /// Another server over the same store.
    pub async fn next(&self, change: impl FnOnce(&mut Options)) -> Self {
        Self::over(self.store.clone(), |options, _| change(options)).await
    }

    async fn over(store: Arc<dyn Store>, change: impl FnOnce(&mut Options, &mut KeyFiles)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock = Arc::new(TestClock(AtomicI64::new(START)));
        let pki = Pki::open(directory.path(), clock.now()).unwrap();
        let mut options = Options {
            front_proxy: Some(pki.front_proxy_client().unwrap()),
            ..Options::default()
        };
        let mut keys = pki.service_account_key().unwrap();
        change(&mut options, &mut keys);
        let user = |name: &str, groups: &[&str]| User::new(name, groups.iter().copied());
        let tokens = HashMap::from([
            (ADMIN.to_string(), user("admin", &["system:masters"])),
            ("ann-token".to_string(), user("ann", &["dev"])),
            ("bob-token".to_string(), user("bob", &[])),
            ("n1-token".to_string(), user("system:node:n1", &["system:nodes"])),
        ]);
        let config = config(tokens, keys, options);
        let nodes = Arc::new(Loopback::default());
        let seams = Seams {
            clock: clock.clone(),
            entropy: Arc::new(SystemEntropy),
            nodes: nodes.clone(),
        };
        let server = Server::new(config, seams, store.clone()).await.unwrap();
        let place = "https://192.0.2.1:6443";
        server
            .let_nodes_join(place, pki.ca_pem(), BTreeMap::new())
            .await
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let identity = pki.server(&["localhost".to_string()]).unwrap();
        let tls = Tls::new(&identity, pki.client_ca_pem()).unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(server.clone().serve(listener, tls, stop.clone()));
        Cluster {
            server,
            store,
            pki,
            address,
            clock,
            nodes,
            _directory: directory,
            _stop: stop.drop_guard(),
        }
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// From now on node `n1` has a kubelet.
    pub fn kubelet_at(&self, port: u16) {
        self.nodes.kubelet.store(port, Ordering::Relaxed);
    }

    pub fn pass(&self, seconds: i64) {
        self.clock.0.fetch_add(seconds, Ordering::Relaxed);
    }

    /// A TLS connection that offers these protocols, on which nothing has been sent.
    pub async fn tls(
        &self,
        credentials: &Credentials,
        protocols: &[&[u8]],
        stream: TcpStream,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(certificates(self.pki.ca_pem()).remove(0)).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        // The server's certificate is valid by the test's clock, which is not the host's.
        let at = Arc::new(At(Timestamp::from_second(START).unwrap()));
        let config = ClientConfig::builder_with_details(provider, at)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match &credentials.certificate {
            None => config.with_no_client_auth(),
            Some(identity) => config
                .with_client_auth_cert(
                    certificates(&identity.certificate_pem),
                    PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).unwrap(),
                )
                .unwrap(),
        };
        config.alpn_protocols = protocols.iter().map(|p| p.to_vec()).collect();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// A connection with these credentials.
    pub async fn connect(&self, credentials: &Credentials) -> std::io::Result<Client> {
        let stream = TcpStream::connect(self.address).await?;
        let stream = self.tls(credentials, &[], stream).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(std::io::Error::other)?;
        tokio::spawn(connection.with_upgrades());
        Ok(Client {
            sender,
            credentials: credentials.clone(),
        })
    }

    /// One request over a connection of its own.
    pub async fn ask(
        &self,
        credentials: &Credentials,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> TestResponse {
        self.connect(credentials)
            .await
            .unwrap()
            .send(method, path, body)
            .await
    }

    /// As administrator.
    pub async fn admin(&self, method: &str, path: &str, body: Option<Value>) -> TestResponse {
        self.ask(&Credentials::token(ADMIN), method, path, body).await
    }

    pub async fn create(&self, path: &str, body: Value) -> Value {
        self.admin("POST", path, Some(body)).await.expect(201)
    }
}

#[derive(Debug)]
struct At(Timestamp);

impl rustls::time_provider::TimeProvider for At {
    fn current_time(&self) -> Option<rustls::pki_types::UnixTime> {
        let seconds = u64::try_from(self.0.as_second()).ok()?;
        let since = std::time::Duration::from_secs(seconds);
        Some(rustls::pki_types::UnixTime::since_unix_epoch(since))
    }
}

pub fn certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .unwrap()
}

pub struct Client {
    sender: http1::SendRequest<Full<Bytes>>,
    credentials: Credentials,
}

impl Client {
    /// Requests a WebSocket; the response's status, and the stream if it was upgraded.
    pub async fn upgrade(&mut self, path: &str) -> (http::StatusCode, Option<Upgraded>) {
        let token = self.credentials.token.clone().unwrap_or_default();
        let request = Request::builder()
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .body(Full::default())
            .unwrap();
        self.sender.ready().await.unwrap();
        let mut answer = self.sender.send_request(request).await.unwrap();
        let upgraded = match answer.status() {
            http::StatusCode::SWITCHING_PROTOCOLS => hyper::upgrade::on(&mut answer).await.ok(),
            _ => None,
        };
        (answer.status(), upgraded)
    }

    pub async fn send(&mut self, method: &str, path: &str, body: Option<Value>) -> TestResponse {
        let body = body.map(|body| Bytes::from(body.to_string()));
        self.send_bytes(method, path, body).await
    }

    /// The events of a watch, until there are enough. The connection cannot be used afterwards.
    pub async fn events(mut self, path: &str, enough: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let request = self.request("GET", path, None);
        self.sender.ready().await.unwrap();
        let mut body = self.sender.send_request(request).await.unwrap().into_body();
        let (mut events, mut line) = (Vec::new(), Vec::new());
        while !enough(&events) {
            let waited = tokio::time::timeout(PATIENCE, body.frame()).await;
            let frame = waited.unwrap_or_else(|_| panic!("{path}: no more than {events:?}"));
            let frame = frame.unwrap_or_else(|| panic!("{path}: ended after {events:?}"));
            for byte in frame.unwrap().into_data().unwrap() {
                match byte {
                    b'\n' => events.push(serde_json::from_slice(&std::mem::take(&mut line)).unwrap()),
                    byte => line.push(byte),
                }
            }
        }
        events
    }

    /// The code of a response, and the message of an error. A success is not read, because a watch does not end; the connection can be used
    /// again only if all was read.
    pub async fn begin(
        mut self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> (Option<Self>, (u16, String)) {
        let body = body.map(|body| Bytes::from(body.to_string()));
        let request = self.request(method, path, body);
        self.sender.ready().await.unwrap();
        let (head, body) = self.sender.send_request(request).await.unwrap().into_parts();
        let code = head.status.as_u16();
        if !head.status.is_success() || head.headers.contains_key(header::CONTENT_LENGTH) {
            let bytes = body.collect().await.unwrap().to_bytes();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            return (Some(self), (code, text));
        }
        (None, (code, String::new()))
    }

    fn request(&self, method: &str, path: &str, body: Option<Bytes>) -> Request<Full<Bytes>> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost");
        let credentials = |wanted: &str| self.credentials.headers.iter().any(|(name, _)| *name == wanted);
        if !credentials("accept") {
            request = request.header(header::ACCEPT, "application/json");
        }
        if let Some(token) = &self.credentials.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if body.is_some() && !credentials("content-type") {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        for (name, value) in &self.credentials.headers {
            request = request.header(*name, value);
        }
        request.body(Full::new(body.unwrap_or_default())).unwrap()
    }

    /// Sends any bytes, as JSON unless the credentials' headers say otherwise.
    pub async fn send_bytes(&mut self, method: &str, path: &str, body: Option<Bytes>) -> TestResponse {
        let request = self.request(method, path, body);
        self.sender.ready().await.unwrap();
        let (head, body) = self.sender.send_request(request).await.unwrap().into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        TestResponse {
            code: head.status.as_u16(),
            headers: head.headers,
            body: serde_json::from_str(&text).unwrap_or_default(),
            text,
        }
    }
}

/// Creates a ClusterRole with these rules and its binding to `user`, both called `name`.
pub async fn grant(cluster: &Cluster, name: &str, user: &str, rules: Value) {
    let group = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({"metadata": {"name": name}, "rules": rules});
    cluster.create(&format!("{group}/clusterroles"), role).await;
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    cluster
        .create(&format!("{group}/clusterrolebindings"), binding)
        .await;
}
