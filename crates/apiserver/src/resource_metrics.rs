//! metrics.k8s.io: the current usage of nodes and pods, for `kubectl top` and autoscalers, from the kubelets' stats.
//!
//! Nothing is stored: each request gets `/stats/summary` of the nodes' kubelets, all at once, each with a timeout. A node that does not answer is
//! left out, as in metrics-server. The group is served while there is a node with knarr's own kubelet: other clusters have a metrics-server to
//! serve it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use http::header::HOST;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use knarr_api::fields;
use knarr_api::{Object, k8s_openapi, registry};
use knarr_apimachinery::Error;
use knarr_client::NodeDialer;
use serde_json::{Value, json};
use tracing::debug;

use crate::aggregation::Aggregation;
use crate::authz::{Attributes, Selectors, forbidden};
use crate::http::Http;
use crate::http::body::{Body, BoxError};
use crate::http::query::Query;
use crate::http::response::HandlerResponse;
use crate::pipeline::Pipeline;
use crate::pipeline::read::ListQuery;
use crate::request::{RequestInfo, Target, not_allowed, not_served};
use crate::user::User;

pub(crate) const GROUP: &str = "metrics.k8s.io";
const VERSION: &str = "v1beta1";
const GROUP_VERSION: &str = "metrics.k8s.io/v1beta1";
/// The timeout for a kubelet's response.
const KUBELET_TIMEOUT: Duration = Duration::from_secs(5);
/// How many kubelets are requested at a time.
const CONCURRENT_REQUESTS: usize = 64;
/// A summary of a node with a thousand busy pods is a few megabytes.
const SUMMARY_BYTES_MAX: usize = 32 << 20;
/// The window of the CPU usage: about the interval in which kubelets measure.
const WINDOW: &str = "10s";
/// The part of a kubelet's version that identifies knarr's.
const OWN_KUBELET: &str = "+knarr";

/// One request for metrics, over HTTP or in this process.
struct MetricsRequest<'a> {
    info: &'a RequestInfo,
    query: &'a Query,
    now: Timestamp,
}

