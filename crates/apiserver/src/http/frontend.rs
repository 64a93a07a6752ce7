//! The front of the server: connections from the socket over TLS to HTTP/1.1 or HTTP/2, with their limits.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::chain::HandlerChain;
use super::connection::{Connection, Protocol};
use super::connections::{Connections, Permit};
use super::timeouts::{TimeoutStream, Timeouts};
use crate::authn::certificate::PeerCertificate;
use crate::controllers::Controllers;
use crate::endpoint_leases::EndpointReconciler;
use crate::seams::Clock;
use crate::tls::{Tls, is_invalid_server_name};

/// How long requests may continue after the server was stopped.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest header list of a request over HTTP/2, as in Go's servers; HTTP/1.1 takes 400 KiB.
const HEADERS_MAX_BYTES: u32 = 1024 * 1024;
/// Concurrent streams of one HTTP/2 connection, as in kube-apiserver.
const H2_STREAMS: u32 = 250;
/// Streams that a client opened and reset before the server handled them. The connection of a client with more of them is
/// closed (rapid reset, CVE-2023-44487).
const H2_RESETS: usize = 100;
/// The HTTP/2 connection preface.
const PREFACE_BYTES: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

/// Whether an invalid server name (SNI) has been logged.
static INVALID_SERVER_NAME: AtomicBool = AtomicBool::new(false);

/// Serves a connection to its end; after `stop`, requests in flight get some time to finish.
async fn serve_until<C: Future<Output = hyper::Result<()>>>(
    stop: CancellationToken,
    close: CancellationToken,
    unauthenticated_timeout: impl Future<Output = ()>,
    connection: C,
    shut_down: impl FnOnce(Pin<&mut C>),
) -> hyper::Result<()> {
    let mut connection = pin!(connection);
    tokio::select! {
        result = connection.as_mut() => result,
        () = close.cancelled() => Ok(()),
        () = async { tokio::select! { () = stop.cancelled() => {} () = unauthenticated_timeout => {} } } => {
            shut_down(connection.as_mut());
            // Watches do not end by themselves.
            tokio::time::timeout(DRAIN_TIMEOUT / 2, connection).await.unwrap_or(Ok(()))
        }
    }
}

/// Resolves when a client has been connected for `limit` and has not authenticated.
async fn unauthenticated_timeout(permit: Option<Arc<Permit>>, limit: Duration) {
    let Some(permit) = permit else {
        return std::future::pending().await;
    };
    tokio::time::sleep(limit).await;
    if permit.is_authenticated() {
        std::future::pending().await
    }
}

/// Accepts connections, and serves the requests of each.
pub(crate) struct Frontend {
    pub chain: Arc<HandlerChain>,
    /// The connections of all ports together.
    pub connections: Arc<Connections>,
    pub timeouts: Timeouts,
    pub clock: Arc<dyn Clock>,
    /// Withdrawn when a port closes.
    pub endpoints: Arc<EndpointReconciler>,
    pub _controllers: Arc<Controllers>,
}

