//! Metrics from their APIs: resource metrics (metrics.k8s.io), custom.metrics.k8s.io and external.metrics.k8s.io.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use k8s_openapi::api::autoscaling::v2::{CrossVersionObjectReference, MetricIdentifier, MetricSpec};
use k8s_openapi::jiff::Timestamp;
use knarr_api::{k8s_openapi, registry, scale};
use knarr_apimachinery::Error;
use knarr_apimachinery::quantity::{Quantity, QuantityError};
use knarr_client::Api;
use knarr_controllers::View;
use knarr_controllers::podautoscaling::{PodMetric, Reading};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::time::timeout;

use crate::view::CacheView;

/// The timeout of reading one metric.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The window of a sample whose API has none.
const WINDOW: Duration = Duration::from_secs(60);
/// In the order of preference.
const CUSTOM_VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];
const CUSTOM: &str = "custom.metrics.k8s.io";
const EXTERNAL: &str = "external.metrics.k8s.io";

type Result<T, E = MetricsError> = std::result::Result<T, E>;

/// Why a metric has no value, with the messages of Kubernetes' metrics client.
#[derive(Debug, thiserror::Error)]
enum MetricsError {
    #[error("unknown metric source type {0:?}")]
    UnknownSource(String),
    #[error("unable to fetch metrics from {0} API: no answer in time")]
    Timeout(&'static str),
    #[error("unable to fetch metrics from {api} API: {source}")]
    Fetch { api: &'static str, source: Error },
    #[error("unable to fetch metrics from custom metrics API: no custom metrics API ({CUSTOM}) registered")]
    NotRegistered,
    #[error(
        "unable to fetch metrics from custom metrics API: no matches for kind {kind:?} in group {group:?}"
    )]
    NoKindMatch { kind: String, group: String },
    #[error("no metrics returned from {0} metrics API")]
    NoMetrics(&'static str),
    #[error("container {container} not present in metrics for pod {namespace}/{pod}")]
    NoContainer {
        container: String,
        namespace: String,
        pod: String,
    },
    #[error("the metrics API answered {0} for a quantity")]
    NotAQuantity(Value),
    #[error("the metrics API answered {text:?} for a quantity: {source}")]
    InvalidQuantity { text: String, source: QuantityError },
    #[error("the metrics API answered {0:?} for a time")]
    InvalidTime(String),
}

/// See the module.
pub(super) struct Readings<'a> {
    pub api: &'a dyn Api,
    pub view: &'a CacheView,
}

/// In a path or a query all but letters, digits and these is encoded.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

