//! The client for one extension API server: TLS with the front proxy's certificate over pooled connections. The server's
//! certificate must be valid for `<service>.<namespace>.svc`, whichever endpoint is dialed.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::uri::InvalidUri;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use knarr_client::{Conn, NodeDialer};
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio_rustls::client::TlsStream;

use super::spec::Spec;
use crate::http::body::Body;
use crate::identity::Identity;
use crate::tls::pool::{ConnectError, Connector, Dial, innermost_error};
use crate::tls::{TlsError, client};

/// The timeout of a connection with its TLS handshake.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Idle connections that are kept for each endpoint, and for how long.
const IDLE_MAX: usize = 32;
const IDLE_LIMIT: Duration = Duration::from_secs(90);
/// The interval of HTTP/2 pings on a connection without traffic, and how long their acknowledgement may take.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_LIMIT: Duration = Duration::from_secs(15);
/// The largest response headers over HTTP/2.
const HEADERS_MAX_BYTES: u32 = 1024 * 1024;

/// Why there is no client for an extension API server.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum TransportError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("{name:?} is not a host name: {source}")]
    Host {
        name: String,
        source: Arc<InvalidDnsNameError>,
    },
}

/// Why an extension API server sends no response, as Go prints it.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("parse {uri:?}: {source}")]
    Uri { uri: String, source: InvalidUri },
    #[error("{}", innermost_error(.0))]
    Client(#[from] legacy::Error),
    #[error("context deadline exceeded")]
    Timeout,
}

/// The client for one extension API server.
pub(super) struct Transport {
    client: Client<Connector<Arc<dyn NodeDialer>>, Body>,
    /// For connections that are upgraded to another protocol: HTTP/1.1 only, not pooled.
    http1: Connector<Arc<dyn NodeDialer>>,
}

impl Transport {
    pub fn new(
        spec: &Spec,
        identity: Option<&Identity>,
        nodes: &Arc<dyn NodeDialer>,
    ) -> Result<Self, TransportError> {
        let trusted = match (spec.insecure, spec.ca_bundle.as_slice()) {
            (true, _) => None,
            (false, bundle) => Some(client::ca_certificates(bundle)?),
        };
        let name = format!("{}.{}.svc", spec.service, spec.namespace);
        let name = ServerName::try_from(name.clone()).map_err(|source| TransportError::Host {
            name,
            source: source.into(),
        })?;
        let connector = |protocols: &[&[u8]]| -> Result<_, TlsError> {
            Ok(Connector {
                dialer: nodes.clone(),
                tls: client::config_with_protocols(trusted.clone(), identity, protocols)?,
                server_name: name.clone(),
                timeout: Some(CONNECT_LIMIT),
            })
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE_MAX)
            .pool_idle_timeout(IDLE_LIMIT)
            .http2_keep_alive_interval(PING_EVERY)
            .http2_keep_alive_timeout(PING_LIMIT)
            .http2_max_header_list_size(HEADERS_MAX_BYTES)
            .build(connector(&[b"h2", b"http/1.1"])?);
        Ok(Transport {
            client,
            http1: connector(&[b"http/1.1"])?,
        })
    }

    /// Sends a request, whose URI has only path and query, to this endpoint.
    pub async fn send(
        &self,
        to: SocketAddr,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, SendError> {
        let path = request.uri().path_and_query().map_or("/", |p| p.as_str());
        let uri = format!("https://{to}{path}");
        *request.uri_mut() = uri.parse().map_err(|source| SendError::Uri { uri, source })?;
        Ok(self.client.request(request).await?)
    }

    /// Opens an HTTP/1.1 connection that is not pooled, for an upgrade to another protocol.
    pub async fn dial(&self, to: SocketAddr) -> Result<TlsStream<Box<dyn Conn>>, ConnectError> {
        self.http1.connect(to.to_string()).await
    }
}

impl Dial for Arc<dyn NodeDialer> {
    type Stream = Box<dyn Conn>;

    fn dial(&self, address: String) -> BoxFuture<'static, io::Result<Box<dyn Conn>>> {
        let nodes = self.clone();
        Box::pin(async move {
            let address = address.parse().map_err(io::Error::other)?;
            nodes.dial_address(address).await
        })
    }
}
