//! Responses as the kubelet gives them: errors are plain text.

use std::convert::Infallible;
use std::fmt::Display;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};

use crate::runtime::RuntimeError;

pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// An error response: its code and the text that users see.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HttpError {
    pub code: StatusCode,
    pub text: String,
}

impl HttpError {
    pub fn new(code: StatusCode, text: impl Display) -> Self {
        HttpError {
            code,
            text: text.to_string(),
        }
    }

    pub fn bad_request(text: impl Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    pub fn not_found(text: impl Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, text)
    }

    pub fn internal(text: impl Display) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    }
}

/// CRI's errors as HTTP codes, as the kubelet maps them.
impl From<RuntimeError> for HttpError {
    fn from(error: RuntimeError) -> Self {
        let code = match error.code {
            "NotFound" => StatusCode::NOT_FOUND,
            "ResourceExhausted" => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        HttpError::new(code, error)
    }
}

/// An error with its sources, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

pub(super) fn text(code: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    body(
        Response::builder()
            .status(code)
            .header(CONTENT_TYPE, "text/plain; charset=utf-8"),
        text,
    )
}

/// A request that the authorizer rejected. An unauthenticated client's connection is closed.
pub(super) fn rejected(code: StatusCode, message: impl Into<Bytes>) -> Response<Body> {
    let mut response = text(code, message);
    if code != StatusCode::FORBIDDEN {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
    }
    response
}

pub(super) fn json(bytes: impl Into<Bytes>) -> Response<Body> {
    body(
        Response::builder().header(CONTENT_TYPE, "application/json"),
        bytes,
    )
}

/// All heads here are made of constants and checked values, so they are well-formed; an ill-formed one is a bug and
/// answered as an internal error.
pub(super) fn body(head: http::response::Builder, bytes: impl Into<Bytes>) -> Response<Body> {
    let body = Full::new(bytes.into()).boxed_unsync();
    head.body(body).unwrap_or_else(|error| {
        let mut response = Response::new(Full::new(Bytes::from(error.to_string())).boxed_unsync());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}
