//! Graceful node shutdown (SPEC T9), with real containers: `knarr node shutdown`, and its effects on pods and the node.

use std::time::{Duration, Instant};

use crate::cluster::{Cluster, eventually, has, same, text};
use crate::kubectl::running;
use crate::{Outcome, StandaloneScenario};

pub const SCENARIOS: &[StandaloneScenario] = &[(
    "t9_pods_terminate_by_priority_when_the_host_shuts_down_and_not_before",
    node_shutdown,
)];

/// Two with a long grace period, of which one ignores SIGTERM, and a node-critical one.
const PODS: &str = r#"
apiVersion: v1
kind: Pod
metadata: { name: deaf }
spec:
  terminationGracePeriodSeconds: 600
  containers: [{ name: c, image: localhost/knarr/busybox:1, command: [sleep, "1000"] }]
---
apiVersion: v1
kind: Pod
metadata: { name: polite }
spec:
  terminationGracePeriodSeconds: 600
  containers:
    - name: c
      image: localhost/knarr/busybox:1
      command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 0.1; done"]
---
apiVersion: v1
kind: Pod
metadata: { name: vital }
spec:
  priorityClassName: system-node-critical
  containers:
    - name: c
      image: localhost/knarr/busybox:1
      command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 0.1; done"]
"#;

fn node_shutdown() -> Outcome {
    let cluster = Cluster::start("halt")?;
    let ns = cluster.namespace("default");
    ns.wait_for_service_account()?;
    ns.apply(PODS)?;
    for pod in ["deaf", "polite", "vital"] {
        running(&ns, pod)?;
    }
    let started = |pod: &str| {
        let at = "jsonpath={.status.containerStatuses[0].containerID}";
        ns.run(&["get", "pod", pod, "-o", at])
    };
    // knarr itself may be stopped at any time: that is not a node shutdown.
    let before = (started("deaf")?, started("vital")?);
    cluster.terminate()?;
    cluster.launch()?;
    cluster.wait_ready()?;
    same(
        &format!("{:?}", (started("deaf")?, started("vital")?)),
        &format!("{before:?}"),
    )?;

    let begin = Instant::now();
    let out = cluster.knarr("node").arg("shutdown").output()?;
    let (took, output) = (begin.elapsed(), text(&out));
    has(&output, "within 5 s")?;
    has(
        &output,
        "terminating 2 pods of priority 0 or higher, within 3 s\nterminating 1 pods of priority 2000000000",
    )?;
    has(&output, "all pods are terminated")?;
    // The pod that ignores SIGTERM has its group's period, not its own; how much longer a slow host takes does not matter.
    if took < Duration::from_secs(3) || took > Duration::from_secs(60) {
        return Err(format!("the shutdown took {took:?}").into());
    }
    for pod in ["deaf", "polite", "vital"] {
        let shown = "jsonpath={.status.phase} {.status.reason}: {.status.message}";
        same(
            &ns.run(&["get", "pod", pod, "-o", shown])?,
            "Failed Terminated: Pod was terminated in response to imminent node shutdown.",
        )?;
    }
    let ready = r#"jsonpath={.status.conditions[?(@.type=="Ready")].message}"#;
    same(
        &ns.run(&["get", "node", "node1", "-o", ready])?,
        "node is shutting down",
    )?;
    // Nothing of them is left on the host.
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let volumes = cluster.data_dir().join("kubelet/pods").display().to_string();
    if let Some(mount) = mounts.lines().find(|l| l.contains(&volumes)) {
        return Err(format!("still mounted: {mount}").into());
    }
    // After a restart the node accepts pods again.
    cluster.terminate()?;
    cluster.launch()?;
    eventually("the node to be ready again", || {
        ns.try_run(&["get", "node", "node1", "-o", ready])
            .is_ok_and(|m| m == "kubelet is posting ready status")
    })?;
    let rejected = text(&cluster.knarr("node").args(["shutdown", "--cancel"]).output()?);
    has(&rejected, "no shutdown is under way")?;
    cluster.end().map_err(Into::into)
}
