//! The layers that every request passes, in their order, as in kube-apiserver's handler chain (`DefaultBuildHandlerChain`):
//!
//! | layer | |
//! |---|---|
//! | [`HandlerChain::serve`] | parses the URL; metrics, audit ID, `Cache-Control`, responses without a body |
//! | `authenticate` | the user of the request, and whom it impersonates; 401 |
//! | `audit` | the events of the request, the trace span, warnings |
//! | `limit` | priority and fairness, the leader's term, the timeout; 429, 504 |
//! | `authorize` | 403 |
//! | `route` | an extension API server, a resource ([`Resources`]), or another path ([`NonResources`]) |
//!
//! Each layer is a function that calls the next one, and [`Http`] carries what they leave for each other. Layers of `tower` would box a
//! future per layer and request.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either};
use hyper::body::{Body as _, Incoming};
use knarr_api::registry;
use knarr_apimachinery::{Error, duration};
use knarr_client::term::{self, Term};
use tokio::time::Instant;
use tracing::Instrument;

use super::accept::{self, MediaTypeOptions, Offered};
use super::body::{Body, full, guarded};
use super::connection::Connection;
use super::query::Query;
use super::raw::NonResources;
use super::resource::Resources;
use super::response::{ResponseFormat, add_warnings, error_response};
use super::{Http, Timeouts, header, trace, websocket};
use crate::aggregation::{Backend, ExtensionServers, ProxiedResponse};
use crate::audit::{Audit, Event, Level, Record, Stage};
use crate::authn::{Authenticator, Requester, bearer};
use crate::authz::{Attributes, Authorizer, forbidden, forbidden_with_reason};
use crate::cache::Cache;
use crate::flow_control::{FlowControl, RejectReason};
use crate::metrics::{InFlightGauge, LongRunningGauge, Metrics, Series};
use crate::pipeline::decode::{Json, to_json};
use crate::request::{Ctx, Origin, RequestInfo};
use crate::resource_metrics::{self, ResourceMetrics};
use crate::seams::{Clock, Entropy, uid};
use crate::user::{MASTERS, User};

/// Paths that need no authorization (`--authorization-always-allow-paths`).
const ALWAYS_ALLOWED: [&str; 3] = ["/healthz", "/livez", "/readyz"];

/// A request waits for a seat for this part of its timeout, as in kube-apiserver.
const WAIT_LIMIT_DIVISOR: u32 = 4;

/// The layers. See the module.
pub(crate) struct HandlerChain {
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
    pub cache: Arc<Cache>,
    pub metrics: Arc<Metrics>,
    pub timeouts: Timeouts,
    pub authenticator: Arc<Authenticator>,
    pub audit: Option<Audit>,
    pub flow_control: Arc<FlowControl>,
    /// The timeout of requests that are not watches or streams.
    pub request_timeout: Duration,
    pub authorizer: Arc<dyn Authorizer>,
    pub extension_servers: Arc<ExtensionServers>,
    pub resource_metrics: Arc<ResourceMetrics>,
    pub resources: Resources,
    pub non_resources: NonResources,
}

