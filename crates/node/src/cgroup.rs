//! Pods' own cgroups, on cgroup v1 and v2: made with the pod's limits before its sandbox, removed after it.
//!
//! The containers' groups below are the runtime's. Of these functions only what concerns the pod's own directory
//! exists; a hierarchy that is not there is passed over. With the systemd driver the groups are slices, and only
//! systemd makes and limits them.

use std::io;
use std::path::{Path, PathBuf};

use crate::host_fs;
use knarr_kubelet::cgroup::{CgroupDriver, CgroupName, properties, weight};
use knarr_kubelet::huge_pages::{self, kernel_name};
use tokio::process::Command;

const ROOT: &str = "/sys/fs/cgroup";
const HUGETLB: &str = "hugetlb";
/// This directory exists where systemd is the init system (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";

/// What a whole pod may use; 0 is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub cpu_shares: i64,
    /// Microseconds.
    pub cpu_period: i64,
    pub cpu_quota: i64,
    pub memory_bytes: i64,
    pub pids: Option<u64>,
    /// Bytes by page size. Of a size that is not named nothing is set.
    pub huge_pages: huge_pages::Amounts,
}

/// Of each the larger: what has room for both.
pub fn larger(one: &Limits, other: &Limits) -> Limits {
    let limit = |a: i64, b: i64| if a == 0 || b == 0 { 0 } else { a.max(b) };
    let mut pages = one.huge_pages.clone();
    for (page, bytes) in &other.huge_pages {
        let most = pages.entry(*page).or_default();
        *most = (*most).max(*bytes);
    }
    Limits {
        cpu_shares: one.cpu_shares.max(other.cpu_shares),
        cpu_period: one.cpu_period.max(other.cpu_period),
        cpu_quota: limit(one.cpu_quota, other.cpu_quota),
        memory_bytes: limit(one.memory_bytes, other.memory_bytes),
        pids: one.pids.zip(other.pids).map(|(a, b)| a.max(b)),
        huge_pages: pages,
    }
}

/// What the group at this path uses, page cache included, if that can be read.
pub fn memory_usage_bytes(group: &str) -> Option<i64> {
    memory_usage_in(Path::new(ROOT), group)
}

