//! The directory of network namespaces, in which containerd mounts one for each pod.
//!
//! The first `ip netns add` on a host makes the directory a shared mount point, and from then on everything that is
//! mounted in it is mounted twice: the namespaces of running pods could never be removed, and those pods would never
//! terminate. So the directory is made a shared mount point before any pod runs, as iproute2 does it; iproute2 then
//! does nothing.

use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};

/// Where containerd and iproute2 keep them.
pub(super) const DIRECTORY: &str = "/run/netns";

/// Makes the directory a shared mount point, if nothing is in it that this would double.
pub(super) fn share(directory: &Path) -> io::Result<()> {
    crate::host_fs::create_dir_all(directory)?;
    let nothing = None::<&str>;
    let shared = || {
        let flags = MsFlags::MS_SHARED | MsFlags::MS_REC;
        mount(nothing, directory, nothing, flags, nothing)
    };
    match shared() {
        // It is no mount point.
        Err(Errno::EINVAL) => {}
        other => return other.map_err(io::Error::from),
    }
    if crate::host_fs::read_dir(directory)?.next().is_some() {
        return Ok(());
    }
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(directory), directory, nothing, flags, nothing)?;
    shared().map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use nix::mount::{MntFlags, umount2};

    use super::*;

    fn times_mounted(directory: &Path) -> usize {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let is_it = |line: &&str| line.split(' ').nth(4) == directory.to_str();
        mounts.lines().filter(is_it).count()
    }

    #[test]
    fn t5_the_netns_directory_is_a_mount_point_before_any_namespace_is_in_it() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().canonicalize().unwrap().join("netns");
        for _ in 0..2 {
            share(&directory).unwrap();
            assert_eq!(
                times_mounted(&directory),
                1,
                "once, however often it is asked for"
            );
        }
        umount2(&directory, MntFlags::MNT_DETACH).unwrap();
        // What is there is not doubled.
        std::fs::write(directory.join("cni-1"), "").unwrap();
        share(&directory).unwrap();
        assert_eq!(times_mounted(&directory), 0);
    }
}
