//! The span of a request, for logs and traces.

use std::fmt;

use http::{Method, StatusCode};
use knarr_client::trace_context;
use tracing::{Span, debug_span, field};

use super::Http;
use crate::request::RequestInfo;
use crate::user::{AUTHENTICATED, User};

/// The name of a request's span, as kube-apiserver's: the method and the path of its resource, with placeholders for the
/// names, so that the requests of one kind have one name.
struct SpanName<'a> {
    method: &'a Method,
    info: &'a RequestInfo,
}

impl fmt::Display for SpanName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = self.info;
        write!(f, "{}", self.method)?;
        if !info.is_resource {
            return Ok(());
        }
        match info.group.as_str() {
            "" => write!(f, " /api/{}", info.version)?,
            group => write!(f, " /apis/{group}/{}", info.version)?,
        }
        if !info.namespace.is_empty() {
            f.write_str("/namespaces/{:namespace}")?;
        }
        write!(f, "/{}", info.resource)?;
        if !info.name.is_empty() {
            f.write_str("/{:name}")?;
        }
        if !info.subresource.is_empty() {
            write!(f, "/{}", info.subresource)?;
        }
        Ok(())
    }
}

/// The span of a request; [`record_status`] adds what the response says. An authenticated client's own trace continues in it.
pub(super) fn request_span(http: &Http, user: &User, audit_id: &str) -> Span {
    let info = &http.info;
    let span = debug_span!(
        "request",
        otel.name = %SpanName { method: &http.method, info },
        otel.kind = "server",
        otel.status_code = field::Empty,
        verb = info.verb,
        resource = info.resource,
        subresource = info.subresource,
        namespace = info.namespace,
        name = info.name,
        user = user.name,
        audit_id,
        status = field::Empty,
    );
    if user.is_in(AUTHENTICATED) {
        trace_context::set_parent(&span, &http.headers);
    }
    span
}

/// The span of a request that the server could not serve has the status of an error.
pub(super) fn record_status(span: &Span, status: StatusCode) {
    span.record("status", status.as_u16());
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_named_as_kube_apiservers() {
        for (method, path, expected) in [
            (
                Method::GET,
                "/api/v1/namespaces/shop/pods/web-1/log",
                "GET /api/v1/namespaces/{:namespace}/pods/{:name}/log",
            ),
            (
                Method::POST,
                "/apis/apps/v1/namespaces/shop/deployments",
                "POST /apis/apps/v1/namespaces/{:namespace}/deployments",
            ),
            (Method::GET, "/api/v1/nodes/n1", "GET /api/v1/nodes/{:name}"),
            (Method::GET, "/healthz", "GET"),
        ] {
            let info = RequestInfo::parse(&method, path, false);
            let name = SpanName {
                method: &method,
                info: &info,
            };
            assert_eq!(name.to_string(), expected, "{path}");
        }
    }
}
