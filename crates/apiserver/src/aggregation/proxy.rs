//! Proxies requests to one of the endpoints of an extension API server.
//!
//! Bodies are streamed in both directions, and an upgraded connection (WebSocket, SPDY) is copied until one end closes it.
//! The errors without a response are kube-aggregator's.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures::TryFutureExt;
use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, InvalidHeaderValue, LOCATION};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use knarr_apimachinery::Error;
use tokio::time::timeout;
use tracing::debug;

use super::ExtensionServers;
use super::backend::Backend;
use super::body::{BodyTimeout, with_timeout};
use super::endpoint::EndpointError;
use super::identity::{forwarded_headers, set_user_headers};
use super::transport::{SendError, Transport, TransportError};
use crate::http::body::{Body, BoxError, full};
use crate::http::response::text;
use crate::http::{Http, header};
use crate::request::not_served;
use crate::subresource::node_stream::{copy_upgraded, remove_hop_by_hop_headers};
use crate::tls::pool::ConnectError;
use crate::user::User;

/// The timeout of `/apis/<group>/<version>`, so that one server does not delay clients that discover all group versions.
const DISCOVERY_LIMIT: Duration = Duration::from_secs(5);
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// CORS headers are set by this server only.
const CORS: [&str; 4] = [
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
];

/// Marks a response of an extension API server: its body has no size limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProxiedResponse;

/// A complete response.
pub(super) struct FetchResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// A request that this server makes itself.
pub(super) struct FetchRequest<'a> {
    pub method: Method,
    pub path: &'a str,
    pub accept: &'a str,
    /// For `If-None-Match`.
    pub etag: Option<&'a str>,
    pub user: &'a User,
    pub max_bytes: usize,
    pub limit: Duration,
}

