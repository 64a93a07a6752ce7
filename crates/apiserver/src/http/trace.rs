//! The span of a request, for logs and traces.

use knarr_client::trace_context;
use tracing::{Span, debug_span, field};

use super::Http;
use crate::user::{AUTHENTICATED, User};

/// The span of a request; its `status` is recorded with the response. An authenticated client's own trace continues in it.
pub(super) fn request_span(http: &Http, user: &User, audit_id: &str) -> Span {
    let info = &http.info;
    let span = debug_span!(
        "request",
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
