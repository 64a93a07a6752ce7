//! The removal of a node: every pod is stopped, every mount, address, bridge, rule and cgroup freed.
//!
//! For a node that is removed, not for one that restarts: containers keep running through a restart of knarr.
//! Everything here may be repeated and continues where an earlier attempt failed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::join_all;
use knarr_apimachinery::ids::SandboxId;
use knarr_kubelet::cgroup::{CgroupDriver, CgroupName};
use knarr_kubelet::runtime::ContainerState;
use nix::mount::{MntFlags, umount2};
use tokio::time::sleep;

use crate::network;
use crate::runtime::{Result as RuntimeResult, Runtime};

/// A container's grace period when the whole node is removed.
pub const CONTAINER_GRACE: Duration = Duration::from_secs(10);

/// containerd does not stop a sandbox whose shim is just exiting ("ttrpc: closed"); there is no later retry here.
const SANDBOX_TRIES: u32 = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(250);

/// How many pods were stopped, and what could not be freed.
#[derive(Debug, Default)]
pub struct Teardown {
    pub pods: usize,
    pub faults: Vec<String>,
}

/// Stops every pod of the runtime.
pub async fn stop_pods(runtime: &dyn Runtime) -> Teardown {
    let mut torn = Teardown::default();
    match runtime.containers().await {
        Ok(containers) => {
            let running = containers
                .iter()
                .filter(|c| matches!(c.state, ContainerState::Running { .. }));
            let ends = running.map(|c| async move {
                runtime.stop_container(&c.id, CONTAINER_GRACE).await.map_err(|e| {
                    format!(
                        "container {} of pod {}/{}: {e}",
                        c.name, c.pod.namespace, c.pod.name
                    )
                })
            });
            torn.faults
                .extend(join_all(ends).await.into_iter().filter_map(Result::err));
        }
        Err(e) => torn.faults.push(format!("the containers cannot be listed: {e}")),
    }
    match runtime.sandboxes().await {
        Ok(sandboxes) => {
            torn.pods = sandboxes.len();
            let ends = sandboxes.iter().map(|s| async move {
                let mut tries = 1;
                loop {
                    match remove_sandbox(runtime, &s.id).await {
                        Err(_) if tries < SANDBOX_TRIES => tries += 1,
                        end => return end,
                    }
                    sleep(BETWEEN_TRIES).await;
                }
            });
            let named = join_all(ends).await.into_iter().zip(&sandboxes);
            torn.faults.extend(named.filter_map(|(end, s)| {
                end.err()
                    .map(|e| format!("sandbox of pod {}/{}: {e}", s.pod.namespace, s.pod.name))
            }));
        }
        Err(e) => torn.faults.push(format!("the sandboxes cannot be listed: {e}")),
    }
    torn
}

/// Stops a sandbox, which also gives its network back, and removes it.
pub(crate) async fn remove_sandbox(runtime: &dyn Runtime, id: &SandboxId) -> RuntimeResult<()> {
    runtime.stop_sandbox(id).await?;
    runtime.remove_sandbox(id).await
}

/// Frees what is left on the host once no pod runs: mounts under `data_dir`, the bridge, rules, cgroups.
pub async fn clean_host(data_dir: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    match crate::host_fs::read_to_string("/proc/self/mountinfo") {
        Ok(mountinfo) => {
            for mount in mounts_under(&mountinfo, data_dir) {
                if let Err(e) = umount2(&mount, MntFlags::MNT_DETACH) {
                    faults.push(format!("mount {}: {e}", mount.display()));
                }
            }
        }
        Err(e) => faults.push(format!("the mounts cannot be read: {e}")),
    }
    if let Err(e) = network::remove_unused_chains().await {
        faults.push(format!("packet filter rules: {e}"));
    }
    for root in cgroup_roots() {
        for driver in [CgroupDriver::Cgroupfs, CgroupDriver::Systemd] {
            let path = CgroupName::root().path(driver);
            remove_empty_cgroups(&root.join(path.trim_start_matches('/')));
        }
    }
    faults
}

/// Mount points below `dir`, deepest first.
fn mounts_under(mountinfo: &str, dir: &Path) -> Vec<PathBuf> {
    let points = mountinfo
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(unescape);
    let mut below: Vec<PathBuf> = points.filter(|p| p.starts_with(dir)).collect();
    // Of several mounts on one point the last one is on top and is unmounted first.
    below.reverse();
    below.sort_by_key(|p| std::cmp::Reverse(p.components().count()));
    below
}

/// mountinfo writes blanks and the like as `\040` (proc(5)).
fn unescape(field: &str) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let code = (byte == b'\\').then(|| tail.get(..3)).flatten();
        let octal = code
            .and_then(|c| std::str::from_utf8(c).ok())
            .and_then(|c| u8::from_str_radix(c, 8).ok());
        match octal {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from(
        String::from_utf8_lossy(&out).into_owned(),
    ))
}

/// Every hierarchy's root: one on cgroup v2, one a controller on v1.
fn cgroup_roots() -> Vec<PathBuf> {
    let base = Path::new("/sys/fs/cgroup");
    let mut roots = vec![base.to_path_buf()];
    if !crate::host_fs::exists(base.join("cgroup.controllers")) {
        let entries = crate::host_fs::read_dir(base).into_iter().flatten().flatten();
        roots.extend(entries.map(|e| e.path()).filter(|p| crate::host_fs::is_dir(p)));
    }
    roots
}

/// Removes a cgroup and those below it, as far as nothing runs in them: another cluster may share the tree.
fn remove_empty_cgroups(path: &Path) {
    let below = crate::host_fs::read_dir(path).into_iter().flatten().flatten();
    let sorted: BTreeMap<_, _> = below
        .filter(|e| crate::host_fs::is_dir(e.path()))
        .map(|e| (e.path(), ()))
        .collect();
    for child in sorted.keys() {
        remove_empty_cgroups(child);
    }
    if let Err(e) = crate::host_fs::remove_dir(path)
        && e.kind() != io::ErrorKind::NotFound
    {
        tracing::debug!(path = %path.display(), error = %e, "cannot remove a cgroup");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_come_deepest_first_and_only_from_the_directory() {
        let mountinfo = "\
1 0 0:1 / / rw - ext4 /dev/x rw\n\
2 1 0:2 / /d/run rw - tmpfs t rw\n\
3 2 0:3 / /d/run/pods/a\\040b rw - tmpfs t rw\n\
4 1 0:4 / /data rw - tmpfs t rw\n";
        let found = mounts_under(mountinfo, Path::new("/d"));
        assert_eq!(found, [PathBuf::from("/d/run/pods/a b"), PathBuf::from("/d/run")]);
    }
}