impl Frontend {
    /// Serves TLS connections until `stop`, then gives requests in flight some time to finish. Connections from addresses that `admits` does
    /// not accept are closed at once.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        tls: Tls,
        admits: Box<dyn Fn(IpAddr) -> bool + Send>,
        stop: CancellationToken,
    ) {
        let acceptor = TlsAcceptor::from(tls.config.clone());
        let connections = TaskTracker::new();
        let connection_limits = self.connections.clone();
        loop {
            let (stream, peer) = tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(e) => {
                        // Most likely no file descriptor is free: other connections will be closed.
                        warn!("cannot accept a connection: {e}");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
            };
            if !admits(peer.ip()) {
                debug!(%peer, "connection rejected: the peer's address is not a pod's");
                continue;
            }
            let permit = match connection_limits.admit(peer.ip()) {
                Ok(permit) => Arc::new(permit),
                Err(e) => {
                    debug!(%peer, "connection rejected: {e}");
                    continue;
                }
            };
            if let Err(e) = stream.set_nodelay(true) {
                debug!(%peer, "cannot set TCP_NODELAY: {e}");
            }
            let (frontend, acceptor, tls, stop) = (self.clone(), acceptor.clone(), tls.clone(), stop.clone());
            connections.spawn(async move {
                let limit = frontend.timeouts.handshake;
                // Boxed, both: a task keeps the size of the largest future that it ever holds.
                let handshake = Box::pin(tokio::time::timeout(limit, acceptor.accept(stream)));
                let stream = match handshake.await {
                    Ok(Ok(stream)) => Box::new(stream),
                    Ok(Err(e)) => {
                        debug!(%peer, "TLS handshake failed: {e}");
                        if is_invalid_server_name(&e) && !INVALID_SERVER_NAME.swap(true, Ordering::Relaxed) {
                            warn!(
                                %peer,
                                "a client sends a server name (SNI) in its TLS handshake that is not a host name, \
                                 such as 127.0.0.1:6443, and cannot be served: have it connect to a host name, or send no \
                                 server name; this is logged once"
                            );
                        }
                        return;
                    }
                    Err(_) => return debug!(%peer, "TLS handshake timed out"),
                };
                let connection = stream.get_ref().1;
                let client = Arc::new(tls.peer(connection, frontend.clock.now()));
                drop(tls);
                if matches!(client.user(frontend.clock.now()), Ok(Some(_))) {
                    permit.authenticate();
                }
                let protocol = match connection.alpn_protocol() {
                    Some(b"h2") => Protocol::Http2,
                    _ => Protocol::Http1,
                };
                frontend
                    .serve_connection(stream, protocol, client, Some((peer, permit)), stop)
                    .await;
            });
        }
        connections.close();
        self.endpoints.withdraw().await;
        if tokio::time::timeout(DRAIN_TIMEOUT, connections.wait())
            .await
            .is_err()
        {
            debug!("connections were still open when the API server stopped");
        }
    }

    /// Serves HTTP over a stream whose client has the certificate of `client`. `remote`: the client's address, and the
    /// connection's permit of the port.
    pub async fn serve_connection(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        protocol: Protocol,
        client: Arc<PeerCertificate>,
        remote: Option<(SocketAddr, Arc<Permit>)>,
        stop: CancellationToken,
    ) {
        let (address, permit) = remote.unzip();
        let timeouts = self.timeouts;
        let (no_write_timeout, close) = (Arc::<AtomicBool>::default(), CancellationToken::new());
        let first = match protocol {
            // The head of the first request has a timeout of its own.
            Protocol::Http1 => 0,
            Protocol::Http2 => PREFACE_BYTES,
        };
        let io = TokioIo::new(TimeoutStream::new(
            stream,
            &timeouts,
            first,
            no_write_timeout.clone(),
        ));
        let connection = Arc::new(Connection {
            client,
            address,
            protocol,
            no_write_timeout,
            close: close.clone(),
            permit: permit.clone(),
        });
        let unauthenticated_timeout = unauthenticated_timeout(permit, timeouts.unauthenticated);
        let service = service_fn(move |request| {
            let response = self.chain.clone().serve(request, connection.clone());
            async move { Ok::<_, Infallible>(response.await) }
        });
        let result = match protocol {
            Protocol::Http1 => {
                let mut builder = http1::Builder::new();
                let builder = builder
                    .timer(TokioTimer::new())
                    .header_read_timeout(timeouts.head);
                let connection = builder.serve_connection(io, service).with_upgrades();
                serve_until(stop, close, unauthenticated_timeout, connection, |c| {
                    c.graceful_shutdown()
                })
                .await
            }
            Protocol::Http2 => {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                let builder = builder
                    .timer(TokioTimer::new())
                    .max_concurrent_streams(H2_STREAMS)
                    .max_pending_accept_reset_streams(H2_RESETS)
                    .max_header_list_size(HEADERS_MAX_BYTES)
                    .keep_alive_interval(timeouts.keep_alive)
                    .keep_alive_timeout(timeouts.keep_alive);
                let connection = builder.serve_connection(io, service);
                serve_until(stop, close, unauthenticated_timeout, connection, |c| {
                    c.graceful_shutdown()
                })
                .await
            }
        };
        if let Err(e) = result {
            debug!(?address, "connection failed: {e}");
        }
    }
}
