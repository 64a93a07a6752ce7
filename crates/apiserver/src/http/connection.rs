//! Connections: from the socket over TLS to HTTP/1.1 or HTTP/2, with their limits.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Response;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::body::Body;
use super::connections::Permit;
use super::patience::{Patience, Patient, looked_after};
use crate::authn::certificate::Peer;
use crate::request::RequestInfo;
use crate::server::Server;
use crate::tls::{Tls, is_invalid_server_name};

/// How long requests may go on after the server was told to stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest head of a request over HTTP/2, as Go's servers take; HTTP/1.1 takes 400 KiB.
const HEADERS_MAX_BYTES: u32 = 1024 * 1024;
/// Streams at once on one HTTP/2 connection, as kube-apiserver allows.
const H2_STREAMS: u32 = 250;
/// Streams that a client opened and closed again before the server looked at them. Whoever has more of them at once
/// is sent away (rapid reset, CVE-2023-44487).
const H2_RESETS: usize = 100;
/// What an HTTP/2 client says first.
const PREFACE_BYTES: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

/// What a connection speaks, as was agreed in the TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    Http2,
}

/// Whether a client that named the server by something that is no host name was logged.
static INVALID_SERVER_NAME: AtomicBool = AtomicBool::new(false);

/// What requests know of the connection they came over.
pub(super) struct Connection {
    /// Who is there, as far as certificates say.
    pub client: Arc<Peer>,
    pub address: Option<SocketAddr>,
    protocol: Protocol,
    /// Whether it may be read as slowly as its reader likes.
    unhurried: Arc<AtomicBool>,
    /// Ends the connection at once.
    gives_up: CancellationToken,
    /// Its place among the port's connections; none where it came by no port.
    permit: Option<Arc<Permit>>,
}

impl Connection {
    /// Its client has shown a credential that holds.
    pub fn authenticated(&self) {
        if let Some(permit) = &self.permit {
            permit.authenticate();
        }
    }

    /// It carries a stream, whose reader has all the time he wants. Over HTTP/2 it may only read its own stream slowly.
    pub fn streams(&self) {
        if self.protocol == Protocol::Http1 {
            self.unhurried.store(true, Ordering::Relaxed);
        }
    }

    /// Over HTTP/1.1 the stream itself tells who does not read.
    pub fn looked_after(
        &self,
        response: Response<Body>,
        info: &RequestInfo,
        patience: &Patience,
    ) -> Response<Body> {
        let stream = info.is_long_running() && info.verb != "watch";
        if self.protocol == Protocol::Http1 || stream {
            return response;
        }
        response.map(|body| looked_after(body, patience.answer, &self.gives_up))
    }
}

/// Runs a connection to its end; once `stop` is said, what is under way gets a moment.
async fn until<C: Future<Output = hyper::Result<()>>>(
    stop: CancellationToken,
    gives_up: CancellationToken,
    overstays: impl Future<Output = ()>,
    connection: C,
    shut_down: impl FnOnce(Pin<&mut C>),
) -> hyper::Result<()> {
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => ended,
        () = gives_up.cancelled() => Ok(()),
        () = async { tokio::select! { () = stop.cancelled() => {} () = overstays => {} } } => {
            shut_down(connection.as_mut());
            // Watches do not end by themselves.
            tokio::time::timeout(DRAIN_TIMEOUT / 2, connection).await.unwrap_or(Ok(()))
        }
    }
}

/// Resolves when a client has had a connection for so long and has not authenticated.
async fn overstays(permit: Option<Arc<Permit>>, limit: Duration) {
    let Some(permit) = permit else {
        return std::future::pending().await;
    };
    tokio::time::sleep(limit).await;
    if permit.is_authenticated() {
        std::future::pending().await
    }
}

