//! How much a tree takes: blocks really used, each file once however many names it has.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use rustix::fs::Stat;

use super::dir::{Dir, Kind, Links, invalid};

/// What a tree takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub bytes: u64,
    pub inodes: u64,
}

/// Entries that are counted of one tree. More are not: a pod must not keep its kubelet busy by making files, and one that
/// has so many has crossed any limit of inodes.
const ENTRIES_MAX: u64 = 2_000_000;
/// Directories that are held open at a time; deeper ones are counted, but not entered.
const DEPTH_MAX: usize = 512;

#[derive(Default)]
struct Count {
    usage: Usage,
    seen: BTreeSet<u64>,
    entries: u64,
}

impl Count {
    fn add(&mut self, stat: &Stat) {
        let is_dir = Kind::of(stat) == Kind::Directory;
        if stat.st_nlink > 1 && !is_dir && !self.seen.insert(stat.st_ino) {
            return;
        }
        self.usage.bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        self.usage.inodes += 1;
    }
}

/// `None` if it is not there. What cannot be read counts nothing; other file systems mounted in it are not entered.
pub fn usage(path: &Path) -> io::Result<Option<Usage>> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(invalid("not the path of a directory"));
    };
    let missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let found = Dir::open_named(parent).and_then(|parent| Ok((parent.stat(name)?, parent)));
    let (top, parent) = match found {
        Err(error) if missing(&error) => return Ok(None),
        other => other?,
    };
    let mut count = Count::default();
    count.add(&top);
    if Kind::of(&top) != Kind::Directory {
        return Ok(Some(count.usage));
    }
    let mut open = match parent.open_dir(name, Links::Never) {
        Err(error) if missing(&error) => return Ok(None),
        other => vec![(other?, None)],
    };
    // Each level: the directory and what is left to enter of it, once it was read.
    while let Some((dir, left)) = open.last_mut() {
        let left = match left {
            Some(left) => left,
            None => left.insert(read(dir, top.st_dev, &mut count)),
        };
        let Some(name) = left.pop() else {
            open.pop();
            continue;
        };
        if let Ok(child) = dir.open_child(&name)
            && open.len() < DEPTH_MAX
        {
            open.push((child, None));
        }
    }
    Ok(Some(count.usage))
}

/// Counts what is in a directory; the directories in it.
fn read(dir: &Dir, device: u64, count: &mut Count) -> Vec<std::ffi::OsString> {
    let room = ENTRIES_MAX.saturating_sub(count.entries);
    let entries = dir.entries(usize::try_from(room).unwrap_or(usize::MAX));
    let mut directories = Vec::new();
    for entry in entries.unwrap_or_default() {
        count.entries += 1;
        let Ok(stat) = dir.stat(&entry.name) else { continue };
        if stat.st_dev != device {
            continue;
        }
        count.add(&stat);
        if Kind::of(&stat) == Kind::Directory {
            directories.push(entry.name);
        }
    }
    directories
}