impl HandlerChain {
    /// Serves a request. Boxed: a connection keeps the memory of its request's future while it is open, and this future is large;
    /// and it is compiled once, not for each type of connection.
    pub fn serve(
        self: Arc<Self>,
        request: Request<Incoming>,
        connection: Arc<Connection>,
    ) -> BoxFuture<'static, Response<Body>> {
        Box::pin(async move { self.respond(request, &connection).await })
    }

    async fn respond(&self, request: Request<Incoming>, connection: &Connection) -> Response<Body> {
        let begun = Instant::now();
        let mut http = self.read(request, connection);
        let served = self.cache.served();
        let of = (&http.info.group, &http.info.version, &http.info.resource);
        let kind = served.by_resource(of.0, of.1, of.2);
        let part = http.info.subresource.as_str();
        let known = kind.is_some_and(|kind| part.is_empty() || kind.subresource(part).is_some());
        let series = Series::of(&http.info, known, http.query.has("dryRun"));
        let id = HeaderValue::from_str(&http.audit_id);
        if let (Some(_), Ok(id)) = (&http.backend, &id) {
            http.headers.insert(AUDIT_ID, id.clone());
        }
        let upgrades = http.backend.is_some() && http.headers.contains_key(UPGRADE);
        if upgrades || http.info.is_long_running() && http.info.verb != "watch" {
            connection.disable_write_timeout();
        }
        let mut response = self.authenticate(&mut http, connection).await;
        if is_streaming(&http, &response) {
            let gauge = LongRunningGauge::new(self.metrics.clone(), series.clone());
            response = response.map(|body| guarded(body, gauge));
        }
        let mut response = connection.guard_response(response, &http.info, &http.timeouts);
        let took = (!http.info.is_long_running()).then(|| begun.elapsed());
        self.metrics.finished(&series, response.status(), took);
        if let (true, Some(bytes)) = (series.is_read(), response.body().size_hint().exact()) {
            self.metrics.responded(&series, bytes);
        }
        if http.method == Method::HEAD || bodiless(response.status()) {
            response = without_body(response, &http.method);
        }
        let headers = response.headers_mut();
        if let Ok(id) = id {
            headers.insert(AUDIT_ID, id);
        }
        // A response to one client must not be cached for others.
        headers
            .entry(CACHE_CONTROL)
            .or_insert(HeaderValue::from_static("no-cache, private"));
        response
    }

    fn read(&self, mut request: Request<Incoming>, connection: &Connection) -> Http {
        let query = Query::parse(request.uri().query().unwrap_or(""));
        let info = RequestInfo::parse(request.method(), request.uri().path(), query.flag("watch"));
        let headers = std::mem::take(request.headers_mut());
        Http {
            format: ResponseFormat {
                gzip: headers
                    .get(ACCEPT_ENCODING)
                    .and_then(|v| v.to_str().ok())
                    .is_some_and(|v| v.split(',').any(|e| e.trim().starts_with("gzip"))),
                now: self.clock.now(),
                media_type: MediaTypeOptions::default(),
            },
            method: request.method().clone(),
            audit_id: audit_id(&headers, &*self.entropy),
            backend: self.backend_of(&info),
            info,
            query,
            headers,
            request: request.map(Either::Left),
            timeouts: self.timeouts,
            body: None,
            audited: false,
            sent: None,
            client: connection.address.map(|a| a.ip()),
            flow: None,
        }
    }

    async fn authenticate(&self, http: &mut Http, connection: &Connection) -> Response<Body> {
        let now = http.format.now;
        let requester = header::check(&http.headers)
            .and_then(|()| match http.info.subresource.as_str() {
                // The query is proxied as it was sent.
                "proxy" => Ok(()),
                _ if http.backend.is_some() => Ok(()),
                _ => http.query.check(),
            })
            .and_then(|()| {
                self.authenticator
                    .authenticate(&http.headers, &connection.client, now)
            });
        bearer::remove_subprotocol(&mut http.headers);
        match requester {
            Ok(requester) => {
                if requester.is_authenticated() {
                    connection.authenticated();
                }
                self.audit(requester, http).await
            }
            Err(e) => {
                if let Some(audit) = &self.audit
                    && let Some(mut record) = audit.begin(event(http), &User::anonymous(), &http.info)
                {
                    record.response(e.code(), None);
                    record.stage(Stage::ResponseComplete, self.clock.now()).await;
                }
                error_response(&e, http.format)
            }
        }
    }

    async fn audit(&self, requester: Requester, http: &mut Http) -> Response<Body> {
        let now = http.format.now;
        let record = self.audit.as_ref().and_then(|audit| {
            let Requester { user, impersonator } = &requester;
            audit.begin(event(http).user(user, impersonator.as_ref()), user, &http.info)
        });
        let mut ctx = Ctx::new(requester.user, now);
        ctx.verb = http.info.verb;
        ctx.origin = http.client.map_or(Origin::Unknown, Origin::Remote);
        ctx.manager = Some(field_manager(http));
        if let Some(record) = &record {
            http.audited = true;
            // The response must be readable for the audit log.
            http.format.gzip &= record.level < Level::RequestResponse;
            record.stage(Stage::RequestReceived, now).await;
        }
        let span = trace::request_span(http, &ctx.user, &http.audit_id);
        let routed = self.limit(&mut ctx, http).instrument(span.clone()).await;
        let denied = routed.as_ref().is_err_and(|e| e.code() == 403);
        let mut response = routed.unwrap_or_else(|e| error_response(&e, http.format));
        trace::record_status(&span, response.status());
        if let Some(flow) = &http.flow {
            flow.write_headers(response.headers_mut());
        }
        add_warnings(&mut response, &ctx.warnings);
        match record {
            Some(record) => self.finish_record(record, denied, http, response).await,
            None => response,
        }
    }

    /// Writes the events of the response; returns it.
    async fn finish_record(
        &self,
        mut record: Record,
        denied: bool,
        http: &Http,
        response: Response<Body>,
    ) -> Response<Body> {
        record.annotate(
            "authorization.k8s.io/decision",
            if denied { "forbid" } else { "allow" },
        );
        if let Some(sent) = &http.sent {
            record.request(sent);
        } else if let Some(body) = &http.body {
            // From any media type; a patch is not an object.
            let sent = http.header(CONTENT_TYPE);
            let json = to_json(&http.info.resource, sent, body.clone());
            record.request(json.as_ref().map_or(body, Json::bytes));
        }
        let code = response.status();
        if is_streaming(http, &response) {
            record.response(code.as_u16(), None);
            record.stage(Stage::ResponseStarted, self.clock.now()).await;
            let long_running_audit = LongRunningAudit(record, self.clock.clone());
            return response.map(|body| guarded(body, long_running_audit));
        }
        let own = response.extensions().get::<ProxiedResponse>().is_none();
        if !own || (record.level < Level::RequestResponse && code.is_success()) {
            record.response(code.as_u16(), None);
            record.stage(Stage::ResponseComplete, self.clock.now()).await;
            return response;
        }
        let (head, body) = response.into_parts();
        let bytes = match body.collect().await {
            Ok(collected) => collected.to_bytes(),
            Err(e) => return error_response(&Error::internal(e), http.format),
        };
        record.response(code.as_u16(), Some(&bytes));
        record.stage(Stage::ResponseComplete, self.clock.now()).await;
        Response::from_parts(head, full(bytes))
    }

    /// Serves the request within its limits: seats of its priority level, and its timeout.
    async fn limit(&self, ctx: &mut Ctx, http: &mut Http) -> Result<Response<Body>, Error> {
        // Watches are classified for their response headers but take no seat; streams are not classified.
        if !http.info.is_long_running() || http.info.verb == "watch" {
            http.flow = self.flow_control.classify(&ctx.user, &http.info);
        }
        if http.info.is_long_running() {
            return self.authorize(ctx, http).await;
        }
        let limit = request_timeout(http)?.unwrap_or(self.request_timeout);
        let limit = limit.min(self.request_timeout);
        let mutating = http.info.is_mutating();
        if let Some(term) = http.headers.get(term::HEADER) {
            ctx.term = Some(self.leaders_term(&ctx.user, term)?);
        }
        // `system:masters` and health checks are exempt from priority and fairness, even if the FlowSchema `exempt` was deleted.
        let is_exempt = ctx.user.is_in(MASTERS) || ALWAYS_ALLOWED.contains(&http.info.path.as_str());
        let seat = match &http.flow {
            Some(flow) if !is_exempt => {
                let wait_limit = self.request_timeout / WAIT_LIMIT_DIVISOR;
                let begun = Instant::now();
                let acquired = flow.acquire_seat(wait_limit).await;
                let (schema, level) = (&flow.schema, &flow.level.name);
                self.metrics
                    .waited(schema, level, acquired.is_ok(), begun.elapsed());
                let count = |why: &RejectReason| {
                    self.metrics.rejected(schema, level, why.reason());
                };
                Some(acquired.inspect_err(count)?)
            }
            _ => None,
        };
        let in_flight = InFlightGauge::new(self.metrics.clone(), mutating);
        let done = tokio::time::timeout(limit, self.authorize(ctx, http)).await;
        drop((in_flight, seat));
        done.unwrap_or_else(|_| {
            Err(Error::new(
                504,
                "Timeout",
                "Timeout: request did not complete within the allotted timeout",
            ))
        })
    }

    /// The leader's term of a request. The response discloses the state of its Lease, so the client must be allowed to get that Lease.
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

    async fn authorize(&self, ctx: &mut Ctx, http: &mut Http) -> Result<Response<Body>, Error> {
        let is_always_allowed = !http.info.is_resource && ALWAYS_ALLOWED.contains(&http.info.path.as_str());
        if !is_always_allowed {
            let attributes = http.attributes();
            if !self.authorizer.allows(&ctx.user, &attributes) {
                return Err(forbidden_with_reason(&*self.authorizer, &ctx.user, &attributes));
            }
        }
        self.route(ctx, http).await
    }

    /// Routes the request to an extension API server, a resource, or a path that is not a resource.
    async fn route(&self, ctx: &mut Ctx, http: &mut Http) -> Result<Response<Body>, Error> {
        let discovery = !http.info.is_resource;
        let accept = http.header(ACCEPT).to_string();
        let include = http.query.get("includeObject").to_string();
        if let Some(backend) = http.backend.take() {
            return self
                .extension_servers
                .proxy_to_backend(&ctx.user, http, &backend)
                .await;
        }
        if discovery {
            return self.non_resources.serve(http, &accept).await;
        }
        if http.info.group == resource_metrics::GROUP && self.resource_metrics.is_served() {
            return self.resource_metrics.serve(http).await;
        }
        let info = &http.info;
        let served = self.cache.served();
        let kind = served.by_resource(&info.group, &info.version, &info.resource);
        let offered = Offered {
            discovery: false,
            tables: kind.is_none_or(|kind| kind.verbs != ["create"]),
            streams: matches!(info.verb, "list" | "watch"),
        };
        // Streams have a media type of their own, or that of the proxied server.
        let own_form = match info.subresource.as_str() {
            "proxy" | "exec" | "attach" | "portforward" => true,
            "log" => accept.contains("text/plain"),
            _ => false,
        };
        if !own_form {
            http.format.media_type = accept::negotiate(&accept, &include, offered)?;
        }
        if matches!(http.query.get("pretty"), "true" | "1") {
            http.format.media_type.pretty = true;
        }
        let upgrade = websocket::WebSocketUpgrade::from_request(http)?;
        let response = self.resources.serve(ctx, http).await?;
        Ok(match upgrade {
            Some(upgrade) => upgrade.send_over(http, response),
            None => response,
        })
    }

    /// The extension API server that serves the request, if this server does not.
    fn backend_of(&self, info: &RequestInfo) -> Option<Arc<Backend>> {
        if !info.version.is_empty() {
            return self
                .extension_servers
                .aggregation
                .backend(&info.group, &info.version);
        }
        // OpenAPI documents of group versions are proxied, too.
        let group_version = info.path.strip_prefix("/openapi/v3/apis/")?;
        let (group, version) = group_version.split_once('/')?;
        self.extension_servers.aggregation.backend(group, version)
    }
}

