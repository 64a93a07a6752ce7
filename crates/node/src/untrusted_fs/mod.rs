//! The one way to files that containers can change: volumes, root file systems, logs, termination messages, subPaths,
//! records of storage, plugins' directories (SPEC A3).
//!
//! What it promises:
//!
//! - A path is opened beneath a directory descriptor with `openat2(2)`: neither `..`, an absolute path, a symbolic link
//!   that leads out, nor a magic link of `/proc` leaves the directory, also when a container exchanges directories and
//!   links meanwhile. Where no link is legitimate, none is followed.
//! - A device, FIFO or socket is never opened: a file is first opened as a path only (`O_PATH`) and its type checked;
//!   the descriptor that is read is another one of the same inode. Nothing here blocks on what a container has made.
//! - Every read has a limit in bytes, every walk a limit in entries, every removal a limit in open descriptors.
//! - Walks and removals follow no link and enter no other file system.
//! - New files are created exclusively (`O_EXCL`) in a directory that is held open.
//! - What may take long runs off the async workers, bounded in number and time ([`Pool`]): an NFS server that does not
//!   answer delays only the pods that use it.
//!
//! `openat2` is called through rustix: `pathrs` resolves links as in a chroot and emulates the call where the kernel
//! lacks it, `cap-std` opens devices, and neither bounds what is read; beyond the one system call nothing would be
//! saved. A kernel without it (before 5.6) cannot run pods; [`check_kernel`] reports that when a node starts.

mod dir;
mod mount;
mod pool;
mod remove;
#[cfg(test)]
mod tests;
mod usage;
mod walk;

use std::io;

pub use dir::{Dir, Entry, Kind, Links, NewFile};
pub use mount::{bind, unmount_all_at};
pub use pool::{Error, Pool};
pub use remove::{remove, remove_tree};
pub use usage::{Usage, usage};
pub use walk::set_ownership;

/// Fails, with what to do about it, where the kernel cannot open beneath a directory.
pub fn check_kernel() -> io::Result<()> {
    let root = Dir::open(std::path::Path::new("/"))?;
    match root.open_dir(".", Links::Never) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel has no openat2(2); a node needs Linux 5.6 or newer to open its pods' files safely",
        )),
        other => other.map(drop),
    }
}
