//! One metric of an autoscaler's spec: the number of replicas it proposes, and what the status shows of it.

use std::collections::BTreeMap;

use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricSource, ContainerResourceMetricStatus, ExternalMetricSource, ExternalMetricStatus,
    MetricIdentifier, MetricSpec, MetricStatus, MetricTarget, MetricValueStatus, ObjectMetricSource,
    ObjectMetricStatus, PodsMetricSource, PodsMetricStatus, ResourceMetricSource, ResourceMetricStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use knarr_api::k8s_openapi;
use knarr_apimachinery::labels::go_string;
use knarr_apimachinery::quantity::{Notation, Quantity, QuantityError};

use super::replicas::{Calculated, ReplicaError, Target};
use super::samples::PodMetric;
use super::status::Reason;

/// What a metrics API answered for one metric of the spec; values are thousandths. The error is the API's own text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// By pod name, for Resource, ContainerResource and Pods.
    Pods(BTreeMap<String, PodMetric>),
    Object(i64),
    /// All values that the selector matches, for External.
    External(Vec<i64>),
    Failed(String),
}

/// What one metric proposes.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposed {
    pub replicas: i32,
    /// As the event of a scale-up names it.
    pub name: String,
    pub status: MetricStatus,
}

/// Why a metric proposes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// For the event and the condition ScalingActive.
    pub condition: Reason,
    /// The error in the summary of all metrics.
    pub summary: String,
}