impl Server {
    /// Serves TLS connections until `stop`, then gives what runs a moment to end.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, tls: Tls, stop: CancellationToken) {
        self.serve_some(listener, tls, |_| true, stop).await;
    }

    /// The same for those clients only whose addresses are admitted; connections of others are closed at once.
    pub async fn serve_some(
        self: Arc<Self>,
        listener: TcpListener,
        tls: Tls,
        admits: impl Fn(IpAddr) -> bool,
        stop: CancellationToken,
    ) {
        let acceptor = TlsAcceptor::from(tls.config.clone());
        let connections = TaskTracker::new();
        let places = self.connections.clone();
        loop {
            let (stream, peer) = tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(e) => {
                        // Out of file descriptors, most likely: others will end.
                        warn!("cannot accept a connection: {e}");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
            };
            if !admits(peer.ip()) {
                debug!(%peer, "connection rejected: not from a pod");
                continue;
            }
            let permit = match places.admit(peer.ip()) {
                Ok(permit) => Arc::new(permit),
                Err(e) => {
                    debug!(%peer, "connection rejected: {e}");
                    continue;
                }
            };
            if let Err(e) = stream.set_nodelay(true) {
                debug!(%peer, "cannot set TCP_NODELAY: {e}");
            }
            let (server, acceptor, tls, stop) = (self.clone(), acceptor.clone(), tls.clone(), stop.clone());
            connections.spawn(async move {
                let limit = server.config.options.patience.handshake;
                // Boxed, both: a task is as large as the largest of what it ever holds, as long as it lives.
                let handshake = Box::pin(tokio::time::timeout(limit, acceptor.accept(stream)));
                let stream = match handshake.await {
                    Ok(Ok(stream)) => Box::new(stream),
                    Ok(Err(e)) => {
                        debug!(%peer, "TLS handshake failed: {e}");
                        if is_invalid_server_name(&e) && !INVALID_SERVER_NAME.swap(true, Ordering::Relaxed) {
                            warn!(
                                %peer,
                                "a client names this server by something that is no host name in its TLS handshake (SNI), \
                                 such as 127.0.0.1:6443, and cannot be served: have it connect to a host name, or send no \
                                 server name; this is logged once"
                            );
                        }
                        return;
                    }
                    Err(_) => return debug!(%peer, "TLS handshake took too long"),
                };
                let connection = stream.get_ref().1;
                let client = Arc::new(tls.peer(connection, server.clock.now()));
                drop(tls);
                if matches!(client.user(server.clock.now()), Ok(Some(_))) {
                    permit.authenticate();
                }
                let protocol = match connection.alpn_protocol() {
                    Some(b"h2") => Protocol::Http2,
                    _ => Protocol::Http1,
                };
                server
                    .serve_connection(stream, protocol, client, Some((peer, permit)), stop)
                    .await;
            });
        }
        connections.close();
        self.withdraw_endpoints().await;
        if tokio::time::timeout(DRAIN_TIMEOUT, connections.wait())
            .await
            .is_err()
        {
            debug!("connections were still open when the server stopped");
        }
    }

    /// Speaks HTTP over a stream whose client is `client` as far as certificates say. `remote`: where the client is, and
    /// the connection's place at the port.
    pub async fn serve_connection(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        protocol: Protocol,
        client: Arc<Peer>,
        remote: Option<(SocketAddr, Arc<Permit>)>,
        stop: CancellationToken,
    ) {
        let (address, permit) = remote.unzip();
        let patience = self.config.options.patience;
        let (unhurried, gives_up) = (Arc::<AtomicBool>::default(), CancellationToken::new());
        let first = match protocol {
            // Here the head of the first request has its own limit.
            Protocol::Http1 => 0,
            Protocol::Http2 => PREFACE_BYTES,
        };
        let io = TokioIo::new(Patient::new(stream, &patience, first, unhurried.clone()));
        let connection = Arc::new(Connection {
            client,
            address,
            protocol,
            unhurried,
            gives_up: gives_up.clone(),
            permit: permit.clone(),
        });
        let overstays = overstays(permit, patience.unauthenticated);
        let service = service_fn(move |request| {
            let (server, connection) = (self.clone(), connection.clone());
            // A connection keeps the place of its request's future as long as it is open; this one is large.
            Box::pin(async move { Ok::<_, Infallible>(server.handle(request, &connection).await) })
        });
        let ended = match protocol {
            Protocol::Http1 => {
                let mut builder = http1::Builder::new();
                let builder = builder
                    .timer(TokioTimer::new())
                    .header_read_timeout(patience.head);
                let connection = builder.serve_connection(io, service).with_upgrades();
                until(stop, gives_up, overstays, connection, |c| c.graceful_shutdown()).await
            }
            Protocol::Http2 => {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                let builder = builder
                    .timer(TokioTimer::new())
                    .max_concurrent_streams(H2_STREAMS)
                    .max_pending_accept_reset_streams(H2_RESETS)
                    .max_header_list_size(HEADERS_MAX_BYTES)
                    .keep_alive_interval(patience.keep_alive)
                    .keep_alive_timeout(patience.keep_alive);
                let connection = builder.serve_connection(io, service);
                until(stop, gives_up, overstays, connection, |c| c.graceful_shutdown()).await
            }
        };
        if let Err(e) = ended {
            debug!(?address, "connection ended: {e}");
        }
    }
}
