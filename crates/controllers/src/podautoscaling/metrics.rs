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
use knarr_api::quantity::{Notation, Quantity};
use knarr_api::selector::label::go_string;

use super::replicas::{Calculated, Target};
use super::samples::PodMetric;
use super::status::Reason;

/// What a metrics API answered for one metric of the spec; values are thousandths. The error is the API's own text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// By pod name, for Resource, ContainerResource and Pods.
    Pods(BTreeMap<String, PodMetric>),
    /// For Object.
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

type Result<T> = std::result::Result<T, String>;

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

fn status(type_: &str) -> MetricStatus {
    MetricStatus {
        type_: type_.into(),
        ..MetricStatus::default()
    }
}

fn unfit() -> String {
    "the response does not match the metric's type".into()
}

fn by_pod<'a>(reading: &'a Reading, what: &str) -> Result<&'a BTreeMap<String, PodMetric>> {
    match reading {
        Reading::Pods(metrics) => Ok(metrics),
        Reading::Failed(why) => Err(format!("unable to get {what}: {why}")),
        _ => Err(unfit()),
    }
}

fn object(source: &ObjectMetricSource, reading: &Reading, target: &Target<'_>, ns: &str) -> Result<Proposed> {
    let (metric, described) = (&source.metric, &source.described_object);
    let value = || match reading {
        Reading::Object(value) => Ok(*value),
        Reading::Failed(why) => Err(format!(
            "unable to get metric {}: {why} on {} {ns}/{}",
            metric.name, described.kind, described.name
        )),
        _ => Err(unfit()),
    };
    let goal = &source.target;
    let (replicas, name, current) = match (goal.type_.as_str(), &goal.value, &goal.average_value) {
        ("Value", Some(goal), _) => {
            let found = target.by_value(value()?, milli(goal)?)?;
            let name = format!("{} metric {}", described.kind, metric.name);
            (found.replicas, name, total_value(found.usage))
        }
        ("AverageValue", _, Some(goal)) => {
            let failed = |why| format!("failed to get {} object metric: {why}", metric.name);
            let found = target.by_shared_value(value().map_err(failed)?, milli(goal)?);
            (found.replicas, external_name(metric), average(found.usage))
        }
        _ => {
            let why =
                "invalid object metric source: neither a value target nor an average value target was set";
            return Err(why.into());
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
    let metrics = by_pod(reading, &format!("metric {}", metric.name))?;
    let goal = source.target.average_value.as_ref();
    let goal = goal.ok_or("invalid pods metric source: no average value target was set")?;
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
    let metrics = || by_pod(reading, &format!("metrics for resource {name}"));
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
        let found = metrics().and_then(|m| target.by_usage(m, Some(name), usage));
        let found = found.map_err(|why| format!("failed to get {name} usage: {why}"))?;
        return Ok((found.replicas, format!("{name} resource"), shown(found)));
    }
    let Some(percent) = goal.average_utilization else {
        return Err(
            "invalid resource metric source: neither an average utilization target nor an average value (usage) \
             target was set"
                .into(),
        );
    };
    let found = metrics().and_then(|m| target.by_utilization(m, name, container, percent));
    let found = found.map_err(|why| format!("failed to get {name} utilization: {why}"))?;
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
        Reading::Failed(why) => Err(format!(
            "unable to get external metric {ns}/{}/{}: {why}",
            metric.name,
            shown_selector(metric.selector.as_ref())
        )),
        _ => Err(unfit()),
    };
    let (replicas, current) = if let Some(goal) = &source.target.average_value {
        let failed = |why| format!("failed to get {} external metric: {why}", metric.name);
        let found = target.by_shared_value(value().map_err(failed)?, milli(goal)?);
        (found.replicas, average(found.usage))
    } else if let Some(goal) = &source.target.value {
        let goal = milli(goal)?;
        let found = value().and_then(|v| target.by_value(v, goal));
        let found = found.map_err(|why| format!("failed to get external metric {}: {why}", metric.name))?;
        (found.replicas, total_value(found.usage))
    } else {
        let why =
            "invalid external metric source: neither a value target nor an average value target was set";
        return Err(why.into());
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
) -> std::result::Result<Proposed, Unusable> {
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
        let why = format!("unknown metric source type {:?}", spec.type_);
        return Err(Unusable {
            condition: Reason::new("InvalidMetricSourceType", why.clone()),
            summary: why,
        });
    };
    found.map_err(|why| Unusable {
        summary: format!("failed to get {what} value: {why}"),
        condition: Reason::new(reason, why),
    })
}
