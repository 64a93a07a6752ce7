//! Containers: restart rules, probes, hooks and environment.

use serde_json::{Value, json};

use super::{assert_accepted, assert_rejected, container, overlay, pod};

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
