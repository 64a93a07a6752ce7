//! Rules of pods that the recordings (`golden_pods.rs`) do not cover, as tables of specs and their errors.

// The helper functions unwrap as the tests do.
#![allow(clippy::unwrap_used)]

mod containers;
mod damaged;
mod resources;
mod updates;
mod volumes;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::{ApiType, k8s_openapi};
use knarr_apimachinery::codec;
use knarr_strategy::Strategy;
use knarr_strategy::kinds::pod;
use serde_json::{Value, json};

fn decoded(value: &Value) -> Pod {
    codec::read::<Pod>(value.to_string().as_bytes()).unwrap().0
}

fn overlay(base: &mut Value, with: &Value) {
    match (base, with) {
        (Value::Object(base), Value::Object(with)) => {
            for (key, value) in with {
                overlay(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, with) => *base = with.clone(),
    }
}

/// A prepared pod: a minimal one merged with `spec`.
fn pod(spec: Value) -> Pod {
    let mut body = json!({
        "metadata": {"name": "p", "namespace": "ns", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]},
    });
    overlay(&mut body["spec"], &spec);
    let mut pod = decoded(&body);
    pod.set_defaults();
    pod.prepare_for_create();
    pod
}

/// A spec with one minimal container merged with `more`.
fn container(more: Value) -> Value {
    let mut c = json!({"name": "c", "image": "i:1"});
    overlay(&mut c, &more);
    json!({"containers": [c]})
}

fn errors_of(pod: &Pod) -> Vec<String> {
    pod.validate().iter().map(ToString::to_string).collect()
}

fn assert_rejected(cases: &[(Value, &[&str])]) {
    for (spec, want) in cases {
        assert_eq!(errors_of(&pod(spec.clone())), *want, "{spec}");
    }
}

fn assert_accepted(cases: &[Value]) {
    for spec in cases {
        assert_eq!(errors_of(&pod(spec.clone())), Vec::<String>::new(), "{spec}");
    }
}

#[test]
fn t1_deletion_is_graceful_only_for_what_runs() {
    for (spec, phase, requested, want) in [
        (json!({}), "Pending", None, 0),
        (json!({"nodeName": "n"}), "Running", None, 30),
        (json!({"nodeName": "n"}), "Pending", Some(5), 5),
        (json!({"nodeName": "n"}), "Running", Some(60), 60),
        (json!({"nodeName": "n"}), "Running", Some(0), 0),
        (json!({"nodeName": "n"}), "Running", Some(-7), 1),
        (json!({"nodeName": "n"}), "Succeeded", Some(5), 0),
        (json!({"nodeName": "n"}), "Failed", None, 0),
        (
            json!({"nodeName": "n", "terminationGracePeriodSeconds": 7}),
            "Running",
            None,
            7,
        ),
        (
            json!({"nodeName": "n", "terminationGracePeriodSeconds": -7}),
            "Running",
            None,
            1,
        ),
    ] {
        let mut pod = pod(spec.clone());
        pod.status.as_mut().unwrap().phase = Some(phase.into());
        assert_eq!(
            pod.deletion_grace_seconds(requested),
            Some(want),
            "{spec} {phase} {requested:?}"
        );
    }
}

#[test]
fn field_selectors_support_the_fields_of_v1_36() {
    let mut pod = pod(json!({"nodeName": "n", "hostNetwork": true}));
    let status = pod.status.as_mut().unwrap();
    status.pod_ip = Some("10.0.0.1".into());
    status.nominated_node_name = Some("m".into());
    let values: Vec<String> = Pod::SELECTABLE_FIELDS
        .iter()
        .map(|path| pod.field(path))
        .collect();
    assert_eq!(
        values,
        [
            "n",
            "Always",
            "default-scheduler",
            "",
            "true",
            "Pending",
            "10.0.0.1",
            "m"
        ]
    );
}

#[test]
fn d1_spread_constraints_are_checked_field_by_field() {
    let constraint = |more: Value| {
        let mut c = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "web"}}});
        overlay(&mut c, &more);
        c
    };
    let one = |more: Value| json!({"topologySpreadConstraints": [constraint(more)]});
    assert_rejected(&[
        (
            one(json!({"maxSkew": 0})),
            &["spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero"],
        ),
        (
            one(json!({"topologyKey": ""})),
            &["spec.topologySpreadConstraints[0].topologyKey: Required value: can not be empty"],
        ),
        (
            one(json!({"minDomains": 0})),
            &["spec.topologySpreadConstraints[0].minDomains: Invalid value: 0: must be greater than zero"],
        ),
        (
            one(json!({"matchLabelKeys": ["app"]})),
            &[
                "spec.topologySpreadConstraints[0][0]: Invalid value: \"app\": exists in both matchLabelKeys and \
               labelSelector",
            ],
        ),
        (
            one(json!({"matchLabelKeys": ["x"], "labelSelector": null})),
            &[
                "spec.topologySpreadConstraints[0].matchLabelKeys: Forbidden: must not be specified when \
               labelSelector is not set",
            ],
        ),
        (
            json!({"topologySpreadConstraints": [constraint(json!({})), constraint(json!({"maxSkew": 2}))]}),
            &[
                "spec.topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable}: Duplicate value: \"{zone, \
               DoNotSchedule}\"",
            ],
        ),
    ]);
    assert_accepted(&[
        one(json!({"minDomains": 2, "nodeTaintsPolicy": "Honor", "nodeAffinityPolicy": "Ignore"})),
        one(json!({"matchLabelKeys": ["rev"]})),
    ]);
}

