//! Work inside the network namespace of a pod.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;

use nix::sched::{CloneFlags, setns};

const OWN: &str = "/proc/thread-self/ns/net";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot open the network namespace {}", .0.display())]
    Open(PathBuf, #[source] io::Error),
    #[error("{} is the node's own network namespace", .0.display())]
    IsOwn(PathBuf),
    #[error("cannot enter the network namespace {}", .0.display())]
    Enter(PathBuf, #[source] io::Error),
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    #[error("the thread in the network namespace {} panicked", .0.display())]
    Panicked(PathBuf),
}

impl Error {
    /// It does not exist (any more).
    pub fn is_deleted(&self) -> bool {
        matches!(self, Error::Open(_, source) if source.kind() == io::ErrorKind::NotFound)
    }
}

/// A network namespace that is not that of the calling thread.
#[derive(Debug)]
pub struct Namespace {
    path: PathBuf,
    file: File,
}

impl Namespace {
    pub fn open(path: &Path) -> Result<Self, Error> {
        let open = |source| Error::Open(path.into(), source);
        // Non-blocking: a wrong path must not block the thread.
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .map_err(open)?;
        let (it, own) = (
            file.metadata().map_err(open)?,
            std::fs::metadata(OWN).map_err(open)?,
        );
        if (it.dev(), it.ino()) == (own.dev(), own.ino()) {
            return Err(Error::IsOwn(path.into()));
        }
        Ok(Namespace {
            path: path.into(),
            file,
        })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Does the work in its own thread in this namespace, which exits afterwards: no other thread ever changes its
    /// namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        thread::scope(|scope| {
            let inside = || {
                setns(&self.file, CloneFlags::CLONE_NEWNET)
                    .map_err(|errno| Error::Enter(self.path.clone(), errno.into()))?;
                Ok(work())
            };
            let thread = thread::Builder::new()
                .name("pod-netns".into())
                .spawn_scoped(scope, inside)
                .map_err(Error::Thread)?;
            thread
                .join()
                .unwrap_or_else(|_| Err(Error::Panicked(self.path.clone())))
        })
    }
}