/// Why a request that this server makes itself has no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error(transparent)]
    User(#[from] Error),
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error(transparent)]
    Send(#[from] SendError),
    #[error(transparent)]
    Body(#[from] BoxError),
}

/// Why a connection is not upgraded.
#[derive(Debug, thiserror::Error)]
enum UpgradeError {
    #[error("error dialing backend: {0}")]
    Dial(#[from] ConnectError),
    #[error("error dialing backend: {0}")]
    Handshake(#[source] hyper::Error),
    #[error("error dialing backend: context deadline exceeded")]
    Timeout,
    #[error(transparent)]
    Host(#[from] InvalidHeaderValue),
    #[error(transparent)]
    Send(#[from] hyper::Error),
    #[error("invalid upgrade response: status code {0}")]
    Status(u16),
}

fn unavailable() -> Response<Body> {
    plain(StatusCode::SERVICE_UNAVAILABLE, "service unavailable")
}

fn plain(code: StatusCode, message: &str) -> Response<Body> {
    text(code, format!("{message}\n"))
}

impl ExtensionServers {
    /// Proxies an authorized request.
    pub(crate) async fn proxy_to_backend(
        &self,
        user: &User,
        http: &mut Http,
        backend: &Backend,
    ) -> Result<Response<Body>, Error> {
        if http.info.unreadable {
            // This server and the extension API server could parse such a path differently.
            return Err(not_served());
        }
        let mut response = self.proxy_response(user, http, backend).await?;
        response.extensions_mut().insert(ProxiedResponse);
        Ok(response)
    }

    async fn proxy_response(
        &self,
        user: &User,
        http: &mut Http,
        backend: &Backend,
    ) -> Result<Response<Body>, Error> {
        if !backend.is_available() {
            return Ok(unavailable());
        }
        let transport = match &backend.transport {
            Ok(transport) => transport,
            Err(why) => return Ok(plain(StatusCode::INTERNAL_SERVER_ERROR, &why.to_string())),
        };
        let address = match self.extension_server_addresses(&backend.spec) {
            Ok(addresses) => addresses.first().copied(),
            Err(why) => {
                debug!(apiservice = backend.name, "no endpoint for an APIService: {why}");
                None
            }
        };
        let Some(address) = address else {
            return Ok(unavailable());
        };
        let upgrades = !header::elements(&http.headers, &http::header::UPGRADE)?.is_empty();
        let mut headers = forwarded_headers(&http.headers, upgrades);
        set_user_headers(&mut headers, user)?;
        forwarded_for(&mut headers, http);
        let path = http.request.uri().path_and_query().map_or("/", |p| p.as_str());
        let mut request = Request::builder().method(http.method.clone()).uri(path);
        if let Some(all) = request.headers_mut() {
            *all = headers;
        }
        if upgrades {
            let request = request.body(()).map_err(Error::internal)?;
            let limit = self.request_timeout;
            let upgraded = timeout(limit, upgrade(transport, address, request, http)).await;
            let upgraded = upgraded.unwrap_or(Err(UpgradeError::Timeout));
            let failed = |why: UpgradeError| plain(StatusCode::SERVICE_UNAVAILABLE, &why.to_string());
            return Ok(upgraded.unwrap_or_else(failed));
        }
        let request = request.body(outgoing_body(http)).map_err(Error::internal)?;
        let failed = |why: SendError| {
            plain(
                StatusCode::SERVICE_UNAVAILABLE,
                &format!("error trying to reach service: {why}"),
            )
        };
        let sent = transport.send(address, request);
        let limit = match is_discovery(http) {
            true => Some(DISCOVERY_LIMIT),
            false => None,
        };
        let result = match limit {
            None => sent.await,
            Some(limit) => timeout(limit, sent).await.unwrap_or(Err(SendError::Timeout)),
        };
        let limit = limit.or_else(|| {
            let bounded = !http.info.is_long_running();
            bounded.then_some(self.request_timeout)
        });
        Ok(result.map_or_else(failed, |response| proxied_response(response, limit)))
    }

    /// A request of this server, or of one of its components, to an extension API server.
    pub(super) async fn fetch(
        &self,
        backend: &Backend,
        fetch: FetchRequest<'_>,
    ) -> Result<FetchResponse, FetchError> {
        let addresses = self.extension_server_addresses(&backend.spec)?;
        let address = addresses.first();
        let address = address.ok_or_else(|| EndpointError::NoEndpoints(backend.spec.service.clone()))?;
        self.fetch_at(backend, *address, fetch).await
    }

    /// Like [`Self::fetch`], at this endpoint.
    pub(super) async fn fetch_at(
        &self,
        backend: &Backend,
        address: SocketAddr,
        fetch: FetchRequest<'_>,
    ) -> Result<FetchResponse, FetchError> {
        let transport = backend.transport.as_ref().map_err(Clone::clone)?;
        let mut request = Request::builder().method(fetch.method).uri(fetch.path);
        if let Some(headers) = request.headers_mut() {
            set_user_headers(headers, fetch.user)?;
            let value = |text: &str| HeaderValue::from_str(text).map_err(http::Error::from);
            headers.insert(http::header::ACCEPT, value(fetch.accept)?);
            if let Some(etag) = fetch.etag {
                headers.insert(http::header::IF_NONE_MATCH, value(etag)?);
            }
        }
        let request = request.body(full(Bytes::new()))?;
        let exchange = async {
            let response = transport.send(address, request).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, fetch.max_bytes).collect().await?;
            Ok(FetchResponse {
                status: head.status,
                headers: head.headers,
                body: body.to_bytes(),
            })
        };
        timeout(fetch.limit, exchange)
            .await
            .unwrap_or_else(|_| Err(SendError::Timeout.into()))
    }
}

/// `/apis/<group>/<version>` itself.
fn is_discovery(http: &Http) -> bool {
    let path = http.info.path.trim_matches('/');
    !http.info.is_resource && path.split('/').count() == 3
}

/// The client's body as a stream with a timeout per frame.
fn outgoing_body(http: &mut Http) -> Body {
    let none = Either::Right(Empty::new());
    let body = std::mem::replace(http.request.body_mut(), none);
    if hyper::body::Body::is_end_stream(&body) {
        return full(Bytes::new());
    }
    let timeout_message = "timed out reading the request body";
    with_timeout(body, BodyTimeout::PerFrame(http.timeouts.body), timeout_message)
}

fn forwarded_for(headers: &mut HeaderMap, http: &Http) {
    let Some(client) = http.client.map(|ip| ip.to_string()) else {
        return;
    };
    let before = headers.get(&FORWARDED_FOR).and_then(|v| v.to_str().ok());
    let all = match before {
        Some(before) => format!("{before}, {client}"),
        None => client,
    };
    if let Ok(all) = HeaderValue::from_str(&all) {
        headers.insert(FORWARDED_FOR, all);
    }
}

/// The response for the client. Redirects are not forwarded: they could lead anywhere.
fn proxied_response(response: Response<Incoming>, limit: Option<Duration>) -> Response<Body> {
    if response.status().is_redirection() && response.headers().contains_key(LOCATION) {
        let message = "the backend attempted to redirect this request, which is not permitted";
        return text(StatusCode::BAD_GATEWAY, message);
    }
    let (mut head, body) = response.into_parts();
    remove_hop_by_hop_headers(&mut head.headers);
    for name in CORS {
        head.headers.remove(name);
    }
    head.extensions.clear();
    head.version = http::Version::default();
    let timeout_message = "timed out reading the response body of the extension API server";
    let body = match limit {
        Some(limit) => with_timeout(body, BodyTimeout::Total(limit), timeout_message),
        None => body.map_err(Into::into).boxed_unsync(),
    };
    Response::from_parts(head, body)
}

/// Forwards an upgrade request, and connects the client with the server.
async fn upgrade(
    transport: &Transport,
    address: SocketAddr,
    request: Request<()>,
    http: &mut Http,
) -> Result<Response<Body>, UpgradeError> {
    let stream = transport.dial(address).await?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.map_err(UpgradeError::Handshake).await?;
    tokio::spawn(async move {
        if let Err(e) = connection.with_upgrades().await {
            debug!("a connection to an extension API server failed: {e}");
        }
    });
    let mut request = request.map(|()| full(Bytes::new()));
    let host = HeaderValue::from_str(&address.to_string())?;
    request.headers_mut().insert(HOST, host);
    let mut response = sender.send_request(request).await?;
    match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => {
            copy_upgraded(&mut response, &mut http.request);
            let mut response = response.map(|_| full(Bytes::new()));
            response.headers_mut().remove(CONTENT_LENGTH);
            Ok(response)
        }
        status if status.as_u16() < 400 => Err(UpgradeError::Status(status.as_u16())),
        _ => Ok(proxied_response(response, Some(DISCOVERY_LIMIT * 2))),
    }
}
