//! Pod lifecycles that were recorded on a real v1.36 node, replayed here (`tests/golden-life`).
//!
//! `replay.py` does what each transcript did, and compares pod status, events and what the processes saw.

use std::process::Command;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;

use crate::cluster::{Cluster, Namespace, Scenario, text};
use crate::{Outcome, StandaloneScenario, alone, shim, with_others};

/// They say themselves when others may run.
pub const SCENARIOS_THAT_LOCK: &[(&str, Scenario)] =
    &[("l4_t2_recorded_pod_lifecycles_are_the_same_here", replay_all)];

/// The same, with a cluster of their own.
pub const STANDALONE_THAT_LOCK: &[StandaloneScenario] = &[(
    "l4_t2_recorded_pod_lifecycles_are_the_same_with_the_other_shim",
    replay_with_the_other_shim,
)];

const RECORDINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden-life");
/// How many are replayed at once: most of their time they wait.
const WORKERS: &str = "16";
/// The reference node itself needed a second try now and then (see the recordings' README).
const RETRIES: &str = "2";
/// The recordings have deadlines and probes of a few seconds; on their node the runtime alone started a container in 0.2 s.
/// While this host's needs more than this, times cannot be compared …
const RUNTIME_START_MAX: Duration = Duration::from_millis(800);
/// … and after so long it is taken for a slow host, not for one that is busy.
const QUICK_WITHIN: Duration = Duration::from_secs(300);
/// If more fail, they are not late, but wrong.
const LATE_AT_MOST: usize = 30;

/// Their containers need the image `agnhost`, which is not on this host and cannot be built here.
const NO_IMAGE: [&str; 8] = [
    "hooks-0015",
    "probes-0003",
    "probes-0004",
    "probes-0005",
    "probes-0007",
    "probes-0023",
    "probes-0024",
    "probes-0033",
];
/// With the other shim, every so many of them are replayed.
const OTHER_EVERY: usize = 6;
/// These wait for back-offs and graces of half a minute; they run where `KNARR_TEST_ALL` is set.
const SLOW: [&str; 5] = [
    "config-0005",
    "probes-0019",
    "restart-0001",
    "restart-0005",
    "termination-0025",
];

fn replay_all(ns: &Namespace) -> Outcome {
    let all = ids()?;
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    replay(ns, &all)
}

fn replay_with_the_other_shim() -> Outcome {
    let mut started = None;
    with_others(|| {
        let cluster = Cluster::start_with("life", shim::other())?;
        shim::is_other(&cluster)?;
        started = Some(cluster);
        Ok(())
    })?;
    let cluster = started.ok_or("the cluster was not started")?;
    let (name, _) = STANDALONE_THAT_LOCK[0];
    cluster.in_namespace(name, |ns| {
        let all = ids()?;
        let some: Vec<&str> = all.iter().step_by(OTHER_EVERY).map(String::as_str).collect();
        replay(ns, &some)
    })?;
    cluster.end().map_err(Into::into)
}

fn replay(ns: &Namespace, all: &[&str]) -> Outcome {
    for name in [
        "docker.io/library/busybox:latest",
        "registry.k8s.io/e2e-test-images/busybox:1.29-4",
    ] {
        let mut tag = Command::new("ctr");
        tag.arg("--address").arg(ns.cluster.containerd_socket());
        tag.args([
            "-n",
            "k8s.io",
            "images",
            "tag",
            "--force",
            "localhost/knarr/busybox:1",
            name,
        ]);
        run(&mut tag)?;
    }
    let dir = tempfile::tempdir()?;
    let user = |field: &str| {
        format!("{{{{range .users}}}}{{{{index .user \"{field}\" | base64decode}}}}{{{{end}}}}")
    };
    for (file, template) in [
        ("crt", user("client-certificate-data")),
        ("key", user("client-key-data")),
    ] {
        let mut view = ns.cluster.kubectl();
        view.args(["config", "view", "--raw", "-o"])
            .arg(format!("go-template={template}"));
        let out = view.output()?;
        if !out.status.success() {
            return Err(text(&out).into());
        }
        std::fs::write(dir.path().join(file), out.stdout)?;
    }
    let replay = |ids: &[&str], workers: &str, retries: &str| {
        let mut replay = Command::new("python3");
        replay.arg(format!("{RECORDINGS}/replay.py"));
        replay.args(["--server", &ns.cluster.server(), "--node", "node1"]);
        replay.arg("--cert").arg(dir.path().join("crt"));
        replay.arg("--key").arg(dir.path().join("key"));
        replay.args(["--workers", workers, "--retries", retries]);
        replay.args(["--id", &ids.join(","), RECORDINGS]);
        run(&mut replay)
    };
    if let Err(failed) = with_others(|| replay(all, WORKERS, RETRIES)) {
        // Some recordings depend on seconds. What was late with others is replayed while nothing else runs; what is wrong fails again.
        let output = failed.message().unwrap_or_default();
        let late: Vec<&str> = output
            .lines()
            .filter_map(|line| line.strip_prefix("FAIL ")?.split(' ').next())
            .collect();
        if late.is_empty() || late.len() > LATE_AT_MOST {
            return Err(failed);
        }
        alone(|| replay_on_a_quick_host(ns, &late, || replay(&late, "1", RETRIES)))?;
    }
    // Their namespaces are being deleted; the next scenario starts without them.
    ns.eventually_run(&["get", "pods", "--all-namespaces", "--no-headers"], |pods| {
        !pods.contains("life-")
    })
    .map(drop)
}