#[test]
fn d1_match_label_keys_become_requirements_of_the_selector() {
    let pod = pod(
        json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}, "matchLabelKeys": ["app", "absent"]}]}),
    );
    let constraints = pod.spec.unwrap().topology_spread_constraints.unwrap();
    assert_eq!(
        serde_json::to_value(&constraints[0].label_selector).unwrap(),
        json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]})
    );
}

#[test]
fn templates_are_validated_as_pods_are() {
    let template = serde_json::from_value(json!({
        "metadata": {"labels": {"a b": "c"}},
        "spec": {"containers": [{"name": "c", "image": " i ", "ports": [{"containerPort": 80, "hostPort": 81}]}],
            "hostNetwork": true, "ephemeralContainers": [{"name": "e", "image": "i"}]},
    }));
    let mut template: k8s_openapi::api::core::v1::PodTemplateSpec = template.unwrap();
    pod::set_pod_spec_defaults(template.spec.as_mut().unwrap());
    let path = knarr_apimachinery::field::Path::new("spec").child("template");
    let errors = pod::validate_pod_template(&template, &path);
    let fields: Vec<&str> = errors.iter().map(|e| e.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "spec.template.labels",
            "spec.template.spec.containers[0].ports[0].hostPort",
            "spec.template.spec.ephemeralContainers",
        ],
        "white space around an image is left to the pod"
    );
}

#[test]
fn warnings_name_the_field() {
    for (spec, want) in [
        (
            json!({"nodeSelector": {"beta.kubernetes.io/os": "linux"}}),
            "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
        ),
        (
            container(json!({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]})),
            "spec.containers[0].env[1]: hides previous definition of \"A\", which may be dropped when using apply",
        ),
        (
            container(json!({"resources": {"requests": {"memory": "1500m"}}})),
            "spec.containers[0].resources.requests[memory]: fractional byte value \"1500m\" is invalid, must be an \
             integer",
        ),
        (
            json!({"volumes": [{"name": "v", "configMap": {"name": "m", "items": [{"key": "a", "path": "p"},
                {"key": "b", "path": "p/q"}]}}]}),
            "volume \"v\" (ConfigMap \"m\"): overlapping paths: \"p/q\" with \"p\"",
        ),
        (
            json!({"dnsConfig": {"nameservers": ["FE80::0:1"]}}),
            "spec.dnsConfig.nameservers[0]: IPv6 address \"FE80::0:1\" should be in RFC 5952 canonical format \
             (\"fe80::1\")",
        ),
    ] {
        assert_eq!(pod(spec.clone()).warnings(), [want], "{spec}");
    }
    let container = container(json!({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}]}));
    assert_eq!(pod(container).warnings(), Vec::<String>::new());
}
