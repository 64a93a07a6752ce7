//! Conditions, events and status of whole reconciliations.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use knarr_api::ObjectKey;
use knarr_api::k8s_openapi;
use knarr_apimachinery::labels::Selector;
use serde_json::{Value, json};

use super::super::{
    Decision, History, Needs, PodMetric, Reading, Reconciliation, Report, Settings, controlling,
};

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

fn external() -> Value {
    json!([{"type": "External", "external": {"metric": {"name": "queue"}, "target": {"type": "Value", "value": "2"}}}])
}

fn cpu() -> Value {
    json!([{"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": 50}}}])
}

fn hpa(min: i32, max: i32, metrics: Value) -> HorizontalPodAutoscaler {
    serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "a"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": min, "maxReplicas": max, "metrics": metrics},
        "status": {"desiredReplicas": 0}}))
    .unwrap()
}

fn scale(replicas: i32) -> Scale {
    serde_json::from_value(json!({"spec": {"replicas": replicas},
        "status": {"replicas": replicas, "selector": "app=web"}}))
    .unwrap()
}

fn pods(count: i32) -> Vec<Pod> {
    let pod = |i| {
        serde_json::from_value(json!({"metadata": {"name": format!("p{i}"), "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]},
            "status": {"phase": "Running", "startTime": "1970-01-01T00:00:00Z",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z"}]}}))
        .unwrap()
    };
    (0..count).map(pod).collect()
}

fn used(count: i32, milli: i64) -> Reading {
    let metric = PodMetric {
        value: milli,
        at: now(),
        window: Duration::from_secs(30),
    };
    Reading::Pods((0..count).map(|i| (format!("p{i}"), metric)).collect())
}

/// As the driver does it; the scale's write succeeds.
fn run(hpa: &HorizontalPodAutoscaler, settings: &Settings, replicas: i32, readings: &[Reading]) -> Report {
    let mut history = History::default();
    let mut r = Reconciliation::new(hpa, settings, &mut history, now());
    if r.start(&scale(replicas)) == Needs::Metrics {
        let pods = pods(replicas);
        r.decide(&pods.iter().collect::<Vec<_>>(), readings);
    }
    r.finish(Ok(()))
}

/// `Type=Status/Reason` of each condition.
fn conditions(report: &Report) -> Vec<String> {
    let list = report.status.conditions.as_deref().unwrap_or_default();
    list.iter()
        .map(|c| format!("{}={}/{}", c.type_, c.status, c.reason.as_deref().unwrap_or("")))
        .collect()
}

fn events(report: &Report) -> Vec<String> {
    let line = |e: &super::super::Event| format!("{}: {}", e.reason, e.message);
    report.events.iter().map(line).collect()
}

#[test]
fn scaling_up_says_which_metric_is_above_target() {
    let report = run(&hpa(1, 10, cpu()), &Settings::default(), 3, &[used(3, 800)]);
    assert_eq!(
        events(&report),
        [
            "SuccessfulRescale: New size: 5; reason: cpu resource utilization (percentage of request) above target"
        ]
    );
    assert_eq!(
        conditions(&report),
        [
            "AbleToScale=True/SucceededRescale",
            "ScalingActive=True/ValidMetricFound",
            "ScalingLimited=False/DesiredWithinRange"
        ]
    );
    let status = &report.status;
    assert_eq!((status.current_replicas, status.desired_replicas), (Some(3), 5));
    assert!(status.last_scale_time.is_some());
    assert_eq!(
        serde_json::to_value(&status.current_metrics).unwrap(),
        json!([{"type": "Resource", "resource": {"name": "cpu",
            "current": {"averageUtilization": 80, "averageValue": "800m"}}}])
    );
    assert_eq!((report.action, report.error), ("scale_up", None));
    let computations = report.computations.iter();
    let computations: Vec<_> = computations
        .map(|c| (c.metric_type.as_str(), c.action, c.has_failed))
        .collect();
    assert_eq!(computations, [("Resource", "scale_up", false)]);
}

#[test]
fn a_number_outside_the_bounds_is_corrected_without_metrics() {
    let settings = Settings::default();
    let report = run(&hpa(1, 3, cpu()), &settings, 5, &[]);
    assert_eq!(
        events(&report),
        ["SuccessfulRescale: New size: 3; reason: Current number of replicas above Spec.MaxReplicas"]
    );
    assert_eq!(report.action, "scale_down");
    let report = run(&hpa(2, 3, cpu()), &settings, 1, &[]);
    assert_eq!(
        events(&report),
        ["SuccessfulRescale: New size: 2; reason: Current number of replicas below Spec.MinReplicas"]
    );
}

#[test]
fn metrics_that_fail_are_reported_and_never_scale_down() {
    let failed = || Reading::Failed("no metrics returned from resource metrics API".into());
    let settings = Settings::default();
    let report = run(&hpa(1, 10, cpu()), &settings, 3, &[failed()]);
    let why = "failed to get cpu utilization: unable to get metrics for resource cpu: no metrics returned from \
               resource metrics API";
    assert_eq!(
        events(&report),
        [
            format!("FailedGetResourceMetric: {why}"),
            format!(
                "FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: \
                 failed to get cpu resource metric value: {why}"
            )
        ]
    );
    assert_eq!(
        conditions(&report),
        [
            "AbleToScale=True/SucceededGetScale",
            "ScalingActive=False/FailedGetResourceMetric"
        ]
    );
    assert_eq!(report.status.current_replicas, Some(3));
    // With a second metric: up by it, but not down.
    let mut both = cpu();
    both.as_array_mut()
        .unwrap()
        .extend(external().as_array().cloned().unwrap());
    let two = hpa(1, 10, both);
    let up = run(&two, &settings, 3, &[failed(), Reading::External(vec![4000])]);
    assert_eq!((up.status.desired_replicas, up.action), (6, "scale_up"));
    assert!(up.error.is_some());
    let down = run(&two, &settings, 3, &[failed(), Reading::External(vec![1000])]);
    assert_eq!(
        (down.action, conditions(&down)[1].as_str()),
        ("none", "ScalingActive=False/FailedGetResourceMetric")
    );
}

#[test]
fn a_scale_that_cannot_be_read_or_written_is_reported() {
    let (hpa, settings, mut history) = (hpa(1, 3, cpu()), Settings::default(), History::default());
    let r = Reconciliation::new(&hpa, &settings, &mut history, now());
    let report = r.scale_failed("not found");
    assert_eq!(events(&report), ["FailedGetScale: not found"]);
    assert_eq!(conditions(&report), ["AbleToScale=False/FailedGetScale"]);
    let mut r = Reconciliation::new(&hpa, &settings, &mut history, now());
    assert_eq!(r.start(&scale(5)), Needs::Nothing);
    assert_eq!(r.decision(), Decision::Rescale(3));
    let report = r.finish(Err(knarr_apimachinery::Error::new(409, "Conflict", "conflict")));
    assert_eq!(
        events(&report),
        [
            "FailedRescale: New size: 3; reason: Current number of replicas above Spec.MaxReplicas; error: conflict"
        ]
    );
    assert_eq!(conditions(&report), ["AbleToScale=False/FailedUpdateScale"]);
    assert!(report.status.last_scale_time.is_none());
}

#[test]
fn zero_replicas_disable_scaling_unless_the_controller_scaled_to_zero() {
    let off = Settings::default();
    let report = run(&hpa(1, 10, cpu()), &off, 0, &[]);
    assert_eq!(conditions(&report)[1], "ScalingActive=False/ScalingDisabled");
    assert!(report.events.is_empty());
    let on = Settings {
        scale_to_zero: true,
        ..off
    };
    let mut hpa = hpa(0, 10, external());
    let report = run(&hpa, &on, 1, &[Reading::External(vec![0])]);
    // The first recommendation is the number that the target has: the window holds it.
    assert_eq!(report.status.desired_replicas, 1);
    hpa.spec.behavior = Some(
        serde_json::from_value(json!({"scaleDown": {"stabilizationWindowSeconds": 0,
        "selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]},
        "scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max",
            "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]}}))
        .unwrap(),
    );
    let report = run(&hpa, &on, 1, &[Reading::External(vec![0])]);
    assert_eq!(report.status.desired_replicas, 0);
    assert!(conditions(&report).contains(&"ScaledToZero=True/ScaledToZero".to_string()));
    hpa.status = Some(report.status);
    let report = run(&hpa, &on, 0, &[Reading::External(vec![6000])]);
    assert_eq!(
        events(&report),
        ["SuccessfulRescale: New size: 3; reason: external metric queue(nil) above target"]
    );
    assert!(conditions(&report).contains(&"ScaledToZero=False/NotScaledToZero".to_string()));
    // The gate off: as if it had been a user's zero.
    let report = run(&hpa, &off, 0, &[]);
    assert_eq!((report.status.desired_replicas, report.action), (0, "none"));
    assert!(!conditions(&report).iter().any(|c| c.starts_with("ScaledToZero")));
}

#[test]
fn pods_of_two_autoscalers_are_scaled_by_neither() {
    let selectors: BTreeMap<ObjectKey, Selector> = [("a", "api"), ("a", "web"), ("b", "web")]
        .into_iter()
        .map(|(ns, name)| (ObjectKey::new(ns, name), Selector::parse("app=web").unwrap()))
        .collect();
    let pods = pods(1);
    let all = controlling("a", &pods.iter().collect::<Vec<_>>(), &selectors);
    let (hpa, settings, mut history) = (hpa(1, 3, cpu()), Settings::default(), History::default());
    let mut r = Reconciliation::new(&hpa, &settings, &mut history, now());
    r.start(&scale(2));
    assert!(r.selector(&scale(2)).is_some());
    assert!(!r.is_alone(&scale(2), &all));
    let report = r.finish(Ok(()));
    let why = "pods by selector app=web are controlled by multiple HPAs: [{api a} {web a}]";
    assert_eq!(
        events(&report),
        [
            format!("AmbiguousSelector: {why}"),
            format!("FailedComputeMetricsReplicas: {why}")
        ]
    );
    assert_eq!(conditions(&report)[1], "ScalingActive=False/AmbiguousSelector");
    let mut r = Reconciliation::new(&hpa, &settings, &mut history, now());
    assert!(r.selector(&Scale::default()).is_none());
    let report = r.finish(Ok(()));
    assert_eq!(events(&report)[0], "SelectorRequired: selector is required");
}

#[test]
fn tolerances_of_the_behavior_apply_if_their_gate_is_on() {
    let mut hpa = hpa(1, 10, cpu());
    hpa.spec.behavior = Some(
        serde_json::from_value(json!({"scaleUp": {"tolerance": "0.7", "selectPolicy": "Max",
        "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]}}))
        .unwrap(),
    );
    let settings = Settings::default();
    assert_eq!(run(&hpa, &settings, 3, &[used(3, 800)]).action, "none");
    let off = Settings {
        configurable_tolerance: false,
        ..settings
    };
    assert_eq!(run(&hpa, &off, 3, &[used(3, 800)]).action, "scale_up");
}
