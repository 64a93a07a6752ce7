//! HorizontalPodAutoscaler (autoscaling/v2): what to scale, between which bounds, by which metrics.

use k8s_openapi::api::autoscaling::v2::{
    CrossVersionObjectReference, HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscaler,
    HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus, MetricIdentifier, MetricSpec, MetricStatus,
    MetricTarget, MetricValueStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::jiff::Timestamp;
use knarr_api::convert::autoscaler::default_metric;
use knarr_api::feature_gates;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;

use super::checks::{not_negative, not_negative_quantity, positive_quantity, text};
use super::ingress::path_segment_name;
use super::pod::container_resource_name;
use crate::table::{self, Cell, Column};
use crate::{Part, Strategy, facts};

const MAX_PERIOD_SECONDS: i32 = 1800;
const MAX_STABILIZATION_SECONDS: i32 = 3600;
const TYPES: &[&str] = &["ContainerResource", "External", "Object", "Pods", "Resource"];
/// Maximum number of metrics that `kubectl get` shows.
const SHOWN: usize = 2;

fn policy(of: &str, value: i32) -> HPAScalingPolicy {
    HPAScalingPolicy {
        type_: of.into(),
        value,
        period_seconds: 15,
    }
}

/// Sets the defaults of scaling rules.
fn set_scaling_rules_defaults(
    rules: &mut Option<HPAScalingRules>,
    stabilization: Option<i32>,
    policies: Vec<HPAScalingPolicy>,
) {
    let rules = rules.get_or_insert_default();
    rules.select_policy.get_or_insert_with(|| "Max".into());
    rules.policies.get_or_insert(policies);
    if rules.stabilization_window_seconds.is_none() {
        rules.stabilization_window_seconds = stabilization;
    }
}

impl Strategy for HorizontalPodAutoscaler {
    fn set_defaults(&mut self) {
        let spec = &mut self.spec;
        spec.min_replicas.get_or_insert(1);
        if spec.metrics.as_ref().is_none_or(Vec::is_empty) {
            spec.metrics = Some(vec![default_metric()]);
        }
        if let Some(behavior) = &mut spec.behavior {
            let up = vec![policy("Pods", 4), policy("Percent", 100)];
            set_scaling_rules_defaults(&mut behavior.scale_up, Some(0), up);
            set_scaling_rules_defaults(&mut behavior.scale_down, None, vec![policy("Percent", 100)]);
        }
        self.status.get_or_insert_default();
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(HorizontalPodAutoscalerStatus::default());
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        match part {
            Part::Status => self.spec = old.spec.clone(),
            Part::Main | Part::Other(_) => self.status = old.status.clone(),
        }
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        validate_spec(
            &self.spec,
            &SpecValidationOptions::on_create(&self.spec),
            &mut errors,
        );
        errors
    }

    fn validate_update(&self, old: &Self, part: Part) -> ErrorList {
        if part != Part::Status {
            let mut errors = ErrorList::new();
            validate_spec(
                &self.spec,
                &SpecValidationOptions::on_update(&self.spec, &old.spec),
                &mut errors,
            );
            return errors;
        }
        let mut errors = ErrorList::new();
        let status = self.status.clone().unwrap_or_default();
        let path = Path::new("status");
        not_negative(
            &mut errors,
            &path.child("currentReplicas"),
            status.current_replicas.unwrap_or(0),
        );
        not_negative(
            &mut errors,
            &path.child("desiredReplicas"),
            status.desired_replicas,
        );
        errors
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Reference"),
            Column::string("Targets"),
            Column::string("MinPods"),
            Column::string("MaxPods"),
            Column::string("Replicas"),
            table::AGE,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let spec = &self.spec;
        let status = self.status.clone().unwrap_or_default();
        let target = &spec.scale_target_ref;
        let min = spec.min_replicas.map(|m| m.to_string());
        vec![
            table::name(&self.metadata),
            format!("{}/{}", target.kind, target.name).into(),
            shown_metrics(
                spec.metrics.as_deref().unwrap_or(&[]),
                status.current_metrics.as_deref().unwrap_or(&[]),
            )
            .into(),
            table::or(min.as_deref(), "<unset>").into(),
            spec.max_replicas.into(),
            status.current_replicas.unwrap_or(0).into(),
            table::created(&self.metadata, now),
        ]
    }
}

fn shown_metrics(specs: &[MetricSpec], statuses: &[MetricStatus]) -> String {
    if specs.is_empty() {
        return "<none>".into();
    }
    let shown: Vec<String> = specs
        .iter()
        .enumerate()
        .map(|(i, spec)| shown_metric(spec, statuses.get(i)))
        .collect();
    let text = shown[..shown.len().min(SHOWN)].join(", ");
    match shown.len() {
        more if more > SHOWN => format!("{text} + {} more...", more - SHOWN),
        _ => text,
    }
}

fn shown_metric(spec: &MetricSpec, status: Option<&MetricStatus>) -> String {
    let quantity = |q: Option<Quantity>| q.map_or("<unknown>".to_string(), |q| q.0);
    let or_nil = |q: &Option<Quantity>| q.as_ref().map_or("<nil>".to_string(), |q| q.0.clone());
    let by_value = |target: &MetricTarget, current: Option<&MetricValueStatus>| match &target.average_value {
        Some(average) => format!(
            "{}/{} (avg)",
            quantity(current.and_then(|c| c.average_value.clone())),
            average.0
        ),
        None => format!(
            "{}/{}",
            quantity(current.and_then(|c| c.value.clone())),
            or_nil(&target.value)
        ),
    };
    let by_resource = |name: &str, target: &MetricTarget, current: Option<&MetricValueStatus>| {
        let percent = |p: Option<i32>, none: &str| p.map_or(none.to_string(), |p| format!("{p}%"));
        match &target.average_value {
            Some(average) => format!(
                "{name}: {}/{}",
                quantity(current.and_then(|c| c.average_value.clone())),
                average.0
            ),
            None => format!(
                "{name}: {}/{}",
                percent(current.and_then(|c| c.average_utilization), "<unknown>"),
                percent(target.average_utilization, "<auto>")
            ),
        }
    };
    let unknown = || "<unknown type>".to_string();
    match spec.type_.as_str() {
        "External" => spec.external.as_ref().map_or_else(unknown, |m| {
            by_value(
                &m.target,
                status.and_then(|s| s.external.as_ref()).map(|s| &s.current),
            )
        }),
        "Object" => spec.object.as_ref().map_or_else(unknown, |m| {
            by_value(
                &m.target,
                status.and_then(|s| s.object.as_ref()).map(|s| &s.current),
            )
        }),
        "Pods" => spec.pods.as_ref().map_or_else(unknown, |m| {
            let current = status.and_then(|s| s.pods.as_ref()).map(|s| &s.current);
            format!(
                "{}/{}",
                quantity(current.and_then(|c| c.average_value.clone())),
                or_nil(&m.target.average_value)
            )
        }),
        "Resource" => spec.resource.as_ref().map_or_else(unknown, |m| {
            let current = status.and_then(|s| s.resource.as_ref()).map(|s| &s.current);
            by_resource(&m.name, &m.target, current)
        }),
        "ContainerResource" => spec.container_resource.as_ref().map_or_else(unknown, |m| {
            let current = status
                .and_then(|s| s.container_resource.as_ref())
                .map(|s| &s.current);
            by_resource(&m.name, &m.target, current)
        }),
        _ => unknown(),
    }
}

/// Options that relax the validation of a spec (`HorizontalPodAutoscalerSpecValidationOptions`).
pub(super) struct SpecValidationOptions {
    /// `minReplicas` may be 0: the feature gate HPAScaleToZero is enabled, or the old object has 0.
    scale_to_zero: bool,
    scale_target: ApiVersions,
    described_object: ApiVersions,
}

/// The API versions that a reference may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ApiVersions {
    WithGroup,
    /// Versions with a group and those of the core group.
    All,
    /// Any text, also an invalid API version.
    Unchecked,
}

