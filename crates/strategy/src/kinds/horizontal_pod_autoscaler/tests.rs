//! Defaults, validation and columns.

use serde_json::json;

use super::*;

fn autoscaler(min: i32, metric: serde_json::Value) -> HorizontalPodAutoscaler {
    let spec = json!({
        "scaleTargetRef": {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"},
        "minReplicas": min, "maxReplicas": 3, "metrics": [metric],
    });
    serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "d"}, "spec": spec})).unwrap()
}

fn external() -> serde_json::Value {
    json!({"type": "External", "external": {
        "metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "30"},
    }})
}

fn cpu() -> serde_json::Value {
    json!({"type": "Resource", "resource": {
        "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50},
    }})
}

/// Cases of the feature gate HPAScaleToZero (KEP-2021): (minReplicas, metric, gate, fields of the errors).
#[test]
fn min_replicas_may_be_0_with_the_gate_and_an_object_or_external_metric() {
    for (min, metric, gate, fields) in [
        (0, external(), true, &[][..]),
        (0, cpu(), true, &["spec.metrics"]),
        (0, external(), false, &["spec.minReplicas"]),
        (-1, external(), true, &["spec.minReplicas"]),
        (1, cpu(), false, &[]),
    ] {
        let mut errors = ErrorList::new();
        let spec = autoscaler(min, metric.clone()).spec;
        let options = SpecValidationOptions {
            scale_to_zero: gate,
            ..SpecValidationOptions::on_create(&spec)
        };
        validate_spec(&spec, &options, &mut errors);
        let found: Vec<String> = errors.iter().map(|e| e.field.to_string()).collect();
        assert_eq!(found, fields, "minReplicas {min}, {metric}, gate {gate}");
    }
}

/// An object that was created while the gate was enabled can be updated after it was disabled.
#[test]
fn min_replicas_0_is_kept_by_updates() {
    let old = autoscaler(0, external());
    assert!(old.validate_update(&old, Part::Main).is_empty());
    assert!(
        !old.validate_update(&autoscaler(1, external()), Part::Main)
            .is_empty()
    );
}
