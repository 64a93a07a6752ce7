//! `knarr why`, `knarr whatif` and `knarr plan` on a running cluster and on a dump of it, compared with what then happens.

use std::process::{Command, Stdio};

use libtest_mimic::Failed;

use crate::Outcome;
use crate::cluster::{Namespace, Scenario, has, same, text};

pub const SCENARIOS: &[(&str, Scenario)] = &[
    ("b1_why_names_the_plugin_and_a_change_that_then_helps", why),
    ("b2_whatif_predicts_what_then_happens", whatif),
    (
        "b3_plan_rebalance_reads_the_running_cluster_and_a_dump_of_it",
        plan,
    ),
];

fn knarr(ns: &Namespace, args: &[&str]) -> Result<String, Failed> {
    let out = Command::new(env!("CARGO_BIN_EXE_knarr"))
        .args(args)
        .args(["-n", &ns.name])
        .env("KUBECONFIG", ns.cluster.kubeconfig())
        .stdin(Stdio::null())
        .output()?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    Err(text(&out).into())
}

/// The kinds of a dump.
const DUMPED: &str =
    "nodes,pods,deployments,replicasets,statefulsets,services,namespaces,priorityclasses,pdb,pvc,pv,sc";

const WAITS: &str = r#"
apiVersion: v1
kind: Pod
metadata: { name: waits }
spec:
  nodeSelector: { disk: fast }
  containers: [ { name: c, image: localhost/knarr/busybox:1, command: ["sleep", "1000"] } ]
"#;

fn why(ns: &Namespace) -> Outcome {
    ns.apply(WAITS)?;
    ns.eventually_run(&["describe", "pod", "waits"], |shown| {
        shown.contains("FailedScheduling")
    })?;
    let output = knarr(ns, &["why", "waits"])?;
    has(&output, "fits on no node: 0/1 nodes are available")?;
    has(&output, "NodeAffinity")?;
    has(&output, "leave disk=fast out of the node selector")?;
    // The result for a dump is the same.
    let dir = tempfile::tempdir()?;
    let dump = dir.path().join("dump.json");
    std::fs::write(&dump, ns.run(&["get", DUMPED, "-A", "-o", "json"])?)?;
    let dump = dump.display().to_string();
    same(&knarr(ns, &["why", "pod/waits", "--from", &dump])?, &output)?;
    let json: serde_json::Value = serde_json::from_str(&knarr(ns, &["why", "waits", "-o", "json"])?)?;
    same(json["verdict"].as_str().unwrap_or(""), "Waits")?;
    let missing = knarr(ns, &["why", "absent"])
        .err()
        .map(|e| e.message().unwrap_or("").to_string());
    has(
        &missing.unwrap_or_default(),
        &format!("pod {}/absent not found", ns.name),
    )?;
    // The suggested change helps.
    ns.run(&["delete", "pod", "waits"])?;
    ns.apply(&WAITS.replace("  nodeSelector: { disk: fast }\n", ""))?;
    ns.run(&[
        "wait",
        "--for=condition=PodScheduled",
        "pod/waits",
        "--timeout=60s",
    ])?;
    has(&knarr(ns, &["why", "waits"])?, "waits is assigned to ")
}

const WEB: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: { name: web }
spec:
  replicas: 0
  selector: { matchLabels: { app: web } }
  template:
    metadata: { labels: { app: web } }
    spec:
      terminationGracePeriodSeconds: 1
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            - { topologyKey: kubernetes.io/hostname, labelSelector: { matchLabels: { app: web } } }
      containers: [ { name: c, image: localhost/knarr/busybox:1, command: ["sleep", "1000"] } ]
"#;

fn whatif(ns: &Namespace) -> Outcome {
    ns.apply(WEB)?;
    ns.eventually_run(&["get", "rs"], |shown| shown.contains("web-"))?;
    let output = knarr(ns, &["whatif", "scale", "deployment/web", "2", "-o", "json"])?;
    let output: serde_json::Value = serde_json::from_str(&output)?;
    let count = |of: &str| output[of].as_array().map_or(0, Vec::len);
    same(&format!("{} {}", count("placements"), count("pending")), "1 1")?;
    // Nothing was changed; and the real change has the predicted result.
    same(&ns.run(&["get", "pods", "-o", "name"])?, "")?;
    ns.run(&["scale", "deployment/web", "--replicas=2"])?;
    let scheduled =
        r#"jsonpath={range .items[*]}{.status.conditions[?(@.type=="PodScheduled")].status} {end}"#;
    ns.eventually_run(&["get", "pods", "-o", scheduled], |found| {
        let mut all: Vec<&str> = found.split_whitespace().collect();
        all.sort_unstable();
        all == ["False", "True"]
    })?;
    let node = ns.run(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])?;
    let drained = knarr(ns, &["whatif", "drain", &node])?;
    has(&drained, " pending, ")
}

/// For the pods of the scenario's namespace.
const DUPLICATES: &str = r#"
apiVersion: placement.knarr.io/v1alpha1
kind: RebalancePolicy
metadata: { name: duplicates }
spec: { strategies: { duplicates: {} } }
"#;

/// On one node nothing can be moved.
fn plan(ns: &Namespace) -> Outcome {
    ns.apply(WEB)?;
    ns.run(&["scale", "deployment/web", "--replicas=1"])?;
    ns.eventually_run(
        &["get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}"],
        |node| !node.is_empty(),
    )?;
    let dir = tempfile::tempdir()?;
    let policy = dir.path().join("policy.yaml").display().to_string();
    std::fs::write(&policy, DUPLICATES)?;
    let args = ["plan", "rebalance", "--policy", &policy];
    let live = knarr(ns, &args)?;
    has(
        &live,
        &format!("Policy: RebalancePolicy {}/duplicates ({policy})", ns.name),
    )?;
    has(&live, "Nothing to move: no rule of the policy is violated.")?;
    let dump = dir.path().join("dump.json").display().to_string();
    std::fs::write(&dump, ns.run(&["get", DUMPED, "-A", "-o", "json"])?)?;
    same(
        &knarr(ns, &[&args[..], &["--from", dump.as_str()]].concat())?,
        &live,
    )?;
    // Without --policy it is those of the cluster, or the built-in one.
    let json: serde_json::Value = serde_json::from_str(&knarr(ns, &["plan", "rebalance", "-o", "json"])?)?;
    let plans = json["plans"].as_array().map_or(0, Vec::len);
    same(&(plans > 0).to_string(), "true")
}
