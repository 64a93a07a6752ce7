//! Makes emptyDirs: directories of the node's disk, or mounts of memory or huge pages.

use std::io;
use std::path::Path;

use knarr_kubelet::empty_dir::Medium;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{HUGETLBFS_MAGIC, TMPFS_MAGIC, statfs};

use super::layout::POD_DIR_MODE;
use super::mounts;
use crate::untrusted_fs::Dir;

/// Makes the volume where it is not there yet, for every user of the pod to write to.
pub(super) fn make(path: &Path, medium: Medium, group: Option<u32>) -> io::Result<()> {
    Dir::make(path, POD_DIR_MODE)?;
    match medium {
        Medium::Disk => {}
        Medium::Memory { size_bytes } => memory(path, size_bytes)?,
        Medium::HugePages { page_bytes } => huge_pages(path, page_bytes)?,
    }
    // Now that it is mounted.
    let made = Dir::open(path)?;
    let mut mode = 0o777;
    if let Some(group) = group {
        made.set_group(group)?;
        // What is made in it belongs to the group too.
        mode = 0o2777;
    }
    made.set_mode(mode)
}

fn memory(path: &Path, size_bytes: Option<i64>) -> io::Result<()> {
    if mounts::is_mount_point(path)? && statfs(path)?.filesystem_type() == TMPFS_MAGIC {
        return Ok(());
    }
    let size = size_bytes.map(|bytes| format!("size={bytes}"));
    // What is kept in memory on purpose is not written to a disk; kernels before 6.4 cannot promise that.
    let unswapped: Vec<&str> = size.as_deref().into_iter().chain(["noswap"]).collect();
    let tmpfs = |options: Option<&str>| mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), options);
    match tmpfs(Some(&unswapped.join(","))) {
        Err(Errno::EINVAL) => tmpfs(size.as_deref()),
        done => done,
    }
    .map_err(io::Error::from)
}

/// The kernel provides the pages: the file system is mounted without a size.
fn huge_pages(path: &Path, page_bytes: i64) -> io::Result<()> {
    if mounts::is_mount_point(path)? {
        let there = statfs(path)?;
        if there.filesystem_type() == HUGETLBFS_MAGIC {
            let size = there.block_size();
            return match size == page_bytes {
                true => Ok(()),
                false => Err(io::Error::other(format!(
                    "mounted dir {} pagesize '{size}' and requested medium size '{page_bytes}' differ",
                    path.display()
                ))),
            };
        }
    }
    let options = format!("pagesize={page_bytes}");
    mount(
        Some("nodev"),
        path,
        Some("hugetlbfs"),
        MsFlags::empty(),
        Some(options.as_str()),
    )
    .map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::kubelet::machine::Machine;

    /// Unmounted when dropped.
    struct Mounted(tempfile::TempDir);

    impl Drop for Mounted {
        fn drop(&mut self) {
            for path in mounts::below(self.0.path()).into_iter().flatten() {
                if let Err(errno) = nix::mount::umount(&path) {
                    eprintln!("still mounted: {}: {errno}", path.display());
                }
            }
        }
    }

    /// Needs root, to mount; without it, prints that and passes.
    fn place() -> Option<Mounted> {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("not run: only root mounts");
            return None;
        }
        Some(Mounted(tempfile::tempdir().unwrap()))
    }

    fn options(path: &Path) -> String {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let path = path.to_string_lossy();
        let line = table.lines().find(|l| l.split(' ').nth(4) == Some(&path));
        line.unwrap_or_default().to_string()
    }

    #[test]
    fn l2_memory_is_mounted_once_with_its_size() {
        let Some(place) = place() else { return };
        let path = place.0.path().join("m");
        let medium = Medium::Memory {
            size_bytes: Some(8 << 20),
        };
        make(&path, medium, Some(1234)).unwrap();
        make(&path, medium, Some(1234)).unwrap();
        assert!(options(&path).contains("size=8192k"), "{}", options(&path));
        assert_eq!(
            mounts::below(place.0.path()).unwrap(),
            std::slice::from_ref(&path)
        );
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o2777);
    }

    #[test]
    fn l2_huge_pages_are_mounted_once_and_of_one_size() {
        let Some(place) = place() else { return };
        let sizes: Vec<i64> = Machine::Host.huge_pages().into_keys().collect();
        for page_bytes in &sizes {
            let path = place.0.path().join(page_bytes.to_string());
            let medium = Medium::HugePages {
                page_bytes: *page_bytes,
            };
            make(&path, medium, None).unwrap();
            make(&path, medium, None).unwrap();
            assert_eq!(statfs(&path).unwrap().filesystem_type(), HUGETLBFS_MAGIC);
            assert!(options(&path).contains("pagesize="), "{}", options(&path));
            let other = Medium::HugePages {
                page_bytes: page_bytes * 2,
            };
            let why = make(&path, other, None).unwrap_err().to_string();
            assert!(why.contains("differ"), "{why}");
        }
        assert_eq!(mounts::below(place.0.path()).unwrap().len(), sizes.len());
        // A size that no machine has.
        let odd = Medium::HugePages { page_bytes: 3 << 20 };
        assert!(make(&place.0.path().join("odd"), odd, None).is_err());
    }
}
