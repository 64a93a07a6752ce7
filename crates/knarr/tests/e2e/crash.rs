//! kill -9 of knarr under write load, again and again: nothing acknowledged is lost, no container runs twice.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::cluster::{Cluster, eventually, same, text};
use crate::kubectl::WEB;
use crate::{Outcome, StandaloneScenario};

pub const SCENARIOS: &[StandaloneScenario] = &[(
    "s1_kill_9_under_load_loses_nothing_and_runs_nothing_twice",
    kill_nine,
)];

/// How often knarr is killed. Fifty by `KNARR_TEST_KILLS=50`; fewer in the everyday run.
fn kills() -> usize {
    std::env::var("KNARR_TEST_KILLS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(5)
}

fn kill_nine() -> Outcome {
    let cluster = Arc::new(Cluster::start("kill")?);
    let apply = |manifest: &str| -> Outcome {
        let ns = cluster.namespace("default");
        ns.wait_for_service_account()?;
        ns.apply(manifest)?;
        ns.run(&["wait", "--for=condition=Ready", "pod/web", "--timeout=60s"])
            .map(drop)
    };
    apply(WEB)?;
    let before = containers(&cluster)?;
    same(&before.len().to_string(), "1")?;

    let acknowledged = Arc::new(Mutex::new(BTreeSet::new()));
    let stopping = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (cluster, acknowledged, stopping) = (cluster.clone(), acknowledged.clone(), stopping.clone());
            std::thread::spawn(move || {
                for n in 0.. {
                    if stopping.load(Ordering::Relaxed) {
                        return;
                    }
                    let name = format!("w{writer}-{n}");
                    let created = cluster
                        .kubectl()
                        .args(["create", "configmap", &name, "--from-literal=k=v"])
                        .output();
                    if created.is_ok_and(|out| out.status.success())
                        && let Ok(mut names) = acknowledged.lock()
                    {
                        names.insert(name);
                    }
                }
            })
        })
        .collect();
    for _ in 0..kills() {
        let so_far = acknowledged.lock().map_or(0, |a| a.len());
        eventually("a few more acknowledged writes", || {
            acknowledged.lock().is_ok_and(|a| a.len() >= so_far + 5)
        })?;
        cluster.kill()?;
        cluster.launch()?;
        cluster.wait_ready()?;
    }
    stopping.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.join().map_err(|_| "a writer failed")?;
    }

    let listed = cluster
        .kubectl()
        .args(["get", "configmaps", "-o", "name"])
        .output()?;
    let listed = text(&listed);
    let there: BTreeSet<&str> = listed
        .lines()
        .filter_map(|l| l.strip_prefix("configmap/"))
        .collect();
    let acknowledged = acknowledged.lock().map_err(|_| "a writer failed")?;
    let lost: Vec<_> = acknowledged
        .iter()
        .filter(|n| !there.contains(n.as_str()))
        .collect();
    if !lost.is_empty() {
        return Err(format!(
            "{} of {} acknowledged objects are lost: {lost:?}",
            lost.len(),
            acknowledged.len()
        )
        .into());
    }
    // The very same container, running once, never restarted.
    same(&format!("{:?}", containers(&cluster)?), &format!("{before:?}"))?;
    let restarts = cluster
        .kubectl()
        .args([
            "get",
            "pod",
            "web",
            "-o",
            "jsonpath={.status.containerStatuses[0].restartCount}",
        ])
        .output()?;
    same(&text(&restarts), "0")?;
    cluster.end().map_err(Into::into)
}

/// Ids of the running containers, without sandboxes.
fn containers(cluster: &Cluster) -> Result<Vec<String>, libtest_mimic::Failed> {
    let ctr = |args: &[&str]| -> Result<String, libtest_mimic::Failed> {
        let mut ctr = Command::new("ctr");
        let out = ctr
            .arg("--address")
            .arg(cluster.containerd_socket())
            .args(["-n", "k8s.io"])
            .args(args)
            .output()?;
        if out.status.success() {
            Ok(text(&out))
        } else {
            Err(text(&out).into())
        }
    };
    let tasks = ctr(&["tasks", "list"])?;
    let all = ctr(&[
        "containers",
        "list",
        "labels.\"io.cri-containerd.kind\"==container",
    ])?;
    let apps: BTreeSet<&str> = all
        .lines()
        .skip(1)
        .filter_map(|l| l.split_whitespace().next())
        .collect();
    let running = tasks
        .lines()
        .skip(1)
        .filter(|l| l.contains("RUNNING"))
        .filter_map(|l| l.split_whitespace().next());
    Ok(running
        .filter(|id| apps.contains(id))
        .map(str::to_string)
        .collect())
}
