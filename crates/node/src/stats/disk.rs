//! The usage of file systems, and of directories in them.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::statvfs::statvfs;
use tracing::debug;

use crate::host_fs;
use crate::untrusted_fs;
pub use crate::untrusted_fs::Usage as Taken;

/// The stats of one file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filesystem {
    pub device: u64,
    pub available_bytes: u64,
    pub capacity_bytes: u64,
    pub used_bytes: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// The file system of `path`, or of its nearest existing parent.
pub fn filesystem(path: &Path) -> Option<Filesystem> {
    let there = path.ancestors().find(|p| host_fs::exists(p))?;
    let device = host_fs::metadata(there).ok()?.dev();
    let stat = statvfs(there).ok()?;
    let unit = stat.fragment_size();
    let capacity = stat.blocks().saturating_mul(unit);
    Some(Filesystem {
        device,
        available_bytes: stat.blocks_available().saturating_mul(unit),
        capacity_bytes: capacity,
        used_bytes: capacity.saturating_sub(stat.blocks_free().saturating_mul(unit)),
        inodes: stat.files(),
        inodes_free: stat.files_free(),
    })
}

/// The file system mounted at `path`; none where nothing is mounted.
pub fn mounted(path: &Path) -> Option<Filesystem> {
    host_fs::metadata(path).ok().filter(std::fs::Metadata::is_dir)?;
    filesystem(path)
}

/// What a directory uses, as far as it can be read.
pub fn taken(directory: &Path) -> Option<Taken> {
    match untrusted_fs::usage(directory) {
        Ok(taken) => taken,
        Err(error) => {
            debug!(path = %directory.display(), %error, "cannot count what a directory takes");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn t8_a_directory_takes_its_blocks_each_file_once_and_follows_no_links() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("a");
        fs::create_dir_all(inside.join("b")).unwrap();
        fs::write(inside.join("b/file"), vec![1_u8; 100_000]).unwrap();
        fs::hard_link(inside.join("b/file"), inside.join("again")).unwrap();
        std::os::unix::fs::symlink("/usr", inside.join("elsewhere")).unwrap();
        let taken = taken(&inside).unwrap();
        assert!((100_000..200_000).contains(&taken.bytes), "{taken:?}");
        assert_eq!(taken.inodes, 4, "two directories, a file, a link");
        assert_eq!(super::taken(&dir.path().join("none")), None);
    }

    #[test]
    fn t8_a_filesystem_is_found_by_what_will_lie_on_it() {
        let dir = tempfile::tempdir().unwrap();
        let found = filesystem(&dir.path().join("not/yet/there")).unwrap();
        assert_eq!(found.device, fs::metadata(dir.path()).unwrap().dev());
        assert!(found.capacity_bytes >= found.available_bytes);
    }
}
