//! An OpenTelemetry collector in this process: keeps the spans that knarr exports over gRPC.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{AnyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1 as otlp;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::{Request, Response, Status};

use super::steps::{Nanos, Span};

/// Spans that are kept of one pod; a pod has some hundred with all requests meanwhile. More are dropped.
const SPANS_MAX: usize = 100_000;

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<Span>>>);

/// Collects until it is dropped.
pub struct Collector {
    kept: Kept,
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Collector {
    pub async fn start() -> std::io::Result<Collector> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let kept = Kept::default();
        let task = tokio::spawn(serve(listener, kept.clone()));
        Ok(Collector { kept, address, task })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// All that have arrived.
    pub fn spans(&self) -> Vec<Span> {
        self.kept.0.lock().clone()
    }

    /// Forgets them.
    pub fn clear(&self) {
        self.kept.0.lock().clear();
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, kept: Kept) {
    while let Ok((stream, _)) = listener.accept().await {
        let service = TowerToHyperService::new(TraceServiceServer::new(kept.clone()));
        tokio::spawn(async move {
            let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = serving.await {
                // Also the end of the cluster.
                eprintln!("bench: a connection of the trace exporter ended: {error}");
            }
        });
    }
}

#[async_trait::async_trait]
impl TraceService for Kept {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans;
        let scopes = resources.into_iter().flat_map(|r| r.scope_spans);
        let mut kept = self.0.lock();
        for span in scopes.flat_map(|s| s.spans) {
            if kept.len() == SPANS_MAX {
                return Err(Status::resource_exhausted("too many spans of one pod"));
            }
            kept.push(span_of(span));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn span_of(span: otlp::Span) -> Span {
    let nanos = |at: u64| Nanos::try_from(at).unwrap_or(Nanos::MAX);
    let attributes = span.attributes.into_iter();
    let attributes: BTreeMap<String, String> = attributes
        .filter_map(|a| Some((a.key, text(a.value?)?)))
        .collect();
    Span {
        id: span.span_id,
        parent: span.parent_span_id,
        name: span.name,
        begin: nanos(span.start_time_unix_nano),
        end: nanos(span.end_time_unix_nano),
        attributes,
    }
}

/// A text or a number.
fn text(value: AnyValue) -> Option<String> {
    match value.value? {
        Value::StringValue(text) => Some(text),
        Value::IntValue(n) => Some(n.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
    use opentelemetry_proto::tonic::common::v1::KeyValue;
    use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans};

    use super::*;

    #[tokio::test]
    async fn an_exported_span_is_kept_with_its_attributes() {
        let collector = Collector::start().await.unwrap();
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", collector.address()))
            .unwrap()
            .connect()
            .await
            .unwrap();
        let attribute = |key: &str, value| KeyValue {
            key: key.into(),
            value: Some(AnyValue { value: Some(value) }),
            ..KeyValue::default()
        };
        let span = otlp::Span {
            name: "create_sandbox".into(),
            span_id: vec![2],
            parent_span_id: vec![1],
            start_time_unix_nano: 5,
            end_time_unix_nano: 7,
            attributes: vec![
                attribute("uid", Value::StringValue("u".into())),
                attribute("code.line.number", Value::IntValue(3)),
                attribute("ignored", Value::BoolValue(true)),
            ],
            ..otlp::Span::default()
        };
        let request = ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                scope_spans: vec![ScopeSpans {
                    spans: vec![span],
                    ..ScopeSpans::default()
                }],
                ..ResourceSpans::default()
            }],
        };
        TraceServiceClient::new(channel).export(request).await.unwrap();
        let expected = Span {
            id: vec![2],
            parent: vec![1],
            name: "create_sandbox".into(),
            begin: 5,
            end: 7,
            attributes: [("uid", "u"), ("code.line.number", "3")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        };
        assert_eq!(collector.spans(), [expected]);
        collector.clear();
        assert_eq!(collector.spans(), []);
    }
}
