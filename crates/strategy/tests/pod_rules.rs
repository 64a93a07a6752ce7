//! Rules of pods that the recordings (`golden_pods.rs`) do not cover, as tables of specs and their errors.

// The helper functions unwrap as the tests do.
#![allow(clippy::unwrap_used)]

use k8s_openapi::api::core::v1::Pod;
use knarr_api::{ApiType, k8s_openapi};
use knarr_apimachinery::codec;
use knarr_strategy::kinds::pod;
use knarr_strategy::{Part, Strategy};
use proptest::prelude::*;
use proptest::strategy::Strategy as _;
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
fn l5_restart_rules_are_bounded() {
    assert_rejected(&[
        (
            container(json!({"restartPolicy": "Sometimes"})),
            &[
                "spec.containers[0].restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \
               \"Never\", \"OnFailure\"",
            ],
        ),
        (
            container(json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Stop"}]})),
            &[
                "spec.containers[0].restartPolicyRules[0].action: Unsupported value: \"Stop\": supported values: \
                 \"Restart\", \"RestartAllContainers\"",
                "spec.containers[0].restartPolicyRules[0].exitCodes: Required value: must be specified",
            ],
        ),
    ]);
}

#[test]
fn l8_a_probe_has_one_handler_and_sane_numbers() {
    assert_rejected(&[
        (
            container(json!({"livenessProbe": {"tcpSocket": {"port": 80}, "exec": {"command": ["a"]}}})),
            &[
                "spec.containers[0].livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type",
            ],
        ),
        (
            container(json!({"livenessProbe": {"grpc": {"port": 0}, "successThreshold": 2}})),
            &[
                "spec.containers[0].livenessProbe.grpc.port: Invalid value: 0: must be between 1 and 65535, \
                 inclusive",
                "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
            ],
        ),
        (
            container(
                json!({"readinessProbe": {"tcpSocket": {"port": "http"}, "terminationGracePeriodSeconds": 5}}),
            ),
            &[
                "spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid value: 5: must not be set \
               for readinessProbes",
            ],
        ),
        (
            container(json!({"livenessProbe": {"httpGet": {"port": 80, "scheme": "ftp"}}})),
            &[
                "spec.containers[0].livenessProbe.httpGet.scheme: Unsupported value: \"ftp\": supported values: \
               \"HTTP\", \"HTTPS\"",
            ],
        ),
    ]);
}

#[test]
fn l8_probes_have_the_five_numbers_of_kubernetes() {
    let pod = pod(container(json!({"livenessProbe": {"httpGet": {"port": 80}}})));
    let containers = pod.spec.unwrap().containers;
    assert_eq!(
        serde_json::to_value(&containers[0].liveness_probe).unwrap(),
        json!({"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10,
            "successThreshold": 1, "failureThreshold": 3})
    );
}

#[test]
fn l9_hooks_sleep_within_the_grace_and_signals_are_dropped() {
    assert_rejected(&[
        (
            container(json!({"lifecycle": {"postStart": {}}})),
            &["spec.containers[0].lifecycle.postStart: Required value: must specify a handler type"],
        ),
        (
            container(json!({"lifecycle": {"preStop": {"sleep": {"seconds": -1}}}})),
            &[
                "spec.containers[0].lifecycle.preStop.sleep: Invalid value: -1: must be non-negative and less than \
               terminationGracePeriodSeconds (30)",
            ],
        ),
    ]);
    let mut with_os =
        container(json!({"lifecycle": {"stopSignal": "SIGUSR1", "preStop": {"sleep": {"seconds": 30}}}}));
    with_os["os"] = json!({"name": "linux"});
    assert_accepted(&[with_os]);
    // ContainerStopSignals is disabled by default: a signal is dropped, and so is a lifecycle that has nothing else.
    assert_accepted(&[container(json!({"lifecycle": {"stopSignal": "SIGUSR1"}}))]);
}

#[test]
fn l10_init_containers_are_not_probed_unless_they_stay() {
    let init = |more: Value| {
        let mut c = json!({"name": "i", "image": "i:1"});
        overlay(&mut c, &more);
        json!({"initContainers": [c]})
    };
    let ready = json!({"readinessProbe": {"exec": {"command": ["a"]}}});
    let mut sidecar = ready.clone();
    sidecar["restartPolicy"] = json!("Always");
    assert_rejected(&[(
        init(ready),
        &[
            "spec.initContainers[0].readinessProbe: Forbidden: may not be set for init containers without \
           restartPolicy=Always",
        ],
    )]);
    assert_accepted(&[init(sidecar)]);
    assert_rejected(&[(
        json!({"ephemeralContainers": [{"name": "e", "image": "i:1"}]}),
        &["spec.ephemeralContainers: Forbidden: cannot be set on create"],
    )]);
}

#[test]
fn volumes_have_one_source_each() {
    let volume = |more: Value| {
        let mut v = json!({"name": "v"});
        overlay(&mut v, &more);
        json!({"volumes": [v]})
    };
    assert_rejected(&[
        (
            volume(json!({"emptyDir": {}, "hostPath": {"path": "/a"}})),
            &["spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"],
        ),
        (
            volume(json!({"emptyDir": {"sizeLimit": "-1"}})),
            &[
                "spec.volumes[0].emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity",
            ],
        ),
        (
            volume(json!({"persistentVolumeClaim": {"claimName": ""}})),
            &["spec.volumes[0].persistentVolumeClaim.claimName: Required value"],
        ),
        (
            volume(json!({"configMap": {"name": "x", "items": [{"key": "a", "path": "..a"}]}})),
            &["spec.volumes[0].configMap.items[0].path: Invalid value: \"..a\": must not start with '..'"],
        ),
        (
            volume(
                json!({"downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "spec.nodeName"}}]}}),
            ),
            &[
                "spec.volumes[0].downwardAPI.fieldRef.fieldPath: Unsupported value: \"spec.nodeName\": supported \
               values: \"metadata.annotations\", \"metadata.labels\", \"metadata.name\", \"metadata.namespace\", \
               \"metadata.uid\"",
            ],
        ),
        (
            volume(json!({"iscsi": {"targetPortal": "p", "iqn": "iqn.x", "lun": 256}})),
            &[
                "spec.volumes[0].iscsi.iqn: Invalid value: \"iqn.x\": must be valid format",
                "spec.volumes[0].iscsi.lun: Invalid value: 256: must be between 0 and 255, inclusive",
            ],
        ),
        (
            volume(json!({"csi": {"driver": "A_"}})),
            &[
                "spec.volumes[0].csi.driver: Invalid value: \"A_\": a lowercase RFC 1123 subdomain must consist of \
               lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric \
               character (e.g. 'example.com', regex used for validation is \
               '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            ],
        ),
        (
            volume(
                json!({"projected": {"sources": [{"serviceAccountToken": {"path": "", "expirationSeconds": 5}}]}}),
            ),
            &[
                "spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 5: may \
                 not specify a duration less than 10 minutes",
                "spec.volumes[0].projected.path: Required value",
                "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: must not be specified when \
                 serviceAccountName is not set",
            ],
        ),
    ]);
    assert_accepted(&[
        volume(json!({"iscsi": {"targetPortal": "p", "iqn": "iqn.2001-04.com.example:storage", "lun": 0}})),
        volume(json!({})),
        volume(
            json!({"ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}}}}),
        ),
    ]);
}

#[test]
fn l4_huge_pages_come_whole_and_are_not_overcommitted() {
    let resources =
        |requests: Value, limits: Value| json!({"resources": {"requests": requests, "limits": limits}});
    let at = "spec.containers[0].resources";
    let huge = |amount: &str| json!({"cpu": "1", "hugepages-2Mi": amount});
    assert_rejected(&[
        (
            container(resources(json!({}), json!({"hugepages-2Mi": "4Mi"}))),
            &[&format!("{at}: Forbidden: HugePages require cpu or memory")],
        ),
        (
            container(resources(huge("2Mi"), huge("4Mi"))),
            &[&format!(
                "{at}.requests: Invalid value: \"2Mi\": must be equal to hugepages-2Mi limit of 4Mi"
            )],
        ),
        (
            container(resources(huge("2Mi"), json!({"cpu": "1"}))),
            &[&format!(
                "{at}.limits: Required value: Limit must be set for non overcommitable resources"
            )],
        ),
        (
            container(resources(json!({}), huge("3Mi"))),
            &[
                &format!(
                    "{at}.limits[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi"
                ),
                &format!(
                    "{at}.requests[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi"
                ),
            ],
        ),
        (
            json!({
                "resources": {"requests": huge("2Mi"), "limits": huge("2Mi")},
                "containers": [
                    {"name": "a", "image": "i:1", "resources": {"requests": huge("2Mi"), "limits": huge("2Mi")}},
                    {"name": "b", "image": "i:1", "resources": {"requests": huge("2Mi"), "limits": huge("2Mi")}},
                ],
            }),
            &[
                "spec.resources.requests[cpu]: Invalid value: \"1\": must be greater than or equal to aggregate container requests of 2",
                "spec.resources.requests[hugepages-2Mi]: Invalid value: \"2Mi\": must be greater than or equal to aggregate container requests of 4Mi",
                "spec.resources.limits[hugepages-2Mi]: Invalid value: \"2Mi\": must be greater than or equal to aggregate container limits of 4Mi",
            ],
        ),
    ]);
    assert_accepted(&[
        container(resources(json!({}), huge("4Mi"))),
        json!({"resources": {"requests": huge("4Mi"), "limits": huge("4Mi")}}),
        // The API does not validate the medium; the node reports an unsupported one.
        json!({"volumes": [{"name": "v", "emptyDir": {"medium": "HugePages-2Mi"}}, {"name": "w", "emptyDir": {"medium": "Tape"}}]}),
    ]);
}

#[test]
fn environment_refers_to_what_exists() {
    let env = |from: Value| container(json!({"env": [{"name": "A", "valueFrom": from}]}));
    assert_rejected(&[
        (
            env(json!({"fieldRef": {"fieldPath": "metadata.labels['a b']"}})),
            &[
                "spec.containers[0].env[0].valueFrom.fieldRef: Invalid value: \"a b\": name part must consist of \
               alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character \
               (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
               '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            ],
        ),
        (
            env(json!({"fieldRef": {"fieldPath": "spec.foo"}})),
            &[
                "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.foo\": error \
               converting fieldPath: field label not supported: spec.foo",
            ],
        ),
        (
            env(json!({})),
            &[
                "spec.containers[0].env[0].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`, \
               `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
            ],
        ),
        (
            env(json!({"fileKeyRef": {"volumeName": "v", "path": "a", "key": "K"}})),
            &["spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Not found: \"v\""],
        ),
    ]);
    assert_accepted(&[env(
        json!({"fieldRef": {"fieldPath": "metadata.annotations['Example.com/A']"}}),
    )]);
}

#[test]
fn quality_of_service_follows_requests_and_limits() {
    let resources = |r: Value| container(json!({"resources": r}));
    for (spec, want) in [
        (json!({}), "BestEffort"),
        (
            resources(json!({"limits": {"cpu": "1", "memory": "1Gi"}})),
            "Guaranteed",
        ),
        (resources(json!({"limits": {"cpu": "1"}})), "Burstable"),
        (resources(json!({"requests": {"cpu": "1"}})), "Burstable"),
        (resources(json!({"requests": {"cpu": "0"}})), "BestEffort"),
        (
            resources(json!({"limits": {"example.com/gpu": "1"}})),
            "BestEffort",
        ),
        (
            resources(json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}})),
            "Burstable",
        ),
        (json!({"resources": {"requests": {"cpu": "1"}}}), "Burstable"),
    ] {
        let status = pod(spec.clone()).status.unwrap();
        assert_eq!(status.qos_class.as_deref(), Some(want), "{spec}");
    }
}

#[test]
fn an_update_of_a_subresource_leaves_the_other_parts_unchanged() {
    let old = pod(json!({}));
    let mut changed = old.clone();
    changed.spec.as_mut().unwrap().containers[0].image = Some("i:2".into());
    changed.status.as_mut().unwrap().phase = Some("Running".into());
    let after = |part| {
        let mut pod = changed.clone();
        pod.prepare_for_update(&old, part);
        let image = pod.spec.unwrap().containers[0].image.clone().unwrap();
        (image, pod.status.unwrap().phase.unwrap(), pod.metadata.generation)
    };
    assert_eq!(after(Part::Main), ("i:2".into(), "Pending".into(), Some(2)));
    assert_eq!(after(Part::Status), ("i:1".into(), "Running".into(), Some(1)));
    assert_eq!(
        after(Part::Other("resize")),
        ("i:1".into(), "Pending".into(), Some(1))
    );
    assert_eq!(
        after(Part::Other("ephemeralcontainers")),
        ("i:1".into(), "Pending".into(), Some(1))
    );
}

#[test]
fn writers_that_do_not_know_observed_generation_do_not_lose_it() {
    let mut old = pod(json!({}));
    let status = old.status.as_mut().unwrap();
    status.observed_generation = Some(3);
    status.conditions = serde_json::from_value(json!([
        {"type": "Ready", "status": "True", "observedGeneration": 2},
    ]))
    .unwrap();
    let mut new = old.clone();
    let status = new.status.as_mut().unwrap();
    status.observed_generation = None;
    status.conditions.as_mut().unwrap()[0].observed_generation = None;
    new.prepare_for_update(&old, Part::Status);
    assert_eq!(new.status, old.status);
}

#[test]
fn a_terminated_container_that_is_not_restarted_stays_terminated() {
    let with_state = |spec: Value, state: Value| {
        let mut pod = pod(spec);
        pod.status.as_mut().unwrap().container_statuses = serde_json::from_value(json!([
            {"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state},
        ]))
        .unwrap();
        pod
    };
    let terminated = |code: i32| json!({"terminated": {"exitCode": code}});
    let running = json!({"running": {}});
    for (policy, code, restarted) in [
        ("Always", 0, true),
        ("OnFailure", 1, true),
        ("OnFailure", 0, false),
        ("Never", 1, false),
    ] {
        let spec = json!({"restartPolicy": policy});
        let old = with_state(spec.clone(), terminated(code));
        let new = with_state(spec, running.clone());
        let errors_of: Vec<String> = new
            .validate_update(&old, Part::Status)
            .iter()
            .map(ToString::to_string)
            .collect();
        let want: &[&str] = if restarted {
            &[]
        } else {
            &["status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"]
        };
        assert_eq!(errors_of, want, "{policy} {code}");
    }
}

#[test]
fn gated_pods_may_narrow_node_selector_and_affinity() {
    let gated = |more: Value| {
        let mut spec = json!({"schedulingGates": [{"name": "g"}], "nodeSelector": {"a": "b"}});
        overlay(&mut spec, &more);
        pod(spec)
    };
    let old = gated(json!({}));
    let errors_of = |new: &Pod| -> Vec<String> {
        let mut new = new.clone();
        new.prepare_for_update(&old, Part::Main);
        new.validate_update(&old, Part::Main)
            .iter()
            .map(ToString::to_string)
            .collect()
    };
    assert_eq!(
        errors_of(&gated(json!({"nodeSelector": {"c": "d"}}))),
        Vec::<String>::new()
    );
    assert_eq!(
        errors_of(&gated(json!({"nodeSelector": {"a": "x"}}))),
        [
            "spec.nodeSelector: Invalid value: {\"a\":\"x\"}: only additions to spec.nodeSelector are allowed (no \
          mutations or deletions)"
        ]
    );
    let affinity = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "Exists"}]}]}}}});
    assert_eq!(errors_of(&gated(affinity)), Vec::<String>::new());
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

