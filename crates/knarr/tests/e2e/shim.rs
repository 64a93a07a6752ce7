//! Pods with knarr's shim and with containerd's. knarr's is the default here: streams, it survives knarr, and its death is seen.
//! Pods of either shim live on when the other becomes the configured one.
//!
//! All scenarios run with the shim that `KNARR_SHIM` names, or with the default; some run with the [`other`] one, too.

use std::process::Command;

use libtest_mimic::Failed;

use crate::cluster::{Cluster, Namespace, Process, eventually, has, same};
use crate::kubectl::{WEB, running};
use crate::{Outcome, StandaloneScenario, kubectl_streams};

pub const SCENARIOS: &[StandaloneScenario] = &[
    (
        "l8_a_pod_survives_knarr_with_its_shim_and_is_restarted_without",
        shim_of_a_pod,
    ),
    (
        "l4_pods_keep_their_shim_when_another_one_is_configured",
        change_of_the_shim,
    ),
];

const RESTARTS: &str = "jsonpath={.status.containerStatuses[0].restartCount}";
/// What the setting is called.
const SETTING: &str = "KNARR_SHIM";
const RUNC_V2: &[&str] = &["--shim", "runc-v2"];
const RUST: &[&str] = &["--shim", "rust"];
/// knarr's on every host that runs these tests.
const AUTO: &[&str] = &["--shim", "auto"];
/// The name of containerd's shim in its configuration.
const RUNC_V2_TYPE: &str = "io.containerd.runc.v2";

/// The flags for the shim that the scenarios do not run with.
pub fn other() -> &'static [&'static str] {
    if std::env::var(SETTING).is_ok_and(|shim| shim == "runc-v2") {
        RUST
    } else {
        RUNC_V2
    }
}

/// An error unless the cluster's new pods get the [`other`] shim.
pub fn is_other(cluster: &Cluster) -> Outcome {
    let config = std::fs::read_to_string(cluster.data_dir().join("containerd/config.toml"))?;
    same(
        &config.contains(RUNC_V2_TYPE).to_string(),
        &(other() == RUNC_V2).to_string(),
    )
}

fn shim_of_a_pod() -> Outcome {
    let cluster = Cluster::start_with("shim", AUTO)?;
    for (name, run) in kubectl_streams::SCENARIOS {
        cluster.in_namespace(name, *run)?;
    }
    eventually("the shims exit with their pods", || shims(&cluster).is_empty())?;

    let ns = cluster.namespace("default");
    ns.wait_for_service_account()?;
    ns.apply(WEB)?;
    running(&ns, "web")?;
    let shim = only_shim(&cluster)?;

    cluster.kill()?;
    cluster.launch()?;
    cluster.wait_ready()?;
    running(&ns, "web")?;
    same(&ns.run(&["get", "pod", "web", "-o", RESTARTS])?, "0")?;
    same(&ns.run(&["exec", "web", "--", "echo", "a"])?, "a\n")?;
    same(&only_shim(&cluster)?.pid.to_string(), &shim.pid.to_string())?;

    let killed = Command::new("kill")
        .args(["-KILL", &shim.pid.to_string()])
        .status()?;
    same(&killed.to_string(), "exit status: 0")?;
    ns.eventually_run(&["get", "pod", "web", "-o", RESTARTS], |count| count == "1")?;
    running(&ns, "web")?;
    has(&ns.run(&["logs", "web", "--previous"])?, "hello")?;
    ns.run(&["delete", "pod", "web", "--timeout=60s"])?;
    eventually("the shim exits with its pod", || shims(&cluster).is_empty())?;
    cluster.end().map_err(Into::into)
}

fn change_of_the_shim() -> Outcome {
    let mut cluster = Cluster::start_with("shimc", RUNC_V2)?;
    let own = WEB.replace("web", "own");
    cluster.namespace("default").wait_for_service_account()?;
    cluster.namespace("default").apply(WEB)?;
    running(&cluster.namespace("default"), "web")?;
    same(&shims(&cluster).len().to_string(), "0")?;

    restart_with(&mut cluster, AUTO)?;
    let ns = cluster.namespace("default");
    lives_on(&ns, "web")?;
    same(&shims(&cluster).len().to_string(), "0")?;
    ns.apply(&own)?;
    running(&ns, "own")?;
    let shim = only_shim(&cluster)?;
    ns.run(&["delete", "pod", "web", "--timeout=60s"])?;

    restart_with(&mut cluster, RUNC_V2)?;
    let ns = cluster.namespace("default");
    lives_on(&ns, "own")?;
    same(&only_shim(&cluster)?.pid.to_string(), &shim.pid.to_string())?;
    ns.run(&["delete", "pod", "own", "--timeout=60s"])?;
    eventually("the shim exits with its pod", || shims(&cluster).is_empty())?;
    cluster.end().map_err(Into::into)
}

fn restart_with(cluster: &mut Cluster, flags: &'static [&'static str]) -> Outcome {
    cluster.kill()?;
    cluster.set_flags(flags);
    cluster.launch()?;
    cluster.wait_ready().map_err(Into::into)
}

/// The pod's container was not restarted, has its streams, and is restarted by the pod's shim after its exit.
fn lives_on(ns: &Namespace, pod: &str) -> Outcome {
    running(ns, pod)?;
    // Its kubelet may still be starting.
    ns.eventually_run(&["exec", pod, "--", "echo", "a"], |output| output == "a\n")?;
    let restarts = ["get", "pod", pod, "-o", RESTARTS];
    same(&ns.run(&restarts)?, "0")?;
    // It may end with the container, before it has succeeded.
    let _ = ns.try_run(&["exec", pod, "--", "sh", "-c", "kill -TERM 1"]);
    ns.eventually_run(&restarts, |count| count == "1")?;
    running(ns, pod)?;
    has(&ns.run(&["logs", pod, "--previous"])?, "bye")
}

/// The shims of the cluster's pods; those of one pod are one process.
fn shims(cluster: &Cluster) -> Vec<Process> {
    let mut processes = cluster.processes();
    // `start` and `delete` are processes for a moment.
    processes.retain(|p| p.command.contains("containerd-shim-knarr-v2") && !p.command.contains(" delete"));
    processes
}

fn only_shim(cluster: &Cluster) -> Result<Process, Failed> {
    let mut shims = shims(cluster);
    match (shims.pop(), shims.len()) {
        (Some(shim), 0) => Ok(shim),
        (last, others) => Err(format!(
            "expected one shim, found {}",
            others + usize::from(last.is_some())
        )
        .into()),
    }
}