/// Why a kubelet returns no stats.
#[derive(Debug, thiserror::Error)]
enum SummaryError {
    #[error(transparent)]
    Dial(#[from] std::io::Error),
    #[error(transparent)]
    Connection(#[from] hyper::Error),
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error("{0}")]
    Status(StatusCode),
    #[error(transparent)]
    Body(#[from] BoxError),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Serves the group. See the module.
pub(crate) struct ResourceMetrics {
    pub pipeline: Arc<Pipeline>,
    pub aggregation: Arc<Aggregation>,
    pub nodes: Arc<dyn NodeDialer>,
}

impl ResourceMetrics {
    /// Whether there is a kubelet to request, and no extension API server that serves the group.
    pub fn is_served(&self) -> bool {
        if self.aggregation.has_group(GROUP) {
            return false;
        }
        let Ok(nodes) = self.pipeline.cache.of(&registry::NODE) else {
            return false;
        };
        let mut found = false;
        nodes.scan("", "", |node| {
            found = has_own_kubelet(node);
            !found
        });
        found
    }

    pub async fn serve(&self, http: &Http) -> Result<Response<Body>, Error> {
        let request = MetricsRequest {
            info: &http.info,
            query: &http.query,
            now: http.format.now,
        };
        let value = self.usage_of(&request).await?;
        HandlerResponse::Document(StatusCode::OK, value).render(http.format)
    }

    /// Answers a GET of a component in this process; `None` if the path is of another API.
    pub async fn get(&self, user: &User, path: &str) -> Option<Result<Value, Error>> {
        let uri: http::Uri = path.parse().ok()?;
        let info = RequestInfo::parse(&Method::GET, uri.path(), false);
        if info.group != GROUP || !self.is_served() {
            return None;
        }
        let query = Query::parse(uri.query().unwrap_or(""));
        let selectors = Selectors {
            fields: query.get("fieldSelector"),
            labels: query.get("labelSelector"),
        };
        let attributes = Attributes::of(&info, selectors);
        if !self.pipeline.authorizer.allows(user, &attributes) {
            return Some(Err(forbidden(user, &attributes)));
        }
        let request = MetricsRequest {
            info: &info,
            query: &query,
            now: self.pipeline.clock.now(),
        };
        Some(self.usage_of(&request).await)
    }

    async fn usage_of(&self, request: &MetricsRequest<'_>) -> Result<Value, Error> {
        let info = request.info;
        if !self.is_served() || info.version != VERSION || !info.subresource.is_empty() {
            return Err(not_served());
        }
        let kind = match info.resource.as_str() {
            "nodes" => &registry::NODE,
            "pods" => &registry::POD,
            _ => return Err(not_served()),
        };
        let target = Target::of_request(kind, info)?;
        if !matches!(info.verb, "get" | "list") {
            return Err(not_allowed());
        }
        let objects = self.chosen(&target, request).await?;
        match *kind == registry::NODE {
            true => self.node_metrics(objects, request).await,
            false => self.pod_metrics(objects, request).await,
        }
    }

    async fn node_metrics(
        &self,
        nodes: Vec<Arc<Object>>,
        request: &MetricsRequest<'_>,
    ) -> Result<Value, Error> {
        let names: Vec<String> = nodes.iter().map(|n| n.name().to_string()).collect();
        let mut summaries = self.summaries(names).await;
        let items = nodes.iter().filter_map(|node| {
            let summary = summaries.remove(node.name())?;
            let (usage, at) = usage(&summary["node"])?;
            Some(json!({
                "metadata": metadata(node, request),
                "timestamp": at,
                "window": WINDOW,
                "usage": usage,
            }))
        });
        let items: Vec<Value> = items.collect();
        response(request, "NodeMetrics", items)
    }

    async fn pod_metrics(
        &self,
        pods: Vec<Arc<Object>>,
        request: &MetricsRequest<'_>,
    ) -> Result<Value, Error> {
        let node_of = |pod: &Arc<Object>| -> Option<String> {
            let typed = pod.to_typed::<Pod>()?;
            let running = typed.status?.phase.as_deref() == Some("Running");
            typed.spec?.node_name.filter(|_| running)
        };
        let assigned: Vec<(&Arc<Object>, String)> =
            pods.iter().filter_map(|pod| Some((pod, node_of(pod)?))).collect();
        let mut names: Vec<String> = assigned.iter().map(|(_, node)| node.clone()).collect();
        names.sort();
        names.dedup();
        let summaries = self.summaries(names).await;
        let by_uid: BTreeMap<&str, &Value> = summaries
            .values()
            .flat_map(|s| s["pods"].as_array().into_iter().flatten())
            .filter_map(|pod| Some((pod["podRef"]["uid"].as_str()?, pod)))
            .collect();
        let items = assigned.iter().filter_map(|(pod, _)| {
            let stats = by_uid.get(pod.uid())?;
            let mut at = Value::Null;
            let mut containers = Vec::new();
            for container in stats["containers"].as_array().into_iter().flatten() {
                // A container that was just started has no CPU rate yet.
                let (usage, measured) = usage(container)?;
                at = measured;
                containers.push(json!({"name": container["name"], "usage": usage}));
            }
            (!containers.is_empty()).then(|| {
                json!({
                    "metadata": metadata(pod, request),
                    "timestamp": at,
                    "window": WINDOW,
                    "containers": containers,
                })
            })
        });
        let items: Vec<Value> = items.collect();
        response(request, "PodMetrics", items)
    }

    /// The objects whose metrics are requested.
    async fn chosen(
        &self,
        target: &Target<'_>,
        request: &MetricsRequest<'_>,
    ) -> Result<Vec<Arc<Object>>, Error> {
        let request = request.query.list()?;
        let query = ListQuery {
            label_selector: request.label_selector,
            field_selector: match target.name {
                "" => request.field_selector,
                // The name is a value here, and must not be parsed as part of the selector.
                name => format!("metadata.name={}", fields::escape(name)),
            },
            ..ListQuery::default()
        };
        let listed = self.pipeline.list(target.kind, target.namespace, &query).await?;
        Ok(listed.items)
    }

    /// The summaries by node; without the nodes that do not answer.
    async fn summaries(&self, nodes: Vec<String>) -> BTreeMap<String, Value> {
        let get_summary = |node: String| async move {
            let response = tokio::time::timeout(KUBELET_TIMEOUT, self.summary(&node)).await;
            match response {
                Ok(Ok(summary)) => Some((node, summary)),
                Ok(Err(why)) => {
                    debug!(node, why = why.to_string(), "a kubelet returns no stats");
                    None
                }
                Err(_) => {
                    debug!(node, "a kubelet does not return its stats in time");
                    None
                }
            }
        };
        let summaries = stream::iter(nodes)
            .map(get_summary)
            .buffer_unordered(CONCURRENT_REQUESTS);
        summaries.filter_map(std::future::ready).collect().await
    }

    async fn summary(&self, node: &str) -> Result<Value, SummaryError> {
        let stream = self.nodes.dial(node).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            if let Err(e) = connection.await {
                debug!("a connection to a kubelet failed: {e}");
            }
        });
        let request = Request::get("/stats/summary").header(HOST, node);
        let request = request.body(Full::new(Bytes::new()))?;
        let response = sender.send_request(request).await?;
        if response.status() != StatusCode::OK {
            return Err(SummaryError::Status(response.status()));
        }
        let body = Limited::new(response.into_body(), SUMMARY_BYTES_MAX)
            .collect()
            .await?;
        Ok(serde_json::from_slice(&body.to_bytes())?)
    }
}

fn has_own_kubelet(node: &Object) -> bool {
    let typed = node.to_typed::<Node>();
    let info = typed.and_then(|n| n.status?.node_info);
    info.is_some_and(|info| info.kubelet_version.contains(OWN_KUBELET))
}

/// One object, or a list of them.
fn response(request: &MetricsRequest<'_>, kind: &str, mut items: Vec<Value>) -> Result<Value, Error> {
    let info = request.info;
    if info.verb == "list" {
        for item in &mut items {
            item["kind"] = kind.into();
            item["apiVersion"] = GROUP_VERSION.into();
        }
        return Ok(json!({
            "kind": format!("{kind}List"),
            "apiVersion": GROUP_VERSION,
            "metadata": {},
            "items": items,
        }));
    }
    let Some(mut item) = items.into_iter().next() else {
        return Err(Error::not_found(knarr_apimachinery::error::ResourceRef {
            group: GROUP,
            resource: &info.resource,
            name: &info.name,
        }));
    };
    item["kind"] = kind.into();
    item["apiVersion"] = GROUP_VERSION.into();
    Ok(item)
}

fn metadata(object: &Object, request: &MetricsRequest<'_>) -> Value {
    let now = request.now;
    let now = k8s_openapi::jiff::Timestamp::from_second(now.as_second()).unwrap_or(now);
    let mut metadata = json!({"name": object.name(), "creationTimestamp": now});
    if !object.namespace().is_empty() {
        metadata["namespace"] = object.namespace().into();
    }
    if let Some(labels) = &object.metadata().labels {
        metadata["labels"] = json!(labels);
    }
    metadata
}

/// CPU and memory usage of a node or container, and when they were measured; `None` before there is a rate.
fn usage(stats: &Value) -> Option<(Value, Value)> {
    let cores = stats["cpu"]["usageNanoCores"].as_u64()?;
    let bytes = stats["memory"]["workingSetBytes"].as_u64()?;
    let cpu = match cores {
        0 => "0".to_string(),
        cores => format!("{cores}n"),
    };
    // In Ki, the unit in which memory is shown.
    let memory = match bytes.div_ceil(1024) {
        0 => "0".to_string(),
        kib => format!("{kib}Ki"),
    };
    Some((
        json!({"cpu": cpu, "memory": memory}),
        stats["cpu"]["time"].clone(),
    ))
}

/// `GET /apis`: the entry of the group.
pub(crate) fn group() -> Value {
    let version = json!({"groupVersion": GROUP_VERSION, "version": VERSION});
    json!({"name": GROUP, "versions": [version], "preferredVersion": version})
}

/// `GET /apis/metrics.k8s.io/v1beta1`.
pub(crate) fn resources() -> Value {
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": GROUP_VERSION,
        "resources": [
            {"name": "nodes", "singularName": "", "namespaced": false, "kind": "NodeMetrics", "verbs": ["get", "list"]},
            {"name": "pods", "singularName": "", "namespaced": true, "kind": "PodMetrics", "verbs": ["get", "list"]},
        ],
    })
}

