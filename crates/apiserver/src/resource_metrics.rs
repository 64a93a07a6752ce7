//! metrics.k8s.io: what nodes and pods use now, for `kubectl top` and autoscalers, from the kubelets' own figures.
//!
//! Nothing is stored: each request asks the nodes' kubelets (`/stats/summary`), all at once, each for a bounded time. A
//! node that does not answer is left out, as metrics-server leaves it out. The group is served while there is a node
//! whose kubelet is knarr's own: others have a metrics-server of their own to serve it.

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
use knarr_api::selector::field;
use knarr_api::{Error, Object, k8s_openapi, registry};
use serde_json::{Value, json};
use tracing::debug;

use crate::authz::{Attributes, Selectors, forbidden};
use crate::http::Http;
use crate::http::answer::Answer;
use crate::http::body::Body;
use crate::http::query::Query;
use crate::pipeline::read::ListQuery;
use crate::pipeline::{Target, not_allowed, not_served};
use crate::request::RequestInfo;
use crate::server::Server;
use crate::user::User;

pub(crate) const GROUP: &str = "metrics.k8s.io";
const VERSION: &str = "v1beta1";
const GROUP_VERSION: &str = "metrics.k8s.io/v1beta1";
/// What a kubelet has to answer in.
const PATIENCE: Duration = Duration::from_secs(5);
/// Kubelets asked at a time.
const AT_ONCE: usize = 64;
/// A summary of a node with a thousand busy pods is a few megabytes.
const SUMMARY_BYTES_MAX: usize = 32 << 20;
/// Over what time processor use is told: about as often as kubelets measure.
const WINDOW: &str = "10s";
/// What tells knarr's kubelets apart.
const OWN_KUBELET: &str = "+knarr";

/// One request, over HTTP or in this process.
struct Asked<'a> {
    info: &'a RequestInfo,
    query: &'a Query,
    now: Timestamp,
}

impl Server {
    /// Whether there is anybody to ask, and no extension API server that has the group.
    pub(crate) fn serves_resource_metrics(&self) -> bool {
        if self.aggregation.has_group(GROUP) {
            return false;
        }
        let Ok(nodes) = self.cache.of(&registry::NODE) else {
            return false;
        };
        let mut found = false;
        nodes.scan("", "", |node| {
            found = has_own_kubelet(node);
            !found
        });
        found
    }

    pub(crate) async fn resource_metrics(self: &Arc<Self>, http: &Http) -> Result<Response<Body>, Error> {
        let asked = Asked {
            info: &http.info,
            query: &http.query,
            now: http.wants.now,
        };
        let value = self.usage_of(&asked).await?;
        Answer::Document(StatusCode::OK, value).render(http.wants)
    }

    /// The answer to a GET of a component in this process; `None` if the path is of another API.
    pub(crate) async fn resource_metrics_at(
        self: &Arc<Self>,
        user: &User,
        path: &str,
    ) -> Option<Result<Value, Error>> {
        let uri: http::Uri = path.parse().ok()?;
        let info = RequestInfo::parse(&Method::GET, uri.path(), false);
        if info.group != GROUP || !self.serves_resource_metrics() {
            return None;
        }
        let query = Query::parse(uri.query().unwrap_or(""));
        let selectors = Selectors {
            fields: query.get("fieldSelector"),
            labels: query.get("labelSelector"),
        };
        let attributes = Attributes::of(&info, selectors);
        if !self.authorizer.allows(user, &attributes) {
            return Some(Err(forbidden(user, &attributes)));
        }
        let asked = Asked {
            info: &info,
            query: &query,
            now: self.clock.now(),
        };
        Some(self.usage_of(&asked).await)
    }