impl Readings<'_> {
    /// Reads the metric of this spec, for the pods that the selector matches.
    pub async fn of(&self, spec: &MetricSpec, namespace: &str, selector: &str) -> Reading {
        let read = async {
            if let Some(source) = &spec.resource {
                let pods = self.pod_metrics(namespace, selector).await?;
                usage(&pods, &source.name, None).map(Reading::Pods)
            } else if let Some(source) = &spec.container_resource {
                let pods = self.pod_metrics(namespace, selector).await?;
                usage(&pods, &source.name, Some(&source.container)).map(Reading::Pods)
            } else if let Some(source) = &spec.pods {
                let list = self
                    .custom(namespace, "pods/*", &source.metric, Some(selector))
                    .await?;
                samples(&list).map(Reading::Pods)
            } else if let Some(source) = &spec.object {
                self.object(namespace, &source.described_object, &source.metric)
                    .await
                    .map(Reading::Object)
            } else if let Some(source) = &spec.external {
                self.external(namespace, &source.metric)
                    .await
                    .map(Reading::External)
            } else {
                Err(MetricsError::UnknownSource(spec.type_.clone()))
            }
        };
        read.await
            .unwrap_or_else(|error| Reading::Failed(error.to_string()))
    }

    async fn get(&self, api: &'static str, path: &str) -> Result<Value> {
        let response = timeout(TIMEOUT, self.api.get_raw(path)).await;
        let response = response.map_err(|_| MetricsError::Timeout(api))?;
        response.map_err(|source| MetricsError::Fetch { api, source })
    }

    async fn pod_metrics(&self, namespace: &str, selector: &str) -> Result<Vec<Value>> {
        let path = format!(
            "/apis/metrics.k8s.io/v1beta1/namespaces/{}/pods?labelSelector={}",
            encoded(namespace),
            encoded(selector)
        );
        items(self.get("resource metrics", &path).await?, "resource")
    }

    /// A metric of custom.metrics.k8s.io: `what` is a resource and a name, or `*`.
    async fn custom(
        &self,
        namespace: &str,
        what: &str,
        metric: &MetricIdentifier,
        pods: Option<&str>,
    ) -> Result<Vec<Value>> {
        let served = |version: &&&str| {
            let name = format!("{version}.{CUSTOM}");
            self.view.get(&registry::API_SERVICE, "", &name).is_some()
        };
        let version = CUSTOM_VERSIONS
            .iter()
            .find(served)
            .ok_or(MetricsError::NotRegistered)?;
        let mut path = format!(
            "/apis/{CUSTOM}/{version}/namespaces/{}/{what}/{}",
            encoded(namespace),
            encoded(&metric.name)
        );
        let mut separator = '?';
        let of_metric = metric.selector.as_ref().map(scale::text);
        for (name, value) in [
            ("labelSelector", pods),
            ("metricLabelSelector", of_metric.as_deref()),
        ] {
            if let Some(value) = value.filter(|v| !v.is_empty()) {
                // Writing to a String cannot fail.
                let _ = write!(path, "{separator}{name}={}", encoded(value));
                separator = '&';
            }
        }
        items(self.get("custom metrics", &path).await?, "custom")
    }

    async fn object(
        &self,
        namespace: &str,
        of: &CrossVersionObjectReference,
        metric: &MetricIdentifier,
    ) -> Result<i64> {
        let group = of
            .api_version
            .as_deref()
            .and_then(|v| v.split_once('/'))
            .map_or("", |(g, _)| g);
        let list = if group.is_empty() && of.kind == "Namespace" {
            self.custom(&of.name, "metrics", metric, None).await?
        } else {
            let custom = self.view.custom_kinds();
            let mut kinds = registry::ALL.iter().copied().chain(&custom);
            let kind = kinds.find(|k| k.group() == group && k.kind() == of.kind);
            let kind = kind.ok_or_else(|| MetricsError::NoKindMatch {
                kind: of.kind.clone(),
                group: group.to_string(),
            })?;
            let resource = match group {
                "" => kind.plural().to_string(),
                group => format!("{}.{group}", kind.plural()),
            };
            let what = format!("{resource}/{}", encoded(&of.name));
            self.custom(namespace, &what, metric, None).await?
        };
        list.first().map_or(Ok(0), |item| milli(&item["value"]))
    }

    async fn external(&self, namespace: &str, metric: &MetricIdentifier) -> Result<Vec<i64>> {
        let selector = metric.selector.as_ref().map(scale::text).unwrap_or_default();
        let path = format!(
            "/apis/{EXTERNAL}/v1beta1/namespaces/{}/{}?labelSelector={}",
            encoded(namespace),
            encoded(&metric.name),
            encoded(&selector)
        );
        let list = items(self.get("external metrics", &path).await?, "external")?;
        list.iter().map(|item| milli(&item["value"])).collect()
    }
}

/// A list's items, of which there must be some.
fn items(mut list: Value, api: &'static str) -> Result<Vec<Value>> {
    match list.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) if !items.is_empty() => Ok(items),
        _ => Err(MetricsError::NoMetrics(api)),
    }
}

fn milli(value: &Value) -> Result<i64> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        other => return Err(MetricsError::NotAQuantity(other.clone())),
    };
    match Quantity::parse(text.trim()) {
        Ok(quantity) => Ok(quantity.milli_value()),
        Err(source) => Err(MetricsError::InvalidQuantity { text, source }),
    }
}

fn timestamp(item: &Value) -> Result<Timestamp> {
    let text = item["timestamp"].as_str().unwrap_or_default();
    let parsed = text.parse();
    parsed.map_err(|_| MetricsError::InvalidTime(text.to_string()))
}

