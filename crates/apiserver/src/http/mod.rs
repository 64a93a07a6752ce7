//! HTTP: connections, and each request from its bytes to its answer.

pub mod accept;
pub mod answer;
pub mod body;
pub mod query;
pub(crate) mod raw;
mod resource;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_LENGTH, USER_AGENT};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use knarr_api::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use self::accept::Form;
use self::answer::{Wants, add_warnings, refusal};
use self::body::Body;
use self::query::Query;
pub use self::raw::Document;
use crate::authn::certificate::Peer;
use crate::authz::{Attributes, refused};
use crate::pipeline::Ctx;
use crate::request::RequestInfo;
use crate::server::Server;
use crate::tls::Tls;

/// Largest body of a request, as kube-apiserver's.
const BODY_MAX_BYTES: usize = 3 * 1024 * 1024;
/// What is read of a body that is too large, so that most clients come to read the refusal.
const BODY_READ_BYTES: usize = 2 * BODY_MAX_BYTES;
/// How long a client may take over the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long requests may go on after the server was told to stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Streams at once on one HTTP/2 connection, as kube-apiserver allows.
const H2_STREAMS: u32 = 250;

/// Paths that answer whoever is authenticated or anonymous, whatever the roles say
/// (`--authorization-always-allow-paths`).
const ALWAYS_ALLOWED: [&str; 3] = ["/healthz", "/livez", "/readyz"];

/// What a connection speaks, as was agreed in the TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    Http2,
}

/// One request on its way.
pub(crate) struct Http {
    pub info: RequestInfo,
    pub query: Query,
    pub headers: HeaderMap,
    pub method: http::Method,
    pub wants: Wants,
    pub request: Request<Incoming>,
}

impl Http {
    /// The body, if it is not too large.
    pub async fn body(&mut self) -> Result<Bytes, Error> {
        let too_large = || {
            Error::new(
                413,
                "RequestEntityTooLarge",
                format!("Request entity too large: limit is {BODY_MAX_BYTES}"),
            )
        };
        let announced = self
            .headers
            .get(CONTENT_LENGTH)
            .and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
        if announced.is_some_and(|n| n > BODY_READ_BYTES) {
            return Err(too_large());
        }
        match Limited::new(self.request.body_mut(), BODY_READ_BYTES)
            .collect()
            .await
        {
            Ok(collected) => Some(collected.to_bytes())
                .filter(|b| b.len() <= BODY_MAX_BYTES)
                .ok_or_else(too_large),
            Err(e) if e.is::<LengthLimitError>() => Err(too_large()),
            Err(e) => Err(Error::bad_request(format!("the body could not be read: {e}"))),
        }
    }

    /// The body as JSON, whatever it came as; `kind` is what it must be.
    pub async fn json_body(&mut self, kind: &str) -> Result<Bytes, Error> {
        let body = self.body().await?;
        crate::pipeline::decode::to_json(kind, self.header(http::header::CONTENT_TYPE), body)
    }

    pub fn header(&self, name: impl http::header::AsHeaderName) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("")
    }
}

/// Runs a connection to its end; once `stop` is said, what is under way gets a moment.
async fn until<C: Future<Output = hyper::Result<()>>>(
    stop: CancellationToken,
    connection: C,
    shut_down: impl FnOnce(Pin<&mut C>),
) -> hyper::Result<()> {
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            shut_down(connection.as_mut());
            // Watches do not end by themselves.
            tokio::time::timeout(DRAIN_TIMEOUT / 2, connection).await.unwrap_or(Ok(()))
        }
    }
}

/// Longest name of a field manager that is made of a user agent, as kube-apiserver's.
const MANAGER_MAX_BYTES: usize = 128;

/// Who holds the fields that this request sets: `fieldManager`, else what the user agent begins with.
fn field_manager(http: &Http) -> String {
    match http.query.get("fieldManager") {
        "" => {
            let agent = http.header(USER_AGENT).split('/').next().unwrap_or("");
            let mut name: String = agent.chars().filter(|c| !c.is_control()).collect();
            while name.len() > MANAGER_MAX_BYTES {
                name.pop();
            }
            name
        }
        given => given.to_string(),
    }
}