    async fn usage_of(self: &Arc<Self>, asked: &Asked<'_>) -> Result<Value, Error> {
        let info = asked.info;
        if !self.serves_resource_metrics() || info.version != VERSION || !info.subresource.is_empty() {
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
        let objects = self.chosen(&target, asked).await?;
        match *kind == registry::NODE {
            true => self.node_metrics(objects, asked).await,
            false => self.pod_metrics(objects, asked).await,
        }
    }

    async fn node_metrics(
        self: &Arc<Self>,
        nodes: Vec<Arc<Object>>,
        asked: &Asked<'_>,
    ) -> Result<Value, Error> {
        let names: Vec<String> = nodes.iter().map(|n| n.name().to_string()).collect();
        let mut summaries = self.summaries(names).await;
        let items = nodes.iter().filter_map(|node| {
            let summary = summaries.remove(node.name())?;
            let (usage, at) = usage(&summary["node"])?;
            Some(json!({
                "metadata": metadata(node, asked),
                "timestamp": at,
                "window": WINDOW,
                "usage": usage,
            }))
        });
        let items: Vec<Value> = items.collect();
        answer(asked, "NodeMetrics", items)
    }

    async fn pod_metrics(
        self: &Arc<Self>,
        pods: Vec<Arc<Object>>,
        asked: &Asked<'_>,
    ) -> Result<Value, Error> {
        let node_of = |pod: &Arc<Object>| -> Option<String> {
            let typed = pod.to_typed::<Pod>()?;
            let running = typed.status?.phase.as_deref() == Some("Running");
            typed.spec?.node_name.filter(|_| running)
        };
        let placed: Vec<(&Arc<Object>, String)> =
            pods.iter().filter_map(|pod| Some((pod, node_of(pod)?))).collect();
        let mut names: Vec<String> = placed.iter().map(|(_, node)| node.clone()).collect();
        names.sort();
        names.dedup();
        let summaries = self.summaries(names).await;
        let by_uid: BTreeMap<&str, &Value> = summaries
            .values()
            .flat_map(|s| s["pods"].as_array().into_iter().flatten())
            .filter_map(|pod| Some((pod["podRef"]["uid"].as_str()?, pod)))
            .collect();
        let items = placed.iter().filter_map(|(pod, _)| {
            let stats = by_uid.get(pod.uid())?;
            let mut at = Value::Null;
            let mut containers = Vec::new();
            for container in stats["containers"].as_array().into_iter().flatten() {
                // A container that has run for a moment only has no rate yet.
                let (usage, measured) = usage(container)?;
                at = measured;
                containers.push(json!({"name": container["name"], "usage": usage}));
            }
            (!containers.is_empty()).then(|| {
                json!({
                    "metadata": metadata(pod, asked),
                    "timestamp": at,
                    "window": WINDOW,
                    "containers": containers,
                })
            })
        });
        let items: Vec<Value> = items.collect();
        answer(asked, "PodMetrics", items)
    }

    /// The objects that are asked about.
    async fn chosen(&self, target: &Target<'_>, asked: &Asked<'_>) -> Result<Vec<Arc<Object>>, Error> {
        let asked = asked.query.list()?;
        let query = ListQuery {
            label_selector: asked.label_selector,
            field_selector: match target.name {
                "" => asked.field_selector,
                // The name is data here, and no more of the selector.
                name => format!("metadata.name={}", field::escape(name)),
            },
            ..ListQuery::default()
        };
        let listed = self.list(target.kind, target.namespace, &query).await?;
        Ok(listed.items)
    }

    /// By node; without those that do not answer.
    async fn summaries(self: &Arc<Self>, nodes: Vec<String>) -> BTreeMap<String, Value> {
        let ask = |node: String| async move {
            let answer = tokio::time::timeout(PATIENCE, self.summary(&node)).await;
            match answer {
                Ok(Ok(summary)) => Some((node, summary)),
                Ok(Err(why)) => {
                    debug!(node, why, "a kubelet tells no figures");
                    None
                }
                Err(_) => {
                    debug!(node, "a kubelet takes too long to tell its figures");
                    None
                }
            }
        };
        let asked = stream::iter(nodes).map(ask).buffer_unordered(AT_ONCE);
        asked.filter_map(std::future::ready).collect().await
    }

    async fn summary(&self, node: &str) -> Result<Value, String> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let stream = self.nodes.dial(node).await.map_err(|e| text(&e))?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|e| text(&e))?;
        tokio::spawn(async move {
            if let Err(e) = connection.await {
                debug!("a connection to a node ended: {e}");
            }
        });
        let request = Request::get("/stats/summary").header(HOST, node);
        let request = request.body(Full::new(Bytes::new())).map_err(|e| text(&e))?;
        let answer = sender.send_request(request).await.map_err(|e| text(&e))?;
        if answer.status() != StatusCode::OK {
            return Err(answer.status().to_string());
        }
        let body = Limited::new(answer.into_body(), SUMMARY_BYTES_MAX)
            .collect()
            .await;
        let body = body.map_err(|e| text(&e))?;
        serde_json::from_slice(&body.to_bytes()).map_err(|e| text(&e))
    }
}

fn has_own_kubelet(node: &Object) -> bool {
    let typed = node.to_typed::<Node>();
    let info = typed.and_then(|n| n.status?.node_info);
    info.is_some_and(|info| info.kubelet_version.contains(OWN_KUBELET))
}

/// One object, or a list of them.
fn answer(asked: &Asked<'_>, kind: &str, mut items: Vec<Value>) -> Result<Value, Error> {
    let info = asked.info;
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
        return Err(Error::not_found(knarr_api::error::About {
            group: GROUP,
            resource: &info.resource,
            name: &info.name,
        }));
    };
    item["kind"] = kind.into();
    item["apiVersion"] = GROUP_VERSION.into();
    Ok(item)
}

fn metadata(object: &Object, asked: &Asked<'_>) -> Value {
    let now = asked.now;
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

/// Processor and memory of a node or container, and when they were measured; none before there is a rate.
fn usage(stats: &Value) -> Option<(Value, Value)> {
    let cores = stats["cpu"]["usageNanoCores"].as_u64()?;
    let bytes = stats["memory"]["workingSetBytes"].as_u64()?;
    let cpu = match cores {
        0 => "0".to_string(),
        cores => format!("{cores}n"),
    };
    // Whole Ki, as everybody shows memory.
    let memory = match bytes.div_ceil(1024) {
        0 => "0".to_string(),
        kib => format!("{kib}Ki"),
    };
    Some((
        json!({"cpu": cpu, "memory": memory}),
        stats["cpu"]["time"].clone(),
    ))
}

/// `GET /apis`: the group beside the others.
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
    fn l13_usage_is_told_in_nanocores_and_whole_ki_once_there_is_a_rate() {
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
