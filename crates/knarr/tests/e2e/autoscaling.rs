//! A Deployment that a HorizontalPodAutoscaler scales by its containers' real usage; and the use of a token Secret.

use crate::Outcome;
use crate::cluster::{Namespace, Scenario, has, same};

pub const SCENARIOS: &[(&str, Scenario)] = &[
    ("a_busy_deployment_is_scaled_up_and_down", scaled),
    ("a1_a_token_secret_gets_a_token_that_is_accepted", token_secret),
];

/// Each pod is busy for a while after its start.
const BUSY: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: { name: busy }
spec:
  selector: { matchLabels: { app: busy } }
  template:
    metadata: { labels: { app: busy } }
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: c
          image: localhost/knarr/busybox:1
          command: ["sh", "-c", "end=$(($(date +%s) + 30)); while [ $(date +%s) -lt $end ]; do :; done; exec sleep 1000"]
          resources: { requests: { cpu: 50m }, limits: { cpu: 100m } }
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: { name: busy }
spec:
  scaleTargetRef: { apiVersion: apps/v1, kind: Deployment, name: busy }
  minReplicas: 1
  maxReplicas: 3
  metrics:
    - { type: Resource, resource: { name: cpu, target: { type: Utilization, averageUtilization: 60 } } }
  behavior:
    scaleDown: { stabilizationWindowSeconds: 5 }
"#;

fn scaled(ns: &Namespace) -> Outcome {
    ns.apply(BUSY)?;
    let replicas = ["get", "deployment", "busy", "-o", "jsonpath={.spec.replicas}"];
    ns.eventually_run(&replicas, |found| found == "3")?;
    ns.eventually_run(&replicas, |found| found == "1")?;
    let conditions = ns.run(&[
        "get",
        "hpa",
        "busy",
        "-o",
        "jsonpath={range .status.conditions[*]}{.type}={.status} {end}",
    ])?;
    has(&conditions, "AbleToScale=True")?;
    has(&conditions, "ScalingActive=True")
}

const TOKEN: &str = r#"
apiVersion: v1
kind: ServiceAccount
metadata: { name: robot }
---
apiVersion: v1
kind: Secret
metadata:
  name: robot-token
  annotations: { kubernetes.io/service-account.name: robot }
type: kubernetes.io/service-account-token
"#;

fn token_secret(ns: &Namespace) -> Outcome {
    ns.apply(TOKEN)?;
    let template = "go-template={{with .data}}{{with .token}}{{. | base64decode}}{{end}}{{end}}";
    let token = ns.eventually_run(&["get", "secret", "robot-token", "-o", template], |token| {
        token.starts_with("ey")
    })?;
    let flags = [
        format!("--server={}", ns.cluster.server()),
        format!("--token={token}"),
        "--kubeconfig=/dev/null".to_string(),
        "--insecure-skip-tls-verify=true".to_string(),
    ];
    let mut whoami = vec!["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"];
    whoami.extend(flags.iter().map(String::as_str));
    same(
        &ns.run(&whoami)?,
        &format!("system:serviceaccount:{}:robot", ns.name),
    )
}
