//! Guarantees about pods and their storage: local volumes by default, and fencing by real agents (scripts).

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use crate::Outcome;
use crate::cluster::{Namespace, Scenario, has, same, text};

pub const SCENARIOS: &[(&str, Scenario)] = &[
    (
        "s7_a_statefulset_gets_local_storage_by_default_and_it_is_deleted_with_its_claim",
        storage,
    ),
    (
        "s6_a_node_is_fenced_by_its_agents_and_only_then_its_pods_are_released",
        fencing,
    ),
];

const STATEFUL: &str = r#"
apiVersion: apps/v1
kind: StatefulSet
metadata: { name: db }
spec:
  serviceName: db
  selector: { matchLabels: { app: db } }
  template:
    metadata: { labels: { app: db } }
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: db
          image: localhost/knarr/busybox:1
          command: ["sh", "-c", "echo $HOSTNAME >> /data/starts; trap 'exit 0' TERM; while :; do sleep 0.1; done"]
          volumeMounts: [{ name: data, mountPath: /data }]
  volumeClaimTemplates:
    - metadata: { name: data }
      spec:
        accessModes: [ReadWriteOnce]
        resources: { requests: { storage: 1Mi } }
"#;

fn storage(ns: &Namespace) -> Outcome {
    ns.apply(STATEFUL)?;
    ns.eventually_run(&["get", "pod", "db-0"], |out| out.contains("Running"))?;
    ns.run(&["wait", "--for=condition=Ready", "pod/db-0", "--timeout=60s"])?;
    let claim = ns.run(&[
        "get",
        "pvc",
        "data-db-0",
        "-o",
        "jsonpath={.status.phase} {.spec.storageClassName}",
    ])?;
    same(&claim, "Bound local")?;
    let volume = ns.run(&["get", "pvc", "data-db-0", "-o", "jsonpath={.spec.volumeName}"])?;
    let path = ns.run(&["get", "pv", &volume, "-o", "jsonpath={.spec.local.path}"])?;
    let path = PathBuf::from(path);
    same(&format!("{}", path.join("starts").exists()), "true")?;

    // The next pod of the name has the same data.
    let before = ns.run(&["get", "pod", "db-0", "-o", "jsonpath={.metadata.uid}"])?;
    ns.run(&["delete", "pod", "db-0"])?;
    ns.eventually_run(
        &[
            "get",
            "pod",
            "db-0",
            "-o",
            "jsonpath={.metadata.uid} {.status.phase}",
        ],
        |out| out.ends_with("Running") && !out.contains(&before),
    )?;
    ns.eventually_run(&["exec", "db-0", "--", "cat", "/data/starts"], |out| {
        out == "db-0\ndb-0\n"
    })?;

    // While it is in use it stays; then it is deleted with its data.
    ns.run(&["delete", "pvc", "data-db-0", "--wait=false"])?;
    has(&ns.run(&["get", "pvc", "data-db-0"])?, "Terminating")?;
    ns.run(&["delete", "statefulset", "db"])?;
    ns.eventually("the volume to be deleted", || {
        ns.try_run(&["get", "pv", &volume]).is_err()
    })?;
    same(&format!("{}", path.exists()), "false")
}

/// A fence agent that switches a node off by creating a file, or, with the file `lie`, only claims to.
const AGENT: &str = r#"#!/bin/sh
while read -r line; do case "$line" in action=*) action=${line#action=} ;; plug=*) plug=${line#plug=} ;; esac; done
here=$(dirname "$0")
echo "$plug $action" >> "$here/asked"
case "$action" in
  off) if [ -e "$here/lie" ]; then exit 0; fi; touch "$here/off"; exit 0 ;;
  on) rm -f "$here/off"; exit 0 ;;
  status) if [ -e "$here/off" ]; then exit 2; fi; exit 0 ;;
esac
exit 1
"#;

fn fence(ns: &Namespace, node: &str) -> std::io::Result<Output> {
    let mut knarr = Command::new(env!("CARGO_BIN_EXE_knarr"));
    knarr
        .arg("fence")
        .arg(node)
        .arg("--kubeconfig")
        .arg(ns.cluster.kubeconfig());
    knarr.output()
}

fn fencing(ns: &Namespace) -> Outcome {
    let agents = ns.cluster.agents_dir();
    std::fs::create_dir_all(&agents)?;
    let agent = agents.join("fence_test");
    std::fs::write(&agent, AGENT)?;
    std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o755))?;
    std::fs::write(agents.join("lie"), "")?;
    ns.apply(
        r#"
apiVersion: safety.knarr.io/v1alpha1
kind: FencingPolicy
metadata: { name: test }
spec:
  automatic: false
  nodeSelector: { matchLabels: { rack: burning } }
  levels: [{ agents: [{ agent: fence_test, retries: 0 }] }]
---
apiVersion: v1
kind: Node
metadata: { name: lost, labels: { rack: burning } }
---
apiVersion: v1
kind: Pod
metadata: { name: stuck }
spec: { nodeName: lost, containers: [{ name: a, image: localhost/knarr/busybox:1 }] }
"#,
    )?;
    ns.run(&["delete", "pod", "stuck", "--wait=false"])?;
    // The agent reports success, but the node is still on: nothing is released.
    let rejected = fence(ns, "lost")?;
    same(&format!("{:?}", rejected.status.code()), "Some(1)")?;
    has(
        &text(&rejected),
        "fence_test status: says on: nothing is released",
    )?;
    has(&ns.run(&["get", "pod", "stuck"])?, "Terminating")?;
    has(&ns.run(&["get", "nodefencings"])?, "Failed")?;

    std::fs::remove_file(agents.join("lie"))?;
    let fenced = fence(ns, "lost")?;
    has(&text(&fenced), "Fenced: ")?;
    let asked = std::fs::read_to_string(agents.join("asked"))?;
    // The metadata of an agent is requested once, without a node.
    let (described, asked): (Vec<&str>, Vec<&str>) =
        asked.lines().partition(|line| line.ends_with(" metadata"));
    same(&described.join(","), " metadata")?;
    same(&asked.join(","), "lost off,lost status,lost off,lost status")?;
    let taints = ns.eventually_run(&["get", "node", "lost", "-o", "jsonpath={.spec.taints}"], |out| {
        out.contains("out-of-service")
    })?;
    has(&taints, "fenced")?;
    ns.eventually("the pod to be released", || {
        ns.try_run(&["get", "pod", "stuck"]).is_err()
    })?;
    has(&ns.run(&["describe", "node", "lost"])?, "NodeFenced")?;
    ns.run(&["delete", "node", "lost"])?;
    ns.run(&["delete", "fencingpolicy", "test"])?;
    Ok(())
}