impl SpecValidationOptions {
    fn on_create(spec: &HorizontalPodAutoscalerSpec) -> Self {
        SpecValidationOptions {
            scale_to_zero: feature_gates::current().hpa_scale_to_zero,
            // The only scalable kind of the core group.
            scale_target: match spec.scale_target_ref.kind.as_str() {
                "ReplicationController" => ApiVersions::All,
                _ => ApiVersions::WithGroup,
            },
            described_object: ApiVersions::All,
        }
    }

    /// Values that the old object has stay valid.
    fn on_update(spec: &HorizontalPodAutoscalerSpec, old: &HorizontalPodAutoscalerSpec) -> Self {
        let mut options = Self::on_create(spec);
        options.scale_to_zero |= old.min_replicas == Some(0);
        let (new, before) = (&spec.scale_target_ref, &old.scale_target_ref);
        if text(&new.api_version) == text(&before.api_version) && new.kind == before.kind {
            options.scale_target = ApiVersions::Unchecked;
        }
        let was_invalid = |metric: &MetricSpec| {
            let object = metric.object.as_ref().filter(|_| metric.type_ == "Object");
            object.is_some_and(|o| api_version_error(&o.described_object, ApiVersions::All).is_some())
        };
        if old.metrics.iter().flatten().any(was_invalid) {
            options.described_object = ApiVersions::Unchecked;
        }
        options
    }
}

