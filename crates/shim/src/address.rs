//! The socket of a pod's shim: `/run/containerd/s/HASH`, as Go's shim names it.
//!
//! The name follows from containerd's address, the namespace and the group, so that each `start` of a group finds the
//! shim that serves it. A lock on the directory keeps two of them from making the same socket.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, chmodat, flock, mkdirat, openat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use sha2::{Digest, Sha256};

const DIRECTORY: &str = "/run/containerd/s";
/// Connections that wait to be accepted: one for each container of the pod while containerd restarts.
const BACKLOG: i32 = 128;

/// The address of a group's shim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    path: PathBuf,
}

/// What [`Address::claim`] found.
pub enum Claimed {
    /// A shim serves the group.
    Served,
    /// No process does. Here is the socket that listens; the process that accepts is the group's shim.
    Listener(OwnedFd),
}

impl Address {
    pub fn new(containerd: &str, namespace: &str, group: &str) -> Self {
        let name = Path::new(containerd).join(namespace).join(group);
        let digest = Sha256::digest(name.as_os_str().as_encoded_bytes());
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Address {
            path: Path::new(DIRECTORY).join(hex),
        }
    }

    /// From the text in a bundle.
    pub fn parse(text: &str) -> Option<Self> {
        let path = Path::new(text.trim().strip_prefix("unix://")?);
        (path.parent() == Some(Path::new(DIRECTORY))).then(|| Address { path: path.into() })
    }

    /// As containerd expects it.
    pub fn to_text(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    /// Finds the shim that serves, or makes its socket.
    pub fn claim(&self) -> io::Result<Claimed> {
        make_directory(Path::new(DIRECTORY))?;
        let _lock = lock()?;
        if self.is_served() {
            return Ok(Claimed::Served);
        }
        self.remove();
        let socket = socket()?;
        let address = SocketAddrUnix::new(self.path.as_path())?;
        bind(&socket, &address)?;
        // No client can connect before it listens.
        chmodat(
            CWD,
            self.path.as_path(),
            Mode::RUSR | Mode::WUSR,
            rustix::fs::AtFlags::empty(),
        )?;
        listen(&socket, BACKLOG)?;
        Ok(Claimed::Listener(socket))
    }

    /// Removes the socket if no process accepts its connections. Returns whether one does.
    pub fn remove_if_abandoned(&self) -> io::Result<bool> {
        // Without the lock it could be the new socket of another `start`.
        let _lock = lock()?;
        let served = self.is_served();
        if !served {
            self.remove();
        }
        Ok(served)
    }

    /// Whether a process accepts connections.
    fn is_served(&self) -> bool {
        let connected = socket().and_then(|socket| {
            let address = SocketAddrUnix::new(self.path.as_path())?;
            match connect(&socket, &address) {
                // Its backlog is full: it is there, and busy.
                Ok(()) | Err(Errno::AGAIN) => Ok(()),
                Err(e) => Err(e.into()),
            }
        });
        connected.is_ok()
    }

    pub fn remove(&self) {
        let _ = rustix::fs::unlink(self.path.as_path());
    }
}

/// The directory, locked until it is closed.
fn lock() -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let directory = openat(CWD, DIRECTORY, flags, Mode::empty())?;
    flock(&directory, FlockOperation::LockExclusive)?;
    Ok(directory)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

fn make_directory(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent().filter(|parent| parent.components().count() > 1) {
        make_directory(parent)?;
    }
    match mkdirat(CWD, path, Mode::from_raw_mode(0o711)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_that_of_gos_shim() {
        // sha256 of "/run/containerd/containerd.sock/k8s.io/abc".
        let address = Address::new("/run/containerd/containerd.sock", "k8s.io", "abc");
        let text = address.to_text();
        assert_eq!(text.len(), "unix:///run/containerd/s/".len() + 64);
        assert_eq!(Address::parse(&text), Some(address.clone()));
        assert_ne!(Address::new("/run/other.sock", "k8s.io", "abc"), address);
    }

    #[test]
    fn a_text_that_names_another_file_is_no_address() {
        for text in [
            "",
            "/run/containerd/s/a",
            "unix:///etc/passwd",
            "unix:///run/containerd/s/../../passwd",
        ] {
            assert_eq!(Address::parse(text), None, "{text:?}");
        }
    }
}
