//! `autoscaling/v1` autoscalers, which know CPU utilisation only, and `autoscaling/v2`, in which they are stored.
//! Fields that v1 does not have are in annotations, in v1's own form of metrics.

use std::collections::BTreeMap;

use k8s_openapi::api::autoscaling::{v1, v2};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

/// The target utilization of an autoscaler without metrics.
pub const DEFAULT_CPU_UTILIZATION: i32 = 80;

/// The metric of an autoscaler without metrics.
pub fn default_metric() -> v2::MetricSpec {
    cpu_utilization(DEFAULT_CPU_UTILIZATION)
}

fn cpu_utilization(percent: i32) -> v2::MetricSpec {
    v2::MetricSpec {
        type_: "Resource".into(),
        resource: Some(v2::ResourceMetricSource {
            name: "cpu".into(),
            target: v2::MetricTarget {
                type_: "Utilization".into(),
                average_utilization: Some(percent),
                ..Default::default()
            },
        }),
        ..Default::default()
    }
}

/// The target of a metric of CPU utilization; `None` for other metrics.
fn cpu_target(metric: &v2::MetricSpec) -> Option<i32> {
    let resource = metric.resource.as_ref().filter(|r| r.name == "cpu")?;
    (metric.type_ == "Resource")
        .then_some(resource.target.average_utilization)
        .flatten()
}

fn reference_to_v1(r: v2::CrossVersionObjectReference) -> v1::CrossVersionObjectReference {
    v1::CrossVersionObjectReference {
        api_version: r.api_version,
        kind: r.kind,
        name: r.name,
    }
}

fn reference_to_v2(r: v1::CrossVersionObjectReference) -> v2::CrossVersionObjectReference {
    v2::CrossVersionObjectReference {
        api_version: r.api_version,
        kind: r.kind,
        name: r.name,
    }
}

pub fn to_v1(hpa: v2::HorizontalPodAutoscaler) -> v1::HorizontalPodAutoscaler {
    let v2::HorizontalPodAutoscaler {
        mut metadata,
        spec,
        status,
    } = hpa;
    let status = status.unwrap_or_default();
    let mut annotations = metadata.annotations.take().unwrap_or_default();
    drop_round_trip(&mut annotations);
    let metrics = spec.metrics.unwrap_or_default();
    let others: Vec<Metric> = metrics
        .iter()
        .filter(|m| cpu_target(m).is_none())
        .map(|m| Metric::of_spec(m.clone()))
        .collect();
    let current = status.current_metrics.unwrap_or_default();
    let current_cpu = current.iter().rev().find_map(|m| {
        let resource = m.resource.as_ref().filter(|r| r.name == "cpu")?;
        resource.current.average_utilization
    });
    let current: Vec<MetricStatus> = current.into_iter().map(MetricStatus::of_status).collect();
    keep(&mut annotations, METRICS, &others);
    keep(&mut annotations, CURRENT_METRICS, &current);
    keep(
        &mut annotations,
        CONDITIONS,
        &status.conditions.unwrap_or_default(),
    );
    if let Some(behavior) = spec.behavior {
        annotations.insert(BEHAVIOR.into(), json(&Behavior::of(behavior)));
    }
    metadata.annotations = (!annotations.is_empty()).then_some(annotations);
    v1::HorizontalPodAutoscaler {
        metadata,
        spec: v1::HorizontalPodAutoscalerSpec {
            max_replicas: spec.max_replicas,
            min_replicas: spec.min_replicas,
            scale_target_ref: reference_to_v1(spec.scale_target_ref),
            target_cpu_utilization_percentage: metrics.iter().find_map(cpu_target),
        },
        status: Some(v1::HorizontalPodAutoscalerStatus {
            current_cpu_utilization_percentage: current_cpu,
            current_replicas: status.current_replicas.unwrap_or(0),
            desired_replicas: status.desired_replicas,
            last_scale_time: status.last_scale_time,
            observed_generation: status.observed_generation,
        }),
    }
}

