//! Controllers have only the permissions of their own roles, and a FencingPolicy can use only what the lists allow (SPEC A4).

use crate::Outcome;
use crate::cluster::{Namespace, Scenario, has, same};

pub const SCENARIOS: &[(&str, Scenario)] = &[
    (
        "a4_controllers_work_with_no_more_than_their_own_roles",
        controllers,
    ),
    (
        "a4_a_fencing_policy_uses_no_foreign_secret_and_no_program",
        fencing_policy,
    ),
];

/// An object for each controller that writes.
const WORK: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: { name: web }
spec:
  replicas: 2
  selector: { matchLabels: { app: web } }
  template:
    metadata: { labels: { app: web } }
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{ name: c, image: "localhost/knarr/busybox:1", command: ["sleep", "1000"] }]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: { name: each }
spec:
  selector: { matchLabels: { app: each } }
  template:
    metadata: { labels: { app: each } }
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{ name: c, image: "localhost/knarr/busybox:1", command: ["sleep", "1000"] }]
---
apiVersion: v1
kind: Service
metadata: { name: web }
spec: { selector: { app: web }, ports: [{ port: 80 }] }
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: { name: web }
spec: { minAvailable: 1, selector: { matchLabels: { app: web } } }
---
apiVersion: v1
kind: ResourceQuota
metadata: { name: q }
spec: { hard: { pods: "100" } }
---
apiVersion: v1
kind: ReplicationController
metadata: { name: old }
spec: { replicas: 0, selector: { app: old }, template: { metadata: { labels: { app: old } }, spec: { containers: [{ name: c, image: x }] } } }
---
apiVersion: batch/v1
kind: CronJob
metadata: { name: often }
spec:
  schedule: "* * * * *"
  suspend: true
  jobTemplate: { spec: { template: { spec: { restartPolicy: Never, containers: [{ name: c, image: x }] } } } }
---
apiVersion: batch/v1
kind: Job
metadata: { name: once }
spec:
  ttlSecondsAfterFinished: 1
  template:
    spec:
      restartPolicy: Never
      containers: [{ name: c, image: "localhost/knarr/busybox:1", command: ["true"] }]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: { name: data }
spec: { accessModes: [ReadWriteOnce], resources: { requests: { storage: 1Mi } } }
---
apiVersion: v1
kind: Pod
metadata: { name: stores }
spec:
  terminationGracePeriodSeconds: 0
  containers: [{ name: c, image: "localhost/knarr/busybox:1", command: ["sleep", "1000"], volumeMounts: [{ name: v, mountPath: /v }] }]
  volumes: [{ name: v, persistentVolumeClaim: { claimName: data } }]
"#;

fn controllers(ns: &Namespace) -> Outcome {
    ns.apply(WORK)?;
    ns.eventually_run(
        &[
            "get",
            "deployment",
            "web",
            "-o",
            "jsonpath={.status.readyReplicas}",
        ],
        |out| out == "2",
    )?;
    ns.eventually_run(
        &["get", "daemonset", "each", "-o", "jsonpath={.status.numberReady}"],
        |out| out == "1",
    )?;
    ns.eventually_run(
        &["get", "pod", "stores", "-o", "jsonpath={.status.phase}"],
        |out| out == "Running",
    )?;
    ns.eventually_run(
        &[
            "get",
            "endpointslices",
            "-o",
            "jsonpath={.items[*].endpoints[*].addresses}",
        ],
        |out| out.matches('[').count() == 2,
    )?;
    ns.eventually_run(&["get", "jobs", "-o", "name"], |out| !out.contains("once"))?;
    // The field manager is as in Kubernetes: the program's name, with every account.
    let managers = [
        "get",
        "pods",
        "-l",
        "app=web",
        "-o",
        "jsonpath={.items[0].metadata.managedFields[*].manager}",
        "--show-managed-fields",
    ];
    has(&ns.run(&managers)?, "kube-controller-manager")?;
    ns.run(&["delete", "pod", "stores"])?;
    ns.run(&["delete", "pvc", "data"])?;
    ns.run(&["delete", "deployment", "web", "--cascade=foreground"])?;
    let metrics = ns.run(&["get", "--raw", "/metrics"])?;
    let denied = metrics
        .lines()
        .filter(|line| line.starts_with("knarr_component_requests_denied_total{"));
    same(&denied.collect::<Vec<_>>().join("\n"), "")
}

const POLICY: &str = r#"
apiVersion: safety.knarr.io/v1alpha1
kind: FencingPolicy
metadata: { name: hostile }
spec:
  automatic: false
  nodeSelector: { matchLabels: { none: such } }
  levels: [{ agents: [{ agent: fence_test, %s }] }]
"#;

fn fencing_policy(ns: &Namespace) -> Outcome {
    let foreign = POLICY.replace("%s", "secretRef: { namespace: kube-system, name: s }");
    match ns.apply(&foreign) {
        Ok(out) => return Err(format!("a foreign Secret is accepted: {out}").into()),
        Err(rejected) => has(&format!("{rejected:?}"), "secretRef.namespace")?,
    }
    ns.apply(&POLICY.replace("%s", "parameters: { action: status, ssh_path: /tmp/x }"))?;
    let message = [
        "get",
        "fencingpolicy",
        "hostile",
        "-o",
        "jsonpath={.status.message}",
    ];
    let message = ns.eventually_run(&message, |out| out.contains("is not allowed"));
    ns.run(&["delete", "fencingpolicy", "hostile"])?;
    let message = message?;
    has(&message, "fence_test: parameter \"action\" is not allowed")?;
    has(&message, "fence_test: parameter \"ssh_path\" is not allowed")
}
