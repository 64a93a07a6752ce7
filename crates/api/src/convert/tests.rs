//! Objects converted to the other form and back are the same.

use serde_json::{Value, json};

use super::*;

fn round_trip(kind: &Kind, other: &Kind, object: &Value) -> (Value, Value) {
    let bytes = serde_json::to_vec(object).expect("JSON");
    let decoded = kind.ops.decode(&bytes).expect("an object").object;
    let there = typed(kind, other, decoded).expect("the other form");
    let shown = |object: &dyn AnyObject| -> Value {
        let mut out = Vec::new();
        object.encode_into(&mut out);
        serde_json::from_slice(&out).expect("JSON")
    };
    let other_form = shown(&*there);
    let back = typed(other, kind, there).expect("the first form");
    (other_form, shown(&*back))
}

#[test]
fn events_keep_everything_in_both_forms() {
    let old = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "n"},
        "involvedObject": {"kind": "Pod", "name": "p"}, "reason": "R", "message": "m", "type": "Warning", "count": 3, "eventTime": null,
        "firstTimestamp": "2020-01-01T00:00:00Z", "lastTimestamp": "2020-01-01T00:01:00Z",
        "source": {"component": "kubelet", "host": "h"}, "reportingComponent": "c", "reportingInstance": "i"});
    let (new, back) = round_trip(&EVENT, &EVENTS_EVENT, &old);
    assert_eq!(back, old);
    assert_eq!(new["apiVersion"], "events.k8s.io/v1");
    assert_eq!(new["note"], "m");
    assert_eq!(new["regarding"]["name"], "p");
    assert_eq!(new["deprecatedSource"]["host"], "h");
    assert_eq!(new["reportingController"], "c");
}

/// The older form always has these fields, even empty; the newer one only if they are set.
#[test]
fn events_without_a_reporter_have_none_in_the_newer_form_only() {
    let old = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "n"},
        "involvedObject": {"kind": "Pod", "name": "p"}, "reportingComponent": "", "reportingInstance": ""});
    let (new, back) = round_trip(&EVENT, &EVENTS_EVENT, &old);
    for field in ["reportingController", "reportingInstance"] {
        assert_eq!(new.get(field), None, "{field}");
    }
    for field in ["reportingComponent", "reportingInstance"] {
        assert_eq!(back[field], "", "{field}");
    }
}

#[test]
fn fields_that_v1_lacks_are_in_annotations() {
    let v2 = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "h", "annotations": {"own": "1"}},
        "spec": {"maxReplicas": 5, "minReplicas": 2, "scaleTargetRef": {"kind": "Deployment", "name": "d"},
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60, "selectPolicy": "Max",
                "policies": [{"type": "Pods", "value": 1, "periodSeconds": 15}]}},
            "metrics": [
                {"type": "Pods", "pods": {"metric": {"name": "rps"},
                    "target": {"type": "AverageValue", "averageValue": "10"}}},
                {"type": "Resource", "resource": {"name": "cpu",
                    "target": {"type": "Utilization", "averageUtilization": 70}}}]},
        "status": {"currentReplicas": 2, "desiredReplicas": 3,
            "conditions": [{"type": "AbleToScale", "status": "True", "lastTransitionTime": null}],
            "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu",
                "current": {"averageUtilization": 40, "averageValue": "100m"}}}]}});
    let (v1, back) = round_trip(&HORIZONTAL_POD_AUTOSCALER, &HORIZONTAL_POD_AUTOSCALER_V1, &v2);
    assert_eq!(back, v2);
    assert_eq!(v1["spec"]["targetCPUUtilizationPercentage"], 70);
    assert_eq!(v1["status"]["currentCPUUtilizationPercentage"], 40);
    let annotations = &v1["metadata"]["annotations"];
    assert_eq!(
        annotations["autoscaling.alpha.kubernetes.io/metrics"],
        r#"[{"type":"Pods","pods":{"metricName":"rps","targetAverageValue":"10"}}]"#
    );
    assert_eq!(
        annotations["autoscaling.alpha.kubernetes.io/behavior"],
        concat!(
            r#"{"ScaleUp":null,"ScaleDown":{"StabilizationWindowSeconds":60,"SelectPolicy":"Max","#,
            r#""Policies":[{"Type":"Pods","Value":1,"PeriodSeconds":15}],"Tolerance":null}}"#
        )
    );
    assert_eq!(annotations["own"], "1");
}

#[test]
fn an_autoscaler_without_metrics_targets_cpu() {
    let v1 = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
        "spec": {"maxReplicas": 5, "scaleTargetRef": {"kind": "Deployment", "name": "d"}}});
    let (v2, _) = round_trip(&HORIZONTAL_POD_AUTOSCALER_V1, &HORIZONTAL_POD_AUTOSCALER, &v1);
    let target = &v2["spec"]["metrics"][0]["resource"]["target"];
    assert_eq!(*target, json!({"type": "Utilization", "averageUtilization": 80}));
}
