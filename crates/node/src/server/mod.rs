//! The kubelet's HTTP server, as the API server reaches it: logs, exec, attach, port-forward, and what pods there are.
//!
//! Serves HTTP/1.1 on any stream ([`Server::serve`]); the accepter of the stream decides who may connect. Answers are
//! the kubelet's: plain text for errors, which the API server turns into a Status.

mod allocation_metrics;
mod host;
mod metrics;
mod node_logs;
mod pod_container;
mod request;
mod response;
mod streams;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use k8s_openapi::List;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_client::metrics::{CONTENT_TYPE as METRICS_TYPE, Registry};
use knarr_client::{Conn, NodeDialer};
use knarr_kubelet::stats::Summary;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::task::TaskTracker;

use crate::containermanager::ContainerManager;
use crate::kubelet::network::NodeNetwork;
use crate::logs;
use crate::probe::Counts;
use crate::stats::{Measured, Meter};

pub use host::{Containers, Pods, RuntimeContainers};
use request::{PodPath, Query, Target};
use response::{Body, HttpError, body, chain, json, rejected, text};

/// Wall-clock time, handed in.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The largest age of stats in an answer.
const STATS_CACHE_AGE: Duration = Duration::from_secs(5);
/// Pieces of a log that wait for a slow reader.
const LOG_PIECES: usize = 4;
/// How long a request's head may take, and how long a connection may wait for the next request. As the API server's.
const HEAD_TIMEOUT: Duration = Duration::from_secs(32);
/// How long authentication and authorization may take.
const GATE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a request that is no stream may take, as the API server's.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Logs and streams at once, of all clients. Each holds buffers, and descriptors of the runtime's.
const STREAMS_MAX: usize = 1024;
/// Bytes on their way between the API server and the kubelet of the same process, each way.
const PIPE_BYTES: usize = 64 * 1024;

/// Authorizes requests, where connections come from the network.
#[async_trait]
pub trait RequestAuthorizer: Send + Sync {
    /// Lets a request pass, or returns the code and message of its rejection.
    async fn pass(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<(), (StatusCode, String)>;
}

/// Every request is allowed: the API server's own pipe.
struct AllowAll;

#[async_trait]
impl RequestAuthorizer for AllowAll {
    async fn pass(&self, _: &Method, _: &str, _: &HeaderMap) -> Result<(), (StatusCode, String)> {
        Ok(())
    }
}

/// One node's server. Cheap to clone; streams last until they end, even when their connection is closed.
#[derive(Clone)]
pub struct Server {
    pods: Arc<dyn Pods>,
    containers: Arc<dyn Containers>,
    clock: Clock,
    meter: Option<Arc<dyn Meter>>,
    probes: Arc<Counts>,
    container_manager: Option<Arc<ContainerManager>>,
    network: Option<Arc<dyn NodeNetwork>>,
    /// Those of the kubelet's requests to the API server.
    registry: Registry,
    streams: TaskTracker,
    /// What is left of [`STREAMS_MAX`].
    stream_permits: Arc<Semaphore>,
    handlers: EnabledHandlers,
    configuration: Option<Bytes>,
}

/// What an administrator may switch off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnabledHandlers {
    /// All that reaches into pods, and the logs of node and pods.
    pub debugging: bool,
    /// The logs of the node.
    pub system_logs: bool,
}

impl Default for EnabledHandlers {
    fn default() -> Self {
        EnabledHandlers {
            debugging: true,
            system_logs: true,
        }
    }
}

impl EnabledHandlers {
    fn check(self, target: &Target) -> Result<(), HttpError> {
        let debugging = matches!(
            target,
            Target::Exec(_)
                | Target::Attach(_)
                | Target::PortForward(_)
                | Target::ContainerLogs(_)
                | Target::RunningPods
                | Target::NodeLogs(_)
        );
        if debugging && !self.debugging {
            let message = "Debug endpoints are disabled.";
            return Err(HttpError::new(StatusCode::METHOD_NOT_ALLOWED, message));
        }
        if matches!(target, Target::NodeLogs(_)) && !self.system_logs {
            let message = "logs endpoint is disabled.";
            return Err(HttpError::new(StatusCode::METHOD_NOT_ALLOWED, message));
        }
        Ok(())
    }
}

impl Server {
    pub fn new(pods: Arc<dyn Pods>, containers: Arc<dyn Containers>, clock: Clock) -> Self {
        Server {
            pods,
            containers,
            clock,
            meter: None,
            probes: Arc::default(),
            container_manager: None,
            network: None,
            registry: Registry::default(),
            streams: TaskTracker::new(),
            stream_permits: Arc::new(Semaphore::new(STREAMS_MAX)),
            handlers: EnabledHandlers::default(),
            configuration: None,
        }
    }

    /// With a KubeletConfiguration for `/configz`.
    #[must_use]
    pub fn configured(self, configuration: &Value) -> Self {
        let shown = serde_json::json!({"kubeletconfig": configuration}).to_string();
        Server {
            configuration: Some(shown.into()),
            ..self
        }
    }