/// Replays what depends on seconds while the container runtime is as quick as it has to be.
fn replay_on_a_quick_host(ns: &Namespace, ids: &[&str], replay: impl Fn() -> Outcome) -> Outcome {
    let begin = Instant::now();
    loop {
        let before = runtime_start(ns)?;
        let slow = match before > RUNTIME_START_MAX {
            true => before,
            false => {
                let Err(failed) = replay() else { return Ok(()) };
                let after = runtime_start(ns)?;
                if after <= RUNTIME_START_MAX {
                    return Err(failed);
                }
                after
            }
        };
        if begin.elapsed() > QUICK_WITHIN {
            eprintln!(
                "not replayed, because the container runtime of this host needs {} ms to start a container: {}",
                slow.as_millis(),
                ids.join(", ")
            );
            return Ok(());
        }
    }
}

/// How long the runtime takes to start a container and remove it, without knarr.
fn runtime_start(ns: &Namespace) -> Result<Duration, Failed> {
    let mut took = Vec::new();
    for number in 0..5 {
        let mut container = Command::new("ctr");
        container.arg("--address").arg(ns.cluster.containerd_socket());
        container.args(["-n", "k8s.io", "run", "--rm", "localhost/knarr/busybox:1"]);
        container.args([&format!("runtime-start-{number}"), "true"]);
        let begin = Instant::now();
        run(&mut container)?;
        took.push(begin.elapsed());
    }
    took.sort();
    Ok(took[took.len() / 2])
}

/// The recordings to replay.
fn ids() -> Result<Vec<String>, Failed> {
    let mut list = Command::new("python3");
    list.args(["-c", LIST, RECORDINGS]);
    let out = list.output()?;
    if !out.status.success() {
        return Err(text(&out).into());
    }
    let all = std::env::var_os("KNARR_TEST_ALL").is_some();
    let left_out = |id: &str| NO_IMAGE.contains(&id) || (!all && SLOW.contains(&id));
    let output = text(&out);
    let known: Vec<&str> = output.lines().collect();
    if let Some(unknown) = NO_IMAGE.iter().chain(&SLOW).find(|id| !known.contains(id)) {
        return Err(format!("there is no recording {unknown}").into());
    }
    let ids = known.into_iter().filter(|id| !left_out(id));
    Ok(ids.map(String::from).collect())
}

/// Prints the id of every recording in a directory.
const LIST: &str = "import sys, glob, gzip, json
for f in sorted(glob.glob(sys.argv[1] + '/*.jsonl.gz')):
    for line in gzip.open(f, 'rt'):
        print(json.loads(line)['id'])";

fn run(command: &mut Command) -> Outcome {
    let out = command.output()?;
    if out.status.success() {
        return Ok(());
    }
    // Recordings that passed with a note are left out.
    let output = text(&out);
    let mut failed = false;
    let kept = output.lines().filter(|line| {
        if !line.starts_with(' ') {
            failed = !line.starts_with("note ");
        }
        failed
    });
    Err(kept.collect::<Vec<_>>().join("\n").into())
}
