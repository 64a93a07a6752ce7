//! A full disk, for real: the data directory on a small file system of its own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cluster::{Cluster, Namespace, eventually, has, same, text};
use crate::{Outcome, StandaloneScenario};

pub const SCENARIOS: &[StandaloneScenario] = &[(
    "a_full_disk_is_reported_and_no_acknowledged_write_is_lost",
    full_disk,
)];

/// Size of the file system; a few of the objects below fill it.
const SIZE: &str = "12m";

/// A tmpfs that is mounted until this is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Result<SmallDisk, libtest_mimic::Failed> {
        std::fs::create_dir_all(at)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={SIZE},mode=0700"), "tmpfs"]);
        let out = mount.arg(at).output()?;
        if out.status.success() {
            Ok(SmallDisk(at.to_path_buf()))
        } else {
            Err(text(&out).into())
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let out = Command::new("umount").arg(&self.0).output();
        if !out.as_ref().is_ok_and(|out| out.status.success()) {
            eprintln!("{} is still mounted: {out:?}", self.0.display());
        }
    }
}

fn full_disk() -> Outcome {
    let cluster = Cluster::prepare("full")?;
    let disk = SmallDisk::mount(&cluster.data_dir())?;
    let outcome = fill_and_recover(&cluster);
    // The server first: it holds files of the disk.
    cluster.kill()?;
    drop(disk);
    outcome
}

fn fill_and_recover(cluster: &Cluster) -> Outcome {
    let ns = Namespace {
        cluster,
        name: "default".into(),
    };
    let filler = cluster.data_dir().join("filler");
    std::fs::write(&filler, vec![0; 3 << 20])?;
    let payload = cluster.data_dir().with_file_name("payload");
    std::fs::write(&payload, "x".repeat(900_000))?;
    let from_file = format!("--from-file=k={}", payload.display());
    start(&ns)?;

    let mut acknowledged = BTreeSet::new();
    let mut create = |name: String| match ns.try_run(&["create", "configmap", &name, &from_file]) {
        Ok(_) => {
            acknowledged.insert(format!("configmap/{name}"));
            None
        }
        Err(output) => Some(output),
    };
    let rejection = (0..20)
        .find_map(|n| create(format!("big-{n}")))
        .ok_or("18 MB of objects were written to a disk of 12 MB")?;
    has(&rejection, "the disk is full")?;

    // Reads succeed, and a rejected write left nothing.
    let there = ns.run(&["get", "configmaps", "-o", "name"])?;
    same(
        &format!("{:?}", big(&there)),
        &format!("{:?}", names(&acknowledged)),
    )?;

    // Space is freed: writes succeed again, without a restart.
    std::fs::remove_file(&filler)?;
    eventually("a write after space came back", || {
        ns.try_run(&["create", "configmap", "big-after", &from_file])
            .is_ok()
    })?;
    acknowledged.insert("configmap/big-after".into());

    // And all of it is there after a crash.
    cluster.kill()?;
    start(&ns)?;
    let there = ns.run(&["get", "configmaps", "-o", "name"])?;
    same(
        &format!("{:?}", big(&there)),
        &format!("{:?}", names(&acknowledged)),
    )
}

fn start(ns: &Namespace<'_>) -> Outcome {
    ns.cluster.launch_server()?;
    ns.eventually("the server", || {
        ns.try_run(&["get", "--raw", "/readyz"])
            .is_ok_and(|output| output == "ok")
    })
}

fn big(listed: &str) -> BTreeSet<&str> {
    listed
        .lines()
        .filter(|l| l.starts_with("configmap/big-"))
        .collect()
}

fn names(acknowledged: &BTreeSet<String>) -> BTreeSet<&str> {
    acknowledged.iter().map(String::as_str).collect()
}
