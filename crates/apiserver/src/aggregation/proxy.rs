//! A request for an extension API server: carried to one of its endpoints, and what becomes of it back.
//!
//! Nothing is held here: bodies stream both ways, and a connection that becomes a WebSocket or SPDY is copied until one
//! end goes. What is said to the client when there is no answer is kube-aggregator's.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::TryFutureExt;
use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use knarr_api::Error;
use tokio::time::timeout;
use tracing::debug;

use super::backend::Backend;
use super::body::{Limit, timed};
use super::channel::Channel;
use super::identity::{assert_user, passing};
use crate::http::answer::text;
use crate::http::body::{Body, full};
use crate::http::{Http, header};
use crate::pipeline::not_served;
use crate::server::Server;
use crate::subresource::node_stream::{hop_by_hop, splice};
use crate::user::User;

/// What `/apis/<group>/<version>` may take, so that whoever asks all group versions is not held up by one.
const DISCOVERY_LIMIT: Duration = Duration::from_secs(5);
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// What a browser may do with an answer is this server's to say.
const CORS: [&str; 4] = [
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
];

/// Marks a response that another server made: its body is as large as that server likes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delegated;

/// An answer that was read as a whole.
pub(super) struct Fetched {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// A request of this server's own.
pub(super) struct Fetch<'a> {
    pub method: Method,
    pub path: &'a str,
    pub accept: &'a str,
    /// For `If-None-Match`.
    pub etag: Option<&'a str>,
    pub user: &'a User,
    pub max_bytes: usize,
    pub limit: Duration,
}

fn unavailable() -> Response<Body> {
    plain(StatusCode::SERVICE_UNAVAILABLE, "service unavailable")
}

fn plain(code: StatusCode, words: &str) -> Response<Body> {
    text(code, format!("{words}\n"))
}

impl Server {
    /// Carries a request that its user may make.
    pub(crate) async fn delegate(
        self: &Arc<Self>,
        user: &User,
        http: &mut Http,
        backend: &Backend,
    ) -> Result<Response<Body>, Error> {
        if http.info.unreadable {
            // What one server reads as a name another could read as a path.
            return Err(not_served());
        }
        let mut response = self.delegated(user, http, backend).await?;
        response.extensions_mut().insert(Delegated);
        Ok(response)
    }

    async fn delegated(
        self: &Arc<Self>,
        user: &User,
        http: &mut Http,
        backend: &Backend,
    ) -> Result<Response<Body>, Error> {
        if !backend.is_available() {
            return Ok(unavailable());
        }
        let channel = match &backend.channel {
            Ok(channel) => channel,
            Err(why) => return Ok(plain(StatusCode::INTERNAL_SERVER_ERROR, why)),
        };
        let address = match self.extension_server(&backend.spec) {
            Ok(addresses) => addresses.first().copied(),
            Err(why) => {
                debug!(
                    apiservice = backend.name,
                    "an extension API server is not found: {why}"
                );
                None
            }
        };
        let Some(address) = address else {
            return Ok(unavailable());
        };
        let upgrades = !header::elements(&http.headers, &http::header::UPGRADE)?.is_empty();
        let mut headers = passing(&http.headers, upgrades);
        assert_user(&mut headers, user)?;
        forwarded_for(&mut headers, http);
        let path = http.request.uri().path_and_query().map_or("/", |p| p.as_str());
        let mut request = Request::builder().method(http.method.clone()).uri(path);
        if let Some(all) = request.headers_mut() {
            *all = headers;
        }
        if upgrades {
            let request = request.body(()).map_err(Error::internal)?;
            let limit = self.config.options.request_timeout;
            let upgraded = timeout(limit, upgraded(channel, address, request, http)).await;
            return Ok(match upgraded {
                Ok(Ok(response)) => response,
                Ok(Err(why)) => plain(StatusCode::SERVICE_UNAVAILABLE, &why),
                Err(_) => plain(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "error dialing backend: context deadline exceeded",
                ),
            });
        }
        let request = request.body(outgoing_body(http)).map_err(Error::internal)?;
        let failed = |why: String| {
            plain(
                StatusCode::SERVICE_UNAVAILABLE,
                &format!("error trying to reach service: {why}"),
            )
        };
        let sent = channel.send(address, request);
        let limit = match is_discovery(http) {
            true => Some(DISCOVERY_LIMIT),
            false => None,
        };
        let answered = match limit {
            None => sent.await,
            Some(limit) => timeout(limit, sent)
                .await
                .unwrap_or_else(|_| Err("context deadline exceeded".into())),
        };
        let limit = limit.or_else(|| {
            let bounded = !http.info.is_long_running();
            bounded.then_some(self.config.options.request_timeout)
        });
        Ok(answered.map_or_else(failed, |answer| returned(answer, limit)))
    }

