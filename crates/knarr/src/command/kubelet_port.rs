//! The kubelet's port: TLS on both sides of `client::NodeDialer`.
//!
//! A client is authenticated by a certificate of the client CA or a token (TokenReview); it is authorized by the API server
//! (SubjectAccessReview), as a verb on a subresource of the Node (`nodes/proxy`, `nodes/pods`, …, KEP-2862). A client that
//! is not authenticated gets 401, one that is not authorized 403, on every path. The API server connects only to a port whose
//! certificate the CA of kubelets' serving certificates signed for the address that is dialled (kube-apiserver's
//! `--kubelet-certificate-authority`).
//!
//! The number of connections, and how long a handshake may take, are limited before a client has authenticated.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, Method, StatusCode};
use knarr_api::k8s_openapi::api::core::v1::Node;
use knarr_apiserver::authn::bearer;
use knarr_apiserver::authn::certificate::PeerCertificate;
use knarr_apiserver::authn::delegated::{KubeletAccess, subresources, verb};
use knarr_apiserver::http::connections::{Connections, Limits, Permit};
use knarr_apiserver::identity::Identity;
use knarr_apiserver::tls::Tls;
use knarr_client::{Api, Clock, Conn, NodeDialer, SystemClock, TypedApi};
use knarr_node::server::RequestAuthorizer;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::sync::CancellationToken;

use super::Failure;

/// How long a connection to a kubelet, or its handshake, may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// After a failed accept: most likely no file descriptor is free, and other connections will close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Members are authorized for everything, without a SubjectAccessReview; the API server is one.
const MASTERS: &str = "system:masters";

/// A listening kubelet port.
pub struct KubeletPort {
    listener: TcpListener,
    tls: Tls,
    access: Arc<KubeletAccess<Arc<dyn Api>>>,
    connections: Arc<Connections>,
}

impl KubeletPort {
    /// Listens at `address` and authenticates clients by this CA, if one is known yet. `identity` is the serving certificate.
    pub async fn bind(
        address: SocketAddr,
        node: &str,
        client_ca_pem: Option<&str>,
        identity: &Identity,
        limits: Limits,
        api: Arc<dyn Api>,
    ) -> Result<Self, Failure> {
        let listener = TcpListener::bind(address).await.map_err(|e| {
            Failure::new(format!(
                "cannot listen on {address}: choose another address with --kubelet-listen"
            ))
            .because(e)
        })?;
        let tls = match client_ca_pem {
            Some(pem) => Tls::new(identity, pem),
            None => Tls::without_client_ca(identity),
        };
        let tls = tls.map_err(|e| Failure::new(format!("cannot serve the kubelet's port {address}: {e}")))?;
        Ok(KubeletPort {
            listener,
            tls: tls.http1(),
            access: Arc::new(KubeletAccess::new(node, api)),
            connections: Connections::new(limits),
        })
    }

    /// The TLS settings, whose certificate can be replaced while the port serves.
    pub fn tls(&self) -> Tls {
        self.tls.clone()
    }

    /// Serves until `cancel`.
    pub async fn serve(self, server: knarr_node::server::Server, cancel: CancellationToken) {
        let acceptor = TlsAcceptor::from(self.tls.config.clone());
        loop {
            let (stream, address) = tokio::select! {
                () = cancel.cancelled() => return,
                accepted = self.listener.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(e) => {
                        tracing::warn!(error = %e, "cannot accept a connection on the kubelet's port");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                },
            };
            let permit = match self.connections.admit(address.ip()) {
                Ok(permit) => permit,
                Err(e) => {
                    tracing::debug!(%address, "connection to the kubelet's port rejected: {e}");
                    continue;
                }
            };
            let (acceptor, tls, access, server) = (
                acceptor.clone(),
                self.tls.clone(),
                self.access.clone(),
                server.clone(),
            );
            tokio::spawn(async move {
                match tokio::time::timeout(CONNECT_LIMIT, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => {
                        let peer = tls.peer(stream.get_ref().1, SystemClock.now());
                        if matches!(peer.user(SystemClock.now()), Ok(Some(_))) {
                            permit.authenticate();
                        }
                        let authorizer = PeerAuthorizer {
                            access,
                            peer,
                            address: address.ip().to_canonical(),
                            permit,
                        };
                        server.serve_authorized(stream, &authorizer).await;
                    }
                    Ok(Err(e)) => tracing::debug!(error = %e, "handshake on the kubelet's port failed"),
                    Err(_) => tracing::debug!("handshake on the kubelet's port took too long"),
                }
            });
        }
    }
}

/// Authenticates and authorizes the requests of one connection.
struct PeerAuthorizer {
    access: Arc<KubeletAccess<Arc<dyn Api>>>,
    peer: PeerCertificate,
    address: IpAddr,
    permit: Permit,
}