impl Server {
    /// Serves TLS connections until `stop`, then gives what runs a moment to end.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        tls: Tls,
        stop: CancellationToken,
    ) {
        let acceptor = TlsAcceptor::from(tls.config.clone());
        let connections = TaskTracker::new();
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
            if let Err(e) = stream.set_nodelay(true) {
                debug!(%peer, "cannot set TCP_NODELAY: {e}");
            }
            let (server, acceptor, tls, stop) = (self.clone(), acceptor.clone(), tls.clone(), stop.clone());
            connections.spawn(async move {
                // Boxed, both: a task is as large as the largest of what it ever holds, as long as it lives.
                let handshake = Box::pin(tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)));
                let stream = match handshake.await {
                    Ok(Ok(stream)) => Box::new(stream),
                    Ok(Err(e)) => return debug!(%peer, "TLS handshake failed: {e}"),
                    Err(_) => return debug!(%peer, "TLS handshake took too long"),
                };
                let connection = stream.get_ref().1;
                let client = Arc::new(tls.peer(connection, server.clock.now()));
                drop(tls);
                let protocol = match connection.alpn_protocol() {
                    Some(b"h2") => Protocol::Http2,
                    _ => Protocol::Http1,
                };
                server
                    .serve_connection(stream, protocol, client, Some(peer), stop)
                    .await;
            });
        }
        connections.close();
        if tokio::time::timeout(DRAIN_TIMEOUT, connections.wait())
            .await
            .is_err()
        {
            debug!("connections were still open when the server stopped");
        }
    }

    /// Speaks HTTP over a stream whose client is `client` as far as certificates say.
    pub async fn serve_connection(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        protocol: Protocol,
        client: Arc<Peer>,
        peer: Option<SocketAddr>,
        stop: CancellationToken,
    ) {
        let service = service_fn(move |request| {
            let (server, client) = (self.clone(), client.clone());
            // A connection keeps the place of its request's future as long as it is open; this one is large.
            Box::pin(async move { Ok::<_, Infallible>(server.handle(request, &client).await) })
        });
        let io = TokioIo::new(stream);
        let ended = match protocol {
            Protocol::Http1 => {
                let mut builder = http1::Builder::new();
                let connection = builder.timer(TokioTimer::new()).serve_connection(io, service);
                until(stop, connection.with_upgrades(), |c| c.graceful_shutdown()).await
            }
            Protocol::Http2 => {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                let builder = builder
                    .timer(TokioTimer::new())
                    .max_concurrent_streams(H2_STREAMS);
                until(stop, builder.serve_connection(io, service), |c| {
                    c.graceful_shutdown()
                })
                .await
            }
        };
        if let Err(e) = ended {
            debug!(?peer, "connection ended: {e}");
        }
    }

    async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
        client: &Peer,
    ) -> Response<Body> {
        let query = Query::parse(request.uri().query().unwrap_or(""));
        let info = RequestInfo::parse(request.method(), request.uri().path(), query.flag("watch"));
        let headers = request.headers().clone();
        let mut http = Http {
            wants: Wants {
                gzip: headers
                    .get(ACCEPT_ENCODING)
                    .and_then(|v| v.to_str().ok())
                    .is_some_and(|v| v.split(',').any(|e| e.trim().starts_with("gzip"))),
                now: self.clock.now(),
                form: Form::default(),
            },
            method: request.method().clone(),
            info,
            query,
            headers,
            request,
        };
        self.metrics.count(http.info.verb);
        let requester = match self.authenticate(&http.headers, client, http.wants.now) {
            Ok(requester) => requester,
            Err(e) => return refusal(&e, http.wants),
        };
        let mut ctx = Ctx::new(requester.user, http.wants.now);
        ctx.manager = Some(field_manager(&http));
        let mut response = match self.route(&mut ctx, &mut http).await {
            Ok(response) => response,
            Err(e) => refusal(&e, http.wants),
        };
        add_warnings(&mut response, &ctx.warnings);
        response
    }

    async fn route(self: &Arc<Self>, ctx: &mut Ctx, http: &mut Http) -> Result<Response<Body>, Error> {
        let discovery = !http.info.is_resource;
        let accept = http.header(ACCEPT).to_string();
        let include = http.query.get("includeObject").to_string();
        self.authorize(ctx, http)?;
        if discovery {
            return self.raw(ctx, http, &accept).await;
        }
        let streams = matches!(http.info.verb, "list" | "watch");
        http.wants.form = accept::negotiate(&accept, &include, false, streams)?;
        if matches!(http.query.get("pretty"), "true" | "1") {
            http.wants.form.pretty = true;
        }
        self.resource(ctx, http).await
    }

    fn authorize(&self, ctx: &Ctx, http: &Http) -> Result<(), Error> {
        let mut attributes = Attributes::of(&http.info);
        if ALWAYS_ALLOWED.contains(&attributes.path) {
            return Ok(());
        }
        if matches!(attributes.verb, "list" | "watch" | "deletecollection") {
            attributes.field_selector = http.query.get("fieldSelector");
        }
        // A list or watch of one object by its name is asked for as that one.
        if attributes.name.is_empty() && matches!(attributes.verb, "list" | "watch") {
            attributes.name = attributes.required_field("metadata.name").unwrap_or_default();
        }
        if self.authorizer.allows(&ctx.user, &attributes) {
            return Ok(());
        }
        Err(refused(&*self.authorizer, &ctx.user, &Attributes::of(&http.info)))
    }
}
