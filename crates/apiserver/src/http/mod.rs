//! HTTP: connections, and each request from its bytes to its answer.

pub mod accept;
pub mod answer;
pub mod body;
mod health;
pub mod query;
pub(crate) mod raw;
pub(crate) mod resource;

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, USER_AGENT,
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use knarr_api::{Error, duration, registry};
use knarr_client::term::{self, Term};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use self::accept::{Form, Offered};
use self::answer::{Wants, add_warnings, refusal};
use self::body::{Body, full, guarded};
use self::query::Query;
pub use self::raw::Document;
use crate::audit::{Event, Level, Record, Stage};
use crate::authn::Requester;
use crate::authn::certificate::Peer;
use crate::authz::{Attributes, forbidden, refused};
use crate::flow_control::{Flow, Refused};
use crate::metrics::{Metrics, Series};
use crate::pipeline::Ctx;
use crate::request::RequestInfo;
use crate::resource_metrics;
use crate::seams::{Clock, Entropy, uid};
use crate::server::Server;
use crate::tls::Tls;
use crate::user::{ANONYMOUS, MASTERS, User};

/// Largest body of a request, as kube-apiserver's.
const BODY_MAX_BYTES: usize = 3 * 1024 * 1024;
/// What is read of a body that is too large, so that most clients come to read the refusal.
const BODY_READ_BYTES: usize = 2 * BODY_MAX_BYTES;
/// How long a client may take over the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long requests may go on after the server was told to stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest head of a request over HTTP/2, as Go's servers take; HTTP/1.1 takes 400 KiB.
const HEADERS_MAX_BYTES: u32 = 1024 * 1024;
/// A silent HTTP/2 client is asked for a sign of life so often, and dropped when it gives none for as long again.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Streams at once on one HTTP/2 connection, as kube-apiserver allows.
const H2_STREAMS: u32 = 250;

/// Paths that answer whoever is authenticated or anonymous, whatever the roles say
/// (`--authorization-always-allow-paths`).
const ALWAYS_ALLOWED: [&str; 3] = ["/healthz", "/livez", "/readyz"];

/// A request waits for its seat as long as this part of what it may take, as kube-apiserver's.
const PATIENCE_DIVISOR: u32 = 4;

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
    /// The body, once it has been read.
    pub body: Option<Bytes>,
    /// Where the client is.
    pub client: Option<IpAddr>,
    /// What it belongs to, once that is known.
    pub flow: Option<Flow>,
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
            Ok(collected) => {
                let body = Some(collected.to_bytes()).filter(|b| b.len() <= BODY_MAX_BYTES);
                self.body.clone_from(&body);
                body.ok_or_else(too_large)
            }
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

/// The header that names a request, for clients and for the audit log.
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// Longest name that a client may give a request.
const AUDIT_ID_MAX_BYTES: usize = 64;

/// The request's name: the client's, or a new one.
fn audit_id(headers: &HeaderMap, entropy: &dyn Entropy) -> String {
    let given = headers.get(AUDIT_ID).and_then(|v| v.to_str().ok());
    given
        .filter(|id| !id.is_empty() && id.len() <= AUDIT_ID_MAX_BYTES)
        .map_or_else(|| uid(entropy), str::to_string)
}

/// `timeout` of the query: how long the client waits for an answer. Zero means as long as the server likes.
fn request_timeout(http: &Http) -> Result<Option<Duration>, Error> {
    let text = http.query.get("timeout");
    if text.is_empty() {
        return Ok(None);
    }
    let parsed = timeout_of(text).ok_or_else(|| {
        Error::bad_request(format!(
            "invalid timeout specified in the request URL - time: invalid duration {text:?}"
        ))
    })?;
    Ok((!parsed.is_zero()).then_some(parsed))
}

fn timeout_of(text: &str) -> Option<Duration> {
    Duration::try_from(duration::parse(text)?).ok()
}

/// Writes an event when a watch or stream ends.
struct Ends(Record, Arc<dyn Clock>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.stage_later(Stage::ResponseComplete, self.1.now());
    }
}

/// Counts a watch or stream as long as it runs.
struct Runs {
    metrics: Arc<Metrics>,
    series: Series,
}

impl Runs {
    fn new(metrics: Arc<Metrics>, series: Series) -> Self {
        metrics.long_running(&series, 1);
        Runs { metrics, series }
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        self.metrics.long_running(&self.series, -1);
    }
}

/// Counts a request as long as it is worked on, also if its client goes away meanwhile.
struct Works {
    metrics: Arc<Metrics>,
    mutating: bool,
}

