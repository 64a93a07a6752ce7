//! File permissions: everything that knarr stores on a host is closed to the host's other users: keys, tokens, Secrets in
//! pods' volumes, the store, logs and sockets.
//!
//! Everything is below the data directory, which only its owner can enter (0700), like the directories in it. Directories
//! and files that an earlier version created with wider permissions are closed at every start, before anything is served.
//! Symbolic links below the data directory are not followed: one in place of a directory is an error. The path of the data
//! directory itself may contain links, because the administrator chooses it.
//!
//! A process that runs no containers has umask 077. One that runs containers has umask 022, even if it was started with
//! another one, because containerd, runc and the CNI plugins inherit it, and containers need the files that these create (a
//! `resolv.conf`, a `hostPath` of type DirectoryOrCreate) with the modes that Kubernetes documents. There the mode of the data
//! directory protects what is below it, and files of keys are created with mode 0600.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::dir::Dir;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fchmod, fstat, umask};

use crate::command::Failure;

/// What the process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It runs containers.
    Node,
    /// It has the cluster's keys and Secrets.
    Server,
    /// It is only a client of a cluster.
    Client,
}

/// Directories of the data directory that other users must not enter.
const DIRECTORIES: [&str; 8] = [
    "cni",
    "containerd",
    "containers",
    "kubelet",
    "logs",
    "pki",
    "run",
    "store",
];
/// Those of them whose files are closed, too: only knarr uses them.
const SECRET_FILES: [&str; 2] = ["pki", "store"];
/// The file of the data directory's lock; a directory that has it is a data directory.
pub const LOCK_FILE: &str = "knarr.pid";
/// Files of the data directory itself.
const FILES: [&str; 3] = [LOCK_FILE, "audit.log", "kubelet.kubeconfig"];

const OTHERS: u32 = 0o077;
const DIRECTORY: Mode = Mode::S_IRWXU;

/// Sets the umask, and keeps the memory of a process that has keys out of core dumps and from other processes of its
/// user. To be called while the process has one thread.
pub fn restrict_process(role: Role) -> Result<(), Failure> {
    umask(Mode::from_bits_truncate(match role {
        Role::Node => 0o022,
        Role::Server | Role::Client => 0o077,
    }));
    if role == Role::Client {
        return Ok(());
    }
    nix::sys::prctl::set_dumpable(false)
        .map_err(|e| Failure::new("cannot disable core dumps, which would contain keys").because(e))
}

/// Creates the data directory, or closes an existing one. A directory that is open to other users, is not empty, and was
/// never a data directory is an error and is not changed: it was probably named by accident.
pub fn make_data_dir(path: &Path) -> Result<(), Failure> {
    let failed = |what: &str, e: io::Error| {
        Failure::new(format!("cannot {what} the data directory {}", path.display())).because(e)
    };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|e| failed("create", e))?;
    }
    match DirBuilder::new().mode(DIRECTORY.bits()).create(path) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(failed("create", e)),
        _ => {}
    }
    let directory = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY)
        .open(path)
        .map_err(|e| failed("open", e))?;
    let metadata = directory.metadata().map_err(|e| failed("open", e))?;
    let own = nix::unistd::geteuid();
    if metadata.uid() != own.as_raw() {
        return Err(Failure::new(format!(
            "the owner of the data directory {} is user {}, but knarr runs as user {own}: change its owner, or choose another directory with --data-dir",
            path.display(),
            metadata.uid(),
        )));
    }
    if metadata.mode() & OTHERS == 0 {
        return Ok(());
    }
    let is_ours = path.join(LOCK_FILE).symlink_metadata().is_ok();
    let mut entries = std::fs::read_dir(path).map_err(|e| failed("read", e))?;
    let is_foreign = |entry: io::Result<std::fs::DirEntry>| {
        entry.map_or(true, |e| {
            let name = e.file_name();
            // A new file system has lost+found; the administrator copies the keys to further servers of one etcd.
            name != "lost+found" && !DIRECTORIES.iter().chain(&FILES).any(|own| name == *own)
        })
    };
    if !is_ours && entries.any(is_foreign) {
        return Err(Failure::new(format!(
            "the directory {} is open to other users (mode {:04o}), is not empty and was never a data directory: choose another with --data-dir, or close it with chmod 0700",
            path.display(),
            metadata.mode() & 0o7777,
        )));
    }
    directory
        .set_permissions(std::fs::Permissions::from_mode(DIRECTORY.bits()))
        .map_err(|e| failed("close", e))
}

