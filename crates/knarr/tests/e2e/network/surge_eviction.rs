//! A surge-first eviction as users see it (SPEC B6): `kubectl drain` of the node of a Deployment's only pod, which its
//! PodDisruptionBudget would otherwise never allow, fails no connection.

use libtest_mimic::Failed;

use knarr_nemesis::fleet::{Fleet, Host};

use super::load::under_load;
use super::{NODE_PORT, get, start};
use crate::Outcome;
use crate::cluster::has;

const WEB: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: { name: web }
spec:
  replicas: 1
  selector: { matchLabels: { app: web } }
  template:
    metadata:
      labels: { app: web }
      annotations: { knarr.io/eviction: SurgeFirst }
    spec:
      terminationGracePeriodSeconds: 10
      containers:
        - name: web
          image: localhost/knarr/busybox:1
          command: ["sh", "-c", "mkdir -p /tmp/www; hostname > /tmp/www/index.html; trap 'kill $!; wait $!; while pidof httpd >/dev/null; do sleep 0.05; done; exit 0' TERM; httpd -f -p 8080 -h /tmp/www & wait"]
          readinessProbe: { httpGet: { path: /, port: 8080 }, periodSeconds: 1 }
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: { name: web }
spec:
  minAvailable: 1
  selector: { matchLabels: { app: web } }
---
apiVersion: v1
kind: Service
metadata: { name: web }
spec:
  type: NodePort
  selector: { app: web }
  ports: [{ port: 80, targetPort: 8080, nodePort: 30080 }]
"#;

pub fn drain() -> Outcome {
    let fleet = start(2, 0, &[])?;
    drained(&fleet).map_err(|e| fleet.with_logs(e))?;
    fleet.tear_down()
}

fn drained(fleet: &Fleet) -> Outcome {
    fleet.apply(WEB)?;
    fleet.run(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    fleet.eventually("the node ports", || {
        fleet.agents.iter().all(|a| get(a.address, NODE_PORT).is_ok())
    })?;
    let (old, node) = only_pod(fleet)?;
    let nodes: Vec<&Host> = fleet.agents.iter().collect();
    under_load(fleet, "a drain of the only pod's node", &nodes, || {
        fleet.run(&["drain", &node, "--ignore-daemonsets", "--timeout=120s"])?;
        Ok(())
    })?;
    let (new, other) = only_pod(fleet)?;
    if new == old || other == node {
        return Err(format!("pod {new} is on {other}; drained was {old} on {node}").into());
    }
    // The replacement is the only pod, and counts as before.
    let counts = "jsonpath={.spec.replicas} {.status.replicas} {.status.availableReplicas}";
    fleet.eventually_run(&["get", "deployment", "web", "-o", counts], |found| {
        found.trim() == "1 1 1"
    })?;
    let rollout = fleet.run(&["rollout", "status", "deployment/web", "--timeout=30s"])?;
    has(&rollout, "successfully rolled out")
}

/// The name and the node of the only pod that is not terminating.
fn only_pod(fleet: &Fleet) -> Result<(String, String), Failed> {
    let columns = "jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName}{\"\\n\"}{end}";
    let found = fleet.eventually_run(&["get", "pods", "-l", "app=web", "-o", columns], |pods| {
        pods.lines().count() == 1
    })?;
    let (name, node) = found.trim().split_once(' ').ok_or("the pod has no node")?;
    Ok((name.to_string(), node.to_string()))
}
