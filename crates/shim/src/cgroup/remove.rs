//! The removal of control groups whose processes have ended.

use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, unlinkat};
use rustix::io::Errno;

use super::MAX_DEPTH;

/// Removes a group and the groups that the container made in it. One that is gone is removed; one that has processes is
/// `ResourceBusy`.
pub fn remove(group: &Path) -> io::Result<()> {
    remove_below(group, 0)
}

fn remove_below(group: &Path, depth: usize) -> io::Result<()> {
    match unlinkat(CWD, group, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // It has processes or groups.
        Err(Errno::BUSY | Errno::NOTEMPTY) if depth < MAX_DEPTH => {}
        Err(e) => return Err(e.into()),
    }
    for entry in std::fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_below(&entry.path(), depth + 1)?;
        }
    }
    match unlinkat(CWD, group, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