    /// With less than everything.
    #[must_use]
    pub fn with_handlers(self, handlers: EnabledHandlers) -> Self {
        Server { handlers, ..self }
    }

    /// With a meter; without one there are no stats.
    #[must_use]
    pub fn with_meter(self, meter: Option<Arc<dyn Meter>>, probes: Arc<Counts>) -> Self {
        Server {
            meter,
            probes,
            ..self
        }
    }

    /// With the metrics of what allocates CPUs, memory and devices.
    #[must_use]
    pub fn with_container_manager(self, container_manager: Arc<ContainerManager>) -> Self {
        Server {
            container_manager: Some(container_manager),
            ..self
        }
    }

    /// With further metrics of the kubelet's process.
    #[must_use]
    pub fn with_metrics(self, registry: Registry) -> Self {
        Server { registry, ..self }
    }

    /// With the metrics of the network's agent.
    #[must_use]
    pub fn with_network(self, network: Arc<dyn NodeNetwork>) -> Self {
        Server {
            network: Some(network),
            ..self
        }
    }

    /// Serves one connection until it ends or is upgraded.
    pub async fn serve(&self, io: impl Conn) {
        self.serve_authorized(io, &AllowAll).await;
    }

    /// The same, with every request authorized by `gate` first.
    pub async fn serve_authorized(&self, io: impl Conn, gate: &dyn RequestAuthorizer) {
        let service = service_fn(|request: Request<Incoming>| async move {
            let (method, path) = (request.method(), request.uri().path());
            let passes = gate.pass(method, path, request.headers());
            let passed = tokio::time::timeout(GATE_TIMEOUT, passes).await;
            Ok::<_, Infallible>(match passed {
                Ok(Ok(())) => self.answer(request).await,
                Ok(Err((code, message))) => rejected(code, message),
                Err(_) => rejected(StatusCode::SERVICE_UNAVAILABLE, "Authorization timed out"),
            })
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(io), service)
            .with_upgrades();
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection to the kubelet's server broke");
        }
    }

