//! The control groups of a sandbox (cgroup v1, also hybrid): made by its process before it leaves the host's file systems,
//! removed by the shim.
//!
//! With cgroup v2 alone devices are limited by a program in the kernel; the OCI runtime makes sandboxes there.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::cgroup::v1::CONTROLLERS;
use crate::cgroup::{ROOT, is_unified, remove};

/// Hierarchies without a controller.
const NAMED: [&str; 2] = ["systemd", "unified"];
const PROCESSES: &str = "cgroup.procs";
/// What every container may use, as with runc: making any device node, and these.
const DEVICES: [&str; 11] = [
    "c *:* m",
    "b *:* m",
    "c 1:3 rwm",
    "c 1:8 rwm",
    "c 1:7 rwm",
    "c 5:0 rwm",
    "c 1:5 rwm",
    "c 1:9 rwm",
    "c 136:* rwm",
    "c 5:2 rwm",
    "c 10:200 rwm",
];

/// Whether sandboxes can be made here. Without the controller of devices nothing would deny them, and runc makes no container.
pub fn are_known() -> bool {
    !is_unified() && Path::new(ROOT).join("devices").join(PROCESSES).exists()
}

/// The hierarchies there are, and the group in each.
pub fn groups(cgroup: &str) -> Vec<(&'static str, PathBuf)> {
    let hierarchies = CONTROLLERS.iter().chain(&NAMED).copied();
    hierarchies
        .map(|name| (name, Path::new(ROOT).join(name)))
        .filter(|(_, mount)| mount.join(PROCESSES).exists())
        .map(|(name, mount)| (name, mount.join(cgroup)))
        .collect()
}

/// Makes the groups, limits them, and moves this process into them.
pub fn enter(cgroup: &str, cpu_shares: Option<u64>) -> io::Result<()> {
    for (name, group) in groups(cgroup) {
        create(name, &group)?;
        match (name, cpu_shares) {
            ("devices", _) => {
                std::fs::write(group.join("devices.deny"), "a")?;
                for rule in DEVICES {
                    std::fs::write(group.join("devices.allow"), rule)?;
                }
            }
            ("cpu", Some(shares)) if shares > 0 => {
                std::fs::write(group.join("cpu.shares"), shares.to_string())?;
            }
            _ => {}
        }
        std::fs::write(group.join(PROCESSES), "0")?;
    }
    Ok(())
}

/// Makes a group and those above it. A group of cpuset takes the CPUs and memory nodes from the one above it.
fn create(hierarchy: &str, group: &Path) -> io::Result<()> {
    let mount = Path::new(ROOT).join(hierarchy);
    let mut above: Vec<&Path> = group.ancestors().take_while(|path| *path != mount).collect();
    above.reverse();
    for path in above {
        match DirBuilder::new().mode(0o755).create(path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        if hierarchy == "cpuset" {
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let own = std::fs::read_to_string(path.join(file))?;
                if own.trim().is_empty()
                    && let Some(parent) = path.parent()
                {
                    std::fs::write(path.join(file), std::fs::read_to_string(parent.join(file))?)?;
                }
            }
        }
    }
    Ok(())
}

/// Removes the groups; `ResourceBusy` while a process is in one.
pub fn remove(cgroup: &str) -> io::Result<()> {
    for (_, group) in groups(cgroup) {
        remove::remove(&group)?;
    }
    Ok(())
}
