//! Mounts by descriptor, so that what is mounted is what was opened, whatever has its name by then.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::fstat;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};

use super::dir::{Dir, Kind, NewFile, invalid};

/// Modes of the mount points of subPaths, as kubelet's.
const DIRECTORY_MODE: u32 = 0o750;
const FILE_MODE: u32 = 0o640;
/// Mounts that may lie on one mount point: what a node has left of several attempts.
const STACKED_MAX: usize = 64;

/// Bind-mounts what is held open (a file or a directory) at `name` in a directory that only root can change. What is mounted there
/// already stays if it is the same; else it is replaced. Running containers keep what they have.
pub fn bind(source: &OwnedFd, parent: &Path, name: &str) -> io::Result<()> {
    let directory = Dir::make(parent, DIRECTORY_MODE)?;
    let desired = fstat(source)?;
    let kind = Kind::of(&desired);
    if !matches!(kind, Kind::File | Kind::Directory | Kind::Socket | Kind::Other) {
        return Err(invalid("a symbolic link cannot be mounted"));
    }
    if let Some(there) = directory.kind(name)? {
        let stat = directory.stat(name)?;
        if (stat.st_dev, stat.st_ino) == (desired.st_dev, desired.st_ino) {
            return Ok(());
        }
        unmount_all_at(&parent.join(name))?;
        match there {
            Kind::Directory => directory.remove_dir(name)?,
            _ => directory.remove_file(name)?,
        }
    }
    match kind {
        Kind::Directory => drop(directory.make_dir(name, DIRECTORY_MODE)?),
        _ => directory.create(
            name,
            NewFile {
                mode: FILE_MODE,
                ..NewFile::default()
            },
        )?,
    }
    let clone =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(source, "", clone)?;
    let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(move_mount(&tree, "", &directory, name, empty)?)
}

/// Unmounts everything that is mounted at a path whose parents only root can change.
pub fn unmount_all_at(path: &Path) -> io::Result<()> {
    for _ in 0..STACKED_MAX {
        match unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Not a mount point, or not there.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::other("too many mounts on one mount point"))
}
