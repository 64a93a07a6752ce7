//! HTTP: each request from its bytes to its answer. What carries it is `connection`.

pub mod accept;
pub mod answer;
pub mod body;
mod connection;
pub mod connections;
pub mod header;
mod health;
pub(crate) mod patience;
pub mod query;
pub(crate) mod raw;
pub(crate) mod resource;
mod websocket;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Empty};
use hyper::body::{Body as _, Incoming};
use knarr_api::{AnyObject, Error, duration, registry};
use knarr_client::term::{self, Term};
use tokio::time::Instant;

use self::accept::{Form, Offered};
use self::answer::{Wants, add_warnings, refusal};
use self::body::{Body, Unread, full, guarded, whole};
use self::connection::Connection;
pub use self::connection::Protocol;
pub use self::patience::Patience;
use self::query::Query;
pub use self::raw::Document;
use crate::aggregation::{Backend, Delegated};
use crate::audit::{Event, Level, Record, Stage};
use crate::authn::{Requester, bearer};
use crate::authz::{Attributes, Selectors, forbidden, refused};
use crate::flow_control::{Flow, Refused};
use crate::metrics::{Metrics, Series};
use crate::pipeline::decode::{Json, to_json};
use crate::pipeline::{Ctx, Origin};
use crate::request::RequestInfo;
use crate::resource_metrics;
use crate::seams::{Clock, Entropy, uid};
use crate::server::Server;
use crate::user::{MASTERS, User};

/// Largest body of a request, as kube-apiserver's.
const BODY_MAX_BYTES: usize = 3 * 1024 * 1024;
/// What is read of a body that is too large, so that most clients come to read the refusal.
const BODY_READ_BYTES: usize = 2 * BODY_MAX_BYTES;

/// Paths that answer whoever is authenticated or anonymous, whatever the roles say
/// (`--authorization-always-allow-paths`).
const ALWAYS_ALLOWED: [&str; 3] = ["/healthz", "/livez", "/readyz"];

/// A request waits for its seat as long as this part of what it may take, as kube-apiserver's.
const PATIENCE_DIVISOR: u32 = 4;

/// A request's body as it comes; an empty one once somebody has taken it.
pub(crate) type Sent = Either<Incoming, Empty<Bytes>>;

/// One request on its way.
pub(crate) struct Http {
    pub info: RequestInfo,
    pub query: Query,
    pub headers: HeaderMap,
    pub method: http::Method,
    pub wants: Wants,
    pub request: Request<Sent>,
    /// The extension API server that serves it, if this server does not.
    pub backend: Option<Arc<Backend>>,
    pub patience: Patience,
    /// The body, once it has been read.
    pub body: Option<Bytes>,
    /// Whether what is sent is written to the audit log.
    pub audited: bool,
    /// The object of the body as it was decoded, in JSON, if it is written to the audit log.
    pub sent: Option<Bytes>,
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
        let body = self.request.body_mut();
        match whole(body, BODY_READ_BYTES, self.patience.body).await {
            Ok(bytes) => {
                let body = Some(bytes).filter(|b| b.len() <= BODY_MAX_BYTES);
                self.body.clone_from(&body);
                body.ok_or_else(too_large)
            }
            Err(Unread::TooLarge) => Err(too_large()),
            Err(e @ Unread::Late) => Err(Error::new(408, "Timeout", e.to_string())),
            Err(e @ Unread::Broken(_)) => Err(Error::bad_request(e.to_string())),
        }
    }

    /// The body as JSON, whatever it came as; `kind` is what it must be.
    pub async fn json_body(&mut self, kind: &str) -> Result<Json, Error> {
        let body = self.body().await?;
        to_json(kind, self.header(http::header::CONTENT_TYPE), body)
    }

    /// What its sender must be allowed.
    pub fn attributes(&self) -> Attributes<'_> {
        let selectors = Selectors {
            fields: self.query.get("fieldSelector"),
            labels: self.query.get("labelSelector"),
        };
        Attributes::of(&self.info, selectors)
    }

    /// Keeps what a body was decoded to for the audit log, which must not say anything else than what is done.
    pub fn decoded(&mut self, object: &dyn AnyObject) {
        if self.audited {
            self.sent = Some(encoded(object).into());
        }
    }

    /// The header's first value. Those that say what is asked were checked before ([`header::check`]).
    pub fn header(&self, name: HeaderName) -> &str {
        let value = self.headers.get(&name);
        value.and_then(|v| header::text(&name, v).ok()).unwrap_or("")
    }
}