/// Creates missing directories of the data directory, closed to other users.
pub fn make(data_dir: &Path, names: &[&str]) -> Result<(), Failure> {
    for name in names {
        let path = data_dir.join(name);
        match DirBuilder::new().mode(DIRECTORY.bits()).create(&path) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                return Err(Failure::new(format!("cannot create {}", path.display())).because(e));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Closes the directories and files that an earlier version created with wider permissions, without following links.
pub fn repair(data_dir: &Path) -> Result<(), Failure> {
    let failed = |name: &str, e: io::Error| {
        let path = data_dir.join(name);
        Failure::new(format!("cannot close {} to other users", path.display())).because(e)
    };
    let root = File::open(data_dir).map_err(|e| failed("", e))?;
    for name in DIRECTORIES {
        let Some(directory) = open(&root, name, OFlag::O_DIRECTORY).map_err(|e| failed(name, e))? else {
            continue;
        };
        close(&directory, DIRECTORY).map_err(|e| failed(name, e))?;
        if SECRET_FILES.contains(&name) {
            close_files(directory).map_err(|e| failed(name, e))?;
        }
    }
    for name in FILES {
        if let Some(file) = open(&root, name, OFlag::empty()).map_err(|e| failed(name, e))? {
            close(&file, Mode::S_IRUSR | Mode::S_IWUSR).map_err(|e| failed(name, e))?;
        }
    }
    Ok(())
}

/// `None` if it does not exist. A link is an error; opening a FIFO does not block.
fn open(below: &impl AsFd, name: &str, kind: OFlag) -> io::Result<Option<File>> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | kind;
    match openat(below, name, flags, Mode::empty()) {
        Ok(fd) => Ok(Some(fd.into())),
        Err(nix::errno::Errno::ENOENT) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Removes the permissions of group and others, and leaves those of the owner.
fn close(open: &File, at_most: Mode) -> io::Result<()> {
    let mode = Mode::from_bits_truncate(fstat(open)?.st_mode);
    if mode.bits() & OTHERS != 0 {
        fchmod(open, mode & at_most)?;
    }
    Ok(())
}

/// Closes the regular files in a directory, not those in directories below it.
fn close_files(directory: File) -> io::Result<()> {
    let below = directory.try_clone()?;
    let mut entries = Dir::from_fd(directory.into())?;
    for entry in entries.iter() {
        let entry = entry?;
        if entry.file_type() != Some(nix::dir::Type::File) {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(file) = open(&below, &name, OFlag::empty())? {
            close(&file, Mode::S_IRUSR | Mode::S_IWUSR)?;
        }
    }
    Ok(())
}

/// Writes a file that only its owner can read, atomically. An existing file is replaced, independent of its mode, and a
/// link is replaced, not followed; the new file is never open to others, because it is created under another name.
pub fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let attempt = || -> io::Result<()> {
        let directory = path.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(directory)?;
        // Created with O_EXCL and mode 0600.
        let mut part = tempfile::Builder::new()
            .prefix(".knarr-")
            .tempfile_in(directory)?;
        part.write_all(text.as_bytes())?;
        part.as_file().sync_all()?;
        part.persist(path)?;
        File::open(directory)?.sync_all()
    };
    attempt().map_err(|e| Failure::new(format!("cannot write {}", path.display())).because(e))
}

#[cfg(test)]
mod tests;
