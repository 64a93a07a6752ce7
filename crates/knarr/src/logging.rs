//! Logs on standard error, as text or as JSON, and traces to an OpenTelemetry collector.
//!
//! Requests, reconciliations and pods' steps are spans of level debug or info. Where no traces are exported, those that the log filter
//! leaves out are disabled: their fields are never formatted.

use std::io::IsTerminal;
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::config::{Config, LogFormat, TracingConfiguration};

/// The name of this process in traces.
const SERVICE: &str = "knarr";
/// How long the end of the process waits until the last spans are exported.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Exports traces until it is dropped.
pub struct Traces(Option<SdkTracerProvider>);

impl Drop for Traces {
    fn drop(&mut self) {
        if let Some(provider) = &self.0
            && let Err(error) = provider.shutdown_with_timeout(EXPORT_TIMEOUT)
        {
            tracing::debug!(%error, "the last spans were not exported");
        }
    }
}

/// Starts logging and the export of traces as configured. Colours only on a terminal. Needs a tokio runtime.
pub fn start(config: &Config) -> Result<Traces, ExporterBuildError> {
    // boringtun's messages about nodes that do not answer do not name the node.
    // rustls warns of every handshake with an invalid server name; the API server logs that once.
    let filter = EnvFilter::new(format!(
        "boringtun=off,rustls::msgs::handshake=error,{}",
        config.log
    ));
    let provider = config.tracing.as_ref().map(provider).transpose()?;
    let spans = provider.as_ref().map(|provider| {
        let own_spans = filter_fn(|metadata| metadata.is_span() && metadata.target().starts_with("knarr"));
        tracing_opentelemetry::layer()
            .with_tracer(provider.tracer(SERVICE))
            .with_filter(own_spans.with_max_level_hint(LevelFilter::DEBUG))
    });
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match config.log_format {
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
        LogFormat::Human => lines
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .boxed(),
    };
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(spans)
        .init();
    Ok(Traces(provider))
}

fn provider(config: &TracingConfiguration) -> Result<SdkTracerProvider, ExporterBuildError> {
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(format!("http://{}", config.endpoint))
        .build()?;
    opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
    // As in Kubernetes: a client's decision counts for its traces.
    let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.sampling_ratio())));
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(sampler)
        .with_resource(Resource::builder().with_service_name(SERVICE).build())
        .build())
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};
    use knarr_client::trace_context;

    use super::*;

    #[test]
    fn a_clients_trace_continues_in_the_requests_that_follow_from_its_own() {
        opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
        let provider = SdkTracerProvider::builder().build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer(SERVICE));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-";
            let received = format!("{TRACE}b7ad6b7169203331-01");
            let received = HeaderValue::try_from(received).unwrap();
            let received = HeaderMap::from_iter([(http::HeaderName::from_static("traceparent"), received)]);
            let span = tracing::info_span!("request");
            trace_context::set_parent(&span, &received);
            let mut sent = HeaderMap::new();
            span.in_scope(|| trace_context::inject(&mut sent));
            let sent = sent["traceparent"].to_str().unwrap();
            assert!(sent.starts_with(TRACE) && sent.ends_with("-01"), "{sent}");
            assert!(!sent.contains("b7ad6b7169203331"), "{sent}");
        });
    }
}