    /// What an extension API server answers to this server itself, or to one of its components.
    pub(super) async fn fetch(&self, backend: &Backend, fetch: Fetch<'_>) -> Result<Fetched, String> {
        let addresses = self.extension_server(&backend.spec)?;
        let address = addresses.first().ok_or("no endpoints available")?;
        self.fetch_at(backend, *address, fetch).await
    }

    /// The same at one of its endpoints.
    pub(super) async fn fetch_at(
        &self,
        backend: &Backend,
        address: SocketAddr,
        fetch: Fetch<'_>,
    ) -> Result<Fetched, String> {
        let channel = backend.channel.as_ref().map_err(Clone::clone)?;
        let mut request = Request::builder().method(fetch.method).uri(fetch.path);
        if let Some(headers) = request.headers_mut() {
            assert_user(headers, fetch.user).map_err(|e| e.to_string())?;
            let value = |text: &str| HeaderValue::from_str(text).map_err(|e| e.to_string());
            headers.insert(http::header::ACCEPT, value(fetch.accept)?);
            if let Some(etag) = fetch.etag {
                headers.insert(http::header::IF_NONE_MATCH, value(etag)?);
            }
        }
        let request = request.body(full(Bytes::new())).map_err(|e| e.to_string())?;
        let exchange = async {
            let answer = channel.send(address, request).await?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, fetch.max_bytes).collect().await;
            Ok(Fetched {
                status: head.status,
                headers: head.headers,
                body: body.map_err(|e| e.to_string())?.to_bytes(),
            })
        };
        timeout(fetch.limit, exchange)
            .await
            .unwrap_or_else(|_| Err("context deadline exceeded".into()))
    }
}

/// `/apis/<group>/<version>` itself.
fn is_discovery(http: &Http) -> bool {
    let path = http.info.path.trim_matches('/');
    !http.info.is_resource && path.split('/').count() == 3
}

/// The client's body as it comes, each piece in time.
fn outgoing_body(http: &mut Http) -> Body {
    let none = Either::Right(Empty::new());
    let body = std::mem::replace(http.request.body_mut(), none);
    if hyper::body::Body::is_end_stream(&body) {
        return full(Bytes::new());
    }
    let late = "the rest of the request's body did not come";
    timed(body, Limit::Piece(http.patience.body), late)
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

/// The answer as its client gets it. A redirect could lead anywhere, and is not passed on.
fn returned(answer: Response<Incoming>, limit: Option<Duration>) -> Response<Body> {
    if answer.status().is_redirection() && answer.headers().contains_key(LOCATION) {
        let words = "the backend attempted to redirect this request, which is not permitted";
        return text(StatusCode::BAD_GATEWAY, words);
    }
    let (mut head, body) = answer.into_parts();
    hop_by_hop(&mut head.headers);
    for name in CORS {
        head.headers.remove(name);
    }
    head.extensions.clear();
    head.version = http::Version::default();
    let late = "the extension API server did not send the rest of its answer";
    let body = match limit {
        Some(limit) => timed(body, Limit::Whole(limit), late),
        None => body.map_err(Into::into).boxed_unsync(),
    };
    Response::from_parts(head, body)
}

/// Lets the client and the server go on in the protocol that they agree on.
async fn upgraded(
    channel: &Channel,
    address: SocketAddr,
    request: Request<()>,
    http: &mut Http,
) -> Result<Response<Body>, String> {
    let dialing = |why: String| format!("error dialing backend: {why}");
    let stream = channel.dial(address).await.map_err(dialing)?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.map_err(|e| dialing(e.to_string())).await?;
    tokio::spawn(async move {
        if let Err(e) = connection.with_upgrades().await {
            debug!("a connection to an extension API server ended: {e}");
        }
    });
    let mut request = request.map(|()| full(Bytes::new()));
    let host = HeaderValue::from_str(&address.to_string()).map_err(|e| e.to_string())?;
    request.headers_mut().insert(HOST, host);
    let mut answer = sender.send_request(request).await.map_err(|e| e.to_string())?;
    match answer.status() {
        StatusCode::SWITCHING_PROTOCOLS => {
            splice(&mut answer, &mut http.request);
            let mut response = answer.map(|_| full(Bytes::new()));
            response.headers_mut().remove(CONTENT_LENGTH);
            Ok(response)
        }
        status if status.as_u16() < 400 => Err(format!(
            "invalid upgrade response: status code {}",
            status.as_u16()
        )),
        _ => Ok(returned(answer, Some(DISCOVERY_LIMIT * 2))),
    }
}
