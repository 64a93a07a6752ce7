//! What a node does by itself: static pods, stats, evictions of pods over their limits, the record of terminations.

use crate::Outcome;
use crate::cluster::{Namespace, Scenario, has};
use crate::kubectl::{WEB, running};

pub const SCENARIOS: &[(&str, Scenario)] = &[
    ("l13_top_and_the_kubelets_stats_show_the_usage", stats),
    ("n2_a_pod_reaches_the_api_as_its_service_account", in_cluster),
    ("l13_a_static_pod_runs_from_its_manifest", static_pod),
    (
        "t8_a_pod_that_fills_its_empty_dir_over_the_limit_is_evicted",
        over_its_limit,
    ),
    ("b8_terminations_are_recorded_in_the_api", recorded_terminations),
];

/// A pod with the host's kubectl.
const CLIENT: &str = r#"
apiVersion: v1
kind: Pod
metadata: { name: client }
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: client
      image: localhost/knarr/busybox:1
      command: ["sleep", "600"]
      volumeMounts: [{ name: kubectl, mountPath: /kubectl, readOnly: true }]
  volumes:
    - name: kubectl
      hostPath: { path: KUBECTL, type: File }
"#;

fn stats(ns: &Namespace) -> Outcome {
    ns.apply(WEB)?;
    running(ns, "web")?;
    let top = ns.eventually_run(&["top", "pods", "--containers"], |t| t.contains("web"))?;
    has(&top, "MEMORY(bytes)")?;
    ns.eventually_run(&["top", "nodes"], |t| t.contains("node1") && t.contains('%'))?;
    let raw = |path: &str| ns.run(&["get", "--raw", &format!("/api/v1/nodes/node1/proxy/{path}")]);
    let summary = raw("stats/summary")?;
    for part in [
        "\"workingSetBytes\":",
        "\"rlimit\":",
        "\"imageFs\":",
        "\"name\":\"web\"",
    ] {
        has(&summary, part)?;
    }
    has(&raw("metrics/resource")?, "pod_memory_working_set_bytes{")?;
    has(&raw("metrics/cadvisor")?, "container_cpu_usage_seconds_total{")?;
    has(&raw("metrics")?, "kubelet_running_pods")?;
    has(&raw("logs/")?, "<pre>")
}

/// The server listens on the loopback address; an in-cluster client reaches it all the same, by name and by variables.
fn in_cluster(ns: &Namespace) -> Outcome {
    let path = std::env::var_os("PATH").ok_or("PATH is not set")?;
    let mut found = std::env::split_paths(&path).map(|directory| directory.join("kubectl"));
    let kubectl = found
        .find(|file| file.is_file())
        .ok_or("kubectl is not in PATH")?;
    let client = CLIENT.replace("KUBECTL", &kubectl.canonicalize()?.display().to_string());
    ns.apply(&client)?;
    running(ns, "client")?;
    let in_pod = |arguments: &[&str]| ns.run(&[&["exec", "client", "--", "/kubectl"], arguments].concat());
    has(
        &in_pod(&["auth", "whoami"])?,
        &format!("system:serviceaccount:{}:default", ns.name),
    )?;
    // The CA and the names of the certificate are valid for the Service's name, too.
    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    let by_name = format!(
        "/kubectl --server=https://kubernetes.default.svc --certificate-authority={account}/ca.crt --token=$(cat {account}/token) get --raw /apis"
    );
    let groups = ns.run(&["exec", "client", "--", "sh", "-c", &by_name])?;
    has(&groups, "APIGroupList")?;
    let endpoints = ns.run(&[
        "get",
        "endpointslice",
        "-n",
        "default",
        "kubernetes",
        "-o",
        "yaml",
    ])?;
    has(&endpoints, "name: https")
}

fn static_pod(ns: &Namespace) -> Outcome {
    let file = ns.cluster.manifests().join("fixed.yaml");
    std::fs::write(&file, WEB.replace("name: web\n  labels", "name: fixed\n  labels"))?;
    let shown = &["get", "pod", "-n", "default", "fixed-node1"];
    ns.eventually_run(shown, |t| t.contains("Running"))?;
    let first = ns.run(&[&shown[..], &["-o", "jsonpath={.metadata.uid}"]].concat())?;
    ns.run(&["delete", "pod", "-n", "default", "fixed-node1", "--wait=false"])?;
    ns.eventually_run(
        &[&shown[..], &["-o", "jsonpath={.metadata.uid} {.status.phase}"]].concat(),
        |t| t.ends_with(" Running") && !t.starts_with(&first),
    )?;
    std::fs::remove_file(&file)?;
    ns.eventually_run(shown, |t| t.contains("NotFound")).map(drop)
}

fn over_its_limit(ns: &Namespace) -> Outcome {
    ns.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: { name: greedy }
spec:
  terminationGracePeriodSeconds: 2
  volumes: [{ name: scratch, emptyDir: { sizeLimit: 1Mi } }]
  containers:
    - name: c
      image: localhost/knarr/busybox:1
      command: ["sh", "-c", "dd if=/dev/zero of=/scratch/x bs=1024 count=3000; while :; do sleep 0.1; done"]
      volumeMounts: [{ name: scratch, mountPath: /scratch }]
"#,
    )?;
    let status = "jsonpath={.status.phase} {.status.reason} {.status.message}";
    let status = ns.eventually_run(&["get", "pod", "greedy", "-o", status], |t| {
        t.starts_with("Failed")
    })?;
    has(
        &status,
        "Failed Evicted Usage of EmptyDir volume \"scratch\" exceeds the limit \"1Mi\". ",
    )
}

fn recorded_terminations(ns: &Namespace) -> Outcome {
    ns.run(&[
        "run",
        "once",
        "--restart=Never",
        "--image=localhost/knarr/busybox:1",
        "--",
        "sh",
        "-c",
        "exit 3",
    ])?;
    let ends = "jsonpath={.metadata.annotations.knarr\\.io/ends}";
    let ends = ns.eventually_run(&["get", "pod", "once", "-o", ends], |t| {
        t.contains("\"Completed\"")
    })?;
    has(&ends, "\"exitCode\":3")?;
    has(&ends, "\"SandboxStopped\"")
}
