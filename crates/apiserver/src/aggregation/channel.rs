//! Connections to one extension API server: TLS with the front proxy's certificate, kept for the next request; its
//! certificate must be for `<service>.<namespace>.svc`, whichever endpoint is dialed.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use knarr_client::{Conn, NodeDialer};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::Service;

use super::backend::Spec;
use crate::admission::extension::{dialled, innermost};
use crate::http::body::Body;
use crate::pki::Identity;
use crate::tls::link::Link;
use crate::tls::outgoing;

/// For a connection and its TLS handshake.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Connections that are kept for each endpoint, and for how long.
const IDLE_MAX: usize = 32;
const IDLE_LIMIT: Duration = Duration::from_secs(90);
/// A silent HTTP/2 server is asked for a sign of life so often, and given up when it gives none for the second time.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_LIMIT: Duration = Duration::from_secs(15);
/// Largest head of an answer over HTTP/2.
const HEADERS_MAX_BYTES: u32 = 1024 * 1024;

/// See the module.
pub(super) struct Channel {
    client: Client<Connector, Body>,
    connector: Connector,
}

impl Channel {
    pub fn new(
        spec: &Spec,
        identity: Option<&Identity>,
        nodes: &Arc<dyn NodeDialer>,
    ) -> Result<Self, String> {
        let trusted = match (spec.insecure, spec.ca_bundle.as_slice()) {
            (true, _) => None,
            (false, bundle) => Some(outgoing::authorities(bundle)?),
        };
        let name = format!("{}.{}.svc", spec.service, spec.namespace);
        let name =
            ServerName::try_from(name.clone()).map_err(|e| format!("{name:?} is no host name: {e}"))?;
        let config = |protocols: &[&[u8]]| outgoing::speaking(trusted.clone(), identity, protocols);
        let connector = Connector {
            nodes: nodes.clone(),
            any: config(&[b"h2", b"http/1.1"])?,
            http1: config(&[b"http/1.1"])?,
            name,
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE_MAX)
            .pool_idle_timeout(IDLE_LIMIT)
            .http2_keep_alive_interval(PING_EVERY)
            .http2_keep_alive_timeout(PING_LIMIT)
            .http2_max_header_list_size(HEADERS_MAX_BYTES)
            .build(connector.clone());
        Ok(Channel { client, connector })
    }

    /// One request to this endpoint, whose URI has its path and query only; or why it was not answered, as Go says it.
    pub async fn send(
        &self,
        to: SocketAddr,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, String> {
        let path = request.uri().path_and_query().map_or("/", |p| p.as_str());
        let uri = format!("https://{to}{path}");
        *request.uri_mut() = uri.parse().map_err(|e| format!("parse {uri:?}: {e}"))?;
        self.client.request(request).await.map_err(|e| innermost(&e))
    }

    /// A connection of its own over HTTP/1.1, which can become another protocol's.
    pub async fn dial(&self, to: SocketAddr) -> Result<TlsStream<Box<dyn Conn>>, String> {
        let stream = self.connector.connect(to, &self.connector.http1).await;
        stream.map_err(|e| e.to_string())
    }
}

#[derive(Clone)]
struct Connector {
    nodes: Arc<dyn NodeDialer>,
    any: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("dial tcp {0}: connect: {why}", why = dialled(.1))]
    Dial(SocketAddr, io::Error),
    #[error("dial tcp {0}: i/o timeout")]
    Late(SocketAddr),
    #[error("tls: failed to verify certificate: {0}")]
    Tls(io::Error),
    #[error("{0} is no address of an endpoint")]
    Address(Uri),
}

impl Connector {
    async fn connect(
        &self,
        to: SocketAddr,
        config: &Arc<ClientConfig>,
    ) -> Result<TlsStream<Box<dyn Conn>>, ConnectError> {
        let connecting = async {
            let stream = self.nodes.dial_address(to).await;
            let stream = stream.map_err(|e| ConnectError::Dial(to, e))?;
            let tls = TlsConnector::from(config.clone());
            tls.connect(self.name.clone(), stream)
                .await
                .map_err(ConnectError::Tls)
        };
        timeout(CONNECT_LIMIT, connecting)
            .await
            .unwrap_or(Err(ConnectError::Late(to)))
    }
}

impl Service<Uri> for Connector {
    type Response = Link<Box<dyn Conn>>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let address = uri.authority().and_then(|a| a.as_str().parse().ok());
            let address = address.ok_or(ConnectError::Address(uri))?;
            let stream = connector.connect(address, &connector.any).await?;
            Ok(Link::new(stream))
        })
    }
}