#[async_trait]
impl RequestAuthorizer for PeerAuthorizer {
    async fn pass(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<(), (StatusCode, String)> {
        let unknown = || (StatusCode::UNAUTHORIZED, "Unauthorized".to_string());
        let user = match self.peer.user(SystemClock.now()) {
            Ok(Some(user)) => user.clone(),
            _ => {
                let token = bearer::token(headers).map_err(|_| unknown())?;
                let token = token.ok_or_else(unknown)?;
                let user = self.access.user(&token, self.address).await?;
                user.ok_or_else(unknown)?
            }
        };
        self.permit.authenticate();
        if user.groups.iter().any(|g| g == MASTERS) || self.access.allows(&user, method, path).await? {
            return Ok(());
        }
        Err((
            StatusCode::FORBIDDEN,
            format!(
                "Forbidden (user={}, verb={}, resource=nodes, subresource(s)=[{}])",
                user.name,
                verb(method),
                subresources(path).join(" ")
            ),
        ))
    }
}

/// Dials the nodes of other processes by the address in their Node object.
pub struct RemoteNodes {
    /// Where Node objects are read; set when the API has started.
    api: OnceLock<Arc<dyn Api>>,
    tls: TlsConnector,
}

impl RemoteNodes {
    /// `identity` is the client certificate; the CA `serving_ca` signs the kubelets' serving certificates.
    pub fn new(identity: &Identity, serving_ca: &CertificateDer<'static>) -> Result<Self, Failure> {
        let tls = knarr_apiserver::tls::connector(Some(identity), Some(serving_ca)).map_err(|e| {
            Failure::new(format!(
                "the API server's client certificate for kubelets is not usable: {e}"
            ))
        })?;
        Ok(RemoteNodes {
            api: OnceLock::new(),
            tls,
        })
    }

    /// Sets the API in which Node objects are read; until then no node is dialled.
    pub fn set_api(&self, api: Arc<dyn Api>) {
        // Only the first counts; there is one API.
        let _ = self.api.set(api);
    }

    async fn address(&self, node: &str) -> io::Result<(IpAddr, u16)> {
        let not_found = |why: &str| io::Error::new(io::ErrorKind::NotFound, format!("node {node}: {why}"));
        let api = self
            .api
            .get()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "the API is still starting"))?;
        let found = api
            .get_as::<Node>("", node)
            .await
            .map_err(|e| not_found(e.message()))?;
        let status = found.status.as_ref();
        let addresses = status.and_then(|s| s.addresses.as_ref());
        let mut internal = addresses
            .into_iter()
            .flatten()
            .filter(|a| a.type_ == "InternalIP");
        let internal = internal.find_map(|a| a.address.parse().ok());
        let endpoints = status
            .and_then(|s| s.daemon_endpoints.as_ref())
            .and_then(|d| d.kubelet_endpoint.as_ref());
        let port = endpoints
            .and_then(|e| u16::try_from(e.port).ok())
            .filter(|p| *p > 0);
        match (internal, port) {
            (Some(address), Some(port)) => Ok((address, port)),
            _ => Err(not_found("its status has no InternalIP or kubelet port")),
        }
    }
}