/// Why a metric proposes nothing, with Kubernetes' messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum MetricError {
    #[error("unknown metric source type {0:?}")]
    UnknownSource(String),
    #[error("invalid {source_type} metric source: {why}")]
    InvalidSource {
        source_type: &'static str,
        why: &'static str,
    },
    #[error("the response does not match the metric's type")]
    OtherType,
    #[error("unable to get {what}: {why}")]
    Get { what: String, why: String },
    #[error("unable to get metric {metric}: {why} on {object}")]
    GetOfObject {
        metric: String,
        why: String,
        object: String,
    },
    #[error("failed to get {what}: {source}")]
    Calculate { what: String, source: Box<MetricError> },
    #[error(transparent)]
    Quantity(#[from] QuantityError),
    #[error(transparent)]
    Replicas(#[from] ReplicaError),
}

impl MetricError {
    fn of(what: String) -> impl FnOnce(MetricError) -> MetricError {
        |error| MetricError::Calculate {
            what,
            source: Box::new(error),
        }
    }
}

type Result<T, E = MetricError> = std::result::Result<T, E>;

fn milli(quantity: &Wire) -> Result<i64> {
    Ok(Quantity::of(quantity)?.milli_value())
}

fn quantity(milli: i64, notation: Notation) -> Option<Wire> {
    Some(Quantity::from_milli(milli, notation).to_wire())
}

fn average(milli: i64) -> MetricValueStatus {
    MetricValueStatus {
        average_value: quantity(milli, Notation::DecimalSi),
        ..MetricValueStatus::default()
    }
}

fn total_value(milli: i64) -> MetricValueStatus {
    MetricValueStatus {
        value: quantity(milli, Notation::DecimalSi),
        ..MetricValueStatus::default()
    }
}

const NO_VALUE: &str = "neither a value target nor an average value target was set";

fn status(type_: &str) -> MetricStatus {
    MetricStatus {
        type_: type_.into(),
        ..MetricStatus::default()
    }
}

fn by_pod(reading: &Reading, what: String) -> Result<&BTreeMap<String, PodMetric>> {
    match reading {
        Reading::Pods(metrics) => Ok(metrics),
        Reading::Failed(why) => Err(MetricError::Get {
            what,
            why: why.clone(),
        }),
        _ => Err(MetricError::OtherType),
    }
}

fn object(source: &ObjectMetricSource, reading: &Reading, target: &Target<'_>, ns: &str) -> Result<Proposed> {
    let (metric, described) = (&source.metric, &source.described_object);
    let value = || match reading {
        Reading::Object(value) => Ok(*value),
        Reading::Failed(why) => Err(MetricError::GetOfObject {
            metric: metric.name.clone(),
            why: why.clone(),
            object: format!("{} {ns}/{}", described.kind, described.name),
        }),
        _ => Err(MetricError::OtherType),
    };
    let goal = &source.target;
    let (replicas, name, current) = match (goal.type_.as_str(), &goal.value, &goal.average_value) {
        ("Value", Some(goal), _) => {
            let found = target.by_value(value()?, milli(goal)?)?;
            let name = format!("{} metric {}", described.kind, metric.name);
            (found.replicas, name, total_value(found.usage))
        }
        ("AverageValue", _, Some(goal)) => {
            let failed = MetricError::of(format!("{} object metric", metric.name));
            let found = target.by_shared_value(value().map_err(failed)?, milli(goal)?);
            (found.replicas, external_name(metric), average(found.usage))
        }
        _ => {
            return Err(MetricError::InvalidSource {
                source_type: "object",
                why: NO_VALUE,
            });
        }
    };
    Ok(Proposed {
        replicas,
        name,
        status: MetricStatus {
            object: Some(ObjectMetricStatus {
                described_object: described.clone(),
                metric: metric.clone(),
                current,
            }),
            ..status("Object")
        },
    })
}

fn pods(source: &PodsMetricSource, reading: &Reading, target: &Target<'_>) -> Result<Proposed> {
    let metric = &source.metric;
    let metrics = by_pod(reading, format!("metric {}", metric.name))?;
    let goal = source.target.average_value.as_ref();
    let goal = goal.ok_or(MetricError::InvalidSource {
        source_type: "pods",
        why: "no average value target was set",
    })?;
    let found = target.by_usage(metrics, None, milli(goal)?)?;
    Ok(Proposed {
        replicas: found.replicas,
        name: format!("pods metric {}", metric.name),
        status: MetricStatus {
            pods: Some(PodsMetricStatus {
                metric: metric.clone(),
                current: average(found.usage),
            }),
            ..status("Pods")
        },
    })
}

/// A resource of the pods, or of one container in each.
fn resource(
    name: &str,
    container: Option<&str>,
    goal: &MetricTarget,
    reading: &Reading,
    target: &Target<'_>,
) -> Result<(i32, String, MetricValueStatus)> {
    let metrics = || by_pod(reading, format!("metrics for resource {name}"));
    let shown = |found: Calculated| MetricValueStatus {
        average_utilization: found.utilization,
        average_value: quantity(
            found.usage,
            if name == "memory" {
                Notation::BinarySi
            } else {
                Notation::DecimalSi
            },
        ),
        value: None,
    };
    if let Some(usage) = &goal.average_value {
        let usage = milli(usage)?;
        let found = metrics().and_then(|m| Ok(target.by_usage(m, Some(name), usage)?));
        let found = found.map_err(MetricError::of(format!("{name} usage")))?;
        return Ok((found.replicas, format!("{name} resource"), shown(found)));
    }
    let Some(percent) = goal.average_utilization else {
        return Err(MetricError::InvalidSource {
            source_type: "resource",
            why: "neither an average utilization target nor an average value (usage) target was set",
        });
    };
    let found = metrics().and_then(|m| Ok(target.by_utilization(m, name, container, percent)?));
    let found = found.map_err(MetricError::of(format!("{name} utilization")))?;
    let of = if container.is_some() {
        "container resource"
    } else {
        "resource"
    };
    let proposal = format!("{name} {of} utilization (percentage of request)");
    Ok((found.replicas, proposal, shown(found)))
}

fn pod_resource(source: &ResourceMetricSource, reading: &Reading, target: &Target<'_>) -> Result<Proposed> {
    let (replicas, name, current) = resource(&source.name, None, &source.target, reading, target)?;
    Ok(Proposed {
        replicas,
        name,
        status: MetricStatus {
            resource: Some(ResourceMetricStatus {
                name: source.name.clone(),
                current,
            }),
            ..status("Resource")
        },
    })
}

fn container_resource(
    source: &ContainerResourceMetricSource,
    reading: &Reading,
    target: &Target<'_>,
) -> Result<Proposed> {
    let container = Some(source.container.as_str());
    let (replicas, name, current) = resource(&source.name, container, &source.target, reading, target)?;
    Ok(Proposed {
        replicas,
        name,
        status: MetricStatus {
            container_resource: Some(ContainerResourceMetricStatus {
                container: source.container.clone(),
                name: source.name.clone(),
                current,
            }),
            ..status("ContainerResource")
        },
    })
}

fn shown_selector(selector: Option<&LabelSelector>) -> String {
    selector.map_or_else(|| "nil".into(), go_string)
}

fn external_name(metric: &MetricIdentifier) -> String {
    let selector = shown_selector(metric.selector.as_ref());
    format!("external metric {}({selector})", metric.name)
}

fn external(
    source: &ExternalMetricSource,
    reading: &Reading,
    target: &Target<'_>,
    ns: &str,
) -> Result<Proposed> {
    let metric = &source.metric;
    let value = || match reading {
        Reading::External(values) => Ok(values.iter().fold(0i64, |sum, v| sum.saturating_add(*v))),
        Reading::Failed(why) => Err(MetricError::Get {
            what: format!(
                "external metric {ns}/{}/{}",
                metric.name,
                shown_selector(metric.selector.as_ref())
            ),
            why: why.clone(),
        }),
        _ => Err(MetricError::OtherType),
    };
    let (replicas, current) = if let Some(goal) = &source.target.average_value {
        let failed = MetricError::of(format!("{} external metric", metric.name));
        let found = target.by_shared_value(value().map_err(failed)?, milli(goal)?);
        (found.replicas, average(found.usage))
    } else if let Some(goal) = &source.target.value {
        let goal = milli(goal)?;
        let found = value().and_then(|v| Ok(target.by_value(v, goal)?));
        let found = found.map_err(MetricError::of(format!("external metric {}", metric.name)))?;
        (found.replicas, total_value(found.usage))
    } else {
        return Err(MetricError::InvalidSource {
            source_type: "external",
            why: NO_VALUE,
        });
    };
    Ok(Proposed {
        replicas,
        name: external_name(metric),
        status: MetricStatus {
            external: Some(ExternalMetricStatus {
                metric: metric.clone(),
                current,
            }),
            ..status("External")
        },
    })
}

/// What the metric proposes for this target in this namespace.
pub fn evaluate(
    spec: &MetricSpec,
    reading: &Reading,
    target: &Target<'_>,
    namespace: &str,
) -> Result<Proposed, Unusable> {
    let (reason, what, found) = if let Some(s) = &spec.object {
        let found = object(s, reading, target, namespace);
        ("FailedGetObjectMetric", "object metric".into(), found)
    } else if let Some(s) = &spec.pods {
        let found = pods(s, reading, target);
        ("FailedGetPodsMetric", "pods metric".into(), found)
    } else if let Some(s) = &spec.resource {
        let found = pod_resource(s, reading, target);
        (
            "FailedGetResourceMetric",
            format!("{} resource metric", s.name),
            found,
        )
    } else if let Some(s) = &spec.container_resource {
        let found = container_resource(s, reading, target);
        let what = format!("{} container metric", s.container);
        ("FailedGetContainerResourceMetric", what, found)
    } else if let Some(s) = &spec.external {
        let found = external(s, reading, target, namespace);
        let what = format!("{} external metric", s.metric.name);
        ("FailedGetExternalMetric", what, found)
    } else {
        let why = MetricError::UnknownSource(spec.type_.clone()).to_string();
        return Err(Unusable {
            condition: Reason::new("InvalidMetricSourceType", why.clone()),
            summary: why,
        });
    };
    found.map_err(|why| Unusable {
        summary: format!("failed to get {what} value: {why}"),
        condition: Reason::new(reason, why.to_string()),
    })
}