/// An object's JSON.
fn encoded(object: &dyn AnyObject) -> Vec<u8> {
    let mut json = Vec::new();
    object.encode_into(&mut json);
    json
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

/// Longest name of a field manager that is made of a user agent, as kube-apiserver's.
const MANAGER_MAX_BYTES: usize = 128;

/// Who holds the fields that this request sets: `fieldManager`, else what the user agent begins with.
fn field_manager(http: &Http) -> String {
    match http.query.get("fieldManager") {
        "" => {
            let agent = header::user_agent(&http.headers);
            let agent = agent.split('/').next().unwrap_or("");
            let mut name: String = agent.chars().filter(|c| !c.is_control()).collect();
            while name.len() > MANAGER_MAX_BYTES {
                name.pop();
            }
            name
        }
        given => given.to_string(),
    }
}

/// Whether an answer of this status has no body, whatever was asked (RFC 9110, sections 15.3.5 and 15.4.5).
fn bodiless(status: StatusCode) -> bool {
    matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// The answer's head alone. To HEAD it says how long the body would have been, where that is known: over HTTP/1.1 the
/// connection leaves the body out by itself, over HTTP/2 it does not.
fn without_body(response: Response<Body>, method: &Method) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    let length = body.size_hint().exact().filter(|length| *length > 0);
    if *method == Method::HEAD
        && !bodiless(head.status)
        && let Some(length) = length
    {
        let length = HeaderValue::from(length);
        head.headers.entry(CONTENT_LENGTH).or_insert(length);
    } else if bodiless(head.status) {
        head.headers.remove(CONTENT_LENGTH);
        head.headers.remove(CONTENT_TYPE);
    }
    Response::from_parts(head, full(Bytes::new()))
}

impl Server {
    async fn handle(self: Arc<Self>, request: Request<Incoming>, connection: &Connection) -> Response<Body> {
        let address = connection.address;
        let begun = Instant::now();
        let query = Query::parse(request.uri().query().unwrap_or(""));
        let info = RequestInfo::parse(request.method(), request.uri().path(), query.flag("watch"));
        let headers = request.headers().clone();
        let backend = self.backend_of(&info);
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
            request: request.map(Either::Left),
            backend,
            patience: self.config.options.patience,
            body: None,
            audited: false,
            sent: None,
            client: address.map(|a| a.ip()),
            flow: None,
        };
        let id = audit_id(&http.headers, &*self.entropy);
        let served = self.cache.served();
        let of = (&http.info.group, &http.info.version, &http.info.resource);
        let kind = served.by_resource(of.0, of.1, of.2);
        let part = http.info.subresource.as_str();
        let known = kind.is_some_and(|kind| part.is_empty() || kind.subresource(part).is_some());
        let series = Series::of(&http.info, known, http.query.has("dryRun"));
        if let (Some(_), Ok(id)) = (&http.backend, HeaderValue::from_str(&id)) {
            http.headers.insert(AUDIT_ID, id);
        }
        let upgrades = http.backend.is_some() && http.headers.contains_key(UPGRADE);
        if upgrades || http.info.is_long_running() && http.info.verb != "watch" {
            connection.streams();
        }
        let response = self.answer(&mut http, connection, &id, &series).await;
        let mut response = connection.looked_after(response, &http.info, &http.patience);
        let took = (!http.info.is_long_running()).then(|| begun.elapsed());
        self.metrics.finished(series, response.status().as_u16(), took);
        if http.method == Method::HEAD || bodiless(response.status()) {
            response = without_body(response, &http.method);
        }
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
        connection: &Connection,
        id: &str,
        series: &Series,
    ) -> Response<Body> {
        let now = http.wants.now;
        let requester = header::check(&http.headers)
            .and_then(|()| match http.info.subresource.as_str() {
                // It passes through as it was sent.
                "proxy" => Ok(()),
                _ if http.backend.is_some() => Ok(()),
                _ => http.query.check(),
            })
            .and_then(|()| self.authenticate(&http.headers, &connection.client, now));
        bearer::remove_subprotocol(&mut http.headers);
        let event = self.config.options.audit.as_ref().map(|audit| {
            let uri = http.request.uri().path_and_query().map_or("", |p| p.as_str());
            let source = http.client;
            (audit, Event::new(id, uri, &http.info, &http.headers, source, now))
        });
        let requester = match requester {
            Ok(requester) => {
                if requester.is_authenticated() {
                    connection.authenticated();
                }
                requester
            }
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
        ctx.verb = http.info.verb;
        ctx.origin = connection
            .address
            .map_or(Origin::Unknown, |a| Origin::Remote(a.ip()));
        ctx.manager = Some(field_manager(http));
        if let Some(record) = &record {
            http.audited = true;
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
            if let Some(sent) = &http.sent {
                record.request(sent);
            } else if let Some(body) = &http.body {
                // Whatever it came as; what says what to do to an object (a patch) is no object.
                let sent = http.header(CONTENT_TYPE);
                let json = to_json(&http.info.resource, sent, body.clone());
                record.request(json.as_ref().map_or(body, Json::bytes));
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
                let own = response.extensions().get::<Delegated>().is_none();
                if own && (record.level >= Level::RequestResponse || !code.is_success()) {
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
            group: registry::LEASE.group(),
            resource: registry::LEASE.plural(),
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
                let entered = flow.admit(patience).await;
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
        if let Some(backend) = http.backend.take() {
            return self.delegate(&ctx.user, http, &backend).await;
        }
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
        // What streams has its own form, or that of whatever is behind it.
        let own_form = match info.subresource.as_str() {
            "proxy" | "exec" | "attach" | "portforward" => true,
            "log" => accept.contains("text/plain"),
            _ => false,
        };
        if !own_form {
            http.wants.form = accept::negotiate(&accept, &include, offered)?;
        }
        if matches!(http.query.get("pretty"), "true" | "1") {
            http.wants.form.pretty = true;
        }
        let socket = websocket::Asked::of(http)?;
        let answer = self.resource(ctx, http).await?;
        Ok(match socket {
            Some(socket) => socket.carry(http, answer),
            None => answer,
        })
    }

    /// Who serves it, if this server does not.
    fn backend_of(&self, info: &RequestInfo) -> Option<Arc<Backend>> {
        if !info.version.is_empty() {
            return self.aggregation.backend(&info.group, &info.version);
        }
        // Documents of group versions pass through, too.
        let group_version = info.path.strip_prefix("/openapi/v3/apis/")?;
        let (group, version) = group_version.split_once('/')?;
        self.aggregation.backend(group, version)
    }

    fn authorize(&self, ctx: &Ctx, http: &Http) -> Result<(), Error> {
        if !http.info.is_resource && ALWAYS_ALLOWED.contains(&http.info.path.as_str()) {
            return Ok(());
        }
        let attributes = http.attributes();
        if self.authorizer.allows(&ctx.user, &attributes) {
            return Ok(());
        }
        Err(refused(&*self.authorizer, &ctx.user, &attributes))
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
