//! The directory of network namespaces, in which containerd mounts one for each pod.
//!
//! Whoever first runs `ip netns add` on a machine makes the directory a shared mount point, with all that is mounted in it
//! twice from then on: the namespaces of pods that run could never be removed again, and those pods never end. So it is
//! made one before there are any, the way iproute2 does it, which finds it done.

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
    fn t5_the_directory_of_namespaces_is_a_mount_point_before_any_is_in_it() {
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