pub fn to_v2(hpa: v1::HorizontalPodAutoscaler) -> v2::HorizontalPodAutoscaler {
    let v1::HorizontalPodAutoscaler {
        mut metadata,
        spec,
        status,
    } = hpa;
    let status = status.unwrap_or_default();
    let mut annotations = metadata.annotations.take().unwrap_or_default();
    let mut metrics: Vec<v2::MetricSpec> = kept::<Vec<Metric>>(&annotations, METRICS)
        .unwrap_or_default()
        .into_iter()
        .map(Metric::into_spec)
        .collect();
    metrics.extend(spec.target_cpu_utilization_percentage.map(cpu_utilization));
    if metrics.is_empty() {
        metrics.push(default_metric());
    }
    let current = match kept::<Vec<MetricStatus>>(&annotations, CURRENT_METRICS) {
        // These have more than the one value that v1 has a field for.
        Some(current) => Some(current.into_iter().map(MetricStatus::into_status).collect()),
        None => status.current_cpu_utilization_percentage.map(|percent| {
            vec![v2::MetricStatus {
                type_: "Resource".into(),
                resource: Some(v2::ResourceMetricStatus {
                    name: "cpu".into(),
                    current: v2::MetricValueStatus {
                        average_utilization: Some(percent),
                        ..Default::default()
                    },
                }),
                ..Default::default()
            }]
        }),
    };
    let behavior = kept::<Behavior>(&annotations, BEHAVIOR).map(Behavior::into_v2);
    let conditions = kept(&annotations, CONDITIONS);
    drop_round_trip(&mut annotations);
    metadata.annotations = (!annotations.is_empty()).then_some(annotations);
    v2::HorizontalPodAutoscaler {
        metadata,
        spec: v2::HorizontalPodAutoscalerSpec {
            behavior,
            max_replicas: spec.max_replicas,
            metrics: Some(metrics),
            min_replicas: spec.min_replicas,
            scale_target_ref: reference_to_v2(spec.scale_target_ref),
        },
        status: Some(v2::HorizontalPodAutoscalerStatus {
            conditions,
            current_metrics: current,
            current_replicas: Some(status.current_replicas),
            desired_replicas: status.desired_replicas,
            last_scale_time: status.last_scale_time,
            observed_generation: status.observed_generation,
        }),
    }
}

fn drop_round_trip(annotations: &mut BTreeMap<String, String>) {
    for name in [METRICS, CURRENT_METRICS, CONDITIONS, BEHAVIOR] {
        annotations.remove(name);
    }
}

fn json(value: &impl Serialize) -> String {
    match knarr_apimachinery::codec::to_plain_string(value) {
        Ok(text) => text,
        // Structs of strings and numbers with string keys.
        Err(e) => unreachable!("metrics always encode: {e}"),
    }
}

fn keep<T: Serialize>(annotations: &mut BTreeMap<String, String>, name: &str, values: &Vec<T>) {
    if !values.is_empty() {
        annotations.insert(name.into(), json(values));
    }
}

/// The value of an annotation. One that does not parse is ignored, as in Kubernetes.
fn kept<T: DeserializeOwned>(annotations: &BTreeMap<String, String>, name: &str) -> Option<T> {
    serde_json::from_str(annotations.get(name)?).ok()
}

fn or_zero(quantity: Option<Quantity>) -> Quantity {
    quantity.unwrap_or_else(|| Quantity("0".into()))
}

