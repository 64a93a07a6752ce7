//! HTTP: each request from its bytes to its response. Connections are accepted in `frontend`; the layers that each request passes are in `chain`.

pub mod accept;
pub mod body;
pub(crate) mod chain;
mod connection;
pub mod connections;
pub(crate) mod frontend;
pub mod header;
mod health;
pub(crate) mod patch;
pub mod query;
pub(crate) mod raw;
pub(crate) mod resource;
pub mod response;
pub(crate) mod timeouts;
mod trace;
mod websocket;

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderName};
use http::{HeaderMap, Request};
use http_body_util::{Either, Empty};
use hyper::body::Incoming;
use knarr_api::AnyObject;
use knarr_apimachinery::Error;

use self::body::{BodyError, read_all};
pub use self::connection::Protocol;
use self::query::Query;
use self::response::ResponseFormat;
pub use self::timeouts::Timeouts;
use crate::aggregation::Backend;
use crate::authz::{Attributes, Selectors};
use crate::flow_control::Flow;
use crate::pipeline::decode::{Json, to_json};
use crate::request::RequestInfo;

/// Largest request body, as in kube-apiserver.
const BODY_MAX_BYTES: usize = 3 * 1024 * 1024;
/// How much is read of a body that is too large, so that most clients come to read the error.
const BODY_READ_BYTES: usize = 2 * BODY_MAX_BYTES;

/// A request's body as it is received; empty once it has been taken.
pub(crate) type RequestBody = Either<Incoming, Empty<Bytes>>;

/// One request being served.
pub(crate) struct Http {
    pub info: RequestInfo,
    pub query: Query,
    /// The headers; `request` has them no more.
    pub headers: HeaderMap,
    pub method: http::Method,
    pub format: ResponseFormat,
    pub request: Request<RequestBody>,
    /// The extension API server that serves it, if this server does not.
    pub backend: Option<Arc<Backend>>,
    pub timeouts: Timeouts,
    /// The body, once it has been read.
    pub body: Option<Bytes>,
    /// Whether the request body is written to the audit log.
    pub audited: bool,
    /// The object of the body as it was decoded, in JSON, if it is written to the audit log.
    pub sent: Option<Bytes>,
    /// Identifies the request, for clients and in the audit log.
    pub audit_id: String,
    /// The client's address.
    pub client: Option<IpAddr>,
    /// The request's flow, once it has been classified.
    pub flow: Option<Flow>,
}

impl Http {
    /// Reads the body, if it is not too large.
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
        match read_all(body, BODY_READ_BYTES, self.timeouts.body).await {
            Ok(bytes) => {
                let body = Some(bytes).filter(|b| b.len() <= BODY_MAX_BYTES);
                self.body.clone_from(&body);
                body.ok_or_else(too_large)
            }
            Err(BodyError::TooLarge) => Err(too_large()),
            Err(e @ BodyError::Late) => Err(Error::new(408, "Timeout", e.to_string())),
            Err(e @ BodyError::Broken(_)) => Err(Error::bad_request(e.to_string())),
        }
    }

    /// Reads the body as JSON, from any media type; `kind` is the kind that it must have.
    pub async fn json_body(&mut self, kind: &str) -> Result<Json, Error> {
        let body = self.body().await?;
        to_json(kind, self.header(http::header::CONTENT_TYPE), body)
    }

    /// The attributes for authorization.
    pub fn attributes(&self) -> Attributes<'_> {
        let selectors = Selectors {
            fields: self.query.get("fieldSelector"),
            labels: self.query.get("labelSelector"),
        };
        Attributes::of(&self.info, selectors)
    }

    /// Keeps the object that a body was decoded to for the audit log, which must show exactly what is done.
    pub fn decoded(&mut self, object: &dyn AnyObject) {
        if self.audited {
            self.sent = Some(encoded(object).into());
        }
    }

    /// The header's first value. Headers that identify the request were checked before ([`header::check`]).
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