/// The audit event of a request.
fn event(http: &Http) -> Event {
    let uri = http.request.uri().path_and_query().map_or("", |p| p.as_str());
    let (id, now) = (&http.audit_id, http.format.now);
    Event::new(id, uri, &http.info, &http.headers, http.client, now)
}

/// Whether the response is a watch or stream that has begun.
fn is_streaming(http: &Http, response: &Response<Body>) -> bool {
    let status = response.status();
    http.info.is_long_running() && status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS
}

/// The header with the request's audit ID, for clients and for the audit log.
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// Longest audit ID that a client may choose.
const AUDIT_ID_MAX_BYTES: usize = 64;

/// The request's audit ID: the client's, or a new one.
fn audit_id(headers: &HeaderMap, entropy: &dyn Entropy) -> String {
    let given = headers.get(AUDIT_ID).and_then(|v| v.to_str().ok());
    given
        .filter(|id| !id.is_empty() && id.len() <= AUDIT_ID_MAX_BYTES)
        .map_or_else(|| uid(entropy), str::to_string)
}

/// `timeout` of the query: how long the client waits for a response. Zero means no limit of the client's own.
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

/// Writes the ResponseComplete event when a watch or stream ends.
struct LongRunningAudit(Record, Arc<dyn Clock>);

impl Drop for LongRunningAudit {
    fn drop(&mut self) {
        self.0.stage_later(Stage::ResponseComplete, self.1.now());
    }
}

/// Longest name of a field manager that comes from a user agent, as in kube-apiserver.
const MANAGER_MAX_BYTES: usize = 128;

/// The field manager of the request: `fieldManager`, else the beginning of the user agent.
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

/// Whether a response of this status has no body (RFC 9110, sections 15.3.5 and 15.4.5).
fn bodiless(status: StatusCode) -> bool {
    matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// The response without its body. For HEAD it has the length of the body, where that is known: over HTTP/1.1 the connection leaves
/// the body out by itself, over HTTP/2 it does not.
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
