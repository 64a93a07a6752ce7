//! Pods with knarr's own shim (`--shim rust`): streams as with containerd's, it survives knarr, and its death is seen.

use std::process::Command;

use crate::cluster::{Cluster, Process, eventually, has, same};
use crate::kubectl::{WEB, running};
use crate::{Outcome, StandaloneScenario, kubectl_streams};

pub const SCENARIOS: &[StandaloneScenario] = &[(
    "l8_a_pod_survives_knarr_with_its_shim_and_is_restarted_without",
    shim_of_a_pod,
)];

const RESTARTS: &str = "jsonpath={.status.containerStatuses[0].restartCount}";

fn shim_of_a_pod() -> Outcome {
    let cluster = Cluster::start_with("shim", &["--shim", "rust"])?;
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

/// The shims of the cluster's pods; those of one pod are one process.
fn shims(cluster: &Cluster) -> Vec<Process> {
    let mut processes = cluster.processes();
    // `start` and `delete` are processes for a moment.
    processes.retain(|p| p.command.contains("containerd-shim-knarr-v2") && !p.command.contains(" delete"));
    processes
}

fn only_shim(cluster: &Cluster) -> Result<Process, libtest_mimic::Failed> {
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