pub(super) fn validate_spec(
    spec: &HorizontalPodAutoscalerSpec,
    options: &SpecValidationOptions,
    errors: &mut ErrorList,
) {
    let path = Path::new("spec");
    let at = path.child("maxReplicas");
    let least = if options.scale_to_zero { 0 } else { 1 };
    if let Some(min) = spec.min_replicas.filter(|m| *m < least) {
        errors.invalid(
            &path.child("minReplicas"),
            min,
            format!("must be greater than or equal to {least}"),
        );
    }
    match spec.max_replicas {
        0 => errors.required(&at, "must be set and greater than 0"),
        max if max < 0 => errors.invalid(&at, max, "must be greater than or equal to 1"),
        _ => {}
    }
    if spec.min_replicas.is_some_and(|min| spec.max_replicas < min) {
        errors.invalid(
            &at,
            spec.max_replicas,
            "must be greater than or equal to `minReplicas`",
        );
    }
    reference(
        &spec.scale_target_ref,
        options.scale_target,
        &path.child("scaleTargetRef"),
        errors,
    );
    let metrics = spec.metrics.as_deref().unwrap_or(&[]);
    let at = path.child("metrics");
    for (i, metric) in metrics.iter().enumerate() {
        check_metric(metric, options, &at.index(i), errors);
    }
    let from_outside = metrics
        .iter()
        .any(|m| matches!(m.type_.as_str(), "Object" | "External"));
    if spec.min_replicas == Some(0) && !from_outside {
        errors.forbidden(
            &at,
            "must specify at least one Object or External metric to support scaling to zero replicas",
        );
    }
    if let Some(behavior) = &spec.behavior {
        for (field, rules) in [
            ("scaleUp", &behavior.scale_up),
            ("scaleDown", &behavior.scale_down),
        ] {
            if let Some(rules) = rules {
                check_rules(rules, &path.child("behavior").child(field), errors);
            }
        }
    }
}

fn api_version_error(reference: &CrossVersionObjectReference, allowed: ApiVersions) -> Option<String> {
    let version = text(&reference.api_version);
    match version.matches('/').count() {
        _ if allowed == ApiVersions::Unchecked => None,
        0 if allowed == ApiVersions::WithGroup => Some("apiVersion must specify API group".into()),
        0 => None,
        1 if version.starts_with('/') && allowed == ApiVersions::WithGroup => {
            Some("apiVersion must specify API group".into())
        }
        1 => None,
        _ => Some(format!("unexpected GroupVersion string: {version}")),
    }
}

