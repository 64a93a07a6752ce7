//! What knarr keeps on a machine is closed to that machine's other users: keys, tokens, Secrets in pods' volumes, the
//! store, logs and sockets.
//!
//! Everything lies below the data directory, which only its owner enters (0700), and so do the directories in it that
//! hold the most. Directories and files that an earlier version made wider are closed again at every start, before
//! anything is served. Nothing is followed on the way: a symbolic link in place of a directory is an error. The data
//! directory itself may be reached through links, because its path is the administrator's.
//!
//! A process that runs no containers makes everything with umask 077. One that does has umask 022, whatever it was
//! started with, because containerd, runc and the CNI plugins inherit it, and containers need what they make (a
//! `resolv.conf`, a `hostPath` of type DirectoryOrCreate) with the modes that Kubernetes documents; there the data
//! directory closes what is below it, and files of keys are made with mode 0600 by name.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::dir::Dir;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fchmod, fstat, umask};

use crate::command::Failure;
use crate::lock;

/// What the process is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It runs containers.
    Node,
    /// It holds the cluster's keys and Secrets.
    Server,
    /// It asks a cluster for something.
    Client,
}

/// Directories of the data directory that hold what others must not read, and are closed with what lies in them.
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
/// Those of them whose files are knarr's alone, and secret.
const SECRET_FILES: [&str; 2] = ["pki", "store"];
/// Files of the data directory itself.
const FILES: [&str; 3] = [lock::FILE, "audit.log", "kubelet.kubeconfig"];

const OTHERS: u32 = 0o077;
const DIRECTORY: Mode = Mode::S_IRWXU;

/// Sets the umask, and keeps the memory of a process that holds keys out of core dumps and from other processes of its
/// user. Call it while there is one thread.
pub fn close_process(role: Role) -> Result<(), Failure> {
    umask(Mode::from_bits_truncate(match role {
        Role::Node => 0o022,
        Role::Server | Role::Client => 0o077,
    }));
    if role == Role::Client {
        return Ok(());
    }
    nix::sys::prctl::set_dumpable(false)
        .map_err(|e| Failure::new("cannot keep keys out of core dumps").because(e))
}

/// Makes the data directory, or closes the one that is there. One that is open to others, not empty, and was never a data
/// directory is left alone: it is somebody's by mistake.
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
    let about = directory.metadata().map_err(|e| failed("open", e))?;
    let own = nix::unistd::geteuid();
    if about.uid() != own.as_raw() {
        return Err(Failure::new(format!(
            "the data directory {} belongs to user {}, but knarr runs as user {own}: give it to that user, or choose another with --data-dir",
            path.display(),
            about.uid(),
        )));
    }
    if about.mode() & OTHERS == 0 {
        return Ok(());
    }
    let is_ours = path.join(lock::FILE).symlink_metadata().is_ok();
    let mut entries = std::fs::read_dir(path).map_err(|e| failed("read", e))?;
    let is_foreign = |entry: io::Result<std::fs::DirEntry>| {
        entry.map_or(true, |e| {
            let name = e.file_name();
            // A disk that was just formatted has one directory; servers of one etcd are given each other's keys.
            name != "lost+found" && !DIRECTORIES.iter().chain(&FILES).any(|own| name == *own)
        })
    };
    if !is_ours && entries.any(is_foreign) {
        return Err(Failure::new(format!(
            "the directory {} is open to other users (mode {:04o}), is not empty and was never a data directory: choose another with --data-dir, or close it (chmod 0700)",
            path.display(),
            about.mode() & 0o7777,
        )));
    }
    directory
        .set_permissions(std::fs::Permissions::from_mode(DIRECTORY.bits()))
        .map_err(|e| failed("close", e))
}

/// Makes directories of the data directory that are missing, closed.
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

/// Closes what an earlier version left open in the data directory, without following links.
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

/// `None` if there is none. A link is an error; a FIFO is not waited for.
fn open(below: &impl AsFd, name: &str, kind: OFlag) -> io::Result<Option<File>> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | kind;
    match openat(below, name, flags, Mode::empty()) {
        Ok(fd) => Ok(Some(fd.into())),
        Err(nix::errno::Errno::ENOENT) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Takes the permissions of others from what is open, and nothing from its owner.
fn close(open: &File, at_most: Mode) -> io::Result<()> {
    let mode = Mode::from_bits_truncate(fstat(open)?.st_mode);
    if mode.bits() & OTHERS != 0 {
        fchmod(open, mode & at_most)?;
    }
    Ok(())
}

/// The plain files in a directory, not those in directories below it.
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

/// A file that only its owner reads, written whole or not at all. What stands at the path is replaced, whatever its mode,
/// and not followed if it is a link; the new file is never open to others, because it is made anew under another name.
pub fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let attempt = || -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(folder)?;
        // Made with O_EXCL and mode 0600.
        let mut part = tempfile::Builder::new().prefix(".knarr-").tempfile_in(folder)?;
        part.write_all(text.as_bytes())?;
        part.as_file().sync_all()?;
        part.persist(path)?;
        File::open(folder)?.sync_all()
    };
    attempt().map_err(|e| Failure::new(format!("cannot write {}", path.display())).because(e))
}

#[cfg(test)]
mod tests;