impl Works {
    fn new(metrics: Arc<Metrics>, mutating: bool) -> Self {
        metrics.in_flight(mutating, 1);
        Works { metrics, mutating }
    }
}

impl Drop for Works {
    fn drop(&mut self) {
        self.metrics.in_flight(self.mutating, -1);
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
    pub async fn serve(self: Arc<Self>, listener: TcpListener, tls: Tls, stop: CancellationToken) {
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
            Box::pin(async move { Ok::<_, Infallible>(server.handle(request, &client, peer).await) })
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
                    .max_concurrent_streams(H2_STREAMS)
                    .max_header_list_size(HEADERS_MAX_BYTES)
                    .keep_alive_interval(KEEP_ALIVE)
                    .keep_alive_timeout(KEEP_ALIVE);
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
        address: Option<SocketAddr>,
    ) -> Response<Body> {
        let begun = Instant::now();
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
            body: None,
            client: address.map(|a| a.ip()),
            flow: None,
        };
        let id = audit_id(&http.headers, &*self.entropy);
        let served = self.cache.served();
        let of = (&http.info.group, &http.info.version, &http.info.resource);
        let known = served.by_resource(of.0, of.1, of.2).is_some();
        let series = Series::of(&http.info, known, http.query.has("dryRun"));
        let mut response = self.answer(&mut http, client, address, &id, &series).await;
        let took = (!http.info.is_long_running()).then(|| begun.elapsed());
        self.metrics.finished(series, response.status().as_u16(), took);
        let headers = response.headers_mut();
        if let Ok(id) = HeaderValue::from_str(&id) {
            headers.insert(AUDIT_ID, id);
        }
        // What was answered to one client is nobody else's.
        headers
            .entry(CACHE_CONTROL)
            .or_insert(HeaderValue::from_static("no-cache, private"));
        response
    }

    async fn answer(
        self: &Arc<Self>,
        http: &mut Http,
        client: &Peer,
        address: Option<SocketAddr>,
        id: &str,
        series: &Series,
    ) -> Response<Body> {
        let now = http.wants.now;
        let requester = self.authenticate(&http.headers, client, now);
        let event = self.config.options.audit.as_ref().map(|audit| {
            let uri = http.request.uri().path_and_query().map_or("", |p| p.as_str());
            let source = address.map(|a| a.ip());
            (audit, Event::new(id, uri, &http.info, &http.headers, source, now))
        });
        let requester = match requester {
            Ok(requester) => requester,
            Err(e) => {
                if let Some((audit, event)) = event
                    && let Some(mut record) = audit.begin(event, &User::anonymous(), &http.info)
                {
                    record.response(e.code(), None);
                    record.stage(Stage::ResponseComplete, self.clock.now()).await;
                }
                return refusal(&e, http.wants);
            }
        };
        let mut record = event.and_then(|(audit, event)| {
            let Requester { user, impersonator } = &requester;
            audit.begin(event.user(user, impersonator.as_ref()), user, &http.info)
        });
        let mut ctx = Ctx::new(requester.user, now);
        ctx.manager = Some(field_manager(http));
        if let Some(record) = &record {
            // What is written down must be readable.
            http.wants.gzip &= record.level < Level::RequestResponse;
            record.stage(Stage::RequestReceived, now).await;
        }
        let long = http.info.is_long_running();
        let routed = self.limited(&mut ctx, http).await;
        if let Some(record) = &mut record {
            let denied = routed.as_ref().is_err_and(|e| e.code() == 403);
            record.annotate(
                "authorization.k8s.io/decision",
                if denied { "forbid" } else { "allow" },
            );
            if let Some(body) = &http.body {
                // Whatever it came as; what says what to do to an object (a patch) is no object.
                let sent = http.header(CONTENT_TYPE);
                let json = crate::pipeline::decode::to_json(&http.info.resource, sent, body.clone());
                record.request(json.as_ref().unwrap_or(body));
            }
        }
        let mut response = routed.unwrap_or_else(|e| refusal(&e, http.wants));
        if let Some(flow) = &http.flow {
            flow.tell(response.headers_mut());
        }
        add_warnings(&mut response, &ctx.warnings);
        let runs =
            long && response.status().is_success() || response.status() == StatusCode::SWITCHING_PROTOCOLS;
        match record {
            Some(mut record) if runs => {
                record.response(response.status().as_u16(), None);
                record.stage(Stage::ResponseStarted, self.clock.now()).await;
                let ends = Ends(record, self.clock.clone());
                response = response.map(|body| guarded(body, ends));
            }
            Some(mut record) => {
                let code = response.status();
                if record.level >= Level::RequestResponse || !code.is_success() {
                    let (head, body) = response.into_parts();
                    let bytes = match body.collect().await {
                        Ok(collected) => collected.to_bytes(),
                        Err(e) => return refusal(&Error::internal(e), http.wants),
                    };
                    record.response(code.as_u16(), Some(&bytes));
                    response = Response::from_parts(head, full(bytes));
                } else {
                    record.response(code.as_u16(), None);
                }
                record.stage(Stage::ResponseComplete, self.clock.now()).await;
            }
            None => {}
        }
        if runs {
            let runs = Runs::new(self.metrics.clone(), series.clone());
            response = response.map(|body| guarded(body, runs));
        }
        response
    }

