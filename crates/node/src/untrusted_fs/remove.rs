//! Removes trees by descriptors: no link is followed, no other file system entered, and a tree as deep as a container can
//! make it needs no more descriptors than any other.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use rustix::fs::renameat_with;

use super::dir::{Dir, Entry, Kind, invalid};

/// Directories that are held open at a time. Deeper ones are moved up and removed from there.
const DEPTH_MAX: usize = 32;
/// Entries that are read at a time.
const BATCH: usize = 4096;

/// Removes a path whose parents only root can change, with everything in it; nothing if it does not exist.
pub fn remove(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(invalid("not the path of a directory"));
    };
    match Dir::open_named(parent) {
        Ok(parent) => remove_tree(&parent, name),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes an entry of a directory with everything in it. Fails where something is mounted in it.
pub fn remove_tree(parent: &Dir, name: impl AsRef<OsStr>) -> io::Result<()> {
    let name = name.as_ref();
    match parent.kind(name)? {
        None => return Ok(()),
        Some(Kind::Directory) => {}
        Some(_) => return parent.remove_file(name),
    }
    let top = match parent.open_child(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|e| mounted(e, name))?,
    };
    empty(top)?;
    parent.remove_dir(name)
}

struct Level {
    dir: Dir,
    /// Its name in the level above.
    name: OsString,
    /// What was read of it and is not removed yet.
    left: Vec<Entry>,
}

/// Removes everything in a directory.
fn empty(top: Dir) -> io::Result<()> {
    let mut moved: u64 = 0;
    let mut levels = vec![Level {
        dir: top,
        name: OsString::new(),
        left: Vec::new(),
    }];
    while let Some(level) = levels.pop() {
        let mut level = level;
        if level.left.is_empty() {
            level.left = level.dir.entries(BATCH)?;
        }
        let Some(entry) = level.left.pop() else {
            if let Some(above) = levels.last() {
                above.dir.remove_dir(&level.name).or_else(unless_refilled)?;
            }
            continue;
        };
        let mut next = None;
        if entry.kind != Kind::Directory {
            level.dir.remove_file(&entry.name)?;
        } else if levels.len() < DEPTH_MAX {
            match level.dir.open_child(&entry.name) {
                Ok(dir) => {
                    next = Some(Level {
                        dir,
                        name: entry.name,
                        left: Vec::new(),
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(mounted(error, &entry.name)),
            }
        } else if let Some(top) = levels.first() {
            moved += 1;
            let to = format!("..moved-{moved}");
            let flags = rustix::fs::RenameFlags::NOREPLACE;
            match renameat_with(&level.dir, &entry.name, &top.dir, &to, flags) {
                // A name that is taken: the next number is tried with the next reading.
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        levels.push(level);
        levels.extend(next);
    }
    Ok(())
}

/// Something was put into a directory that was just emptied: it is read again with the directory above.
fn unless_refilled(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::DirectoryNotEmpty => Ok(()),
        _ => Err(error),
    }
}

fn mounted(error: io::Error, name: &OsStr) -> io::Error {
    match error.kind() {
        io::ErrorKind::CrossesDevices => {
            let name = name.to_string_lossy();
            io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!("something is mounted at {name}"),
            )
        }
        _ => error,
    }
}