/// Arbitrary small JSON values.
fn any_json() -> impl proptest::strategy::Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-zA-Z0-9/:._é -]{0,12}".prop_map(Value::from),
        Just(json!("Always")),
        Just(json!("1Gi")),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-z]{1,6}", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

/// Replaces the `at`-th value of a document, in depth-first order, by `value`.
fn replace_nth(doc: &mut Value, at: &mut usize, value: &Value) -> bool {
    if *at == 0 {
        *doc = value.clone();
        return true;
    }
    *at -= 1;
    match doc {
        Value::Array(items) => items.iter_mut().any(|item| replace_nth(item, at, value)),
        Value::Object(map) => map.values_mut().any(|item| replace_nth(item, at, value)),
        _ => false,
    }
}

proptest! {
    /// For every input the result is an object or an error, never a panic.
    #[test]
    fn no_damaged_pod_makes_it_panic(at in 1usize..120, value in any_json()) {
        let mut doc = json!({
            "metadata": {"name": "p", "generateName": "p-", "labels": {"a": "b"}, "annotations": {"x": "y"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "n", "uid": "u"}]},
            "spec": {
                "containers": [{"name": "c", "image": "i", "command": ["a"], "ports": [{"containerPort": 80}],
                    "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                    "resources": {"limits": {"cpu": "1", "hugepages-2Mi": "4Mi"}},
                    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                    "livenessProbe": {"httpGet": {"port": "http"}},
                    "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
                    "securityContext": {"runAsUser": 1, "seccompProfile": {"type": "Localhost"}}}],
                "initContainers": [{"name": "i", "image": "i", "restartPolicy": "Always"}],
                "volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "s"}}]}}],
                "resources": {"limits": {"cpu": "2"}},
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
                    [{"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}]}}},
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {"matchLabels": {"a": "b"}}, "matchLabelKeys": ["a"]}],
                "tolerations": [{"key": "k", "operator": "Exists"}],
                "dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["a."]},
                "hostAliases": [{"ip": "1.1.1.1", "hostnames": ["a"]}],
                "overhead": {"cpu": "1"},
            },
            "status": {"podIPs": [{"ip": "1.1.1.1"}], "conditions": [{"type": "Ready", "status": "True"}]},
        });
        let base = decoded(&doc);
        replace_nth(&mut doc, &mut at.clone(), &value);
        if let Ok((mut pod, ..)) = codec::read::<Pod>(doc.to_string().as_bytes()) {
            let mut old = base;
            old.set_defaults();
            pod.set_defaults();
            let mut created = pod.clone();
            created.prepare_for_create();
            let _ = (created.validate(), created.warnings(), created.deletion_grace_seconds(None));
            for part in [Part::Main, Part::Status, Part::Other("resize"), Part::Other("ephemeralcontainers")] {
                let mut updated = pod.clone();
                updated.prepare_for_update(&old, part);
                let _ = updated.validate_update(&old, part);
            }
        }
    }
}
