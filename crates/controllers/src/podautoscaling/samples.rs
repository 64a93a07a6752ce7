//! What pods use and request, and which pods' samples count.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_apimachinery::quantity::Quantity;

use super::Settings;
use crate::pod;

/// One pod's sample of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodMetric {
    /// In thousandths.
    pub value: i64,
    pub at: Timestamp,
    /// The time that the sample covers.
    pub window: Duration,
}

/// Values in thousandths by pod name.
pub type Values = BTreeMap<String, i64>;

/// The pods of a target, by what their samples are worth.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Groups {
    pub ready: usize,
    pub unready: BTreeSet<String>,
    pub missing: BTreeSet<String>,
    /// Failed or being deleted.
    pub ignored: BTreeSet<String>,
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// `at` moved by a configured or reported duration; too far away is the end of time.
fn after(at: Timestamp, by: Duration) -> Timestamp {
    SignedDuration::try_from(by)
        .ok()
        .and_then(|by| at.checked_add(by).ok())
        .unwrap_or(Timestamp::MAX)
}

/// Whether a CPU sample is distorted by the pod's start.
fn is_starting(pod: &Pod, metric: &PodMetric, settings: &Settings, now: Timestamp) -> bool {
    let started = pod.status.as_ref().and_then(|s| s.start_time.as_ref());
    let (Some(ready), Some(started)) = (pod::condition(pod, "Ready"), started) else {
        return true;
    };
    let since = ready
        .last_transition_time
        .as_ref()
        .map_or(Timestamp::MIN, |t| t.0);
    let unready = ready.status == "False";
    if after(started.0, settings.cpu_initialization_period) > now {
        unready || metric.at < after(since, metric.window)
    } else {
        unready && after(started.0, settings.initial_readiness_delay) > since
    }
}

impl Groups {
    pub fn of(
        pods: &[&Pod],
        metrics: &BTreeMap<String, PodMetric>,
        resource: Option<&str>,
        settings: &Settings,
        now: Timestamp,
    ) -> Self {
        let mut groups = Groups::default();
        for pod in pods {
            let key = name(pod).to_string();
            if pod::is_deleting(pod) || pod::phase(pod) == "Failed" {
                groups.ignored.insert(key);
            } else if pod::phase(pod) == "Pending" {
                groups.unready.insert(key);
            } else if let Some(metric) = metrics.get(&key) {
                if resource == Some("cpu") && is_starting(pod, metric, settings, now) {
                    groups.unready.insert(key);
                } else {
                    groups.ready += 1;
                }
            } else {
                groups.missing.insert(key);
            }
        }
        groups
    }

    /// The values of the samples that count.
    pub fn values(&self, metrics: &BTreeMap<String, PodMetric>) -> Values {
        metrics
            .iter()
            .filter(|(pod, _)| !self.ignored.contains(*pod) && !self.unready.contains(*pod))
            .map(|(pod, metric)| (pod.clone(), metric.value))
            .collect()
    }
}

/// The containers that run as long as the pod: all but the init containers that end.
fn lasting(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.as_ref();
    let sidecars = spec.into_iter().flat_map(|s| s.init_containers.iter().flatten());
    let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
    spec.into_iter().flat_map(|s| &s.containers).chain(sidecars)
}

fn requested(container: &Container, resource: &str) -> Option<i64> {
    let requests = container.resources.as_ref()?.requests.as_ref()?;
    Some(Quantity::of(requests.get(resource)?).ok()?.milli_value())
}

/// Whether the pod sets requests for itself as a whole (KEP-2837), and its request of the resource then.
fn pod_level(pod: &Pod, resource: &str) -> Option<Option<i64>> {
    let requests = pod.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    let supported = |name: &String| name == "cpu" || name == "memory" || name.starts_with("hugepages-");
    requests.keys().any(supported).then(|| {
        let overhead = pod.spec.as_ref().and_then(|s| s.overhead.as_ref()?.get(resource));
        let milli = |q| Quantity::of(q).ok().map(|q| q.milli_value());
        let own = requests.get(resource).and_then(milli).or_else(|| {
            // A resource that the pod as a whole does not name is the sum of its containers'.
            let requests: Vec<i64> = lasting(pod).filter_map(|c| requested(c, resource)).collect();
            (!requests.is_empty()).then(|| requests.iter().fold(0, |sum: i64, n| sum.saturating_add(*n)))
        })?;
        Some(own.saturating_add(overhead.and_then(milli).unwrap_or(0)))
    })
}

/// Which request is missing, with the messages of Kubernetes' replica calculator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("missing pod-level request for {resource} in Pod {pod}")]
    OfPod { resource: String, pod: String },
    #[error("missing request for {resource} in container {container} of Pod {pod}")]
    OfContainer {
        resource: String,
        container: String,
        pod: String,
    },
    #[error("container {container} not found in Pod {pod}")]
    NoContainer { container: String, pod: String },
}

fn request(pod: &Pod, container: Option<&str>, resource: &str) -> Result<i64, RequestError> {
    let pod_name = || name(pod).to_string();
    if container.is_none()
        && let Some(pod_request) = pod_level(pod, resource)
    {
        return pod_request.ok_or_else(|| RequestError::OfPod {
            resource: resource.to_string(),
            pod: pod_name(),
        });
    }
    let missing = |c: &Container| RequestError::OfContainer {
        resource: resource.to_string(),
        container: c.name.clone(),
        pod: pod_name(),
    };
    match container {
        Some(container_name) => {
            let found = lasting(pod).find(|c| c.name == container_name);
            let found = found.ok_or_else(|| RequestError::NoContainer {
                container: container_name.to_string(),
                pod: pod_name(),
            })?;
            requested(found, resource).ok_or_else(|| missing(found))
        }
        None => lasting(pod).try_fold(0i64, |sum, c| {
            Ok(sum.saturating_add(requested(c, resource).ok_or_else(|| missing(c))?))
        }),
    }
}

/// What each pod requests of the resource, or one container of it if it is named.
pub fn requests(pods: &[&Pod], container: Option<&str>, resource: &str) -> Result<Values, RequestError> {
    pods.iter()
        .map(|pod| Ok((name(pod).to_string(), request(pod, container, resource)?)))
        .collect()
}
