//! The context of a trace in the headers of requests (W3C Trace Context: `traceparent`), so that the spans of a client, of the API server and
//! of what it calls form one trace.
//!
//! The process's propagator, which reads and writes the headers, is set where traces are exported; without one both functions do nothing.

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::global;
use opentelemetry::propagation::{Extractor, Injector};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Adds the context of the current span to the headers of a request.
pub fn inject(headers: &mut HeaderMap) {
    let span = Span::current();
    if !span.is_disabled() {
        let context = span.context();
        global::get_text_map_propagator(|propagator| {
            propagator.inject_context(&context, &mut Headers(headers));
        });
    }
}

/// Makes the span of the client that sent these headers the parent of `span`, which must not have been entered.
pub fn set_parent(span: &Span, headers: &HeaderMap) {
    if !span.is_disabled() {
        let context = global::get_text_map_propagator(|propagator| propagator.extract(&Sent(headers)));
        // An error means that no traces are exported.
        let _ = span.set_parent(context);
    }
}

struct Headers<'a>(&'a mut HeaderMap);

impl Injector for Headers<'_> {
    fn set(&mut self, key: &str, value: String) {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(key), HeaderValue::try_from(value)) {
            self.0.insert(name, value);
        }
    }
}

struct Sent<'a>(&'a HeaderMap);

impl Extractor for Sent<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}