/// The group in the aggregated document.
pub(crate) fn aggregated() -> Value {
    let resource = |name: &str, kind: &str, scope: &str| {
        json!({
            "resource": name,
            "responseKind": {"group": "", "version": "", "kind": kind},
            "scope": scope,
            "singularResource": "",
            "verbs": ["get", "list"],
        })
    };
    json!({
        "metadata": {"name": GROUP},
        "versions": [{
            "version": VERSION,
            "resources": [
                resource("nodes", "NodeMetrics", "Cluster"),
                resource("pods", "PodMetrics", "Namespaced"),
            ],
            "freshness": "Current",
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l13_usage_is_reported_in_nanocores_and_whole_ki_once_there_is_a_rate() {
        let stats = |cpu: Value, memory: Value| json!({"cpu": {"usageNanoCores": cpu, "time": "t"}, "memory": {"workingSetBytes": memory}});
        for (cpu, memory, want) in [
            (
                json!(1_234_567),
                json!(1025),
                Some(json!({"cpu": "1234567n", "memory": "2Ki"})),
            ),
            (json!(0), json!(0), Some(json!({"cpu": "0", "memory": "0"}))),
            (Value::Null, json!(1), None),
            (json!(1), Value::Null, None),
        ] {
            assert_eq!(usage(&stats(cpu, memory)).map(|(usage, _)| usage), want);
        }
    }
}
