//! The walker reports what the code reported that the facts replaced: messages, paths and order.

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSetSpec};
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::api::networking::v1::NetworkPolicySpec;
use k8s_openapi::api::storage::v1::StorageClass;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::Strategy;

fn shown(errors: &ErrorList) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

fn checked<T: Serialize + DeserializeOwned>(value: Value, fields: &[&str]) -> Vec<String> {
    let value: T = serde_json::from_value(value).expect("a value");
    let mut errors = ErrorList::new();
    check(&mut errors, &Path::new("at"), &value, fields);
    shown(&errors)
}

#[test]
fn facts_and_rules_of_a_deployment_are_reported_in_the_order_of_kubernetes() {
    let mut deployment: Deployment = serde_json::from_value(json!({"spec": {
        "replicas": -1, "minReadySeconds": -2, "revisionHistoryLimit": -3, "progressDeadlineSeconds": -4,
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"restartPolicy": "Sometimes", "containers": [{
            "name": "c", "image": "i", "imagePullPolicy": "Sometimes", "terminationMessagePolicy": "Disk",
            "ports": [{"containerPort": 80, "protocol": "tcp"}],
        }]}},
    }}))
    .expect("a Deployment");
    deployment.set_defaults();
    assert_eq!(
        shown(&deployment.validate()),
        [
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            r#"spec.template.spec.containers[0].terminationMessagePolicy: Unsupported value: "Disk": supported values: "File", "FallbackToLogsOnError""#,
            r#"spec.template.spec.containers[0].ports[0].protocol: Unsupported value: "tcp": supported values: "SCTP", "TCP", "UDP""#,
            r#"spec.template.spec.containers[0].imagePullPolicy: Unsupported value: "Sometimes": supported values: "Always", "IfNotPresent", "Never""#,
            r#"spec.template.spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never""#,
            r#"spec.template.spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always""#,
            "spec.minReadySeconds: Invalid value: -2: must be greater than or equal to 0",
            "spec.revisionHistoryLimit: Invalid value: -3: must be greater than or equal to 0",
            "spec.progressDeadlineSeconds: Invalid value: -4: must be greater than or equal to 0",
            "spec.progressDeadlineSeconds: Invalid value: -4: must be greater than minReadySeconds",
        ]
    );
}

#[test]
fn structs_and_lists_below_a_field_are_checked_in_the_order_of_their_types() {
    const FIELDS: &[&str] = &["persistentVolumeClaimRetentionPolicy", "replicas", "ordinals"];
    let spec = json!({"ordinals": {"start": -1}, "replicas": -2, "serviceName": "s",
        "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Never", "whenDeleted": "Always"}});
    assert_eq!(
        checked::<StatefulSetSpec>(spec, FIELDS),
        [
            r#"at.persistentVolumeClaimRetentionPolicy.whenDeleted: Unsupported value: "Always": supported values: "Retain", "Delete""#,
            r#"at.persistentVolumeClaimRetentionPolicy.whenScaled: Unsupported value: "Never": supported values: "Retain", "Delete""#,
            "at.replicas: Invalid value: -2: must be greater than or equal to 0",
            "at.ordinals.start: Invalid value: -1: must be greater than or equal to 0",
        ]
    );
    let valid = json!({"replicas": 0, "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"}});
    assert!(checked::<StatefulSetSpec>(valid, FIELDS).is_empty());
    let status = json!({"status": {"numberReady": -1, "numberAvailable": -2, "currentNumberScheduled": -3}});
    assert_eq!(
        checked::<DaemonSet>(status, &["status"]),
        [
            "at.status.currentNumberScheduled: Invalid value: -3: must be greater than or equal to 0",
            "at.status.numberReady: Invalid value: -1: must be greater than or equal to 0",
            "at.status.numberAvailable: Invalid value: -2: must be greater than or equal to 0",
        ]
    );
    let webhooks = json!({"webhooks": [{"reinvocationPolicy": "Never"}, {"reinvocationPolicy": "Once"}, {}]});
    assert_eq!(
        checked::<MutatingWebhookConfiguration>(webhooks, &["webhooks"]),
        [
            r#"at.webhooks[1].reinvocationPolicy: Unsupported value: "Once": supported values: "IfNeeded", "Never""#
        ]
    );
    assert_eq!(
        checked::<NetworkPolicySpec>(json!({"policyTypes": ["Egress", "Both"]}), &["policyTypes"]),
        [r#"at.policyTypes[1]: Unsupported value: "Both": supported values: "Ingress", "Egress""#]
    );
}

#[test]
fn a_required_value_is_there_and_not_empty_unless_it_is_a_pointer() {
    let required = ["at.restartPolicy: Required value"];
    assert_eq!(checked::<PodSpec>(json!({}), &["restartPolicy"]), required);
    let empty = json!({"restartPolicy": ""});
    assert_eq!(checked::<PodSpec>(empty, &["restartPolicy"]), required);
    assert_eq!(
        checked::<StorageClass>(json!({}), &["volumeBindingMode"]),
        ["at.volumeBindingMode: Required value"]
    );
    assert_eq!(
        checked::<StorageClass>(json!({"volumeBindingMode": ""}), &["volumeBindingMode"]),
        [
            r#"at.volumeBindingMode: Unsupported value: "": supported values: "Immediate", "WaitForFirstConsumer""#
        ]
    );
}

#[test]
fn a_field_without_facts_is_an_internal_error() {
    assert_eq!(
        checked::<PodSpec>(json!({"nodeName": "n"}), &["nodeName", "none"]),
        [
            "at.nodeName: Internal error: its type has no facts",
            "at.none: Internal error: its type has no facts",
        ]
    );
}