/// A metric in v1's shape. Which fields are set depends on its type.
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Metric {
    #[serde(rename = "type")]
    of: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<ObjectMetric>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pods: Option<PodsMetric>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<ResourceMetric>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container_resource: Option<ResourceMetric>,
    #[serde(skip_serializing_if = "Option::is_none")]
    external: Option<ExternalMetric>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectMetric {
    target: v1::CrossVersionObjectReference,
    metric_name: String,
    target_value: Quantity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    selector: Option<LabelSelector>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    average_value: Option<Quantity>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodsMetric {
    metric_name: String,
    target_average_value: Quantity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    selector: Option<LabelSelector>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceMetric {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target_average_utilization: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target_average_value: Option<Quantity>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    container: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExternalMetric {
    metric_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metric_selector: Option<LabelSelector>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target_value: Option<Quantity>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target_average_value: Option<Quantity>,
}

fn identifier(name: String, selector: Option<LabelSelector>) -> v2::MetricIdentifier {
    v2::MetricIdentifier { name, selector }
}

impl ResourceMetric {
    fn of(name: String, target: v2::MetricTarget, container: Option<String>) -> Self {
        ResourceMetric {
            name,
            target_average_utilization: target.average_utilization,
            target_average_value: target.average_value,
            container,
        }
    }

    fn target(&self) -> v2::MetricTarget {
        let of = match self.target_average_utilization {
            Some(_) => "Utilization",
            None => "AverageValue",
        };
        v2::MetricTarget {
            type_: of.into(),
            average_utilization: self.target_average_utilization,
            average_value: self.target_average_value.clone(),
            value: None,
        }
    }
}

impl Metric {
    fn of_spec(m: v2::MetricSpec) -> Self {
        Metric {
            of: m.type_,
            object: m.object.map(|o| ObjectMetric {
                target: reference_to_v1(o.described_object),
                metric_name: o.metric.name,
                target_value: or_zero(o.target.value),
                selector: o.metric.selector,
                average_value: o.target.average_value,
            }),
            pods: m.pods.map(|p| PodsMetric {
                metric_name: p.metric.name,
                target_average_value: or_zero(p.target.average_value),
                selector: p.metric.selector,
            }),
            resource: m.resource.map(|r| ResourceMetric::of(r.name, r.target, None)),
            container_resource: m
                .container_resource
                .map(|r| ResourceMetric::of(r.name, r.target, Some(r.container))),
            external: m.external.map(|e| ExternalMetric {
                metric_name: e.metric.name,
                metric_selector: e.metric.selector,
                target_value: e.target.value,
                target_average_value: e.target.average_value,
            }),
        }
    }

    fn into_spec(self) -> v2::MetricSpec {
        v2::MetricSpec {
            type_: self.of,
            object: self.object.map(|o| v2::ObjectMetricSource {
                described_object: reference_to_v2(o.target),
                metric: identifier(o.metric_name, o.selector),
                target: match o.average_value {
                    None => v2::MetricTarget {
                        type_: "Value".into(),
                        value: Some(o.target_value),
                        ..Default::default()
                    },
                    average => v2::MetricTarget {
                        type_: "AverageValue".into(),
                        // v1 cannot omit the value; zero means none.
                        value: (o.target_value.0 != "0").then_some(o.target_value),
                        average_value: average,
                        ..Default::default()
                    },
                },
            }),
            pods: self.pods.map(|p| v2::PodsMetricSource {
                metric: identifier(p.metric_name, p.selector),
                target: v2::MetricTarget {
                    type_: "AverageValue".into(),
                    average_value: Some(p.target_average_value),
                    ..Default::default()
                },
            }),
            resource: self.resource.map(|r| v2::ResourceMetricSource {
                target: r.target(),
                name: r.name,
            }),
            container_resource: self
                .container_resource
                .map(|r| v2::ContainerResourceMetricSource {
                    target: r.target(),
                    container: r.container.unwrap_or_default(),
                    name: r.name,
                }),
            external: self.external.map(|e| v2::ExternalMetricSource {
                metric: identifier(e.metric_name, e.metric_selector),
                target: v2::MetricTarget {
                    type_: match e.target_value {
                        Some(_) => "Value".into(),
                        None => "AverageValue".into(),
                    },
                    value: e.target_value,
                    average_value: e.target_average_value,
                    average_utilization: None,
                },
            }),
        }
    }
}

/// A metric's present value in v1's shape.
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct MetricStatus {
    #[serde(rename = "type")]
    of: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<ObjectStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pods: Option<PodsStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<ResourceStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container_resource: Option<ResourceStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    external: Option<ExternalStatus>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectStatus {
    target: v1::CrossVersionObjectReference,
    metric_name: String,
    current_value: Quantity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    selector: Option<LabelSelector>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    average_value: Option<Quantity>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodsStatus {
    metric_name: String,
    current_average_value: Quantity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    selector: Option<LabelSelector>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceStatus {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    current_average_utilization: Option<i32>,
    current_average_value: Quantity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    container: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExternalStatus {
    metric_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metric_selector: Option<LabelSelector>,
    current_value: Quantity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    current_average_value: Option<Quantity>,
}

impl ResourceStatus {
    fn of(name: String, current: v2::MetricValueStatus, container: Option<String>) -> Self {
        ResourceStatus {
            name,
            current_average_utilization: current.average_utilization,
            current_average_value: or_zero(current.average_value),
            container,
        }
    }

    fn current(&self) -> v2::MetricValueStatus {
        v2::MetricValueStatus {
            average_utilization: self.current_average_utilization,
            average_value: Some(self.current_average_value.clone()),
            value: None,
        }
    }
}

impl MetricStatus {
    fn of_status(m: v2::MetricStatus) -> Self {
        MetricStatus {
            of: m.type_,
            object: m.object.map(|o| ObjectStatus {
                target: reference_to_v1(o.described_object),
                metric_name: o.metric.name,
                current_value: or_zero(o.current.value),
                selector: o.metric.selector,
                average_value: o.current.average_value,
            }),
            pods: m.pods.map(|p| PodsStatus {
                metric_name: p.metric.name,
                current_average_value: or_zero(p.current.average_value),
                selector: p.metric.selector,
            }),
            resource: m.resource.map(|r| ResourceStatus::of(r.name, r.current, None)),
            container_resource: m
                .container_resource
                .map(|r| ResourceStatus::of(r.name, r.current, Some(r.container))),
            external: m.external.map(|e| ExternalStatus {
                metric_name: e.metric.name,
                metric_selector: e.metric.selector,
                current_value: or_zero(e.current.value),
                current_average_value: e.current.average_value,
            }),
        }
    }

    fn into_status(self) -> v2::MetricStatus {
        let values = |value: Option<Quantity>, average: Option<Quantity>| v2::MetricValueStatus {
            average_utilization: None,
            average_value: average,
            value,
        };
        v2::MetricStatus {
            type_: self.of,
            object: self.object.map(|o| v2::ObjectMetricStatus {
                current: values(Some(o.current_value), o.average_value),
                described_object: reference_to_v2(o.target),
                metric: identifier(o.metric_name, o.selector),
            }),
            pods: self.pods.map(|p| v2::PodsMetricStatus {
                current: values(None, Some(p.current_average_value)),
                metric: identifier(p.metric_name, p.selector),
            }),
            resource: self.resource.map(|r| v2::ResourceMetricStatus {
                current: r.current(),
                name: r.name,
            }),
            container_resource: self
                .container_resource
                .map(|r| v2::ContainerResourceMetricStatus {
                    current: r.current(),
                    container: r.container.unwrap_or_default(),
                    name: r.name,
                }),
            external: self.external.map(|e| v2::ExternalMetricStatus {
                current: values(Some(e.current_value), e.current_average_value),
                metric: identifier(e.metric_name, e.metric_selector),
            }),
        }
    }
}

/// The behaviour as the annotation has it: Kubernetes writes its internal type there, with capitals.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Behavior {
    #[serde(alias = "scaleUp")]
    scale_up: Option<Rules>,
    #[serde(alias = "scaleDown")]
    scale_down: Option<Rules>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Rules {
    #[serde(alias = "stabilizationWindowSeconds")]
    stabilization_window_seconds: Option<i32>,
    #[serde(alias = "selectPolicy")]
    select_policy: Option<String>,
    #[serde(alias = "policies")]
    policies: Option<Vec<Policy>>,
    #[serde(default, alias = "tolerance")]
    tolerance: Option<Quantity>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Policy {
    #[serde(rename = "Type", alias = "type")]
    of: String,
    #[serde(alias = "value")]
    value: i32,
    #[serde(alias = "periodSeconds")]
    period_seconds: i32,
}

impl Behavior {
    fn of(behavior: v2::HorizontalPodAutoscalerBehavior) -> Self {
        let rules = |r: v2::HPAScalingRules| Rules {
            stabilization_window_seconds: r.stabilization_window_seconds,
            select_policy: r.select_policy,
            policies: r.policies.map(|policies| {
                policies
                    .into_iter()
                    .map(|p| Policy {
                        of: p.type_,
                        value: p.value,
                        period_seconds: p.period_seconds,
                    })
                    .collect()
            }),
            tolerance: r.tolerance,
        };
        Behavior {
            scale_up: behavior.scale_up.map(rules),
            scale_down: behavior.scale_down.map(rules),
        }
    }

    fn into_v2(self) -> v2::HorizontalPodAutoscalerBehavior {
        let rules = |r: Rules| v2::HPAScalingRules {
            stabilization_window_seconds: r.stabilization_window_seconds,
            select_policy: r.select_policy,
            policies: r.policies.map(|policies| {
                policies
                    .into_iter()
                    .map(|p| v2::HPAScalingPolicy {
                        type_: p.of,
                        value: p.value,
                        period_seconds: p.period_seconds,
                    })
                    .collect()
            }),
            tolerance: r.tolerance,
        };
        v2::HorizontalPodAutoscalerBehavior {
            scale_up: self.scale_up.map(rules),
            scale_down: self.scale_down.map(rules),
        }
    }
}