    /// The term a request says it is part of. What is answered tells of its lease, so its sender must be allowed to see
    /// that.
    fn leaders_term(&self, user: &User, header: &HeaderValue) -> Result<Term, Error> {
        let term = Term::from_header(header)?;
        let attributes = Attributes {
            verb: "get",
            group: registry::LEASE.group,
            resource: registry::LEASE.plural,
            namespace: &term.namespace,
            name: &term.name,
            ..Attributes::default()
        };
        match self.authorizer.allows(user, &attributes) {
            true => Ok(term),
            false => Err(forbidden(user, &attributes)),
        }
    }

    /// The request within its limits: so many at once, by priority, so long each.
    async fn limited(self: &Arc<Self>, ctx: &mut Ctx, http: &mut Http) -> Result<Response<Body>, Error> {
        // Watches are told what they belong to, and hold no seat; streams are not even told.
        if !http.info.is_long_running() || http.info.verb == "watch" {
            http.flow = self.flows.of(&ctx.user, &http.info);
        }
        if http.info.is_long_running() {
            return self.route(ctx, http).await;
        }
        let limit = request_timeout(http)?.unwrap_or(self.config.options.request_timeout);
        let limit = limit.min(self.config.options.request_timeout);
        let mutating = http.info.is_mutating();
        if let Some(term) = http.headers.get(term::HEADER) {
            ctx.term = Some(self.leaders_term(&ctx.user, term)?);
        }
        // Whoever must get in when all else is stuck does, even if somebody took his schema away.
        let free = ctx.user.is_in(MASTERS) || ALWAYS_ALLOWED.contains(&http.info.path.as_str());
        let place = match &http.flow {
            Some(flow) if !free => {
                let patience = self.config.options.request_timeout / PATIENCE_DIVISOR;
                let entered = flow.level.enter(&flow.row, patience).await;
                let count = |why: &Refused| {
                    self.metrics
                        .rejected(&flow.schema, &flow.level.name, why.reason())
                };
                Some(entered.inspect_err(count)?)
            }
            _ => None,
        };
        let counted = Works::new(self.metrics.clone(), mutating);
        let done = tokio::time::timeout(limit, self.route(ctx, http)).await;
        drop((counted, place));
        done.unwrap_or_else(|_| {
            Err(Error::new(
                504,
                "Timeout",
                "Timeout: request did not complete within the allotted timeout",
            ))
        })
    }

    async fn route(self: &Arc<Self>, ctx: &mut Ctx, http: &mut Http) -> Result<Response<Body>, Error> {
        let discovery = !http.info.is_resource;
        let accept = http.header(ACCEPT).to_string();
        let include = http.query.get("includeObject").to_string();
        self.authorize(ctx, http)?;
        if discovery {
            return self.raw(ctx, http, &accept).await;
        }
        if http.info.group == resource_metrics::GROUP && self.serves_resource_metrics() {
            return self.resource_metrics(http).await;
        }
        let info = &http.info;
        let served = self.cache.served();
        let kind = served.by_resource(&info.group, &info.version, &info.resource);
        let offered = Offered {
            discovery: false,
            tables: kind.is_none_or(|kind| kind.verbs != ["create"]),
            streams: matches!(info.verb, "list" | "watch"),
        };
        http.wants.form = accept::negotiate(&accept, &include, offered)?;
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
        // Who showed nothing is told to, as kube-apiserver does where anonymous users have but the health checks.
        if ctx.user.name == ANONYMOUS {
            return Err(Error::unauthorized());
        }
        Err(refused(&*self.authorizer, &ctx.user, &Attributes::of(&http.info)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_durations_as_go_writes_them() {
        for (text, expected) in [
            ("0", Some(0)),
            ("10s", Some(10_000)),
            ("1m30s", Some(90_000)),
            ("1.5h", Some(5_400_000)),
            ("250ms", Some(250)),
            ("10", None),
            ("", None),
            ("-1s", None),
            ("1x", None),
            ("s", None),
        ] {
            assert_eq!(timeout_of(text), expected.map(Duration::from_millis), "{text}");
        }
    }
}
