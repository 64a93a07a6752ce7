//! How full filesystems are, and how much of them a directory takes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;

/// One filesystem's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filesystem {
    pub device: u64,
    pub available_bytes: u64,
    pub capacity_bytes: u64,
    pub used_bytes: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// The filesystem on which `path` lies, or would lie.
pub fn filesystem(path: &Path) -> Option<Filesystem> {
    let there = path.ancestors().find(|p| p.exists())?;
    let device = fs::metadata(there).ok()?.dev();
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

/// The filesystem whose directory `path` is; none where nothing is there.
pub fn mounted(path: &Path) -> Option<Filesystem> {
    fs::metadata(path).ok().filter(fs::Metadata::is_dir)?;
    filesystem(path)
}

/// What a directory takes: blocks really used, each file once however many names it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    pub bytes: u64,
    pub inodes: u64,
}

/// Entries looked at of one directory tree. More are not counted: a pod must not keep its kubelet busy by making
/// files, and one that has so many has crossed any limit of inodes.
const ENTRIES_MAX: u64 = 2_000_000;

/// `None` if it is not there. What cannot be read counts nothing; other filesystems mounted in it are not entered.
pub fn taken(directory: &Path) -> Option<Taken> {
    let top = fs::symlink_metadata(directory).ok()?;
    let device = top.dev();
    let mut sum = Taken::default();
    let mut seen = BTreeSet::new();
    let mut count = |meta: &fs::Metadata| {
        if meta.nlink() > 1 && !meta.is_dir() && !seen.insert(meta.ino()) {
            return;
        }
        sum.bytes += meta.blocks() * 512;
        sum.inodes += 1;
    };
    count(&top);
    let mut entries = 0;
    let mut open: Vec<PathBuf> = vec![directory.to_path_buf()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            entries += 1;
            if meta.dev() != device || entries > ENTRIES_MAX {
                continue;
            }
            count(&meta);
            if meta.is_dir() {
                open.push(entry.path());
            }
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
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
