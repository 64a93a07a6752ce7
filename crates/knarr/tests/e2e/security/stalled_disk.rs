//! The disk of the kubelet's directory stalls: writes to it block, and nothing else does (SPEC A6).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, Namespace, eventually, text};
use crate::{Outcome, StandaloneScenario};

pub const STANDALONE: &[StandaloneScenario] =
    &[("a6_a_stalled_disk_of_the_kubelet_blocks_no_request", stalled_disk)];

/// More pods than the process has threads for async work, each with files to write.
const PODS: usize = 8;
/// Requests while the disk is frozen.
const ROUNDS: usize = 20;
/// How long a request may take meanwhile, including kubectl's own start.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

fn run(program: &str, args: &[&str]) -> Outcome {
    let out = Command::new(program).args(args).output()?;
    match out.status.success() {
        true => Ok(()),
        false => Err(format!("{program} {args:?}: {}", text(&out)).into()),
    }
}

/// A file system of its own, whose writes can be blocked (`fsfreeze`).
struct Disk(PathBuf);

impl Disk {
    fn mount(image: &Path, at: &Path) -> Result<Disk, libtest_mimic::Failed> {
        let (image, shown) = (image.display().to_string(), at.display().to_string());
        run("truncate", &["-s", "200M", &image])?;
        run("mkfs.ext4", &["-q", &image])?;
        run("mount", &["-o", "loop", &image, &shown])?;
        Ok(Disk(at.to_path_buf()))
    }

    fn freeze(&self) -> Outcome {
        run("fsfreeze", &["-f", &self.0.display().to_string()])
    }

    fn thaw(&self) -> Outcome {
        run("fsfreeze", &["-u", &self.0.display().to_string()])
    }
}

fn stalled_disk() -> Outcome {
    let cluster = Cluster::prepare("frozen")?;
    let kubelet = cluster.data_dir().join("kubelet");
    std::fs::create_dir_all(&kubelet)?;
    let image = cluster.data_dir().with_file_name("disk");
    let disk = Disk::mount(&image, &kubelet)?;
    let outcome = starts_pods_meanwhile(&cluster, &disk);
    // `knarr down` unmounts everything below the kubelet's directory.
    let stopped = cluster.end().map_err(Into::into);
    outcome.and(stopped)
}

fn starts_pods_meanwhile(cluster: &Cluster, disk: &Disk) -> Outcome {
    cluster.launch()?;
    cluster.wait_ready()?;
    let ns = Namespace {
        cluster,
        name: "default".into(),
    };
    ns.wait_for_service_account()?;
    disk.freeze()?;
    let outcome = requests_are_answered(&ns);
    disk.thaw()?;
    outcome?;
    eventually("the pods to run after the disk is thawed", || {
        ns.try_run(&["get", "pods", "-o", "jsonpath={.items[*].status.phase}"])
            .is_ok_and(|phases| phases.matches("Running").count() == PODS)
    })
}

fn requests_are_answered(ns: &Namespace<'_>) -> Outcome {
    for n in 0..PODS {
        let name = format!("p{n}");
        let image = "--image=localhost/knarr/busybox:1";
        ns.run(&["run", &name, image, "--restart=Never", "--", "sleep", "600"])?;
    }
    for n in 0..ROUNDS {
        let begun = Instant::now();
        ns.run(&["create", "configmap", &format!("c{n}"), "--from-literal=a=b"])?;
        ns.run(&["get", "pods"])?;
        let took = begun.elapsed();
        if took > 2 * ANSWER_LIMIT {
            return Err(format!("a write and a list took {took:?} while the disk was frozen").into());
        }
    }
    let phases = ns.run(&["get", "pods", "-o", "jsonpath={.items[*].status.phase}"])?;
    match phases.contains("Running") {
        true => Err("a pod runs though its directory cannot be written: the disk was not frozen".into()),
        false => Ok(()),
    }
}
