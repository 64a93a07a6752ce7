//! The trial of an OCI runtime with a real one: runc, under the name of crun.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use knarr_kubelet::cgroup::CgroupDriver;
use knarr_node::containerd::{OciRuntimeChoice, TrialSettings};
use tokio::time::{Instant, sleep};

/// How long a trial of another test may take at most.
const LIMIT: Duration = Duration::from_secs(10);

fn runc() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&path).map(|directory| directory.join("runc"));
    found
        .find(|program| program.is_file())
        .filter(|_| nix::unistd::geteuid().is_root())
}

/// Whether a cgroup of a trial is in that of all pods, in any hierarchy.
fn has_cgroup() -> bool {
    let names = |directory: &Path| {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let root = Path::new("/sys/fs/cgroup");
    let mut hierarchies = names(root);
    hierarchies.push(root.to_owned());
    hierarchies
        .iter()
        .flat_map(|hierarchy| names(&hierarchy.join("kubepods")))
        .any(|group| {
            let name = group.file_name().and_then(OsStr::to_str);
            name.is_some_and(|name| name.starts_with("knarr-oci-runtime-"))
        })
}

#[tokio::test]
async fn a_runtime_that_runs_containers_on_this_host_passes_its_trial_and_nothing_is_left() {
    let Some(runc) = runc() else {
        eprintln!("not run: this machine has no root or no runc");
        return;
    };
    let (programs, bundles) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::os::unix::fs::symlink(runc, programs.path().join("crun")).unwrap();
    let settings = TrialSettings {
        search_path: programs.path().as_os_str(),
        directory: bundles.path(),
        driver: CgroupDriver::Cgroupfs,
    };
    assert_eq!(OciRuntimeChoice::Auto.program(settings).await, "crun");
    assert_eq!(std::fs::read_dir(bundles.path()).unwrap().count(), 0);
    let begin = Instant::now();
    while has_cgroup() {
        assert!(begin.elapsed() < LIMIT, "a cgroup of a trial is left");
        sleep(Duration::from_millis(20)).await;
    }
}