fn reference(
    reference: &CrossVersionObjectReference,
    allowed: ApiVersions,
    path: &Path,
    errors: &mut ErrorList,
) {
    path_segment_name(errors, &path.child("kind"), &reference.kind);
    path_segment_name(errors, &path.child("name"), &reference.name);
    if let Some(error) = api_version_error(reference, allowed) {
        errors.invalid(&path.child("apiVersion"), text(&reference.api_version), error);
    }
}

fn check_rules(rules: &HPAScalingRules, path: &Path, errors: &mut ErrorList) {
    let at = path.child("stabilizationWindowSeconds");
    match rules.stabilization_window_seconds {
        Some(seconds) if seconds < 0 => {
            errors.invalid(&at, seconds, "must be greater than or equal to zero");
        }
        Some(seconds) if seconds > MAX_STABILIZATION_SECONDS => errors.invalid(
            &at,
            seconds,
            format!("must be less than or equal to {MAX_STABILIZATION_SECONDS}"),
        ),
        _ => {}
    }
    facts::check(errors, path, rules, &["selectPolicy"]);
    let at = path.child("policies");
    let policies = rules.policies.as_deref().unwrap_or(&[]);
    if policies.is_empty() {
        errors.required(&at, "must specify at least one Policy");
    }
    for (i, policy) in policies.iter().enumerate() {
        let at = at.index(i);
        facts::check(errors, &at, policy, &["type"]);
        for (field, value) in [("value", policy.value), ("periodSeconds", policy.period_seconds)] {
            if value <= 0 {
                errors.invalid(&at.child(field), value, "must be greater than zero");
            }
        }
        if policy.period_seconds > MAX_PERIOD_SECONDS {
            errors.invalid(
                &at.child("periodSeconds"),
                policy.period_seconds,
                format!("must be less than or equal to {MAX_PERIOD_SECONDS}"),
            );
        }
    }
    if let Some(tolerance) = &rules.tolerance {
        not_negative_quantity(errors, &path.child("tolerance"), tolerance);
    }
}

