//! Pods that cannot run as specified, with real containers: the reason is in their status and events, and the node
//! keeps working.

use crate::Outcome;
use crate::cluster::{Namespace, Scenario, has};
use crate::kubectl::{WEB, running};

pub const SCENARIOS: &[(&str, Scenario)] = &[(
    "l4_why_a_pod_cannot_run_is_in_its_status_and_the_node_keeps_working",
    invalid_pods,
)];

/// A pod, a part of its status, and the message of an event about it.
struct Case {
    pod: &'static str,
    spec: &'static str,
    /// A part of `.status` as JSON.
    status: &'static str,
    event: &'static str,
}

/// A process that keeps running.
const SLEEP: &str = r#""image": "localhost/knarr/busybox:1", "command": ["sleep", "1000"]"#;

const CASES: &[Case] = &[
    Case {
        pod: "no-image",
        spec: r#""containers": [{"name": "c", "image": "localhost:1/nothing:1"}]"#,
        status: "ImagePullBackOff",
        event: "Failed to pull image \"localhost:1/nothing:1\"",
    },
    Case {
        pod: "no-such-name",
        spec: r#""containers": [{"name": "c", "image": "NO:such:name"}]"#,
        status: "InvalidImageName",
        event: "NO:such:name",
    },
    Case {
        pod: "never-pulled",
        spec: r#""containers": [{"name": "c", "image": "localhost/nothing:1", "imagePullPolicy": "Never"}]"#,
        status: "ErrImageNeverPull",
        event: "is not present with pull policy of Never",
    },
    Case {
        pod: "no-command",
        spec: r#""containers": [{"name": "c", "image": "localhost/knarr/busybox:1", "command": ["/nowhere"]}]"#,
        status: "StartError",
        event: "/nowhere",
    },
    Case {
        pod: "no-secret",
        spec: r#""containers": [{"name": "c", %SLEEP%, "envFrom": [{"secretRef": {"name": "nothing"}}]}]"#,
        status: "CreateContainerConfigError",
        event: "secret \"nothing\" not found",
    },
    Case {
        pod: "no-key",
        spec: r#""volumes": [{"name": "v", "configMap": {"name": "kube-root-ca.crt", "items": [{"key": "nothing", "path": "x"}]}}],
            "containers": [{"name": "c", %SLEEP%, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]"#,
        status: "ContainerCreating",
        event: "references non-existent config key: nothing",
    },
    Case {
        pod: "no-file",
        spec: r#""volumes": [{"name": "v", "hostPath": {"path": "/proc/nothing-here", "type": "File"}}],
            "containers": [{"name": "c", %SLEEP%, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]"#,
        status: "ContainerCreating",
        event: "/proc/nothing-here",
    },
    Case {
        pod: "hanging-probe",
        spec: r#""containers": [{"name": "c", %SLEEP%, "readinessProbe": {"periodSeconds": 1,
            "exec": {"command": ["sleep", "1000"]}}}]"#,
        status: "\"Running\"",
        event: "Readiness probe failed: command timed out",
    },
    Case {
        pod: "talking-probe",
        spec: r#""containers": [{"name": "c", %SLEEP%, "readinessProbe": {"periodSeconds": 1, "timeoutSeconds": 10,
            "exec": {"command": ["sh", "-c", "yes spam | head -c 3000000; false"]}}}]"#,
        status: "\"Running\"",
        event: "Readiness probe failed: spam",
    },
    Case {
        pod: "talking-hook",
        spec: r#""containers": [{"name": "c", %SLEEP%, "lifecycle": {"postStart":
            {"exec": {"command": ["sh", "-c", "yes spam | head -c 3000000"]}}}}]"#,
        status: "\"ready\": true",
        event: "Container started",
    },
    Case {
        pod: "hanging-hook",
        spec: r#""terminationGracePeriodSeconds": 2, "containers": [{"name": "c", %SLEEP%,
            "lifecycle": {"preStop": {"exec": {"command": ["sleep", "1000"]}}}}]"#,
        status: "\"ready\": true",
        event: "Container started",
    },
    Case {
        pod: "many-processes",
        spec: r#""restartPolicy": "Never", "containers": [{"name": "c", "image": "localhost/knarr/busybox:1",
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "command": ["sh", "-c", "i=0; while [ $i -lt 1000 ]; do sleep 1000 & i=$((i+1)); done; echo all of them; sleep 1000"]}]"#,
        status: "can't fork",
        event: "Container started",
    },
];

fn invalid_pods(ns: &Namespace) -> Outcome {
    let broken = ns.cluster.manifests().join("broken.yaml");
    std::fs::write(&broken, "kind: Pod\nspec: [\n")?;
    let pods: Vec<String> = CASES
        .iter()
        .map(|case| {
            format!(
                r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "{}"}}, "spec": {{{}}}}}"#,
                case.pod,
                case.spec.replace("%SLEEP%", SLEEP)
            )
        })
        .collect();
    let list = format!(
        r#"{{"apiVersion": "v1", "kind": "List", "items": [{}]}}"#,
        pods.join(", ")
    );
    ns.apply(&list)?;
    for case in CASES {
        let in_case = |e| format!("{}: {e:?}", case.pod);
        ns.eventually_run(&["get", "pod", case.pod, "-o", "json"], |t| {
            t.contains(case.status)
        })
        .map_err(in_case)?;
        let about = format!("involvedObject.name={}", case.pod);
        let events = [
            "get",
            "events",
            "--field-selector",
            &about,
            "-o",
            "jsonpath={.items[*].message}",
        ];
        let messages = ns
            .eventually_run(&events, |t| t.contains(case.event))
            .map_err(in_case)?;
        // A process may print much; an event stays short.
        if messages.len() > 100_000 {
            return Err(format!("{}: events of {} bytes", case.pod, messages.len()).into());
        }
    }
    // Other pods run, and all of these are deleted.
    ns.apply(WEB)?;
    running(ns, "web")?;
    ns.run(&["delete", "pods", "--all", "--timeout=60s"])?;
    let hook = [
        "get",
        "events",
        "--field-selector",
        "involvedObject.name=hanging-hook,reason=FailedPreStopHook",
    ];
    ns.eventually_run(&hook, |t| t.contains("PreStopHook failed"))?;
    std::fs::remove_file(&broken)?;
    let node = ns.run(&["get", "nodes"])?;
    has(&node, " Ready ")
}