/// The pods' usage of a resource, as a whole or in one container. A pod without a value for each container is left out.
fn usage(pods: &[Value], resource: &str, container: Option<&str>) -> Result<BTreeMap<String, PodMetric>> {
    let mut samples = BTreeMap::new();
    for pod in pods {
        let (name, namespace) = (&pod["metadata"]["name"], &pod["metadata"]["namespace"]);
        let name = name.as_str().unwrap_or_default();
        let mut of_pod = pod["containers"].as_array().into_iter().flatten();
        let value = match container {
            Some(container) => {
                let found = of_pod.find(|c| c["name"] == container);
                let found = found.ok_or_else(|| MetricsError::NoContainer {
                    container: container.to_string(),
                    namespace: namespace.as_str().unwrap_or_default().to_string(),
                    pod: name.to_string(),
                })?;
                match &found["usage"][resource] {
                    Value::Null => continue,
                    value => milli(value)?,
                }
            }
            None => {
                let values: Vec<&Value> = of_pod.map(|c| &c["usage"][resource]).collect();
                if values.iter().any(|value| value.is_null()) {
                    continue;
                }
                let values: Result<Vec<i64>> = values.into_iter().map(milli).collect();
                values?.into_iter().fold(0, i64::saturating_add)
            }
        };
        let window = pod["window"]
            .as_str()
            .and_then(knarr_apimachinery::duration::parse);
        let window = window.and_then(|w| Duration::try_from(w).ok());
        let sample = PodMetric {
            value,
            at: timestamp(pod)?,
            window: window.unwrap_or(WINDOW),
        };
        samples.insert(name.to_string(), sample);
    }
    match samples.is_empty() {
        true => Err(MetricsError::NoMetrics("resource")),
        false => Ok(samples),
    }
}

/// Samples of custom.metrics.k8s.io by the name of the pod they are about.
fn samples(items: &[Value]) -> Result<BTreeMap<String, PodMetric>> {
    let sample = |item: &Value| {
        let name = item["describedObject"]["name"].as_str().unwrap_or_default();
        let window = item["windowSeconds"].as_u64().map_or(WINDOW, Duration::from_secs);
        let metric = PodMetric {
            value: milli(&item["value"])?,
            at: timestamp(item)?,
            window,
        };
        Ok((name.to_string(), metric))
    };
    items.iter().map(sample).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, containers: &Value) -> Value {
        json!({"metadata": {"name": name, "namespace": "d"}, "timestamp": "2026-01-02T03:04:05Z", "window": "20s", "containers": containers})
    }

    #[test]
    fn what_containers_use_is_added_up_and_incomplete_pods_are_left_out() {
        let pods = [
            pod(
                "a",
                &json!([{"name": "x", "usage": {"cpu": "250m"}}, {"name": "y", "usage": {"cpu": "1"}}]),
            ),
            pod(
                "b",
                &json!([{"name": "x", "usage": {"cpu": "250m"}}, {"name": "y", "usage": {}}]),
            ),
        ];
        let found = usage(&pods, "cpu", None).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(
            (found["a"].value, found["a"].window),
            (1250, Duration::from_secs(20))
        );
        let found = usage(&pods, "cpu", Some("x")).unwrap();
        assert_eq!(found.values().map(|m| m.value).collect::<Vec<_>>(), [250, 250]);
        let error = usage(&pods, "cpu", Some("z")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "container z not present in metrics for pod d/a"
        );
        assert!(usage(&pods, "memory", None).is_err());
    }

    #[test]
    fn custom_samples_have_a_window_of_a_minute_unless_they_say_another() {
        let item = |name: &str, window: Value| json!({"describedObject": {"name": name}, "timestamp": "2026-01-02T03:04:05Z", "value": "1500m", "windowSeconds": window});
        let found = samples(&[item("a", Value::Null), item("b", json!(5))]).unwrap();
        assert_eq!(found["a"].window, WINDOW);
        assert_eq!(
            (found["b"].value, found["b"].window),
            (1500, Duration::from_secs(5))
        );
        assert!(samples(&[json!({"value": []})]).is_err());
        assert!(items(json!({"items": []}), "custom").is_err());
        assert!(items(json!("no list"), "custom").is_err());
    }
}