fn check_metric(metric: &MetricSpec, options: &SpecValidationOptions, path: &Path, errors: &mut ErrorList) {
    let of = metric.type_.as_str();
    let at = path.child("type");
    if of.is_empty() {
        errors.required(&at, "must specify a metric source type");
    }
    if !TYPES.contains(&of) {
        errors.not_supported_in_order(&at, of, TYPES);
    }
    let present: Vec<&str> = [
        ("object", metric.object.is_some()),
        ("external", metric.external.is_some()),
        ("pods", metric.pods.is_some()),
        ("resource", metric.resource.is_some()),
        ("containerResource", metric.container_resource.is_some()),
    ]
    .iter()
    .filter(|(_, is)| *is)
    .map(|(field, _)| *field)
    .collect();
    // Only the first source is validated.
    match present.first().copied() {
        Some("object") => {
            if let Some(source) = &metric.object {
                let path = path.child("object");
                reference(
                    &source.described_object,
                    options.described_object,
                    &path.child("describedObject"),
                    errors,
                );
                identifier(&source.metric, &path.child("metric"), errors);
                check_target(&source.target, &path.child("target"), errors);
                if source.target.value.is_none() && source.target.average_value.is_none() {
                    errors.required(
                        &path.child("target").child("averageValue"),
                        "must set either a target value or averageValue",
                    );
                }
            }
        }
        Some("external") => {
            if let Some(source) = &metric.external {
                let path = path.child("external");
                identifier(&source.metric, &path.child("metric"), errors);
                check_target(&source.target, &path.child("target"), errors);
                match (&source.target.value, &source.target.average_value) {
                    (None, None) => errors.required(
                        &path.child("target").child("averageValue"),
                        "must set either a target value for metric or a per-pod target",
                    ),
                    (Some(_), Some(_)) => errors.forbidden(
                        &path.child("target").child("value"),
                        "may not set both a target value for metric and a per-pod target",
                    ),
                    _ => {}
                }
            }
        }
        Some("pods") => {
            if let Some(source) = &metric.pods {
                let path = path.child("pods");
                identifier(&source.metric, &path.child("metric"), errors);
                check_target(&source.target, &path.child("target"), errors);
                if source.target.average_value.is_none() {
                    errors.required(
                        &path.child("target").child("averageValue"),
                        "must specify a positive target averageValue",
                    );
                }
            }
        }
        Some("resource") => {
            if let Some(source) = &metric.resource {
                by_resource(&source.name, &source.target, &path.child("resource"), errors);
            }
        }
        Some("containerResource") => {
            if let Some(source) = &metric.container_resource {
                let path = path.child("containerResource");
                if !source.name.is_empty() {
                    container_resource_name(&source.name, &path.child("name"), errors);
                }
                let at = path.child("container");
                match source.container.as_str() {
                    "" => errors.required(&at, "must specify a container"),
                    name => errors.all_invalid(&at, name, names::dns1123_label(name)),
                }
                by_resource(&source.name, &source.target, &path, errors);
            }
        }
        _ => {}
    }
    let expected = match of {
        "Object" => "object",
        "Pods" => "pods",
        "Resource" => "resource",
        "External" => "external",
        "ContainerResource" => "containerResource",
        _ => return errors.not_supported_in_order(&at, of, TYPES),
    };
    if !present.contains(&expected) {
        errors.required(
            &path.child(expected),
            "must populate information for the given metric source",
        );
    }
    if present.len() != 1 {
        for other in present.iter().filter(|p| **p != expected) {
            errors.forbidden(&path.child(other), "must populate the given metric source only");
        }
    }
}

fn by_resource(name: &str, target: &MetricTarget, path: &Path, errors: &mut ErrorList) {
    if name.is_empty() {
        errors.required(&path.child("name"), "must specify a resource name");
    }
    let path = path.child("target");
    check_target(target, &path, errors);
    match (target.average_utilization, &target.average_value) {
        (None, None) => errors.required(
            &path.child("averageUtilization"),
            "must set either a target raw value or a target utilization",
        ),
        (Some(_), Some(_)) => errors.forbidden(
            &path.child("averageValue"),
            "may not set both a target raw value and a target utilization",
        ),
        _ => {}
    }
}

fn identifier(metric: &MetricIdentifier, path: &Path, errors: &mut ErrorList) {
    if metric.name.is_empty() {
        errors.required(&path.child("name"), "must specify a metric name");
    } else {
        path_segment_name(errors, &path.child("name"), &metric.name);
    }
}

fn check_target(target: &MetricTarget, path: &Path, errors: &mut ErrorList) {
    let at = path.child("type");
    let of = target.type_.as_str();
    if of.is_empty() {
        errors.required(&at, "must specify a metric target type");
    }
    if !matches!(of, "Utilization" | "Value" | "AverageValue") {
        errors.invalid(&at, of, "must be either Utilization, Value, or AverageValue");
    }
    for (field, value) in [("value", &target.value), ("averageValue", &target.average_value)] {
        if let Some(value) = value {
            let mut errs = ErrorList::new();
            positive_quantity(&mut errs, path, value);
            if !errs.is_empty() {
                errors.invalid(&path.child(field), value.0.as_str(), "must be positive");
            }
        }
    }
    if let Some(percent) = target.average_utilization.filter(|p| *p < 1) {
        errors.invalid(
            &path.child("averageUtilization"),
            percent,
            "must be greater than 0",
        );
    }
}

#[cfg(test)]
mod tests;