fn memory_usage_in(root: &Path, group: &str) -> Option<i64> {
    let group = group.trim_start_matches('/');
    let file = if unified(root) {
        root.join(group).join("memory.current")
    } else {
        root.join("memory").join(group).join("memory.usage_in_bytes")
    };
    host_fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Whether this host uses cgroup v2 only.
pub fn is_unified() -> bool {
    unified(Path::new(ROOT))
}

/// Whether slices can be created on this host.
pub fn has_systemd() -> bool {
    host_fs::exists(SYSTEMD)
}

fn unified(root: &Path) -> bool {
    host_fs::exists(root.join("cgroup.controllers"))
}

fn has_hugetlb(root: &Path) -> io::Result<bool> {
    if !unified(root) {
        return Ok(host_fs::exists(root.join(HUGETLB)));
    }
    let controllers = host_fs::read_to_string(root.join("cgroup.controllers"))?;
    Ok(controllers.split_whitespace().any(|c| c == HUGETLB))
}

/// The directories of this cgroup: one on v2, one per hierarchy on v1.
fn directories(root: &Path, group: &str) -> Vec<PathBuf> {
    let group = group.trim_start_matches('/');
    if unified(root) {
        return vec![root.join(group)];
    }
    let Ok(entries) = host_fs::read_dir(root) else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        // `cpu` and `cpuacct` are often links to one hierarchy.
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        .map(|e| e.path().join(group))
        .collect();
    found.sort();
    found
}

fn set(path: PathBuf, value: String) -> io::Result<()> {
    match host_fs::write(&path, value) {
        // This controller is not here.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Makes the group and sets its limits.
pub async fn ensure(driver: CgroupDriver, group: &CgroupName, limits: &Limits) -> io::Result<()> {
    match driver {
        CgroupDriver::Cgroupfs => ensure_in(Path::new(ROOT), &group.path(driver), limits),
        CgroupDriver::Systemd => {
            let slice = group.slice();
            let properties_changed = properties(
                limits.cpu_shares,
                limits.cpu_quota,
                limits.cpu_period,
                limits.memory_bytes,
                limits.pids,
            );
            if !properties_changed.is_empty() {
                let mut args = vec!["set-property", "--runtime", slice.as_str()];
                args.extend(properties_changed.iter().map(String::as_str));
                systemctl(&args).await?;
            }
            systemctl(&["start", &slice]).await?;
            // systemd knows nothing of huge pages, and leaves their controller to others.
            let (root, path) = (Path::new(ROOT), group.path(driver));
            if unified(root) && !limits.huge_pages.is_empty() && has_hugetlb(root)? {
                let mut at = root.to_path_buf();
                for part in path.split('/').filter(|p| !p.is_empty()) {
                    set(at.join("cgroup.subtree_control"), format!("+{HUGETLB}"))?;
                    at.push(part);
                }
            }
            limit_huge_pages_in(root, &path, &limits.huge_pages)
        }
    }
}

async fn systemctl(args: &[&str]) -> io::Result<()> {
    let out = Command::new("systemctl").args(args).output().await?;
    if out.status.success() {
        return Ok(());
    }
    let properties_changed = String::from_utf8_lossy(&out.stderr);
    let what = format!("systemctl {}: {}", args.join(" "), properties_changed.trim());
    Err(io::Error::other(what))
}

fn ensure_in(root: &Path, group: &str, limits: &Limits) -> io::Result<()> {
    if unified(root) {
        return ensure_unified(root, group, limits);
    }
    let group = group.trim_start_matches('/');
    for (controller, files) in [
        (
            "cpu",
            vec![
                ("cpu.shares", limits.cpu_shares),
                ("cpu.cfs_period_us", limits.cpu_period),
                ("cpu.cfs_quota_us", limits.cpu_quota),
            ],
        ),
        ("memory", vec![("memory.limit_in_bytes", limits.memory_bytes)]),
        ("pids", vec![("pids.max", pids(limits))]),
    ] {
        let hierarchy = root.join(controller);
        if !host_fs::exists(&hierarchy) {
            continue;
        }
        let directory = hierarchy.join(group);
        host_fs::create_dir_all(&directory)?;
        for (file, value) in files.into_iter().filter(|(_, value)| *value > 0) {
            set(directory.join(file), value.to_string())?;
        }
    }
    limit_huge_pages_in(root, group, &limits.huge_pages)
}

/// Limits the huge pages of the cgroup, where this host has a controller for them.
fn limit_huge_pages_in(root: &Path, group: &str, amounts: &huge_pages::Amounts) -> io::Result<()> {
    let group = group.trim_start_matches('/');
    let (directory, limit) = match unified(root) {
        true => (root.join(group), "max"),
        false => (root.join(HUGETLB).join(group), "limit_in_bytes"),
    };
    if amounts.is_empty() || !has_hugetlb(root)? {
        return Ok(());
    }
    host_fs::create_dir_all(&directory)?;
    for (page, bytes) in amounts {
        let page = kernel_name(*page);
        // What is used, and what is promised to mappings that do not use it yet; older kernels know the first only.
        for file in [
            format!("{HUGETLB}.{page}.{limit}"),
            format!("{HUGETLB}.{page}.rsvd.{limit}"),
        ] {
            set(directory.join(file), bytes.to_string())?;
        }
    }
    Ok(())
}

fn pids(limits: &Limits) -> i64 {
    limits.pids.and_then(|n| i64::try_from(n).ok()).unwrap_or(0)
}

fn ensure_unified(root: &Path, group: &str, limits: &Limits) -> io::Result<()> {
    let controllers = host_fs::read_to_string(root.join("cgroup.controllers"))?;
    let desired = ["cpu", "memory", "pids", "io", "cpuset", HUGETLB];
    let enable: Vec<String> = desired
        .iter()
        .filter(|w| controllers.split_whitespace().any(|c| c == **w))
        .map(|w| format!("+{w}"))
        .collect();
    let mut at = root.to_path_buf();
    for part in group.split('/').filter(|p| !p.is_empty()) {
        set(at.join("cgroup.subtree_control"), enable.join(" "))?;
        at.push(part);
        match host_fs::create_dir(&at) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
    }
    set(at.join("cpu.weight"), weight(limits.cpu_shares).to_string())?;
    if limits.cpu_quota > 0 {
        set(
            at.join("cpu.max"),
            format!("{} {}", limits.cpu_quota, limits.cpu_period),
        )?;
    }
    if limits.memory_bytes > 0 {
        set(at.join("memory.max"), limits.memory_bytes.to_string())?;
    }
    if pids(limits) > 0 {
        set(at.join("pids.max"), pids(limits).to_string())?;
    }
    limit_huge_pages_in(root, group, &limits.huge_pages)
}

/// Removes the cgroup once it is empty. One that is not empty stays, and is removed when the next pod is.
pub async fn remove(driver: CgroupDriver, group: &CgroupName) {
    if driver == CgroupDriver::Systemd {
        let slice = group.slice();
        for args in [["stop", &slice], ["revert", &slice]] {
            if let Err(error) = systemctl(&args).await {
                tracing::debug!(slice, %error, "a slice stays");
            }
        }
    }
    remove_in(Path::new(ROOT), &group.path(driver));
}

fn remove_in(root: &Path, group: &str) {
    for directory in directories(root, group) {
        // Groups the runtime left behind are empty by now.
        for entry in host_fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                let _ = host_fs::remove_dir(entry.path());
            }
        }
        let _ = host_fs::remove_dir(&directory);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn limits() -> Limits {
        Limits {
            cpu_shares: 1024,
            cpu_period: 100_000,
            cpu_quota: 50_000,
            memory_bytes: 1 << 20,
            pids: Some(64),
            huge_pages: [(2 << 20, 4 << 20), (1 << 30, 0)].into(),
        }
    }

    #[test]
    fn version_one_has_a_directory_a_controller() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("cpu")).unwrap();
        fs::create_dir(root.path().join("memory")).unwrap();
        fs::create_dir(root.path().join("pids")).unwrap();
        fs::create_dir(root.path().join("hugetlb")).unwrap();
        ensure_in(root.path(), "/kubepods/podx", &limits()).unwrap();
        let read = |p: &str| fs::read_to_string(root.path().join(p)).unwrap();
        assert_eq!(read("cpu/kubepods/podx/cpu.cfs_quota_us"), "50000");
        assert_eq!(read("memory/kubepods/podx/memory.limit_in_bytes"), "1048576");
        assert_eq!(read("pids/kubepods/podx/pids.max"), "64");
        for (file, want) in [
            ("2MB.limit_in_bytes", "4194304"),
            ("2MB.rsvd.limit_in_bytes", "4194304"),
            ("1GB.limit_in_bytes", "0"),
            ("1GB.rsvd.limit_in_bytes", "0"),
        ] {
            assert_eq!(
                read(&format!("hugetlb/kubepods/podx/hugetlb.{file}")),
                want,
                "{file}"
            );
        }
        let used = root.path().join("memory/kubepods/podx/memory.usage_in_bytes");
        fs::write(used, "4096\n").unwrap();
        assert_eq!(memory_usage_in(root.path(), "/kubepods/podx"), Some(4096));
    }

    #[test]
    fn no_limit_is_the_largest() {
        let unlimited = Limits {
            cpu_quota: 0,
            memory_bytes: 1 << 21,
            ..limits()
        };
        for (one, other) in [(limits(), unlimited.clone()), (unlimited.clone(), limits())] {
            assert_eq!(larger(&one, &other), unlimited);
        }
    }

    #[test]
    fn version_two_has_one_directory_and_weights() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "cpu memory hugetlb").unwrap();
        ensure_in(root.path(), "/kubepods/burstable/podx", &limits()).unwrap();
        let read = |p: &str| fs::read_to_string(root.path().join(p)).unwrap();
        assert_eq!(read("cgroup.subtree_control"), "+cpu +memory +hugetlb");
        for (file, want) in [
            ("2MB.max", "4194304"),
            ("2MB.rsvd.max", "4194304"),
            ("1GB.max", "0"),
            ("1GB.rsvd.max", "0"),
        ] {
            let file = format!("kubepods/burstable/podx/hugetlb.{file}");
            assert_eq!(read(&file), want, "{file}");
        }
        assert_eq!(read("kubepods/burstable/podx/cpu.max"), "50000 100000");
        assert_eq!(read("kubepods/burstable/podx/cpu.weight"), "39");
        assert_eq!(read("kubepods/burstable/podx/pids.max"), "64");
        let used = root.path().join("kubepods/burstable/podx/memory.current");
        fs::write(used, "4096\n").unwrap();
        assert_eq!(
            memory_usage_in(root.path(), "/kubepods/burstable/podx"),
            Some(4096)
        );
    }

    #[test]
    fn a_cgroup_is_removed_with_its_empty_children() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("cpu/kubepods/podx/abc")).unwrap();
        remove_in(root.path(), "/kubepods/podx");
        assert!(root.path().join("cpu/kubepods").exists());
        assert!(!root.path().join("cpu/kubepods/podx").exists());
    }
}