    /// Boxed: the future is compiled once, here, and not for each type of connection.
    fn answer(&self, request: Request<Incoming>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            let (method, path) = (request.method().clone(), request.uri().path().to_string());
            match self.route(request).await {
                Ok(response) => response,
                Err(HttpError { code, text: message }) => {
                    tracing::debug!(%method, path, %code, message, "request failed");
                    text(code, message)
                }
            }
        })
    }

    async fn route(&self, request: Request<Incoming>) -> Result<Response<Body>, HttpError> {
        let target = Target::parse(request.uri().path())?;
        self.handlers.check(&target)?;
        let streams = matches!(
            target,
            Target::Exec(_) | Target::Attach(_) | Target::PortForward(_)
        );
        let method = request.method();
        let head = target == Target::Healthz && method == Method::HEAD;
        if method != Method::GET && !head && !(streams && method == Method::POST) {
            return Err(HttpError::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "405: Method Not Allowed",
            ));
        }
        let query = Query::parse(request.uri().query().unwrap_or_default())?;
        // Streams are not limited once they have started.
        tokio::time::timeout(REQUEST_TIMEOUT, self.dispatch(target, &query, request))
            .await
            .unwrap_or_else(|_| {
                let message = "the request timed out";
                Err(HttpError::new(StatusCode::GATEWAY_TIMEOUT, message))
            })
    }

    /// A permit for a log or a stream, held as long as it lasts.
    fn stream_permit(&self) -> Result<OwnedSemaphorePermit, HttpError> {
        self.stream_permits.clone().try_acquire_owned().map_err(|_| {
            let message = format!("{STREAMS_MAX} logs and streams are open on this node, which is the limit");
            HttpError::new(StatusCode::TOO_MANY_REQUESTS, message)
        })
    }

    async fn dispatch(
        &self,
        target: Target,
        query: &Query,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, HttpError> {
        match target {
            Target::Healthz => Ok(text(StatusCode::OK, "ok")),
            Target::Configz => {
                let shown = self.configuration.clone();
                let shown = shown.ok_or_else(|| HttpError::not_found("404 page not found"))?;
                Ok(json(shown))
            }
            Target::Pods => self.list_pods(|_| true),
            Target::RunningPods => self.list_pods(|pod| {
                let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
                phase == Some("Running")
            }),
            Target::NodeLogs(path) => node_logs::serve(&path).await,
            Target::Summary => {
                let measured = self.measured().await?;
                let summary = serde_json::to_vec(&measured.summary).map_err(HttpError::internal)?;
                Ok(json(summary))
            }
            Target::Metrics => {
                let container_manager = self.container_manager.as_ref().map(|of| of.metrics());
                let container_manager = container_manager
                    .map(|of| allocation_metrics::of(&of))
                    .unwrap_or_default();
                let more = container_manager + &self.registry.text();
                self.metrics(|s| metrics::own(s, &metrics::KubeletProcess::read()) + &more)
                    .await
            }
            Target::ProbeMetrics => Ok(body(
                Response::builder().header(CONTENT_TYPE, METRICS_TYPE),
                metrics::probes(&self.probes.all()),
            )),
            Target::NetworkMetrics => Ok(body(
                Response::builder().header(CONTENT_TYPE, METRICS_TYPE),
                self.network
                    .as_ref()
                    .map(|network| network.metrics())
                    .unwrap_or_default(),
            )),
            Target::ResourceMetrics => self.metrics(metrics::resource).await,
            Target::CadvisorMetrics => {
                let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
                self.metrics(|s| metrics::cadvisor(s, cpus)).await
            }
            Target::ContainerLogs(path) => self.logs(&path, query, self.stream_permit()?).await,
            Target::Exec(path) => self.exec(&path, query, &mut request, self.stream_permit()?).await,
            Target::Attach(path) => {
                self.attach(&path, query, &mut request, self.stream_permit()?)
                    .await
            }
            Target::PortForward(path) => {
                self.port_forward(&path, query, &mut request, self.stream_permit()?)
                    .await
            }
        }
    }

    async fn measured(&self) -> Result<Arc<Measured>, HttpError> {
        let meter = self
            .meter
            .as_ref()
            .ok_or_else(|| HttpError::not_found("404 page not found"))?;
        Ok(meter.measure(STATS_CACHE_AGE).await)
    }

    async fn metrics(&self, show: impl Fn(&Summary) -> String) -> Result<Response<Body>, HttpError> {
        let measured = self.measured().await?;
        let head = Response::builder().header(CONTENT_TYPE, METRICS_TYPE);
        Ok(body(head, show(&measured.summary)))
    }

    fn list_pods(&self, desired: impl Fn(&Pod) -> bool) -> Result<Response<Body>, HttpError> {
        let pods = self.pods.list();
        let items = pods.iter().filter(|pod| desired(pod)).map(|pod| Pod::clone(pod));
        let items = items.collect();
        let list = List::<Pod> {
            items,
            ..List::default()
        };
        Ok(json(serde_json::to_vec(&list).map_err(HttpError::internal)?))
    }

    async fn logs(
        &self,
        path: &PodPath,
        query: &Query,
        permit: OwnedSemaphorePermit,
    ) -> Result<Response<Body>, HttpError> {
        let options = logs::Options::from_query(query.pairs(), (self.clock)())
            .map_err(|errors| HttpError::new(StatusCode::UNPROCESSABLE_ENTITY, errors))?;
        let pod = self.pods.get(&path.namespace, &path.pod);
        let pod = pod.ok_or_else(|| HttpError::not_found(format!("pod {:?} does not exist", path.pod)))?;
        let container = &path.container;
        if !pod_container::is_specified(&pod, container) {
            return Err(HttpError::not_found(format!(
                "container {container:?} not found in pod {:?}",
                path.pod
            )));
        }
        let id =
            pod_container::logged_run(&pod, container, options.previous).map_err(HttpError::bad_request)?;
        let detail = self.containers.container(&id).await.map_err(|error| {
            tracing::debug!(%error, container = id, "a container of the status does not exist");
            HttpError::bad_request(format!("unable to retrieve container logs for containerd://{id}"))
        })?;
        let log = logs::read(detail.log_path.as_ref(), options)
            .await
            .map_err(|e| HttpError::bad_request(chain(&e)))?;

        let (out, pieces) = mpsc::channel(LOG_PIECES);
        let containers = self.containers.clone();
        self.streams.spawn(async move {
            let _permit = permit;
            if let Err(error) = log.send(containers.exited(&id), out.clone()).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    container = id,
                    "log broke off"
                );
                // The head is sent: the error is appended to the body, as the kubelet does it. A client that has
                // disconnected does not receive it.
                let _ = out.send(chain(&error).into()).await;
            }
        });
        let pieces = stream::unfold(pieces, |mut pieces| async move {
            Some((pieces.recv().await?, pieces))
        });
        let pieces = StreamBody::new(pieces.map(|piece| Ok(Frame::data(piece))));
        let mut response = Response::new(BodyExt::boxed_unsync(pieces));
        let plain = http::HeaderValue::from_static("text/plain");
        response.headers_mut().insert(CONTENT_TYPE, plain);
        Ok(response)
    }
}

/// [`NodeDialer`] for the node in this process: each dial is a pipe into its server.
pub struct InProcess {
    /// The one node there is.
    pub node: String,
    pub server: Server,
}

#[async_trait]
impl NodeDialer for InProcess {
    async fn dial(&self, node: &str) -> std::io::Result<Box<dyn Conn>> {
        if node != self.node {
            let known = format!("node {node:?} is not known, only {:?} is", self.node);
            return Err(std::io::Error::new(std::io::ErrorKind::NotFound, known));
        }
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let server = self.server.clone();
        self.server
            .streams
            .spawn(async move { server.serve(theirs).await });
        Ok(Box::new(ours))
    }
}

#[cfg(test)]
mod tests;