#[async_trait]
impl NodeDialer for RemoteNodes {
    async fn dial(&self, node: &str) -> io::Result<Box<dyn Conn>> {
        let (address, port) = self.address(node).await?;
        let name = ServerName::from(address);
        let connect = async {
            let stream = TcpStream::connect((address, port)).await?;
            stream.set_nodelay(true)?;
            self.tls.connect(name, stream).await
        };
        let in_context =
            |e: io::Error| io::Error::new(e.kind(), format!("node {node} at {address}:{port}: {e}"));
        let stream = tokio::time::timeout(CONNECT_LIMIT, connect)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))
            .flatten()
            .map_err(in_context)?;
        Ok(Box::new(stream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_apiserver::User;
    use knarr_apiserver::pki::{Pki, self_signed};
    use knarr_apiserver::seams::SystemEntropy;
    use knarr_apiserver::{Options, Seams, Server, ServiceRange};
    use knarr_node::runtime::fake::FakeRuntime;
    use knarr_node::server::RuntimeContainers;
    use std::collections::HashMap;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    struct NoNodes;

    #[async_trait]
    impl NodeDialer for NoNodes {
        async fn dial(&self, _: &str) -> io::Result<Box<dyn Conn>> {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    /// The response to a GET with these credentials; the connection is closed after it.
    async fn get(
        address: SocketAddr,
        certificate: Option<&Identity>,
        token: &str,
        path: &str,
    ) -> (u16, String) {
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("n1").unwrap();
        let mut stream = knarr_apiserver::tls::connector(certificate, None)
            .unwrap()
            .connect(name, stream)
            .await
            .unwrap();
        let credential = match token {
            "" => String::new(),
            token => format!("Authorization: Bearer {token}\r\n"),
        };
        let request = format!("GET {path} HTTP/1.1\r\nHost: n1\r\n{credential}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = Vec::new();
        // The server may close without a TLS close_notify.
        let _ = stream.read_to_end(&mut response).await;
        let response = String::from_utf8_lossy(&response).into_owned();
        let code = response
            .split(' ')
            .nth(1)
            .and_then(|c| c.parse().ok())
            .unwrap_or(0);
        (code, response)
    }

    #[tokio::test]
    async fn the_kubelets_port_serves_authorized_clients_only() {
        let directory = tempfile::tempdir().unwrap();
        let now = SystemClock.now();
        let pki = Pki::open(directory.path(), now).unwrap();
        let user = |name: &str, groups: &[&str]| User::new(name, groups.iter().copied());
        let config = knarr_apiserver::Config {
            advertised: "127.0.0.1:6443".into(),
            address: [127, 0, 0, 1].into(),
            port: 6443,
            service_range: ServiceRange::parse("10.96.0.0/16").unwrap(),
            static_tokens: HashMap::from([
                ("admin".to_string(), user("admin", &["system:masters"])),
                ("reader".to_string(), user("reader", &[])),
                ("unprivileged".to_string(), user("unprivileged", &[])),
            ]),
            issuer: knarr_apiserver::ISSUER.into(),
            service_account_key: pki.service_account_key().unwrap(),
            options: Options::default(),
        };
        let seams = Seams {
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
            nodes: Arc::new(NoNodes),
        };
        let store = knarr_store::open(knarr_store::Config::Memory).await.unwrap();
        let server = Server::new(config, seams, store).await.unwrap();
        let api = server.api_as("system:node:n1", ["system:nodes", "system:authenticated"]);
        let admin_api = server.api_as("admin", ["system:masters"]);
        for (kind, document) in [
            (
                &knarr_api::registry::CLUSTER_ROLE,
                r#"{"metadata":{"name":"pods"},"rules":[{"apiGroups":[""],"resources":["nodes/pods"],"verbs":["get"]}]}"#,
            ),
            (
                &knarr_api::registry::CLUSTER_ROLE_BINDING,
                r#"{"metadata":{"name":"pods"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"pods"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"reader"}]}"#,
            ),
        ] {
            let object = kind.ops.decode(document.as_bytes()).unwrap().object;
            admin_api.create(kind, object).await.unwrap();
        }
        let port = KubeletPort::bind(
            "127.0.0.1:0".parse().unwrap(),
            "n1",
            Some(pki.client_ca_pem()),
            &self_signed("n1").unwrap(),
            Limits::default(),
            api,
        )
        .await
        .unwrap();
        let address = port.listener.local_addr().unwrap();
        let runtime = Arc::new(FakeRuntime::new(Arc::new(SystemClock), &[]));
        let pods = Arc::new(knarr_client::Store::new(&knarr_api::registry::POD, &[]));
        let clock = Arc::new(|| SystemClock.now());
        let node = knarr_node::server::Server::new(pods, Arc::new(RuntimeContainers(runtime)), clock);
        let cancel = CancellationToken::new();
        let _stop = cancel.clone().drop_guard();
        tokio::spawn(port.serve(node, cancel));

        let admin = pki.admin().unwrap();
        let kubelet = pki.node("n2").unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let foreign = Pki::open(elsewhere.path(), now).unwrap().admin().unwrap();
        // Made two years ago by the same CA.
        let past = tempfile::tempdir().unwrap();
        for file in ["client-ca.crt", "client-ca.key"] {
            std::fs::copy(pki.directory().join(file), past.path().join(file)).unwrap();
        }
        let long_ago = now - knarr_api::k8s_openapi::jiff::SignedDuration::from_hours(2 * 365 * 24);
        let expired = Pki::open(past.path(), long_ago).unwrap().admin().unwrap();
        let paths = [
            "/",
            "/healthz",
            "/pods",
            "/metrics",
            "/metrics/cadvisor",
            "/stats/summary",
            "/logs/",
            "/configz",
            "/runningpods/",
            "/containerLogs/a/p/c",
            "/exec/a/p/c",
            "/attach/a/p/c",
            "/portForward/a/p",
            "/run/a/p/c",
            "/debug/pprof/",
            "/nothing",
        ];
        for path in paths {
            for (what, certificate, token, expected) in [
                ("nothing", None, "", 401),
                ("a wrong token", None, "wrong", 401),
                ("a foreign certificate", Some(&foreign), "", 401),
                ("an expired certificate", Some(&expired), "", 401),
                ("another node's certificate", Some(&kubelet), "", 403),
                ("a token without permissions", None, "unprivileged", 403),
            ] {
                let (code, response) = get(address, certificate, token, path).await;
                assert_eq!(code, expected, "{path} with {what}: {response}");
            }
        }
        for (certificate, token, path, expected) in [
            (Some(&admin), "", "/pods", 200),
            (None, "admin", "/healthz", 200),
            (None, "reader", "/pods", 200),
            (None, "reader", "/healthz", 403),
            (None, "admin", "/nothing", 404),
        ] {
            let (code, response) = get(address, certificate, token, path).await;
            assert_eq!(code, expected, "{path} with {token:?}: {response}");
        }
    }
}
